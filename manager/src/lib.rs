//! Starting, feeding, measuring and diagnosing a testbed of Direct Telemetry Access (DTA).
//!
//! - [`testbed`]: collector and translator as processes, simulated switches as reporters, and a
//!   checker that knows the truth.
//! - [`replay`]: the DTA datagrams of a capture, sent again.
//! - [`bench`]: what the data path does per second, each figure beside its floor.
//! - [`agents`]: what the agents of many hosts trace.
//! - [`doctor`]: what this machine offers.
//! - [`capture`], [`traffic`], [`topology`]: where packets come from and what they cross.

pub mod agents;
pub mod bench;
pub mod capture;
pub mod cli;
pub mod doctor;
pub mod replay;
pub mod testbed;
pub mod topology;
pub mod traffic;
