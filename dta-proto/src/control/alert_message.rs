//! The state of an alert, which messages and JSON carry by name.

use super::Alert;

crate::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum AlertState {
        /// Its condition has not held for long enough yet.
        Pending: "pending",
        Firing: "firing",
        Resolved: "resolved",
    }
}

impl Alert {
    pub fn has_state(&self, state: AlertState) -> bool {
        self.state == state.name()
    }

    pub fn is_firing(&self) -> bool {
        self.has_state(AlertState::Firing)
    }
}
