//! The software NIC: a RoCEv2 responder in user space.
//!
//! - [`responder`]: packets in, memory changed, answers out; no I/O.
//! - [`nic`]: the collector's [`crate::nic::Nic`]. `thread`: its threads, each of which moves packets between
//!   its link and its responder. `steering`: the thread of each queue pair.
//! - [`counter`]: the counters. [`counter_file`]: the file in which they survive a kill.
//! - `execute`: the verdicts. `request`, `answer`: the bytes of both directions. `keys` and `queue_pair`, on top of
//!   `index`: the responder's lookups. `alike`: packets like the one before. `refused`: refused requests, for the log.

mod alike;
mod answer;
pub mod counter;
pub mod counter_file;
mod execute;
mod index;
mod keys;
pub mod nic;
mod packets;
mod queue_pair;
mod refused;
mod request;
pub mod responder;
mod steering;
mod thread;

pub use counter::{Counter, NicCounts};
pub use counter_file::{CounterFile, CounterWatch};
pub use nic::{MAX_THREADS, SoftNic, SoftNicConfig};
pub use packets::Packets;
pub use refused::RefusedRequest;
pub use responder::Responder;
pub use responder::ResponderConfig;
