//! What programs read from files and keep in them, without command line parsing.
//!
//! - [`config_table!`](crate::config_table): tables of a configuration; [`config_file`]: configuration files, and where
//!   their errors are.
//! - [`host`]: addresses and host names in a configuration.
//! - [`mod@file`]: files named by a user.
//! - [`own_file`]: a daemon's own files; [`lock`]: files that it locks; [`owned_folder`]: folders that only it writes to; [`state_directory`]: where they are.
//! - `http` (feature `http`): how HTTP clients are set up.
//! - [`moment`]: points in time; [`span`]: lengths of time; [`size`]: sizes in bytes.

pub mod config_file;
pub mod file;
pub mod host;
#[cfg(feature = "http")]
pub mod http;
pub mod lock;
pub mod moment;
pub mod own_file;
pub mod owned_folder;
pub mod size;
pub mod span;
mod table;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder where `name` keeps its state: in the systemd unit's state directory if there is one, else in
/// `/var/lib/dta` for root, else in the user's state directory.
pub fn state_directory(name: &str) -> PathBuf {
    let folder = match std::env::var_os("STATE_DIRECTORY") {
        // Several are separated by colons.
        Some(folder) => {
            let text = folder.to_string_lossy().into_owned();
            PathBuf::from(text.split(':').next().unwrap_or_default())
        }
        None if is_root() => PathBuf::from("/var/lib/dta"),
        None => match (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")) {
            (Some(state), _) => PathBuf::from(state).join("dta"),
            (None, Some(home)) => Path::new(&home).join(".local/state/dta"),
            (None, None) => PathBuf::from("/var/lib/dta"),
        },
    };
    folder.join(name)
}

fn is_root() -> bool {
    // A process's own folder in /proc belongs to the user it runs as.
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
