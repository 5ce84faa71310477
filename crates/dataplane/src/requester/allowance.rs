//! The congestion window: fewer unacknowledged frames after losses, more as frames are acknowledged.
//!
//! A responder accepts frames only in order, so everything after a lost frame is sent in vain. The rules are
//! TCP's (RFC 5681): halve after a gap, drop to the minimum after a timeout; then slow start up to the half,
//! and from there one step per acknowledged window.

/// The minimum window, and the step by which it grows.
const STEP: u32 = 8;

pub(super) struct Allowance {
    now: u32,
    least: u32,
    most: u32,
    threshold: u32,
    /// Frames acknowledged since the last step.
    credit: u32,
}

impl Allowance {
    /// Starts with the full window.
    pub(super) fn new(window: u32) -> Allowance {
        Allowance { now: window, least: STEP, most: window, threshold: window, credit: 0 }
    }

    pub(super) fn max_outstanding(&self) -> u32 {
        self.now
    }

    /// Never below `least`.
    pub(super) fn set_least(&mut self, least: Option<u32>) {
        self.least = least.unwrap_or(STEP);
        self.now = self.now.max(self.least);
    }

    /// `frames` were acknowledged.
    pub(super) fn grow_after_acks(&mut self, frames: u32) {
        if self.now < self.threshold {
            self.now = (self.now + frames).min(self.threshold);
            return;
        }
        self.credit += frames;
        if self.credit >= self.now {
            self.credit = 0;
            self.now = (self.now + STEP).min(self.most);
        }
    }

    /// The responder reported a gap.
    pub(super) fn shrink_after_gap(&mut self) {
        self.threshold = (self.now / 2).max(self.least);
        self.now = self.threshold;
        self.credit = 0;
    }

    pub(super) fn shrink_after_timeout(&mut self) {
        self.shrink_after_gap();
        self.now = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shrinks_with_losses_and_grows_back_to_the_window() {
        let mut allowance = Allowance::new(256);
        allowance.shrink_after_gap();
        assert_eq!(allowance.max_outstanding(), 128);
        allowance.shrink_after_timeout();
        assert_eq!(allowance.max_outstanding(), 8);
        // Doubling up to half of the former window, then one step per window.
        for doubled in [16, 32, 64] {
            allowance.grow_after_acks(allowance.max_outstanding());
            assert_eq!(allowance.max_outstanding(), doubled);
        }
        allowance.grow_after_acks(63);
        assert_eq!(allowance.max_outstanding(), 64);
        allowance.grow_after_acks(1);
        assert_eq!(allowance.max_outstanding(), 72);
        for _ in 0..100 {
            allowance.grow_after_acks(allowance.max_outstanding());
        }
        assert_eq!(allowance.max_outstanding(), 256);
        for _ in 0..100 {
            allowance.shrink_after_gap();
        }
        assert_eq!(allowance.max_outstanding(), 8);
    }
}
