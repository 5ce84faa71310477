//! The difference between what a target holds and what it should hold.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{DataPlaneEntry, EntryKey, Program, Rkey, RowFields, Store};
use crate::store::StoreKind;

/// One step from one program to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant)] // a program has few entries, and they rarely change
pub enum DataPlaneChange {
    /// The target lacks the entry.
    Insert {
        /// What it should hold.
        entry: DataPlaneEntry,
    },
    /// The target holds a different entry with the same key.
    Modify {
        /// What it holds.
        from: DataPlaneEntry,
        /// What it should hold.
        to: DataPlaneEntry,
    },
    /// The target holds an entry that it should not.
    Delete {
        /// What it holds.
        entry: DataPlaneEntry,
    },
    /// The target gathered rows or columns of a store, and memory may hold newer ones, written by another
    /// translator. It discards its own. The store stays, and so do operations in flight.
    Forget {
        /// The store, as the target holds it.
        entry: DataPlaneEntry,
    },
}

impl DataPlaneChange {
    /// Key of the entry concerned.
    pub fn entry_key(&self) -> EntryKey {
        match self {
            DataPlaneChange::Insert { entry }
            | DataPlaneChange::Delete { entry }
            | DataPlaneChange::Forget { entry } => entry.entry_key(),
            DataPlaneChange::Modify { to, .. } => to.entry_key(),
        }
    }
}

/// The same changes with all rkeys 0, for readers who must not see them.
pub fn without_keys(mut changes: Vec<DataPlaneChange>) -> Vec<DataPlaneChange> {
    for change in &mut changes {
        let (one, other) = match change {
            DataPlaneChange::Insert { entry }
            | DataPlaneChange::Delete { entry }
            | DataPlaneChange::Forget { entry } => (entry, None),
            DataPlaneChange::Modify { from, to } => (from, Some(to)),
        };
        for entry in std::iter::once(one).chain(other) {
            if let DataPlaneEntry::Store(store) = entry {
                store.rkey = Rkey(0);
            }
        }
    }
    changes
}

/// [`RowFields::diff_programs`] for a target that uses every field, as the software data plane does.
pub fn diff_programs(have: &Program, want: &Program) -> Vec<DataPlaneChange> {
    RowFields::ALL.diff_programs(have, want)
}

/// [`RowFields::changes_for_session`] for a target that uses every field, as the software data plane does.
pub fn changes_for_session(have: &Program, want: &Program) -> Vec<DataPlaneChange> {
    RowFields::ALL.changes_for_session(have, want)
}

impl RowFields {
    /// The changes that turn `have` into `want`, in an order in which a target can apply them one by one.
    /// Entries that differ only in fields that the target's rows lack are not changed.
    ///
    /// Deletions come first, in reverse order of entries, so that an entry that refers to a store is deleted
    /// before the store. Insertions and modifications follow in the order of entries. A store whose layout or
    /// collector changes is deleted and inserted again, together with every entry that refers to it, because
    /// the target's state for the old one does not fit the new one.
    pub fn diff_programs(self, have: &Program, want: &Program) -> Vec<DataPlaneChange> {
        self.changes_via(have, have.without_stores(|store| self.is_another(store, want)), want)
    }

    /// The changes that a target which holds `have` needs after a session with the program `want` was opened
    /// for it. For each collector:
    ///
    /// - If the session has the generation of `have`, it is the same session: the changes are those of
    ///   [`RowFields::diff_programs`]. The same holds if `want` has no session with the collector.
    /// - If it has another generation, another translator may have written to the lists. So every list also
    ///   gets its new position, the current end of its ring in memory.
    /// - If it is not the very next generation, another session got a grant in between (the collector counts
    ///   generations over all sessions), so memory may hold newer paths and columns than the target. The
    ///   target discards its own ([`DataPlaneChange::Forget`]).
    ///
    /// The session's entry, which carries the new generation, comes last. So a target that applied only some
    /// of the changes still has the old one, and gets the rest on the next attempt.
    pub fn changes_for_session(self, have: &Program, want: &Program) -> Vec<DataPlaneChange> {
        let generations =
            |store: &Store| (have.generation(store.collector), want.generation(store.collector));
        let same = |store: &Store| {
            let (before, now) = generations(store);
            now.is_none() || before == now
        };
        let next = |store: &Store| {
            let (before, now) = generations(store);
            before.zip(now).is_some_and(|(before, now)| before + 1 == now)
        };
        let mut changes = self.diff_programs(have, want);
        let deletions =
            changes.iter().take_while(|change| matches!(change, DataPlaneChange::Delete { .. })).count();
        let deleted: BTreeSet<EntryKey> =
            changes[..deletions].iter().map(DataPlaneChange::entry_key).collect();
        let mut first = Vec::new();
        for held in have.entries().filter(|held| !deleted.contains(&held.entry_key())) {
            match (held, want.get(&held.entry_key())) {
                (DataPlaneEntry::Store(store), _) if store.is_gathered() && !same(store) && !next(store) => {
                    first.push(DataPlaneChange::Forget { entry: held.clone() });
                }
                (DataPlaneEntry::Lists(lists), Some(to))
                    if self.is_same_row(held, to)
                        && want
                            .store_part(lists.store, lists.collector)
                            .is_some_and(|store| !same(store)) =>
                {
                    first.push(DataPlaneChange::Modify { from: held.clone(), to: to.clone() });
                }
                _ => {}
            }
        }
        changes.splice(deletions..deletions, first);
        changes
    }

