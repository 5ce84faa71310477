//! What hosts report of packets ([`dta_proto::trace`]): their ways through hosts, put together from several lists and stores.
//!
//! [`packets`] reads the points of packets, [`clocks`] compares the hosts' clocks, and [`journey_points`] puts the points in order. [`open_reader`]
//! follows the lists for an exporter.

pub mod clocks;
pub mod journey;
pub mod packets;
pub mod reader;
