//! A file for exclusive use by one process.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A locked file (`flock`, exclusive). The lock ends when this is dropped, and with the process, however it
/// ends.
///
/// It is released explicitly, because it belongs to the open file description, which a child process shares
/// until it executes another program. Just closing our descriptor would leave the file locked until then.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Locks a file; returns `None` if another process has it locked.
    pub fn take(file: File) -> io::Result<Option<Lock>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn locked_file(&self) -> &File {
        &self.0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // This cannot fail on an open descriptor; if it did, closing follows.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_though_a_child_still_shares_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let lock = Lock::take(open()).unwrap().expect("free");
        assert!(Lock::take(open()).unwrap().is_none());
        // A child's state between fork and exec: another descriptor of the same open file description.
        let childs = lock.locked_file().try_clone().unwrap();
        drop(lock);
        assert!(Lock::take(open()).unwrap().is_some());
        drop(childs);
    }
}
