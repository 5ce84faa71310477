//! The difference between what a target holds and what it should hold.

use serde::{Deserialize, Serialize};

use super::{EntryKey, Program};
use crate::program::Entry;

/// One step from a program to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// The target lacks it.
    Insert {
        /// What it should hold.
        entry: Entry,
    },
    /// The target holds another one of the same key.
    Modify {
        /// What it holds.
        from: Entry,
        /// What it should hold.
        to: Entry,
    },
    /// The target holds it and should not.
    Delete {
        /// What it holds.
        entry: Entry,
    },
}

impl Change {
    /// Key of the entry concerned.
    pub fn key(&self) -> EntryKey {
        match self {
            Change::Insert { entry } | Change::Delete { entry } => entry.key(),
            Change::Modify { to, .. } => to.key(),
        }
    }
}

/// The changes that turn `have` into `want`, in an order that a target can apply one by one: deletions first and backwards
/// (what refers to a store goes before the store), then insertions and modifications forwards.
pub fn diff(have: &Program, want: &Program) -> Vec<Change> {
    let mut changes: Vec<Change> = have
        .entries()
        .filter(|e| want.get(&e.key()).is_none())
        .map(|e| Change::Delete { entry: e.clone() })
        .collect();
    changes.reverse();
    for entry in want.entries() {
        match have.get(&entry.key()) {
            None => changes.push(Change::Insert { entry: entry.clone() }),
            Some(held) if held.same(entry) => {}
            Some(held) => changes.push(Change::Modify { from: held.clone(), to: entry.clone() }),
        }
    }
    changes
}
