//! The values last reported, so that unchanged ones need not be reported again.
//!
//! The table has a fixed number of places, four to a bucket, and each key has two buckets. If both are full,
//! a new key evicts the one reported longest ago, which is counted; the evicted key is new when it comes
//! again. So an eviction may cause an extra event but never a missing one: keys are stored and compared
//! whole.
//!
//! A report of a flow needs the path, the latency, and the latency of each hop. Their buckets are 16
//! neighbours in one page, so that one address translation serves them all. [`ReportedValues::prefetch_buckets`] prefetches them.

use super::prefetch::prefetch_line;
use super::unchanged::SharedSlots;
use super::{OF_IPV6, OF_LONG_SWITCH};
use crate::int::SlotName;
use dta_proto::telemetry::Metric;

/// What counts as a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detect {
    Any,
    /// Leaving the interval between powers of two: 0, 1, 2 to 3, 4 to 7, ...
    Powers,
    /// Leaving the interval of this width, which is not 0.
    Width(u64),
    /// Differing from the last reported value by more than this.
    Threshold(u64),
}

impl Detect {
    /// Whether a value has changed since it was last reported.
    #[inline]
    pub fn is_change(self, reported: u64, value: u64) -> bool {
        match self {
            Detect::Any => reported != value,
            Detect::Powers => reported.leading_zeros() != value.leading_zeros(),
            Detect::Width(width) => reported / width.max(1) != value / width.max(1),
            Detect::Threshold(most) => reported.abs_diff(value) > most,
        }
    }

    /// The first and the last value that are no change from a reported one.
    pub(super) fn unchanged_interval(self, reported: u64) -> (u64, u64) {
        match self {
            Detect::Any => (reported, reported),
            Detect::Powers => match reported.checked_ilog2() {
                None => (0, 0),
                Some(power) => (1 << power, u64::MAX >> (63 - power)),
            },
            Detect::Width(width) => {
                let first = reported - reported % width.max(1);
                (first, first.saturating_add(width.max(1) - 1))
            }
            Detect::Threshold(most) => (reported.saturating_sub(most), reported.saturating_add(most)),
        }
    }
}

/// What to do with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    New,
    /// It changed from this last reported value.
    Changed(u64),
    /// It did not change during the keep-alive time; the last reported value.
    KeepAlive(u64),
    Same,
}

const WAYS: usize = 4;
/// Bits of a time: nanoseconds since the start, for two years.
const TIME: u64 = (1 << 56) - 1;
/// Bits of a latency that shares its place with a port: three days of nanoseconds; longer ones saturate.
const LATENCY: u64 = (1 << 48) - 1;

/// A key of one kind and its last reported value.
#[derive(Clone, Copy)]
struct ReportedSlot {
    ident: u128,
    value: u64,
    /// Kind (8 bits, 0 = free) and time (56 bits).
    meta: u64,
}

impl ReportedSlot {
    #[inline(always)] // on the path of every value
    fn detect_change(&mut self, value: u64, now: u64, detect: Detect, keep_alive: u64) -> Verdict {
        let old = self.value;
        let verdict = if detect.is_change(old, value) {
            Verdict::Changed(old)
        } else if keep_alive != 0 && now.saturating_sub(self.meta & TIME) >= keep_alive {
            Verdict::KeepAlive(old)
        } else {
            return Verdict::Same;
        };
        (self.value, self.meta) = (value, self.meta & !TIME | now);
        verdict
    }
}

const FREE: ReportedSlot = ReportedSlot { ident: 0, value: 0, meta: 0 };

/// Two cache lines that are loaded together.
#[derive(Clone)]
#[repr(align(128))]
struct ReportedBucket([ReportedSlot; WAYS]);

/// Number of adjacent buckets: 2 KiB.
const NEIGHBOURS: usize = 16;

/// The name of a value: its identity, and where to find it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueName {
    /// Not 0. Kind and `ident` together identify a name.
    kind: u8,
    ident: u128,
    /// Its first bucket.
    place: usize,
    /// Difference to its second bucket: 1 to 15.
    other: usize,
}

/// A flow's hash, from which all its values are found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(usize);

