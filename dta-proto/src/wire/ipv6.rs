//! IPv6 (RFC 8200) without extension headers, as far as RoCEv2 needs it.

use core::net::Ipv6Addr;

use super::error::saturating_u16;
use super::ip::AddressPair;
use super::{Error, Layer, Result, WireErrorKind};

/// Length of the header.
pub const HEADER_LEN: usize = 40;
/// Next header of a fragment.
pub const NEXT_FRAGMENT: u8 = 44;
/// Next header of ICMPv6.
pub const NEXT_ICMPV6: u8 = 58;

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Ipv6, field, offset, kind)
}

/// Whether these bytes begin a packet of version 6.
#[inline]
pub fn is_ipv6(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
}

/// An unchecked view of a packet's first 40 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Header<'a>(&'a [u8; HEADER_LEN]);

impl<'a> Ipv6Header<'a> {
    /// The header at the start of these bytes; `None` if there are fewer than 40.
    #[inline]
    pub fn from_first_bytes(bytes: &'a [u8]) -> Option<Self> {
        bytes.first_chunk().map(Ipv6Header)
    }

    /// Length of what follows the header.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// What follows the header: the number of a protocol or of an extension header.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.0[6]
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0[7]
    }

    /// Source address.
    #[inline]
    pub fn source_address(&self) -> Ipv6Addr {
        self.address_at(8)
    }

    /// Destination address.
    #[inline]
    pub fn destination_address(&self) -> Ipv6Addr {
        self.address_at(24)
    }

    /// Source and destination.
    #[inline]
    pub fn addresses(&self) -> AddressPair {
        AddressPair::V6 { source: self.source_address(), destination: self.destination_address() }
    }

    #[inline]
    fn address_at(&self, at: usize) -> Ipv6Addr {
        self.0[at..].first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |octets| Ipv6Addr::from(*octets))
    }
}

/// A packet's header and payload, checked.
///
/// Bytes beyond the payload length (Ethernet padding) are ignored.
///
/// # Errors
/// Another version, impossible lengths, or another next header than `protocol`, such as an extension header.
pub fn parse_packet(bytes: &[u8], protocol: u8) -> Result<(Ipv6Header<'_>, &[u8])> {
    let have = saturating_u16(bytes.len());
    let Some(header) = Ipv6Header::from_first_bytes(bytes) else {
        return Err(err("header", 0, WireErrorKind::Truncated { need: HEADER_LEN as u16, have }));
    };
    if !is_ipv6(bytes) {
        return Err(err("version", 0, WireErrorKind::UnknownVersion(header.0[0] >> 4)));
    }
    if header.next_header() != protocol {
        return Err(err("next_header", 6, WireErrorKind::Protocol(header.next_header().into())));
    }
    let end = HEADER_LEN + usize::from(header.payload_length());
    match bytes.get(HEADER_LEN..end) {
        Some(payload) => Ok((header, payload)),
        None => Err(err("payload_length", 4, WireErrorKind::Truncated { need: saturating_u16(end), have })),
    }
}

/// The header as a value; its flow label is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Repr {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Protocol number of the payload.
    pub next_header: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bytes of payload.
    pub payload_len: u16,
}

impl Ipv6Repr {
    /// Writes the header.
    pub fn encode_into(&self, buffer: &mut [u8; HEADER_LEN]) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20;
        buffer[..4].copy_from_slice(&first.to_be_bytes());
        buffer[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        buffer[6] = self.next_header;
        buffer[7] = self.hop_limit;
        buffer[8..24].copy_from_slice(&self.src.octets());
        buffer[24..].copy_from_slice(&self.dst.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Ipv6Repr = Ipv6Repr {
        src: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
        dst: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
        next_header: 17,
        traffic_class: 0x62,
        hop_limit: 64,
        payload_len: 3,
    };

    fn packet() -> Vec<u8> {
        let mut header = [0xa5; HEADER_LEN];
        HEADER.encode_into(&mut header);
        // The last two bytes are padding.
        [&header[..], &[7; 3 + 2]].concat()
    }

    #[test]
    fn the_header_is_byte_exact() {
        let expected = [
            0x66, 0x20, 0, 0, 0, 3, 17,
            64, // version, traffic class, flow label, length, UDP, hop limit
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, //
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        ];
        let packet = packet();
        assert_eq!(packet[..HEADER_LEN], expected);
        let (header, payload) = parse_packet(&packet, 17).unwrap();
        assert_eq!((header.hop_limit(), payload), (64, &[7; 3][..]));
        assert_eq!(header.addresses(), AddressPair::V6 { source: HEADER.src, destination: HEADER.dst });
    }

    #[test]
    fn refusals() {
        let packet = packet();
        for len in 0..HEADER_LEN + 3 {
            assert!(parse_packet(&packet[..len], 17).is_err(), "{len} bytes");
        }
        let refused = |at: usize, byte: u8| {
            let mut packet = packet.clone();
            packet[at] = byte;
            parse_packet(&packet, 17).unwrap_err()
        };
        assert_eq!(refused(0, 0x45), err("version", 0, WireErrorKind::UnknownVersion(4)));
        // A hop-by-hop header.
        assert_eq!(refused(6, 0), err("next_header", 6, WireErrorKind::Protocol(0)));
        let kind = WireErrorKind::Truncated { need: 46, have: 45 };
        assert_eq!(refused(5, 6), err("payload_length", 4, kind));
    }
}
