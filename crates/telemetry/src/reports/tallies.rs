//! Sums a flow's reports before they are written: one FETCH_ADD for many reports.
//!
//! A sum is handed out when it has waited as long as the rules say (up to twice as long), at a flush, and
//! when another needs its place. So every report is counted, some late. Only as many are handed out at a time
//! as there is room for; the others stay due. Memory is bounded and preallocated.

use super::prefetch::prefetch_line;

const WAYS: usize = 4;
/// Unit of a sum's start time, as a shift of nanoseconds: about a millisecond.
const TICK: u32 = 20;
const CACHE_LINE: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingTally<S> {
    pub(crate) sum: S,
    /// Its reports; 0 = the place is free.
    pub(crate) reports: u32,
    /// Arrival of the first report, in units of 2^20 ns, modulo 2^32.
    since: u32,
}

/// Cache lines that are loaded in pairs.
#[derive(Clone)]
#[repr(align(128))]
struct TallyBucket<S>([PendingTally<S>; WAYS]);

#[derive(Default)]
pub(crate) struct FlowTallies<S> {
    buckets: Box<[TallyBucket<S>]>,
    /// Nanoseconds for which a sum waits.
    wait: u64,
    /// The next bucket to check, and until when all of them are checked.
    next: usize,
    checked: u64,
    /// Buckets that a flush still has to empty.
    flushing: usize,
    held: u64,
}

impl<S: Copy + Default> FlowTallies<S> {
    /// Room for at least this many sums (a power of two, at least 4). Each waits `wait` nanoseconds.
    pub(crate) fn new(sums: usize, wait: u64) -> FlowTallies<S> {
        let buckets = sums.next_power_of_two().max(WAYS) / WAYS;
        let buckets = vec![TallyBucket([PendingTally::default(); WAYS]); buckets].into();
        FlowTallies { buckets, wait, next: 0, checked: 0, flushing: 0, held: 0 }
    }

    /// Total of reports in all sums.
    pub(crate) fn held_reports(&self) -> u64 {
        self.held
    }

    /// Prefetches the sums at a place, one of which will be added to soon.
    #[inline]
    pub(crate) fn prefetch_sums(&self, place: usize) {
        let bucket = &self.buckets[place & (self.buckets.len() - 1)].0;
        prefetch_line(&bucket[0]);
        prefetch_line(&bucket[(CACHE_LINE / size_of::<PendingTally<S>>()).min(WAYS - 1)]);
    }

    /// Adds reports to one of the sums at a place: the first for which `into` returns that it did so. Returns whether
    /// there was one.
    #[inline]
    pub(crate) fn add(&mut self, place: usize, reports: u32, mut into: impl FnMut(&mut S) -> bool) -> bool {
        for waiting in &mut self.buckets[place & (self.buckets.len() - 1)].0 {
            if waiting.reports != 0
                && let Some(sum) = waiting.reports.checked_add(reports)
                && into(&mut waiting.sum)
            {
                waiting.reports = sum;
                self.held += u64::from(reports);
                return true;
            }
        }
        false
    }

    /// Begins a sum with reports that were [added](FlowTallies::add) to none. Returns the sum that was evicted, if any.
    #[inline]
    pub(crate) fn begin_sum(
        &mut self,
        place: usize,
        reports: u32,
        sum: S,
        now: u64,
    ) -> Option<PendingTally<S>> {
        let bucket = &mut self.buckets[place & (self.buckets.len() - 1)].0;
        let now = (now >> TICK) as u32;
        // A free place counts as the oldest.
        let age = |waiting: &PendingTally<S>| match waiting.reports {
            0 => u64::MAX,
            _ => now.wrapping_sub(waiting.since).into(),
        };
        let mut oldest = 0;
        for way in 1..WAYS {
            if age(&bucket[way]) > age(&bucket[oldest]) {
                oldest = way;
            }
        }
        let gone = std::mem::replace(&mut bucket[oldest], PendingTally { sum, reports, since: now });
        self.held = self.held + u64::from(reports) - u64::from(gone.reports);
        (gone.reports != 0).then_some(gone)
    }

    /// Hands out the sums that a flush asked for, or else those that have waited long enough: at most `most`. Each call
    /// checks buckets in proportion to the time passed, so that each is checked once per waiting time; those for which
    /// there is no room are the next call's first.
    pub(crate) fn take_due_sums(&mut self, now: u64, most: usize, mut write: impl FnMut(PendingTally<S>)) {
        let all = self.buckets.len();
        if self.held == 0 {
            (self.checked, self.flushing) = (now, 0);
        } else if self.flushing != 0 {
            self.flushing -= self.check_buckets(self.flushing, most, |_| true, &mut write);
        } else {
            let passed = now.saturating_sub(self.checked).min(self.wait);
            let due = (u128::from(passed) * all as u128 / u128::from(self.wait)) as usize;
            let (tick, wait) = ((now >> TICK) as u32, (self.wait >> TICK) as u32);
            let checked = self.check_buckets(due, most, |since| tick.wrapping_sub(since) >= wait, &mut write);
            // The time that these buckets stand for; the remainder counts next time.
            let time = (checked as u128 * u128::from(self.wait)).div_ceil(all as u128) as u64;
            self.checked =
                if checked == all { now } else { (self.checked + time).max(now.saturating_sub(self.wait)) };
        }
    }

