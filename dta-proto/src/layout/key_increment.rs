//! Key-increment: a count-min table of 64-bit counters.
//!
//! A counter is a little-endian `u64`, 8-byte aligned: the NIC adds an AtomicETH operand in the host's byte
//! order. FETCH_ADD goes to each slot_n of the key; the estimate is the minimum over N and never below the
//! true sum. After Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its
//! applications" (2005), with one shared row instead of one per hash.
//!
//! Where two collectors count each key, a key has a set of slots, a *lane*, for each of [`COLOURS`] colours. Each collector that
//! ever had a bucket has a colour there for good; the two that have it at the same time have different ones if possible. Each
//! counts in the lane of the *other* one's colour. While there is no other one, or none of another colour, the first counts
//! alone, in the lane of its own colour. So what collectors of colour a have in lane b equals what those of colour b have in lane
//! a: [`total_count`] takes the higher of both.

use super::{ElementField, hash};

/// Colours of collectors, and lanes of a key that two collectors count.
pub const COLOURS: usize = 4;

/// The most slots that a key has.
pub const MAX_SLOTS_PER_KEY: usize = hash::CONSTANTS.len();

/// The most slots that a key has in each lane, where two collectors count it.
pub const MAX_REDUNDANCY_IN_LANES: u8 = (MAX_SLOTS_PER_KEY / COLOURS) as u8;

/// Length of a counter.
pub const COUNTER_LEN: u64 = 8;

pub(super) fn counter_fields() -> Vec<(String, ElementField)> {
    vec![("count".to_owned(), ElementField::Le64)]
}

/// Byte offset of counter number `slot`.
#[inline]
pub fn counter_offset(slot: u64) -> u64 {
    slot * COUNTER_LEN
}

/// Writes a counter.
#[inline]
pub fn encode_counter(counter: u64) -> [u8; 8] {
    counter.to_le_bytes()
}

/// Reads a counter; `None` unless there are exactly 8 bytes.
#[inline]
pub fn decode_counter(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The estimate for a key from its slots and their counters, both in the order of n: the minimum, each
/// counter divided by how many of the key's slots it is. 0 if there are none.
///
/// Where m slots of one key coincide (m - 1 in `slots` keys), each report adds m times to that counter; a
/// counter of `m * own + others` divided by m is still at least `own`, so the count-min bound holds and a
/// lone key reads exactly.
///
/// # Panics
/// If there are fewer counters than slots.
#[inline]
pub fn estimate_count(slots: &[u64], counters: &[u64]) -> u64 {
    let share = |(slot, counter): (&u64, &u64)| counter / slots.iter().filter(|s| *s == slot).count() as u64;
    assert!(counters.len() >= slots.len(), "a counter for each slot");
    slots.iter().zip(counters).map(share).min().unwrap_or(0)
}

/// The lanes of a key that `replicas` collectors count.
#[inline]
pub fn lane_count(replicas: u8) -> usize {
    if replicas > 1 { COLOURS } else { 1 }
}

/// The number of the slot that is a key's `copy`-th counter in a lane.
#[inline]
pub fn copy_in_lane(lane: usize, copy: u8, redundancy: u8) -> usize {
    lane * usize::from(redundancy) + usize::from(copy)
}

/// A key's count in each lane: the [`estimate_count`] from the lane's `redundancy` slots. `slots` and `counters` are those of all
/// lanes, in order.
///
/// # Panics
/// If there are fewer counters than slots, or `redundancy` is 0.
#[inline]
pub fn estimates<'a>(
    redundancy: u8,
    slots: &'a [u64],
    counters: &'a [u64],
) -> impl Iterator<Item = u64> + 'a {
    let of = usize::from(redundancy);
    slots.chunks(of).zip(counters.chunks(of)).map(|(slots, counters)| estimate_count(slots, counters))
}

/// How a collector counts the keys of a bucket that two collectors count. By default it counts in no lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountingRole {
    /// Its colour.
    pub colour: usize,
    /// The lanes in which it may have counted; in the others it has counts of other keys only.
    pub lanes: [bool; COLOURS],
}

impl CountingRole {
    /// What a collector has in a key's lanes, as its part of what all collectors counted: [`COLOURS`] rows by the colour of the
    /// collector, each with its lanes.
    pub fn by_colour(&self, lanes: &[u64]) -> Vec<u64> {
        let mut all = vec![0; COLOURS * COLOURS];
        let row = all.iter_mut().skip(self.colour * COLOURS);
        for (at, (lane, is_counted)) in row.zip(lanes.iter().zip(self.lanes)) {
            *at = if is_counted { *lane } else { 0 };
        }
        all
    }
}

