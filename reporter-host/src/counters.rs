//! What a reporter counts.

use dta_link::fault::FaultCounts;
use dta_proto::counter::reporter as names;
use serde::Serialize;

/// What became of reports and NACKs. All count from the reporter's opening.
///
/// `reports + retransmitted = pending + fault.dropped + fault.held - fault.duplicated + link.sent +
/// (unsent, all reasons)`: every report that was taken is in one of them, and no term is a
/// remainder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReporterCounters {
    /// Reports taken: they have a sequence number.
    pub reports: u64,
    /// Reports refused because the format cannot say them; they have no sequence number.
    pub refused: u64,
    /// Reports sent again because a NACK asked for them.
    pub retransmitted: u64,
    /// Reports in the batch that is being filled.
    pub pending: u64,
    /// NACKs taken.
    pub nacks: u64,
    /// Sequences that these NACKs asked for: `retransmitted + nack_unavailable + nack_refused`.
    pub nacked: u64,
    /// Of these, not held: never kept (not retransmittable), or pushed out of the backup by later ones.
    pub nack_unavailable: u64,
    /// Of these, kept, but not sent again: each report is sent again 8 times at most, and all
    /// together no faster than [`Config::resends_per_second`](crate::Config::resends_per_second).
    pub nack_refused: u64,
    /// Datagrams on a NACK port that are no NACK of this version.
    pub nack_malformed: u64,
    /// NACKs for another reporter, or not from the address and port that reports go to.
    pub nack_foreign: u64,
    /// What the injector did (all passed when there are no faults).
    pub fault: FaultCounts,
    /// The sending link: sent, and unsent by reason.
    pub link: dta_link::LinkCounters,
}

impl ReporterCounters {
    /// Each counter under its dotted name, those of the injector as `fault.…`, and the reasons why
    /// the link did not send as `dropped.reporter.unsent-…`.
    pub fn named(&self) -> Vec<(String, u64)> {
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
        let mut all: Vec<_> = all.map(|(counter, count)| (counter.of(&[]), count)).into();
        all.extend(self.fault.by_fault().map(|(fault, count)| (names::FAULTS.of(&[fault.name()]), count)));
        all.push((names::FAULT_HELD.of(&[]), self.fault.held));
        all.push((names::SENT.of(&[]), self.link.sent));
        let unsent = self.link.losses().into_iter().filter(|(loss, _)| loss.is_unsent());
        all.extend(unsent.map(|(loss, count)| (names::UNSENT.of(&[loss.name()]), count)));
        all
    }

    /// Whether every report that was taken is in one of the terms.
    pub fn balanced(&self) -> bool {
        self.reports + self.retransmitted + self.fault.duplicated
            == self.pending + self.fault.dropped + self.fault.held + self.link.sent + self.link.unsent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::counter::Node;

    #[test]
    fn every_counter_is_defined() {
        let named = ReporterCounters::default().named();
        assert_eq!(named.len(), 12 + 4 + 8);
        for (name, _) in named {
            assert!(Node::Reporter.find(&name).is_some_and(|found| found.known), "{name}");
        }
    }
}
