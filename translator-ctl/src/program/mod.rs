//! The program of a switch: made from a session and the configuration ([`build`]), and shown to people and programs.

mod build;
mod show;

pub use build::{BuildError, FrameSource, Wanted, build};
pub use show::{changes_json, changes_table, program_json, program_table};
