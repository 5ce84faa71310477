//! Why rows cannot be inserted.

use std::io;
use std::path::PathBuf;

use crate::HistoryError;

/// Why a server cannot be used, or a table not be inserted.
#[derive(Debug, thiserror::Error)]
pub enum ClickHouseError {
    /// The certificate authorities cannot be read.
    #[error("{}: {problem}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The server does not answer, or not as ClickHouse.
    #[error("{url}: {problem}")]
    Away {
        /// The server.
        url: String,
        /// What happened.
        problem: String,
    },
    /// The server refuses whatever it is asked, until somebody changes something.
    #[error("{url}: {problem}")]
    Refused {
        /// The server.
        url: String,
        /// What it says, and what to do.
        problem: String,
    },
    /// The server does not take rows of a table, or not now.
    #[error("{url}, table {table}: {problem}")]
    Statement {
        /// The server.
        url: String,
        /// The table.
        table: String,
        /// What the server says.
        problem: String,
    },
    /// It cannot be kept which epochs were inserted.
    #[error("{}: {source}", path.display())]
    Position {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The table itself cannot be read.
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
