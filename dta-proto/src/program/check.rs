//! Checks whether a target can hold a program after some changes, before the first change is applied, so
//! that either all or none are applied: a collector's session, a command or a caller of the translator's
//! service may be wrong.

use core::fmt;

use crate::queue_pair::has_24_bits;
use crate::store::{SpecError, StoreKind};

use super::{
    DataPlaneChange, DataPlaneEntry, EntryKey, Lists, Primitive, Program, ProgramQueuePair, Purpose,
    SketchReporter, Store, Transport,
};

/// Most stores in one program; a store counts once for each collector.
pub const MAX_STORES: usize = 1024;

/// Most collectors in one program; their indices are below it. A P4 switch has queue pairs for fewer.
pub const MAX_COLLECTORS: u8 = 64;

/// Why a target cannot hold an entry, or a program with it, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CheckError(String);

impl CheckError {
    /// A number out of range: table and field, value, and what it must be.
    fn out_of_range(field: &str, value: impl fmt::Display, must: &str) -> CheckError {
        CheckError(format!("{field} is {value}, but must be {must}"))
    }

    /// A change of an entry that does not exist.
    fn not_there(key: EntryKey) -> CheckError {
        CheckError(format!("{key:?} cannot be changed or deleted: the program does not have it"))
    }
}

impl From<SpecError> for CheckError {
    fn from(error: SpecError) -> CheckError {
        CheckError(error.to_string())
    }
}

impl DataPlaneEntry {
    /// Checks an entry on its own.
    pub fn validate(&self) -> Result<(), CheckError> {
        match self {
            DataPlaneEntry::Service(service) if service.address.is_ipv6() => Err(CheckError(format!(
                "service.address is {}: reports over IPv6 are not supported",
                service.address
            ))),
            DataPlaneEntry::Service(_) => Ok(()),
            DataPlaneEntry::Mode(_) | DataPlaneEntry::Flush(_) => Ok(()),
            DataPlaneEntry::QueuePair(pair) => check_pair(pair),
            DataPlaneEntry::Store(store) => check_store(store),
            DataPlaneEntry::Lists(lists) if lists.count == 0 => {
                Err(CheckError::out_of_range("lists.count", 0, "at least 1"))
            }
            DataPlaneEntry::Lists(_) => Ok(()),
            DataPlaneEntry::Version0(v0) if !v0.primitive.in_version0() => {
                let must = "another primitive: version 0 has no sketch-merge";
                Err(CheckError::out_of_range("version0.primitive", v0.primitive.index(), must))
            }
            DataPlaneEntry::Version0(_) => Ok(()),
            DataPlaneEntry::SketchReporter(reporter) if reporter.bit > 31 => {
                Err(CheckError::out_of_range("sketch-reporter.bit", reporter.bit, "0 to 31"))
            }
            DataPlaneEntry::SketchReporter(_) | DataPlaneEntry::Session(_) => Ok(()),
        }
    }
}

fn collector(field: &str, index: u8) -> Result<(), CheckError> {
    const MUST: &str = "0 to 63: a program has 64 collectors at most";
    const { assert!(MAX_COLLECTORS == 64) };
    if index < MAX_COLLECTORS { Ok(()) } else { Err(CheckError::out_of_range(field, index, MUST)) }
}

fn check_pair(pair: &ProgramQueuePair) -> Result<(), CheckError> {
    collector("queue-pair.collector", pair.collector)?;
    for (field, value) in [
        ("queue-pair.remote_qpn", pair.remote_qpn),
        ("queue-pair.local_qpn", pair.local_qpn),
        ("queue-pair.start_psn", pair.start_psn),
    ] {
        if !has_24_bits(value) {
            return Err(CheckError::out_of_range(field, value, "a 24-bit number"));
        }
    }
    if pair.source.ip.is_ipv4() != pair.destination.ip.is_ipv4() {
        return Err(CheckError(format!(
            "queue-pair.source is {}, and queue-pair.destination is {}: they must be of the same IP version",
            pair.source.ip, pair.destination.ip
        )));
    }
    if pair.destination.port == 0 {
        return Err(CheckError::out_of_range("queue-pair.destination.port", 0, "a port"));
    }
    if (pair.purpose, pair.transport) == (Purpose::Atomic, Transport::Uc) {
        return Err(CheckError("the queue pair for atomics is UC, but FETCH_ADD needs RC".into()));
    }
    Ok(())
}

