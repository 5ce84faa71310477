//! The control plane `dta.v1`, generated from `proto/dta/v1/*.proto`.
//!
//! The `.proto` files are the reference; their comments are the documentation of each field.

// Generated code: the .proto files document it, and its style is the generator's.
#![allow(missing_docs, clippy::all, unreachable_pub)]

tonic::include_proto!("dta.v1");

/// The `.proto` files as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dta_v1.bin"));

mod alert_message;
mod buckets_message;
mod convert;
mod endpoint_message;
mod program_message;
mod store_message;

pub use alert_message::AlertState;
pub use buckets_message::{bucket_ranges, copies_from_ranges};
pub use convert::{MessageError, parse_purpose, transport};
pub use program_message::{program_message, program_of};

// Limits on one call, enforced by servers and respected by clients.

/// Most keys in one query: answers stay below the 4 MiB that clients accept by default.
pub const MAX_KEYS: usize = 16_384;

/// Most epochs in one answer.
pub const MAX_EPOCHS: usize = 4096;

/// Most nodes whose counters fit one renewal; a translator that hears more reporters renews several times.
pub const MAX_NODES: usize = 16_384;

/// Most bytes of one raw read.
pub const MAX_READ: u32 = 64 << 10;
