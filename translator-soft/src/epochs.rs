//! Which epochs of a sketch are taken: those of the ring, and the next ones.
//!
//! A report may come late, so what is older than the ring is refused. A report may also be wrong, and one that named an epoch far ahead
//! would make every right one old. So the newest epoch moves by no more than a ring at a time, but when several reports agree on
//! more: reporters that were away for long, or started again with another count.

use super::counters::Reason;

/// Reports of one reporter in a row that stand for as much as those of two.
const CONFIRM: u32 = 64;

/// The epochs of one store.
pub(crate) struct EpochWindow {
    /// Epochs in the ring.
    epochs: u32,
    newest: Option<u32>,
    /// Whether one report alone, the first, says so.
    alone: bool,
    /// What was refused last, if nothing was taken since.
    far: Option<Far>,
}

struct Far {
    epoch: u32,
    reporter: u16,
    reports: u32,
}

impl EpochWindow {
    pub(crate) fn new(epochs: u32) -> Self {
        EpochWindow { epochs, newest: None, alone: false, far: None }
    }

    /// Takes note of a report of `epoch`, and says whether it is to be merged.
    #[inline]
    pub(crate) fn admit(&mut self, epoch: u32, reporter: u16) -> Result<(), Reason> {
        let Some(newest) = self.newest else {
            (self.newest, self.alone) = (Some(epoch), true);
            return Ok(());
        };
        if newest.saturating_sub(epoch) < self.epochs && epoch.saturating_sub(newest) <= self.epochs {
            self.newest = Some(newest.max(epoch));
            self.alone = false;
            self.far = None;
            return Ok(());
        }
        if epoch < newest && !self.alone {
            return Err(Reason::EpochOld);
        }
        self.far(epoch, reporter, if epoch < newest { Reason::EpochOld } else { Reason::EpochAhead })
    }

    #[cold]
    fn far(&mut self, epoch: u32, reporter: u16, refusal: Reason) -> Result<(), Reason> {
        match &mut self.far {
            Some(far) if far.epoch.abs_diff(epoch) < self.epochs => {
                far.reports += 1;
                if far.reporter != reporter || far.reports >= CONFIRM {
                    (self.newest, self.alone) = (Some(epoch.max(far.epoch)), false);
                    self.far = None;
                    return Ok(());
                }
            }
            _ => self.far = Some(Far { epoch, reporter, reports: 1 }),
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
        window.admit(epoch, 1).unwrap();
        window.admit(epoch, 2).unwrap();
        window
    }

    #[test]
    fn the_ring_and_one_ring_ahead() {
        let mut window = at(10);
        assert_eq!(window.admit(7, 1), Ok(()));
        assert_eq!(window.admit(6, 1), OLD);
        assert_eq!(window.admit(14, 1), Ok(()));
        assert_eq!(window.admit(11, 1), Ok(()));
        assert_eq!(window.admit(10, 1), OLD);
        assert_eq!(window.admit(19, 1), AHEAD);
    }

    #[test]
    fn one_wrong_report_does_no_harm() {
        for absurd in [u32::MAX, 1 << 31, 15] {
            let mut window = at(10);
            for _ in 0..1000 {
                assert_eq!(window.admit(absurd, 1), AHEAD);
                assert_eq!(window.admit(10, 2), Ok(()), "after {absurd}");
            }
        }
        let mut window = EpochWindow::new(4);
        assert_eq!(window.admit(u32::MAX, 1), Ok(()), "who comes first cannot be wrong");
        assert_eq!(window.admit(3, 2), OLD);
        assert_eq!(window.admit(3, 3), Ok(()), "but two against one can be right");
        assert_eq!(window.admit(4, 2), Ok(()));
        assert_eq!(window.admit(u32::MAX, 1), AHEAD);
    }

    #[test]
    fn two_reporters_or_many_reports_of_one_are_believed() {
        let mut window = at(10);
        assert_eq!(window.admit(1000, 1), AHEAD);
        assert_eq!(window.admit(1003, 2), Ok(()));
        assert_eq!(window.admit(1000, 1), Ok(()));
        assert_eq!(window.admit(10, 2), OLD);

        let mut window = at(10);
        assert!((1..CONFIRM).all(|_| window.admit(1000, 1) == AHEAD));
        assert_eq!(window.admit(1000, 1), Ok(()));

        // Two that do not agree are two wrong ones.
        let mut window = at(10);
        assert_eq!(window.admit(1000, 1), AHEAD);
        assert_eq!(window.admit(2000, 2), AHEAD);
        assert_eq!(window.admit(1000, 3), AHEAD);
        // Late reports never move it back.
        assert!((0..1000).all(|i| window.admit(1, i % 3) == OLD));
        assert_eq!(window.admit(11, 1), Ok(()));
    }
}
