//! What is known of an epoch besides its slots.

use serde::{Deserialize, Serialize};

/// A span of time, and what is known of a store's reports in it. Moments are milliseconds since 1970 (UTC).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryEpoch {
    /// Unique among the table's epochs, and below 2^63.
    pub number: u64,
    /// The memory's generation, as answers carry it.
    pub generation: u64,
    /// When it began: for a store whose memory is replaced, when its region was opened to writers.
    pub opened: u64,
    /// When the first of its writers was moved away, or when its end began to be read.
    pub flipped_from: u64,
    /// When the last of its writers had moved away, or everything was read: reports from between the two moments are here or in the next epoch.
    pub flipped_to: u64,
    /// Whether all writers confirmed that they had moved.
    pub confirmed: bool,
    /// When the collector started in the middle of it: reports that came while it was down are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<u64>,
    /// What was sent, arrived and was lost, by reason, in whatever form the writer chooses.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub waterfall: serde_json::Value,
    /// For an epoch of a sketch, the number that the reporters gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sketch: Option<u32>,
    /// For a store of lists: each list that had a batch in this epoch, with the sequence of the last one read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<(u32, u32)>,
}

impl HistoryEpoch {
    pub fn contains_moment(&self, moment: u64) -> bool {
        (self.opened..=self.flipped_to).contains(&moment)
    }

    /// Whether it has everything that was reported in its time and not lost on the way: all writers confirmed that they had moved, and the
    /// collector ran throughout.
    pub fn is_complete(&self) -> bool {
        self.confirmed && self.restarted.is_none()
    }

    /// Whether it spans the other one, so that the other is it or a part of it.
    #[cfg(any(feature = "clickhouse", feature = "s3"))]
    pub(crate) fn covers_epoch(&self, other: &HistoryEpoch) -> bool {
        self.opened <= other.opened && other.flipped_to <= self.flipped_to
    }

    /// Whether an epoch opened at `opened` lies between this one and a moment after its end.
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
    /// The epoch in the same file whose rows are this one's too, because nothing changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_of: Option<u64>,
}

impl KeptEpoch {
    /// The epoch number of its rows in the file.
    pub(crate) fn row_number(&self) -> u64 {
        self.rows_of.unwrap_or(self.epoch.number)
    }
}
