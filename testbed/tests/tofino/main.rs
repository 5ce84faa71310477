//! What the compiler for Tofino made of the P4 programs, read from its assembly and run: its parsers, hashes, tables and
//! registers have to do as `dta-proto` and the software engine in reference mode.

mod assembly;
#[path = "../shared/p4_suite/capture.rs"]
mod capture;
mod containers;
#[path = "../shared/flush_command.rs"]
mod flush_command;
mod hashes;
mod parsers;
mod registers;
mod reporter;
