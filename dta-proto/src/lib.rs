//! Bytes and arithmetic of Direct Telemetry Access (DTA).
//!
//! Everything that two programs must agree on, and nothing else: no sockets, files, threads or clocks.
//!
//! - [`wire`]: what travels in packets (DTA reports and NACKs, Ethernet to UDP, RoCEv2).
//! - [`batch`]: packets in memory, as passed between links, the data plane and the software NIC.
//! - [`layout`]: what lies in memory (slots, checksums, element layouts of the five stores).
//! - [`store`]: the description of a store, in configuration, sessions and region headers alike.
//! - [`fit`]: whether a report fits a store.
//! - [`flow_record`]: what exporters report about a flow, as an entry of a list.
//! - [`flow_query`]: queries of flow records, and the sums that answer them.
//! - [`counter`]: what every node counts, and under what name.
//! - [`crc`]: the CRCs of wire formats and layouts.
//! - [`list_range`]: a range of lists of an append store.
//! - [`buckets`]: which keys are at which collector, if several share a store.
//! - [`placement`]: which collector has which buckets and lists, and the plan of the next placement.
//! - [`queue_pair`], [`name`]: queue pairs; valid names of stores and sessions.
//! - [`key`]: the 16-byte key and the flow it can hold.
//! - [`backoff`]: how long to wait before a retry.
//! - [`named!`], [`parse_by_name!`], [`serde_as_text!`]: for types that are written as text in files, messages and on
//!   command lines; [`to_hex_digits`], [`hex_groups`]: bytes as text.
//! - [`prefix`]: prefixes of addresses.
//! - [`random`]: numbers that look random, from a seed.
//! - [`telemetry`]: how INT is stored: keys, values, entries of lists.
//! - [`trace`]: how traces of hosts are stored, likewise.
//! - [`program`]: what a switch should hold, as table entries, and the difference between two programs.
//! - `control`: the control plane `dta.v1` (gRPC), and `codec`, which bounds its requests; both behind the
//!   feature `control`.

#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod backoff;
pub mod batch;
pub mod buckets;
pub mod clock;
#[cfg(feature = "control")]
pub mod codec;
#[cfg(feature = "control")]
pub mod control;
pub mod counter;
pub mod crc;
pub mod drop_reason;
pub mod endpoint;
pub mod fit;
pub mod flow_query;
pub mod flow_record;
pub mod key;
pub mod layout;
pub mod list_range;
pub mod name;
pub mod placement;
pub mod prefix;
pub mod program;
pub mod queue_pair;
pub mod random;
pub mod store;
pub mod telemetry;
mod text;
pub mod trace;
pub mod wire;

pub use text::{hex_groups, to_hex_digits};