fn check_store(store: &Store) -> Result<(), CheckError> {
    store.spec.validate()?;
    collector("store.collector", store.collector)?;
    let (name, address, length) = (&store.spec.name, store.address, store.length);
    let fail = |must| {
        let region = format!("the region of store `{name}` is at {address:#x} with {length} bytes: {must}");
        Err(CheckError(region))
    };
    if !length.is_power_of_two() || length < store.spec.region_len() {
        return fail("a region is a power of two and holds its whole store");
    }
    if address & (length - 1) != 0 {
        return fail("the address must be aligned to the length, so that address = base | offset");
    }
    let must = store.spec.kind.primitive().queue_pair_purpose();
    if store.queue_pair != must {
        let must = must.operations();
        return Err(CheckError(format!("store `{name}` must travel on the queue pair for {must}")));
    }
    Ok(())
}

/// The program that results from applying `changes` to `have`. Each must find the entries it refers to.
///
/// # Errors
/// A [`CheckError`] that names the entry at fault.
pub fn apply_changes(have: &Program, changes: &[DataPlaneChange]) -> Result<Program, CheckError> {
    let mut program = have.clone();
    for change in changes {
        match change {
            DataPlaneChange::Insert { entry } => set(&mut program, entry)?,
            DataPlaneChange::Modify { from, to } if from.entry_key() != to.entry_key() => {
                let (from, to) = (from.entry_key(), to.entry_key());
                let keys =
                    format!("a modification turns {from:?} into {to:?}; delete one and insert the other");
                return Err(CheckError(keys));
            }
            DataPlaneChange::Modify { from, to } => {
                program.get(&from.entry_key()).ok_or(CheckError::not_there(from.entry_key()))?;
                set(&mut program, to)?;
            }
            DataPlaneChange::Delete { entry } => {
                program.remove(&entry.entry_key()).ok_or(CheckError::not_there(entry.entry_key()))?;
                if let DataPlaneEntry::Store(store) = entry {
                    nothing_refers_to(&program, store.spec.id, store.collector)?;
                }
            }
            DataPlaneChange::Forget { entry } => match program.get(&entry.entry_key()) {
                Some(DataPlaneEntry::Store(store)) if store.is_gathered() => {}
                Some(_) => {
                    return Err(CheckError(format!(
                        "{:?} cannot be forgotten: rows and columns are gathered for postcarding and sketch-merge \
                         stores only",
                        entry.entry_key()
                    )));
                }
                None => return Err(CheckError::not_there(entry.entry_key())),
            },
        }
    }
    check_whole(&program)?;
    Ok(program)
}

fn set(program: &mut Program, entry: &DataPlaneEntry) -> Result<(), CheckError> {
    entry.validate()?;
    refers_well(program, entry)?;
    let key = entry.entry_key();
    if let (DataPlaneEntry::Store(new), Some(DataPlaneEntry::Store(old))) = (entry, program.get(&key))
        && new.spec.kind != old.spec.kind
    {
        // The state that a target keeps for it would no longer fit.
        program.remove(&key);
        nothing_refers_to(program, new.spec.id, new.collector)?;
    }
    program.set(entry.clone());
    Ok(())
}

