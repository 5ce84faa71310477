//! The log of a Delta table: what is in it, and how it is read and extended.

pub(crate) mod action;
pub(crate) mod checkpoint;
pub(crate) mod replay;
pub(crate) mod unchanged;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use dta_files::own_file;

use crate::HistoryError;
use crate::temporary::Temporary;

/// The log's folder in a table's folder.
pub(crate) const FOLDER: &str = "_delta_log";

pub(crate) fn commit_path(table: &Path, version: u64) -> PathBuf {
    table.join(FOLDER).join(commit_name(version))
}

pub(crate) fn commit_name(version: u64) -> String {
    format!("{version:020}.json")
}

/// The version of a commit, from the name of its file.
pub(crate) fn version_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".json")?;
    (digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The text of a commit, on disk under a temporary name. It becomes a commit by being linked to a name that can be taken only
/// once.
pub(crate) struct PreparedCommit(Temporary);

impl PreparedCommit {
    pub(crate) fn new(table: &Path, text: &[u8]) -> Result<PreparedCommit, HistoryError> {
        let temporary = Temporary::new(&table.join(FOLDER))?;
        let write = |mut file: &File| file.write_all(text).and_then(|()| file.sync_all());
        write(temporary.locked_file()).map_err(HistoryError::io_error("write", temporary.file_path()))?;
        Ok(PreparedCommit(temporary))
    }

    /// Makes it the commit of this version. `false`: that version already exists.
    pub(crate) fn take(&self, table: &Path, version: u64) -> Result<bool, HistoryError> {
        let path = commit_path(table, version);
        match std::fs::hard_link(self.0.file_path(), &path) {
            Ok(()) => {
                own_file::sync_directory(&path).map_err(HistoryError::io_error("sync", &path))?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(HistoryError::io_error("commit", &path)(error)),
        }
    }
}
