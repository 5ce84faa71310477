//! The collector of Direct Telemetry Access (DTA).
//!
//! Translators write telemetry into this program's memory by RDMA; this program leases them queue pairs and rkeys,
//! and answers queries from the memory. None of its code runs per report, unless its NIC is the software one.
//!
//! Memory, NICs and readers are in `dta-memory`. Modules depend in one direction: `epochs`, `cluster` ←
//! `answers`, `session`, `alerts` ← `service` ← `server` ← `cli`; [`config`] describes a collector. The crate
//! `dta-rpc` has the client of `service` and the trait that `answers` implements. `dta-views` builds the
//! views of flows, events and counters that `cli` prints.

pub mod alerts;
pub mod answers;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod epochs;
mod page;
pub mod server;
pub mod service;
pub mod session;