/// Whether the store that an entry refers to exists.
fn refers_well(program: &Program, entry: &DataPlaneEntry) -> Result<(), CheckError> {
    let (id, kind) = match entry {
        DataPlaneEntry::Lists(lists) => (lists.store, Primitive::Append),
        DataPlaneEntry::Version0(v0) => (v0.store, v0.primitive),
        DataPlaneEntry::SketchReporter(reporter) => (reporter.store, Primitive::SketchMerge),
        DataPlaneEntry::Service(_)
        | DataPlaneEntry::Mode(_)
        | DataPlaneEntry::Flush(_)
        | DataPlaneEntry::QueuePair(_)
        | DataPlaneEntry::Store(_)
        | DataPlaneEntry::Session(_) => return Ok(()),
    };
    let part = match entry {
        DataPlaneEntry::Lists(lists) => program.store_part(id, lists.collector),
        _ => program.first_store_part(id),
    };
    let spec = match part {
        Some(store) if store.spec.kind.primitive() == kind => &store.spec,
        _ => {
            let table = entry.table_name();
            return Err(CheckError(format!(
                "{table} refers to store {id}, but the program has no {kind} store of that id (any more)"
            )));
        }
    };
    if let (DataPlaneEntry::Lists(lists), StoreKind::Append { lists: have, .. }) = (entry, &spec.kind)
        && u64::from(lists.first) + u64::from(lists.count) > u64::from(*have)
    {
        let (first, last) = (lists.first, u64::from(lists.first) + u64::from(lists.count) - 1);
        return Err(CheckError(format!(
            "lists {first} to {last} are named, but store `{}` has lists 0 to {}",
            spec.name,
            have - 1
        )));
    }
    Ok(())
}

/// Refuses to remove a part of a store for which a target keeps state.
fn nothing_refers_to(without: &Program, store: u16, collector: u8) -> Result<(), CheckError> {
    let of = |entry: &&DataPlaneEntry| match entry {
        DataPlaneEntry::Lists(lists) => (lists.store, lists.collector) == (store, collector),
        DataPlaneEntry::SketchReporter(reporter) => reporter.store == store,
        // This is only a number here; the store may have another one once all changes are done.
        DataPlaneEntry::Version0(_) => false,
        DataPlaneEntry::Service(_)
        | DataPlaneEntry::Mode(_)
        | DataPlaneEntry::Flush(_)
        | DataPlaneEntry::QueuePair(_)
        | DataPlaneEntry::Store(_)
        | DataPlaneEntry::Session(_) => false,
    };
    without.entries().find(of).map_or(Ok(()), |entry| refers_well(without, entry))
}

/// Checks all entries together.
fn check_whole(program: &Program) -> Result<(), CheckError> {
    if program.entries().filter(|e| matches!(e, DataPlaneEntry::Store(_))).count() > MAX_STORES {
        return Err(CheckError(format!("the program has more than {MAX_STORES} stores")));
    }
    let mut lists: Option<&Lists> = None;
    let mut parts: Vec<&Store> = Vec::new();
    let mut bits: Vec<&SketchReporter> = Vec::new();
    let mut pairs: Vec<&ProgramQueuePair> = Vec::new();
    // Sorted by key: a store's ranges are adjacent, and so are its reporters.
    for entry in program.entries() {
        match entry {
            DataPlaneEntry::Lists(next) => {
                if let Some(before) = lists.replace(next)
                    && before.store == next.store
                    && u64::from(before.first) + u64::from(before.count) > u64::from(next.first)
                {
                    let (list, store) = (next.first, next.store);
                    return Err(CheckError(format!("list {list} of store {store} is named twice")));
                }
            }
            DataPlaneEntry::SketchReporter(next) => {
                bits.retain(|other| other.store == next.store);
                if let Some(other) = bits.iter().find(|other| other.bit == next.bit) {
                    let SketchReporter { store, reporter, bit } = next;
                    let both = format!(
                        "bit {bit} of store {store} is given to reporters {} and {reporter}",
                        other.reporter
                    );
                    return Err(CheckError(both));
                }
                bits.push(next);
            }
            DataPlaneEntry::QueuePair(next) => {
                if let Some(other) = pairs.iter().find(|other| other.local_qpn == next.local_qpn) {
                    let of = |pair: &ProgramQueuePair| {
                        format!("for {} of collector {}", pair.purpose.operations(), pair.collector)
                    };
                    return Err(CheckError(format!(
                        "queue pair number {:#x} of this side is given to the queue pairs {} and {}",
                        next.local_qpn,
                        of(other),
                        of(next)
                    )));
                }
                pairs.push(next);
            }
            DataPlaneEntry::Version0(_) => refers_well(program, entry)?,
            DataPlaneEntry::Store(next) => {
                if let Some(bucket) = next.buckets.repeated_bucket() {
                    let (name, collector) = (&next.spec.name, next.collector);
                    return Err(CheckError(format!(
                        "two copies of bucket {bucket} of store `{name}` are at collector {collector}: each copy is at a \
                         collector of its own"
                    )));
                }
                parts.retain(|other| other.spec.id == next.spec.id);
                parts.iter().try_for_each(|other| parts_fit(other, next))?;
                parts.push(next);
            }
            DataPlaneEntry::Service(_)
            | DataPlaneEntry::Mode(_)
            | DataPlaneEntry::Flush(_)
            | DataPlaneEntry::Session(_) => {}
        }
    }
    Ok(())
}

