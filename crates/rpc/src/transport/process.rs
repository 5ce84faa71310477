//! What a server sets for its process: how many files may be open, as each connection is one, and how soon memory returns to
//! the system.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises this process's soft limit of open files to the hard limit. Returns the resulting limit.
///
/// The soft limit is 1,024 on most systems, for programs that use `select`; this one does not.
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

/// Makes the allocator return memory to the system soon after it is freed. Call this before there are other threads.
///
/// By default glibc keeps, in each of eight arenas per processor, up to twice the largest block ever freed
/// (`mallopt(3)`, with its adaptive `M_MMAP_THRESHOLD`): after requests and answers of tens of megabytes, more than a
/// gigabyte.
#[allow(unsafe_code, reason = "glibc's setting has no safe binding")]
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_MMAP_THRESHOLD, 1 << 20), (libc::M_TRIM_THRESHOLD, 1 << 20), (libc::M_ARENA_MAX, 4)]
    {
        // SAFETY: the call takes two numbers and changes no allocation. If it refuses them, nothing changes.
        unsafe { libc::mallopt(parameter, value) };
    }
}
