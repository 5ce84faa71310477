//! RoCEv2 frames over IPv6 through UDP sockets, each frame a message of its own.
//!
//! Over IPv6, an iCRC covers nothing that the kernel chooses: not the traffic class, the flow label, the hop limit or the UDP
//! checksum. So a frame arrives with the iCRC that it was created with, behind headers like those of [`super`].

use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use dta_proto::batch::PacketBatch;
use dta_proto::wire::datagram::IPV6_HEADER_LEN;
use dta_proto::wire::{ipv4, ipv6, udp};

use super::group::bind_group;
use super::receiver::UdpReceiver;
use super::sender::{SEND_RETRIES, SOURCES_MAX, send_queue};
use super::{CALL_MAX, Instruction, RECEIVE_BUFFER, bind_datagram_socket};
use crate::sys::{self, Messages, Outgoing};
use crate::{Link, LinkCounters, LinkError, Result, Scope};

/// A bound UDP socket over IPv6, and the sockets that send from other source ports.
pub struct Ipv6FrameLink {
    local: SocketAddrV6,
    receiver: UdpReceiver,
    /// The sockets by address and port; the receiving one is first.
    sockets: Vec<(SocketAddrV6, Arc<OwnedFd>)>,
    messages: Messages,
    /// The route of each packet of the current batch; `None` if it cannot be sent.
    routes: Vec<Option<SendRoute>>,
    queue: Vec<u16>,
    counters: LinkCounters,
}

#[derive(Debug, Clone, Copy)]
struct SendRoute {
    /// Index of the socket.
    socket: usize,
    to: SocketAddrV6,
    /// Where the payload ends.
    end: usize,
}

impl Ipv6FrameLink {
    /// Binds a socket to an address, which must not be the unspecified one; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// The port is in use, the address is not one of this host, or the kernel refuses an option.
    pub fn open(address: SocketAddrV6) -> Result<Self> {
        check_is_specific(address)?;
        let (socket, local) = bind_datagram_socket(address.into(), None)?;
        Self::from_socket(socket, local)
    }

    /// Binds `count` sockets to one address and port; `choose` selects the socket for each frame, as for
    /// [`UdpLink::open_group`](super::UdpLink::open_group).
    ///
    /// # Errors
    /// As [`Ipv6FrameLink::open`]; if another program has the port in its own group; and if the kernel rejects the program.
    pub fn open_group(address: SocketAddrV6, count: usize, choose: &[Instruction]) -> Result<Vec<Self>> {
        check_is_specific(address)?;
        let (sockets, local) = bind_group(address.into(), None, count, choose)?;
        sockets.into_iter().map(|socket| Self::from_socket(socket, local)).collect()
    }

    fn from_socket(socket: OwnedFd, local: SocketAddr) -> Result<Self> {
        let SocketAddr::V6(local) = local else { return Err(LinkError::NotLocal(local)) };
        set_frame_options(&socket)?;
        let socket = Arc::new(socket);
        Ok(Self {
            local,
            receiver: UdpReceiver::from_socket(
                Arc::clone(&socket),
                local.into(),
                RECEIVE_BUFFER,
                true,
                false,
            )?,
            sockets: vec![(local, socket)],
            messages: Messages::new(CALL_MAX),
            routes: Vec::new(),
            queue: Vec::new(),
            counters: LinkCounters::default(),
        })
    }

