//! UDP (RFC 768) over IPv4 and IPv6.

use core::ops::Deref;

use super::error::saturating_u16;
use super::ip::AddressPair;
use super::{Error, Layer, Result, WireErrorKind, checksum, ipv4};

/// Length of the header.
pub const HEADER_LEN: usize = 8;

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Udp, field, offset, kind)
}

/// An unchecked view of a datagram's first 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct UdpHeader<'a>(&'a [u8; HEADER_LEN]);

impl<'a> UdpHeader<'a> {
    /// The header at the start of these bytes; `None` if there are fewer than 8.
    #[inline]
    pub fn from_first_bytes(bytes: &'a [u8]) -> Option<Self> {
        bytes.first_chunk().map(UdpHeader)
    }

    /// Source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.0[0], self.0[1]])
    }

    /// Destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// The length field: header and payload.
    #[inline]
    pub fn length_field(&self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// The checksum field; 0 means none.
    #[inline]
    pub fn checksum_field(&self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }
}

/// A checked view of a datagram; the fields are in its [`UdpHeader`].
#[derive(Clone, Copy, Debug)]
pub struct UdpPacket<'a> {
    header: UdpHeader<'a>,
    payload: &'a [u8],
}

impl<'a> Deref for UdpPacket<'a> {
    type Target = UdpHeader<'a>;

    #[inline]
    fn deref(&self) -> &UdpHeader<'a> {
        &self.header
    }
}

impl<'a> UdpPacket<'a> {
    /// Checks the lengths. Bytes beyond the length field are ignored.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self> {
        let have = saturating_u16(bytes.len());
        let Some(header) = UdpHeader::from_first_bytes(bytes) else {
            return Err(err("header", 0, WireErrorKind::Truncated { need: HEADER_LEN as u16, have }));
        };
        let length = header.length_field();
        if usize::from(length) < HEADER_LEN {
            return Err(err("length", 4, WireErrorKind::Length(length)));
        }
        match bytes.get(HEADER_LEN..usize::from(length)) {
            Some(payload) => Ok(UdpPacket { header, payload }),
            None => Err(err("length", 4, WireErrorKind::Truncated { need: length, have })),
        }
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Checks the checksum, if present, for a datagram between these addresses. Over IPv6, too, it may be absent: RoCEv2
    /// has a checksum of its own.
    #[inline]
    pub fn verify_checksum(&self, addresses: &AddressPair) -> Result<()> {
        if self.checksum_field() == 0 {
            return Ok(());
        }
        let sum = addresses.pseudo_header_sum(ipv4::PROTOCOL_UDP, self.length_field());
        let sum = checksum::add(checksum::add(sum, self.header.0), self.payload);
        if checksum::fold_checksum(sum) == 0 {
            Ok(())
        } else {
            Err(err("checksum", 6, WireErrorKind::Checksum))
        }
    }

    /// Whether the checksum field holds the sum of the pseudo header alone: the sender left the rest to its device, but
    /// the path had none (a veth pair, a virtual machine's network). It then proves nothing.
    #[inline]
    pub fn is_checksum_pending(&self, addresses: &AddressPair) -> bool {
        let sum = addresses.pseudo_header_sum(ipv4::PROTOCOL_UDP, self.length_field());
        self.checksum_field() == !checksum::fold_checksum(sum)
    }
}

/// The checksum field of a datagram with `ports` and `payload` between these addresses. Never 0, which means
/// none.
pub fn compute_checksum(addresses: &AddressPair, src_port: u16, dst_port: u16, payload: &[u8]) -> u16 {
    let length = saturating_u16(payload.len() + HEADER_LEN);
    let sum = addresses.pseudo_header_sum(ipv4::PROTOCOL_UDP, length);
    let sum = sum + u32::from(src_port) + u32::from(dst_port) + u32::from(length);
    match checksum::fold_checksum(checksum::add(sum, payload)) {
        0 => 0xffff,
        sum => sum,
    }
}

/// The header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// The checksum field; 0 means none. See [`compute_checksum`].
    pub checksum: u16,
    /// Bytes of payload, at most 65,527.
    pub payload_len: u16,
}

