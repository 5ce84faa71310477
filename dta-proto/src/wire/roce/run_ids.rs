//! The iCRC of packets that are numbered by their place in a run.
//!
//! A sender's kernel cuts a message into packets and gives them the IPv4 ids 0, 1, 2, … (`dta_link::udp`). A receiving
//! socket does not show the id, and messages may be cut and joined on the way, so a packet's place in a message does
//! not prove its id. A CRC is linear: another id changes the iCRC by the CRC of the change alone, which depends only
//! on how many bytes follow. So a packet's iCRC can be converted to another id without looking at the packet, and the
//! difference between a packet's iCRC and the computed one shows whether it is right for another id. See
//! `docs/decisions/crc.md`.

use super::icrc::{ICRC_LEN, compute_icrc};
use crate::wire::datagram;

/// Most packets of a run, which have the ids 0 to 63.
pub const RUN_IDS: usize = 64;

/// Longest UDP payload, from BTH to iCRC, that may be numbered.
const LONGEST: usize = 256;

/// Place of the id in the packet.
const ID: usize = 4;

/// Whether packets with this UDP payload, BTH to iCRC, may be numbered.
#[inline]
pub fn may_be_numbered(payload_len: usize) -> bool {
    effect_for_length(payload_len).is_some()
}

/// Turns the iCRC at the end of a UDP payload from that of a packet with id 0 into that of the same packet with
/// id `id`, below [`RUN_IDS`]. Does nothing if the payload [may not be numbered](may_be_numbered).
#[inline]
pub fn number_icrc(payload: &mut [u8], id: usize) {
    let Some(effect) = effect_for_length(payload.len()) else { return };
    if let Some(last) = payload.last_chunk_mut() {
        *last = (u32::from_le_bytes(*last) ^ effect.by_id[id % RUN_IDS]).to_le_bytes();
    }
}

/// As [`super::has_valid_icrc`] for a packet whose id is not known: its iCRC may also be right for any id that differs
/// from the one in its header only in the lower six bits.
#[inline]
pub fn icrc_ok_for_any_id(packet: &[u8]) -> bool {
    difference(packet).is_some_and(|difference| difference == 0 || is_of_another_id(packet.len(), difference))
}

/// If the iCRC of a packet whose id is not known is right for another id, replaces it by the one for the id in its
/// header. Any of the 65,536 ids is possible, because RDMA devices count the ids of their packets.
pub fn settle_icrc(packet: &mut [u8]) {
    let Some(difference) = difference(packet) else { return };
    // Taken back to the start of the id, the register holds what differs there: two bytes, if only the id does.
    let behind = packet.len().saturating_sub(ID + ICRC_LEN);
    let before = (0..behind).fold(difference, |register, _| byte_before(register));
    if difference != 0
        && before >> u16::BITS == 0
        && let Some(last) = packet.last_chunk_mut()
    {
        *last = (u32::from_le_bytes(*last) ^ difference).to_le_bytes();
    }
}

/// The CRC-32 register a zero byte earlier.
#[inline]
fn byte_before(register: u32) -> u32 {
    register << 8 ^ BEFORE[(register >> 24) as usize]
}

/// [`byte_before`] for registers whose other bytes are zero, by their upper byte.
static BEFORE: [u32; 256] = {
    let mut table = [0; 256];
    let mut upper = 0;
    while upper < table.len() {
        let (mut register, mut bit) = ((upper as u32) << 24, 0);
        while bit < 8 {
            // The upper bit shows whether the polynomial was added: it was zero before.
            register = match register >> 31 {
                0 => register << 1,
                _ => (register ^ REVERSED) << 1 | 1,
            };
            bit += 1;
        }
        table[upper] = register;
        upper += 1;
    }
    table
};

/// The polynomial of CRC-32, its lowest power in the highest bit.
const REVERSED: u32 = 0xedb8_8320;

/// A packet's iCRC XOR the right one; `None` if the packet is too short to have one.
#[inline]
fn difference(packet: &[u8]) -> Option<u32> {
    let (covered, last) = packet.split_last_chunk::<ICRC_LEN>()?;
    Some(compute_icrc(covered) ^ u32::from_le_bytes(*last))
}

