//! Packet captures: reading and writing them, and finding the flow of each packet.

mod decode;
mod file;
mod write;

pub use decode::{Decoded, Skip, SkipCounts, decode, udp_payload};
pub use file::{CaptureError, Cut, LinkType, Packet, Summary, read, read_from};
pub use write::{write_header, write_packet};
