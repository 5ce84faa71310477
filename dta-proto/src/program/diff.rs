//! The difference between what a target holds and what it should hold.

use serde::{Deserialize, Serialize};

use super::{Entry, EntryKey, Program, Rkey, Store};
use crate::store::StoreKind;

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

/// The same changes with 0 for each remote key: for telling what changes to those who need not know the keys.
pub fn without_keys(mut changes: Vec<Change>) -> Vec<Change> {
    for change in &mut changes {
        let (one, other) = match change {
            Change::Insert { entry } | Change::Delete { entry } => (entry, None),
            Change::Modify { from, to } => (from, Some(to)),
        };
        for entry in std::iter::once(one).chain(other) {
            if let Entry::Store(store) = entry {
                store.rkey = Rkey(0);
            }
        }
    }
    changes
}

/// The changes that turn `have` into `want`, in an order that a target can apply one by one: deletions first and backwards
/// (what refers to a store goes before the store), then insertions and modifications forwards. A store that takes another layout is
/// deleted and inserted, and what refers to it too: nothing that a target keeps for it fits any more.
pub fn diff(have: &Program, want: &Program) -> Vec<Change> {
    steps(have, have.without_stores(|store| is_other(store, want)), want)
}

/// The changes that bring a target which holds `have` to the session that was opened for it just now.
///
/// As [`diff`] where that is the session of before. Where it is not, its lists go on after what the rings hold by now: another
/// translator may have written them. And where another session was given anything between the two (the collector numbers
/// generations over all sessions), the target lets go of the paths and columns it has in hand, which may be older than what memory
/// holds: their stores are deleted and inserted.
pub fn take_up(have: &Program, want: &Program) -> Vec<Change> {
    let (before, now) = (have.generation(), want.generation());
    if before.is_some() && before == now {
        return diff(have, want);
    }
    let alone = before.zip(now).is_some_and(|(before, now)| before + 1 == now);
    let in_hand = |store: &Store| {
        matches!(store.spec.kind, StoreKind::Postcarding { .. } | StoreKind::SketchMerge { .. })
    };
    let mid = have.without_stores(|store| (!alone && in_hand(store)) || is_other(store, want));
    let mut changes = steps(have, mid, want);
    for entry in want.entries().filter(|e| matches!(e, Entry::Lists(_))) {
        let key = entry.key();
        if let Some(from) = have.get(&key).filter(|from| from.same(entry))
            && !changes.iter().any(|change| change.key() == key)
        {
            changes.push(Change::Modify { from: from.clone(), to: entry.clone() });
        }
    }
    changes
}

fn is_other(store: &Store, want: &Program) -> bool {
    match want.get(&EntryKey::Store(store.spec.id)) {
        Some(Entry::Store(new)) => new.spec.kind != store.spec.kind,
        _ => false,
    }
}

/// The changes from `have` by way of `mid`, which holds a part of it, to `want`.
fn steps(have: &Program, mut mid: Program, want: &Program) -> Vec<Change> {
    let gone: Vec<EntryKey> = mid.entries().map(Entry::key).filter(|key| want.get(key).is_none()).collect();
    gone.iter().for_each(|key| drop(mid.remove(key)));
    let mut changes: Vec<Change> = have
        .entries()
        .filter(|e| mid.get(&e.key()).is_none())
        .map(|e| Change::Delete { entry: e.clone() })
        .collect();
    changes.reverse();
    let have = mid;
    for entry in want.entries() {
        match have.get(&entry.key()) {
            None => changes.push(Change::Insert { entry: entry.clone() }),
            Some(held) if held.same(entry) => {}
            Some(held) => changes.push(Change::Modify { from: held.clone(), to: entry.clone() }),
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Lists, Purpose, QueuePair, SketchReporter};

    /// The program that the frame vectors are made with.
    fn sample() -> Program {
        serde_json::from_str(include_str!("../../vectors/program.json")).unwrap()
    }

    /// The sample under another generation, its lists at other positions.
    fn later(generation: u64) -> Program {
        let mut later = sample();
        for purpose in [Purpose::Write, Purpose::Atomic] {
            let Some(Entry::QueuePair(pair)) = later.remove(&EntryKey::QueuePair(purpose)) else { panic!() };
            later.set(Entry::QueuePair(QueuePair { generation, ..pair }));
        }
        for entry in later.clone().entries() {
            if let Entry::Lists(lists) = entry {
                let positions = vec![(lists.first, 50)];
                later.set(Entry::Lists(Lists { positions, ..lists.clone() }));
            }
        }
        later.set(Entry::SketchReporter(SketchReporter { store: 5, reporter: 9, bit: 3 }));
        later
    }

    /// Table, and `+`, `-` or `~`.
    fn told(changes: &[Change]) -> Vec<String> {
        let told = |change: &Change| match change {
            Change::Insert { entry } => format!("+{}", entry.table()),
            Change::Modify { to, .. } => format!("~{}", to.table()),
            Change::Delete { entry } => format!("-{}", entry.table()),
        };
        changes.iter().map(told).collect()
    }

    #[test]
    fn the_session_of_before_changes_nothing() {
        let have = later(1);
        assert_eq!(take_up(&have, &later(1)), vec![]);
        assert_eq!(take_up(&Program::default(), &have), diff(&Program::default(), &have));
    }

    #[test]
    fn lists_go_on_where_the_ring_stands_under_the_next_generation() {
        let pairs = ["~queue-pair", "~queue-pair"];
        assert_eq!(told(&diff(&later(1), &later(2))), pairs);
        assert_eq!(
            told(&take_up(&later(1), &later(2))),
            [&pairs[..], &["~lists", "~lists", "~lists"]].concat()
        );
    }

    #[test]
    fn rows_and_columns_in_hand_are_let_go_when_another_may_have_written() {
        let away = ["-sketch-reporter", "-version0", "-store", "-store"];
        let back = ["~queue-pair", "~queue-pair", "+store", "+store", "+version0", "+sketch-reporter"];
        let lists = ["~lists", "~lists", "~lists"];
        let expected = [&away[..], &back, &lists].concat();
        assert_eq!(told(&take_up(&later(1), &later(3))), expected);
        // Nor can it be told whose they were where the queue pairs had been taken out.
        let mut without = later(1);
        for purpose in [Purpose::Write, Purpose::Atomic] {
            without.remove(&EntryKey::QueuePair(purpose));
        }
        let told = told(&take_up(&without, &later(2)));
        assert_eq!(told.iter().filter(|t| *t == "+store").count(), 2, "{told:?}");
    }

    #[test]
    fn a_store_of_another_layout_takes_what_refers_to_it_along() {
        let mut want = later(1);
        let Some(Entry::Store(mut events)) = want.remove(&EntryKey::Store(2)) else { panic!() };
        events.spec.kind =
            StoreKind::Append { lists: 8, ring: 8, batch_len: 32, entry_len: 8, notify: false };
        events.length = events.spec.region_len();
        want.set(Entry::Store(events));
        let changes = diff(&later(1), &want);
        assert_eq!(told(&changes), ["-lists", "-lists", "-store", "+store", "+lists", "+lists"]);
    }
}