#[inline]
fn is_of_another_id(packet_len: usize, difference: u32) -> bool {
    let payload_len = packet_len.checked_sub(datagram::HEADER_LEN);
    payload_len.and_then(effect_for_length).is_some_and(|effect| effect.has_change(difference))
}

/// How the id changes the iCRC of packets of one length.
struct Effect {
    /// The change that each id makes.
    by_id: [u32; RUN_IDS],
    /// Shift to the six bits by which all changes differ.
    shift: u32,
    /// The same changes, each at the index that these six bits give.
    changes: [u32; RUN_IDS],
}

impl Effect {
    /// Whether an id makes this change.
    #[inline]
    fn has_change(&self, difference: u32) -> bool {
        self.changes[(difference >> self.shift) as usize % RUN_IDS] == difference
    }
}

/// The effects by length of the UDP payload, in words.
static EFFECTS: [Effect; LONGEST / 4 + 1] = compute_effects();

/// The effect on packets with a UDP payload of this length; `None` if they are not numbered.
#[inline]
fn effect_for_length(payload_len: usize) -> Option<&'static Effect> {
    if payload_len < SHORTEST || !payload_len.is_multiple_of(4) {
        return None;
    }
    EFFECTS.get(payload_len / 4)
}

/// Shortest UDP payload that may be numbered: BTH and iCRC.
const SHORTEST: usize = super::BTH_LEN + ICRC_LEN;

const fn compute_effects() -> [Effect; LONGEST / 4 + 1] {
    const NONE: Effect = Effect { by_id: [0; RUN_IDS], shift: 0, changes: [0; RUN_IDS] };
    let mut effects = [NONE; LONGEST / 4 + 1];
    // After the id come the rest of the headers, then one more word for each length.
    let mut bits = [1, 2, 4, 8, 16, 32];
    append_zero_bytes(&mut bits, datagram::HEADER_LEN - (ID + 1) - ICRC_LEN);
    let mut words = 0;
    while words < effects.len() {
        if words >= SHORTEST / 4 {
            effects[words] = effect_from_bits(bits);
        }
        append_zero_bytes(&mut bits, 4);
        words += 1;
    }
    effects
}

/// Continues CRC-32 registers over zero bytes.
const fn append_zero_bytes(registers: &mut [u32; 6], bytes: usize) {
    let mut bit = 0;
    while bit < registers.len() {
        let mut step = 0;
        while step < 8 * bytes {
            let r = registers[bit];
            registers[bit] = if r & 1 == 1 { (r >> 1) ^ REVERSED } else { r >> 1 };
            step += 1;
        }
        bit += 1;
    }
}

