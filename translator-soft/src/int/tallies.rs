//! Sums a flow's reports before they are written: one FETCH_ADD for many reports.
//!
//! A flow's sum is written when it has waited as long as the rules say (up to twice as long under low load),
//! at a flush, and when another flow needs its place. So every report is counted, some late. Memory is
//! bounded and preallocated.

use dta_proto::key::Key;

use super::prefetch::prefetch;
use super::seen::Home;

const WAYS: usize = 4;
/// Unit of a sum's start time, as a shift of nanoseconds: about a millisecond.
const TICK: u32 = 20;

/// The waiting sum of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Its key.
    pub(crate) key: Key,
    /// Bytes of its packets.
    pub(crate) bytes: u64,
    /// Its reports; 0 = the place is free.
    pub(crate) reports: u32,
    /// Arrival of the first report, in units of 2^20 ns, modulo 2^32.
    since: u32,
}

impl Sum {
    /// A single report.
    pub(crate) fn one(key: Key, bytes: u64) -> Sum {
        Sum { key, bytes, reports: 1, since: 0 }
    }
}

/// Two cache lines that are loaded together.
#[derive(Clone)]
#[repr(align(128))]
struct Bucket([Sum; WAYS]);

/// Sums of many flows.
#[derive(Default)]
pub(crate) struct Tallies {
    buckets: Box<[Bucket]>,
    /// Nanoseconds for which a sum waits.
    wait: u64,
    /// The next bucket to check, and when the last check was.
    next: usize,
    looked: u64,
    held: u64,
}

impl Tallies {
    /// Room for at least this many flows (a power of two, at least 4). Each sum waits `wait` nanoseconds.
    pub(crate) fn new(flows: usize, wait: u64) -> Tallies {
        let buckets = flows.next_power_of_two().max(WAYS) / WAYS;
        let buckets = vec![Bucket([Sum::default(); WAYS]); buckets].into();
        Tallies { buckets, wait, next: 0, looked: 0, held: 0 }
    }

    /// Total of reports in all sums.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Prefetches the sum of a flow, which will be added to soon.
    #[inline]
    pub(crate) fn fetch(&self, home: Home) {
        let bucket = &self.buckets[home.number() & (self.buckets.len() - 1)].0;
        prefetch(&bucket[0]);
        prefetch(&bucket[WAYS / 2]);
    }

    /// Adds a report of a flow and the length of its packet. Returns a sum that was evicted, if any.
    #[inline]
    pub(crate) fn add(&mut self, home: Home, key: Key, bytes: u64, now: u64) -> Option<Sum> {
        self.held += 1;
        let bucket = &mut self.buckets[home.number() & (self.buckets.len() - 1)].0;
        for sum in bucket.iter_mut() {
            if sum.key == key && sum.reports != 0 && sum.reports != u32::MAX {
                sum.reports += 1;
                sum.bytes = sum.bytes.saturating_add(bytes);
                return None;
            }
        }
        let now = (now >> TICK) as u32;
        // A free place counts as the oldest.
        let age = |sum: &Sum| if sum.reports == 0 { u64::MAX } else { now.wrapping_sub(sum.since).into() };
        let mut oldest = 0;
        for way in 1..WAYS {
            if age(&bucket[way]) > age(&bucket[oldest]) {
                oldest = way;
            }
        }
        let gone = std::mem::replace(&mut bucket[oldest], Sum { key, bytes, reports: 1, since: now });
        self.held -= u64::from(gone.reports);
        (gone.reports != 0).then_some(gone)
    }

    /// Takes the sums that have waited long enough. Each call checks buckets in proportion to the time
    /// passed, so that each is checked once per waiting time.
    pub(crate) fn due(&mut self, now: u64, mut write: impl FnMut(Sum)) {
        let passed = now.saturating_sub(self.looked);
        if self.held == 0 || passed >= self.wait {
            self.looked = now;
            if self.held != 0 {
                self.look(self.buckets.len(), now, &mut write);
            }
            return;
        }
        let buckets = (u128::from(passed) * self.buckets.len() as u128 / u128::from(self.wait)) as usize;
        if buckets != 0 {
            // The time that these buckets stand for; the remainder counts next time.
            self.looked +=
                (buckets as u128 * u128::from(self.wait)).div_ceil(self.buckets.len() as u128) as u64;
            self.look(buckets, now, &mut write);
        }
    }

