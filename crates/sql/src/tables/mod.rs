//! The tables that statements read.

mod columns;
mod epochs;
mod rows;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use datafusion::datasource::object_store::ObjectStoreUrl;
use dta_history::{EpochTable, HistoryError};

pub(crate) use epochs::{EPOCHS, GAPS, LOSSES, LogTable};
pub(crate) use rows::RowsOfKey;
pub(crate) use store::{RowSource, StoreTable};

/// A store's table on disk, and those of its files whose index was verified.
pub(crate) struct OpenTable {
    pub(crate) table: EpochTable,
    /// The URL under which its folder's parent is registered with DataFusion.
    pub(crate) at: ObjectStoreUrl,
    checked: Mutex<BTreeSet<String>>,
}

impl OpenTable {
    pub(crate) fn new(table: EpochTable, at: ObjectStoreUrl) -> OpenTable {
        OpenTable { table, at, checked: Mutex::default() }
    }

    /// The name of its folder: the store's, or that of a table of known keys beside it.
    pub(crate) fn table_name(&self) -> &str {
        self.table.table_path().file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Whether its rows are slots, columns or entries of the store itself.
    pub(crate) fn is_of_slots(&self) -> bool {
        self.table_name() == self.table.store_spec().name
    }

    /// Verifies a file once, before DataFusion reads it.
    fn verify_file(&self, file: &str) -> Result<(), HistoryError> {
        // A name that a panic kept from being added is checked again.
        let checked = || self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if !checked().contains(file) {
            self.table.check_file(file)?;
            checked().insert(file.to_owned());
        }
        Ok(())
    }
}

/// The tables in a folder, which may come and go.
pub(crate) struct HistoryFolder {
    directory: PathBuf,
    at: ObjectStoreUrl,
    open: Mutex<BTreeMap<String, (Identity, Arc<OpenTable>)>>,
    warned: Mutex<BTreeSet<String>>,
}

/// Device and inode of a log's folder: a table that was recreated has another.
type Identity = (u64, u64);

impl HistoryFolder {
    /// Reads the tables in `directory`, which is registered as `at`.
    pub(crate) fn new(directory: PathBuf, at: ObjectStoreUrl) -> HistoryFolder {
        HistoryFolder { directory, at, open: Mutex::default(), warned: Mutex::default() }
    }

    /// The tables there now, by the names of their stores. Folders that are not history tables are skipped, and so are tables that cannot be
    /// opened, with a warning in the log.
    pub(crate) fn open_tables(&self) -> anyhow::Result<BTreeMap<String, Arc<OpenTable>>> {
        let at = || {
            let path = self.directory.display();
            format!(
                "cannot read the folder of the history, {path}: --history DIR names another; a collector makes it when a store has an epoch"
            )
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut there = BTreeMap::new();
        for entry in std::fs::read_dir(&self.directory).with_context(at)? {
            let Ok(name) = entry.with_context(at)?.file_name().into_string() else { continue };
            let Some(identity) = log_identity(&self.directory.join(&name)) else { continue };
            let known = open.remove(&name).filter(|(of, _)| *of == identity);
            let table = match known {
                Some((_, table)) => Ok(table),
                None => EpochTable::open_existing(&self.directory, &name)
                    .map(|table| Arc::new(OpenTable::new(table, self.at.clone()))),
            };
            match table {
                Ok(table) => {
                    for damage in table.table.log_damage() {
                        self.warn_once(&damage);
                    }
                    there.insert(name, (identity, table));
                }
                Err(error) => self.warn_once(&format!("the table of store {name:?} is left out: {error}")),
            }
        }
        for name in [EPOCHS, LOSSES, GAPS] {
            if there.remove(name).is_some() {
                self.warn_once(&format!(
                    "the store {name:?} is left out: `{name}` is a table about all stores"
                ));
            }
        }
        *open = there;
        Ok(open.iter().map(|(name, (_, table))| (name.clone(), table.clone())).collect())
    }

    pub(crate) fn warn_once(&self, text: &str) {
        if self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
            tracing::warn!("{text}");
        }
    }
}

/// `None` if there is no log.
fn log_identity(table: &Path) -> Option<Identity> {
    let log = std::fs::metadata(table.join("_delta_log")).ok()?;
    log.is_dir().then(|| (log.dev(), log.ino()))
}
