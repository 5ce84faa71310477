//! Files that are being written. Their writer holds a lock on them until the log names them, so that whoever cleans up can
//! distinguish them from those that a killed writer left.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dta_files::lock::Lock;
use dta_files::own_file;

use crate::HistoryError;

/// How their names begin. Readers of Delta tables pass over names with a dot in front.
pub(crate) const PREFIX: &str = ".new-";

/// Owner and group: whoever may read the history is put into the group.
pub(crate) const MODE: u32 = 0o640;

/// A new file under a temporary name. It goes when this is dropped, unless it was given another name.
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
            // A cleaner may have found it before it was locked.
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

    /// Has it on disk under this name, in place of what is there, in the same folder.
    pub(crate) fn rename_to(&mut self, path: &Path) -> Result<(), HistoryError> {
        let put = own_file::put_in_place(self.lock.locked_file(), &mut self.path, path);
        put.map_err(HistoryError::io_error("make", path))
    }

    /// It stays: the log names it.
    pub(crate) fn persist_file(mut self) {
        self.named = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.named {
            // What cannot be removed now is removed when the table is opened next.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A number that no other file of the table has in its name.
pub(crate) fn random_number() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u64::from_ne_bytes(bytes)
}
