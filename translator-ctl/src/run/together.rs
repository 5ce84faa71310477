//! Combined status of all workers' leases.

use std::cell::RefCell;

use crate::lease::LeaseEvent;

/// The last status of each worker's leases.
pub(super) struct Together {
    of: RefCell<Vec<WorkerStatus>>,
}

#[derive(Clone, Copy, Default)]
struct WorkerStatus {
    ready: bool,
    asked: bool,
    open: (usize, usize),
}

impl Together {
    /// The initial state for this many workers.
    pub(super) fn new(workers: usize) -> Together {
        Together { of: RefCell::new(vec![WorkerStatus::default(); workers]) }
    }

    /// Turns a worker's status into the whole translator's: it is ready when the last worker is, and has as
    /// many sessions as the worker with the fewest.
    pub(super) fn merge_event<'a>(&self, worker: usize, event: LeaseEvent<'a>) -> LeaseEvent<'a> {
        let mut of = self.of.borrow_mut();
        let before = of.iter().all(|status| status.ready);
        if let Some(status) = of.get_mut(worker) {
            *status =
                WorkerStatus { ready: status.ready || event.ready, asked: event.asked, open: event.open };
        }
        LeaseEvent {
            ready: !before && of.iter().all(|status| status.ready),
            asked: of.iter().all(|status| status.asked),
            open: (of.iter().map(|status| status.open.0).min().unwrap_or(0), event.open.1),
            waits_for: event.waits_for,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_translator_is_ready_once_with_its_last_worker() {
        let together = Together::new(2);
        let event = |ready| LeaseEvent { ready, asked: true, open: (1, 1), waits_for: None };
        let first = together.merge_event(0, event(true));
        assert_eq!((first.ready, first.asked, first.open), (false, false, (0, 1)));
        let second = together.merge_event(1, event(true));
        assert_eq!((second.ready, second.asked, second.open), (true, true, (1, 1)));
        assert!(!together.merge_event(0, event(false)).ready);
    }
}
