//! The translator of Direct Telemetry Access (DTA): it turns each report into RDMA operations on a collector's memory.
//!
//! - [`program`]: what a switch should hold, computed from a session and the configuration.
//! - [`session`]: the lease in the collector.
//! - [`run`]: the software data plane (`dta-dataplane`) between links, with its session and its own service.
//! - [`setup`]: programming a switch.
//! - [`config`], [`collectors`], [`cli`]: what the program is made of otherwise.

pub mod cli;
pub mod collectors;
pub mod config;
pub mod control_address;
pub mod program;
pub mod run;
pub mod session;
pub mod setup;
