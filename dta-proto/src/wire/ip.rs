//! Addresses of a packet, IPv4 or IPv6.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{checksum, ipv4, ipv6, udp};

/// Source and destination of a packet, both of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressPair {
    /// The addresses of an IPv4 packet.
    V4 {
        /// Source address.
        source: Ipv4Addr,
        /// Destination address.
        destination: Ipv4Addr,
    },
    /// The addresses of an IPv6 packet.
    V6 {
        /// Source address.
        source: Ipv6Addr,
        /// Destination address.
        destination: Ipv6Addr,
    },
}

impl AddressPair {
    /// `None` if the addresses are of different families.
    pub const fn from_addresses(source: IpAddr, destination: IpAddr) -> Option<AddressPair> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(AddressPair::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(AddressPair::V6 { source, destination }),
            _ => None,
        }
    }

    /// Source address.
    pub const fn source(&self) -> IpAddr {
        match *self {
            AddressPair::V4 { source, .. } => IpAddr::V4(source),
            AddressPair::V6 { source, .. } => IpAddr::V6(source),
        }
    }

    /// Destination address.
    pub const fn destination(&self) -> IpAddr {
        match *self {
            AddressPair::V4 { destination, .. } => IpAddr::V4(destination),
            AddressPair::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }

    /// Length of the IP header, without options, and the UDP header: 28 or 48.
    #[inline]
    pub const fn datagram_header_len(&self) -> usize {
        udp::HEADER_LEN
            + match self {
                AddressPair::V4 { .. } => ipv4::HEADER_LEN,
                AddressPair::V6 { .. } => ipv6::HEADER_LEN,
            }
    }

    /// The sum of the pseudo header that checksums of higher layers cover (RFC 768, RFC 8200 section 8.1), not folded.
    /// `length` is that of the header and payload of `protocol`.
    pub(super) fn pseudo_header_sum(&self, protocol: u8, length: u16) -> u32 {
        let sum = match self {
            AddressPair::V4 { source, destination } => {
                checksum::add(checksum::add(0, &source.octets()), &destination.octets())
            }
            AddressPair::V6 { source, destination } => {
                checksum::add(checksum::add(0, &source.octets()), &destination.octets())
            }
        };
        sum + u32::from(protocol) + u32::from(length)
    }
}
