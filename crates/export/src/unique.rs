//! What must be unique: identifiers, and times within a series, so that no point replaces another. A database keeps one point per series and
//! time, and two reports may have arrived in the same nanosecond, or carry the same switch's time.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;

use lru::LruCache;
use serde::{Deserialize, Serialize};

/// Assigns identifiers, which stay the same when something is sent again. No two are the same, whichever process assigns them.
#[cfg(any(feature = "kafka", feature = "otlp"))]
pub(crate) struct Ids {
    own: u64,
    given: u64,
}

#[cfg(any(feature = "kafka", feature = "otlp"))]
impl Ids {
    pub(crate) fn new() -> Self {
        // Without random numbers, the time at least does not repeat.
        Self { own: getrandom::u64().unwrap_or_else(|_| dta_files::moment::now_ns()), given: 0 }
    }

    /// An identifier that was not assigned before.
    pub(crate) fn next(&mut self) -> u128 {
        self.given += 1;
        u128::from(self.own) << 64 | u128::from(self.given)
    }
}

/// Most series whose last time is remembered.
const SERIES: NonZeroUsize = NonZeroUsize::new(65_536).expect("not 0");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AssignedTime {
    series: u64,
    /// The event's own time.
    own: u64,
    /// The time assigned to it.
    given: u64,
}

/// Assigns times. If a time is taken in its series, the next free nanosecond is assigned.
#[derive(Debug)]
pub(crate) struct SeriesTimes(LruCache<u64, AssignedTime>);

impl SeriesTimes {
    /// Continues after times assigned earlier.
    pub(crate) fn new(recent: &[AssignedTime]) -> Self {
        let mut times = LruCache::new(SERIES);
        for last in recent.iter().rev() {
            times.put(last.series, *last);
        }
        Self(times)
    }

    /// The time for a point of this series; `part` separates points that should have the same time.
    pub(crate) fn assign_time(&mut self, series: &str, part: u8, own: u64) -> u64 {
        // The hasher's keys are constant, so saved hashes mean the same in another process.
        let mut hasher = DefaultHasher::new();
        (series, part).hash(&mut hasher);
        let series = hasher.finish();
        let last = self.0.get(&series).copied();
        let now = match last {
            Some(last) if (last.own..=last.given).contains(&own) => {
                AssignedTime { given: last.given + 1, ..last }
            }
            _ => AssignedTime { series, own, given: own },
        };
        self.0.put(series, now);
        now.given
    }

    /// The series with the most recently assigned times, newest first.
    pub(crate) fn recent_series(&self, most: usize) -> Vec<AssignedTime> {
        self.0.iter().take(most).map(|(_, last)| *last).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_given_twice_in_a_series() {
        let mut times = SeriesTimes::new(&[]);
        assert_eq!([5, 5, 6, 5, 9].map(|own| times.assign_time("a", 0, own)), [5, 6, 7, 8, 9]);
        assert_eq!([times.assign_time("b", 0, 5), times.assign_time("a", 1, 5)], [5, 5]);
        // A switch's time may go backwards.
        assert_eq!(times.assign_time("a", 0, 3), 3);
        let mut again = SeriesTimes::new(&times.recent_series(8));
        assert_eq!(again.assign_time("a", 0, 3), 4);
    }
}
