//! When a translator with several collectors is ready, and when it gives up first.

use std::cell::RefCell;

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
    attempts: Vec<Attempt>,
    ready: bool,
}

impl Start {
    /// No collector tried yet.
    pub(crate) fn new(collectors: usize) -> Start {
        Start { state: RefCell::new(State { attempts: vec![Attempt::None; collectors], ready: false }) }
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
        if let Some(of) = state.attempts.get_mut(usize::from(collector)) {
            *of = attempt;
        }
        let asked = state.attempts.iter().all(|attempt| *attempt != Attempt::None);
        let becomes = asked && !state.ready && state.attempts.contains(&Attempt::Programmed);
        state.ready |= becomes;
        becomes
    }

    /// How many collectors are programmed, and whether each was tried.
    pub(crate) fn count(&self) -> (usize, bool) {
        let state = self.state.borrow();
        let programmed = state.attempts.iter().filter(|attempt| **attempt == Attempt::Programmed).count();
        (programmed, state.attempts.iter().all(|attempt| *attempt != Attempt::None))
    }

    /// Whether it is or was ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.borrow().ready
    }

    /// Whether every collector refuses, so that waiting is pointless.
    pub(crate) fn is_hopeless(&self) -> bool {
        let state = self.state.borrow();
        !state.ready && state.attempts.iter().all(|attempt| *attempt == Attempt::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_collector_makes_it_ready_or_ends_it_by_a_refusal() {
        let start = Start::new(1);
        assert!(!start.failed(0, true) && !start.is_hopeless());
        assert!(start.programmed(0) && start.is_ready());
        // Once ready, a refusal no longer ends anything.
        assert!(!start.programmed(0) && !start.failed(0, false) && !start.is_hopeless());
        let start = Start::new(1);
        assert!(!start.failed(0, false) && start.is_hopeless());
    }

    #[test]
    fn it_is_ready_when_all_were_asked_and_one_is_programmed() {
        let start = Start::new(3);
        assert!(!start.programmed(1) && !start.failed(0, true) && !start.is_ready());
        assert!(start.failed(2, false) && start.is_ready());
        assert!(!start.programmed(2));

        let start = Start::new(2);
        assert!(!start.failed(0, false) && !start.failed(1, true) && !start.is_hopeless());
        assert!(start.programmed(1));

        let start = Start::new(2);
        assert!(!start.failed(0, false) && !start.failed(1, true));
        assert!(!start.failed(1, false) && start.is_hopeless());
    }
}
