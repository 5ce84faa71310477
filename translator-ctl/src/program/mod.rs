//! The program of a switch: made from what collectors grant ([`Grant`]) and the configuration
//! ([`build`]), and shown to people and programs.

mod build;
mod grant;
mod show;

pub use build::{BuildError, Wanted, build};
pub use grant::{FrameSource, Grant, GrantError};
pub use show::{changes_json, changes_table, program_json, program_table};
