//! When epochs end, and by which clock they age.
//!
//! Moments are what the wall clock shows, so that people find them. A clock that jumps must neither keep an epoch open nor make old
//! epochs of new ones: lengths are bounded by a clock that only goes forward.

use std::time::{Duration, Instant};

use super::now;

/// When an epoch began, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    /// In milliseconds since 1970.
    pub(super) moment: u64,
    /// The same, of an epoch that begins now; of another one, when that was noted.
    pub(super) at: Instant,
}

impl Began {
    pub(super) fn now() -> Began {
        loop {
            let began = Began { at: Instant::now(), moment: now() };
            // A thread that did not run between the two would take that for a jump of the clock.
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
    /// How long it is to last.
    length: Duration,
    /// Whether it began before this collector did, so that nobody knows for how long it has lasted.
    found: bool,
}

impl Due {
    /// Of an epoch that was opened at a moment.
    pub(super) fn new(began: Began, every: Duration) -> Due {
        Due::with_found(began, every, false)
    }

    /// The same; `found`: it began before this collector did.
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

    /// Whether it is over. Where the clock was set back, half an epoch later.
    pub(super) fn is_over(&self) -> bool {
        now() >= self.end || self.since.elapsed() >= self.length + self.every / 2
    }

    /// When it ended, if the next one begins at `next`. That is one moment, unless the clock has
    /// jumped: then it ends when it has lasted as long as it has, and claims no moment that the clock left out.
    pub(super) fn closing_moment(&self, next: Began) -> u64 {
        let (present, lasted) = (next.moment, next.at.saturating_duration_since(self.since));
        let ended = self.opened + (lasted.as_millis() as u64).max(1);
        let in_step = self.found || present.abs_diff(ended) <= SLACK.as_millis() as u64;
        if in_step && present > self.opened { present } else { ended }
    }

    /// Until when its memory can answer, if it ended at `closed`. While a collector is down, others hold what it held, so its
    /// memory says nothing of the time from the end that its epoch was to have until it is back.
    pub(super) fn known_until(&self, closed: u64) -> u64 {
        if self.found { closed.min(self.end) } else { closed }
    }

    /// How many ends of epochs have passed since.
    pub(super) fn missed_ends(&self) -> u64 {
        (self.since.elapsed().saturating_sub(self.length).as_millis() / self.every.as_millis()) as u64
    }
}

/// How far a clock may be from the length of an epoch without having jumped.
const SLACK: Duration = Duration::from_secs(1);

/// For how long a clock must have been ahead until epochs age by it.
const BELIEVED: Duration = Duration::from_secs(3600);
/// How far it may be ahead at once.
const STEP: Duration = Duration::from_secs(60);

/// The moment by which epochs are too old. A clock that jumps forward, and perhaps back again, must not remove all: it is believed
/// once it has been ahead for an hour.
pub(super) struct Ageing {
    moment: u64,
    at: Instant,
    ahead: Option<Instant>,
}

impl Ageing {
    /// Begins at the moment of the newest epoch: what came later may be a jump.
    pub(super) fn new(newest: u64, at: Instant) -> Ageing {
        Ageing { moment: newest, at, ahead: None }
    }

    /// The moment, while the clock shows `now`.
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
        // Back before its end, in time, and late by less and by more than an epoch.
        assert_eq!(
            [8000, 9000, 9788, 10_001, 40_000].map(|at| found.known_until(at)),
            [8000, 9000, 9000, 9000, 9000]
        );
        // Memory was lacking for the next one.
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
        // However long the epoch before was written.
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
