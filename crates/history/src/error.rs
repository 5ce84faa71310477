//! What goes wrong with a table, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// Why a table cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was attempted: `read`, `write`, …
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A data file cannot be written or read as Parquet.
    #[error("{}: {source}", path.display())]
    Parquet { path: PathBuf, source: ParquetError },
    /// A data file has other columns than the table, or rows that contradict its index.
    #[error("{} is not a data file of this table: {problem}", path.display())]
    Foreign { path: PathBuf, problem: String },
    /// The request makes no sense for a store of this kind.
    #[error("store `{store}`: {primitive} stores {problem}")]
    Kind {
        store: String,
        primitive: &'static str,
        /// Why not.
        problem: &'static str,
    },
    /// The table belongs to a store with another layout.
    #[error(
        "the history of store `{store}` in {} has another layout ({kept}; the store now is {asked}): move the folder away, or configure the store as before",
        path.display()
    )]
    OtherLayout {
        store: String,
        path: PathBuf,
        /// The layout of the table.
        kept: String,
        /// The layout that was asked for.
        asked: String,
    },
    /// There is no table in this folder, or nothing in its log says what it is.
    #[error("{} is not a history table: {problem}", path.display())]
    NotATable {
        path: PathBuf,
        /// What is missing or wrong.
        problem: String,
    },
    /// The epoch is not in the table: not written yet, or already removed.
    #[error("epoch {0} is not kept")]
    NotKept(u64),
    /// The epoch is in the table already.
    #[error("epoch {0} is in the table already")]
    AlreadyKept(u64),
    /// Slots were not passed in ascending order, lie beyond the store, or are not whole elements.
    #[error("bad rows for epoch {epoch}: {problem}")]
    Rows { epoch: u64, problem: String },
}

impl HistoryError {
    pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HistoryError {
        move |source| HistoryError::Io { what, path: path.to_owned(), source }
    }

    /// Returns the I/O error inside, if there is one.
    pub(crate) fn parquet_error(path: &Path) -> impl FnOnce(ParquetError) -> HistoryError {
        move |source| match source {
            ParquetError::External(inner) if inner.is::<io::Error>() => match inner.downcast::<io::Error>() {
                Ok(source) => {
                    HistoryError::Io { what: "read or write", path: path.to_owned(), source: *source }
                }
                Err(inner) => {
                    HistoryError::Parquet { path: path.to_owned(), source: ParquetError::External(inner) }
                }
            },
            source => HistoryError::Parquet { path: path.to_owned(), source },
        }
    }

    /// Whether the disk (or the quota) is full: removing old epochs helps.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, HistoryError::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, HistoryError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
