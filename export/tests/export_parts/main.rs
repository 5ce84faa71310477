//! The parts of the exporter without a database: needs no privilege and starts no program.

mod directory;
mod source;
