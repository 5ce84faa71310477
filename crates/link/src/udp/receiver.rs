//! The receiving half of a UDP link.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use dta_proto::batch::{HEADROOM, PacketBatch};
use dta_proto::wire::datagram;

use super::CALL_MAX;
use crate::sys::{self, Messages};
use crate::{LinkCounters, LinkError, Result};

/// Messages per call if each may be a run.
const RUNS: usize = 64;

/// Distance between their buffers: the longest run, and three cache lines more, so that their beginnings do
/// not share a set of the cache.
const STRIDE: usize = (64 << 10) + 3 * 64;

/// The receiving half of a UDP link.
pub struct UdpReceiver {
    socket: Arc<OwnedFd>,
    local: SocketAddrV4,
    receive_buffer: usize,
    messages: Messages,
    runs: Option<Box<Runs>>,
    /// Whether datagrams may have left with another id than their headers get.
    ids_unknown: bool,
    counters: LinkCounters,
}

/// Runs of the last call, and how far they were delivered.
struct Runs {
    /// Only as much memory is used as runs really fill.
    bytes: Box<[u8]>,
    count: usize,
    index: usize,
    /// Bytes of it already delivered.
    at: usize,
}

impl UdpReceiver {
    /// `runs`: whether the socket may deliver runs of datagrams as one message; `ids_unknown`: whether to mark
    /// packets so.
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        local: SocketAddrV4,
        receive_buffer: usize,
        runs: bool,
        ids_unknown: bool,
    ) -> UdpReceiver {
        let buffers = || Box::new(Runs { bytes: vec![0; RUNS * STRIDE].into(), count: 0, index: 0, at: 0 });
        UdpReceiver {
            socket,
            local,
            receive_buffer,
            messages: Messages::new(if runs { RUNS } else { CALL_MAX }),
            runs: runs.then(buffers),
            ids_unknown,
            counters: LinkCounters::default(),
        }
    }

    pub(super) fn local_addr(&self) -> SocketAddrV4 {
        self.local
    }

    pub(super) fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    pub(super) fn takes_runs(&self) -> bool {
        self.runs.is_some()
    }

    /// As [`crate::Link::recv`].
    pub fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        let received = self.recv_nonblocking(batch)?;
        if received > 0 || timeout == Some(Duration::ZERO) {
            return Ok(received);
        }
        crate::wait_readable(&[self.as_fd()], timeout)?;
        self.recv_nonblocking(batch)
    }

    /// Counters of what was received, and what the kernel dropped at this socket so far.
    pub fn receive_counters(&self) -> LinkCounters {
        let dropped_by_kernel = sys::kernel_drops(self.as_fd());
        LinkCounters { dropped_by_kernel, ..self.counters }
    }

    /// 0 means that nothing earlier from the kernel is left either, so that a caller may wait.
    fn recv_nonblocking(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        batch.clear();
        let Self { socket, messages, runs, .. } = self;
        match runs {
            Some(runs) => {
                if runs.index == runs.count {
                    let buffers = runs.bytes.chunks_exact_mut(STRIDE);
                    (runs.index, runs.at) = (0, 0);
                    runs.count = received_count(messages.recv(socket.as_fd(), buffers))?;
                }
                self.split_runs(batch);
            }
            None => {
                let buffers = batch.receive_buffers(HEADROOM + datagram::HEADER_LEN);
                let count = received_count(messages.recv(socket.as_fd(), buffers))?;
                self.adopt_datagrams(batch, count);
            }
        }
        Ok(batch.len())
    }

    /// Adds headers to the datagrams that the kernel wrote into the slots of `batch`.
    fn adopt_datagrams(&mut self, batch: &mut PacketBatch, count: usize) {
        for index in 0..count {
            let incoming = self.messages.incoming_metadata(index);
            if incoming.truncated {
                self.counters.dropped_too_long += 1;
                continue;
            }
            let to = self.destination(incoming.to);
            batch.adopt_received(index, datagram::HEADER_LEN + incoming.len);
            let packet = batch.packet_mut(batch.len() - 1);
            packet[..datagram::HEADER_LEN].copy_from_slice(&datagram::encode_header(
                incoming.from,
                to,
                incoming.len,
            ));
            self.counters.count_received(packet.len());
            if self.ids_unknown {
                batch.set_id_unknown(batch.len() - 1);
            }
        }
    }

    /// Cuts runs into datagrams, as many as fit `batch`.
    fn split_runs(&mut self, batch: &mut PacketBatch) {
        let room = batch.packet_capacity().saturating_sub(datagram::HEADER_LEN);
        while let Some(runs) = self.runs.as_ref().filter(|runs| runs.index < runs.count) {
            let incoming = self.messages.incoming_metadata(runs.index);
            let (from, to) = (incoming.from, self.destination(incoming.to));
            let len = incoming.len.min(STRIDE);
            // Runs of empty datagrams do not exist: an empty datagram is a message.
            let segment = incoming.segment.map_or(len, NonZero::get).min(len);
            let header = datagram::encode_header(from, to, segment.min(room));
            let Some(runs) = &mut self.runs else { return };
            let message = &runs.bytes[runs.index * STRIDE..][..len];
            loop {
                let datagram = &message[runs.at..(runs.at + segment).min(len)];
                if incoming.truncated || datagram.len() > room {
                    self.counters.dropped_too_long += 1;
                } else {
                    let Some(slot) = batch.next_slot() else { return };
                    let (head, payload) = slot.split_at_mut(datagram::HEADER_LEN);
                    match datagram.len() == segment {
                        true => head.copy_from_slice(&header),
                        false => head.copy_from_slice(&datagram::encode_header(from, to, datagram.len())),
                    }
                    payload[..datagram.len()].copy_from_slice(datagram);
                    batch.commit_packet(datagram::HEADER_LEN + datagram.len(), 0);
                    self.counters.count_received(datagram::HEADER_LEN + datagram.len());
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

    /// Where a datagram was sent to: `to` is set on sockets bound to all addresses.
    fn destination(&self, to: Option<Ipv4Addr>) -> SocketAddrV4 {
        SocketAddrV4::new(to.unwrap_or(*self.local.ip()), self.local.port())
    }
}

/// How many messages the kernel returned; an empty queue is not an error.
fn received_count(received: std::io::Result<usize>) -> Result<usize> {
    received.or_else(|error| match error.raw_os_error() {
        // ECONNREFUSED is a late error for an earlier datagram of ours; receiving works.
        Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(0),
        _ => Err(LinkError::io_with_context("cannot receive datagrams")(error)),
    })
}

impl AsFd for UdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