    /// Its address and port; if 0 was requested, the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddrV6 {
        self.local
    }

    /// Bytes of the longest packet that can reach `destination`, as far as the kernel knows: the path MTU.
    ///
    /// # Errors
    /// There is no route.
    pub fn path_mtu(&self, destination: SocketAddrV6) -> Result<u32> {
        let read = || {
            // Only a connected socket has a path.
            let socket = UdpSocket::bind((*self.local.ip(), 0))?;
            socket.connect(destination)?;
            let mut mtu = [0];
            sys::get_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU, &mut mtu)?;
            Ok(mtu[0])
        };
        read().map_err(LinkError::io_with_context("cannot read the path MTU (IPV6_MTU)"))
    }

    /// How a packet is sent; `None`, with the packet counted, if it cannot be sent.
    fn route_packet(&mut self, packet: &[u8]) -> Option<SendRoute> {
        let Some((from, to, end)) = read_datagram(packet) else {
            self.counters.unsent_malformed += 1;
            return None;
        };
        match self.socket_of(from) {
            Ok(socket) => Some(SendRoute { socket, to, end }),
            Err(_) => {
                self.counters.unsent_no_source += 1;
                None
            }
        }
    }

    fn socket_of(&mut self, source: SocketAddrV6) -> Result<usize> {
        let is_of_source =
            |(bound, _): &(SocketAddrV6, _)| (bound.ip(), bound.port()) == (source.ip(), source.port());
        if let Some(index) = self.sockets.iter().position(is_of_source) {
            return Ok(index);
        }
        let (socket, _) = bind_datagram_socket(source.into(), None)?;
        set_frame_options(&socket)?;
        // Nothing is received here: a minimal queue, so that strangers cannot fill memory.
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0)
            .map_err(LinkError::io_with_context("cannot set SO_RCVBUF"))?;
        self.sockets.push((source, Arc::new(socket)));
        Ok(self.sockets.len() - 1)
    }
}

impl AsFd for Ipv6FrameLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl Link for Ipv6FrameLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        self.receiver.recv(batch, timeout)
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        let before = self.counters.sent;
        if self.sockets.len() > SOURCES_MAX {
            self.sockets.truncate(1);
        }
        self.routes.clear();
        for packet in batch.iter() {
            let route = self.route_packet(packet);
            self.routes.push(route);
        }
        let Self { sockets, messages, routes, queue, counters, .. } = self;
        for (number, (_, socket)) in sockets.iter().enumerate() {
            queue.clear();
            let of_socket = |route: &Option<SendRoute>| route.is_some_and(|route| route.socket == number);
            queue.extend((0..).zip(&*routes).filter(|(_, route)| of_socket(route)).map(|(index, _)| index));
            send_queue(socket.as_fd(), messages, counters, queue, SEND_RETRIES, |index| {
                let packet = batch.packet(index);
                let outgoing = routes[index].map(|route| Outgoing {
                    bytes: &packet[IPV6_HEADER_LEN..route.end],
                    to: Some(route.to.into()),
                    ..Outgoing::default()
                });
                (outgoing.unwrap_or_default(), packet.len())
            });
        }
        batch.clear();
        Ok((self.counters.sent - before) as usize)
    }

    fn link_counters(&self) -> LinkCounters {
        let mut counters = self.receiver.receive_counters();
        counters.add(&self.counters);
        counters
    }

    fn corruption_scope(&self) -> Scope {
        Scope::Payload
    }
}

/// Checks that an address is specific: the headers need the address that a frame was sent to, and the kernel does not say it.
fn check_is_specific(address: SocketAddrV6) -> Result<()> {
    match address.ip().is_unspecified() {
        true => Err(LinkError::NotLocal(address.into())),
        false => Ok(()),
    }
}

/// No fragments, and no UDP checksum in either direction, like RDMA devices.
fn set_frame_options(socket: &OwnedFd) -> Result<()> {
    for (level, option, value, context) in [
        (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
            "cannot refuse fragments (IPV6_MTU_DISCOVER)",
        ),
        (libc::SOL_UDP, sys::UDP_NO_CHECK6_TX, 1, "cannot leave out the UDP checksum (UDP_NO_CHECK6_TX)"),
        (libc::SOL_UDP, sys::UDP_NO_CHECK6_RX, 1, "cannot do without a UDP checksum (UDP_NO_CHECK6_RX)"),
    ] {
        sys::set_option(socket.as_fd(), level, option, value).map_err(LinkError::io_with_context(context))?;
    }
    Ok(())
}

