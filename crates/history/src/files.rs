//! What other readers need to know: which files have a table's rows, and which columns they have.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use dta_proto::store::StoreSpec;

use crate::epoch::KeptEpoch;
use crate::layout::Layout;
use crate::{EpochTable, HistoryError};

#[derive(Clone, Debug)]
pub struct FileOfTable {
    pub name: String,
    pub bytes: u64,
    /// Its epochs, ascending by number, without those that share another's rows; empty if the log's record of them is damaged.
    pub epochs: Vec<Arc<KeptEpoch>>,
}

impl EpochTable {
    /// The files that hold the rows now, according to the log. Files that another process removes stay for ten minutes.
    pub fn data_files(&self) -> Result<Vec<FileOfTable>, HistoryError> {
        let state = self.refreshed()?;
        let of_table = state.files.iter().map(|(name, entry)| FileOfTable {
            name: name.clone(),
            bytes: entry.add.size,
            epochs: entry.epochs.iter().filter(|kept| kept.rows_of.is_none()).cloned().collect(),
        });
        Ok(of_table.collect())
    }

    /// The epochs that rows name in their column `epoch`, by number. Each lasts until the end of the last one with its rows.
    pub fn row_epochs(&self) -> Result<Vec<KeptEpoch>, HistoryError> {
        let state = self.refreshed()?;
        let mut epochs: BTreeMap<u64, KeptEpoch> = BTreeMap::new();
        for (kept, _) in state.epochs.values() {
            let of_rows = epochs.entry(kept.row_number()).or_insert_with(|| KeptEpoch::clone(kept));
            of_rows.epoch.flipped_from = of_rows.epoch.flipped_from.max(kept.epoch.flipped_from);
            of_rows.epoch.flipped_to = of_rows.epoch.flipped_to.max(kept.epoch.flipped_to);
        }
        Ok(epochs.into_values().collect())
    }

    /// The columns as Delta's `schemaString`: a JSON object with `fields`, each with `name`, `type` and `nullable`.
    pub fn delta_schema(&self) -> String {
        let of_log = self.lock_state().meta.as_ref().map(|meta| meta.schema_string.clone());
        of_log.unwrap_or_else(|| self.layout.delta_schema())
    }

    /// Checks the end of a data file, which says where its rows are, against its checksum in the log: libraries trust it.
    ///
    /// # Errors
    /// The file is no longer one of the table's, cannot be read, or is damaged.
    pub fn check_file(&self, name: &str) -> Result<(), HistoryError> {
        let entry = self.lock_state().files.get(name).cloned();
        let path = self.path.join(name);
        let entry = entry.ok_or_else(|| HistoryError::Foreign {
            path: path.clone(),
            problem: "its log does not name it any more".to_owned(),
        })?;
        let file = File::open(&path).map_err(HistoryError::io_error("open", &path))?;
        entry.add.expected_tail().map_or(Ok(()), |tail| tail.verify_file(&file, &path))
    }
}

/// The columns of a store's table, as [`EpochTable::delta_schema`] returns them.
pub fn store_delta_schema(spec: &StoreSpec) -> String {
    Layout::from_spec(spec).delta_schema()
}
