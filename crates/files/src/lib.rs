//! What programs read from files and keep in them, without command line parsing.
//!
//! - [`config_table!`](crate::config_table): tables of a configuration; [`config_file`]: what is wrong in one, and
//!   where.
//! - [`host`]: addresses and names of hosts in it.
//! - [`mod@file`]: files that people name.
//! - [`own_file`]: files that a daemon keeps; [`lock`]: those that it locks; [`owned_folder`]: folders that it alone writes to; [`state_directory`]: where they are.
//! - `http` (feature `http`): how HTTP clients are set up.
//! - [`moment`]: moments; [`span`]: lengths of time; [`size`]: sizes.

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

/// The folder for what `name` keeps: in the state folder of the systemd unit if there is one, else `/var/lib/dta` for
/// root, else the user's folder of state.
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
    // The owner of this process's own folder in /proc is who it runs as.
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
