//! The commented configuration that `dta-collector config --example` prints.

/// A file that says what the defaults are. Lines that begin with `#!` are settings that have no default.
pub const EXAMPLE: &str = include_str!("example.toml");
