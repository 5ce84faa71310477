//! A tracer's counters.

use crate::packet_trace::counts::Books;
use dta_proto::counter::reporter as names;
use dta_proto::counter::reporter::AgentLoss;

/// What became of records, since the start; `held` is the current number.
///
/// Each record of a point on the packets' path is reported with its packet, held, or one of `repeats`,
/// `shared_digests` and
/// `unknown_point`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracerCounters {
    pub records: u64,
    pub packets: u64,
    /// Packets waiting to be seen at more points.
    pub held: u64,
    /// Packets reported early because another one needed the place.
    pub early: u64,
    /// Records of a packet at a point where it was already seen, on another interface.
    pub repeats: u64,
    /// Records at a point and interface where a packet with the same digest was already seen.
    pub shared_digests: u64,
    /// Records and counts of unknown points.
    pub unknown_point: u64,
    pub drops: u64,
    /// Packets over the latency threshold.
    pub slow: u64,
    /// Records whose digest may differ from other points'.
    pub partial: u64,
    /// Records of buffers with several packets.
    pub segments: u64,
    /// Reports not made because the collector has no store for them.
    pub no_store: u64,
    /// The kernel programs' counters, when last read.
    pub books: Books,
    /// The reporter's own counters.
    pub reporter: crate::ReporterCounters,
}

impl TracerCounters {
    /// Each counter by name: tracing first, then the reporter's own.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let books = &self.books;
        let all = [
            (&names::SEEN, books.seen),
            (&names::REPORTED, books.reported),
            (&names::FILTERED, books.filtered),
            (&names::SAMPLED_OUT, books.sampled_out),
            (&names::OWN_REPORTS, books.own),
            (&names::FLOWS_FULL, books.flows_full),
            (&names::RECORDS, self.records),
            (&names::TRACED, self.packets),
            (&names::HELD_PACKETS, self.held),
            (&names::EARLY, self.early),
            (&names::DROPS, self.drops),
            (&names::SLOW, self.slow),
            (&names::PARTIAL, self.partial),
            (&names::SEGMENTS, self.segments),
        ];
        let lost = AgentLoss::ALL.iter().map(|loss| {
            let count = match loss {
                AgentLoss::RingFull => books.ring_full,
                AgentLoss::NotIp => books.not_ip,
                AgentLoss::Unreadable => books.unreadable,
                AgentLoss::Missed => books.missed,
                AgentLoss::UnknownPoint => self.unknown_point,
                AgentLoss::Repeat => self.repeats,
                AgentLoss::SharedDigest => self.shared_digests,
                AgentLoss::NoStore => self.no_store,
            };
            (names::AGENT_DROPPED.format_name(&[loss.name()]), count)
        });
        let mut all: Vec<_> =
            all.map(|(counter, count)| (counter.format_name(&[]), count)).into_iter().chain(lost).collect();
        all.extend(self.reporter.named_counters());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::counter::CounterNode;

    #[test]
    fn every_counter_is_defined() {
        let named = TracerCounters::default().named_counters();
        assert_eq!(named.len(), 14 + 8 + crate::ReporterCounters::default().named_counters().len());
        for (name, _) in named {
            assert!(CounterNode::Reporter.find_counter(&name).is_some_and(|found| found.known), "{name}");
        }
    }
}