/// Source and destination of a datagram over IPv6, and where it ends in its packet.
fn read_datagram(packet: &[u8]) -> Option<(SocketAddrV6, SocketAddrV6, usize)> {
    let (header, message) = ipv6::parse_packet(packet, ipv4::PROTOCOL_UDP).ok()?;
    let datagram = udp::UdpPacket::new_checked(message).ok()?;
    let ports = udp::UdpHeader::from_first_bytes(message)?;
    let at = |ip, port| SocketAddrV6::new(ip, port, 0, 0);
    Some((
        at(header.source_address(), ports.source_port()),
        at(header.destination_address(), ports.destination_port()),
        IPV6_HEADER_LEN + datagram.payload().len(),
    ))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use dta_proto::wire::datagram::encode_ipv6_header;

    use super::*;

    fn packet(from: SocketAddrV6, to: SocketAddrV6, payload: &[u8]) -> Vec<u8> {
        [&encode_ipv6_header(from, to, payload.len())[..], payload].concat()
    }

    fn receive(link: &mut Ipv6FrameLink, count: usize) -> Vec<Vec<u8>> {
        let (mut batch, mut all) = (PacketBatch::default(), Vec::new());
        while all.len() < count {
            assert_ne!(link.recv(&mut batch, Some(Duration::from_secs(60))).unwrap(), 0);
            all.extend(batch.iter().map(<[u8]>::to_vec));
        }
        all
    }

    #[test]
    fn frames_over_ipv6_arrive_as_they_were_made() {
        let open = || Ipv6FrameLink::open(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0)).unwrap();
        let (mut here, mut there) = (open(), open());
        let (from, to) = (here.local_addr(), there.local_addr());
        // A free port, for frames from another source.
        let other = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let other = SocketAddrV6::new(Ipv6Addr::LOCALHOST, other, 0, 0);
        let sent = [packet(from, to, &[1; 40]), packet(from, to, &[]), packet(other, to, &[3; 1000])];
        let mut batch = PacketBatch::default();
        sent.iter().for_each(|packet| batch.push(packet, 0).unwrap());
        // IPv4, a message that is not UDP, a length beyond the packet, and an address that nobody here has.
        batch.push(&[0x45; 60], 0).unwrap();
        let [mut icmp, mut long] = [(); 2].map(|()| sent[0].clone());
        (icmp[6], long[5]) = (58, 200);
        batch.push(&icmp, 0).unwrap();
        batch.push(&long, 0).unwrap();
        let stranger = SocketAddrV6::new("2001:db8::1".parse().unwrap(), 9, 0, 0);
        batch.push(&packet(stranger, to, &[4]), 0).unwrap();
        assert_eq!(here.send(&mut batch).unwrap(), 3);
        let mut received = receive(&mut there, 3);
        // Frames from different sources may overtake each other.
        received.sort_by_key(|packet| packet.last().copied().filter(|last| *last == 3));
        assert_eq!(received, sent);
        let counters = here.link_counters();
        assert_eq!((counters.sent, counters.unsent_malformed, counters.unsent_no_source), (3, 3, 1));
        assert_eq!(counters.sent_bytes, sent.iter().map(|packet| packet.len() as u64).sum::<u64>());
        assert_eq!(there.link_counters().received, 3);
        assert_eq!(here.path_mtu(to).unwrap(), 65536);
        // Back to a port that the kernel chose.
        batch.push(&packet(to, from, &[5; 8]), 0).unwrap();
        assert_eq!(there.send(&mut batch).unwrap(), 1);
        assert_eq!(receive(&mut here, 1), [packet(to, from, &[5; 8])]);
    }

    #[test]
    fn an_address_that_a_frame_cannot_be_sent_to_is_refused() {
        let open = |ip: &str| Ipv6FrameLink::open(SocketAddrV6::new(ip.parse().unwrap(), 0, 0, 0)).err();
        for ip in ["::", "2001:db8::1"] {
            assert!(matches!(open(ip), Some(LinkError::NotLocal(_))), "{ip}");
        }
    }
}
