//! What programs read from files and keep in them, without command line parsing.
//!
//! - [`config_file`]: what is wrong in a configuration, and where; [`host`]: addresses and names of hosts in it.
//! - [`locked_file`]: files that people name.
//! - [`own_file`]: files that a daemon keeps; [`lock`]: those that it locks; [`state_directory`]: where they are.
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
pub mod size;
pub mod span;
mod state_directory;

pub use state_directory::state_directory;
