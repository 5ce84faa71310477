//! A rate limit with a burst (token bucket).

/// A rate and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Nanoseconds per token; 0 = unlimited.
    pub(crate) interval: u64,
    pub(crate) burst: u64,
}

impl Rate {
    /// `per_second` tokens, up to `burst` at once.
    pub(crate) const fn per_second(per_second: u64, burst: u64) -> Rate {
        Rate { interval: 1_000_000_000 / per_second, burst }
    }
}

/// The state of a budget: the time by which all tokens taken are earned (nanoseconds).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    earned_at: u64,
}

impl Budget {
    pub(crate) fn take(&mut self, now: u64, rate: Rate) -> bool {
        let earned_at = self.earned_at.max(now) + rate.interval;
        let allowed = earned_at - now <= rate.interval * rate.burst;
        if allowed {
            self.earned_at = earned_at;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let rate = Rate::per_second(10, 3);
        let mut budget = Budget::default();
        let mut taken = |now| (0..100).filter(|_| budget.take(now, rate)).count();
        assert_eq!(taken(0), 3);
        assert_eq!(taken(99_999_999), 0);
        assert_eq!(taken(100_000_000), 1);
        assert_eq!(taken(300_000_000), 2);
        assert_eq!(taken(60_000_000_000), 3, "a long rest earns no more than a burst");
    }
}
