//! Configuration of a responder.

use std::net::Ipv4Addr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    pub device: String,
    /// Address that requests are sent to; others are dropped.
    pub ip: Ipv4Addr,
    /// UDP port that requests are sent to.
    pub port: u16,
    /// Path MTU: payload bytes of one packet, 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Responder resources per RC queue pair: atomics and READs in flight. With 0, both are refused.
    pub max_dest_rd_atomic: u8,
}
