//! The software data plane: reports in, RoCEv2 frames (or work requests for an RDMA device) and NACKs out.
//!
//! [`Engine`] is pure: no socket, no clock, no thread; time is an argument (nanoseconds from any
//! fixed point). A batch of datagrams goes in, and finished IPv4 packets come out in an [`EngineOutput`] that
//! is reused. Nothing is allocated per report. Reports that another source has parsed and admitted go in
//! through [`Engine::execute_unnumbered`]; `dta-telemetry` makes such reports from INT and flow records.

mod age;
#[cfg(test)]
mod apply_tests;
#[cfg(test)]
mod bad_input_tests;
mod budget;
#[cfg(test)]
mod collectors_tests;
mod context;
pub mod counters;
mod egress;
mod engine;
mod epochs;
#[cfg(test)]
mod execute_tests;
mod frame;
#[cfg(test)]
mod hostile_tests;
pub mod losses;
#[cfg(test)]
mod moved_tests;
mod pair_place;
mod paths_left;
#[cfg(test)]
mod postcard_tests;
mod primitive;
#[cfg(test)]
mod rc_tests;
pub mod reference;
mod regions;
#[cfg(test)]
mod replicas_tests;
mod reporters;
pub mod requester;
mod run;
#[cfg(test)]
mod run_tests;
mod sent;
mod sequences;
#[cfg(test)]
mod tests;
mod version0;
pub mod window;
pub mod workers;

pub use engine::{Engine, EngineLimits, Offender, QueuePairStatus, SetupError};
pub use frame::{EngineOutput, PacketBatches, WorkRequest, WorkRequests};
pub use pair_place::place_for_pair;
pub use reporters::{ReporterCounters, ReporterStatus};