    /// Whether `want` has another layout under the store's id, or no such store at this collector.
    fn is_another(self, store: &Store, want: &Program) -> bool {
        let other = |new: &Store| self.layout_values(&new.spec.kind) != self.layout_values(&store.spec.kind);
        match want.store_part(store.spec.id, store.collector) {
            Some(new) => other(new),
            None => want.first_store_part(store.spec.id).is_some(),
        }
    }

    /// The changes from `have` to `want`. Entries that `mid` lacks are deleted first, even if `want` has
    /// them.
    fn changes_via(self, have: &Program, mut mid: Program, want: &Program) -> Vec<DataPlaneChange> {
        let gone: Vec<EntryKey> =
            mid.entries().map(DataPlaneEntry::entry_key).filter(|key| want.get(key).is_none()).collect();
        gone.iter().for_each(|key| drop(mid.remove(key)));
        let mut changes: Vec<DataPlaneChange> = have
            .entries()
            .filter(|e| mid.get(&e.entry_key()).is_none())
            .map(|e| DataPlaneChange::Delete { entry: e.clone() })
            .collect();
        changes.reverse();
        let have = mid;
        for entry in want.entries() {
            match have.get(&entry.entry_key()) {
                None => changes.push(DataPlaneChange::Insert { entry: entry.clone() }),
                Some(held) if self.is_same_row(held, entry) => {}
                Some(held) => changes.push(DataPlaneChange::Modify { from: held.clone(), to: entry.clone() }),
            }
        }
        changes
    }
}

