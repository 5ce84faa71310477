//! What is known of an epoch besides its slots.

use serde::{Deserialize, Serialize};

/// A span of time in which one region received a store's reports. Moments are milliseconds since 1970 (UTC).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Its number: of a table's epochs each has its own, below 2^63.
    pub number: u64,
    /// The memory's generation, as answers carry it.
    pub generation: u64,
    /// When its region was opened to writers.
    pub opened: u64,
    /// When the first of its writers was moved away.
    pub flipped_from: u64,
    /// When the last of its writers had moved away: what they reported between the two is here or in the next epoch.
    pub flipped_to: u64,
    /// Whether all writers confirmed that they had moved.
    pub confirmed: bool,
    /// What was sent, landed and got lost, by reason: in whatever shape the writer gives it.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub waterfall: serde_json::Value,
}

impl Epoch {
    /// Whether reports of this moment are in it.
    pub fn holds(&self, moment: u64) -> bool {
        (self.opened..=self.flipped_to).contains(&moment)
    }
}

/// An epoch in a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The epoch.
    #[serde(flatten)]
    pub epoch: Epoch,
    /// Its used slots.
    pub rows: u64,
}
