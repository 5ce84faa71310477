//! What a reporter counts.

use dta_link::fault::FaultCounts;
use serde::Serialize;

/// What became of reports and NACKs. All count from the reporter's opening.
///
/// `reports + retransmitted = pending + fault.dropped + fault.held - fault.duplicated + link.sent + (unsent, all reasons)`: every
/// report that was taken is in one of them, and no term is a remainder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
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
    /// Of these, kept, but not sent again: each report is sent again 8 times at most, and all together no faster than
    /// [`Config::resends_per_second`](crate::Config::resends_per_second).
    pub nack_refused: u64,
    /// Datagrams on a NACK port that are no NACK of this version.
    pub nack_malformed: u64,
    /// NACKs for another reporter, or not from the address and port that reports go to.
    pub nack_foreign: u64,
    /// What the injector did (all passed when there are no faults).
    pub fault: FaultCounts,
    /// The sending link: sent, and unsent by reason.
    pub link: dta_link::Counters,
}

impl Counters {
    /// Each counter and its name, those of the injector as `fault.…`, and the reasons why the link did not send as
    /// `dropped.reporter.unsent-…`.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("reports", self.reports),
            ("refused", self.refused),
            ("retransmitted", self.retransmitted),
            ("pending", self.pending),
            ("nacks", self.nacks),
            ("nacked", self.nacked),
            ("nack-unavailable", self.nack_unavailable),
            ("nack-refused", self.nack_refused),
            ("nack-malformed", self.nack_malformed),
            ("nack-foreign", self.nack_foreign),
            ("fault.dropped", self.fault.dropped),
            ("fault.duplicated", self.fault.duplicated),
            ("fault.reordered", self.fault.reordered),
            ("fault.corrupted", self.fault.corrupted),
            ("fault.held", self.fault.held),
            ("sent", self.link.sent),
        ];
        let unsent = [
            ("dropped.reporter.unsent-queue-full", self.link.unsent_queue_full),
            ("dropped.reporter.unsent-no-buffers", self.link.unsent_no_buffers),
            ("dropped.reporter.unsent-too-long", self.link.unsent_too_long),
            ("dropped.reporter.unsent-unreachable", self.link.unsent_unreachable),
            ("dropped.reporter.unsent-forbidden", self.link.unsent_forbidden),
            ("dropped.reporter.unsent-no-source", self.link.unsent_no_source),
            ("dropped.reporter.unsent-malformed", self.link.unsent_malformed),
            ("dropped.reporter.unsent-other", self.link.unsent_other),
        ];
        all.extend(unsent);
        all
    }

    /// Whether every report that was taken is in one of the terms.
    pub fn balanced(&self) -> bool {
        self.reports + self.retransmitted + self.fault.duplicated
            == self.pending + self.fault.dropped + self.fault.held + self.link.sent + self.link.unsent()
    }
}
