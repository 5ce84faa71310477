//! Copies of tables in object storage with the S3 protocol, for others to read.
//!
//! - [`StorageBucket`]: a place in object storage, reached as the environment says. [`StorageBucket::check_access`] checks
//!   that a second writer of an object is refused: commits depend on it.
//! - [`Mirror`]: the copy of one table. [`Mirror::mirror_table`] uploads and commits what the copy lacks, and removes what the
//!   table no longer has. The copy has its own log of what is in it, so nothing is uploaded twice after a restart.
//!
//! All calls block, and end early once the watched value is true.

mod bucket;
mod credentials;
mod http;
mod mirror;

use std::path::{Path, PathBuf};

use crate::HistoryError;

pub use bucket::StorageBucket;
pub use credentials::Variables;
pub use mirror::{Mirror, MirrorProgress};

/// Why object storage cannot be used, or a table cannot be copied there.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// Not a place in object storage.
    #[error("{0:?} is not a place in object storage: write s3://BUCKET or s3://BUCKET/PREFIX")]
    Url(String),
    /// A setting in the environment or in one of its files makes no sense.
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    /// The server replaces existing objects even when told not to.
    #[error(
        "{0}: its server replaces an object although it was asked not to (PUT with `If-None-Match: *`). Two writers could \
         take the same commit of a table; use a server with conditional writes, such as S3, MinIO, Ceph or R2"
    )]
    Unconditional(String),
    /// The server refuses, and will refuse again.
    #[error("{url}: {problem}")]
    Refused { url: String, problem: String },
    /// The server does not answer, or cannot answer now.
    #[error("{url}: {problem}")]
    Away { url: String, problem: String },
    /// What is there is not a copy of this table.
    #[error("{url} is not a copy of the table: {problem}")]
    Foreign {
        /// Where the table's copy should be.
        url: String,
        problem: String,
    },
    #[error(transparent)]
    Table(#[from] HistoryError),
    #[error("stopped")]
    Stopped,
}

impl S3Error {
    /// Whether it may work later without anybody intervening.
    pub fn is_transient(&self) -> bool {
        matches!(self, S3Error::Away { .. })
    }

    fn file_error(path: &Path, problem: impl ToString) -> S3Error {
        S3Error::File { path: path.to_owned(), problem: problem.to_string() }
    }
}
