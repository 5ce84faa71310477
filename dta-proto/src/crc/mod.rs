//! The three CRC-32s that DTA uses, all reflected, with all ones as initial value and final XOR.
//!
//! | function | name | polynomial | reversed | check (`123456789`) | used for |
//! |---|---|---|---|---|---|
//! | [`crc32_update`] | CRC-32/ISO-HDLC | `0x04C11DB7` | `0xEDB88320` | `0xCBF43926` | iCRC, element checksums, IPv6 keys |
//! | [`crc32c`] | CRC-32C (Castagnoli, iSCSI) | `0x1EDC6F41` | `0x82F63B78` | `0xE3069283` | slots, IPv6 keys |
//! | [`crc32k`] | CRC-32K (Koopman) | `0x741B8CD7` | `0xEB31D82E` | `0x2D3DD0AE` | IPv6 keys, long keys |
//!
//! Inputs are short, 4 to 192 bytes, where general crates spend more on setup than on the CRC; the figures
//! are in `docs/decisions/crc.md`. On x86-64 they use PCLMULQDQ and SSE4.2 if the processor has them (asked
//! once, cached by the standard library), else tables for 16 bytes at a time. The results are the same
//! everywhere.

#![deny(unsafe_code)]

mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    //! Stand-ins for other processors.
    pub(crate) fn crc32(_crc: u32, _bytes: &[u8]) -> Option<u32> {
        None
    }
    pub(crate) fn crc32_of_two(_first: &[u8; 16], _second: &[u8]) -> Option<u32> {
        None
    }
    pub(crate) fn crc32_of<const LEN: usize>(_crc: u32, _bytes: &[u8; LEN]) -> Option<u32> {
        None
    }
    pub(crate) fn crc32_words(_crc: u32, _word: u32, _blocks: [u128; 2]) -> Option<u32> {
        None
    }
    pub(crate) fn crc32_masked(_crc: u32, _bytes: &[u8], _mask: &super::Mask) -> Option<u32> {
        None
    }
    pub(crate) fn crc32_matches<'f, const SLOT: usize, const N: usize>(
        _firsts: impl Iterator<Item = &'f [u8; 16]>,
        _slots: &[[[u8; SLOT]; N]],
        _matching: &mut [u8],
    ) -> bool {
        false
    }
    pub(crate) fn crc32k(_bytes: &[u8]) -> Option<u32> {
        None
    }
    pub(crate) fn crc32c(_bytes: &[u8]) -> Option<u32> {
        None
    }
    pub(crate) fn crc32c_of<const LEN: usize>(_bytes: &[u8; LEN]) -> Option<u32> {
        None
    }
    pub(crate) fn crc32c_u32(_word: u32) -> Option<u32> {
        None
    }
    pub(crate) fn crc32c_spread<'k, const N: usize>(
        _keys: impl Iterator<Item = &'k [u8; 16]>,
        _constants: [u32; N],
        _sums: &mut [[u32; N]],
    ) -> bool {
        false
    }
}

/// CRC-32/ISO-HDLC (the one of zlib and Ethernet) of `bytes`.
#[inline]
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32_update(0, bytes)
}

/// Continues a CRC-32/ISO-HDLC: `crc32_update(crc32(a), b) == crc32(a ‖ b)`; the CRC of nothing is 0.
#[inline]
pub fn crc32_update(crc: u32, bytes: &[u8]) -> u32 {
    match x86::crc32(crc, bytes) {
        Some(crc) => crc,
        None => table::crc32_update(crc, bytes),
    }
}

/// CRC-32/ISO-HDLC of 16 bytes followed by a second part, which may lie elsewhere. Fastest if that has 4, 12,
/// 28 or 60 bytes, as key-write values do: then it costs little more than a CRC over contiguous bytes.
#[inline]
pub fn crc32_of_two(first: &[u8; 16], second: &[u8]) -> u32 {
    match x86::crc32_of_two(first, second) {
        Some(crc) => crc,
        None => crc32_update(crc32(first), second),
    }
}

/// As [`crc32_update`] for a constant length, which saves dispatching on it each time.
#[inline]
pub fn crc32_update_of<const LEN: usize>(crc: u32, bytes: &[u8; LEN]) -> u32 {
    match x86::crc32_of(crc, bytes) {
        Some(crc) => crc,
        None => table::crc32_update(crc, bytes),
    }
}

/// Continues a CRC-32/ISO-HDLC over 36 bytes that are still in registers: 4 bytes, and two blocks of 16, each
/// as a little-endian number. Bytes just written in small pieces cannot be read in large ones until all have
/// reached the cache.
#[inline]
pub fn crc32_update_words(crc: u32, word: u32, blocks: [u128; 2]) -> u32 {
    match x86::crc32_words(crc, word, blocks) {
        Some(crc) => crc,
        None => {
            let [first, second] = blocks.map(u128::to_le_bytes);
            table::crc32_update(
                table::crc32_update(table::crc32_update(crc, &word.to_le_bytes()), &first),
                &second,
            )
        }
    }
}

