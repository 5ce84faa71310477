//! Status of the engine.

use dta_proto::program::{Program, Purpose, Transport};

use super::{Engine, Offender};
use crate::counters::{EngineCounters, Reason};
use crate::egress::ActiveQueuePair;
use crate::losses::Origins;
use crate::reporters::Reporters;
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

impl Engine {
    pub fn installed_program(&self) -> &Program {
        &self.program
    }

    pub fn engine_counters(&self) -> &EngineCounters {
        &self.egress.counters
    }

    /// Takes the first report dropped for each reason since the last call.
    pub fn take_offenders(&mut self) -> impl Iterator<Item = (Reason, Offender)> + '_ {
        self.offenders.take()
    }

    /// Known version-1 reporters.
    pub fn reporters(&self) -> &Reporters {
        &self.reporters
    }

    /// RoCEv2 packets received that were damaged, or no answer to one of our queue pairs.
    pub fn answers_ignored(&self) -> u64 {
        self.answers_ignored
    }

    /// Origins of the reports in recent frames.
    pub fn report_origins(&self) -> &Origins {
        &self.egress.origins
    }

    /// How many former regions have unacknowledged operations in flight. Until there are none, their rkeys
    /// must stay valid.
    pub fn former_regions(&self) -> usize {
        self.egress.former_regions()
    }

    /// Operations for which every queue pair has room, while half of its queue is kept free for what comes meanwhile.
    /// Operations beyond a queue pair's queue are lost.
    pub fn queue_headroom(&self) -> usize {
        self.egress.queue_pairs().map(|(_, pair)| pair.requester.queue_headroom()).min().unwrap_or(usize::MAX)
    }

    /// The queue pairs' states, by collector, then purpose.
    pub fn queue_pairs(&self) -> Vec<QueuePairStatus> {
        let status = |p: &ActiveQueuePair| QueuePairStatus {
            collector: p.entry.collector,
            purpose: p.entry.purpose,
            transport: p.entry.transport,
            remote_qpn: p.entry.remote_qpn,
            generation: p.entry.generation,
            next_psn: p.requester.next_psn().get(),
            outstanding: p.requester.outstanding(),
            waiting: p.requester.waiting_operations(),
            down: p.requester.is_down(),
            counters: p.requester.counters,
        };
        self.egress.queue_pairs().map(|(_, pair)| status(pair)).collect()
    }
}
