//! The limit of open files: each connection is one.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises this process's soft limit of open files to the hard one. Returns the resulting limit.
///
/// The soft one is 1,024 on most systems, for programs that use `select`; this one does not.
pub fn raise_file_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let before = limit.current;
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, limit = before, "cannot raise the limit of open files");
        }
    }
    file_limit()
}

/// This process's soft limit of open files.
pub fn file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
