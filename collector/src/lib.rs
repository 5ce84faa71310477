//! The collector of Direct Telemetry Access (DTA).
//!
//! Translators write telemetry into this program's memory by RDMA; this program leases them queue pairs and rkeys,
//! and answers queries from the memory. None of its code runs per report, unless its NIC is the software one.
//!
//! Modules point one way: `region` ← `nic`, `store` ← `epochs`, `cluster` ← `answers`, `session` ← `service` ← `server` ← `cli`;
//! [`etcd_config`] describes a collector. The other end of `service` is the crate `dta-client`, and so is the
//! interface that `answers` implements. What `cli` shows of flows, events and counters is made in `dta-views`.

pub mod answers;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod epochs;
pub mod nic;
mod page;
pub mod reader;
pub mod region;
pub mod server;
pub mod service;
pub mod session;
pub mod store;
