//! The 28 bytes of IPv4 and UDP header that a UDP-socket link puts in front of a payload and takes off again.

use std::net::SocketAddrV4;

use dta_proto::wire::{ipv4, udp};

/// Bytes of an IPv4 header without options and a UDP header.
pub const LEN: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;

/// Bytes of the longest IPv4 packet.
pub(crate) const PACKET_MAX: usize = 65_535;

/// A UDP datagram inside an IPv4 packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Where it comes from.
    pub source: SocketAddrV4,
    /// Where it goes.
    pub destination: SocketAddrV4,
    /// What it carries.
    pub payload: &'a [u8],
}

/// The header of a datagram of `payload_len` bytes, 65,507 at most: version 4, no options, TOS 0, id 0, DF,
/// TTL 64, right lengths and header checksum, UDP checksum 0 (none).
pub fn of(source: SocketAddrV4, destination: SocketAddrV4, payload_len: usize) -> [u8; LEN] {
    debug_assert!(LEN + payload_len <= PACKET_MAX, "an IPv4 packet has at most 65,535 bytes");
    let ip = ipv4::Repr {
        src: *source.ip(),
        dst: *destination.ip(),
        protocol: ipv4::PROTOCOL_UDP,
        tos: 0,
        ttl: 64,
        id: 0,
        dont_fragment: true,
        payload_len: (udp::HEADER_LEN + payload_len) as u16,
    };
    let udp = udp::Repr {
        src_port: source.port(),
        dst_port: destination.port(),
        checksum: 0,
        payload_len: payload_len as u16,
    };
    let mut header = [0; LEN];
    let (ip_bytes, udp_bytes) = header.split_at_mut(ipv4::HEADER_LEN);
    if let (Ok(ip_bytes), Ok(udp_bytes)) = (ip_bytes.try_into(), udp_bytes.try_into()) {
        ip.emit(ip_bytes);
        udp.emit(udp_bytes);
    }
    header
}

/// The datagram inside an IPv4 packet; `None` when the packet is not IPv4 without options carrying one whole
/// UDP datagram. Checksums are not looked at, bytes after the packet's total length neither.
pub fn read(packet: &[u8]) -> Option<Datagram<'_>> {
    let (ip, udp) = parse(packet)?;
    let whole = udp::HEADER_LEN + udp.payload().len() == ip.payload().len();
    whole.then(|| Datagram {
        source: SocketAddrV4::new(ip.src(), udp.src_port()),
        destination: SocketAddrV4::new(ip.dst(), udp.dst_port()),
        payload: udp.payload(),
    })
}

/// Whether the UDP checksum of the datagram in `packet` is right or absent (0), as a receiver sees it (RFC 768);
/// `false` too when there is no datagram or its length field exceeds the packet.
pub fn udp_checksum_ok(packet: &[u8]) -> bool {
    parse(packet).is_some_and(|(ip, udp)| udp.check(ip.src(), ip.dst()).is_ok())
}

/// Fills in the UDP checksum of the datagram in `packet`, if there is one.
pub fn fill_udp_checksum(packet: &mut [u8]) {
    let Some(Datagram { source, destination, payload }) = read(packet) else { return };
    let checksum =
        udp::compute_checksum(*source.ip(), *destination.ip(), source.port(), destination.port(), payload);
    packet[LEN - 2..LEN].copy_from_slice(&checksum.to_be_bytes());
}

fn parse(packet: &[u8]) -> Option<(ipv4::Packet<'_>, udp::Packet<'_>)> {
    let ip = ipv4::Packet::new_checked(packet).ok()?;
    let plain = ip.options().is_empty() && !ip.is_fragment() && ip.protocol() == ipv4::PROTOCOL_UDP;
    let udp = udp::Packet::new_checked(ip.payload()).ok().filter(|_| plain)?;
    Some((ip, udp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: [u8; 4], port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(ip.into(), port)
    }

    fn whole(source: SocketAddrV4, destination: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
        [&of(source, destination, payload.len()), payload].concat()
    }

    #[test]
    fn the_header_is_byte_exact() {
        let packet = whole(at([10, 9, 0, 2], 0xd353), at([10, 9, 0, 1], 4791), &[0xaa; 3]);
        // The header checksum was worked out by hand: 0x4500+0x001f+0x4000+0x4011+0x0a09+2+0x0a09+1 = 0xd945.
        let expected = [
            0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0x26, 0xba, 10, 9, 0, 2, 10, 9, 0, 1, 0xd3, 0x53, 0x12,
            0xb7, 0, 11, 0, 0, 0xaa, 0xaa, 0xaa,
        ];
        assert_eq!(packet, expected);
        let datagram = read(&packet).unwrap();
        assert_eq!(datagram.source, at([10, 9, 0, 2], 0xd353));
        assert_eq!(datagram.destination, at([10, 9, 0, 1], 4791));
        assert_eq!(datagram.payload, [0xaa; 3]);
    }

    #[test]
    fn what_is_not_a_whole_udp_datagram_is_none() {
        let packet = whole(at([1, 2, 3, 4], 1), at([5, 6, 7, 8], 2), &[0; 4]);
        for len in 0..packet.len() {
            assert!(read(&packet[..len]).is_none(), "{len}");
        }
        for (byte, value) in [(0, 0x46), (0, 0x65), (6, 0x20), (7, 1), (9, 6), (25, 13), (3, 33)] {
            let mut bad = packet.clone();
            bad[byte] = value;
            assert!(read(&bad).is_none(), "byte {byte}");
        }
    }

    #[test]
    fn every_single_bit_flip_breaks_the_udp_checksum() {
        for len in [0, 1, 7, 32] {
            let mut packet = whole(at([127, 0, 0, 1], 40040), at([127, 0, 0, 2], 50000), &vec![0x5a; len]);
            fill_udp_checksum(&mut packet);
            assert!(udp_checksum_ok(&packet));
            // The length field (bytes 24 and 25) changes what is summed, so it is left to the injector's check.
            for bit in (20 * 8..24 * 8).chain(26 * 8..packet.len() * 8) {
                packet[bit / 8] ^= 0x80 >> (bit % 8);
                assert!(!udp_checksum_ok(&packet), "bit {bit}");
                packet[bit / 8] ^= 0x80 >> (bit % 8);
            }
        }
    }
}