impl Home {
    /// For the flow with this key.
    #[inline]
    pub(crate) fn from_key(key: u128) -> Home {
        Home(mix_to_u64(key as u64, (key >> 64) as u64) as usize)
    }

    /// A value of the flow itself.
    #[inline]
    pub(crate) fn flow_value_name(self, kind: u8, ident: u128) -> ValueName {
        self.hop_value_name(kind, ident, 0)
    }

    /// A value of one of its hops.
    #[inline]
    pub(crate) fn hop_value_name(self, kind: u8, ident: u128, switch: u32) -> ValueName {
        let bits = (switch ^ u32::from(kind) << 24).wrapping_mul(0x9e37_79b1) as usize >> 20;
        ValueName { kind, ident, place: self.0 ^ bits >> 8, other: bits & (NEIGHBOURS - 1) | 1 }
    }

    #[inline]
    pub(crate) fn mixed_hash(self) -> usize {
        self.0
    }
}

impl ValueName {
    #[inline(always)] // on the path of every value
    fn matches_slot(&self, slot: &ReportedSlot) -> bool {
        slot.ident == self.ident && slot.meta & !TIME == u64::from(self.kind) << 56
    }

    /// A value that belongs to no flow.
    #[inline]
    pub(crate) fn without_flow(kind: u8, ident: u128) -> ValueName {
        let place = mix_to_u64(ident as u64 ^ u64::from(kind) << 56, (ident >> 64) as u64) as usize;
        ValueName { kind, ident, place, other: place >> 48 & (NEIGHBOURS - 1) | 1 }
    }
}

/// Mixes 128 bits to 64: the halves of a product, each of which depends on all bits of both factors.
#[inline]
pub(super) fn mix_to_u64(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xd1b5_4a32_d192_ed03);
    let folded = product as u64 ^ (product >> 64) as u64;
    folded.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20 ^ folded
}

/// The last reported values of many keys.
pub(crate) struct ReportedValues {
    buckets: Box<[ReportedBucket]>,
    evicted: u64,
    held: u64,
    /// What an XDP program knows of them.
    shared: Option<SharedSlots>,
}

impl ReportedValues {
    /// A table of at least this many keys: a power of two, 4 at least.
    pub(crate) fn new(keys: usize) -> ReportedValues {
        let buckets = keys.next_power_of_two().max(WAYS) / WAYS;
        let buckets = vec![ReportedBucket([FREE; WAYS]); buckets].into();
        ReportedValues { buckets, evicted: 0, held: 0, shared: None }
    }

    /// Shares values from now on.
    pub(super) fn share_values(&mut self, shared: SharedSlots) {
        self.shared = Some(shared);
    }

    /// The shared slot of a name; `None` if there is none.
    pub(crate) fn shared_slot(&self, name: &ValueName) -> Option<SlotName> {
        let at = self.find_slot(name)?;
        self.shared.as_ref()?.slot_at(at)
    }

    pub(crate) fn evicted_keys(&self) -> u64 {
        self.evicted
    }

    pub(crate) fn held_keys(&self) -> u64 {
        self.held
    }

    /// Prefetches the buckets of this name, which will be judged soon.
    #[inline]
    pub(crate) fn prefetch_buckets(&self, name: &ValueName) {
        let bucket = &self.buckets[name.place & (self.buckets.len() - 1)].0;
        prefetch_line(&bucket[0]);
        prefetch_line(&bucket[WAYS / 2]);
    }

    /// Judges a value, and records it if it must be reported. `keep_alive` is in nanoseconds, 0 = never.
    #[inline(always)] // on the path of every value
    pub(crate) fn detect_change(
        &mut self,
        name: &ValueName,
        value: u64,
        now: u64,
        detect: Detect,
        keep_alive: u64,
    ) -> Verdict {
        let now = now & TIME;
        let Some(at) = self.find_slot(name) else {
            let at = self.take_place(name, value, now);
            self.share_slot(at, detect, keep_alive, true);
            return Verdict::New;
        };
        let verdict = self.slot_mut(at).detect_change(value, now, detect, keep_alive);
        if verdict != Verdict::Same {
            self.share_slot(at, detect, keep_alive, false);
        }
        verdict
    }

