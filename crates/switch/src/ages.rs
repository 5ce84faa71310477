//! How old is what a switch holds that counts no time: as old as the first look that found it as it is now.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a place holds, as far as that differs from what it held before: another one is another content.
pub type Mark = [u32; 5];

/// A place: its kind, the pipe that it is of, and its number there.
pub type Place = (u8, usize, u32);

/// Since when places hold what they hold.
#[derive(Debug, Default)]
pub struct Ages(BTreeMap<Place, (Mark, Instant)>);

impl Ages {
    /// For how long a place has held this, by a look at `now`.
    pub fn observe_age(&mut self, place: Place, mark: Mark, now: Instant) -> Duration {
        let (seen, since) = self.0.entry(place).or_insert((mark, now));
        if *seen != mark {
            (*seen, *since) = (mark, now);
        }
        now.saturating_duration_since(*since)
    }

    pub fn forget_place(&mut self, place: Place) {
        self.0.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_young_again() {
        let (mut ages, start) = (Ages::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut age = |kind, mark: u32, ms| ages.observe_age((kind, 0, 7), [mark; 5], at(ms)).as_millis();
        assert_eq!([age(3, 1, 0), age(3, 1, 20), age(4, 1, 20), age(3, 1, 50)], [0, 20, 0, 50]);
        // It moved on, and stayed so; the other kind did not.
        assert_eq!([age(3, 2, 60), age(3, 2, 70), age(4, 1, 70)], [0, 10, 50]);
        ages.forget_place((3, 0, 7));
        assert_eq!(ages.observe_age((3, 0, 7), [2; 5], at(80)), Duration::ZERO);
        assert_eq!(ages.observe_age((4, 0, 7), [1; 5], at(80)), Duration::from_millis(60));
        // The other pipe's.
        assert_eq!(ages.observe_age((4, 1, 7), [1; 5], at(80)), Duration::ZERO);
        // A clock that the caller read before.
        assert_eq!(ages.observe_age((4, 0, 7), [1; 5], start), Duration::ZERO);
    }
}
