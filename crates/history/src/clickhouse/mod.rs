//! Histories as rows in ClickHouse: a table there for each table here, by the same name.
//!
//! - [`ClickHouseServer`]: a database of a server, over HTTP.
//! - [`Inserter`]: what becomes of one table. [`Inserter::insert_new_epochs`] inserts the epochs that the table has and that were not inserted
//!   yet, in blocks of [`BLOCK`] rows. Which those are is kept beside the table; a block whose answer was lost is sent again with the same
//!   deduplication token.
//!
//! All calls block.

mod inserter;
mod position;
mod rows;
mod server;

use std::io;
use std::path::PathBuf;

use crate::HistoryError;

pub use inserter::{BLOCK, InsertProgress, Inserter};
pub use server::{ClickHouseServer, Login};

/// Why a server cannot be used, or a table not be inserted.
#[derive(Debug, thiserror::Error)]
pub enum ClickHouseError {
    #[error("{}: {problem}", path.display())]
    Authorities { path: PathBuf, problem: String },
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
