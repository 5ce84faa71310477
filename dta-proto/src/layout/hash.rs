//! Slots and checksums of keyed stores.
//!
//! `h = CRC-32C(key)`; `slot_n = CRC-32C(le32(h + C_n)) mod slots`; `checksum = CRC-32/ISO-HDLC(key
//! ‖ value)`.
//!
//! A CRC is linear: `crc(key ‖ n)` for different `n` differ by constants, so keys that collide in one slot
//! would collide in all. The integer addition of `C_n` breaks that. The checksum uses another polynomial, so
//! that a slot number reveals none of its bits. See `docs/decisions/slot-family.md`;
//! `tests/slot_statistics.rs` measures it.

use std::ops::Deref;

use crate::crc;
use crate::key::Key;

/// The constants C_0 to C_7 that tell a key's slots apart. Only counters with replicas use more than four.
pub const CONSTANTS: [u32; 8] =
    [0x9e37_79b9, 0x7f4a_7c15, 0x94d0_49bb, 0xbf58_476d, 0xcc9e_2d51, 0xc2b2_ae35, 0x85eb_ca6b, 0x1b87_3593];

/// CRC-32C of the key, from which all its slots are computed.
#[inline]
pub fn key_hash(key: &Key) -> u32 {
    crc::crc32c_of(&key.0)
}

/// Slot `n` (0 to 7) of the key whose [`key_hash`] is `h`, in a store of `slots` slots: a power of
/// two, at most 2^32.
///
/// # Panics
/// If `n` is 8 or more.
#[inline]
pub fn slot_index(h: u32, n: usize, slots: u64) -> u64 {
    debug_assert!(slots.is_power_of_two() && slots <= 1 << 32);
    u64::from(crc::crc32c_u32(h.wrapping_add(CONSTANTS[n]))) & (slots - 1)
}

/// The first `count` slots of `key`, at most eight, in a store of `slots` slots (a power of two, at most 2^32). Two of
/// them can be the same slot (1 in `slots` per pair).
#[inline]
pub fn key_slots(key: &Key, count: u8, slots: u64) -> Slots {
    let h = key_hash(key);
    let mut at = [0; CONSTANTS.len()];
    let len = count.min(at.len() as u8);
    for (n, at) in at.iter_mut().enumerate().take(usize::from(len)) {
        *at = slot_index(h, n, slots);
    }
    Slots { at, len }
}

/// The first `N` slots of each key in `at`, as [`key_slots`] gives them, for many keys at once: much faster than
/// one key at a time. Excess keys or places are ignored.
#[inline]
pub fn slots_of_each<const N: usize>(keys: &[Key], slots: u64, at: &mut [[u32; N]]) {
    debug_assert!(slots.is_power_of_two() && slots <= 1 << 32);
    let constants = const {
        assert!(N <= CONSTANTS.len());
        let mut constants = [0; N];
        let mut n = 0;
        while n < N {
            constants[n] = CONSTANTS[n];
            n += 1;
        }
        constants
    };
    crc::crc32c_spread(keys.iter().map(|key| &key.0), constants, at);
    let mask = (slots - 1) as u32;
    for at in at.as_flattened_mut().iter_mut().take(keys.len() * N) {
        *at &= mask;
    }
}

/// Up to eight slot numbers, on the stack; dereferences to a slice in order n = 0..N-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    at: [u64; CONSTANTS.len()],
    len: u8,
}

impl Deref for Slots {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        &self.at[..usize::from(self.len)]
    }
}

/// CRC-32/ISO-HDLC of `key ‖ value`: stored big-endian in front of the value.
#[inline]
pub fn value_checksum(key: &Key, value: &[u8]) -> u32 {
    crc::crc32_of_two(&key.0, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_are_the_slot_function(key: [u8; 16], count in 0u8..10, bits in 0u32..=32) {
            let key = Key(key);
            let got = key_slots(&key, count, 1 << bits);
            prop_assert_eq!(got.len(), usize::from(count.min(8)));
            for (n, at) in got.iter().enumerate() {
                prop_assert_eq!(*at, slot_index(key_hash(&key), n, 1 << bits));
                prop_assert!(*at < 1 << bits);
            }
        }

        #[test]
        fn slots_of_many_keys_are_those_of_each(keys in prop::collection::vec(any::<[u8; 16]>(), 0..9), bits in 0u32..=32) {
            let keys: Vec<Key> = keys.into_iter().map(Key).collect();
            let (mut four, mut one) = ([[7; 4]; 9], [[7; 1]; 9]);
            slots_of_each(&keys, 1 << bits, &mut four);
            slots_of_each(&keys, 1 << bits, &mut one);
            for (i, key) in keys.iter().enumerate() {
                prop_assert_eq!(&four[i].map(u64::from)[..], &key_slots(key, 4, 1 << bits)[..]);
                prop_assert_eq!(one[i][0], four[i][0]);
            }
            prop_assert!(four[keys.len()..].iter().all(|at| *at == [7; 4]), "places of no key");
        }

        #[test]
        fn a_smaller_store_takes_the_low_bits(key: [u8; 16], bits in 0u32..=32) {
            let key = Key(key);
            for (large, small) in key_slots(&key, 4, 1 << 32).iter().zip(key_slots(&key, 4, 1 << bits).iter()) {
                prop_assert_eq!(large & ((1 << bits) - 1), *small);
            }
        }

        #[test]
        fn checksum_covers_every_bit(key: [u8; 16], value in prop::collection::vec(any::<u8>(), 4..=60), bit in 0usize..608) {
            let whole = value_checksum(&Key(key), &value);
            let mut all = [&key[..], &value].concat();
            prop_assert_eq!(crate::crc::crc32(&all), whole);
            let bit = bit % (8 * all.len());
            all[bit / 8] ^= 1 << (bit % 8);
            let damaged = Key(all[..16].try_into().unwrap());
            prop_assert_ne!(value_checksum(&damaged, &all[16..]), whole);
        }
    }
}