/// Whether slots start with their checksums: bit `n` of `matching[i]` says whether the first 4 bytes of
/// `slots[i][n]` are, big-endian, the CRC-32/ISO-HDLC of `firsts[i]` and the rest of the slot. Excess
/// elements of either are ignored. Fastest if slots are a multiple of 16 bytes long: then what several slots
/// share is computed once, and no CRC is completed, because it suffices to see that the remainder is 0.
///
/// `N` is at most 8 and `SLOT` at least 4: anything else does not compile.
#[inline]
pub fn crc32_matches<'f, const SLOT: usize, const N: usize>(
    firsts: impl Iterator<Item = &'f [u8; 16]> + Clone,
    slots: &[[[u8; SLOT]; N]],
    matching: &mut [u8],
) {
    const { assert!(N <= 8 && SLOT >= 4) };
    if x86::crc32_matches(firsts.clone(), slots, matching) {
        return;
    }
    for ((first, slots), matching) in firsts.zip(slots).zip(matching) {
        *matching = 0;
        for (n, slot) in slots.iter().enumerate() {
            let matches = slot
                .split_first_chunk()
                .is_some_and(|(sum, behind)| u32::from_be_bytes(*sum) == crc32_of_two(first, behind));
            *matching |= u8::from(matches) << n;
        }
    }
}

/// Continues a CRC-32/ISO-HDLC over `bytes` with the bytes of `mask` set to ones.
#[inline]
pub fn crc32_update_masked(crc: u32, bytes: &[u8], mask: &Mask) -> u32 {
    match x86::crc32_masked(crc, bytes, mask) {
        Some(crc) => crc,
        None => masked_slow(crc, bytes, mask),
    }
}

fn masked_slow(crc: u32, bytes: &[u8], mask: &Mask) -> u32 {
    let mut head = [0; Mask::LEN];
    let (first, rest) = bytes.split_at(bytes.len().min(Mask::LEN));
    for ((to, from), ones) in head.iter_mut().zip(first).zip(&mask.0) {
        *to = from | ones;
    }
    let crc = table::crc_update(&table::CRC32, crc, &head[..first.len()]);
    table::crc_update(&table::CRC32, crc, rest)
}

/// Which of the first [`Mask::LEN`] bytes, or bits of them, a CRC takes as ones.
#[derive(Clone, Debug)]
pub struct Mask([u8; Mask::LEN + 32]);

impl Mask {
    /// Number of bytes that a mask covers.
    pub const LEN: usize = 64;

    /// No byte.
    pub const NONE: Mask = Mask::with_ones_at(&[]);

    /// The bytes at these offsets from 0. An offset of [`Mask::LEN`] or more is a bug, and fails to compile
    /// in a constant.
    pub const fn with_ones_at(places: &[usize]) -> Mask {
        let mut mask = [0; Mask::LEN + 32];
        let mut i = 0;
        while i < places.len() {
            assert!(places[i] < Mask::LEN);
            mask[places[i]] = 0xff;
            i += 1;
        }
        Mask(mask)
    }

    /// The same and the lower four bits of the byte at this offset.
    pub const fn with_low_nibble_at(mut self, place: usize) -> Mask {
        assert!(place < Mask::LEN);
        self.0[place] |= 0x0f;
        self
    }

    /// The 16 mask bytes from `at`.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn mask_block_at(&self, at: usize) -> &[u8; 16] {
        // Everything after the mask is zero, so later blocks equal this one.
        self.0.get(at.min(Mask::LEN)..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; 16])
    }
}

/// CRC-32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    match x86::crc32c(bytes) {
        Some(crc) => crc,
        None => table::crc32c(bytes),
    }
}

/// As [`crc32c`] for a constant length.
#[inline]
pub fn crc32c_of<const LEN: usize>(bytes: &[u8; LEN]) -> u32 {
    match x86::crc32c_of(bytes) {
        Some(crc) => crc,
        None => table::crc32c(bytes),
    }
}

/// CRC-32C of the four bytes of `word`, little-endian: `crc32c(&word.to_le_bytes())`.
#[inline]
pub fn crc32c_u32(word: u32) -> u32 {
    match x86::crc32c_u32(word) {
        Some(crc) => crc,
        None => table::crc32c(&word.to_le_bytes()),
    }
}

