//! Retransmission timeout after RFC 6298, in nanoseconds.

/// Minimum: below this, a busy processor would look like a loss.
const LEAST: u64 = 300_000;
/// Longest time between two tries.
const MOST: u64 = 1_000_000_000;
/// Tries at the same interval; after that, each doubles it.
const EVEN_TRIES: u32 = 4;

pub(super) struct Patience {
    first: u64,
    /// Smoothed round-trip time and its mean deviation.
    measured: Option<(u64, u64)>,
}

impl Patience {
    pub(super) fn new(first: u64) -> Patience {
        Patience { first, measured: None }
    }

    /// Adds a round-trip time. Only for frames that were sent once; otherwise the answered one is unknown.
    pub(super) fn add_round_trip(&mut self, time: u64) {
        self.measured = Some(match self.measured {
            None => (time, time / 2),
            Some((mean, deviation)) => ((7 * mean + time) / 8, (3 * deviation + mean.abs_diff(time)) / 4),
        });
    }

    /// How long to wait after `tries` unsuccessful tries.
    pub(super) fn timeout_after(&self, tries: u32) -> u64 {
        let once = match self.measured {
            Some((mean, deviation)) => (mean + 4 * deviation).clamp(LEAST, MOST),
            None => self.first,
        };
        let doublings = tries.saturating_sub(EVEN_TRIES - 1).min(20);
        once.saturating_mul(1 << doublings).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn it_follows_the_link_and_backs_off() {
        let mut patience = Patience::new(30 * MS);
        assert_eq!(patience.timeout_after(0), 30 * MS);
        for _ in 0..50 {
            patience.add_round_trip(MS);
        }
        assert!((MS..2 * MS).contains(&patience.timeout_after(0)), "{}", patience.timeout_after(0));
        assert_eq!(patience.timeout_after(3), patience.timeout_after(0));
        assert_eq!(patience.timeout_after(4), 2 * patience.timeout_after(0));
        assert_eq!(patience.timeout_after(40), MOST);
        // A link that became slow.
        patience.add_round_trip(100 * MS);
        assert!(patience.timeout_after(0) > 100 * MS);
        for _ in 0..100 {
            patience.add_round_trip(1000);
        }
        assert_eq!(patience.timeout_after(0), LEAST);
    }
}
