//! The translator of Direct Telemetry Access (DTA): it turns each report into RDMA operations on a collector's memory.
//!
//! - [`program`]: what a switch should hold, computed from a session and the configuration, and the difference to what it holds.
//! - [`dataplane`]: the software data plane, pure: reports in, RoCEv2 frames and NACKs out.
//! - [`session`]: the lease in the collector.
//! - [`run`]: the data plane between links, with its session and its own service.
//! - [`setup`]: programming a switch.
//! - [`config`], [`cli`], [`client`]: what the program is made of otherwise.

pub mod cli;
pub mod client;
pub mod config;
pub mod dataplane;
pub mod program;
pub mod run;
pub mod session;
pub mod setup;
