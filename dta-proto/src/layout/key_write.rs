//! Key-write: a hash table of the last value per key, in N copies.
//!
//! A slot is `checksum u32, value[V]`, V of 4, 12, 28 or 60; checksum = CRC-32/ISO-HDLC(key ‖ value), big-endian. The
//! key itself is not stored: the reader knows it. Only a store with inline keys holds it: its slots have `key[16],
//! value[12]` as their value. After the data structure of Key-Write in "Direct Telemetry Access" (SIGCOMM 2023),
//! whose checksum covers the key alone; here it covers the value too, so that a half-written or damaged slot does not
//! match.

use super::{ElementField, hash, read_be_u32};
use crate::key::{KEY_LEN, Key};
use crate::store::SlotKeys;

/// Length of the checksum in front of the value.
pub const CHECKSUM_LEN: usize = 4;

/// Length of the values of a store with inline keys.
pub const INLINE_VALUE_LEN: usize = 12;

/// Byte offset of slot number `slot` in a store whose slots hold `value_len` bytes of value, inline keys included.
#[inline]
pub fn slot_offset(slot: u64, value_len: u8) -> u64 {
    slot * (u64::from(value_len) + CHECKSUM_LEN as u64)
}

pub(super) fn slot_fields(value_len: u8, keys: SlotKeys) -> Vec<(String, ElementField)> {
    let key = (!keys.are_hashed()).then_some(("key", ElementField::Bytes(KEY_LEN)));
    let value = ("value", ElementField::Bytes(value_len.into()));
    let fields = [("checksum", ElementField::Be32)].into_iter().chain(key).chain([value]);
    fields.map(|(name, field)| (name.to_owned(), field)).collect()
}

/// Writes a slot: checksum, then value. A shorter value is padded with zeros, which the checksum covers, and
/// reads back as `slot.len() - 4` bytes.
///
/// # Panics
/// If `slot` is shorter than `4 + value.len()`.
#[inline]
pub fn encode_slot(slot: &mut [u8], key: &Key, value: &[u8]) {
    let (sum, area) = slot.split_at_mut(CHECKSUM_LEN);
    // With a length known to the compiler, a copy is two instructions instead of a call; 12 bytes are usual.
    match (<&mut [u8; 12]>::try_from(&mut *area), <&[u8; 12]>::try_from(value)) {
        (Ok(area), Ok(value)) => *area = *value,
        _ => {
            let (filled, rest) = area.split_at_mut(value.len());
            filled.copy_from_slice(value);
            rest.fill(0);
        }
    }
    sum.copy_from_slice(&hash::value_checksum(key, area).to_be_bytes());
}

/// What a slot with an inline key holds as its value: the key, then the value, padded with zeros. `None` if the value
/// is longer than 12 bytes.
#[inline]
pub fn inline_value(key: &Key, value: &[u8]) -> Option<[u8; KEY_LEN + INLINE_VALUE_LEN]> {
    let mut both = [0; KEY_LEN + INLINE_VALUE_LEN];
    let (head, rest) = both.split_at_mut(KEY_LEN);
    head.copy_from_slice(&key.0);
    rest.get_mut(..value.len())?.copy_from_slice(value);
    Some(both)
}

/// As [`verified_value`], for a slot with an inline key, which is compared too: another key's slot never matches.
#[inline]
pub fn matches_inline<'a>(slot: &'a [u8], key: &Key) -> Option<&'a [u8]> {
    verified_value(slot, key)?.strip_prefix(&key.0)
}

/// The slot's value if its checksum is the one of `key` and that value; `None` if it is another key's, empty,
/// torn, damaged, or shorter than a checksum. Another key's slot matches once in 2^32.
#[inline]
pub fn verified_value<'a>(slot: &'a [u8], key: &Key) -> Option<&'a [u8]> {
    if slot.len() <= CHECKSUM_LEN {
        return None;
    }
    let value = &slot[CHECKSUM_LEN..];
    (read_be_u32(slot, 0) == hash::value_checksum(key, value)).then_some(value)
}

