//! A switch's program: built from the collectors' grants ([`Grant`]) and the configuration ([`build_program`]), and
//! displayed.

mod build;
mod grant;
mod show;

pub use build::{BuildError, TargetProgramSettings, build_program};
pub use grant::{FrameSource, Grant, GrantError};
pub use show::{changes_json, changes_table, program_json, program_table};
