//! Files that are being written. The writer holds a lock on a file until the log names it, so that cleaning up can tell it
//! from one that a killed writer left.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dta_files::lock::Lock;
use dta_files::own_file;

use crate::HistoryError;

/// The prefix of their names. Delta readers ignore names that start with a dot.
pub(crate) const PREFIX: &str = ".new-";

/// Owner and group: put users who may read the history into the group.
pub(crate) const MODE: u32 = 0o640;

/// A new file under a temporary name. It is removed on drop, unless [`Temporary::persist_file`] keeps it.
pub(crate) struct Temporary {
    path: PathBuf,
    lock: Lock,
    named: bool,
}

impl Temporary {
    pub(crate) fn new(folder: &Path) -> Result<Temporary, HistoryError> {
        loop {
            let path = folder.join(format!("{PREFIX}{:016x}", random_number()));
            let made = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(&path);
            let file = made.map_err(HistoryError::io_error("make", &path))?;
            let lock = Lock::take(file).map_err(HistoryError::io_error("lock", &path))?;
            // Cleaning up may have found and removed it before it was locked.
            if let Some(lock) = lock
                && lock.locked_file().metadata().map_err(HistoryError::io_error("read", &path))?.nlink() > 0
            {
                return Ok(Temporary { path, lock, named: false });
            }
        }
    }

    pub(crate) fn locked_file(&self) -> &File {
        self.lock.locked_file()
    }

    pub(crate) fn file_path(&self) -> &Path {
        &self.path
    }

    /// Syncs it and gives it this name in the same folder, replacing what is there.
    pub(crate) fn rename_to(&mut self, path: &Path) -> Result<(), HistoryError> {
        let put = own_file::put_in_place(self.lock.locked_file(), &mut self.path, path);
        put.map_err(HistoryError::io_error("make", path))
    }

    /// Keeps the file: the log names it.
    pub(crate) fn persist_file(mut self) {
        self.named = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.named {
            // What cannot be removed now is removed when the table is next opened.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A number that appears in no other file name of the table.
pub(crate) fn random_number() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u64::from_ne_bytes(bytes)
}
