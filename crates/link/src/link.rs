//! What all links have in common.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_proto::batch::PacketBatch;

use crate::{LinkCounters, LinkError, Result, RingCounters, sys};

/// Which bits of a packet a corrupting fault may flip on a link so that the flip reaches the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The whole packet from the IPv4 header: raw frames and rings.
    Packet,
    /// The payload after the 28 header bytes (48 over IPv6): UDP sockets without UDP checksum, where the sender's
    /// kernel writes new headers. The payload needs its own check (the iCRC of RoCEv2).
    Payload,
    /// UDP header and payload, the UDP checksum being that of the datagram before the flip: UDP sockets with
    /// checksum. Such a datagram is sent through a raw socket, because the kernel would correct the checksum.
    Datagram,
}

pub trait Link: Send {
    /// Replaces the contents of `batch` by what has arrived, up to its capacity, waiting until there is
    /// something: `None` forever, `Some(ZERO)` not at all. Returns the number of packets: 0 after the
    /// timeout, or earlier if a signal arrived or everything was dropped as too long. So call it in a loop.
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize>;

    /// Sends all packets and empties the batch. Returns how many were sent; the others are counted by reason. An error
    /// recurs at the next call.
    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize>;

    fn link_counters(&self) -> LinkCounters;

    /// The part of the counters that went through shared rings.
    fn ring_counters(&self) -> RingCounters {
        RingCounters::default()
    }

    /// Which bits a corrupting fault may flip on this link.
    fn corruption_scope(&self) -> Scope;
}

/// As [`Link::recv`], given what a link receives without waiting.
pub(crate) fn recv_or_wait<L: AsFd>(
    link: &mut L,
    batch: &mut PacketBatch,
    timeout: Option<Duration>,
    recv_nonblocking: impl Fn(&mut L, &mut PacketBatch) -> Result<usize>,
) -> Result<usize> {
    let received = recv_nonblocking(link, batch)?;
    if received > 0 || timeout == Some(Duration::ZERO) {
        return Ok(received);
    }
    wait_readable(&[link.as_fd()], timeout)?;
    recv_nonblocking(link, batch)
}

/// Waits until one of several receivers has something, or the timeout (`None`: no limit). Returns whether one
/// has. A signal makes it return `false` early.
pub fn wait_readable(receivers: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool> {
    sys::wait_for_events(receivers, sys::READABLE, timeout)
        .map_err(LinkError::io_with_context("cannot wait for datagrams"))
}
