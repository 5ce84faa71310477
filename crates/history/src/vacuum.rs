//! Cleaning up: files that killed writers left, and files that were compacted.

use std::fs::File;
use std::path::Path;

use dta_files::lock::Lock;
use dta_files::moment::now;

use crate::flush::FILE;
use crate::log::FOLDER;
use crate::log::unchanged::unchanged_version;
use crate::temporary::PREFIX;
use crate::{EpochTable, HistoryError};

/// How long (milliseconds) a compacted file stays for readers still using it.
pub(crate) const GRACE: u64 = 10 * 60 * 1000;

impl EpochTable {
    /// Removes temporary files and data files that no commit names and nobody is writing, files of unchanged epochs that a later commit
    /// covers, and files compacted at least ten minutes ago. Returns how many. While the log is damaged, data files stay.
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

    /// Whether the log does not name a data file, and no reader may still need it.
    fn is_orphan(&self, name: &str) -> bool {
        let state = self.lock_state();
        let recent = |removed: &u64| removed.saturating_add(GRACE) > now();
        // What a damaged commit named is unknown.
        state.damage.is_empty()
            && !state.files.contains_key(name)
            && !state.removed.get(name).is_some_and(recent)
    }

    /// Whether nobody is writing a file or has committed it by now.
    fn abandoned(&self, path: &Path, name: &str) -> Result<bool, HistoryError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(HistoryError::io_error("open", path)(error)),
        };
        if Lock::take(file).map_err(HistoryError::io_error("lock", path))?.is_none() {
            return Ok(false);
        }
        // Its writer releases the lock after the commit, so a commit is visible by now.
        Ok(!self.refreshed()?.files.contains_key(name))
    }

    /// Deletes a file of the table that the log no longer names.
    pub(crate) fn delete_at(&self, path: &Path, name: &str) -> Result<(), HistoryError> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(HistoryError::io_error("remove", path)(error))
            }
            _ => {
                // Not earlier: a reader would open it again.
                self.cache.evict_file(name);
                self.lock_state().removed.remove(name);
                Ok(())
            }
        }
    }
}
