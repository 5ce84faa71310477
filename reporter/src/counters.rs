//! A reporter's counters.

use dta_link::fault::FaultCounts;
use dta_proto::counter::reporter as names;
use serde::Serialize;

dta_proto::published_counters! {
    /// What became of reports and NACKs, since the reporter was opened.
    ///
    /// `reports + retransmitted = pending + fault.dropped + fault.held - fault.duplicated + link.sent +
    /// (unsent, all reasons)`: every accepted report is in one of them, and no term is computed as a
    /// remainder.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct ReporterCounters {
        pub reports: u64 = names::REPORTS,
        pub refused: u64 = names::REFUSED,
        pub retransmitted: u64 = names::RETRANSMITTED,
        pub pending: u64 = names::PENDING,
        pub nacks: u64 = names::NACKS,
        pub nacked: u64 = names::NACKED,
        pub nack_unavailable: u64 = names::NACK_UNAVAILABLE,
        /// See [`Config::resends_per_second`](crate::Config::resends_per_second).
        pub nack_refused: u64 = names::NACK_REFUSED,
        pub nack_malformed: u64 = names::NACK_MALFORMED,
        pub nack_foreign: u64 = names::NACK_FOREIGN,
    }
    and {
        /// The injector's counters (without faults, everything passed).
        pub fault: FaultCounts,
        /// The sending link: sent, and unsent by reason.
        pub link: dta_link::LinkCounters,
    }
}

impl ReporterCounters {
    /// Each counter by its dotted name, the injector's as `fault.…`, and the link's reasons for not sending
    /// as `dropped.reporter.unsent-…`.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let mut all = self.named_fields();
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