    /// As [`ReportedValues::detect_change`], for a flow's latency in a switch that it leaves by this port: also returns whether
    /// the port differs from the last recorded one. Both share one place, so the port costs no extra memory
    /// access.
    #[inline(always)] // on the path of every hop
    pub(crate) fn judge_hop(
        &mut self,
        name: &ValueName,
        latency: u64,
        port: Option<u32>,
        now: u64,
        detect: Detect,
        keep_alive: u64,
    ) -> (Verdict, bool) {
        let (latency, now) = (latency.min(LATENCY), now & TIME);
        // Ports of up to 16 bits are distinguished; of longer ones, one change in 65,536 is missed until the
        // keep-alive.
        let port =
            u64::from(port.map_or(u16::MAX, |port| (port ^ port >> 16) as u16)) << LATENCY.count_ones();
        let Some(at) = self.find_slot(name) else {
            let at = self.take_place(name, latency | port, now);
            self.share_slot(at, detect, keep_alive, true);
            return (Verdict::New, false);
        };
        let slot = self.slot_mut(at);
        let mut next = ReportedSlot { value: slot.value & LATENCY, ..*slot };
        let verdict = next.detect_change(latency, now, detect, keep_alive);
        let moved = slot.value & !LATENCY != port;
        if moved || verdict != Verdict::Same {
            *slot = ReportedSlot { value: next.value | port, ..next };
            self.share_slot(at, detect, keep_alive, moved);
        }
        (verdict, moved)
    }

    /// Remembers a value; returns the previous one and its age. If that age is less than `least`, the
    /// previous value stays and `None` is returned, as for the first value.
    pub(crate) fn replace_if_older(
        &mut self,
        name: &ValueName,
        value: u64,
        now: u64,
        least: u64,
    ) -> Option<(u64, u64)> {
        let now = now & TIME;
        let Some(at) = self.find_slot(name) else {
            let at = self.take_place(name, value, now);
            self.share_slot(at, Detect::Any, 0, true);
            return None;
        };
        let slot = self.slot_mut(at);
        let age = now.saturating_sub(slot.meta & TIME);
        if age < least {
            return None;
        }
        slot.meta = slot.meta & !TIME | now;
        Some((std::mem::replace(&mut slot.value, value), age))
    }

    #[inline(always)] // on the path of every value
    fn slot_mut(&mut self, at: SlotPlace) -> &mut ReportedSlot {
        &mut self.buckets[at.bucket].0[at.way]
    }

    #[inline(always)] // on the path of every value
    fn find_slot(&self, name: &ValueName) -> Option<SlotPlace> {
        let bucket = name.place & (self.buckets.len() - 1);
        match self.buckets[bucket].0.iter().position(|slot| name.matches_slot(slot)) {
            Some(way) => Some(SlotPlace { bucket, way }),
            None => self.find_elsewhere(name),
        }
    }

    /// Finds a name that is not in its first bucket.
    #[inline(never)]
    fn find_elsewhere(&self, name: &ValueName) -> Option<SlotPlace> {
        let bucket = (name.place ^ name.other) & (self.buckets.len() - 1);
        let way = self.buckets[bucket].0.iter().position(|slot| name.matches_slot(slot))?;
        Some(SlotPlace { bucket, way })
    }

    /// Shares what was written to a place; `is_other` says whether templates that name it are wrong now.
    #[inline]
    fn share_slot(&mut self, at: SlotPlace, detect: Detect, keep_alive: u64, is_other: bool) {
        let Some(shared) = &mut self.shared else { return };
        let slot = self.buckets[at.bucket].0[at.way];
        let value = if is_latency_with_port(&slot) { slot.value & LATENCY } else { slot.value };
        let is_value = is_value_of_report(&slot);
        let interval = if is_value { detect.unchanged_interval(value) } else { (0, 0) };
        shared.write_slot(at, interval, slot.meta & TIME, keep_alive, is_other || !is_value);
    }

