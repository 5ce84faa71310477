//! Which epochs of a table were inserted: a file beside its data, which Delta readers ignore.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use dta_files::own_file;
use serde::{Deserialize, Serialize};

use super::ClickHouseError;
use crate::epoch::KeptEpoch;

const FILE: &str = "_clickhouse.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// The number of the last epoch that was inserted whole.
    number: Option<u64>,
    /// When the newest of those epochs was opened.
    opened: u64,
    /// The epoch that was inserted in part.
    part: Option<PartialEpoch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PartialEpoch {
    number: u64,
    opened: u64,
    /// The epoch's rows, and how many of them were inserted.
    rows: u64,
    inserted: u64,
}

impl Position {
    /// Whether an epoch was inserted. Numbers start over in a table that has lost all its epochs, and moments repeat after a
    /// clock was set back, but both do not happen at once.
    pub(super) fn contains_epoch(&self, kept: &KeptEpoch) -> bool {
        self.number.is_some_and(|number| kept.epoch.number <= number) && kept.epoch.opened <= self.opened
    }

    /// How many rows of an epoch were inserted. `None`: those were of the epoch before others were merged in.
    pub(super) fn inserted_rows(&self, kept: &KeptEpoch) -> Option<u64> {
        match self.part.filter(|part| part.number == kept.epoch.number) {
            Some(part) => {
                ((part.opened, part.rows) == (kept.epoch.opened, kept.rows)).then_some(part.inserted)
            }
            None => Some(0),
        }
    }

    pub(super) fn set_inserted_rows(&mut self, kept: &KeptEpoch, inserted: u64) {
        let (number, opened) = (kept.epoch.number, kept.epoch.opened);
        self.part = Some(PartialEpoch { number, opened, rows: kept.rows, inserted });
    }

    /// Marks an epoch as finished: nothing more of it will be inserted.
    pub(super) fn has_whole(&mut self, kept: &KeptEpoch) {
        self.part = None;
        self.number = Some(kept.epoch.number);
        self.opened = self.opened.max(kept.epoch.opened);
    }
}

/// A table's position for each server it was inserted into, by URL and database.
pub(super) struct Positions {
    path: PathBuf,
    of: BTreeMap<String, Position>,
}

impl Positions {
    pub(super) fn read(table: &Path) -> Result<Positions, ClickHouseError> {
        let path = table.join(FILE);
        let of = match own_file::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        };
        match of {
            Ok(of) => Ok(Positions { path, of }),
            Err(source) => Err(ClickHouseError::Position { path, source }),
        }
    }

    pub(super) fn get(&self, server: &str) -> Position {
        self.of.get(server).cloned().unwrap_or_default()
    }

    pub(super) fn store_position(
        &mut self,
        server: &str,
        position: &Position,
    ) -> Result<(), ClickHouseError> {
        self.of.insert(server.to_owned(), position.clone());
        let text = serde_json::to_vec(&self.of).expect("names and numbers");
        own_file::replace_file(&self.path, &text)
            .map_err(|source| ClickHouseError::Position { path: self.path.clone(), source })
    }
}