/// How to combine several copies into one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The matching copy of the lowest n. Copies are written in the order of n, so it is the newest
    /// unless a frame was lost.
    #[default]
    First,
    /// The value in most matching copies; on a tie, the one with the lowest n.
    Plurality,
    /// As [`Choice::Plurality`], but only if at least this many copies hold it.
    AtLeast(u8),
    /// Copy n alone, counted from 0.
    Copy(u8),
}

/// The combined answer of up to four copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CombinedCopies<V> {
    /// No copy matched: never reported, overwritten in all copies, or lost.
    Absent,
    /// Copies matched, but no value is in as many copies as the policy asks for.
    Undecided {
        /// Copies of the most frequent value.
        agreeing: u8,
        /// Matching copies with another value.
        differing: u8,
    },
    /// The value.
    Found {
        /// What was reported.
        value: V,
        /// Copies that hold this value.
        agreeing: u8,
        /// Matching copies with another value: an older or newer report of the key, of which some
        /// copies were lost, or a chance match.
        differing: u8,
    },
}

/// Combines the copies of one key, in the order of n; `None` is a copy that did not match. Two slots of a key
/// that coincide count as two copies.
#[inline]
pub fn combine_copies<V: PartialEq + Copy>(policy: Choice, copies: &[Option<V>]) -> CombinedCopies<V> {
    if let Choice::Copy(n) = policy {
        return combine_copies(Choice::First, copies.get(usize::from(n)).map_or(&[], std::slice::from_ref));
    }
    let agreeing = |value: V| copies.iter().flatten().filter(|other| **other == value).count() as u8;
    let matching = copies.iter().flatten().count() as u8;
    let Some(first) = copies.iter().flatten().next().copied() else {
        return CombinedCopies::Absent;
    };
    let (value, count) = if policy == Choice::First || matching == 1 {
        (first, agreeing(first))
    } else {
        let mut best = (first, agreeing(first));
        for value in copies.iter().flatten().copied() {
            let count = agreeing(value);
            if count > best.1 {
                best = (value, count);
            }
        }
        best
    };
    let differing = matching - count;
    match policy {
        Choice::AtLeast(least) if count < least => CombinedCopies::Undecided { agreeing: count, differing },
        _ => CombinedCopies::Found { value, agreeing: count, differing },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(value: u32, agreeing: u8, differing: u8) -> CombinedCopies<u32> {
        CombinedCopies::Found { value, agreeing, differing }
    }

    #[test]
    fn first_takes_the_lowest_copy_and_counts_others() {
        assert_eq!(combine_copies(Choice::First, &[None, Some(7), Some(9), Some(9)]), found(7, 1, 2));
        assert_eq!(combine_copies(Choice::First, &[Some(7), Some(7)]), found(7, 2, 0));
        assert_eq!(combine_copies::<u32>(Choice::First, &[None, None]), CombinedCopies::Absent);
        assert_eq!(combine_copies::<u32>(Choice::First, &[]), CombinedCopies::Absent);
    }

    #[test]
    fn plurality_takes_the_most_and_the_lowest_among_equals() {
        assert_eq!(combine_copies(Choice::Plurality, &[Some(7), Some(9), Some(9), None]), found(9, 2, 1));
        assert_eq!(combine_copies(Choice::Plurality, &[Some(7), Some(9), Some(9), Some(7)]), found(7, 2, 2));
    }

    #[test]
    fn at_least_does_not_decide_on_too_few() {
        assert_eq!(combine_copies(Choice::AtLeast(2), &[Some(7), Some(9), Some(9), None]), found(9, 2, 1));
        assert_eq!(
            combine_copies(Choice::AtLeast(3), &[Some(7), Some(9), Some(9), None]),
            CombinedCopies::Undecided { agreeing: 2, differing: 1 }
        );
        assert_eq!(combine_copies::<u32>(Choice::AtLeast(1), &[None, None]), CombinedCopies::Absent);
        let copy = |n| combine_copies(Choice::Copy(n), &[Some(7), None, Some(9)]);
        assert_eq!(
            [copy(0), copy(1), copy(2), copy(3)],
            [found(7, 1, 0), CombinedCopies::Absent, found(9, 1, 0), CombinedCopies::Absent]
        );
    }

    proptest! {
        #[test]
        fn what_is_encoded_matches_its_key_alone(key: [u8; 16], other: [u8; 16], words in 1usize..=15, seed: u8) {
            let value: Vec<u8> = (0..4 * words).map(|i| seed.wrapping_mul(31).wrapping_add(i as u8)).collect();
            let mut slot = vec![0xaa; 4 + value.len()];
            encode_slot(&mut slot, &Key(key), &value);
            prop_assert_eq!(verified_value(&slot, &Key(key)), Some(&value[..]));
            if other != key {
                prop_assert_eq!(verified_value(&slot, &Key(other)), None);
            }
        }

        #[test]
        fn an_inline_key_is_compared_too(key: [u8; 16], other: [u8; 16], value in prop::collection::vec(any::<u8>(), 0..16), bit in 0usize..256) {
            let Some(both) = inline_value(&Key(key), &value) else {
                prop_assert!(value.len() > INLINE_VALUE_LEN);
                return Ok(());
            };
            let mut slot = [0xaa; 32];
            // The checksum of one key over the slot of another.
            encode_slot(&mut slot, &Key(other), &both);
            prop_assert_eq!(matches_inline(&slot, &Key(other)).is_some(), other == key);
            encode_slot(&mut slot, &Key(key), &both);
            let padded = [&value[..], &[0; INLINE_VALUE_LEN]].concat();
            prop_assert_eq!(matches_inline(&slot, &Key(key)), Some(&padded[..INLINE_VALUE_LEN]));
            slot[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(matches_inline(&slot, &Key(key)), None);
        }

        #[test]
        fn a_short_value_is_filled_with_zeros(key: [u8; 16], value: [u8; 4]) {
            let mut slot = [0xaa; 16];
            encode_slot(&mut slot, &Key(key), &value);
            prop_assert_eq!(&slot[8..], &[0; 8]);
            prop_assert_eq!(verified_value(&slot, &Key(key)), Some(&slot[4..]));
        }

        #[test]
        fn any_tear_of_two_writes_matches_neither_or_is_one(key: [u8; 16], old: [u8; 28], new: [u8; 28], cut in 0usize..=32) {
            let (mut a, mut b) = ([0; 32], [0; 32]);
            encode_slot(&mut a, &Key(key), &old);
            encode_slot(&mut b, &Key(key), &new);
            let torn = [&b[..cut], &a[cut..]].concat();
            if let Some(value) = verified_value(&torn, &Key(key)) {
                prop_assert!(value == old || value == new);
            }
        }

        #[test]
        fn any_bytes_do_not_panic(slot in prop::collection::vec(any::<u8>(), 0..80), key: [u8; 16]) {
            let _ = (verified_value(&slot, &Key(key)), matches_inline(&slot, &Key(key)));
        }

        #[test]
        fn every_copy_is_accounted_for(copies in prop::collection::vec(prop::option::of(0u8..3), 0..=4), least in 0u8..5) {
            let matching = copies.iter().flatten().count() as u8;
            for policy in [Choice::First, Choice::Plurality, Choice::AtLeast(least)] {
                match combine_copies(policy, &copies) {
                    CombinedCopies::Absent => prop_assert_eq!(matching, 0),
                    CombinedCopies::Undecided { agreeing, differing } => {
                        prop_assert_eq!(agreeing + differing, matching);
                        prop_assert!(policy == Choice::AtLeast(least) && agreeing < least);
                    }
                    CombinedCopies::Found { value, agreeing, differing } => {
                        prop_assert_eq!(agreeing + differing, matching);
                        prop_assert_eq!(copies.iter().filter(|c| **c == Some(value)).count() as u8, agreeing);
                    }
                }
            }
        }
    }
}
