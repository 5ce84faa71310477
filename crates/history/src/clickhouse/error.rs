//! Why rows cannot be inserted.

use std::io;
use std::path::PathBuf;

use crate::HistoryError;

/// Why a server cannot be used, or a table not be inserted.
#[derive(Debug, thiserror::Error)]
pub enum ClickHouseError {
    #[error("{}: {problem}", path.display())]
    Authorities {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The server does not answer, or not as ClickHouse.
    #[error("{url}: {problem}")]
    Away { url: String, problem: String },
    /// The server refuses whatever it is asked, until somebody changes something.
    #[error("{url}: {problem}")]
    Refused {
        url: String,
        /// What it says, and what to do.
        problem: String,
    },
    /// The server does not take rows of a table, or not now.
    #[error("{url}, table {table}: {problem}")]
    Statement { url: String, table: String, problem: String },
    /// It cannot be kept which epochs were inserted.
    #[error("{}: {source}", path.display())]
    Position { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Table(#[from] HistoryError),
}

impl ClickHouseError {
    /// Whether it may work later, without anybody doing something about it.
    pub fn is_transient(&self) -> bool {
        matches!(self, ClickHouseError::Away { .. })
    }

    /// Whether all tables have the same problem.
    pub fn is_of_all(&self) -> bool {
        matches!(self, ClickHouseError::Away { .. } | ClickHouseError::Refused { .. })
    }
}
