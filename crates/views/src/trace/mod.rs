//! The trace of a flow through hosts: where its packets were, how long they took from point to point, and where they
//! were dropped. `dta_proto::trace` describes the entries of these stores.
//!
//! `read` reads the lists of events, [`dta_export::hosts`] reads the paths of packets and compares the hosts' clocks,
//! [`flow`] puts the answer together, and [`draw`] draws it.

pub mod draw;
pub mod flow;
pub(crate) mod read;
