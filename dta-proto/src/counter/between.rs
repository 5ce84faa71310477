//! Values computed from the counters of two nodes.

use super::{CounterTable, table};

pub(super) static TABLES: &[&CounterTable] = &[&LOSSES];

table! {
    /// Losses between one stage and the next.
    LOSSES "between" {
        REPORTER_TRANSLATOR: "lost.reporter-translator", Reports, Lost,
            "`gaps - gaps_filled` over all reporters; where none has sequence numbers, what the translator's socket dropped";
        TRANSLATOR_NIC: "lost.translator-nic", Frames, Lost,
            "`link.roce.sent` and `faults.roce.dropped` over all translators less `received` of the NIC";
    }
}
