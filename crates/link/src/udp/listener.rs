//! UDP sockets that only receive, over IPv4 or IPv6.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use dta_proto::batch::PacketBatch;

use super::group::{attach_choice, bind_group};
use super::receiver::UdpReceiver;
use super::{Instruction, RECEIVE_BUFFER, bind_datagram_socket};
use crate::{LinkCounters, Result};

/// A bound UDP socket that only receives. [`PacketBatch::source_and_payload`] reads its packets.
pub struct UdpListener(UdpReceiver);

impl UdpListener {
    /// Binds `count` sockets to one address and port; `choose` selects the socket for each datagram, as for
    /// [`UdpLink::open_group`](super::UdpLink::open_group). `[::]` also receives IPv4.
    ///
    /// # Errors
    /// The port is in use, the address is not of this host, or the kernel refuses an option or the program.
    pub fn open_group(address: SocketAddr, count: usize, choose: &[Instruction]) -> Result<Vec<UdpListener>> {
        let (sockets, local) = match count {
            // No other socket of this user may join.
            1 => bind_datagram_socket(address, None).map(|(socket, local)| (vec![socket], local))?,
            _ => bind_group(address, None, count, choose)?,
        };
        let open = |socket: OwnedFd| {
            UdpReceiver::from_socket(Arc::new(socket), local, RECEIVE_BUFFER, true, false).map(UdpListener)
        };
        sockets.into_iter().map(open).collect()
    }

    /// From now on, another program chooses among the sockets of the group.
    ///
    /// # Errors
    /// The kernel rejects the program.
    pub fn replace_choice(&self, choose: &[Instruction]) -> Result<()> {
        attach_choice(self, choose)
    }

    /// Its address and port; if 0 was requested, the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// As [`crate::Link::recv`].
    ///
    /// # Errors
    /// The socket is broken.
    pub fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        self.0.recv(batch, timeout)
    }

    pub fn link_counters(&self) -> LinkCounters {
        self.0.receive_counters()
    }
}

impl AsFd for UdpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_unspecified_address_of_ipv6_takes_both_families() {
        let mut listeners = UdpListener::open_group("[::]:0".parse().unwrap(), 1, &[]).unwrap();
        let port = listeners[0].local_addr().port();
        let mut batch = PacketBatch::default();
        for host in ["127.0.0.1", "[::1]"] {
            let sender = UdpSocket::bind(format!("{host}:0")).unwrap();
            // With its headers, the last one does not fit in a slot.
            for len in [0, 1, 1400, 2100] {
                sender.send_to(&vec![7; len], format!("{host}:{port}")).unwrap();
            }
            let mut lengths = Vec::new();
            while lengths.len() < 3 {
                listeners[0].recv(&mut batch, Some(Duration::from_secs(30))).unwrap();
                for index in 0..batch.len() {
                    let (from, payload) = batch.source_and_payload(index).unwrap();
                    assert_eq!(from, sender.local_addr().unwrap());
                    assert!(payload.iter().all(|byte| *byte == 7));
                    lengths.push(payload.len());
                }
            }
            assert_eq!(lengths, [0, 1, 1400]);
        }
        while listeners[0].link_counters().dropped_too_long < 2 {
            listeners[0].recv(&mut batch, Some(Duration::from_secs(30))).unwrap();
        }
    }
}
