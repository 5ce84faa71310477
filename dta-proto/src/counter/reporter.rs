//! What a reporter counts of itself, and what its translator counts of it.

use super::{Fault, Kind, LinkLoss, Table, Values, Variable, table};

const FAULT: Variable = Variable { word: "FAULT", values: Values::Of(Fault::VALUES) };
const LOSS: Variable = Variable { word: "REASON", values: Values::Of(LinkLoss::UNSENT) };

pub(super) static OWN_TABLES: &[&Table] = &[&OWN];
pub(super) static HEARD_TABLES: &[&Table] = &[&HEARD];

table! {
    /// What a reporter counts of itself.
    OWN "reporter" {
        REPORTS: "reports", Reports, In, "reports taken: they have a sequence number";
        REFUSED: "refused", Reports, Beside,
            "reports that the format cannot say; they have no sequence number";
        RETRANSMITTED: "retransmitted", Reports, Beside, "reports sent again because a NACK asked for them";
        PENDING: "pending", Reports, Held, "reports in the batch that is being filled" .kind(Kind::Now);
        NACKS: "nacks", Nacks, Beside, "NACKs taken";
        NACKED: "nacked", Sequences, Beside,
            "sequences that they asked for: `retransmitted + nack-unavailable + nack-refused`";
        NACK_UNAVAILABLE: "nack-unavailable", Sequences, Beside, "asked for, and never kept or no longer";
        NACK_REFUSED: "nack-refused", Sequences, Beside,
            "asked for, and not sent again: a report is sent again 8 times at most, 20,000 reports are in a second (2,048 at once), and 4,096 sequences are looked for in one poll";
        NACK_MALFORMED: "nack-malformed", Datagrams, Beside, "datagrams that are no NACK of this version";
        NACK_FOREIGN: "nack-foreign", Nacks, Beside,
            "NACKs for another reporter, or not from the address and port that reports go to";
        FAULTS: "fault.FAULT", Packets, Beside, "reports to which the fault injector did something"
            .with(&[FAULT]);
        FAULT_HELD: "fault.held", Packets, Beside, "packets that the injector holds back, to send them late"
            .kind(Kind::Now);
        SENT: "sent", Packets, Beside, "datagrams that the kernel took: one for each report that left";
        UNSENT: "dropped.reporter.REASON", Packets, Dropped, "reports that did not leave"
            .with(&[LOSS]);
    }
}

table! {
    /// What a translator counts of a reporter.
    HEARD "reporter, heard" {
        RECEIVED: "received", Reports, In, "reports of it that could be decoded";
        GAPS: "gaps", Sequences, Beside, "sequences skipped when a later one came";
        GAPS_FILLED: "gaps_filled", Sequences, Beside,
            "of them, those that came after all; `gaps - gaps_filled` are missing";
        DUPLICATES: "duplicates", Reports, Beside, "reports whose sequence had been seen";
        OUT_OF_WINDOW: "out_of_window", Reports, Beside, "reports 1,024 or more behind the newest";
        RESTARTS: "restarts", Times, Beside, "times its sequence began anew";
        HEARD_NACKS: "nacks", Nacks, Beside, "NACKs sent to it";
        NEWEST: "newest", Sequences, Beside, "the newest sequence heard: the one number here that is no count"
            .kind(Kind::Position) .detail();
    }
}