impl UdpRepr {
    /// Writes the header. A payload length above 65,527 is clamped.
    pub fn encode_into(&self, buffer: &mut [u8; HEADER_LEN]) {
        let length = self.payload_len.min(u16::MAX - HEADER_LEN as u16) + HEADER_LEN as u16;
        buffer[..2].copy_from_slice(&self.src_port.to_be_bytes());
        buffer[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        buffer[4..6].copy_from_slice(&length.to_be_bytes());
        buffer[6..].copy_from_slice(&self.checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    const ENDS: AddressPair =
        AddressPair::V4 { source: Ipv4Addr::new(192, 168, 1, 1), destination: Ipv4Addr::new(192, 168, 1, 2) };
    const BYTES: [u8; 12] = [0xbf, 0x00, 0x00, 0x35, 0x00, 0x0c, 0x12, 0x4d, 0xaa, 0x00, 0x00, 0xff];

    fn repr() -> UdpRepr {
        UdpRepr { src_port: 48896, dst_port: 53, checksum: 0x124d, payload_len: 4 }
    }

    fn parse(packet: &UdpPacket<'_>) -> UdpRepr {
        UdpRepr {
            src_port: packet.source_port(),
            dst_port: packet.destination_port(),
            checksum: packet.checksum_field(),
            payload_len: saturating_u16(packet.payload.len()),
        }
    }

    #[test]
    fn deconstruct() {
        let packet = UdpPacket::new_checked(&BYTES).unwrap();
        assert_eq!(parse(&packet), repr());
        assert_eq!(packet.payload(), [0xaa, 0, 0, 0xff]);
        assert_eq!(packet.verify_checksum(&ENDS), Ok(()));
    }

    #[test]
    fn construct() {
        let mut buffer = [0xa5; HEADER_LEN];
        repr().encode_into(&mut buffer);
        assert_eq!(buffer, BYTES[..HEADER_LEN]);
        assert_eq!(compute_checksum(&ENDS, 48896, 53, &BYTES[8..]), 0x124d);
    }

    #[test]
    fn checksum_zero_means_none_and_is_sent_as_ones() {
        let mut bytes = BYTES;
        bytes[6..8].fill(0);
        assert_eq!(UdpPacket::new_checked(&bytes).unwrap().verify_checksum(&ENDS), Ok(()));
        // A payload that is the complement of the rest sums to zero.
        let rest = !compute_checksum(&ENDS, 1, 2, &[0, 0]);
        assert_eq!(compute_checksum(&ENDS, 1, 2, &(!rest).to_be_bytes()), 0xffff);
    }

    #[test]
    fn refusals() {
        for n in 0..HEADER_LEN {
            let kind = WireErrorKind::Truncated { need: 8, have: n as u16 };
            assert_eq!(UdpPacket::new_checked(&BYTES[..n]).unwrap_err(), err("header", 0, kind));
        }
        let mut bytes = BYTES;
        bytes[5] = 7;
        assert_eq!(UdpPacket::new_checked(&bytes).unwrap_err(), err("length", 4, WireErrorKind::Length(7)));
        bytes[5] = 13;
        let kind = WireErrorKind::Truncated { need: 13, have: 12 };
        assert_eq!(UdpPacket::new_checked(&bytes).unwrap_err(), err("length", 4, kind));
        let mut bytes = BYTES;
        bytes[9] ^= 1;
        let packet = UdpPacket::new_checked(&bytes).unwrap();
        assert_eq!(packet.verify_checksum(&ENDS), Err(err("checksum", 6, WireErrorKind::Checksum)));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(packet) = UdpPacket::new_checked(&bytes) {
                let _ = packet.verify_checksum(&ENDS);
                let mut again = [0xa5; HEADER_LEN];
                parse(&packet).encode_into(&mut again);
                prop_assert_eq!(&again[..], &bytes[..HEADER_LEN]);
            }
        }

        #[test]
        fn computed_checksums_check(source: u128, destination: u128, is_ipv6: bool, ports: (u16, u16),
                                    payload in proptest::collection::vec(any::<u8>(), 0..100), flip: usize) {
            let ends = match is_ipv6 {
                false => AddressPair::V4 { source: (source as u32).into(), destination: (destination as u32).into() },
                true => AddressPair::V6 { source: source.into(), destination: destination.into() },
            };
            let checksum = compute_checksum(&ends, ports.0, ports.1, &payload);
            let repr = UdpRepr { src_port: ports.0, dst_port: ports.1, checksum, payload_len: payload.len() as u16 };
            let mut header = [0xa5; HEADER_LEN];
            repr.encode_into(&mut header);
            let mut bytes = header.to_vec();
            bytes.extend(&payload);
            prop_assert_eq!(UdpPacket::new_checked(&bytes).unwrap().verify_checksum(&ends), Ok(()));
            if !payload.is_empty() {
                let bit = flip % (payload.len() * 8);
                bytes[HEADER_LEN + bit / 8] ^= 1 << (bit % 8);
                prop_assert!(UdpPacket::new_checked(&bytes).unwrap().verify_checksum(&ends).is_err());
            }
        }
    }
}
