//! Histories as rows in ClickHouse: each table here has a table of the same name there.
//!
//! - [`ClickHouseServer`]: a database of a server, over HTTP.
//! - [`Inserter`]: the rows of one table. [`Inserter::insert_new_epochs`] inserts the epochs that were not inserted yet, in blocks of
//!   [`BLOCK`] rows. What was inserted is recorded beside the table; a block whose answer was lost is sent again with the same deduplication
//!   token.
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

/// Why a server cannot be used, or a table cannot be inserted.
#[derive(Debug, thiserror::Error)]
pub enum ClickHouseError {
    #[error("{}: {problem}", path.display())]
    Authorities { path: PathBuf, problem: String },
    /// The server does not answer, or does not answer like ClickHouse.
    #[error("{url}: {problem}")]
    Away { url: String, problem: String },
    /// The server refuses every request until somebody changes something.
    #[error("{url}: {problem}")]
    Refused {
        url: String,
        /// What the server said, and what to do.
        problem: String,
    },
    /// The server does not take this table's rows, or not now.
    #[error("{url}, table {table}: {problem}")]
    Statement { url: String, table: String, problem: String },
    /// The record of inserted epochs cannot be read or written.
    #[error("{}: {source}", path.display())]
    Position { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Table(#[from] HistoryError),
}

impl ClickHouseError {
    /// Whether it may work later without anybody intervening.
    pub fn is_transient(&self) -> bool {
        matches!(self, ClickHouseError::Away { .. })
    }

    /// Whether it affects all tables.
    pub fn is_of_all(&self) -> bool {
        matches!(self, ClickHouseError::Away { .. } | ClickHouseError::Refused { .. })
    }
}
