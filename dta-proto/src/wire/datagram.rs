//! UDP datagrams in IPv4 packets, parsed and built.
//!
//! Reports, NACKs and RoCEv2 frames are all such datagrams. Sockets carry payloads only, so a link adds these 28 header bytes
//! to what it receives, and strips them from what it sends. Listeners for INT and flows may receive IPv6, with 48 header
//! bytes.

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::{AddressPair, Error, Layer, Result, WireErrorKind, ipv4, ipv6, udp};

/// Length of an IPv4 header without options and a UDP header.
pub const HEADER_LEN: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;
/// Length of an IPv6 header without extensions and a UDP header.
pub const IPV6_HEADER_LEN: usize = ipv6::HEADER_LEN + udp::HEADER_LEN;
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

    /// The slow path, which returns the error.
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

    /// As [`UdpDatagram::parse_packet`], for a packet to send: the datagram must end where the packet ends.
    ///
    /// # Errors
    /// As for [`UdpDatagram::parse_packet`], and bytes after the datagram.
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
        self.udp.verify_checksum(&self.ipv4.addresses())
    }

    /// Whether the UDP checksum was left incomplete, as [`udp::UdpPacket::is_checksum_pending`] says.
    #[inline]
    pub fn is_checksum_pending(&self) -> bool {
        self.udp.is_checksum_pending(&self.ipv4.addresses())
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

/// As [`encode_header`], with the given type of service and time to live.
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

/// Writes the headers of a datagram with `payload_len` bytes between `ports`, source first: as [`header_with`], or their IPv6
/// equivalents with flow label 0. `out` must have exactly their length, [`AddressPair::datagram_header_len`]; the whole packet
/// must not exceed [`PACKET_MAX`].
pub fn write_header(
    addresses: &AddressPair,
    ports: (u16, u16),
    payload_len: usize,
    tos: u8,
    ttl: u8,
    out: &mut [u8],
) {
    match *addresses {
        AddressPair::V4 { source, destination } => {
            let (source, destination) =
                (SocketAddrV4::new(source, ports.0), SocketAddrV4::new(destination, ports.1));
            out.copy_from_slice(&header_with(source, destination, payload_len, tos, ttl));
        }
        AddressPair::V6 { source, destination } => {
            let ip = ipv6::Ipv6Repr {
                src: source,
                dst: destination,
                next_header: ipv4::PROTOCOL_UDP,
                traffic_class: tos,
                hop_limit: ttl,
                payload_len: (udp::HEADER_LEN + payload_len) as u16,
            };
            let udp = udp::UdpRepr {
                src_port: ports.0,
                dst_port: ports.1,
                checksum: 0,
                payload_len: payload_len as u16,
            };
            let (ip_bytes, udp_bytes) = out.split_at_mut(ipv6::HEADER_LEN);
            if let (Ok(ip_bytes), Ok(udp_bytes)) = (ip_bytes.try_into(), udp_bytes.try_into()) {
                ip.encode_into(ip_bytes);
                udp.encode_into(udp_bytes);
            }
        }
    }
}

/// The IPv6 headers of a datagram with `payload_len` bytes, for a payload from a socket: hop limit 64, no UDP checksum.
pub fn encode_ipv6_header(
    source: SocketAddrV6,
    destination: SocketAddrV6,
    payload_len: usize,
) -> [u8; IPV6_HEADER_LEN] {
    let addresses = AddressPair::V6 { source: *source.ip(), destination: *destination.ip() };
    let mut header = [0; IPV6_HEADER_LEN];
    write_header(&addresses, (source.port(), destination.port()), payload_len, 0, 64, &mut header);
    header
}

/// Source and payload of a datagram that fills an IPv4 or IPv6 packet, with the headers of [`encode_header`] or
/// [`encode_ipv6_header`]. An IPv4-mapped address comes out as IPv4.
#[inline]
pub fn source_and_payload(packet: &[u8]) -> Option<(SocketAddr, &[u8])> {
    if let Some((header, payload)) = packet.split_first_chunk::<IPV6_HEADER_LEN>()
        && (header[0] >> 4, header[6]) == (6, ipv4::PROTOCOL_UDP)
    {
        let ip = Ipv6Addr::from(*header[8..24].first_chunk::<16>()?);
        let port = u16::from_be_bytes([header[40], header[41]]);
        return Some((SocketAddr::new(IpAddr::V6(ip).to_canonical(), port), payload));
    }
    let datagram = UdpDatagram::parse_exact(packet).ok()?;
    Some((datagram.source().into(), datagram.payload()))
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
    let checksum =
        udp::compute_checksum(&datagram.ipv4.addresses(), from.port(), to.port(), datagram.payload());
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
    fn source_and_payload_are_read_in_both_families() {
        let v6 = |text: &str| text.parse::<SocketAddrV6>().unwrap();
        for (source, shown) in [
            ("[2001:db8::1]:9995", "[2001:db8::1]:9995"),
            ("[::ffff:192.0.2.1]:1", "192.0.2.1:1"),
            ("[::1]:65535", "[::1]:65535"),
        ] {
            let packet = [&encode_ipv6_header(v6(source), v6("[::1]:2055"), 3)[..], &[1, 2, 3]].concat();
            assert_eq!(source_and_payload(&packet), Some((shown.parse().unwrap(), &[1, 2, 3][..])));
            // RFC 8200: version, payload length, next header, hop limit; RFC 768: ports, length.
            assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 11, 17, 64]);
            assert_eq!(packet[42..48], [0x08, 0x07, 0, 11, 0, 0]);
            assert_eq!(source_and_payload(&packet[..47]), None);
        }
        let packet = whole(at([10, 9, 0, 2], 7), at([10, 9, 0, 1], 4791), &[5; 40]);
        assert_eq!(source_and_payload(&packet), Some(("10.9.0.2:7".parse().unwrap(), &[5; 40][..])));
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
            // A change of the length field (bytes 24 and 25) changes what is summed; only the injector's check covers it.
            for bit in (20 * 8..24 * 8).chain(26 * 8..packet.len() * 8) {
                packet[bit / 8] ^= 0x80 >> (bit % 8);
                assert!(!udp_checksum_ok(&packet), "bit {bit}");
                packet[bit / 8] ^= 0x80 >> (bit % 8);
            }
        }
    }
}
