//! What programs read from files and keep in them, without command line parsing.
//!
//! - [`config_file`]: errors in a configuration, with their position; [`host`]: addresses and names of hosts
//!   in it.
//! - [`file`]: files named by users.
//! - [`own_file`]: a daemon's own files; [`lock`]: files that it locks.

pub mod config_file;
pub mod file;
pub mod host;
pub mod lock;
pub mod own_file;
