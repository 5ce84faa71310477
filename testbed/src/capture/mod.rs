//! Packet captures: reading and writing them, and finding the flow of each packet.

mod decode;
mod file;
mod write;

pub use decode::{DecodedPacket, Skip, SkipCounts, decode_packet, udp_payload};
pub use file::{CaptureCut, CaptureError, CapturedPacket, LinkType, Summary, read, read_from};
pub use write::{write_header, write_packet};
