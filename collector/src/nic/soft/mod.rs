//! The software NIC: a RoCEv2 responder in user space.
//!
//! - [`responder`]: packets in, memory changed, answers out; no I/O.
//! - [`counter`]: what it counts.
//! - `request`, `answer`: the bytes of both directions. `keys`, `queue_pair`: what the responder looks things up in.

mod answer;
pub mod counter;
mod keys;
mod queue_pair;
mod request;
pub mod responder;

pub use counter::{Counter, Counts};
pub use responder::{Responder, ResponderConfig};
