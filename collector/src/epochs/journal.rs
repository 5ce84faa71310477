//! The file that says when the epochs in memory began: `STORE.epochs`, JSON, generations with milliseconds since 1970.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use dta_files::own_file;

#[derive(Debug, thiserror::Error)]
#[error("{}: {why}; remove it: epochs in memory then begin when their files were created", path.display())]
pub struct JournalError {
    path: PathBuf,
    why: String,
}

fn journal_path(dir: &Path, store: &str) -> PathBuf {
    dir.join(format!("{store}.epochs"))
}

/// When each generation began; empty if there is no file.
pub(super) fn read(dir: &Path, store: &str) -> Result<BTreeMap<u64, u64>, JournalError> {
    let path = journal_path(dir, store);
    let fail = |why: String| JournalError { path: path.clone(), why };
    match own_file::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| fail(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(fail(error.to_string())),
    }
}

pub(super) fn write_journal(dir: &Path, store: &str, began: &BTreeMap<u64, u64>) -> Result<(), JournalError> {
    let path = journal_path(dir, store);
    let written = serde_json::to_vec(began)
        .map_err(io::Error::from)
        .and_then(|bytes| own_file::replace_file(&path, &bytes));
    written.map_err(|error| JournalError { path, why: error.to_string() })
}
