//! Copies of tables in object storage that speaks S3, where others read them.
//!
//! - [`StorageBucket`]: a place in object storage, with what the environment says of how to get there. It is checked that a
//!   second writer of one object is refused ([`StorageBucket::check_access`]): commits depend on it.
//! - [`Mirror`]: the copy of one table. [`Mirror::mirror_table`] uploads what the table has and the copy has not, then commits
//!   it, and removes what the table has no longer. The copy has a log of its own, which says what is in it: after a
//!   restart nothing is uploaded twice.
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

/// Why object storage cannot be used, or a table not be copied there.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// Not a place in object storage.
    #[error("{0:?} is no place in object storage: s3://BUCKET or s3://BUCKET/PREFIX is one")]
    Url(String),
    /// What the environment or one of its files says makes no sense.
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    /// The server does not refuse an object that exists already.
    #[error(
        "{0}: its server replaces an object although it was asked not to (PUT with `If-None-Match: *`). Two writers could \
         take the same commit of a table; use a server with conditional writes, such as S3, MinIO, Ceph or R2"
    )]
    Unconditional(String),
    /// The server refuses, and will again.
    #[error("{url}: {problem}")]
    Refused { url: String, problem: String },
    /// The server does not answer, or not now.
    #[error("{url}: {problem}")]
    Away { url: String, problem: String },
    /// What is there is no copy of this table.
    #[error("{url} is no copy of the table: {problem}")]
    Foreign {
        /// The place of the table.
        url: String,
        problem: String,
    },
    #[error(transparent)]
    Table(#[from] HistoryError),
    #[error("stopped")]
    Stopped,
}

impl S3Error {
    /// Whether it may work later, without anybody doing something about it.
    pub fn is_transient(&self) -> bool {
        matches!(self, S3Error::Away { .. })
    }

    fn file_error(path: &Path, problem: impl ToString) -> S3Error {
        S3Error::File { path: path.to_owned(), problem: problem.to_string() }
    }
}
