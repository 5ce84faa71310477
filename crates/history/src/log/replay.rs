//! What the log says: which files are in the table, and their epochs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::action::{Add, LogAction, MetaData, Protocol};
use super::{FOLDER, checkpoint, commit_path, version_of};
use crate::HistoryError;
use crate::epoch::KeptEpoch;

/// A data file of the table.
#[derive(Debug)]
pub(crate) struct LoggedFile {
    pub(crate) add: Add,
    /// Its epochs, ascending by number; empty if unknown.
    pub(crate) epochs: Vec<Arc<KeptEpoch>>,
}

/// The outcome of all commits up to a version.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogState {
    /// The version of the next commit.
    pub(crate) next: u64,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) meta: Option<MetaData>,
    pub(crate) files: BTreeMap<String, Arc<LoggedFile>>,
    /// Removed files, and when (milliseconds since 1970); they may still be on disk.
    pub(crate) removed: BTreeMap<String, u64>,
    /// The epoch and its file, by epoch number.
    pub(crate) epochs: BTreeMap<u64, (Arc<KeptEpoch>, Arc<LoggedFile>)>,
    /// Epochs that only the file beside the newest commit names, and how much of that file was read.
    pub(crate) unchanged: BTreeSet<u64>,
    pub(crate) unchanged_len: u64,
    /// What is wrong with the log, one sentence each.
    pub(crate) damage: Vec<String>,
}

impl LogState {
    /// Reads a whole log. Missing or damaged commits are recorded in `damage`; the others are read.
    ///
    /// # Errors
    /// There is no log, or it cannot be read.
    pub(crate) fn read(table: &Path) -> Result<LogState, HistoryError> {
        let folder = table.join(FOLDER);
        let entries = std::fs::read_dir(&folder).map_err(HistoryError::io_error("read", &folder))?;
        let (mut versions, mut checkpoints) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = entry.map_err(HistoryError::io_error("read", &folder))?.file_name();
            versions.extend(name.to_str().and_then(version_of));
            checkpoints.extend(name.to_str().and_then(checkpoint::version_of_checkpoint));
        }
        versions.sort_unstable();
        checkpoints.sort_unstable();
        let mut state = LogState::default();
        for version in checkpoints.into_iter().rev() {
            let path = checkpoint::checkpoint_path(table, version);
            match checkpoint::read(table, version) {
                Ok(actions) => {
                    state.read_checkpoint(actions, version, &path);
                    break;
                }
                Err(error) => state.damage.push(format!("{} is damaged: {error}", path.display())),
            }
        }
        for version in versions.into_iter().filter(|version| *version >= state.next).collect::<Vec<_>>() {
            if version > state.next {
                let missing = commit_path(table, state.next);
                let last = version - 1;
                state.damage.push(if last == state.next {
                    format!("{} is missing", missing.display())
                } else {
                    format!("{} and the versions after it up to {last} are missing", missing.display())
                });
                state.next = version;
            }
            state.read_next(table)?;
        }
        state.read_unchanged_epochs(table)?;
        Ok(state)
    }

    /// Reads the commits added since.
    pub(crate) fn read_new_commits(&mut self, table: &Path) -> Result<(), HistoryError> {
        loop {
            while self.read_next(table)? {}
            if checkpoint::is_behind(table, self.next) {
                *self = LogState::read(table)?;
            }
            // The next commit may have been added before this one's file was looked for.
            if self.read_unchanged_epochs(table)? || !commit_path(table, self.next).exists() {
                return Ok(());
            }
        }
    }

    /// Reads the next commit. `false`: there is none.
    fn read_next(&mut self, table: &Path) -> Result<bool, HistoryError> {
        let path = commit_path(table, self.next);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            // An unreadable file is damage. With the whole folder gone, this would never end.
            Err(error) if path.is_file() => {
                self.damage.push(format!("{} cannot be read: {error}", path.display()));
                Vec::new()
            }
            Err(error) => return Err(HistoryError::io_error("read", &path)(error)),
        };
        self.read_commit(&text, &path);
        Ok(true)
    }

    /// Applies the text of the next commit. `path` is for messages.
    pub(crate) fn read_commit(&mut self, text: &[u8], path: &Path) {
        for (number, line) in
            text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty())
        {
            let action = std::str::from_utf8(line).map_err(|error| error.to_string());
            match action.and_then(|line| LogAction::read(line).map_err(|error| error.to_string())) {
                Ok(action) => self.apply_action(action, path),
                Err(error) => {
                    self.damage.push(format!("{} line {} is damaged: {error}", path.display(), number + 1))
                }
            }
        }
        self.next += 1;
        // This commit names them.
        self.unchanged.clear();
        self.unchanged_len = 0;
    }

    /// Applies the actions of a checkpoint, in place of all commits up to its version.
    pub(crate) fn read_checkpoint(&mut self, actions: Vec<LogAction>, version: u64, path: &Path) {
        actions.into_iter().for_each(|action| self.apply_action(Some(action), path));
        self.next = version + 1;
    }

    fn apply_action(&mut self, action: Option<LogAction>, path: &Path) {
        match action {
            Some(LogAction::Protocol(protocol)) => self.protocol = Some(protocol),
            Some(LogAction::MetaData(meta)) => self.meta = Some(meta),
            Some(LogAction::Add(add)) => {
                let epochs = add.file_epochs().unwrap_or_else(|error| {
                    self.damage.push(format!(
                        "{}: which epochs {} has is not known: {error}",
                        path.display(),
                        add.path
                    ));
                    Vec::new()
                });
                self.removed.remove(&add.path);
                self.add_file(LoggedFile { epochs: epochs.into_iter().map(Arc::new).collect(), add });
            }
            Some(LogAction::Remove(remove)) => {
                if let Some(entry) = self.files.remove(&remove.path) {
                    for kept in &entry.epochs {
                        let of_this = |(_, other): &(_, Arc<LoggedFile>)| other.add.path == entry.add.path;
                        if self.epochs.get(&kept.epoch.number).is_some_and(of_this) {
                            self.epochs.remove(&kept.epoch.number);
                        }
                    }
                }
                self.removed.insert(remove.path, remove.deletion_timestamp.unwrap_or(0));
            }
            Some(LogAction::CommitInfo(_)) | None => {}
        }
    }

    /// Adds a file, or updates what is known of it.
    pub(crate) fn add_file(&mut self, file: LoggedFile) {
        let file = Arc::new(file);
        for kept in &file.epochs {
            self.epochs.insert(kept.epoch.number, (kept.clone(), file.clone()));
        }
        self.files.insert(file.add.path.clone(), file);
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        self.files.values().map(|entry| entry.add.size).sum()
    }
}
