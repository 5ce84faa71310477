//! What is kept beside a switch: what its tables cannot tell back.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use dta_cli::own_file;
use dta_proto::program::Program;
use serde::{Deserialize, Serialize};

use super::places::Places;

/// What was applied to a switch, and where things are in it. It has remote keys, so its file is for its owner alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// What the switch held when it was last programmed as a whole.
    pub applied: Program,
    /// Where things are in it.
    pub places: Places,
    /// A number chosen when the switch began to count.
    pub life: u64,
}

/// A file of what is kept.
#[derive(Clone, Debug)]
pub struct KeptFile(PathBuf);

/// Why what is kept cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("what is kept of the switch ({path}): {source}")]
pub struct KeptError {
    path: String,
    source: io::Error,
}

impl KeptFile {
    /// The file at a path, or that of the switch of this name in the place for such files.
    pub fn new(path: Option<&Path>, switch: &str) -> KeptFile {
        KeptFile(path.map_or_else(|| directory().join(format!("{switch}.json")), Path::to_owned))
    }

    fn error(&self, source: io::Error) -> KeptError {
        KeptError { path: self.0.display().to_string(), source }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What is kept; nothing where there is no file.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of these.
    pub fn read(&self) -> Result<Kept, KeptError> {
        match fs::read(&self.0) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                self.error(io::Error::other(format!("{error}; remove the file to program the switch anew")))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Writes what is kept. A reader finds what was there before, or all of this.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, kept: &Kept) -> Result<(), KeptError> {
        let write = || -> io::Result<()> {
            if let Some(parent) = self.0.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            }
            own_file::replace(&self.0, &serde_json::to_vec(kept)?)
        };
        write().map_err(|error| self.error(error))
    }
}

/// Where such files are: the service manager's place, else the user's.
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
    use crate::switches::p4::places::Room;

    #[test]
    fn what_is_kept_is_read_back_and_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeptFile::new(Some(&dir.path().join("a/b.json")), "b");
        assert_eq!(file.read().unwrap(), Kept::default());
        let program: Program =
            serde_json::from_str(include_str!("../../../../dta-proto/vectors/program.json")).unwrap();
        let places = Places::default().of(&program, 64, Room::ALL).unwrap();
        let kept = Kept { applied: program, places, life: 7 };
        file.write(&kept).unwrap();
        file.write(&kept).unwrap();
        assert_eq!(file.read().unwrap(), kept);
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(file.path(), "{").unwrap();
        assert!(file.read().unwrap_err().to_string().contains("remove the file"));
    }
}
