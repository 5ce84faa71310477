//! Removing the oldest epochs.

use std::sync::Arc;
use std::time::Duration;

use dta_files::moment::now;
use serde_json::json;

use crate::log::action::{LogAction, Remove};
use crate::log::replay::{LogState, LoggedFile};
use crate::{EpochTable, HistoryError};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Removes epochs that ended longer ago than this.
    pub keep: Option<Duration>,
    /// Above this many bytes, the oldest epochs are removed, except those in the newest file.
    pub keep_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedEpochs {
    /// Their numbers, ascending.
    pub epochs: Vec<u64>,
    /// Size of their files.
    pub bytes: u64,
}

impl EpochTable {
    /// Removes what is too old or too much to keep at this moment (milliseconds since 1970). A file with several epochs goes
    /// once all of them may.
    pub fn apply_retention(&self, retention: &Retention, moment: u64) -> Result<RemovedEpochs, HistoryError> {
        let horizon = retention.keep.map(|keep| moment.saturating_sub(keep.as_millis() as u64));
        self.remove_files(|state| {
            let mut bytes = state.data_bytes();
            let files = oldest_first(state);
            let newest = files.len().saturating_sub(1);
            let goes = |(number, entry): &(usize, Arc<LoggedFile>)| {
                // An epoch that ends in the future (the clock was set back) is kept, but does not keep older ones.
                let old = horizon.is_some_and(|horizon| last_epoch_end(entry) < horizon);
                let much = retention.keep_bytes.is_some_and(|most| bytes > most) && *number < newest;
                if old || much {
                    bytes -= entry.add.size;
                }
                old || much
            };
            files.into_iter().enumerate().filter(goes).map(|(_, entry)| entry).collect()
        })
    }

    /// Removes the oldest epochs until at least `bytes` bytes are free, but keeps the newest `floor` epochs: for a full disk.
    pub fn make_room(&self, bytes: u64, floor: usize) -> Result<RemovedEpochs, HistoryError> {
        self.remove_files(|state| {
            let (mut freed, mut left) = (0, state.epochs.len());
            let goes = |entry: &Arc<LoggedFile>| {
                let goes = freed < bytes && left >= floor + entry.epochs.len();
                if goes {
                    freed += entry.add.size;
                    left -= entry.epochs.len();
                }
                goes
            };
            oldest_first(state).into_iter().take_while(goes).collect()
        })
    }

    fn remove_files(
        &self,
        choose: impl Fn(&LogState) -> Vec<Arc<LoggedFile>>,
    ) -> Result<RemovedEpochs, HistoryError> {
        let gone = std::cell::RefCell::new(Vec::new());
        let now = now();
        let decide = |state: &LogState| {
            let files = choose(state);
            if files.is_empty() {
                return Ok(None);
            }
            let info = LogAction::commit_info("DELETE", json!({ "files": files.len().to_string() }), now);
            let remove = |entry: &Arc<LoggedFile>| LogAction::Remove(remove_action(entry, true, now));
            let actions = std::iter::once(info).chain(files.iter().map(remove)).collect();
            gone.replace(files);
            Ok(Some(actions))
        };
        match self.commit_actions(decide) {
            // Not even a commit fits: make room for it first. Until it is written, readers find those files missing.
            Err(error) if error.is_disk_full() => {
                gone.take().iter().try_for_each(|entry| self.delete_file(&entry.add.path))?;
                self.commit_actions(decide)?
            }
            done => done?,
        };
        let mut removed = RemovedEpochs::default();
        for entry in gone.into_inner() {
            self.delete_file(&entry.add.path)?;
            removed.bytes += entry.add.size;
            removed.epochs.extend(entry.epochs.iter().map(|kept| kept.epoch.number));
        }
        removed.epochs.sort_unstable();
        Ok(removed)
    }

    /// Deletes a data file that the log no longer names.
    fn delete_file(&self, name: &str) -> Result<(), HistoryError> {
        self.delete_at(&self.path.join(name), name)
    }
}

/// The action that takes a file out of the table. `data`: its contents leave the table, too.
pub(crate) fn remove_action(entry: &LoggedFile, data: bool, now: u64) -> Remove {
    Remove { path: entry.add.path.clone(), deletion_timestamp: Some(now), data_change: data }
}

/// The end of a file's last epoch; if its epochs are unknown, when it was written.
fn last_epoch_end(entry: &LoggedFile) -> u64 {
    let ends = entry.epochs.iter().map(|kept| kept.epoch.flipped_to);
    ends.max().unwrap_or(entry.add.modification_time.max(0).cast_unsigned())
}

/// All files, ordered by their last epoch; those with unknown epochs first.
fn oldest_first(state: &LogState) -> Vec<Arc<LoggedFile>> {
    let mut files: Vec<_> = state.files.values().cloned().collect();
    files.sort_by_key(|entry| entry.epochs.last().map(|kept| kept.epoch.number));
    files
}
