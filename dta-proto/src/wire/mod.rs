//! What travels in packets.
//!
//! Each format comes as a *view*, checked once and then read without copying (its accessors cannot fail or panic),
//! and as a *value* that is written (`encode_into`, `write_frame`) and often parsed. All integers are big-endian
//! unless a field says otherwise. Decoding returns a value or an [`Error`] with the layer, the field and its offset.
//!
//! - [`dta`]: reports and NACKs of both versions.
//! - [`ethernet`], [`arp`], [`ipv4`], [`ipv6`], [`ndp`], [`udp`]: the parts that RoCEv2 and reports need.
//! - [`datagram`]: UDP in IPv4, built and parsed in one place.
//! - [`roce`]: the InfiniBand transport headers and the invariant CRC.
//! - [`frame`]: whole RoCEv2 frames, as the software translator and NIC send them.

pub mod arp;
pub mod checksum;
pub mod datagram;
pub mod dta;
mod error;
pub mod ethernet;
pub mod frame;
mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod roce;
pub mod udp;

pub use error::{Error, Layer, Result, WireErrorKind, saturating_u16};
pub use ip::AddressPair;
