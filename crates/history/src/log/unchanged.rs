//! Epochs in which nothing changed. They need no file, because an earlier epoch's file has their rows, if any. The next commit lists them
//! among that file's epochs; until then they are lines in a file of their own beside the newest commit.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dta_files::own_file;
use serde::{Deserialize, Serialize};

use super::FOLDER;
use super::action::LogAction;
use super::replay::{LogState, LoggedFile};
use crate::HistoryError;
use crate::epoch::KeptEpoch;
use crate::temporary::MODE;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UnchangedEpoch {
    /// An epoch in the file that this one joins.
    pub(crate) beside: u64,
    #[serde(flatten)]
    pub(crate) kept: KeptEpoch,
}

/// The file of unchanged epochs since the commit of a version. Delta readers ignore its name.
pub(crate) fn unchanged_path(table: &Path, version: u64) -> PathBuf {
    table.join(FOLDER).join(format!("_unchanged-{version:020}.jsonl"))
}

/// The version in the name of such a file.
pub(crate) fn unchanged_version(name: &str) -> Option<u64> {
    name.strip_prefix("_unchanged-")?.strip_suffix(".jsonl")?.parse().ok()
}

impl LogState {
    /// Reads what was added to the file beside the newest commit. `false`: there is no such file.
    pub(crate) fn read_unchanged_epochs(&mut self, table: &Path) -> Result<bool, HistoryError> {
        let Some(version) = self.next.checked_sub(1) else { return Ok(false) };
        let path = unchanged_path(table, version);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(HistoryError::io_error("read", &path)(error)),
        };
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.unchanged_len))
            .and_then(|_| file.read_to_end(&mut text))
            .map_err(HistoryError::io_error("read", &path))?;
        // A partial line left by a killed writer is ignored, and overwritten later.
        for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            self.unchanged_len += line.len() as u64;
            match serde_json::from_slice(line) {
                Ok(unchanged) => self.add_unchanged_epoch(unchanged),
                Err(error) => self.damage.push(format!("{} is damaged: {error}", path.display())),
            }
        }
        Ok(true)
    }

    fn add_unchanged_epoch(&mut self, UnchangedEpoch { beside, kept }: UnchangedEpoch) {
        let number = kept.epoch.number;
        // Its file may have been removed since.
        let Some((_, file)) = self.epochs.get(&beside).filter(|_| !self.epochs.contains_key(&number)) else {
            return;
        };
        let epochs = file.epochs.iter().cloned().chain([Arc::new(kept)]).collect();
        self.add_file(LoggedFile { add: file.add.clone(), epochs });
        self.unchanged.insert(number);
    }

    /// Appends an epoch after those already read.
    pub(crate) fn append_unchanged_epoch(
        &mut self,
        table: &Path,
        unchanged: &UnchangedEpoch,
    ) -> Result<(), HistoryError> {
        let path = unchanged_path(table, self.next.saturating_sub(1));
        let mut line = serde_json::to_vec(unchanged).expect("names and numbers");
        line.push(b'\n');
        let is_new = self.unchanged_len == 0;
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(&path);
        let written = open.and_then(|mut file| {
            file.set_len(self.unchanged_len)?;
            file.seek(SeekFrom::End(0))?;
            file.write_all(&line)?;
            file.sync_data()?;
            if is_new { own_file::sync_directory(&path) } else { Ok(()) }
        });
        written.map_err(HistoryError::io_error("write", &path))?;
        self.read_unchanged_epochs(table).map(|_| ())
    }

    /// The actions that a commit of `actions` must add to name the epochs that no commit names yet.
    pub(crate) fn name_unchanged_epochs(&self, actions: &[LogAction]) -> Vec<LogAction> {
        let is_named = |path: &str| {
            actions.iter().any(|action| match action {
                LogAction::Add(add) => add.path == path,
                LogAction::Remove(remove) => remove.path == path,
                _ => false,
            })
        };
        let has_unnamed = |file: &&Arc<LoggedFile>| {
            file.epochs.iter().any(|kept| self.unchanged.contains(&kept.epoch.number))
        };
        let files = self.files.values().filter(has_unnamed).filter(|file| !is_named(&file.add.path));
        files.map(|file| LogAction::Add(file.add.with_epochs(&file.epochs))).collect()
    }
}