/// A key's count, from the sums of all collectors' [parts](CountingRole::by_colour): for each two colours the higher count, plus
/// what collectors counted alone, each in the lane of its own colour. It is exact if all missed reports were to be counted by
/// collectors of one colour, and not alone. If both of a pair missed some, the result lacks the smaller gap.
pub fn total_count(by_colour: &[u64]) -> u64 {
    let count = |a: usize, b: usize| by_colour.get(a * COLOURS + b).copied().unwrap_or_default();
    let pairs = (0..COLOURS).flat_map(|a| (0..=a).map(move |b| count(a, b).max(count(b, a))));
    pairs.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use proptest::prelude::*;

    #[test]
    fn decode_wants_eight_bytes() {
        assert_eq!(decode_counter(&[1, 0, 0, 0, 0, 0, 0, 0x80]), Some(0x8000_0000_0000_0001));
        assert_eq!(decode_counter(&[0; 7]), None);
        assert_eq!(decode_counter(&[0; 9]), None);
    }

    #[test]
    fn a_coinciding_slot_is_divided() {
        assert_eq!(estimate_count(&[5, 9], &[30, 40]), 30);
        assert_eq!(estimate_count(&[5, 5], &[30, 30]), 15);
        assert_eq!(estimate_count(&[5, 9, 5], &[31, 14, 31]), 14);
        assert_eq!(estimate_count(&[], &[]), 0);
    }

    #[test]
    fn each_lane_has_an_estimate_of_its_own() {
        let of = |redundancy, slots: &[u64], counters: &[u64]| -> Vec<u64> {
            estimates(redundancy, slots, counters).collect()
        };
        assert_eq!(of(2, &[5, 9, 2, 7], &[30, 40, 8, 6]), [30, 6]);
        // Slots that coincide are divided within a lane; in another lane they count as other keys'.
        assert_eq!(of(2, &[5, 5, 5, 7], &[30, 30, 30, 60]), [15, 30]);
        assert_eq!(of(1, &[5, 9, 2], &[3, 4, 5]), [3, 4, 5]);
        let copies = [(0, 0), (0, 1), (1, 0), (3, 1)].map(|(lane, copy)| copy_in_lane(lane, copy, 2));
        assert_eq!(copies, [0, 1, 2, MAX_SLOTS_PER_KEY - 1]);
    }

    #[test]
    fn a_count_is_whole_without_the_collectors_of_one_colour() {
        // 3 at colours 0 and 1, 4 at 0 and 2, 5 at 1 and 2, 6 at 3 alone.
        let rows = [(0, [0, 3, 4, 0]), (1, [3, 0, 5, 0]), (2, [4, 5, 0, 0]), (3, [0, 0, 0, 6])];
        let without = |lost: usize| {
            let mut all = vec![0; COLOURS * COLOURS];
            for (colour, lanes) in rows.iter().filter(|(colour, _)| *colour != lost) {
                let role = CountingRole { colour: *colour, lanes: [true; COLOURS] };
                all.iter_mut().zip(role.by_colour(lanes)).for_each(|(all, of)| *all += of);
            }
            total_count(&all)
        };
        assert_eq!([0, 1, 2, 3, 4].map(without), [18, 18, 18, 12, 18]);
        assert_eq!((total_count(&[]), total_count(&[u64::MAX; 16])), (0, u64::MAX));
        let role = CountingRole { colour: 2, lanes: [false, true, false, false] };
        assert_eq!(role.by_colour(&[1, 2, 3, 4]).iter().position(|count| *count == 2), Some(9));
        assert_eq!(total_count(&role.by_colour(&[1, 2, 3, 4])), 2);
    }

    proptest! {
        /// Four slots for up to 40 keys: a key's slots coincide all the time.
        #[test]
        fn never_below_what_was_applied(
            deltas in prop::collection::vec((0u8..10, 0u64..1000), 1..40), redundancy in 1u8..=4, bits in 0u32..6,
        ) {
            let key = |k: u8| Key([k; 16]);
            let mut table = vec![0u64; 1 << bits];
            let mut truth = [0u64; 10];
            for (k, delta) in &deltas {
                truth[usize::from(*k)] += delta;
                for slot in hash::key_slots(&key(*k), redundancy, 1 << bits).iter() {
                    table[*slot as usize] += delta;
                }
            }
            for k in 0..10u8 {
                let slots = hash::key_slots(&key(k), redundancy, 1 << bits);
                let counters: Vec<u64> = slots.iter().map(|s| table[*s as usize]).collect();
                let estimate = estimate_count(&slots, &counters);
                prop_assert!(estimate >= truth[usize::from(k)]);
                if truth.iter().enumerate().all(|(other, sum)| other == usize::from(k) || *sum == 0) {
                    prop_assert_eq!(estimate, truth[usize::from(k)], "a lone key reads exactly");
                }
            }
        }
    }
}
