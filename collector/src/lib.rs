//! The collector of Direct Telemetry Access (DTA).
//!
//! Translators write telemetry into this program's memory by RDMA; this program leases them queue pairs and rkeys,
//! and answers queries from the memory. None of its code runs per report, unless its NIC is the software one.
//!
//! Memory, NIC and readers are `dta-memory`'s. Modules point one way: `epochs`, `cluster` ← `answers`, `session` ← `service` ← `server` ← `cli`;
//! [`etcd_config`] describes a collector. The other end of `service` is the crate `dta-client`, and so is the
//! interface that `answers` implements. What `cli` shows of flows, events and counters is made in `dta-views`.

pub mod answers;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod epochs;
mod page;
pub mod server;
pub mod service;
pub mod session;
