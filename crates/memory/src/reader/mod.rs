//! Readers: answer queries from stores, one module for each primitive.
//!
//! A reader never writes, takes no lock and calls nobody: it copies an element out of memory that a NIC may be
//! writing at that moment, and trusts the copy only if its checksum matches. [`follow`] keeps reading a list.

pub mod append;
pub mod flow_scan;
pub mod follow;
pub mod key_increment;
pub mod key_write;
pub mod postcarding;
pub mod sketch_merge;
#[cfg(test)]
mod tests;
