//! Rate-limited logging: strangers must not be able to fill a disk.

use std::time::{Duration, Instant};

/// Least time between lines about the same thing.
const EVERY: Duration = Duration::from_secs(10);

/// Lets one line through every ten seconds, and counts events in between.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    last: Option<Instant>,
    since: u64,
}

impl Quiet {
    /// Counts one event. `Some(n)` = log it now, as `n` events since the last line.
    pub(crate) fn count_event(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_counts_the_others() {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        assert_eq!(quiet.count_event(start), Some(1));
        for second in 1..10 {
            assert_eq!(quiet.count_event(start + Duration::from_secs(second)), None);
        }
        assert_eq!(quiet.count_event(start + Duration::from_secs(10)), Some(10));
    }
}