const fn effect_from_bits(bits: [u32; 6]) -> Effect {
    let mut by_id = [0; RUN_IDS];
    let mut id = 1;
    while id < RUN_IDS {
        by_id[id] = by_id[id & (id - 1)] ^ bits[id.trailing_zeros() as usize];
        id += 1;
    }
    let mut shift = 0;
    loop {
        let (mut taken, mut changes, mut id) = (0u64, [0; RUN_IDS], 0);
        while id < RUN_IDS {
            let place = (by_id[id] >> shift) as usize % RUN_IDS;
            taken |= 1 << place;
            changes[place] = by_id[id];
            id += 1;
        }
        if taken == u64::MAX {
            return Effect { by_id, shift, changes };
        }
        // At each length there are such bits, or this does not compile.
        shift += 1;
        assert!(shift <= 26);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::has_valid_icrc;
    use super::*;

    /// A packet with id `id`, any contents, and its iCRC.
    fn packet(contents: &[u8], id: u16) -> Vec<u8> {
        let mut packet = contents.to_vec();
        packet[0] = 0x45;
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        let crc = compute_icrc(&packet);
        packet.extend(crc.to_le_bytes());
        packet
    }

    /// All lengths of packets, without their iCRC.
    fn lengths() -> impl Iterator<Item = usize> {
        (datagram::HEADER_LEN + SHORTEST..=datagram::HEADER_LEN + LONGEST)
            .step_by(4)
            .map(|len| len - ICRC_LEN)
    }

    fn contents(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn at_each_length_each_id_is_known_and_no_other() {
        for len in lengths() {
            let contents = contents(len);
            let mut unknown = packet(&contents, 0);
            for id in 0..256 {
                let right = packet(&contents, id);
                unknown[len..].copy_from_slice(&right[len..]);
                assert_eq!(icrc_ok_for_any_id(&unknown), id < 64, "{len} bytes, id {id}");
                let mut numbered = packet(&contents, 0);
                if id < 64 {
                    number_icrc(&mut numbered[datagram::HEADER_LEN..], id.into());
                    assert_eq!(numbered[len..], right[len..], "{len} bytes, id {id}");
                }
            }
        }
    }

    /// 64 ids are 64 chances for damage to pass; a single flipped bit has none of them.
    #[test]
    fn a_flip_anywhere_shows_whatever_the_id() {
        for len in lengths() {
            let sent = packet(&contents(len), 0);
            // The changes by all ids are closed under XOR, so what holds for one holds for each.
            for bit in 0..sent.len() * 8 {
                let mut flipped = sent.clone();
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                let masked = [1, 8, 10, 11, 26, 27, 32].contains(&(bit / 8));
                // Another header length is another packet.
                if bit / 8 == 0 {
                    continue;
                }
                let id = (ID * 8 + 10..ID * 8 + 16).contains(&bit);
                assert_eq!(icrc_ok_for_any_id(&flipped), masked || id, "{len} bytes, bit {bit}");
                settle_icrc(&mut flipped);
                let id = (ID * 8..ID * 8 + 16).contains(&bit);
                assert_eq!(has_valid_icrc(&flipped), masked || id, "{len} bytes, bit {bit}, settled");
            }
        }
    }

    /// An ACK, and one with the value before an atomic.
    #[test]
    fn answers_settle_whatever_their_id_but_not_if_two_bits_are_flipped() {
        for len in [20, 28].map(|payload| datagram::HEADER_LEN + payload - ICRC_LEN) {
            let contents = contents(len);
            let mut unknown = packet(&contents, 0);
            for id in 0..=u16::MAX {
                unknown[len..].copy_from_slice(&packet(&contents, id)[len..]);
                let mut settled = unknown.clone();
                settle_icrc(&mut settled);
                assert!(has_valid_icrc(&settled), "{len} bytes, id {id}");
                assert_eq!(settled == unknown, id == 0);
            }
            let covered = |bit: &usize| !(0..=5).chain([8, 10, 11, 26, 27, 32]).any(|byte| byte == bit / 8);
            let bits: Vec<usize> = (0..8 * (len + ICRC_LEN)).filter(covered).collect();
            for (nth, first) in bits.iter().enumerate() {
                for second in &bits[..nth] {
                    let mut flipped = unknown.clone();
                    for bit in [first, second] {
                        flipped[bit / 8] ^= 0x80 >> (bit % 8);
                    }
                    settle_icrc(&mut flipped);
                    assert!(!has_valid_icrc(&flipped), "{len} bytes, bits {first} and {second}");
                }
            }
        }
    }

    #[test]
    fn other_lengths_are_not_numbered() {
        for len in [0, 3, 12, 15, 17, 258, 260, 4096] {
            assert!(!may_be_numbered(len), "{len}");
            let mut payload = vec![7; len];
            number_icrc(&mut payload, 5);
            assert_eq!(payload, vec![7; len]);
        }
        assert!(may_be_numbered(16) && may_be_numbered(256));
    }

    proptest! {
        #[test]
        fn any_packet_in_any_place(words in 3usize..=63, seed in proptest::collection::vec(any::<u8>(), 280),
                                   header in 0u16..64, id in 0u16..64, any in any::<u16>()) {
            let len = datagram::HEADER_LEN + words * 4;
            let right = packet(&seed[..len], id);
            let mut numbered = packet(&seed[..len], 0);
            number_icrc(&mut numbered[datagram::HEADER_LEN..], id.into());
            prop_assert_eq!(&numbered[len..], &right[len..]);
            // The header need not be right.
            let mut unknown = packet(&seed[..len], header);
            unknown[len..].copy_from_slice(&right[len..]);
            prop_assert!(icrc_ok_for_any_id(&unknown));
            unknown[len..].copy_from_slice(&packet(&seed[..len], any)[len..]);
            settle_icrc(&mut unknown);
            prop_assert!(has_valid_icrc(&unknown));
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut settled = bytes.clone();
            settle_icrc(&mut settled);
            prop_assert!(has_valid_icrc(&settled) || !icrc_ok_for_any_id(&bytes));
        }
    }
}
