//! The invariant CRC of RoCEv2.
//!
//! CRC-32 (zlib's) over eight 0xff bytes, then the packet from its IP header to the end of the payload, with everything
//! that may change on the way set to ones: TOS, TTL and header checksum of IPv4, or traffic class, flow label and hop limit
//! of IPv6; the UDP checksum; byte 4 of the BTH. It follows the packet in little-endian order. (Annex A17; the eight bytes
//! stand for an InfiniBand local route header.)

use crate::crc::{Mask, crc32, crc32_update, crc32_update_masked};

/// Length of the iCRC.
pub const ICRC_LEN: usize = 4;

/// CRC-32 of eight 0xff bytes, the start of every iCRC.
pub(crate) const SEED: u32 = 0x2144_df1c;

/// The bytes that the iCRC takes as ones in a packet without IPv4 options: TOS, TTL, header checksum, UDP
/// checksum, BTH byte 4.
pub(crate) static MASK: Mask = Mask::with_ones_at(&[1, 8, 10, 11, 26, 27, 32]);

/// The same for an IPv6 packet: traffic class and flow label, hop limit, UDP checksum, BTH byte 4.
pub(crate) static IPV6_MASK: Mask = Mask::with_ones_at(&[1, 2, 3, 7, 46, 47, 52]).with_low_nibble_at(0);

/// The iCRC of a packet: from its IP header to the end of its payload, excluding the iCRC itself.
///
/// Works on any bytes; if they are too short for the headers, only what is there is masked.
#[inline]
pub fn compute_icrc(packet: &[u8]) -> u32 {
    match packet.first() {
        Some(0x45) => crc32_update_masked(SEED, packet, &MASK),
        Some(0x60..=0x6f) => crc32_update_masked(SEED, packet, &IPV6_MASK),
        _ => compute_irregular_icrc(packet),
    }
}

/// The same for packets with IPv4 options, or of no known version.
#[cold]
fn compute_irregular_icrc(packet: &[u8]) -> u32 {
    let ip = usize::from(packet.first().copied().unwrap_or(0) & 0xf) * 4;
    let mut head = [0; 60 + 8 + 12];
    let len = packet.len().min(head.len());
    let (start, rest) = packet.split_at(len);
    head[..len].copy_from_slice(start);
    for at in [1, 8, 10, 11, ip + 6, ip + 7, ip + 12] {
        if let Some(byte) = head[..len].get_mut(at) {
            *byte = 0xff;
        }
    }
    crc32_update(crc32_update(crc32(&[0xff; 8]), &head[..len]), rest)
}

/// Whether the last four bytes of a packet are its iCRC. The packet starts at its IP header and has exactly
/// its total length.
#[inline]
pub fn has_valid_icrc(packet: &[u8]) -> bool {
    match packet.split_last_chunk() {
        Some((covered, last)) => compute_icrc(covered) == u32::from_le_bytes(*last),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An ACK that the kernel's soft-RoCE sent, from the IPv4 header to the iCRC.
    const RXE_ACK: [u8; 48] = [
        0x45, 0x00, 0x00, 0x30, 0x16, 0xd6, 0x40, 0x00, 0x40, 0x11, 0x0f, 0xd3, 0x0a, 0x09, 0x00, 0x02, 0x0a,
        0x09, 0x00, 0x01, 0xd3, 0x53, 0x12, 0xb7, 0x00, 0x1c, 0x00, 0x00, 0x11, 0x00, 0xff, 0xff, 0x00, 0x00,
        0x01, 0x23, 0x00, 0x00, 0x00, 0x64, 0x1f, 0x00, 0x00, 0x01, 0x6f, 0xa0, 0x83, 0xc5,
    ];

    #[test]
    fn seed() {
        assert_eq!(SEED, crc32(&[0xff; 8]));
    }

    #[test]
    fn ack_of_the_kernel() {
        assert!(has_valid_icrc(&RXE_ACK));
        assert_eq!(compute_icrc(&RXE_ACK[..44]).to_le_bytes(), [0x6f, 0xa0, 0x83, 0xc5]);
    }

    #[test]
    fn a_flip_anywhere_shows_but_where_it_is_masked() {
        for bit in 0..RXE_ACK.len() * 8 {
            let mut bytes = RXE_ACK;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let masked = [1, 8, 10, 11, 26, 27, 32].contains(&(bit / 8));
            // Another header length moves the fields, so it is another packet with another iCRC.
            assert_eq!(has_valid_icrc(&bytes), masked, "bit {bit}");
        }
    }

    #[test]
    fn options_move_the_masked_fields() {
        let mut bytes = RXE_ACK[..20].to_vec();
        bytes[0] = 0x46;
        bytes.extend([1, 1, 1, 1]);
        bytes.extend(&RXE_ACK[20..44]);
        let before = compute_icrc(&bytes);
        for at in [1, 8, 10, 11, 30, 31, 36] {
            bytes[at] ^= 0xff;
        }
        assert_eq!(compute_icrc(&bytes), before);
        bytes[26] ^= 1;
        assert_ne!(compute_icrc(&bytes), before);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = has_valid_icrc(&bytes);
            let mut packet = bytes.clone();
            packet.extend(compute_icrc(&bytes).to_le_bytes());
            prop_assert!(has_valid_icrc(&packet));
        }

        #[test]
        fn both_ways_agree(mut bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            bytes[0] = 0x45;
            prop_assert_eq!(compute_icrc(&bytes), compute_irregular_icrc(&bytes));
        }
    }
}