    /// Checks the next buckets.
    fn look(&mut self, buckets: usize, now: u64, write: &mut impl FnMut(Sum)) {
        let (now, wait) = ((now >> TICK) as u32, (self.wait >> TICK) as u32);
        for _ in 0..buckets {
            for sum in &mut self.buckets[self.next].0 {
                if sum.reports != 0 && now.wrapping_sub(sum.since) >= wait {
                    self.held -= u64::from(sum.reports);
                    write(std::mem::take(sum));
                }
            }
            self.next = (self.next + 1) & (self.buckets.len() - 1);
        }
    }

    /// Takes all sums.
    pub(crate) fn flush(&mut self, mut write: impl FnMut(Sum)) {
        if self.held == 0 {
            return;
        }
        let sums = self.buckets.iter_mut().flat_map(|bucket| &mut bucket.0);
        sums.filter(|sum| sum.reports != 0).for_each(|sum| write(std::mem::take(sum)));
        self.held = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1 << TICK;

    fn key(number: u8) -> Key {
        Key([number; 16])
    }

    fn add(tallies: &mut Tallies, number: u8, now: u64) -> Option<Sum> {
        let key = key(number);
        tallies.add(Home::of(u128::from_be_bytes(key.0)), key, 100, now)
    }

    #[test]
    fn a_sum_leaves_after_its_time_and_the_oldest_gives_its_place() {
        let mut tallies = Tallies::new(4, 10 * MS);
        for (number, now) in [(1, 0), (2, 1), (1, 2), (3, 3), (4, 4)] {
            assert_eq!(add(&mut tallies, number, now * MS), None);
        }
        let gone = add(&mut tallies, 5, 5 * MS).unwrap();
        assert_eq!((gone.key, gone.reports, gone.bytes), (key(1), 2, 200));
        let mut left = Vec::new();
        tallies.due(9 * MS, |sum| left.push(sum.key));
        assert!(left.is_empty());
        tallies.due(12 * MS, |sum| left.push(sum.key));
        assert_eq!(left, [key(2)]);
        assert_eq!(tallies.held(), 3);
        tallies.flush(|sum| left.push(sum.key));
        assert_eq!((left.len(), tallies.held()), (4, 0));
    }

    proptest! {
        /// For any input and timing, each report leaves once, and none waits more than twice the waiting
        /// time.
        #[test]
        fn every_report_leaves_once(
            steps in prop::collection::vec((0u8..40, 0u64..5), 0..500),
            room in prop_oneof![Just(4usize), Just(16), Just(256)],
        ) {
            let mut tallies = Tallies::new(room, 10 * MS);
            let (mut added, mut left) = (HashMap::new(), HashMap::new());
            let mut now = 0;
            for (number, passed) in steps {
                now += passed * MS;
                let mut out = Vec::from_iter(add(&mut tallies, number, now));
                *added.entry(key(number)).or_insert(0u64) += 1;
                tallies.due(now, |sum| out.push(sum));
                for sum in out {
                    prop_assert_eq!(sum.bytes, 100 * u64::from(sum.reports));
                    *left.entry(sum.key).or_insert(0u64) += u64::from(sum.reports);
                }
                let gone: u64 = left.values().sum();
                prop_assert_eq!(added.values().sum::<u64>(), gone + tallies.held());
            }
            // After twice the waiting time, nothing waits.
            for _ in 0..2 {
                now += 10 * MS;
                tallies.due(now, |sum| *left.entry(sum.key).or_insert(0) += u64::from(sum.reports));
            }
            prop_assert_eq!(tallies.held(), 0);
            prop_assert_eq!(added, left);
        }
    }
}
