//! Packet captures: reading them, and finding the flow of each packet.

mod decode;
mod file;

pub use decode::{Decoded, Skip, SkipCounts, decode, udp_payload};
pub use file::{CaptureError, Cut, LinkType, Packet, Summary, read, read_from};
