//! Which epochs of a sketch are accepted: those in the ring, and the next ones.
//!
//! Late reports are normal, so only epochs older than the ring are rejected. Wrong reports happen too: one
//! naming an epoch far ahead would make all correct ones old. So no single report moves the newest epoch. A
//! report up to a ring ahead is merged, and the newest epoch moves if others soon confirm it. One further ahead
//! is rejected until several agree: their reporters were away for long, or restarted with another count.

use super::counters::Reason;

/// Consecutive reports of one reporter that count as much as those of two reporters.
const CONFIRM: u32 = 64;
/// Weight of a report ahead, where one that is not takes 1 away; and the weight that moves the newest epoch:
/// two reports ahead in a row, or more than one in three.
const WEIGHT: u32 = 2;
const MOVES: u32 = 3;
/// Consecutive reports that are too old after which they are believed: the newest epoch was wrong, or the
/// reporters restarted their count.
const STRANGERS: u32 = 1024;

pub(crate) struct EpochWindow {
    epochs: u32,
    newest: Option<u32>,
    /// Whether only a single report, the first, supports it.
    alone: bool,
    /// The lowest epoch that recent reports ahead of the newest named, and their weight.
    step: u32,
    weight: u32,
    /// The last rejected epoch, if nothing was accepted since.
    far: Option<FarEpoch>,
    /// Consecutive reports that were too old.
    old: u32,
}

struct FarEpoch {
    epoch: u32,
    reporter: u16,
    reports: u32,
}

impl EpochWindow {
    pub(crate) fn new(epochs: u32) -> Self {
        EpochWindow { epochs, newest: None, alone: false, step: 0, weight: 0, far: None, old: 0 }
    }

    /// The newest confirmed epoch; 0 before the first report.
    pub(crate) fn newest_epoch(&self) -> u32 {
        self.newest.unwrap_or(0)
    }

    pub(crate) fn is_accepted(&self, epoch: u32) -> bool {
        let newest = self.newest_epoch();
        newest.saturating_sub(epoch) < self.epochs && epoch.saturating_sub(newest) <= self.epochs
    }

    /// Notes a report of `epoch`, and returns whether to merge it.
    #[inline]
    pub(crate) fn admit_epoch(&mut self, epoch: u32, reporter: u16) -> Result<(), Reason> {
        let Some(newest) = self.newest else {
            (self.newest, self.alone) = (Some(epoch), true);
            return Ok(());
        };
        if self.is_accepted(epoch) {
            (self.alone, self.far, self.old) = (false, None, 0);
            if epoch <= newest {
                self.weight = self.weight.saturating_sub(1);
            } else {
                self.advance_towards(epoch);
            }
            return Ok(());
        }
        if epoch < newest && !self.alone {
            self.old += 1;
            if self.old < STRANGERS {
                return Err(Reason::EpochOld);
            }
            (self.newest, self.weight, self.old) = (Some(epoch), 0, 0);
            return Ok(());
        }
        self.consider_far_epoch(
            epoch,
            reporter,
            if epoch < newest { Reason::EpochOld } else { Reason::EpochAhead },
        )
    }

    fn advance_towards(&mut self, epoch: u32) {
        self.step = if self.weight == 0 { epoch } else { self.step.min(epoch) };
        self.weight += WEIGHT;
        if self.weight >= MOVES {
            (self.newest, self.weight) = (Some(self.step), 0);
        }
    }

