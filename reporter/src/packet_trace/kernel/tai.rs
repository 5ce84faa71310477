//! The kernel's TAI clock. Programs read the monotonic clock, which is faster; TAI is ahead of it by an
//! offset that stays fixed until somebody sets the clock. UTC is whole seconds behind TAI, or 0 seconds on
//! the many hosts where no daemon has told the kernel the offset.

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

/// Number of measurements, of which the best is used.
const MEASUREMENTS: usize = 100;
/// Largest difference between two exact measurements, in nanoseconds: each is rounded.
const ROUNDING: u64 = 10;

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The kernel's TAI clock, in nanoseconds: the clock of records.
pub fn tai_now() -> u64 {
    nanoseconds(clock_gettime_dynamic(DynamicClockId::Tai).unwrap_or_default())
}

/// The clock that programs read.
fn monotonic() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// TAI minus UTC in nanoseconds: whole seconds, because the two clocks are not read at the same time.
fn read_tai_offset() -> i64 {
    const SECOND: i64 = 1_000_000_000;
    let apart = tai_now() as i64 - nanoseconds(clock_gettime(ClockId::Realtime)) as i64;
    (apart + SECOND / 2).div_euclid(SECOND) * SECOND
}

/// How far TAI is ahead of the monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    span: u64,
    /// The largest error: half of the time that the measurement took.
    error: u64,
    /// TAI minus UTC at that time.
    leap: i64,
}

impl Ahead {
    pub(super) fn measure_best() -> Self {
        let best = (0..MEASUREMENTS).map(|_| Self::measure_once()).min_by_key(|ahead| ahead.error);
        best.unwrap_or_else(Self::measure_once)
    }

    fn measure_once() -> Self {
        let before = monotonic();
        let tai = tai_now();
        let error = (monotonic() - before) / 2 + 1;
        Self { span: tai.wrapping_sub(before + error), error, leap: read_tai_offset() }
    }

    /// Measures again if somebody set the clock.
    pub(super) fn follow_clock(&mut self) {
        if !self.agrees_with(Self::measure_once()) {
            *self = Self::measure_best();
        }
    }

    fn agrees_with(self, other: Self) -> bool {
        let apart = self.span.wrapping_sub(other.span) as i64;
        apart.unsigned_abs() <= self.error + other.error + ROUNDING
    }

    pub(super) fn tai_offset(self) -> i64 {
        self.leap
    }

    /// TAI at a time of the monotonic clock.
    pub(super) fn tai_at_monotonic(self, monotonic: u64) -> u64 {
        monotonic.wrapping_add(self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_programs_becomes_tai() {
        let ahead = Ahead::measure_best();
        let (before, monotonic, after) = (tai_now(), monotonic(), tai_now());
        let slack = ahead.error + ROUNDING;
        assert!((before - slack..=after + slack).contains(&ahead.tai_at_monotonic(monotonic)), "{ahead:?}");
    }

    #[test]
    fn clock_that_was_set_is_noticed_and_noise_is_not() {
        let ahead = Ahead { span: 1_700_000_000_000_000_000, error: 30, leap: 0 };
        let other = |apart: i64, error| Ahead { span: ahead.span.wrapping_add_signed(apart), error, leap: 0 };
        assert!(ahead.agrees_with(other(30, 30)) && ahead.agrees_with(other(-900, 1000)));
        assert!(!ahead.agrees_with(other(500, 30)) && !ahead.agrees_with(other(-1_000_000_000, 5000)));
        // A mismatch is measured again; from then on, the offset agrees with the clock.
        let mut wrong =
            Ahead { span: Ahead::measure_best().span.wrapping_add(3_600_000_000_000), error: 30, leap: 7 };
        wrong.follow_clock();
        assert!(wrong.agrees_with(Ahead::measure_best()));
        // And so does TAI minus UTC.
        assert_eq!(wrong.tai_offset(), read_tai_offset());
    }
}
