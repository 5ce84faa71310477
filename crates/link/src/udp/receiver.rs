//! The receiving half of a UDP link.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use dta_proto::batch::{HEADROOM, PacketBatch};
use dta_proto::wire::datagram;

use super::{CALL_MAX, set_receive_buffer};
use crate::link::recv_or_wait;
use crate::sys::{self, Incoming, Messages};
use crate::{LinkCounters, LinkError, Result};

/// Messages per call if each may be a run.
const RUNS: usize = 64;

/// Distance between their buffers: the longest run plus three cache lines, so that their beginnings do not share a cache
/// set.
const STRIDE: usize = (64 << 10) + 3 * 64;

/// The receiving half of a UDP link.
pub(super) struct UdpReceiver {
    socket: Arc<OwnedFd>,
    local: SocketAddr,
    receive_buffer: usize,
    messages: Messages,
    runs: Option<Box<Runs>>,
    /// Whether datagrams may have left with other ids than those in their headers here.
    ids_unknown: bool,
    counters: LinkCounters,
}

/// The runs of the last call, and how far they were delivered.
struct Runs {
    /// Memory is used only for the parts that runs really fill.
    bytes: Box<[u8]>,
    count: usize,
    index: usize,
    /// Bytes of it already delivered.
    at: usize,
}

impl UdpReceiver {
    /// Receives from a bound socket. `receive_buffer` is the queue to request, `runs` whether to receive runs of datagrams
    /// as one message if the kernel can, `ids_unknown` whether to mark packets so.
    pub(super) fn from_socket(
        socket: Arc<OwnedFd>,
        local: SocketAddr,
        receive_buffer: usize,
        runs: bool,
        ids_unknown: bool,
    ) -> Result<UdpReceiver> {
        let receive_buffer = set_receive_buffer(socket.as_fd(), receive_buffer)?;
        if local.is_ipv4() && local.ip().is_unspecified() {
            sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
                .map_err(LinkError::io_with_context("cannot ask for IP_PKTINFO"))?;
        }
        // Kernels before 5.0 refuse it.
        let runs = runs && sys::set_option(socket.as_fd(), libc::SOL_UDP, sys::UDP_GRO, 1).is_ok();
        let buffers = || Box::new(Runs { bytes: vec![0; RUNS * STRIDE].into(), count: 0, index: 0, at: 0 });
        Ok(UdpReceiver {
            socket,
            local,
            receive_buffer,
            messages: Messages::new(if runs { RUNS } else { CALL_MAX }),
            runs: runs.then(buffers),
            ids_unknown,
            counters: LinkCounters::default(),
        })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    pub(super) fn takes_runs(&self) -> bool {
        self.runs.is_some()
    }

    /// As [`crate::Link::recv`].
    pub(super) fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        recv_or_wait(self, batch, timeout, Self::recv_nonblocking)
    }

    /// Counters of what was received, and what the kernel dropped at this socket so far.
    pub(super) fn receive_counters(&self) -> LinkCounters {
        let dropped_by_kernel = sys::kernel_drops(self.as_fd());
        LinkCounters { dropped_by_kernel, ..self.counters }
    }