    /// Stores a new key in one of its buckets: in the first free place, or over the one reported longest ago.
    #[cold]
    fn take_place(&mut self, name: &ValueName, value: u64, now: u64) -> SlotPlace {
        let new = ReportedSlot { ident: name.ident, value, meta: u64::from(name.kind) << 56 | now };
        let mask = self.buckets.len() - 1;
        let places = [name.place, name.place ^ name.other].into_iter();
        let all = places.flat_map(|place| (0..WAYS).map(move |way| (place & mask, way)));
        // A free place has time 0, so it is the oldest.
        let age = |(bucket, way): &(usize, usize)| {
            let slot = self.buckets[*bucket].0[*way];
            (slot.meta != 0, slot.meta & TIME)
        };
        let (bucket, way) = all.min_by_key(age).unwrap_or((name.place & mask, 0));
        let place = &mut self.buckets[bucket].0[way];
        if place.meta == 0 {
            self.held += 1;
        } else {
            self.evicted += 1;
        }
        *place = new;
        SlotPlace { bucket, way }
    }
}

/// Where a key is in the table.
#[derive(Clone, Copy)]
pub(super) struct SlotPlace {
    bucket: usize,
    way: usize,
}

impl SlotPlace {
    pub(super) fn index(self) -> usize {
        self.bucket * WAYS + self.way
    }
}

/// The metric whose value a slot holds, if any.
fn metric_of(slot: &ReportedSlot) -> Option<Metric> {
    let kind = (slot.meta >> 56) as u8 & !(OF_IPV6 | OF_LONG_SWITCH);
    Metric::ALL.into_iter().find(|metric| *metric as u8 == kind)
}

fn is_latency_with_port(slot: &ReportedSlot) -> bool {
    metric_of(slot) == Some(Metric::HopLatency)
}

