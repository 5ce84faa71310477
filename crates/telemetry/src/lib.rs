//! Turns what switches and routers report about their traffic into DTA's reports: INT Telemetry Reports and
//! flow exports (NetFlow, IPFIX, sFlow).
//!
//! Everything is pure: a datagram's bytes and the time go in. [`int`] and [`flows`] decode; [`reports::Telemetry`] applies rules
//! to what was decoded and makes primitives, which the data plane executes as it does the reports of reporters.
//!
//! - [`int`]: Telemetry Reports and the INT in the reported packets.
//! - [`flows`]: flow exports, with the memory that each exporter needs; [`sflow`]: the datagrams of sFlow.
//! - [`exported`]: what an exporter says, whatever the format.
//! - [`reports`]: rules, change detection, counts; primitives come out.

pub mod exported;
pub mod flows;
pub mod int;
pub mod reports;
pub mod sflow;
