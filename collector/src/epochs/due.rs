//! When epochs end, and which clock they age by.
//!
//! Moments come from the wall clock, so that people recognize them. A clock that jumps must neither keep an
//! epoch open nor make new epochs look old, so lengths are also bounded by a monotonic clock.

use std::time::{Duration, Instant};

use super::now;

/// When an epoch began, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    /// In milliseconds since 1970.
    pub(super) moment: u64,
    /// When it began or, for an epoch that did not begin just now, when its beginning was noted.
    pub(super) at: Instant,
}

impl Began {
    pub(super) fn now() -> Began {
        loop {
            let began = Began { at: Instant::now(), moment: now() };
            // If the thread was paused between the two readings, that would look like a jump of the clock.
            if began.at.elapsed() < SLACK / 10 {
                return began;
            }
        }
    }

    pub(super) fn from_moment(moment: u64) -> Began {
        Began { moment, at: Instant::now() }
    }
}

/// The end of an epoch: the next multiple of its length since 1970.
pub(super) struct Due {
    opened: u64,
    end: u64,
    every: Duration,
    since: Instant,
    /// How long it should last.
    length: Duration,
    /// Whether it began before this collector did, so that nobody knows how long it has lasted.
    found: bool,
}

impl Due {
    /// The end of an epoch that began at this moment.
    pub(super) fn new(began: Began, every: Duration) -> Due {
        Due::with_found(began, every, false)
    }

    /// Like [`Due::new`]; `found` means that it began before this collector did.
    pub(super) fn with_found(
        Began { moment: opened, at: since }: Began,
        every: Duration,
        found: bool,
    ) -> Due {
        let millis = every.as_millis() as u64;
        let end = (opened / millis + 1) * millis;
        let length = Duration::from_millis(end - opened);
        Due { opened, end, every, since, length, found }
    }

    /// Whether it is over. If the clock was set back, that is at most half an epoch late.
    pub(super) fn is_over(&self) -> bool {
        now() >= self.end || self.since.elapsed() >= self.length + self.every / 2
    }

    /// When it ended, if the next one begins at `next`. Both are the same moment, unless the clock has
    /// jumped: then it ends after the time it really lasted, and claims no moment that the clock skipped.
    pub(super) fn closing_moment(&self, next: Began) -> u64 {
        let (present, lasted) = (next.moment, next.at.saturating_duration_since(self.since));
        let ended = self.opened + (lasted.as_millis() as u64).max(1);
        let in_step = self.found || present.abs_diff(ended) <= SLACK.as_millis() as u64;
        if in_step && present > self.opened { present } else { ended }
    }

    /// Until when its memory can answer, if it ended at `closed`. While a collector is down, others hold its
    /// part, so its memory says nothing about the time from the epoch's due end until the collector is back.
    pub(super) fn known_until(&self, closed: u64) -> u64 {
        if self.found { closed.min(self.end) } else { closed }
    }

    /// How many further ends of epochs have passed since it was due.
    pub(super) fn missed_ends(&self) -> u64 {
        (self.since.elapsed().saturating_sub(self.length).as_millis() / self.every.as_millis()) as u64
    }
}

/// How far the clock may deviate from an epoch's length before that counts as a jump.
const SLACK: Duration = Duration::from_secs(1);

/// How long a clock must have been ahead before epochs age by it.
const BELIEVED: Duration = Duration::from_secs(3600);
/// How far ahead it may move in one step and be believed at once.
const STEP: Duration = Duration::from_secs(60);

/// The moment that the age of epochs is measured from. A clock that jumps forward, and perhaps back again,
/// must not cause everything to be removed: it is believed once it has been ahead for an hour.
pub(super) struct Ageing {
    moment: u64,
    at: Instant,
    ahead: Option<Instant>,
}

impl Ageing {
    /// Begins at the moment of the newest epoch, as the clock may have jumped since.
    pub(super) fn new(newest: u64, at: Instant) -> Ageing {
        Ageing { moment: newest, at, ahead: None }
    }

    /// The moment to use while the clock shows `now`.
    pub(super) fn moment_at(&mut self, now: u64, at: Instant) -> u64 {
        let passed = |since: Instant| at.saturating_duration_since(since);
        let steady = self.moment.saturating_add(passed(self.at).as_millis() as u64);
        if now > steady.saturating_add(STEP.as_millis() as u64) {
            let ahead = *self.ahead.get_or_insert(at);
            if passed(ahead) < BELIEVED {
                return steady;
            }
        }
        *self = Ageing { moment: now, at, ahead: None };
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_says_nothing_of_the_time_in_which_its_collector_was_down() {
        let every = Duration::from_secs(3);
        let began = Began::from_moment(7000);
        let found = Due::with_found(began, every, true);
        // The collector is back before the epoch's due end, at that end, and late by less and by more than an epoch.
        assert_eq!(
            [8000, 9000, 9788, 10_001, 40_000].map(|at| found.known_until(at)),
            [8000, 9000, 9000, 9000, 9000]
        );
        // There was no memory for the next epoch.
        assert_eq!(Due::new(began, every).known_until(40_000), 40_000);
    }

    #[test]
    fn an_epoch_ends_as_the_next_one_begins_unless_the_clock_jumped() {
        let began = Began { moment: 7000, at: Instant::now() };
        let due = Due::new(began, Duration::from_secs(3));
        let closed = |moment: u64, after: u64| {
            due.closing_moment(Began { moment, at: began.at + Duration::from_millis(after) })
        };
        assert_eq!(
            [(10_000, 3000), (10_900, 3000), (9_100, 3000)].map(|(at, after)| closed(at, after)),
            [10_000, 10_900, 9_100]
        );
        // However long it took to write the previous epoch.
        assert_eq!(closed(67_000, 60_000), 67_000);
        assert_eq!(
            [(20_000, 3000), (3000, 3000), (7000, 500)].map(|(at, after)| closed(at, after)),
            [10_000, 10_000, 7500]
        );
    }

    #[test]
    fn a_clock_that_jumps_forward_is_believed_after_an_hour_and_one_that_goes_back_at_once() {
        let begin = Instant::now();
        let (hour, minute) = (3_600_000, 60_000);
        let at = |minutes: u64| begin + Duration::from_millis(minutes * minute);
        let mut ageing = Ageing::new(100 * hour, begin);
        // In step, and slightly ahead.
        assert_eq!(ageing.moment_at(100 * hour + minute, at(1)), 100 * hour + minute);
        assert_eq!(ageing.moment_at(100 * hour + 2 * minute + 500, at(2)), 100 * hour + 2 * minute + 500);
        // A year ahead, and back.
        for minutes in 3..60 {
            let moment = ageing.moment_at(9000 * hour + minutes * minute, at(minutes));
            assert_eq!(moment, 100 * hour + minutes * minute + 500);
        }
        assert_eq!(ageing.moment_at(100 * hour + 61 * minute, at(61)), 100 * hour + 61 * minute);
        // Ahead to stay.
        assert_eq!(ageing.moment_at(200 * hour, at(62)), 100 * hour + 62 * minute);
        assert_eq!(ageing.moment_at(200 * hour + 61 * minute, at(123)), 200 * hour + 61 * minute);
        // Back by a day.
        assert_eq!(ageing.moment_at(176 * hour, at(124)), 176 * hour);
    }
}