/// For each key, the CRC-32C of the four bytes (little-endian) of the key's CRC-32C plus each constant:
/// `sums[i][n] = crc32c_u32(crc32c(keys[i]) + constants[n])`, wrapping. Excess keys or sums are ignored.
/// Saves a call per CRC.
#[inline]
pub fn crc32c_spread<'k, const N: usize>(
    keys: impl Iterator<Item = &'k [u8; 16]> + Clone,
    constants: [u32; N],
    sums: &mut [[u32; N]],
) {
    if x86::crc32c_spread(keys.clone(), constants, sums) {
        return;
    }
    for (key, sums) in keys.zip(sums) {
        let sum = crc32c_of(key);
        *sums = constants.map(|constant| crc32c_u32(sum.wrapping_add(constant)));
    }
}

/// CRC-32K (Koopman, polynomial `0x741B8CD7`) of `bytes`.
#[inline]
pub fn crc32k(bytes: &[u8]) -> u32 {
    match x86::crc32k(bytes) {
        Some(crc) => crc,
        None => table::crc_update(&table::CRC32K, 0, bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, from the definition.
    fn slow(reversed: u32, bytes: &[u8]) -> u32 {
        let mut r = !0u32;
        for b in bytes {
            r ^= u32::from(*b);
            for _ in 0..8 {
                r = if r & 1 == 1 { (r >> 1) ^ reversed } else { r >> 1 };
            }
        }
        !r
    }

    #[test]
    fn check_values() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32k(b"123456789"), 0x2D3D_D0AE);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn polynomials_reversed() {
        assert_eq!(0x04C1_1DB7u32.reverse_bits(), 0xEDB8_8320);
        assert_eq!(0x1EDC_6F41u32.reverse_bits(), 0x82F6_3B78);
        assert_eq!(0x741B_8CD7u32.reverse_bits(), 0xEB31_D82E);
    }

    /// Every length around the block sizes, by instructions and by table, against two other crates.
    #[test]
    fn every_length() {
        let bytes: Vec<u8> = (0u32..1200).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in 0..bytes.len() {
            let b = &bytes[..len];
            assert_eq!(crc32(b), crc32fast::hash(b), "{len}");
            assert_eq!(crc32c(b), crc32c::crc32c(b), "{len}");
            assert_eq!(table::crc_update(&table::CRC32, 0, b), crc32fast::hash(b), "{len}");
            assert_eq!(crc32k(b), table::crc_update(&table::CRC32K, 0, b), "{len}");
            assert_eq!(table::crc_update(&table::CRC32C, 0, b), crc32c::crc32c(b), "{len}");
        }
    }

    proptest! {
        #[test]
        fn as_defined(bytes in proptest::collection::vec(any::<u8>(), 0..600), cut: prop::sample::Index) {
            prop_assert_eq!(crc32(&bytes), slow(0xEDB8_8320, &bytes));
            prop_assert_eq!(crc32c(&bytes), slow(0x82F6_3B78, &bytes));
            prop_assert_eq!(crc32k(&bytes), slow(0xEB31_D82E, &bytes));
            let cut = cut.index(bytes.len() + 1);
            prop_assert_eq!(crc32_update(crc32(&bytes[..cut]), &bytes[cut..]), crc32(&bytes));
        }

        #[test]
        fn two_parts_are_one_message(bytes in proptest::collection::vec(any::<u8>(), 16..100), least in 0usize..4) {
            // Every length, and often those that values have.
            for len in [[4, 12, 28, 60][least], bytes.len() - 16] {
                let Some(message) = bytes.get(..16 + len) else { continue };
                let (first, second) = message.split_first_chunk::<16>().unwrap();
                prop_assert_eq!(crc32_of_two(first, second), slow(0xEDB8_8320, message));
            }
        }

        #[test]
        fn masked(crc: u32, bytes in proptest::collection::vec(any::<u8>(), 0..600),
                  places in proptest::collection::vec(0usize..64, 0..20)) {
            let mut ones = bytes.clone();
            for place in &places {
                if let Some(byte) = ones.get_mut(*place) {
                    *byte = 0xff;
                }
            }
            let mask = Mask::with_ones_at(&places);
            prop_assert_eq!(crc32_update_masked(crc, &bytes, &mask), crc32_update(crc, &ones));
            prop_assert_eq!(masked_slow(crc, &bytes, &mask), crc32_update(crc, &ones));
        }

        #[test]
        fn of_a_known_length(bytes in proptest::collection::vec(any::<u8>(), 208)) {
            fn check<const LEN: usize>(bytes: &[u8]) {
                let message = bytes.first_chunk::<LEN>().unwrap();
                assert_eq!(crc32c_of(message), crc32c(message));
                assert_eq!(crc32_update_of(7, message), crc32_update(7, message));
            }
            check::<1>(&bytes);
            check::<15>(&bytes);
            check::<16>(&bytes);
            check::<20>(&bytes);
            check::<28>(&bytes);
            check::<44>(&bytes);
            check::<61>(&bytes);
            check::<76>(&bytes);
            check::<143>(&bytes);
            check::<200>(&bytes);
            check::<207>(&bytes);
            check::<208>(&bytes);
        }

        #[test]
        fn a_slot_matches_if_it_begins_with_its_checksum(
            bytes in proptest::collection::vec(any::<u8>(), 9 * (16 + 3 * 208)),
            right in proptest::collection::vec(any::<u8>(), 9),
            wrong: prop::sample::Index,
        ) {
            fn check<const SLOT: usize, const N: usize>(bytes: &[u8], right: &[u8], wrong: prop::sample::Index) {
                let (firsts, rest) = bytes.split_at(9 * 16);
                let firsts = firsts.as_chunks::<16>().0;
                let mut slots = rest.as_chunks::<SLOT>().0.as_chunks::<N>().0[..9].to_vec();
                for ((first, slots), right) in firsts.iter().zip(&mut slots).zip(right) {
                    for (n, slot) in slots.iter_mut().enumerate() {
                        let (sum, behind) = slot.split_first_chunk_mut::<4>().unwrap();
                        *sum = crc32(&[&first[..], behind].concat()).to_be_bytes();
                        if right >> n & 1 == 0 {
                            // One bit, anywhere.
                            let bit = wrong.index(8 * SLOT);
                            slot[bit / 8] ^= 1 << (bit % 8);
                        }
                    }
                }
                let mut matching = [7; 10];
                crc32_matches(firsts.iter(), &slots, &mut matching);
                for (matching, right) in matching.iter().zip(right) {
                    assert_eq!(*matching, right & ((1u16 << N) - 1) as u8, "{SLOT} {N}");
                }
                assert_eq!(matching[9], 7, "what nobody asked for");
            }
            check::<4, 2>(&bytes, &right, wrong);
            check::<8, 2>(&bytes, &right, wrong);
            check::<16, 1>(&bytes, &right, wrong);
            check::<16, 2>(&bytes, &right, wrong);
            check::<16, 3>(&bytes, &right, wrong);
            check::<32, 3>(&bytes, &right, wrong);
            check::<61, 2>(&bytes, &right, wrong);
            check::<64, 3>(&bytes, &right, wrong);
            check::<192, 1>(&bytes, &right, wrong);
            check::<208, 2>(&bytes, &right, wrong);
        }

        #[test]
        fn slots_of_any_bytes_match_as_one_at_a_time(bytes in proptest::collection::vec(any::<u8>(), 16 + 64)) {
            // Random bytes almost never match; all 32 bits of the checksum count.
            let (first, slot) = bytes.split_first_chunk::<16>().unwrap();
            let mut slot: [u8; 64] = slot.try_into().unwrap();
            let sum = crc32(&[&first[..], &slot[4..]].concat());
            for bit in 0..32 {
                slot[..4].copy_from_slice(&(sum ^ 1 << bit).to_be_bytes());
                let mut matching = [1];
                crc32_matches([first].into_iter(), &[[slot]], &mut matching);
                prop_assert_eq!(matching, [0]);
            }
        }

        #[test]
        fn spread_is_one_at_a_time(bytes in proptest::collection::vec(any::<u8>(), 9 * 16), constants: [u32; 3]) {
            let keys = bytes.as_chunks::<16>().0;
            let mut sums = [[7; 3]; 10];
            crc32c_spread(keys.iter(), constants, &mut sums);
            for (key, sums) in keys.iter().zip(&sums) {
                prop_assert_eq!(*sums, constants.map(|c| crc32c(&crc32c(key).wrapping_add(c).to_le_bytes())));
            }
            prop_assert_eq!(sums[9], [7; 3], "sums of nothing");
        }

        #[test]
        fn words_are_their_bytes(crc: u32, word: u32, first: u128, second: u128) {
            let mut bytes = [0; 36];
            bytes[..4].copy_from_slice(&word.to_le_bytes());
            bytes[4..20].copy_from_slice(&first.to_le_bytes());
            bytes[20..].copy_from_slice(&second.to_le_bytes());
            prop_assert_eq!(crc32_update_words(crc, word, [first, second]), crc32_update(crc, &bytes));
            prop_assert_eq!(crc32_update_words(0, word, [first, second]), slow(0xEDB8_8320, &bytes));
        }

        #[test]
        fn word_is_its_four_bytes(word: u32) {
            prop_assert_eq!(crc32c_u32(word), slow(0x82F6_3B78, &word.to_le_bytes()));
        }
    }
}
