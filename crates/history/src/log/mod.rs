//! The log of a Delta table: what is written in it, and how it is read and extended.

pub(crate) mod action;
pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod replay;

use std::path::{Path, PathBuf};

/// The folder of the log in a table's folder.
pub(crate) const FOLDER: &str = "_delta_log";

pub(crate) fn commit_path(table: &Path, version: u64) -> PathBuf {
    table.join(FOLDER).join(commit_name(version))
}

pub(crate) fn commit_name(version: u64) -> String {
    format!("{version:020}.json")
}

/// The version whose commit this is, by the name of the file.
pub(crate) fn version_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".json")?;
    (digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok())?
}
