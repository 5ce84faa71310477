//! When a translator with several collectors is ready, and when it gives up first.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Results of the first attempts, by collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    None,
    Programmed,
    /// Failed, but may succeed later without a change of configuration.
    Away,
    Refused,
}

/// The start, shared by all leases.
pub(crate) struct StartProgress {
    state: RefCell<StartState>,
}

struct StartState {
    attempts: BTreeMap<u8, Attempt>,
    /// Whether reports have somewhere to go: in a cluster, once its stores are placed.
    placed: bool,
    ready: bool,
}

impl StartState {
    fn update_readiness(&mut self) -> bool {
        let asked = self.attempts.values().all(|attempt| *attempt != Attempt::None);
        let is_one = self.attempts.values().any(|attempt| *attempt == Attempt::Programmed);
        let becomes = asked && !self.ready && is_one && self.placed;
        self.ready |= becomes;
        becomes
    }
}

impl StartProgress {
    /// No collector tried yet. Without a cluster, all stores are placed from the beginning.
    pub(crate) fn new(collectors: impl IntoIterator<Item = u8>, placed: bool) -> StartProgress {
        let start = StartProgress {
            state: RefCell::new(StartState { attempts: BTreeMap::new(), placed, ready: false }),
        };
        start.set_collectors(collectors);
        start
    }

    /// From now on, these are the collectors.
    pub(crate) fn set_collectors(&self, collectors: impl IntoIterator<Item = u8>) {
        let mut state = self.state.borrow_mut();
        let known = std::mem::take(&mut state.attempts);
        let of = |index: u8| (index, known.get(&index).copied().unwrap_or(Attempt::None));
        state.attempts = collectors.into_iter().map(of).collect();
    }

    /// Records that the stores of a cluster are placed. Returns whether that makes the translator ready.
    pub(crate) fn record_placed(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.placed = true;
        state.update_readiness()
    }

    pub(crate) fn is_placed(&self) -> bool {
        self.state.borrow().placed
    }

    /// Records that a collector is programmed. Returns whether that makes the translator ready.
    pub(crate) fn programmed(&self, collector: u8) -> bool {
        self.record_attempt(collector, Attempt::Programmed)
    }

    /// Records that a collector could not be programmed, and whether it may be later. Returns whether that
    /// makes the translator ready.
    pub(crate) fn record_failure(&self, collector: u8, may_pass: bool) -> bool {
        self.record_attempt(collector, if may_pass { Attempt::Away } else { Attempt::Refused })
    }

    fn record_attempt(&self, collector: u8, attempt: Attempt) -> bool {
        let mut state = self.state.borrow_mut();
        if let Some(of) = state.attempts.get_mut(&collector) {
            *of = attempt;
        }
        state.update_readiness()
    }

    /// How many collectors are programmed, and whether each was tried.
    pub(crate) fn attempt_summary(&self) -> (usize, bool) {
        let state = self.state.borrow();
        let programmed = state.attempts.values().filter(|attempt| **attempt == Attempt::Programmed).count();
        (programmed, state.attempts.values().all(|attempt| *attempt != Attempt::None))
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state.borrow().ready
    }

    /// Whether every collector refuses, so that waiting is pointless.
    pub(crate) fn is_hopeless(&self) -> bool {
        let state = self.state.borrow();
        !state.ready && state.attempts.values().all(|attempt| *attempt == Attempt::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_collector_makes_it_ready_or_ends_it_by_a_refusal() {
        let start = StartProgress::new(0..1, true);
        assert!(!start.record_failure(0, true) && !start.is_hopeless());
        assert!(start.programmed(0) && start.is_ready());
        // Once ready, a refusal no longer ends anything.
        assert!(!start.programmed(0) && !start.record_failure(0, false) && !start.is_hopeless());
        let start = StartProgress::new(0..1, true);
        assert!(!start.record_failure(0, false) && start.is_hopeless());
    }

    #[test]
    fn it_is_ready_when_all_were_asked_and_one_is_programmed() {
        let start = StartProgress::new(0..3, true);
        assert!(!start.programmed(1) && !start.record_failure(0, true) && !start.is_ready());
        assert!(start.record_failure(2, false) && start.is_ready());
        assert!(!start.programmed(2));

        let start = StartProgress::new(0..2, true);
        assert!(!start.record_failure(0, false) && !start.record_failure(1, true) && !start.is_hopeless());
        assert!(start.programmed(1));

        let start = StartProgress::new(0..2, true);
        assert!(!start.record_failure(0, false) && !start.record_failure(1, true));
        assert!(!start.record_failure(1, false) && start.is_hopeless());
    }

    #[test]
    fn in_a_cluster_it_is_ready_when_its_stores_are_placed() {
        let start = StartProgress::new([], false);
        start.set_collectors([3]);
        assert!(!start.programmed(3) && !start.is_ready() && !start.is_placed());
        assert!(start.record_placed() && start.is_ready() && !start.record_placed());
        // They may be placed before all were asked.
        let start = StartProgress::new(0..2, false);
        assert!(!start.programmed(0) && !start.record_placed() && start.programmed(1));
    }
}
