//! A tracer's counters.

use crate::packet_trace::counts::Books;
use dta_proto::counter::reporter as names;
use dta_proto::counter::reporter::AgentLoss;

dta_proto::published_counters! {
    /// What became of records, since the start; `held` is the current number.
    ///
    /// Each record of a point on the packets' path is reported with its packet, held, or counted in
    /// `repeats`, `shared_digests` or `unknown_point`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TracerCounters {
        pub records: u64 = names::RECORDS,
        pub packets: u64 = names::TRACED,
        pub held: u64 = names::HELD_PACKETS,
        pub early: u64 = names::EARLY,
        pub drops: u64 = names::DROPS,
        pub slow: u64 = names::SLOW,
        pub partial: u64 = names::PARTIAL,
        pub segments: u64 = names::SEGMENTS,
        /// Records of a packet at a point where it was already seen, on another interface.
        pub repeats: u64,
        /// Records at a point and interface where a packet with the same digest was already seen.
        pub shared_digests: u64,
        /// Records and counts of unknown points.
        pub unknown_point: u64,
        /// Reports not made because the collector has no store for them.
        pub no_store: u64,
    }
    and {
        /// The kernel programs' counters, when last read.
        pub books: Books,
        /// The reporter's own counters.
        pub reporter: crate::ReporterCounters,
    }
}

impl TracerCounters {
    /// Each counter by name: tracing first, then the reporter's own.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let books = &self.books;
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
        [books.named_counters(), self.named_fields(), lost.collect(), self.reporter.named_counters()].concat()
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
