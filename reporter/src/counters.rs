//! A reporter's counters.

use dta_link::fault::FaultCounts;
use dta_proto::counter::reporter as names;
use serde::Serialize;

/// What became of reports and NACKs, since the reporter was opened.
///
/// `reports + retransmitted = pending + fault.dropped + fault.held - fault.duplicated + link.sent +
/// (unsent, all reasons)`: every report that was taken is in one of them, and no term is a
/// remainder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReporterCounters {
    /// Reports accepted: they have a sequence number.
    pub reports: u64,
    /// Reports refused because the format cannot express them; they have no sequence number.
    pub refused: u64,
    /// Reports retransmitted because a NACK asked for them.
    pub retransmitted: u64,
    /// Reports in the batch that is being filled.
    pub pending: u64,
    /// NACKs taken.
    pub nacks: u64,
    /// Sequences that these NACKs asked for: `retransmitted + nack_unavailable + nack_refused`.
    pub nacked: u64,
    /// Of these, not kept: not retransmittable, or replaced by later ones.
    pub nack_unavailable: u64,
    /// Of these, kept but not retransmitted: at most 8 times per report, and altogether at most
    /// [`Config::resends_per_second`](crate::Config::resends_per_second).
    pub nack_refused: u64,
    /// Datagrams on a NACK port that are not NACKs of this version.
    pub nack_malformed: u64,
    /// NACKs for another reporter, or not from the translator's address and port.
    pub nack_foreign: u64,
    /// The injector's counters (without faults, everything passed).
    pub fault: FaultCounts,
    /// The sending link: sent, and unsent by reason.
    pub link: dta_link::LinkCounters,
}

impl ReporterCounters {
    /// Each counter by its dotted name, the injector's as `fault.…`, and the link's reasons for not sending
    /// as `dropped.reporter.unsent-…`.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let all = [
            (&names::REPORTS, self.reports),
            (&names::REFUSED, self.refused),
            (&names::RETRANSMITTED, self.retransmitted),
            (&names::PENDING, self.pending),
            (&names::NACKS, self.nacks),
            (&names::NACKED, self.nacked),
            (&names::NACK_UNAVAILABLE, self.nack_unavailable),
            (&names::NACK_REFUSED, self.nack_refused),
            (&names::NACK_MALFORMED, self.nack_malformed),
            (&names::NACK_FOREIGN, self.nack_foreign),
        ];
        let mut all: Vec<_> = all.map(|(counter, count)| (counter.format_name(&[]), count)).into();
        all.extend(
            self.fault
                .counts_by_fault()
                .map(|(fault, count)| (names::FAULTS.format_name(&[fault.name()]), count)),
        );
        all.push((names::FAULT_HELD.format_name(&[]), self.fault.held));
        all.push((names::SENT.format_name(&[]), self.link.sent));
        let unsent = self.link.losses_by_reason().into_iter().filter(|(loss, _)| loss.is_unsent());
        all.extend(unsent.map(|(loss, count)| (names::UNSENT.format_name(&[loss.name()]), count)));
        all
    }

    /// Whether every accepted report is in one of the terms.
    pub fn is_balanced(&self) -> bool {
        self.reports + self.retransmitted + self.fault.duplicated
            == self.pending
                + self.fault.dropped
                + self.fault.held
                + self.link.sent
                + self.link.unsent_packets()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::counter::CounterNode;

    #[test]
    fn every_counter_is_defined() {
        let named = ReporterCounters::default().named_counters();
        assert_eq!(named.len(), 12 + 4 + 8);
        for (name, _) in named {
            assert!(CounterNode::Reporter.find_counter(&name).is_some_and(|found| found.known), "{name}");
        }
    }
}
