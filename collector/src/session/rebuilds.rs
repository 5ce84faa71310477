//! How often the broken queue pairs of a session are rebuilt.
//!
//! Anyone who can send in a translator's name can break its RC queue pair with one frame, each time it is
//! rebuilt. Rebuilding takes an RDMA device up to seconds, during which other sessions wait. So after a few
//! in a row, rebuilds are spaced out, whether they come from renewals or from opens that resume a session.

use std::time::{Duration, Instant};

/// Rebuilds that may follow one another without a pause.
pub(super) const BURST: u32 = 8;
/// Pause before another one is allowed.
pub(super) const EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct Rebuilds {
    left: u32,
    /// When `left` was computed.
    at: Instant,
    /// Whether the log already says that they break too often.
    logged: bool,
}

impl Rebuilds {
    pub(super) fn new(now: Instant) -> Rebuilds {
        Rebuilds { left: BURST, at: now, logged: false }
    }

    /// How many are left, and as of when.
    fn rebuilds_left(&self, now: Instant) -> (u32, Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs() / EVERY.as_secs();
        let more = u32::try_from(passed).unwrap_or(BURST).min(BURST);
        match self.left + more {
            left if left >= BURST => (BURST, now),
            left => (left, self.at + EVERY * more),
        }
    }

    /// Whether queue pairs may be rebuilt now.
    pub(super) fn can_rebuild(&self, now: Instant) -> bool {
        self.rebuilds_left(now).0 > 0
    }

    pub(super) fn count_rebuild(&mut self, now: Instant) {
        let (left, at) = self.rebuilds_left(now);
        (self.left, self.at) = (left.saturating_sub(1), at);
        self.logged &= left < BURST;
    }

    /// Whether to log that they break too often: only once, until they have held for a while.
    pub(super) fn should_warn_once(&mut self) -> bool {
        !std::mem::replace(&mut self.logged, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_follow_each_other_and_then_they_come_at_intervals() {
        let t0 = Instant::now();
        let mut rebuilds = Rebuilds::new(t0);
        let mut made = |at| {
            let may = rebuilds.can_rebuild(at);
            if may {
                rebuilds.count_rebuild(at);
            }
            may
        };
        let in_the_first_minute = (0..600).filter(|&n| made(t0 + Duration::from_millis(100 * n))).count();
        assert_eq!(in_the_first_minute, 8 + 11);
        // After a long pause it is as at first.
        let later = t0 + Duration::from_secs(1000);
        assert_eq!((0..20).filter(|_| made(later)).count(), 8);
    }
}
