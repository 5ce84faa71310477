//! What all links have in common.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use dta_proto::batch::Batch;

use crate::{LinkCounters, LinkError, Result, RingCounters, sys};

/// Which bits of a packet a corrupting fault may flip on a link, so that the flip really reaches
/// the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The whole packet from the IPv4 header on: raw frames and rings.
    Packet,
    /// The payload after the 28 bytes of header: UDP sockets without UDP checksum, where the sender's kernel
    /// makes the headers anew. The payload has to bring its own check (the iCRC of RoCEv2).
    Payload,
    /// UDP header and payload, the UDP checksum being that of the datagram before the flip: UDP sockets with
    /// checksum. Such a datagram leaves through a raw socket, for the kernel would make the checksum right.
    Datagram,
}

/// A way for packets in and out.
pub trait Link: Send {
    /// Replaces the contents of `batch` by what has arrived, at most its capacity, waiting until
    /// there is something: `None` for ever, `Some(ZERO)` not at all. Gives the number of packets: 0
    /// after the time, or earlier when a signal came or all that arrived was dropped as too long.
    /// So call it in a loop.
    fn recv(&mut self, batch: &mut Batch, timeout: Option<Duration>) -> Result<usize>;

    /// Sends all packets and empties the batch. Gives how many left; the others are counted by reason. An
    /// error is one that will be there next time too.
    fn send(&mut self, batch: &mut Batch) -> Result<usize>;

    /// What went through and what was lost here so far.
    fn counters(&self) -> LinkCounters;

    /// What of that went through shared rings.
    fn ring_counters(&self) -> RingCounters {
        RingCounters::default()
    }

    /// Which bits a corrupting fault may flip on this link.
    fn scope(&self) -> Scope;
}

/// Waits until one of several receivers has something, or the time is over (`None`: no limit). Gives whether
/// one has. It returns early, with `false`, when a signal arrives.
pub fn wait_readable(receivers: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool> {
    sys::wait(receivers, sys::READABLE, timeout).map_err(LinkError::io("cannot wait for datagrams"))
}
