//! Bytes and arithmetic of Direct Telemetry Access (DTA).
//!
//! Everything that two programs must agree on, and nothing else: no sockets, files, threads or clocks.
//!
//! - [`wire`]: what travels in packets (DTA reports and NACKs, Ethernet to UDP, RoCEv2).
//! - [`batch`]: packets in memory, as links, the data plane and the software NIC hand them on.
//! - [`layout`]: what lies in memory (slots, checksums, element layouts of the five stores).
//! - [`store`]: how a store is described, in configuration, sessions and region headers alike.
//! - [`fit`]: whether a report can land in a store.
//! - [`counter`]: what every node counts, and by what name.
//! - [`crc`]: the CRCs that the two above share.
//! - [`list_range`]: some of the lists of an append store.
//! - [`buckets`]: which keys are where, if several collectors share a store.
//! - [`queue_pair`], [`name`]: what queue pairs are, and what the names of stores and sessions may be.
//! - [`key`]: the 16-byte key and the flow that it can hold.
//! - [`prefix`]: prefixes of addresses.
//! - [`telemetry`]: what INT becomes in the stores: keys, values, entries of lists.
//! - [`trace`]: what traces of hosts become in the stores, in the same way.
//! - [`program`]: what a switch should hold, as table entries, and the changes from one program to another.
//! - `control`: the control plane `dta.v1` (gRPC), and `codec`, which bounds its requests; both
//!   with the feature `control`.

#![forbid(unsafe_code)]

pub mod batch;
pub mod buckets;
#[cfg(feature = "control")]
pub mod codec;
#[cfg(feature = "control")]
pub mod control;
pub mod counter;
pub mod crc;
pub mod endpoint;
pub mod fit;
pub mod key;
pub mod layout;
pub mod list_range;
pub mod name;
pub mod prefix;
pub mod program;
pub mod queue_pair;
pub mod store;
pub mod telemetry;
pub mod trace;
pub mod wire;
