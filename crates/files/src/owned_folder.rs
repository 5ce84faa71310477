//! Folders and files that a daemon writes to: one process at a time, and only ever for one owner.
//!
//! The file `lock` in the folder (for a file, its path plus `.lock`) is locked while the owner runs, and names the owner.
//! Two daemons that share a folder would take each other's contents for their own.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::lock::Lock;
use crate::own_file;

/// The file that is locked and has the owner's mark.
const FILE: &str = "lock";

/// Longer marks are cut.
const MAX_MARK: u64 = 512;

/// A folder or a file, and who wants to write to it.
#[derive(Clone, Copy, Debug)]
pub struct OwnedFolder<'a> {
    pub path: &'a Path,
    /// What it is, such as `history folder`.
    pub kind: &'static str,
    /// The daemon, such as `collector east`.
    pub owner: &'a str,
    /// What to do if it cannot be used, such as `give this one another (--memory)`.
    pub advice: &'static str,
}

/// Why a folder cannot be written to.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot {action} the {kind} {}: {source}; {advice}", path.display())]
    System {
        action: &'static str,
        kind: &'static str,
        path: PathBuf,
        advice: &'static str,
        source: io::Error,
    },
    #[error("{owner} uses the {kind} {}; stop it, or {advice}", path.display())]
    InUse { owner: String, kind: &'static str, path: PathBuf, advice: &'static str },
    /// Its contents belong to another owner.
    #[error(
        "the {kind} {} belongs to {owner}, and this is {asks}; {advice}, or remove {} to take its contents over",
        path.display(), lock.display()
    )]
    OfAnother {
        owner: String,
        asks: String,
        kind: &'static str,
        path: PathBuf,
        lock: Box<Path>,
        advice: &'static str,
    },
}

impl OwnedFolder<'_> {
    /// Creates the folder if necessary, locks it, and marks it with its owner if it has no mark yet.
    ///
    /// # Errors
    /// Another process has it locked; it has another owner's mark; the system refuses.
    pub fn lock(&self) -> Result<Lock, FolderError> {
        self.lock_through(self.path, self.path.join(FILE), 0o750)
    }

    /// Like [`OwnedFolder::lock`], for a `path` that is a single file, which need not exist: other owners' files may lie
    /// beside it.
    pub fn lock_file(&self) -> Result<Lock, FolderError> {
        let mut lock = self.path.as_os_str().to_owned();
        lock.push(".lock");
        self.lock_through(self.path.parent().unwrap_or(Path::new("")), lock.into(), 0o700)
    }

    fn lock_through(&self, folder: &Path, lock: PathBuf, mode: u32) -> Result<Lock, FolderError> {
        let OwnedFolder { kind, advice, .. } = *self;
        let path = self.path.to_owned();
        let failed = |action| {
            let path = path.clone();
            move |source| FolderError::System { action, kind, path, advice, source }
        };
        if folder != Path::new("") {
            DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(failed("make"))?;
        }
        let options = &mut OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = own_file::open(&lock, options).map_err(failed("make the lock of"))?;
        let mark = read_mark(&file).map_err(failed("read the lock of"))?;
        let Some(held) = Lock::take(file).map_err(failed("lock"))? else {
            let owner = if mark.is_empty() { "another process".to_owned() } else { mark };
            return Err(FolderError::InUse { owner, kind, path, advice });
        };
        // Only the holder of the lock writes a mark, so it cannot change any more.
        let mut file = held.locked_file();
        let mark = read_mark(file).map_err(failed("read the lock of"))?;
        if mark.is_empty() {
            let written = writeln!(file, "{}", self.owner).and_then(|()| file.sync_all());
            written.map_err(failed("mark"))?;
        } else if mark != self.owner {
            let asks = self.owner.to_owned();
            return Err(FolderError::OfAnother { owner: mark, asks, kind, path, lock: lock.into(), advice });
        }
        Ok(held)
    }
}

/// The owner that a file names, from its start; empty if it names none.
fn read_mark(mut file: &File) -> io::Result<String> {
    io::Seek::rewind(&mut file)?;
    let mut bytes = Vec::new();
    file.take(MAX_MARK).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // It is shown to people, and anyone may have written it.
    Ok(text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder<'a>(path: &'a Path, owner: &'a str) -> OwnedFolder<'a> {
        OwnedFolder { path, kind: "history folder", owner, advice: "give this one another (--x)" }
    }

    #[test]
    fn a_folder_has_one_writer_at_a_time_who_is_named() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/history");
        let held = folder(&path, "collector east").lock().unwrap();
        let at = path.display();
        for asks in ["collector east", "collector west"] {
            let refused = folder(&path, asks).lock().unwrap_err().to_string();
            let expected = format!(
                "collector east uses the history folder {at}; stop it, or give this one another (--x)"
            );
            assert_eq!(refused, expected);
        }
        drop(held);
        folder(&path, "collector east").lock().unwrap();
    }

    #[test]
    fn a_folder_stays_its_owners_until_its_mark_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path();
        drop(folder(path, "collector east").lock().unwrap());
        let refused = folder(path, "collector west").lock().unwrap_err().to_string();
        assert_eq!(
            refused,
            format!(
                "the history folder {0} belongs to collector east, and this is collector west; give this one another (--x), \
                 or remove {0}/lock to take its contents over",
                path.display()
            )
        );
        std::fs::remove_file(path.join(FILE)).unwrap();
        drop(folder(path, "collector west").lock().unwrap());
        assert_eq!(std::fs::read_to_string(path.join(FILE)).unwrap(), "collector west\n");
    }

    #[test]
    fn files_of_one_folder_have_owners_of_their_own() {
        let base = tempfile::tempdir().unwrap();
        let (one, other) = (base.path().join("state/leaf1.json"), base.path().join("state/leaf2.json"));
        let file = |path, owner| OwnedFolder { kind: "state file", ..folder(path, owner) };
        let held = file(&one, "translator a").lock_file().unwrap();
        let _other = file(&other, "translator b").lock_file().unwrap();
        let refused = |owner| file(&one, owner).lock_file().unwrap_err().to_string();
        let at = one.display();
        let advice = "give this one another (--x)";
        assert_eq!(
            refused("translator b"),
            format!("translator a uses the state file {at}; stop it, or {advice}")
        );
        drop(held);
        assert_eq!(
            refused("translator b"),
            format!(
                "the state file {at} belongs to translator a, and this is translator b; {advice}, or remove {at}.lock to take \
                 its contents over"
            )
        );
        assert!(!one.exists());
    }

    #[test]
    fn a_mark_is_shown_without_what_could_steer_a_terminal() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join(FILE), "a\x1b[31m\0b\nc").unwrap();
        let refused = folder(base.path(), "b").lock().unwrap_err().to_string();
        assert!(refused.contains("belongs to a[31mb, and"), "{refused}");
        assert_eq!(std::fs::read(base.path().join(FILE)).unwrap(), b"a\x1b[31m\0b\nc");
    }
}