    /// Returns 0 only if nothing from an earlier call is left either, so that a caller may wait.
    fn recv_nonblocking(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        batch.clear();
        match self.local {
            SocketAddr::V4(local) => self.recv_with(batch, |incoming, len| {
                let from = match incoming.from {
                    SocketAddr::V4(from) => from,
                    // Does not occur: the socket is not of this family.
                    SocketAddr::V6(from) => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, from.port()),
                };
                // Known on sockets bound to all addresses.
                let to = SocketAddrV4::new(incoming.to.unwrap_or(*local.ip()), local.port());
                datagram::encode_header(from, to, len)
            }),
            SocketAddr::V6(local) => self.recv_with(batch, |incoming, len| {
                let from = match incoming.from {
                    SocketAddr::V6(from) => from,
                    SocketAddr::V4(from) => SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, from.port(), 0, 0),
                };
                datagram::encode_ipv6_header(from, local, len)
            }),
        }
    }

    /// Receives datagrams, and adds the headers that `encode` makes from a message and the length of a datagram in it.
    fn recv_with<const HEADER: usize>(
        &mut self,
        batch: &mut PacketBatch,
        encode: impl Fn(&Incoming, usize) -> [u8; HEADER],
    ) -> Result<usize> {
        let Self { socket, messages, runs, .. } = self;
        match runs {
            Some(runs) => {
                if runs.index == runs.count {
                    let buffers = runs.bytes.chunks_exact_mut(STRIDE);
                    (runs.index, runs.at) = (0, 0);
                    runs.count = received_count(messages.recv(socket.as_fd(), buffers))?;
                }
                self.split_runs(batch, encode);
            }
            None => {
                let buffers = batch.receive_buffers(HEADROOM + HEADER);
                let count = received_count(messages.recv(socket.as_fd(), buffers))?;
                self.adopt_datagrams(batch, count, encode);
            }
        }
        Ok(batch.len())
    }

    /// Adds headers to the datagrams that the kernel wrote into the slots of `batch`.
    fn adopt_datagrams<const HEADER: usize>(
        &mut self,
        batch: &mut PacketBatch,
        count: usize,
        encode: impl Fn(&Incoming, usize) -> [u8; HEADER],
    ) {
        for index in 0..count {
            let incoming = self.messages.incoming_metadata(index);
            if incoming.truncated {
                self.counters.dropped_too_long += 1;
                continue;
            }
            batch.adopt_received(index, HEADER + incoming.len);
            let packet = batch.packet_mut(batch.len() - 1);
            packet[..HEADER].copy_from_slice(&encode(&incoming, incoming.len));
            self.counters.count_received(packet.len());
            if self.ids_unknown {
                batch.set_id_unknown(batch.len() - 1);
            }
        }
    }

    /// Cuts runs into datagrams, as many as fit `batch`.
    fn split_runs<const HEADER: usize>(
        &mut self,
        batch: &mut PacketBatch,
        encode: impl Fn(&Incoming, usize) -> [u8; HEADER],
    ) {
        let room = batch.packet_capacity().saturating_sub(HEADER);
        while let Some(runs) = self.runs.as_mut().filter(|runs| runs.index < runs.count) {
            let incoming = self.messages.incoming_metadata(runs.index);
            let len = incoming.len.min(STRIDE);
            // A run of empty datagrams does not exist: an empty datagram is a message of its own.
            let segment = incoming.segment.map_or(len, NonZero::get).min(len);
            let header = encode(&incoming, segment.min(room));
            let message = &runs.bytes[runs.index * STRIDE..][..len];
            loop {
                let datagram = &message[runs.at..(runs.at + segment).min(len)];
                if incoming.truncated || datagram.len() > room {
                    self.counters.dropped_too_long += 1;
                } else {
                    let Some(slot) = batch.next_slot() else { return };
                    let (head, payload) = slot.split_at_mut(HEADER);
                    match datagram.len() == segment {
                        true => head.copy_from_slice(&header),
                        false => head.copy_from_slice(&encode(&incoming, datagram.len())),
                    }
                    payload[..datagram.len()].copy_from_slice(datagram);
                    batch.commit_packet(HEADER + datagram.len(), 0);
                    self.counters.count_received(HEADER + datagram.len());
                    if self.ids_unknown {
                        batch.set_id_unknown(batch.len() - 1);
                    }
                }
                runs.at += datagram.len();
                if runs.at >= len {
                    break;
                }
            }
            (runs.index, runs.at) = (runs.index + 1, 0);
        }
    }
}

/// How many messages the kernel returned; an empty queue is not an error.
fn received_count(received: std::io::Result<usize>) -> Result<usize> {
    received.or_else(|error| match error.raw_os_error() {
        // ECONNREFUSED is a late error for an earlier datagram of ours; receiving still works.
        Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(0),
        _ => Err(LinkError::io_with_context("cannot receive datagrams")(error)),
    })
}

impl AsFd for UdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