/// Whether the slot's value is in reports as such, so that a template can locate it.
fn is_value_of_report(slot: &ReportedSlot) -> bool {
    !matches!(metric_of(slot), None | Some(Metric::FlowPath))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn intervals_and_thresholds() {
        for (reported, value, powers, width64, over50) in [
            (408, 408, false, false, false),
            (408, 12, true, true, true),
            (200, 202, false, false, false),
            (255, 256, true, true, false),
            (0, 0, false, false, false),
            (0, 1, true, false, false),
            (64, 127, false, false, true),
            (100, 151, true, true, true),
            (150, 100, true, true, false),
        ] {
            assert_eq!(Detect::Powers.is_change(reported, value), powers, "{reported} {value}");
            assert_eq!(Detect::Width(64).is_change(reported, value), width64, "{reported} {value}");
            assert_eq!(Detect::Threshold(50).is_change(reported, value), over50, "{reported} {value}");
        }
    }

    #[test]
    fn new_changed_same_and_kept_alive() {
        let mut seen = ReportedValues::new(4);
        let mut judge = |kind, value, now| {
            seen.detect_change(&ValueName::without_flow(kind, 7), value, now, Detect::Width(10), 100)
        };
        assert_eq!(judge(1, 5, 0), Verdict::New);
        assert_eq!(judge(1, 9, 50), Verdict::Same);
        assert_eq!(judge(2, 9, 50), Verdict::New, "another kind is another key");
        assert_eq!(
            judge(1, 10, 60),
            Verdict::Changed(5),
            "compared with the value last reported, not the one before"
        );
        assert_eq!(judge(1, 11, 159), Verdict::Same);
        assert_eq!(judge(1, 11, 160), Verdict::KeepAlive(10));
        assert_eq!(judge(1, 11, 161), Verdict::Same);
        assert_eq!((seen.held_keys(), seen.evicted_keys()), (2, 0));
    }

    #[test]
    fn a_value_is_exchanged_for_the_one_before_and_its_age() {
        let mut seen = ReportedValues::new(4);
        let mut exchange = |value, now| seen.replace_if_older(&ValueName::without_flow(1, 7), value, now, 10);
        assert_eq!([exchange(5, 0), exchange(6, 9)], [None, None], "the first, and one too early");
        assert_eq!([exchange(7, 10), exchange(7, 30)], [Some((5, 10)), Some((7, 20))]);
    }

    #[test]
    fn a_port_is_judged_beside_the_latency_and_leaves_it_as_it_is() {
        let mut seen = ReportedValues::new(4);
        let mut judge = |latency, port, now| {
            seen.judge_hop(&ValueName::without_flow(1, 7), latency, port, now, Detect::Powers, 100)
        };
        assert_eq!(judge(5, Some(3), 0), (Verdict::New, false));
        assert_eq!(judge(5, Some(3), 1), (Verdict::Same, false));
        assert_eq!(judge(6, Some(4), 2), (Verdict::Same, true));
        assert_eq!(judge(6, Some(4), 3), (Verdict::Same, false));
        assert_eq!(judge(6, None, 4), (Verdict::Same, true));
        assert_eq!(
            judge(9, Some(0), 5),
            (Verdict::Changed(5), true),
            "the latency last reported, not the one since"
        );
        assert_eq!(judge(9, Some(0), 105), (Verdict::KeepAlive(9), false));
        assert_eq!(judge(u64::MAX, Some(0), 106), (Verdict::Changed(9), false));
        assert_eq!(judge(u64::MAX, Some(1 << 16), 107), (Verdict::Same, true));
    }

    #[test]
    fn the_key_reported_longest_ago_gives_its_place() {
        let mut seen = ReportedValues::new(4);
        let mut judge =
            |ident, now| seen.detect_change(&ValueName::without_flow(1, ident), 1, now, Detect::Any, 0);
        for ident in 0..4 {
            assert_eq!(judge(ident, 10 + ident as u64), Verdict::New);
        }
        assert_eq!(judge(9, 20), Verdict::New);
        assert_eq!(judge(3, 21), Verdict::Same);
        assert_eq!(judge(0, 22), Verdict::New, "it was evicted, so it is reported again");
        assert_eq!((seen.held_keys(), seen.evicted_keys()), (4, 2));
    }

    proptest! {
        #[test]
        fn an_interval_has_the_values_that_are_no_change(
            reported in prop_oneof![0u64..300, any::<u64>()],
            value in prop_oneof![0u64..300, any::<u64>()],
            detect in prop_oneof![Just(Detect::Any), Just(Detect::Powers), (1u64..100).prop_map(Detect::Width), (0u64..100).prop_map(Detect::Threshold)],
        ) {
            let (first, last) = detect.unchanged_interval(reported);
            prop_assert_eq!((first..=last).contains(&value), !detect.is_change(reported, value));
            for value in [first.wrapping_sub(1), first, last, last.wrapping_add(1)] {
                prop_assert_eq!((first..=last).contains(&value), !detect.is_change(reported, value));
            }
        }

        /// Against an unbounded map: whatever the map reports, the table reports, too.
        #[test]
        fn an_eviction_costs_an_event_too_many_and_never_one_too_few(
            steps in prop::collection::vec((0u8..40, 0u64..64, 0u64..30), 0..400),
            room in prop_oneof![Just(4usize), Just(16), Just(4096)],
            detect in prop_oneof![Just(Detect::Any), Just(Detect::Powers), Just(Detect::Width(8)), Just(Detect::Threshold(8))],
        ) {
            let mut seen = ReportedValues::new(room);
            let mut model: HashMap<(u8, u128), (u64, u64)> = HashMap::new();
            let mut now = 0;
            for (key, value, passed) in steps {
                now += passed;
                let (kind, ident) = (1 + key % 2, u128::from(key / 2));
                let name = if key % 3 == 0 { ValueName::without_flow(kind, ident) } else { Home::from_key(ident).hop_value_name(kind, ident, key.into()) };
                let verdict = seen.detect_change(&name, value, now, detect, 100);
                // The model follows what was reported.
                let reported = model.get(&(kind, ident)).copied();
                let due = reported.is_none_or(|(old, at)| detect.is_change(old, value) || now - at >= 100);
                prop_assert!(!due || verdict != Verdict::Same, "an event too few");
                if room == 4096 {
                    prop_assert_eq!(due, verdict != Verdict::Same);
                    prop_assert_eq!(reported.is_none(), verdict == Verdict::New);
                }
                if let Verdict::Changed(old) | Verdict::KeepAlive(old) = verdict {
                    prop_assert_eq!(Some(old), reported.map(|(old, _)| old));
                }
                if verdict != Verdict::Same {
                    model.insert((kind, ident), (value, now));
                }
            }
            prop_assert!(seen.held_keys() <= room as u64);
        }
    }
}
