//! The commented configuration that `dta-collector config --example` prints.

/// A file with the defaults. Lines that begin with `#!` are settings without a default.
pub const EXAMPLE: &str = include_str!("example.toml");
