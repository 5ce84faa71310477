//! Which values were told last, so that what has not changed need not be told again.
//!
//! The table has a fixed number of places, four to a bucket. A key that finds its bucket full takes the place of
//! the one told longest ago, which is counted; that key is new when it comes again. So what falls out costs an
//! event too many, and never one too few: keys are kept and compared whole.

use dta_proto::crc::crc32c;

/// When a value counts as changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detect {
    /// When it is another.
    Any,
    /// When it leaves its interval between powers of two: 0, 1, 2 to 3, 4 to 7, ...
    Powers,
    /// When it leaves its interval of this width, which is not 0.
    Width(u64),
    /// When it differs by more than this from the value told last.
    Threshold(u64),
}

impl Detect {
    /// Whether a value has changed, as against the one told last.
    pub fn changed(self, told: u64, value: u64) -> bool {
        match self {
            Detect::Any => told != value,
            Detect::Powers => told.leading_zeros() != value.leading_zeros(),
            Detect::Width(width) => told / width.max(1) != value / width.max(1),
            Detect::Threshold(most) => told.abs_diff(value) > most,
        }
    }
}

/// What is to be done with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its key is not known.
    New,
    /// It changed; the value told last.
    Changed(u64),
    /// It did not change for as long as the keep-alive; the value told last.
    KeepAlive(u64),
    /// Nothing.
    Same,
}

const WAYS: usize = 4;
/// Bits of a moment: nanoseconds since the start, two years of them.
const TIME: u64 = (1 << 56) - 1;

/// A key of one kind and what was told of it.
#[derive(Clone, Copy)]
struct Told {
    ident: u128,
    value: u64,
    /// Kind (8 bits, 0 = free) and moment (56 bits).
    meta: u64,
}

const FREE: Told = Told { ident: 0, value: 0, meta: 0 };

/// Two cache lines that are loaded together.
#[derive(Clone)]
#[repr(align(128))]
struct Bucket([Told; WAYS]);

/// What was told of many keys.
pub(crate) struct Seen {
    buckets: Box<[Bucket]>,
    evicted: u64,
    held: u64,
}

impl Seen {
    /// A table of at least this many keys: a power of two, 4 at least.
    pub(crate) fn new(keys: usize) -> Seen {
        let buckets = keys.next_power_of_two().max(WAYS) / WAYS;
        Seen { buckets: vec![Bucket([FREE; WAYS]); buckets].into(), evicted: 0, held: 0 }
    }

    /// Keys that lost their places.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Keys in the table.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Judges a value, and notes it where it is to be told. `kind` is not 0; keys are told apart by kind and
    /// `ident` together. `keep_alive` is in nanoseconds, 0 = never.
    #[inline]
    pub(crate) fn judge(
        &mut self,
        kind: u8,
        ident: u128,
        value: u64,
        now: u64,
        detect: Detect,
        keep_alive: u64,
    ) -> Verdict {
        let hash = (u64::from(crc32c(&ident.to_le_bytes())) ^ u64::from(kind) << 32)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bucket = &mut self.buckets[(hash >> 32) as usize & (self.buckets.len() - 1)].0;
        let (kind, now) = (u64::from(kind) << 56, now & TIME);
        for told in bucket.iter_mut() {
            if told.ident != ident || told.meta & !TIME != kind {
                continue;
            }
            let old = told.value;
            let verdict = if detect.changed(old, value) {
                Verdict::Changed(old)
            } else if keep_alive != 0 && now.saturating_sub(told.meta & TIME) >= keep_alive {
                Verdict::KeepAlive(old)
            } else {
                return Verdict::Same;
            };
            (told.value, told.meta) = (value, kind | now);
            return verdict;
        }
        // A free place has the moment 0, so it is the oldest.
        let mut oldest = 0;
        for way in 1..WAYS {
            let older = (bucket[way].meta != 0, bucket[way].meta & TIME)
                < (bucket[oldest].meta != 0, bucket[oldest].meta & TIME);
            if older {
                oldest = way;
            }
        }
        if bucket[oldest].meta == 0 {
            self.held += 1;
        } else {
            self.evicted += 1;
        }
        bucket[oldest] = Told { ident, value, meta: kind | now };
        Verdict::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn intervals_and_thresholds() {
        for (told, value, powers, width64, over50) in [
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
            assert_eq!(Detect::Powers.changed(told, value), powers, "{told} {value}");
            assert_eq!(Detect::Width(64).changed(told, value), width64, "{told} {value}");
            assert_eq!(Detect::Threshold(50).changed(told, value), over50, "{told} {value}");
        }
    }

    #[test]
    fn new_changed_same_and_kept_alive() {
        let mut seen = Seen::new(4);
        let mut judge = |kind, value, now| seen.judge(kind, 7, value, now, Detect::Width(10), 100);
        assert_eq!(judge(1, 5, 0), Verdict::New);
        assert_eq!(judge(1, 9, 50), Verdict::Same);
        assert_eq!(judge(2, 9, 50), Verdict::New, "another kind is another key");
        assert_eq!(judge(1, 10, 60), Verdict::Changed(5), "as against the value told, not the one before");
        assert_eq!(judge(1, 11, 159), Verdict::Same);
        assert_eq!(judge(1, 11, 160), Verdict::KeepAlive(10));
        assert_eq!(judge(1, 11, 161), Verdict::Same);
        assert_eq!((seen.held(), seen.evicted()), (2, 0));
    }

    #[test]
    fn the_key_told_longest_ago_gives_its_place() {
        let mut seen = Seen::new(4);
        let mut judge = |ident, now| seen.judge(1, ident, 1, now, Detect::Any, 0);
        for ident in 0..4 {
            assert_eq!(judge(ident, 10 + ident as u64), Verdict::New);
        }
        assert_eq!(judge(9, 20), Verdict::New);
        assert_eq!(judge(3, 21), Verdict::Same);
        assert_eq!(judge(0, 22), Verdict::New, "it fell out, so it is told again");
        assert_eq!((seen.held(), seen.evicted()), (4, 2));
    }

    proptest! {
        /// Against a map without bounds: what it tells, the table tells, too.
        #[test]
        fn an_eviction_costs_an_event_too_many_and_never_one_too_few(
            steps in prop::collection::vec((0u8..40, 0u64..64, 0u64..30), 0..400),
            room in prop_oneof![Just(4usize), Just(16), Just(4096)],
            detect in prop_oneof![Just(Detect::Any), Just(Detect::Powers), Just(Detect::Width(8)), Just(Detect::Threshold(8))],
        ) {
            let mut seen = Seen::new(room);
            let mut model: HashMap<(u8, u128), (u64, u64)> = HashMap::new();
            let mut now = 0;
            for (key, value, passed) in steps {
                now += passed;
                let (kind, ident) = (1 + key % 2, u128::from(key / 2));
                let verdict = seen.judge(kind, ident, value, now, detect, 100);
                // The model follows what was told.
                let told = model.get(&(kind, ident)).copied();
                let due = told.is_none_or(|(old, at)| detect.changed(old, value) || now - at >= 100);
                prop_assert!(!due || verdict != Verdict::Same, "an event too few");
                if room == 4096 {
                    prop_assert_eq!(due, verdict != Verdict::Same);
                    prop_assert_eq!(told.is_none(), verdict == Verdict::New);
                }
                if let Verdict::Changed(old) | Verdict::KeepAlive(old) = verdict {
                    prop_assert_eq!(Some(old), told.map(|(old, _)| old));
                }
                if verdict != Verdict::Same {
                    model.insert((kind, ident), (value, now));
                }
            }
            prop_assert!(seen.held() <= room as u64);
        }
    }
}
