//! The translator of Direct Telemetry Access (DTA): it turns each report into RDMA operations on a collector's memory.
//!
//! - [`program`]: what a switch should hold, computed from a session and the configuration, and the difference to what it holds.
//! - [`dataplane`]: the software data plane, pure: reports in, RoCEv2 frames and NACKs out.
//! - [`config`]: the configuration file.

pub mod config;
pub mod dataplane;
pub mod program;
