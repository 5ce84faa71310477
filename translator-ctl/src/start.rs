//! When a translator with several collectors is ready, and when it gives up first.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Results of the first attempts, by collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// Pending.
    None,
    /// Programmed.
    Programmed,
    /// Failed, but may succeed later without a change of configuration.
    Away,
    /// Refused.
    Refused,
}

/// The start, shared by all leases.
pub(crate) struct Start {
    state: RefCell<State>,
}

struct State {
    attempts: BTreeMap<u8, Attempt>,
    /// Whether reports have somewhere to go: in a cluster, once its stores are placed.
    placed: bool,
    ready: bool,
}

impl State {
    /// Whether it becomes ready.
    fn becomes(&mut self) -> bool {
        let asked = self.attempts.values().all(|attempt| *attempt != Attempt::None);
        let is_one = self.attempts.values().any(|attempt| *attempt == Attempt::Programmed);
        let becomes = asked && !self.ready && is_one && self.placed;
        self.ready |= becomes;
        becomes
    }
}

impl Start {
    /// No collector tried yet. Without a cluster, all stores are placed from the beginning.
    pub(crate) fn new(collectors: impl IntoIterator<Item = u8>, placed: bool) -> Start {
        let start = Start { state: RefCell::new(State { attempts: BTreeMap::new(), placed, ready: false }) };
        start.are(collectors);
        start
    }

    /// From now on, these are the collectors.
    pub(crate) fn are(&self, collectors: impl IntoIterator<Item = u8>) {
        let mut state = self.state.borrow_mut();
        let known = std::mem::take(&mut state.attempts);
        let of = |index: u8| (index, known.get(&index).copied().unwrap_or(Attempt::None));
        state.attempts = collectors.into_iter().map(of).collect();
    }

    /// Records that the stores of a cluster are placed. Returns whether that makes the translator ready.
    pub(crate) fn placed(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.placed = true;
        state.becomes()
    }

    /// Whether the stores are placed.
    pub(crate) fn is_placed(&self) -> bool {
        self.state.borrow().placed
    }

    /// Records that a collector is programmed. Returns whether that makes the translator ready.
    pub(crate) fn programmed(&self, collector: u8) -> bool {
        self.note(collector, Attempt::Programmed)
    }

    /// Records that a collector could not be programmed, and whether it may be later. Returns whether that
    /// makes the translator ready.
    pub(crate) fn failed(&self, collector: u8, may_pass: bool) -> bool {
        self.note(collector, if may_pass { Attempt::Away } else { Attempt::Refused })
    }

    fn note(&self, collector: u8, attempt: Attempt) -> bool {
        let mut state = self.state.borrow_mut();
        if let Some(of) = state.attempts.get_mut(&collector) {
            *of = attempt;
        }
        state.becomes()
    }

    /// How many collectors are programmed, and whether each was tried.
    pub(crate) fn count(&self) -> (usize, bool) {
        let state = self.state.borrow();
        let programmed = state.attempts.values().filter(|attempt| **attempt == Attempt::Programmed).count();
        (programmed, state.attempts.values().all(|attempt| *attempt != Attempt::None))
    }

    /// Whether it is or was ready.
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
        let start = Start::new(0..1, true);
        assert!(!start.failed(0, true) && !start.is_hopeless());
        assert!(start.programmed(0) && start.is_ready());
        // Once ready, a refusal no longer ends anything.
        assert!(!start.programmed(0) && !start.failed(0, false) && !start.is_hopeless());
        let start = Start::new(0..1, true);
        assert!(!start.failed(0, false) && start.is_hopeless());
    }

    #[test]
    fn it_is_ready_when_all_were_asked_and_one_is_programmed() {
        let start = Start::new(0..3, true);
        assert!(!start.programmed(1) && !start.failed(0, true) && !start.is_ready());
        assert!(start.failed(2, false) && start.is_ready());
        assert!(!start.programmed(2));

        let start = Start::new(0..2, true);
        assert!(!start.failed(0, false) && !start.failed(1, true) && !start.is_hopeless());
        assert!(start.programmed(1));

        let start = Start::new(0..2, true);
        assert!(!start.failed(0, false) && !start.failed(1, true));
        assert!(!start.failed(1, false) && start.is_hopeless());
    }

    #[test]
    fn in_a_cluster_it_is_ready_when_its_stores_are_placed() {
        let start = Start::new([], false);
        start.are([3]);
        assert!(!start.programmed(3) && !start.is_ready() && !start.is_placed());
        assert!(start.placed() && start.is_ready() && !start.placed());
        // They may be placed before all were asked.
        let start = Start::new(0..2, false);
        assert!(!start.programmed(0) && !start.placed() && start.programmed(1));
    }
}
