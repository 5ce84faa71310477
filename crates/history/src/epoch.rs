//! What is known of an epoch besides its slots.

use serde::{Deserialize, Serialize};

/// A span of time, and what is known of a store's reports in it. Moments are milliseconds since 1970 (UTC).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryEpoch {
    /// Its number: of a table's epochs each has its own, below 2^63.
    pub number: u64,
    /// The memory's generation, as answers carry it.
    pub generation: u64,
    /// When it began: of a store whose memory is replaced, when its region was opened to writers.
    pub opened: u64,
    /// When the first of its writers was moved away, or when its end began to be read.
    pub flipped_from: u64,
    /// When the last of its writers had moved away, or all was read: what was reported between the two is here or in the next epoch.
    pub flipped_to: u64,
    /// Whether all writers confirmed that they had moved.
    pub confirmed: bool,
    /// When the collector started in its middle: reports that came while it was down are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<u64>,
    /// What was sent, landed and got lost, by reason: in whatever shape the writer gives it.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub waterfall: serde_json::Value,
    /// The number that reporters gave it, of an epoch of a sketch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sketch: Option<u32>,
    /// Of a store of lists: each list that had a batch in this epoch, and the sequence of the last that was read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<(u32, u32)>,
}

impl HistoryEpoch {
    /// Whether reports of this moment are in it.
    pub fn contains_moment(&self, moment: u64) -> bool {
        (self.opened..=self.flipped_to).contains(&moment)
    }

    /// Whether it has all that was reported in its time, as far as nothing got lost on the way: all writers confirmed that they had moved, and the
    /// collector ran throughout.
    pub fn is_complete(&self) -> bool {
        self.confirmed && self.restarted.is_none()
    }

    /// Whether it is another one, or all of that is part of it.
    #[cfg(any(feature = "clickhouse", feature = "s3"))]
    pub(crate) fn covers_epoch(&self, other: &HistoryEpoch) -> bool {
        self.opened <= other.opened && other.flipped_to <= self.flipped_to
    }

    /// Whether one that was opened at `opened` comes between it and a moment behind its end.
    pub fn is_before(&self, opened: u64, moment: u64) -> bool {
        self.opened < opened && opened <= moment && self.flipped_from <= moment
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptEpoch {
    #[serde(flatten)]
    pub epoch: HistoryEpoch,
    /// Its rows: used slots or columns, or entries.
    pub rows: u64,
    /// The epoch whose rows, in the same file, are its rows, too: nothing changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_of: Option<u64>,
}

impl KeptEpoch {
    /// The number that its rows have in their file.
    pub(crate) fn row_number(&self) -> u64 {
        self.rows_of.unwrap_or(self.epoch.number)
    }
}
