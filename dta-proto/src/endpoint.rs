//! One side of RoCEv2 packets.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::wire::ethernet::Mac;
use crate::wire::roce::PORT;

/// One side of RoCEv2 packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Ethernet address; all zero if unknown or if the link needs none (UDP sockets).
    pub mac: Mac,
    /// IP address.
    pub ip: IpAddr,
    /// UDP port for packets to this side, normally 4791; 0 if unspecified.
    pub port: u16,
    /// Whether it accepts packets in runs (`dta_link::udp`): numbered by their IPv4 ids, with UDP checksums.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs: bool,
}

impl Endpoint {
    /// The endpoint at an address: RoCEv2's port, no Ethernet address, no runs.
    pub fn new(ip: IpAddr) -> Endpoint {
        Endpoint { mac: Mac::default(), ip, port: PORT, runs: false }
    }

    /// The same, with RoCEv2's port if none is given.
    pub fn with_usual_port(self) -> Endpoint {
        if self.port == 0 { Endpoint { port: PORT, ..self } } else { self }
    }

    /// The Ethernet address, if known.
    pub fn known_mac(&self) -> Option<Mac> {
        (self.mac != Mac::default()).then_some(self.mac)
    }

    /// The GID. In RoCEv2 it is the IP address, for IPv4 the IPv4-mapped one (InfiniBand
    /// Architecture Specification, volume 1, annex A17.4.1.2).
    pub fn to_gid(&self) -> [u8; 16] {
        match self.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_the_address() {
        let of = |ip: &str| Endpoint::new(ip.parse().unwrap()).to_gid();
        assert_eq!(of("10.9.0.1"), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);
        assert_eq!(of("fd00::7"), [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn what_is_not_given() {
        let bare = Endpoint { port: 0, ..Endpoint::new("10.9.0.1".parse().unwrap()) };
        assert_eq!((bare.known_mac(), bare.with_usual_port().port), (None, 4791));
        let given = Endpoint { port: 9, mac: Mac([2, 0, 0, 0, 0, 1]), ..bare };
        assert_eq!((given.known_mac(), given.with_usual_port().port), (Some(given.mac), 9));
    }
}
