//! The 28 bytes of IPv4 and UDP header that a UDP-socket link puts in front of a payload and takes off again.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of an IPv4 header without options and a UDP header.
pub const LEN: usize = 28;

/// Bytes of an IPv4 header without options (RFC 791).
pub(crate) const IPV4_LEN: usize = 20;

const UDP_PROTOCOL: u8 = 17;

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

/// Writes the header of a datagram into the first 28 bytes of `packet`: version 4, no options, TOS 0, id 0,
/// DF, TTL 64, right lengths and header checksum, UDP checksum 0 (none).
///
/// # Panics
/// When `packet` is shorter than 28 bytes or the payload longer than IPv4 can carry (65,507 bytes).
pub fn write(packet: &mut [u8], source: SocketAddrV4, destination: SocketAddrV4, payload_len: usize) {
    let total = u16::try_from(LEN + payload_len).expect("an IPv4 packet has at most 65,535 bytes");
    let header = &mut packet[..LEN];
    header[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, UDP_PROTOCOL, 0, 0]);
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[12..16].copy_from_slice(&source.ip().octets());
    header[16..20].copy_from_slice(&destination.ip().octets());
    header[20..22].copy_from_slice(&source.port().to_be_bytes());
    header[22..24].copy_from_slice(&destination.port().to_be_bytes());
    header[24..26].copy_from_slice(&(total - IPV4_LEN as u16).to_be_bytes());
    header[26..28].fill(0);
    let checksum = !fold(sum(&header[..IPV4_LEN]));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// The datagram inside an IPv4 packet; `None` when the packet is not IPv4 without options carrying one whole
/// UDP datagram. Checksums are not looked at.
pub fn read(packet: &[u8]) -> Option<Datagram<'_>> {
    let header: &[u8; LEN] = packet.first_chunk()?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let udp = usize::from(u16::from_be_bytes([header[24], header[25]]));
    let fragmented = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if header[0] != 0x45 || header[9] != UDP_PROTOCOL || fragmented || total != IPV4_LEN + udp {
        return None;
    }
    let payload = packet.get(LEN..total)?;
    let address = |at: usize, port: usize| {
        SocketAddrV4::new(
            Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]),
            u16::from_be_bytes([header[port], header[port + 1]]),
        )
    };
    Some(Datagram { source: address(12, 20), destination: address(16, 22), payload })
}

/// Whether the UDP checksum of the datagram in `packet` (IPv4 without options) is right or absent (0), as a
/// receiver sees it (RFC 768); `false` too when the UDP length does not fit the packet.
pub fn udp_checksum_ok(packet: &[u8]) -> bool {
    let Some(datagram) = udp_bytes(packet) else { return false };
    datagram[6..8] == [0, 0] || fold(pseudo_header(packet, datagram) + sum(datagram)) == 0xffff
}

/// Fills in the UDP checksum of the datagram in `packet` (IPv4 without options). Does nothing when the UDP
/// length does not fit the packet.
pub fn fill_udp_checksum(packet: &mut [u8]) {
    let Some(datagram) = udp_bytes(packet) else { return };
    let field = u64::from(u16::from_be_bytes([datagram[6], datagram[7]]));
    let without_field = pseudo_header(packet, datagram) + sum(datagram) - field;
    // RFC 768: a checksum that comes out as 0 is sent as all ones, for 0 means none.
    let checksum = match !fold(without_field) {
        0 => 0xffff,
        other => other,
    };
    packet[26..28].copy_from_slice(&checksum.to_be_bytes());
}

/// UDP header and payload, cut to the UDP length.
fn udp_bytes(packet: &[u8]) -> Option<&[u8]> {
    let header: &[u8; LEN] = packet.first_chunk()?;
    let len = usize::from(u16::from_be_bytes([header[24], header[25]]));
    if len < LEN - IPV4_LEN {
        return None;
    }
    packet.get(IPV4_LEN..IPV4_LEN + len)
}

fn pseudo_header(packet: &[u8], datagram: &[u8]) -> u64 {
    sum(&packet[12..20]) + u64::from(UDP_PROTOCOL) + datagram.len() as u64
}

/// The plain sum of the big-endian 16-bit words (RFC 1071), an odd last byte padded with 0.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let mut total: u64 = words.by_ref().map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    if let [last] = words.remainder() {
        total += u64::from(*last) << 8;
    }
    total
}

/// Folds a sum of words into one word with end-around carry (RFC 1071).
fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: [u8; 4], port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(ip.into(), port)
    }

    #[test]
    fn the_header_is_byte_exact() {
        let mut packet = [0xaa; LEN + 3];
        write(&mut packet, at([10, 9, 0, 2], 0xd353), at([10, 9, 0, 1], 4791), 3);
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
        let mut packet = [0; LEN + 4];
        write(&mut packet, at([1, 2, 3, 4], 1), at([5, 6, 7, 8], 2), 4);
        for len in 0..packet.len() {
            assert!(read(&packet[..len]).is_none(), "{len}");
        }
        for (byte, value) in [(0, 0x46), (0, 0x65), (6, 0x20), (7, 1), (9, 6), (25, 13), (3, 33)] {
            let mut bad = packet;
            bad[byte] = value;
            assert!(read(&bad).is_none(), "byte {byte}");
        }
    }

    #[test]
    fn every_single_bit_flip_breaks_the_udp_checksum() {
        for len in [0, 1, 7, 32] {
            let mut packet = vec![0x5a; LEN + len];
            write(&mut packet, at([127, 0, 0, 1], 40040), at([127, 0, 0, 2], 50000), len);
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
