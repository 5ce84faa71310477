//! Cleaning up: what killed writers left, and files that were compacted.

use std::fs::File;
use std::path::Path;

use dta_files::lock::Lock;
use dta_files::moment::now;

use crate::flush::FILE;
use crate::log::FOLDER;
use crate::log::unchanged::unchanged_version;
use crate::temporary::PREFIX;
use crate::{EpochTable, HistoryError};

/// For how long a file that was compacted into another one stays, for whoever is reading it (milliseconds).
pub(crate) const GRACE: u64 = 10 * 60 * 1000;

impl EpochTable {
    /// Removes temporary files and data files that no commit names, unless somebody is writing them, what a later commit says, too, and
    /// files that were compacted into others ten minutes ago or longer. Gives the number of files. While the log is damaged data files stay.
    pub fn vacuum_files(&self) -> Result<usize, HistoryError> {
        let mut gone = 0;
        for folder in [self.path.clone(), self.path.join(FOLDER)] {
            for entry in std::fs::read_dir(&folder).map_err(HistoryError::io_error("read", &folder))? {
                let entry = entry.map_err(HistoryError::io_error("read", &folder))?;
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                let data = name.starts_with(FILE) && name.ends_with(".parquet");
                if unchanged_version(name).is_some_and(|version| version + 1 < self.lock_state().next) {
                    std::fs::remove_file(entry.path())
                        .map_err(HistoryError::io_error("remove", &entry.path()))?;
                    gone += 1;
                } else if (name.starts_with(PREFIX) || data && self.is_orphan(name))
                    && self.abandoned(&entry.path(), name)?
                {
                    self.delete_at(&entry.path(), name)?;
                    gone += 1;
                }
            }
        }
        Ok(gone)
    }

    /// Whether the log does not name a data file, and nobody needs it.
    fn is_orphan(&self, name: &str) -> bool {
        let state = self.lock_state();
        let recent = |removed: &u64| removed.saturating_add(GRACE) > now();
        // What a damaged commit named is not known.
        state.damage.is_empty()
            && !state.files.contains_key(name)
            && !state.removed.get(name).is_some_and(recent)
    }

    /// Whether nobody is writing a file, nor has committed it by now.
    fn abandoned(&self, path: &Path, name: &str) -> Result<bool, HistoryError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(HistoryError::io_error("open", path)(error)),
        };
        if Lock::take(file).map_err(HistoryError::io_error("lock", path))?.is_none() {
            return Ok(false);
        }
        // Its writer ends the lock behind the commit, so what it committed is seen now.
        Ok(!self.refreshed()?.files.contains_key(name))
    }

    /// Deletes a file of the table that the log names no longer.
    pub(crate) fn delete_at(&self, path: &Path, name: &str) -> Result<(), HistoryError> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(HistoryError::io_error("remove", path)(error))
            }
            _ => {
                // Not before: a reader would open it once more.
                self.cache.evict_file(name);
                self.lock_state().removed.remove(name);
                Ok(())
            }
        }
    }
}
