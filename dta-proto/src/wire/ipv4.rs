//! IPv4 (RFC 791), as far as reports and RoCEv2 need it.
//!
//! The view accepts options and fragments, for looking at captures. The value does not: it is the 20-byte
//! header that DTA sends.

use core::net::Ipv4Addr;
use core::ops::Deref;

use super::error::saturating_u16;
use super::ip::AddressPair;
use super::{Error, Layer, Result, WireErrorKind, checksum};

/// Length of a header without options.
pub const HEADER_LEN: usize = 20;
/// The first byte of a header without options: version 4, five words of 4 bytes.
const PLAIN: u8 = 0x45;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Ipv4, field, offset, kind)
}

/// An unchecked view of a packet's first 20 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Header<'a>(&'a [u8; HEADER_LEN]);

impl<'a> Ipv4Header<'a> {
    /// The header at the start of these bytes; `None` if there are fewer than 20.
    #[inline]
    pub fn from_first_bytes(bytes: &'a [u8]) -> Option<Self> {
        bytes.first_chunk().map(Ipv4Header)
    }

    /// Version: 4.
    #[inline]
    pub fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Length of the header with options: 20 to 60 if valid, 0 to 60 in any case.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[0] & 0xf) * 4
    }

    /// Whether it is version 4 without options, like everything DTA sends.
    #[inline]
    pub fn is_v4_without_options(&self) -> bool {
        self.0[0] == PLAIN
    }

    /// Type of service: DSCP and ECN.
    #[inline]
    pub fn type_of_service(&self) -> u8 {
        self.0[1]
    }

    /// Length of the packet, header included.
    #[inline]
    pub fn total_length(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// Identification.
    #[inline]
    pub fn id(&self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// Whether this is a fragment: "more fragments" is set or the offset is not 0.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        u16::from_be_bytes([self.0[6], self.0[7]]) & 0x3fff != 0
    }

    /// Whether this is a fragment other than the first, which lacks the payload's header.
    #[inline]
    pub fn is_later_fragment(&self) -> bool {
        u16::from_be_bytes([self.0[6], self.0[7]]) & 0x1fff != 0
    }

    /// Protocol number.
    #[inline]
    pub fn protocol_number(&self) -> u8 {
        self.0[9]
    }

    /// Whether the checksum is right, assuming no options.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        checksum::fold_checksum(checksum::add(0, self.0)) == 0
    }

    /// Source address.
    #[inline]
    pub fn source_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[12], self.0[13], self.0[14], self.0[15])
    }

    /// Destination address.
    #[inline]
    pub fn destination_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[16], self.0[17], self.0[18], self.0[19])
    }

    /// Source and destination.
    #[inline]
    pub fn addresses(&self) -> AddressPair {
        AddressPair::V4 { source: self.source_address(), destination: self.destination_address() }
    }
}

/// A checked view of a packet; the fields are in its [`Ipv4Header`].
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Packet<'a> {
    header: Ipv4Header<'a>,
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Deref for Ipv4Packet<'a> {
    type Target = Ipv4Header<'a>;

    #[inline]
    fn deref(&self) -> &Ipv4Header<'a> {
        &self.header
    }
}

impl<'a> Ipv4Packet<'a> {
    /// Checks version and lengths. Bytes beyond the total length (Ethernet padding) are ignored. The header
    /// checksum is not checked here: see [`Ipv4Packet::checksum_ok`].
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self> {
        let have = saturating_u16(bytes.len());
        let Some(header) = Ipv4Header::from_first_bytes(bytes) else {
            return Err(err("header", 0, WireErrorKind::Truncated { need: HEADER_LEN as u16, have }));
        };
        if header.version() != 4 {
            return Err(err("version", 0, WireErrorKind::UnknownVersion(header.version())));
        }
        let header_len = header.header_len();
        if header_len < HEADER_LEN {
            return Err(err("ihl", 0, WireErrorKind::Length(header_len as u16)));
        }
        let total = header.total_length();
        if usize::from(total) < header_len {
            return Err(err("total_length", 2, WireErrorKind::Length(total)));
        }
        let Some(rest) = bytes.get(HEADER_LEN..usize::from(total)) else {
            return Err(err("total_length", 2, WireErrorKind::Truncated { need: total, have }));
        };
        // Cannot fail: header_len is at most total.
        match rest.split_at_checked(header_len - HEADER_LEN) {
            Some((options, payload)) => Ok(Ipv4Packet { header, options, payload }),
            None => Err(err("ihl", 0, WireErrorKind::Length(header_len as u16))),
        }
    }

    /// As [`Ipv4Packet::new_checked`] and [`Ipv4Packet::check_whole`], without the error.
    #[inline]
    pub(super) fn parse_plain(bytes: &'a [u8]) -> Option<Self> {
        let header = Ipv4Header::from_first_bytes(bytes)
            .filter(|header| header.is_v4_without_options() && !header.is_fragment())?;
        let payload = bytes.get(HEADER_LEN..usize::from(header.total_length()))?;
        Some(Ipv4Packet { header, options: &[], payload })
    }

    /// Options, empty in most packets.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Whether the header checksum is right.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        checksum::fold_checksum(checksum::add(checksum::add(0, self.header.0), self.options)) == 0
    }

    /// Rejects options, fragments and a wrong header checksum.
    #[inline]
    pub fn check_plain(&self) -> Result<()> {
        self.check_whole()?;
        if !self.checksum_ok() {
            return Err(err("header_checksum", 10, WireErrorKind::Checksum));
        }
        Ok(())
    }

    /// Rejects options and fragments.
    #[inline]
    pub fn check_whole(&self) -> Result<()> {
        if !self.options.is_empty() {
            return Err(err("options", HEADER_LEN as u16, WireErrorKind::Options));
        }
        if self.is_fragment() {
            return Err(err("fragment", 6, WireErrorKind::Fragment));
        }
        Ok(())
    }
}