    /// Checks the next buckets, as long as there is room. Returns how many it has finished.
    fn check_buckets(
        &mut self,
        buckets: usize,
        most: usize,
        is_due: impl Fn(u32) -> bool,
        write: &mut impl FnMut(PendingTally<S>),
    ) -> usize {
        let mut room = most;
        for checked in 0..buckets {
            for waiting in &mut self.buckets[self.next].0 {
                if waiting.reports != 0 && is_due(waiting.since) {
                    if room == 0 {
                        return checked;
                    }
                    room -= 1;
                    self.held -= u64::from(waiting.reports);
                    write(std::mem::take(waiting));
                }
            }
            self.next = (self.next + 1) & (self.buckets.len() - 1);
        }
        buckets
    }

    /// Makes all waiting sums due.
    pub(crate) fn request_flush(&mut self) {
        self.flushing = self.buckets.len();
    }

    /// Whether sums of that flush still wait.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing != 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1 << TICK;

    /// A flow, and its bytes.
    type Sum = (u8, u64);

    fn add(tallies: &mut FlowTallies<Sum>, flow: u8, now: u64) -> Option<PendingTally<Sum>> {
        let place = usize::from(flow).wrapping_mul(0x9e37_79b9) >> 4;
        let mut into = |sum: &mut Sum| {
            let is_its = sum.0 == flow;
            sum.1 += if is_its { 100 } else { 0 };
            is_its
        };
        if tallies.add(place, 1, &mut into) { None } else { tallies.begin_sum(place, 1, (flow, 100), now) }
    }

    fn due(tallies: &mut FlowTallies<Sum>, now: u64, most: usize) -> Vec<PendingTally<Sum>> {
        let mut out = Vec::new();
        tallies.take_due_sums(now, most, |waiting| out.push(waiting));
        out
    }

    #[test]
    fn a_sum_leaves_after_its_time_and_the_oldest_gives_its_place() {
        let mut tallies = FlowTallies::new(4, 10 * MS);
        for (flow, now) in [(1, 0), (2, 1), (1, 2), (3, 3), (4, 4)] {
            assert_eq!(add(&mut tallies, flow, now * MS), None);
        }
        let gone = add(&mut tallies, 5, 5 * MS).unwrap();
        assert_eq!((gone.sum, gone.reports), ((1, 200), 2));
        assert_eq!(due(&mut tallies, 9 * MS, 9), []);
        let left: Vec<_> = due(&mut tallies, 12 * MS, 9).iter().map(|gone| gone.sum.0).collect();
        assert_eq!((left, tallies.held_reports()), (vec![2], 3));
        tallies.request_flush();
        assert_eq!(
            (due(&mut tallies, 12 * MS, 9).len(), tallies.held_reports(), tallies.is_flushing()),
            (3, 0, false)
        );
    }

    #[test]
    fn what_is_due_leaves_as_there_is_room() {
        let mut tallies = FlowTallies::new(256, 10 * MS);
        for flow in 0..100 {
            assert_eq!(add(&mut tallies, flow, 0), None);
        }
        assert_eq!(due(&mut tallies, 20 * MS, 0), []);
        let counts = [30, 7, 1].map(|most| due(&mut tallies, 20 * MS, most).len());
        assert_eq!((counts, tallies.held_reports()), ([30, 7, 1], 62));
        tallies.request_flush();
        assert_eq!((due(&mut tallies, 0, 60).len(), tallies.is_flushing()), (60, true));
        assert_eq!((due(&mut tallies, 0, 60).len(), tallies.is_flushing()), (2, false));
    }

    proptest! {
        /// For any input, timing and room, each report leaves once; with room, none waits more than twice the waiting
        /// time.
        #[test]
        fn every_report_leaves_once(
            steps in prop::collection::vec((0u8..40, 0u64..5, 0usize..6, prop::bool::weighted(0.05)), 0..500),
            room in prop_oneof![Just(4usize), Just(16), Just(256)],
        ) {
            let mut tallies = FlowTallies::new(room, 10 * MS);
            let (mut added, mut left) = (HashMap::new(), HashMap::new());
            let mut now = 0;
            for (flow, passed, most, flushes) in steps {
                now += passed * MS;
                let mut out = Vec::from_iter(add(&mut tallies, flow, now));
                *added.entry(flow).or_insert(0u64) += 1;
                if flushes {
                    tallies.request_flush();
                }
                let handed = due(&mut tallies, now, most);
                prop_assert!(handed.len() <= most);
                out.extend(handed);
                for PendingTally { sum, reports, .. } in out {
                    prop_assert_eq!(sum.1, 100 * u64::from(reports));
                    *left.entry(sum.0).or_insert(0u64) += u64::from(reports);
                }
                let gone: u64 = left.values().sum();
                prop_assert_eq!(added.values().sum::<u64>(), gone + tallies.held_reports());
            }
            // After twice the waiting time, nothing waits. What a flush had no room for leaves first.
            for _ in 0..3 {
                for PendingTally { sum, reports, .. } in due(&mut tallies, now, usize::MAX) {
                    *left.entry(sum.0).or_insert(0) += u64::from(reports);
                }
                now += 10 * MS;
            }
            prop_assert_eq!(tallies.held_reports(), 0);
            prop_assert_eq!(added, left);
        }
    }
}
