//! What the stores of traces say of a flow: where its packets were, how long they took between the points of their way, and
//! where they were dropped. `dta_proto::trace` has what lies in these stores.
//!
//! [`read`] reads the lists of events and the paths of packets, [`clocks`] compares the hosts' clocks, [`flow`] puts the answer
//! together, and [`draw`] draws it.

mod clocks;
pub mod draw;
pub mod flow;
mod read;