/// The header as a value: no options, not a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Repr {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub id: u16,
    /// "Don't fragment".
    pub dont_fragment: bool,
    /// Bytes of payload, at most 65,515.
    pub payload_len: u16,
}

impl Ipv4Repr {
    /// Writes the header with its checksum. A payload length above 65,515 is clamped.
    pub fn encode_into(&self, buffer: &mut [u8; HEADER_LEN]) {
        let total = self.payload_len.min(u16::MAX - HEADER_LEN as u16) + HEADER_LEN as u16;
        buffer[0] = PLAIN;
        buffer[1] = self.tos;
        buffer[2..4].copy_from_slice(&total.to_be_bytes());
        buffer[4..6].copy_from_slice(&self.id.to_be_bytes());
        buffer[6] = if self.dont_fragment { 0x40 } else { 0 };
        buffer[7] = 0;
        buffer[8] = self.ttl;
        buffer[9] = self.protocol;
        buffer[10..12].fill(0);
        buffer[12..16].copy_from_slice(&self.src.octets());
        buffer[16..20].copy_from_slice(&self.dst.octets());
        let sum = checksum::fold_checksum(checksum::add(0, buffer));
        buffer[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Header of the ACK in the RoCE notes, with 4 bytes of payload.
    const BYTES: [u8; 24] = [
        0x45, 0x00, 0x00, 0x18, 0x16, 0xd6, 0x40, 0x00, 0x40, 0x11, 0x0f, 0xeb, 0x0a, 0x09, 0x00, 0x02, 0x0a,
        0x09, 0x00, 0x01, 1, 2, 3, 4,
    ];

    fn repr() -> Ipv4Repr {
        Ipv4Repr {
            src: Ipv4Addr::new(10, 9, 0, 2),
            dst: Ipv4Addr::new(10, 9, 0, 1),
            protocol: PROTOCOL_UDP,
            tos: 0,
            ttl: 64,
            id: 0x16d6,
            dont_fragment: true,
            payload_len: 4,
        }
    }

    fn parse(bytes: &[u8]) -> Result<Ipv4Repr> {
        let packet = Ipv4Packet::new_checked(bytes)?;
        packet.check_plain()?;
        Ok(Ipv4Repr {
            src: packet.source_address(),
            dst: packet.destination_address(),
            protocol: packet.protocol_number(),
            tos: packet.type_of_service(),
            ttl: bytes[8],
            id: packet.id(),
            dont_fragment: bytes[6] & 0x40 != 0,
            payload_len: saturating_u16(packet.payload.len()),
        })
    }

    fn with(at: usize, byte: u8) -> [u8; 24] {
        let mut bytes = BYTES;
        bytes[at] = byte;
        bytes
    }

    #[test]
    fn deconstruct() {
        assert_eq!(parse(&BYTES).unwrap(), repr());
        assert_eq!(Ipv4Packet::new_checked(&BYTES).unwrap().payload(), [1, 2, 3, 4]);
    }

    #[test]
    fn construct() {
        let mut buffer = [0xa5; HEADER_LEN];
        repr().encode_into(&mut buffer);
        assert_eq!(buffer, BYTES[..HEADER_LEN]);
    }

    #[test]
    fn padding_is_cut() {
        let mut padded = BYTES.to_vec();
        padded.extend([0; 22]);
        assert_eq!(Ipv4Packet::new_checked(&padded).unwrap().payload(), [1, 2, 3, 4]);
    }

    #[test]
    fn refusals() {
        assert_eq!(parse(&with(0, 0x65)).unwrap_err(), err("version", 0, WireErrorKind::UnknownVersion(6)));
        assert_eq!(parse(&with(0, 0x44)).unwrap_err(), err("ihl", 0, WireErrorKind::Length(16)));
        assert_eq!(parse(&with(0, 0x46)).unwrap_err(), err("options", 20, WireErrorKind::Options));
        assert_eq!(parse(&with(3, 19)).unwrap_err(), err("total_length", 2, WireErrorKind::Length(19)));
        assert_eq!(
            parse(&with(3, 25)).unwrap_err(),
            err("total_length", 2, WireErrorKind::Truncated { need: 25, have: 24 })
        );
        assert_eq!(parse(&with(6, 0x60)).unwrap_err(), err("fragment", 6, WireErrorKind::Fragment));
        assert_eq!(parse(&with(7, 1)).unwrap_err(), err("fragment", 6, WireErrorKind::Fragment));
        assert_eq!(parse(&with(10, 0x0e)).unwrap_err(), err("header_checksum", 10, WireErrorKind::Checksum));
        for n in 0..HEADER_LEN {
            let kind = WireErrorKind::Truncated { need: 20, have: n as u16 };
            assert_eq!(parse(&BYTES[..n]).unwrap_err(), err("header", 0, kind));
        }
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn mutated_bytes(at in 0usize..24, byte: u8, len in 0usize..=24) {
            let bytes = with(at, byte);
            if let Ok(repr) = parse(&bytes[..len]) {
                let mut again = [0xa5; HEADER_LEN];
                repr.encode_into(&mut again);
                // Only the reserved flag bit is not part of the value.
                if bytes[6] & 0x80 == 0 {
                    prop_assert_eq!(&again[..], &bytes[..HEADER_LEN]);
                }
            }
        }
    }
}