/// Whether two entries of a store at two collectors agree and share no copy of a key.
fn parts_fit(a: &Store, b: &Store) -> Result<(), CheckError> {
    let (store, name, first, second) = (a.spec.id, &a.spec.name, a.collector, b.collector);
    if a.spec != b.spec {
        return Err(CheckError(format!(
            "store {store} is not the same at collector {first} and collector {second}: collectors share the keys of a \
             store only if name and layout are the same"
        )));
    }
    let is_append = a.spec.kind.primitive() == Primitive::Append;
    match a.buckets.common_copy(&b.buckets).filter(|_| !is_append) {
        None => Ok(()),
        Some((copy, bucket)) => {
            let copy = if copy == 0 { String::new() } else { format!("copy {copy} of ") };
            Err(CheckError(format!(
                "{copy}bucket {bucket} of store `{name}` is at collector {first} and at collector {second}: let their \
                 `buckets` not overlap, or give one of the stores another name and id"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::{Buckets, Copies};
    use crate::program::ProgramSession;

    /// The program of the frame vectors: all at one collector.
    fn sample() -> Program {
        serde_json::from_str(include_str!("../../vectors/program.json")).unwrap()
    }

    fn pair(collector: u8, purpose: Purpose, local_qpn: u32) -> DataPlaneChange {
        match sample().get(&EntryKey::QueuePair(0, purpose)) {
            Some(DataPlaneEntry::QueuePair(pair)) => {
                let entry =
                    DataPlaneEntry::QueuePair(ProgramQueuePair { collector, local_qpn, ..pair.clone() });
                DataPlaneChange::Insert { entry }
            }
            _ => panic!("the sample has one"),
        }
    }

    fn store(id: u16, collector: u8) -> DataPlaneChange {
        part(id, collector, Buckets::ALL)
    }

    /// The sample's first store under this id, with these buckets at a collector.
    fn part(id: u16, collector: u8, buckets: Buckets) -> DataPlaneChange {
        let Some(mut store) = sample().first_store_part(1).cloned() else { panic!("the sample has it") };
        store.spec.id = id;
        DataPlaneChange::Insert {
            entry: DataPlaneEntry::Store(Store { collector, buckets: buckets.into(), ..store }),
        }
    }

    fn refusal(changes: &[DataPlaneChange]) -> String {
        apply_changes(&sample(), changes).map(|_| "held").unwrap_err().to_string()
    }

    #[test]
    fn entries_without_a_collector_are_the_first_ones() {
        let is_first = |entry: &DataPlaneEntry| match entry {
            DataPlaneEntry::QueuePair(pair) => pair.collector == 0,
            DataPlaneEntry::Store(store) => store.collector == 0,
            _ => true,
        };
        assert!(sample().entries().all(is_first));
    }

    #[test]
    fn another_collector_has_queue_pairs_and_stores_of_its_own() {
        let last = MAX_COLLECTORS - 1;
        let session = DataPlaneChange::Insert {
            entry: DataPlaneEntry::Session(ProgramSession { collector: last, generation: 1 }),
        };
        let second =
            [pair(last, Purpose::Write, 0x113), pair(last, Purpose::Atomic, 0x114), store(31, last), session];
        let program = apply_changes(&sample(), &second).unwrap();
        assert_eq!(program.first_store_part(31).map(|store| store.collector), Some(last));
        assert_eq!(program.first_store_part(1).map(|store| store.collector), Some(0));
        assert!(program.get(&EntryKey::QueuePair(last, Purpose::Write)).is_some());
        assert_eq!(program.generation(last), Some(1));
        assert_eq!(program.generation(1), None);
    }

    #[test]
    fn an_index_beyond_the_last_collector_is_refused() {
        for (change, field) in [
            (pair(MAX_COLLECTORS, Purpose::Write, 0x113), "queue-pair.collector"),
            (store(31, MAX_COLLECTORS), "store.collector"),
        ] {
            assert_eq!(
                refusal(&[change]),
                format!("{field} is 64, but must be 0 to 63: a program has 64 collectors at most")
            );
        }
    }

    #[test]
    fn each_bucket_of_a_store_is_at_one_collector() {
        let error = refusal(&[store(1, 2)]);
        assert!(error.starts_with("bucket 0 of store `kw` is at collector 0 and at collector 2"), "{error}");
        let (low, high) = (Buckets::from_range(0, 127), Buckets::from_range(128, 255));
        let error = refusal(&[part(1, 0, low), part(1, 2, Buckets::from_range(127, 255))]);
        assert!(
            error.starts_with("bucket 127 of store `kw` is at collector 0 and at collector 2"),
            "{error}"
        );
        let error = refusal(&[
            part(1, 0, Buckets::from_range(0, 254)),
            part(1, 2, high),
            part(1, 9, Buckets::from_range(255, 255)),
        ]);
        assert!(
            error.starts_with("bucket 128 of store `kw` is at collector 0 and at collector 2"),
            "{error}"
        );
        // A bucket may be unassigned.
        for parts in [
            [low, high],
            [low, Buckets::from_range(129, 255)],
            [Buckets::from_range(255, 255), Buckets::from_range(0, 0)],
        ] {
            let changes = [part(1, 0, parts[0]), part(1, 2, parts[1])];
            let program = apply_changes(&sample(), &changes).unwrap();
            let of_parts: Vec<Copies> = program.store_parts(1).map(|part| part.buckets).collect();
            assert_eq!(of_parts, parts.map(Copies::from));
        }
        // Buckets can move between collectors in either order of changes.
        let have = apply_changes(&sample(), &[part(1, 0, low), part(1, 2, high)]).unwrap();
        let want = apply_changes(&sample(), &[part(1, 0, high), part(1, 2, low)]).unwrap();
        let changes = super::super::diff_programs(&have, &want);
        assert_eq!((changes.len(), apply_changes(&have, &changes)), (2, Ok(want)));
    }

    #[test]
    fn each_copy_of_a_bucket_is_at_a_collector_of_its_own() {
        let (low, high) = (Buckets::from_range(0, 127), Buckets::from_range(128, 255));
        let part = |collector: u8, copies: [Buckets; 2]| {
            let Some(store) = sample().first_store_part(1).cloned() else { panic!("the sample has it") };
            let buckets = copies.into_iter().collect();
            DataPlaneChange::Insert { entry: DataPlaneEntry::Store(Store { collector, buckets, ..store }) }
        };
        let both = [part(0, [low, high]), part(1, [high, low])];
        assert_eq!(apply_changes(&sample(), &both).unwrap().store_parts(1).count(), 2);
        let error = refusal(&[part(0, [low, high]), part(1, [Buckets::NONE, high])]);
        assert!(
            error.starts_with("copy 1 of bucket 128 of store `kw` is at collector 0 and at collector 1"),
            "{error}"
        );
        let error = refusal(&[part(0, [low, Buckets::from_range(127, 200)])]);
        assert!(error.starts_with("two copies of bucket 127 of store `kw` are at collector 0"), "{error}");
    }

    #[test]
    fn parts_of_one_store_have_one_name_and_layout() {
        let DataPlaneChange::Insert { entry: DataPlaneEntry::Store(mut other) } =
            part(1, 2, Buckets::from_range(128, 255))
        else {
            panic!()
        };
        other.spec.name = "other".into();
        let changes = [
            part(1, 0, Buckets::from_range(0, 127)),
            DataPlaneChange::Insert { entry: DataPlaneEntry::Store(other) },
        ];
        assert!(refusal(&changes).starts_with("store 1 is not the same at collector 0 and collector 2"));
    }

    #[test]
    fn lists_are_in_the_part_of_their_collector() {
        let mut want = sample();
        let Some(part) = want.store_part(2, 0).cloned() else { panic!() };
        want.set(DataPlaneEntry::Store(Store { collector: 1, ..part }));
        let second = |first| Lists { store: 2, collector: 1, first, count: 2, positions: Vec::new() };
        want.set(DataPlaneEntry::Lists(second(6)));
        let changes = super::super::diff_programs(&sample(), &want);
        assert_eq!(apply_changes(&sample(), &changes), Ok(want.clone()));
        // One list is at one collector.
        let twice = DataPlaneChange::Insert { entry: DataPlaneEntry::Lists(second(5)) };
        assert_eq!(
            apply_changes(&want, &[twice]).unwrap_err().to_string(),
            "list 5 of store 2 is named twice"
        );
        // A part cannot go while it has lists, and removing it affects no other part.
        let Some(part) = want.store_part(2, 1).cloned() else { panic!() };
        let goes = DataPlaneChange::Delete { entry: DataPlaneEntry::Store(part) };
        assert!(
            apply_changes(&want, &[goes]).unwrap_err().to_string().starts_with("lists refers to store 2")
        );
        let back = super::super::diff_programs(&want, &sample());
        assert_eq!((back.len(), apply_changes(&want, &back)), (2, Ok(sample())));
    }

    #[test]
    fn a_store_that_moves_takes_along_what_refers_to_it() {
        let mut want = sample();
        let Some(DataPlaneEntry::Store(store)) = want.remove(&EntryKey::Store(2, 0)) else { panic!() };
        want.set(DataPlaneEntry::Store(Store { collector: 1, ..store }));
        for entry in sample().entries() {
            if let DataPlaneEntry::Lists(lists) = entry
                && lists.store == 2
            {
                want.set(DataPlaneEntry::Lists(Lists { collector: 1, ..lists.clone() }));
            }
        }
        let changes = super::super::diff_programs(&sample(), &want);
        assert_eq!(apply_changes(&sample(), &changes), Ok(want));
    }

    #[test]
    fn a_store_of_any_collector_travels_on_the_queue_pair_of_its_primitive() {
        let DataPlaneChange::Insert { entry: DataPlaneEntry::Store(store) } = store(31, 1) else { panic!() };
        let entry = DataPlaneEntry::Store(Store { queue_pair: Purpose::Atomic, ..store });
        assert!(refusal(&[DataPlaneChange::Insert { entry }]).contains("the queue pair for writes"));
    }

    #[test]
    fn a_number_of_this_side_belongs_to_one_queue_pair() {
        assert_eq!(
            refusal(&[pair(1, Purpose::Atomic, 273)]),
            "queue pair number 0x111 of this side is given to the queue pairs for writes of collector 0 and for \
             atomics of collector 1"
        );
    }
}
