//! A commit is one new file, under a name that nobody else may take: made under another name, then linked.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use dta_files::own_file;

use super::{FOLDER, commit_path};
use crate::HistoryError;
use crate::temporary::Temporary;

/// The text of a commit, on disk under a temporary name.
pub(crate) struct Prepared(Temporary);

impl Prepared {
    pub(crate) fn new(table: &Path, text: &[u8]) -> Result<Prepared, HistoryError> {
        let temporary = Temporary::new(&table.join(FOLDER))?;
        let write = |mut file: &File| file.write_all(text).and_then(|()| file.sync_all());
        write(temporary.file()).map_err(HistoryError::io("write", temporary.path()))?;
        Ok(Prepared(temporary))
    }

    /// Makes it the commit of this version. `false`: there is one already.
    pub(crate) fn take(&self, table: &Path, version: u64) -> Result<bool, HistoryError> {
        let path = commit_path(table, version);
        match std::fs::hard_link(self.0.path(), &path) {
            Ok(()) => {
                own_file::sync_directory(&path).map_err(HistoryError::io("sync", &path))?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(HistoryError::io("commit", &path)(error)),
        }
    }
}
