//! Keeping a rate.

use std::time::{Duration, Instant};

/// Tells how many reports may be sent now to keep a rate. Plain arithmetic on the times passed in.
///
/// A caller that is up to 10 ms late catches up fully, and a later one by 10 ms worth of reports, so that a
/// long pause does not lead to a burst.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    per_second: f64,
    /// Most reports at once. It is one more than may be caught up, because a caller that came just too early
    /// for a report has nearly earned it: otherwise, a low rate would lose that share at each late call.
    burst: f64,
    since: Instant,
    /// Reports granted since `since`.
    granted: f64,
}

/// How many seconds a late caller may catch up.
const CATCH_UP: f64 = 0.01;

impl Pacer {
    /// `per_second` reports from `now` on; 0, a negative number or NaN means no limit.
    pub fn new(per_second: f64, now: Instant) -> Self {
        let per_second = if per_second > 0.0 { per_second } else { f64::INFINITY };
        Pacer { per_second, burst: 1.0 + CATCH_UP * per_second, since: now, granted: 0.0 }
    }

    /// The same, but `burst` of them may be sent at once, initially and after a long enough pause.
    pub fn with_burst(per_second: f64, burst: u64, now: Instant) -> Self {
        let burst = (burst as f64).max(1.0);
        Pacer { burst, granted: 1.0 - burst, ..Pacer::new(per_second, now) }
    }

    /// How many of `wanted` reports may be sent at `now`; they count as sent.
    pub fn grant_reports(&mut self, wanted: u64, now: Instant) -> u64 {
        if self.per_second.is_infinite() {
            return wanted;
        }
        let earned = now.saturating_duration_since(self.since).as_secs_f64() * self.per_second + 1.0;
        self.granted = self.granted.max(earned - self.burst);
        let now_granted = wanted.min((earned - self.granted).max(0.0) as u64);
        self.granted += now_granted as f64;
        now_granted
    }

    /// Time from `now` until the next report may be sent.
    pub fn time_until_next(&self, now: Instant) -> Duration {
        if self.per_second.is_infinite() {
            return Duration::ZERO;
        }
        let at = Duration::try_from_secs_f64(self.granted / self.per_second).unwrap_or(Duration::MAX);
        at.saturating_sub(now.saturating_duration_since(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_limit_all_may_leave() {
        let now = Instant::now();
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut pacer = Pacer::new(rate, now);
            assert_eq!(pacer.grant_reports(u64::MAX, now), u64::MAX);
            assert_eq!(pacer.time_until_next(now), Duration::ZERO);
        }
    }

    #[test]
    fn one_a_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pacer = Pacer::new(1.0, start);
        assert_eq!(pacer.grant_reports(5, at(0)), 1);
        assert_eq!(pacer.time_until_next(at(0)), Duration::from_secs(1));
        assert_eq!(pacer.grant_reports(5, at(999)), 0);
        assert_eq!(pacer.grant_reports(5, at(1000)), 1);
        assert_eq!(pacer.grant_reports(5, at(9000)), 1, "a pause is not made good");
        assert_eq!(pacer.grant_reports(5, at(9500)), 0);
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pacer = Pacer::with_burst(10.0, 50, start);
        assert_eq!(pacer.grant_reports(70, at(0)), 50);
        assert_eq!(pacer.grant_reports(70, at(1000)), 10);
        assert_eq!(pacer.grant_reports(70, at(3_600_000)), 50);
    }

    proptest! {
        /// At any rate and for any steps, the sum stays within the rate; with small steps it reaches the rate.
        #[test]
        fn the_rate_is_kept(
            rate in prop_oneof![1.0f64..1e3, 1.0f64..1e7],
            steps in prop::collection::vec(0u64..5_000, 1..200),
        ) {
            let start = Instant::now();
            let (mut pacer, mut now, mut sum) = (Pacer::new(rate, start), start, 0);
            for micros in steps {
                now += Duration::from_micros(micros);
                sum += pacer.grant_reports(u64::MAX, now);
            }
            let earned = (now - start).as_secs_f64() * rate;
            prop_assert!(sum as f64 <= earned + 1.0 + 1e-3);
            prop_assert!(sum as f64 >= earned - 1.0, "{sum} of {earned}");
        }
    }
}
