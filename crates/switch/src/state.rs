//! State kept beside a switch: what its tables do not show.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dta_files::lock::Lock;
use dta_files::own_file;
use dta_files::owned_folder::{FolderError, OwnedFolder};
use dta_proto::program::Program;
use serde::{Deserialize, Serialize};

use super::places::StatePlaces;

/// What was applied to a switch, and where things are in it. It contains rkeys, so only the owner may read
/// its file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchState {
    /// What the switch held when it was last completely programmed.
    pub applied: Program,
    /// Where things are in it.
    pub places: StatePlaces,
    /// A number chosen when the switch started to count.
    pub life: u64,
}

#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// The translator whose switch it is.
    owner: String,
    /// The contents at the last read, and the file's version then: its inode, time and length. Each version
    /// is a new file, so it has another inode.
    last: Option<([i64; 4], Arc<SwitchState>)>,
}

/// Why the state cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the switch's state file ({path}): {source}")]
pub struct StateError {
    path: String,
    source: io::Error,
}

impl StateFile {
    /// The file at a path, or the default one for this switch of the translator of a session.
    pub fn new(path: Option<&Path>, switch: &str, session: &str) -> StateFile {
        let path = path.map_or_else(|| directory().join(format!("{switch}.json")), Path::to_owned);
        StateFile { path, owner: format!("translator {session} of switch {switch}"), last: None }
    }

    /// Keeps every other translator, and another process that watches the same switch, from the file.
    ///
    /// # Errors
    /// Another process watches a switch with this file; it belongs to another translator; the system refuses.
    pub fn lock_state_file(&self) -> Result<Lock, FolderError> {
        let advice = "give this switch another one ([switch.NAME] state)";
        OwnedFolder { path: &self.path, kind: "state file", owner: &self.owner, advice }.lock_file()
    }

    fn state_error(&self, source: io::Error) -> StateError {
        StateError { path: self.path.display().to_string(), source }
    }

    /// The state; `None` without a file. Each version of the file is parsed once.
    ///
    /// # Errors
    /// A file that cannot be read, or has other contents.
    pub fn read(&mut self) -> Result<Arc<SwitchState>, StateError> {
        let read = || -> io::Result<_> {
            let of = fs::metadata(&self.path)?;
            let version = [of.ino() as i64, of.mtime(), of.mtime_nsec(), of.len() as i64];
            if let Some((at, kept)) = &self.last
                && *at == version
            {
                return Ok((version, kept.clone()));
            }
            let kept = serde_json::from_slice(&fs::read(&self.path)?).map_err(|error| {
                io::Error::other(format!("{error}; remove the file to program the switch from scratch"))
            })?;
            Ok((version, Arc::new(kept)))
        };
        match read() {
            Ok((version, kept)) => Ok(self.last.insert((version, kept)).1.clone()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Arc::default()),
            Err(error) => Err(self.state_error(error)),
        }
    }

    /// Writes the state atomically. Commands may do so while a process of the same translator watches the switch.
    ///
    /// # Errors
    /// It cannot be written, or belongs to another translator.
    pub fn write(&self, kept: &SwitchState) -> Result<(), StateError> {
        let _locked = match self.lock_state_file() {
            Ok(lock) => Some(lock),
            Err(FolderError::InUse { owner, .. }) if owner == self.owner => None,
            Err(error) => return Err(self.state_error(io::Error::other(error))),
        };
        let write = || own_file::replace_file(&self.path, &serde_json::to_vec(kept)?);
        write().map_err(|error| self.state_error(error))
    }
}

/// The directory of such files: the service manager's, else the user's.
fn directory() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = of("STATE_DIRECTORY") {
        return directory.join("switches");
    }
    let home = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")));
    home.unwrap_or_else(|| "/var/lib".into()).join("dta/switches")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::places::PlaceCapacity;

    #[test]
    fn what_is_kept_is_read_back_and_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = StateFile::new(Some(&dir.path().join("a/b.json")), "b", "t");
        assert_eq!(*file.read().unwrap(), SwitchState::default());
        let program: Program =
            serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
        let places = StatePlaces::default().assign_places(&program, 64, PlaceCapacity::ALL).unwrap();
        let mut kept = SwitchState { applied: program, places, life: 7 };
        file.write(&kept).unwrap();
        file.write(&kept).unwrap();
        let first = file.read().unwrap();
        assert_eq!(*first, kept);
        assert!(Arc::ptr_eq(&first, &file.read().unwrap()), "it is parsed once");
        // Another process writes it.
        kept.life = 8;
        StateFile::new(Some(&file.path), "b", "t").write(&kept).unwrap();
        assert_eq!(file.read().unwrap().life, 8);
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&file.path, "{").unwrap();
        assert!(file.read().unwrap_err().to_string().contains("remove the file"));
    }

    #[test]
    fn another_translator_is_refused_by_name_and_commands_of_the_same_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leaf1.json");
        let [own, others] = ["east", "west"].map(|session| StateFile::new(Some(&path), "leaf1", session));
        let watched = own.lock_state_file().unwrap();
        // `setup` beside `watch`.
        own.write(&SwitchState::default()).unwrap();
        let refused = own.lock_state_file().unwrap_err().to_string();
        assert!(refused.starts_with("translator east of switch leaf1 uses the state file"), "{refused}");
        for watched in [Some(watched), None] {
            let refused =
                others.write(&SwitchState { life: 9, ..SwitchState::default() }).unwrap_err().to_string();
            assert!(refused.contains("translator east of switch leaf1"), "{refused}");
            drop(watched);
        }
        let refused = others.lock_state_file().unwrap_err().to_string();
        assert!(
            refused.contains("belongs to translator east of switch leaf1, and this is translator west"),
            "{refused}"
        );
        assert_eq!(StateFile::new(Some(&path), "leaf1", "east").read().unwrap().life, 0);
    }
}