impl Store {
    /// Whether a target gathers rows or columns of this store, so that another translator may have written
    /// newer ones meanwhile. No other translator has the entries that it gathers for append lists.
    pub fn is_gathered(&self) -> bool {
        matches!(self.spec.kind, StoreKind::Postcarding { .. } | StoreKind::SketchMerge { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Lists, ProgramQueuePair, ProgramSession, Purpose, SketchReporter, apply_changes};
    use crate::store::StoreSpec;

    /// The program that the frame vectors are made with.
    fn sample() -> Program {
        serde_json::from_str(include_str!("../../vectors/program.json")).unwrap()
    }

    /// The sample with new queue pairs under another generation, its lists at other positions.
    fn later(generation: u64) -> Program {
        let mut later = sample();
        for purpose in [Purpose::Write, Purpose::Atomic] {
            let key = EntryKey::QueuePair(0, purpose);
            let Some(DataPlaneEntry::QueuePair(pair)) = later.remove(&key) else { panic!() };
            later.set(DataPlaneEntry::QueuePair(ProgramQueuePair { generation, ..pair }));
        }
        for entry in later.clone().entries() {
            if let DataPlaneEntry::Lists(lists) = entry {
                let positions = vec![(lists.first, 50)];
                later.set(DataPlaneEntry::Lists(Lists { positions, ..lists.clone() }));
            }
        }
        later.set(DataPlaneEntry::SketchReporter(SketchReporter { store: 5, reporter: 9, bit: 3 }));
        later.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation }));
        later
    }

    /// Table, and `+`, `-` or `~`.
    fn summary(changes: &[DataPlaneChange]) -> Vec<String> {
        let sign = |change: &DataPlaneChange| match change {
            DataPlaneChange::Insert { entry } => format!("+{}", entry.table_name()),
            DataPlaneChange::Modify { to, .. } => format!("~{}", to.table_name()),
            DataPlaneChange::Delete { entry } => format!("-{}", entry.table_name()),
            DataPlaneChange::Forget { entry } => format!("!{}", entry.table_name()),
        };
        changes.iter().map(sign).collect()
    }

    #[test]
    fn the_session_of_before_changes_nothing() {
        let have = later(1);
        assert_eq!(changes_for_session(&have, &later(1)), vec![]);
        assert_eq!(
            changes_for_session(&Program::default(), &have),
            diff_programs(&Program::default(), &have)
        );
    }

    #[test]
    fn lists_go_on_where_the_ring_stands_under_the_next_generation() {
        let (pairs, session) = (["~queue-pair", "~queue-pair"], ["~session"]);
        assert_eq!(summary(&diff_programs(&later(1), &later(2))), [&pairs[..], &session].concat());
        assert_eq!(
            summary(&changes_for_session(&later(1), &later(2))),
            [&["~lists", "~lists", "~lists"], &pairs[..], &session].concat()
        );
    }

    #[test]
    fn rows_and_columns_in_hand_are_let_go_when_another_may_have_written() {
        let before = ["!store", "!store", "~lists", "~lists", "~lists"];
        let expected = [&before[..], &["~queue-pair", "~queue-pair", "~session"]].concat();
        let changes = changes_for_session(&later(1), &later(3));
        assert_eq!(summary(&changes), expected);
        assert_eq!(apply_changes(&later(1), &changes), Ok(later(3)));
        // Without a session the old generation is unknown, so the same is done.
        let mut without = later(1);
        without.remove(&EntryKey::Session(0));
        let summary = summary(&changes_for_session(&without, &later(2)));
        assert_eq!(summary.iter().filter(|t| *t == "!store").count(), 2, "{summary:?}");
    }

    #[test]
    fn a_store_that_goes_or_changes_its_layout_is_not_forgotten_beside_that() {
        let mut want = later(3);
        let Some(DataPlaneEntry::Store(mut paths)) = want.remove(&EntryKey::Store(4, 0)) else { panic!() };
        let StoreKind::Postcarding { slots, redundancy, .. } = paths.spec.kind else { panic!() };
        paths.spec.kind = StoreKind::Postcarding { slots, hops: 14, redundancy };
        paths.length = paths.spec.region_len();
        want.set(DataPlaneEntry::Store(paths));
        want.remove(&EntryKey::SketchReporter(5, 9));
        want.remove(&EntryKey::Store(5, 0));
        let changes = changes_for_session(&later(1), &want);
        assert!(
            !changes.iter().any(|change| matches!(change, DataPlaneChange::Forget { .. })),
            "{changes:?}"
        );
        assert_eq!(apply_changes(&later(1), &changes), Ok(want));
    }

    #[test]
    fn what_was_left_of_half_applied_changes_comes_again() {
        let (have, want) = (later(1), later(3));
        let changes = changes_for_session(&have, &want);
        let of_the_time_before = |changes: &[DataPlaneChange]| {
            changes
                .iter()
                .filter(|c| !matches!(c.entry_key(), EntryKey::QueuePair(..) | EntryKey::Session(_)))
                .cloned()
                .collect::<Vec<_>>()
        };
        let whole = of_the_time_before(&changes);
        for applied in 0..whole.len() {
            let half = apply_changes(&have, &changes[..applied]).unwrap();
            let again = of_the_time_before(&changes_for_session(&half, &want));
            assert_eq!(summary(&again), summary(&whole), "after {applied}");
        }
    }

    #[test]
    fn only_what_is_gathered_can_be_forgotten() {
        let have = later(1);
        let forget = |entry: &DataPlaneEntry| {
            apply_changes(&have, &[DataPlaneChange::Forget { entry: entry.clone() }])
        };
        for entry in have.entries() {
            let may = matches!(entry, DataPlaneEntry::Store(store) if store.is_gathered());
            match forget(entry) {
                Ok(program) => assert!(may && program == have, "{entry:?}"),
                Err(error) => {
                    assert!(!may && error.to_string().contains("cannot be forgotten"), "{error}");
                }
            }
        }
        let Some(DataPlaneEntry::Store(paths)) = have.get(&EntryKey::Store(4, 0)).cloned() else { panic!() };
        let other = DataPlaneEntry::Store(Store { spec: StoreSpec { id: 99, ..paths.spec }, ..paths });
        assert!(forget(&other).unwrap_err().to_string().contains("cannot be changed or deleted"));
    }

    #[test]
    fn a_region_that_was_replaced_touches_neither_queue_pairs_nor_other_stores() {
        let have = later(1);
        let mut want = have.clone();
        let Some(DataPlaneEntry::Store(store)) = want.remove(&EntryKey::Store(1, 0)) else { panic!() };
        let rkey = Rkey(store.rkey.0 + 1);
        let moved = Store { address: store.address << 8, rkey, generation: 2, ..store };
        want.set(DataPlaneEntry::Store(moved));
        want.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 2 }));
        assert_eq!(summary(&diff_programs(&have, &want)), ["~store", "~session"]);
        assert_eq!(diff_programs(&have, &want)[0].entry_key(), EntryKey::Store(1, 0));
    }

    #[test]
    fn a_store_of_another_layout_takes_what_refers_to_it_along() {
        let mut want = later(1);
        let Some(DataPlaneEntry::Store(mut events)) = want.remove(&EntryKey::Store(2, 0)) else { panic!() };
        events.spec.kind =
            StoreKind::Append { lists: 8, ring: 8, batch_len: 32, entry_len: 8, notify: false };
        events.length = events.spec.region_len();
        want.set(DataPlaneEntry::Store(events));
        let changes = diff_programs(&later(1), &want);
        assert_eq!(summary(&changes), ["-lists", "-lists", "-store", "+store", "+lists", "+lists"]);
    }
}
