//! Status of queue pairs.

use dta_proto::program::{Purpose, Transport};

use crate::egress::ActiveQueuePair;
use crate::requester::RequesterCounters;

/// The state of one queue pair, for statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairStatus {
    pub collector: u8,
    pub purpose: Purpose,
    pub transport: Transport,
    /// Queue pair number at the collector.
    pub remote_qpn: u32,
    pub generation: u64,
    /// PSN of the next frame.
    pub next_psn: u32,
    pub outstanding: u32,
    /// Operations waiting for room (RC).
    pub waiting: usize,
    /// Whether it is in ERROR or silent and must be replaced.
    pub down: bool,
    pub counters: RequesterCounters,
}

impl QueuePairStatus {
    pub(super) fn new(pair: &ActiveQueuePair) -> QueuePairStatus {
        QueuePairStatus {
            collector: pair.entry.collector,
            purpose: pair.entry.purpose,
            transport: pair.entry.transport,
            remote_qpn: pair.entry.remote_qpn,
            generation: pair.entry.generation,
            next_psn: pair.requester.next_psn().get(),
            outstanding: pair.requester.outstanding(),
            waiting: pair.requester.waiting_operations(),
            down: pair.requester.is_down(),
            counters: pair.requester.counters,
        }
    }
}
