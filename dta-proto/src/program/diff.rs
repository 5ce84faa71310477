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

/// The same changes with 0 in the place of each remote key, for readers who must not see the keys.
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

/// The changes that turn `have` into `want`, in an order in which a target can apply them one by one.
///
/// Deletions come first, in reverse order of entries, so that an entry that refers to a store is
/// deleted before the store. Insertions and modifications follow in the order of entries. A store
/// whose layout or collector changes is deleted and inserted again, together with every entry that
/// refers to it, because nothing that the target keeps for the old one fits the new one.
pub fn diff(have: &Program, want: &Program) -> Vec<Change> {
    steps(have, have.without_stores(|store| is_another(store, want)), want)
}

/// The changes that a target which holds `have` needs when a session with the program `want` was
/// opened for it. Of each collector:
///
/// - If the session has the generation of `have`, it is the same session: the changes are those of
///   [`diff`]. So they are if `want` has no queue pair of it.
/// - If it has another generation, another translator may have written to the lists. So every list
///   also gets its new position, which is where its ring in memory ends now.
/// - If it is not the very next generation, another session got a grant in between (the collector
///   counts generations over all sessions). Then memory may hold newer paths and columns than the
///   target does. The target discards its own: their stores are deleted and inserted again.
pub fn changes_for_session(have: &Program, want: &Program) -> Vec<Change> {
    let generations = |collector| (have.generation(collector), want.generation(collector));
    let same = |store: &Store| {
        let (before, now) = generations(store.collector);
        now.is_none() || before == now
    };
    let next = |store: &Store| {
        let (before, now) = generations(store.collector);
        before.zip(now).is_some_and(|(before, now)| before + 1 == now)
    };
    let gathers = |store: &Store| {
        matches!(store.spec.kind, StoreKind::Postcarding { .. } | StoreKind::SketchMerge { .. })
    };
    let mid = have
        .without_stores(|store| (gathers(store) && !same(store) && !next(store)) || is_another(store, want));
    let mut changes = steps(have, mid, want);
    for entry in want.entries() {
        let Entry::Lists(lists) = entry else { continue };
        let key = entry.key();
        if want.store(lists.store).is_some_and(|store| !same(store))
            && let Some(from) = have.get(&key).filter(|from| from.same(entry))
            && !changes.iter().any(|change| change.key() == key)
        {
            changes.push(Change::Modify { from: from.clone(), to: entry.clone() });
        }
    }
    changes
}

/// Whether `want` has a store of the same id with another layout, or at another collector.
fn is_another(store: &Store, want: &Program) -> bool {
    let other = |new: &Store| new.spec.kind != store.spec.kind || new.collector != store.collector;
    want.store(store.spec.id).is_some_and(other)
}

/// The changes from `have` to `want`. Entries of `have` that `mid` lacks are deleted first, even if
/// `want` has them too.
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
            let key = EntryKey::QueuePair(0, purpose);
            let Some(Entry::QueuePair(pair)) = later.remove(&key) else { panic!() };
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
    fn summary(changes: &[Change]) -> Vec<String> {
        let sign = |change: &Change| match change {
            Change::Insert { entry } => format!("+{}", entry.table()),
            Change::Modify { to, .. } => format!("~{}", to.table()),
            Change::Delete { entry } => format!("-{}", entry.table()),
        };
        changes.iter().map(sign).collect()
    }

    #[test]
    fn the_session_of_before_changes_nothing() {
        let have = later(1);
        assert_eq!(changes_for_session(&have, &later(1)), vec![]);
        assert_eq!(changes_for_session(&Program::default(), &have), diff(&Program::default(), &have));
    }

    #[test]
    fn lists_go_on_where_the_ring_stands_under_the_next_generation() {
        let pairs = ["~queue-pair", "~queue-pair"];
        assert_eq!(summary(&diff(&later(1), &later(2))), pairs);
        assert_eq!(
            summary(&changes_for_session(&later(1), &later(2))),
            [&pairs[..], &["~lists", "~lists", "~lists"]].concat()
        );
    }

    #[test]
    fn rows_and_columns_in_hand_are_let_go_when_another_may_have_written() {
        let away = ["-sketch-reporter", "-version0", "-store", "-store"];
        let back = ["~queue-pair", "~queue-pair", "+store", "+store", "+version0", "+sketch-reporter"];
        let lists = ["~lists", "~lists", "~lists"];
        let expected = [&away[..], &back, &lists].concat();
        assert_eq!(summary(&changes_for_session(&later(1), &later(3))), expected);
        // Without queue pairs the old generation is not known, so the same is done.
        let mut without = later(1);
        for purpose in [Purpose::Write, Purpose::Atomic] {
            without.remove(&EntryKey::QueuePair(0, purpose));
        }
        let summary = summary(&changes_for_session(&without, &later(2)));
        assert_eq!(summary.iter().filter(|t| *t == "+store").count(), 2, "{summary:?}");
    }

    #[test]
    fn a_store_of_another_layout_takes_what_refers_to_it_along() {
        let mut want = later(1);
        let Some(Entry::Store(mut events)) = want.remove(&EntryKey::Store(2, 0)) else { panic!() };
        events.spec.kind =
            StoreKind::Append { lists: 8, ring: 8, batch_len: 32, entry_len: 8, notify: false };
        events.length = events.spec.region_len();
        want.set(Entry::Store(events));
        let changes = diff(&later(1), &want);
        assert_eq!(summary(&changes), ["-lists", "-lists", "-store", "+store", "+lists", "+lists"]);
    }
}
