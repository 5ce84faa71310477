//! UDP datagrams in IPv4 packets, parsed and built.
//!
//! Reports, NACKs and RoCEv2 frames are all such datagrams. Sockets carry payloads only, so a link adds these
//! 28 header bytes to what it receives, and strips them from what it sends.

use core::net::SocketAddrV4;

use super::{Error, Layer, Result, WireErrorKind, ipv4, udp};

/// Length of an IPv4 header without options and a UDP header.
pub const HEADER_LEN: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;
/// Length of the longest IPv4 packet.
pub const PACKET_MAX: usize = 65_535;
/// Offset of the UDP checksum in the packet.
const CHECKSUM: core::ops::Range<usize> = HEADER_LEN - 2..HEADER_LEN;

/// A UDP datagram that fills an IPv4 packet without options.
#[derive(Clone, Copy, Debug)]
pub struct UdpDatagram<'a> {
    /// The IPv4 header.
    pub ipv4: ipv4::Ipv4Packet<'a>,
    /// The UDP header and payload.
    pub udp: udp::UdpPacket<'a>,
}

impl<'a> UdpDatagram<'a> {
    /// Parses a packet from its IPv4 header. Bytes beyond the lengths in the headers are ignored.
    ///
    /// Checksums are not checked: the kernel has checked the IPv4 header of what a socket delivers, and
    /// [`UdpDatagram::verify_checksum`] checks the UDP checksum.
    ///
    /// # Errors
    /// A broken IPv4 header, options, a fragment, another protocol than UDP, or a broken UDP header.
    #[inline]
    pub fn parse_packet(packet: &'a [u8]) -> Result<UdpDatagram<'a>> {
        match UdpDatagram::parse_plain(packet) {
            Some(datagram) => Ok(datagram),
            None => UdpDatagram::parse_step_by_step(packet),
        }
    }

    /// The fast path: a valid datagram, or `None`.
    #[inline]
    fn parse_plain(packet: &'a [u8]) -> Option<UdpDatagram<'a>> {
        let ipv4 = ipv4::Ipv4Packet::parse_plain(packet)
            .filter(|ipv4| ipv4.protocol_number() == ipv4::PROTOCOL_UDP)?;
        Some(UdpDatagram { ipv4, udp: udp::UdpPacket::new_checked(ipv4.payload()).ok()? })
    }

    /// The same, with the error.
    #[cold]
    fn parse_step_by_step(packet: &'a [u8]) -> Result<UdpDatagram<'a>> {
        let ipv4 = ipv4::Ipv4Packet::new_checked(packet)?;
        ipv4.check_whole()?;
        if ipv4.protocol_number() != ipv4::PROTOCOL_UDP {
            let kind = WireErrorKind::Protocol(u16::from(ipv4.protocol_number()));
            return Err(Error::new(Layer::Ipv4, "protocol", 9, kind));
        }
        Ok(UdpDatagram { ipv4, udp: udp::UdpPacket::new_checked(ipv4.payload())? })
    }

    /// The same for a packet to send: the datagram must end where the packet ends.
    ///
    /// # Errors
    /// As [`UdpDatagram::parse_packet`], or bytes after the datagram.
    #[inline]
    pub fn parse_exact(packet: &'a [u8]) -> Result<UdpDatagram<'a>> {
        let datagram = UdpDatagram::parse_packet(packet)?;
        if udp::HEADER_LEN + datagram.payload().len() != datagram.ipv4.payload().len() {
            return Err(Error::new(
                Layer::Udp,
                "length",
                4,
                WireErrorKind::Length(datagram.udp.length_field()),
            ));
        }
        Ok(datagram)
    }

    /// Checks the UDP checksum as a receiver does (RFC 768): 0 means none.
    ///
    /// # Errors
    /// A wrong checksum.
    #[inline]
    pub fn verify_checksum(&self) -> Result<()> {
        self.udp.verify_checksum(self.ipv4.source_address(), self.ipv4.destination_address())
    }

    /// Its source.
    #[inline]
    pub fn source(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ipv4.source_address(), self.udp.source_port())
    }

    /// Its destination.
    #[inline]
    pub fn destination(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ipv4.destination_address(), self.udp.destination_port())
    }

    /// Its payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.udp.payload()
    }
}

/// The headers of a datagram with `payload_len` bytes, at most 65,507: no options, TOS 0, id 0, DF, TTL 64,
/// correct lengths and header checksum, UDP checksum 0 (none).
#[inline]
pub fn encode_header(
    source: SocketAddrV4,
    destination: SocketAddrV4,
    payload_len: usize,
) -> [u8; HEADER_LEN] {
    header_with(source, destination, payload_len, 0, 64)
}

/// The same with the given type of service and time to live.
#[inline]
pub fn header_with(
    source: SocketAddrV4,
    destination: SocketAddrV4,
    payload_len: usize,
    tos: u8,
    ttl: u8,
) -> [u8; HEADER_LEN] {
    debug_assert!(HEADER_LEN + payload_len <= PACKET_MAX, "an IPv4 packet has at most 65,535 bytes");
    let ip = ipv4::Ipv4Repr {
        src: *source.ip(),
        dst: *destination.ip(),
        protocol: ipv4::PROTOCOL_UDP,
        tos,
        ttl,
        id: 0,
        dont_fragment: true,
        payload_len: (udp::HEADER_LEN + payload_len) as u16,
    };
    let udp = udp::UdpRepr {
        src_port: source.port(),
        dst_port: destination.port(),
        checksum: 0,
        payload_len: payload_len as u16,
    };
    let mut header = [0; HEADER_LEN];
    let (ip_bytes, udp_bytes) = header.split_at_mut(ipv4::HEADER_LEN);
    if let (Ok(ip_bytes), Ok(udp_bytes)) = (ip_bytes.try_into(), udp_bytes.try_into()) {
        ip.encode_into(ip_bytes);
        udp.encode_into(udp_bytes);
    }
    header
}

/// Whether a receiver would accept the UDP checksum in `packet` (correct or absent); `false` if it is not a
/// datagram.
pub fn udp_checksum_ok(packet: &[u8]) -> bool {
    UdpDatagram::parse_packet(packet).is_ok_and(|datagram| datagram.verify_checksum().is_ok())
}

/// Fills in the UDP checksum of the datagram in `packet`, if there is one.
pub fn fill_udp_checksum(packet: &mut [u8]) {
    let Ok(datagram) = UdpDatagram::parse_exact(packet) else { return };
    let (from, to) = (datagram.source(), datagram.destination());
    let checksum = udp::compute_checksum(*from.ip(), *to.ip(), from.port(), to.port(), datagram.payload());
    packet[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ip: [u8; 4], port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(ip.into(), port)
    }

    fn whole(source: SocketAddrV4, destination: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
        [&encode_header(source, destination, payload.len()), payload].concat()
    }

    #[test]
    fn the_header_is_byte_exact() {
        let packet = whole(at([10, 9, 0, 2], 0xd353), at([10, 9, 0, 1], 4791), &[0xaa; 3]);
        // Header checksum by hand: 0x4500+0x001f+0x4000+0x4011+0x0a09+2+0x0a09+1 = 0xd945.
        let expected = [
            0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0x26, 0xba, 10, 9, 0, 2, 10, 9, 0, 1, 0xd3, 0x53, 0x12,
            0xb7, 0, 11, 0, 0, 0xaa, 0xaa, 0xaa,
        ];
        assert_eq!(packet, expected);
        let datagram = UdpDatagram::parse_exact(&packet).unwrap();
        assert_eq!(datagram.source(), at([10, 9, 0, 2], 0xd353));
        assert_eq!(datagram.destination(), at([10, 9, 0, 1], 4791));
        assert_eq!(datagram.payload(), [0xaa; 3]);
    }

    #[test]
    fn what_is_not_a_whole_udp_datagram_is_refused() {
        let packet = whole(at([1, 2, 3, 4], 1), at([5, 6, 7, 8], 2), &[0; 4]);
        for len in 0..packet.len() {
            assert!(UdpDatagram::parse_packet(&packet[..len]).is_err(), "{len}");
        }
        for (byte, value) in [(0, 0x46), (0, 0x65), (6, 0x20), (7, 1), (9, 6), (25, 13), (3, 33)] {
            let mut bad = packet.clone();
            bad[byte] = value;
            assert!(UdpDatagram::parse_exact(&bad).is_err(), "byte {byte}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_wrong_where_no_step_finds_anything(
            payload in proptest::collection::vec(any::<u8>(), 0..12),
            cut in 0usize..12,
            changes in proptest::collection::vec((0usize..28, any::<u8>()), 0..3),
        ) {
            let mut packet = whole(at([1, 2, 3, 4], 1), at([5, 6, 7, 8], 2), &payload);
            changes.into_iter().for_each(|(byte, value)| packet[byte] = value);
            let packet = &packet[..packet.len() - cut.min(payload.len())];
            let step_by_step = UdpDatagram::parse_step_by_step(packet).ok();
            let seen = |datagram: UdpDatagram<'_>| {
                let options = datagram.ipv4.options().len();
                (datagram.source(), datagram.destination(), datagram.payload().to_vec(), options)
            };
            prop_assert_eq!(UdpDatagram::parse_plain(packet).map(seen), step_by_step.map(seen));
        }
    }

    #[test]
    fn every_single_bit_flip_breaks_the_udp_checksum() {
        for len in [0, 1, 7, 32] {
            let mut packet = whole(at([127, 0, 0, 1], 40040), at([127, 0, 0, 2], 50000), &vec![0x5a; len]);
            fill_udp_checksum(&mut packet);
            assert!(udp_checksum_ok(&packet));
            // The length field (bytes 24 and 25) changes what is summed, so only the injector's check covers
            // it.
            for bit in (20 * 8..24 * 8).chain(26 * 8..packet.len() * 8) {
                packet[bit / 8] ^= 0x80 >> (bit % 8);
                assert!(!udp_checksum_ok(&packet), "bit {bit}");
                packet[bit / 8] ^= 0x80 >> (bit % 8);
            }
        }
    }
}
