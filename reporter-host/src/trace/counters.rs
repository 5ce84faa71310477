//! What a tracer counts.

use dta_proto::counter::reporter as names;
use dta_proto::counter::reporter::AgentLoss;
use dta_trace::counts::Books;

/// What became of records. All count from the start; `held` is how many there are now.
///
/// Each record of a point on the packets' way is told with its packet, held, or one of `repeats`, `shared_digests` and
/// `unknown_point`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracerCounters {
    /// Records taken.
    pub records: u64,
    /// Packets told.
    pub packets: u64,
    /// Packets of which more may be seen.
    pub held: u64,
    /// Packets told before their time, as another one needed the place.
    pub early: u64,
    /// Records of a packet at a point where it had been already, at another interface.
    pub repeats: u64,
    /// Records at a point and interface where a packet with the same digest had been already.
    pub shared_digests: u64,
    /// Records and counts of a point that is not known.
    pub unknown_point: u64,
    /// Records of drops.
    pub drops: u64,
    /// Packets beyond the threshold.
    pub slow: u64,
    /// Records whose digest may differ from that of other points.
    pub partial: u64,
    /// Records of buffers with several packets.
    pub segments: u64,
    /// Reports that were not made, as the collector has no store for them.
    pub no_store: u64,
    /// What the kernel's programs count, as it was told last.
    pub books: Books,
    /// The reporter's own counters.
    pub reporter: crate::ReporterCounters,
}

impl TracerCounters {
    /// Each counter under its name: those of tracing, and then the reporter's own.
    pub fn named(&self) -> Vec<(String, u64)> {
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
            (names::AGENT_DROPPED.of(&[loss.name()]), count)
        });
        let mut all: Vec<_> =
            all.map(|(counter, count)| (counter.of(&[]), count)).into_iter().chain(lost).collect();
        all.extend(self.reporter.named());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::counter::Node;

    #[test]
    fn every_counter_is_defined() {
        let named = TracerCounters::default().named();
        assert_eq!(named.len(), 14 + 8 + crate::ReporterCounters::default().named().len());
        for (name, _) in named {
            assert!(Node::Reporter.find(&name).is_some_and(|found| found.known), "{name}");
        }
    }
}
