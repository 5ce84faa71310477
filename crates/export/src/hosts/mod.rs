//! What hosts report of packets ([`dta_proto::trace`]): their paths through hosts, put together from several lists
//! and stores.
//!
//! [`packets`] reads the points of packets, [`clocks`] compares the hosts' clocks, and [`journey`] puts the points in
//! order. [`reader`] follows the lists for an exporter.

pub mod clocks;
pub mod journey;
pub mod packets;
pub mod reader;
