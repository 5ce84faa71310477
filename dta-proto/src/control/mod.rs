//! The control plane `dta.v1`, generated from `proto/dta/v1/*.proto`.
//!
//! The `.proto` files are the reference; their comments are the documentation of each field.

// Generated code: the .proto files document it, and its style is the generator's.
#![allow(missing_docs, clippy::all, unreachable_pub)]

tonic::include_proto!("dta.v1");

/// The `.proto` files as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dta_v1.bin"));

mod buckets_message;
mod convert;
mod endpoint_message;
mod limits;
mod program_message;
mod store_message;

pub use buckets_message::{bucket_ranges, copies_from_ranges};
pub use convert::{MessageError, parse_purpose, transport};
pub use limits::{MAX_EPOCHS, MAX_KEYS, MAX_NODES, MAX_READ};
pub use program_message::{program_message, program_of};
