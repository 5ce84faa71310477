//! Key-increment: a count-min table of 64-bit counters.
//!
//! A counter is a little-endian `u64`, 8-byte aligned: the NIC adds an AtomicETH operand in the host's byte
//! order. FETCH_ADD goes to each slot_n of the key; the estimate is the minimum over N and never below the
//! true sum. After Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its
//! applications" (2005), with one shared row instead of one per hash.

/// Length of a counter.
pub const COUNTER_LEN: u64 = 8;

/// Byte offset of counter number `slot`.
#[inline]
pub fn offset(slot: u64) -> u64 {
    slot * COUNTER_LEN
}

/// Writes a counter.
#[inline]
pub fn encode(counter: u64) -> [u8; 8] {
    counter.to_le_bytes()
}

/// Reads a counter; `None` unless there are exactly 8 bytes.
#[inline]
pub fn decode(bytes: &[u8]) -> Option<u64> {
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
pub fn estimate(slots: &[u64], counters: &[u64]) -> u64 {
    let share = |(slot, counter): (&u64, &u64)| counter / slots.iter().filter(|s| *s == slot).count() as u64;
    assert!(counters.len() >= slots.len(), "a counter for each slot");
    slots.iter().zip(counters).map(share).min().unwrap_or(0)
}

/// Which of a key's slots is its `copy`-th counter at the `replica`-th of the collectors that count it.
#[inline]
pub fn copy_of_replica(replica: usize, copy: u8, redundancy: u8) -> usize {
    replica * usize::from(redundancy) + usize::from(copy)
}

/// What each replica has counted of a key: the [`estimate`] from its `redundancy` slots. `slots` and `counters` are
/// those of all replicas, in order.
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
    slots.chunks(of).zip(counters.chunks(of)).map(|(slots, counters)| estimate(slots, counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::layout::hash;
    use proptest::prelude::*;

    #[test]
    fn decode_wants_eight_bytes() {
        assert_eq!(decode(&[1, 0, 0, 0, 0, 0, 0, 0x80]), Some(0x8000_0000_0000_0001));
        assert_eq!(decode(&[0; 7]), None);
        assert_eq!(decode(&[0; 9]), None);
    }

    #[test]
    fn a_coinciding_slot_is_divided() {
        assert_eq!(estimate(&[5, 9], &[30, 40]), 30);
        assert_eq!(estimate(&[5, 5], &[30, 30]), 15);
        assert_eq!(estimate(&[5, 9, 5], &[31, 14, 31]), 14);
        assert_eq!(estimate(&[], &[]), 0);
    }

    #[test]
    fn each_replica_has_an_estimate_of_its_own() {
        let of = |redundancy, slots: &[u64], counters: &[u64]| -> Vec<u64> {
            estimates(redundancy, slots, counters).collect()
        };
        assert_eq!(of(2, &[5, 9, 2, 7], &[30, 40, 8, 6]), [30, 6]);
        // Slots that coincide are divided within a replica, and are other keys' in another one.
        assert_eq!(of(2, &[5, 5, 5, 7], &[30, 30, 30, 60]), [15, 30]);
        assert_eq!(of(1, &[5, 9, 2], &[3, 4, 5]), [3, 4, 5]);
        let copies =
            [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(replica, copy)| copy_of_replica(replica, copy, 2));
        assert_eq!(copies, [0, 1, 2, 3]);
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
                for slot in hash::slots(&key(*k), redundancy, 1 << bits).iter() {
                    table[*slot as usize] += delta;
                }
            }
            for k in 0..10u8 {
                let slots = hash::slots(&key(k), redundancy, 1 << bits);
                let counters: Vec<u64> = slots.iter().map(|s| table[*s as usize]).collect();
                let estimate = estimate(&slots, &counters);
                prop_assert!(estimate >= truth[usize::from(k)]);
                if truth.iter().enumerate().all(|(other, sum)| other == usize::from(k) || *sum == 0) {
                    prop_assert_eq!(estimate, truth[usize::from(k)], "a lone key reads exactly");
                }
            }
        }
    }
}