    #[cold]
    fn consider_far_epoch(&mut self, epoch: u32, reporter: u16, refusal: Reason) -> Result<(), Reason> {
        match &mut self.far {
            Some(far) if far.epoch.abs_diff(epoch) < self.epochs => {
                far.reports += 1;
                if far.reporter != reporter || far.reports >= CONFIRM {
                    (self.newest, self.alone) = (Some(epoch.max(far.epoch)), false);
                    (self.far, self.weight, self.old) = (None, 0, 0);
                    return Ok(());
                }
            }
            _ => self.far = Some(FarEpoch { epoch, reporter, reports: 1 }),
        }
        Err(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: Result<(), Reason> = Err(Reason::EpochAhead);
    const OLD: Result<(), Reason> = Err(Reason::EpochOld);

    fn at(epoch: u32) -> EpochWindow {
        let mut window = EpochWindow::new(4);
        window.admit_epoch(epoch, 1).unwrap();
        window.admit_epoch(epoch, 2).unwrap();
        window
    }

    #[test]
    fn the_ring_and_one_ring_ahead() {
        let mut window = at(10);
        assert_eq!(window.admit_epoch(7, 1), Ok(()));
        assert_eq!(window.admit_epoch(6, 1), OLD);
        // A single report moves nothing; two in a row do.
        assert_eq!(window.admit_epoch(14, 1), Ok(()));
        assert_eq!(window.admit_epoch(10, 1), Ok(()));
        assert_eq!(window.admit_epoch(8, 2), Ok(()));
        assert_eq!(window.admit_epoch(14, 1), Ok(()));
        assert_eq!(window.admit_epoch(14, 1), Ok(()));
        assert_eq!(window.admit_epoch(11, 1), Ok(()));
        assert_eq!(window.admit_epoch(10, 1), OLD);
        assert_eq!(window.admit_epoch(19, 1), AHEAD);
    }

    #[test]
    fn a_reporter_that_lags_behind_does_not_hold_the_others_back() {
        let mut window = at(10);
        for epoch in 11..1000 {
            for _ in 0..8 {
                assert_eq!(window.admit_epoch(epoch, 1), Ok(()));
                let _ = window.admit_epoch(10, 2);
            }
        }
    }

    #[test]
    fn one_wrong_report_does_no_harm() {
        for absurd in [u32::MAX, 1 << 31, 15] {
            let mut window = at(10);
            for _ in 0..1000 {
                assert_eq!(window.admit_epoch(absurd, 1), AHEAD);
                assert_eq!(window.admit_epoch(10, 2), Ok(()), "after {absurd}");
            }
        }
        let mut window = EpochWindow::new(4);
        assert_eq!(window.admit_epoch(u32::MAX, 1), Ok(()), "who comes first cannot be wrong");
        assert_eq!(window.admit_epoch(3, 2), OLD);
        assert_eq!(window.admit_epoch(3, 3), Ok(()), "but two against one can be right");
        assert_eq!(window.admit_epoch(4, 2), Ok(()));
        assert_eq!(window.admit_epoch(u32::MAX, 1), AHEAD);
    }

    #[test]
    fn two_reporters_or_many_reports_of_one_are_believed() {
        let mut window = at(10);
        assert_eq!(window.admit_epoch(1000, 1), AHEAD);
        assert_eq!(window.admit_epoch(1003, 2), Ok(()));
        assert_eq!(window.admit_epoch(1000, 1), Ok(()));
        assert_eq!(window.admit_epoch(10, 2), OLD);

        let mut window = at(10);
        assert!((1..CONFIRM).all(|_| window.admit_epoch(1000, 1) == AHEAD));
        assert_eq!(window.admit_epoch(1000, 1), Ok(()));

        // Two that disagree are both wrong.
        let mut window = at(10);
        assert_eq!(window.admit_epoch(1000, 1), AHEAD);
        assert_eq!(window.admit_epoch(2000, 2), AHEAD);
        assert_eq!(window.admit_epoch(1000, 3), AHEAD);
        // Late reports never move it back.
        assert!((0..1000).all(|i| window.admit_epoch(1, i % 3) == OLD));
        assert_eq!(window.admit_epoch(11, 1), Ok(()));
        // But if nothing else arrives, they are right.
        assert!((0..1023).all(|i| window.admit_epoch(1, i % 3) == OLD));
        assert_eq!(window.admit_epoch(1, 1), Ok(()));
        assert_eq!(window.admit_epoch(2, 1), Ok(()));
    }
}
