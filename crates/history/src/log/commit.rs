//! A commit is one new file, under a name that nobody else may take: made under another name, then linked.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use dta_files::own_file;

use super::{FOLDER, commit_path};
use crate::HistoryError;
use crate::temporary::Temporary;

/// The text of a commit, on disk under a temporary name.
pub(crate) struct PreparedCommit(Temporary);

impl PreparedCommit {
    pub(crate) fn new(table: &Path, text: &[u8]) -> Result<PreparedCommit, HistoryError> {
        let temporary = Temporary::new(&table.join(FOLDER))?;
        let write = |mut file: &File| file.write_all(text).and_then(|()| file.sync_all());
        write(temporary.locked_file()).map_err(HistoryError::io_error("write", temporary.file_path()))?;
        Ok(PreparedCommit(temporary))
    }

    /// Makes it the commit of this version. `false`: there is one already.
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
