//! One engine, two collectors that have the same keys: the copies of values are spread, counters and paths are at both.

use dta_proto::buckets;
use dta_proto::key::Key;
use dta_proto::layout::{hash, key_increment, key_write, postcarding};
use dta_proto::program::*;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::DtaBody;
use proptest::prelude::*;

use super::EngineLimits;
use super::collectors_tests::{numbered, places, shared};
use super::counters::Discard;
use super::tests::{Bench, KI, KW, PC};

/// The shared program with both copies of each bucket: a collector has copy 1 of the other's.
fn apart() -> Program {
    let mut program = shared(128);
    for id in [KW, KI, PC] {
        let parts: Vec<Store> = program.store_parts(id).cloned().collect();
        for part in parts {
            let own = part.buckets.buckets_of_copy(0);
            let buckets = [own, own.complement()].into_iter().collect();
            let mut spec = part.spec.clone();
            if let StoreKind::KeyIncrement { replicas, .. } = &mut spec.kind {
                *replicas = 2;
            }
            program.set(DataPlaneEntry::Store(Store { buckets, spec, ..part }));
        }
    }
    program
}

fn bench(program: &Program) -> Bench {
    Bench::new(program, EngineLimits { name_reports: true, ..EngineLimits::default() })
}

/// Collector, address and rkey of each operation that is due for a report of a key, in the order of the places.
fn due(program: &Program, id: u16, key: &Key, copies: u8) -> Vec<(u8, u64, u32)> {
    let first = buckets::bucket_of_key(key) / 128;
    let at = |replica: u8, n: u8| {
        let collector = (first + replica) % 2;
        let part = program.store_part(id, collector).unwrap();
        let of_copy = |copy, slots| hash::slot_index(hash::key_hash(key), copy, slots);
        let slot = |slots| of_copy(n.into(), slots);
        let offset = match part.spec.kind {
            StoreKind::KeyWrite { slots, value_len, .. } => key_write::slot_offset(slot(slots), value_len),
            StoreKind::KeyIncrement { slots, redundancy, .. } => {
                let copy = key_increment::copy_in_lane(replica.into(), n, redundancy);
                key_increment::counter_offset(of_copy(copy, slots))
            }
            StoreKind::Postcarding { slots, hops, .. } => postcarding::row_offset(slot(slots), hops),
            _ => unreachable!("stores with keys"),
        };
        (collector, part.address + offset, part.rkey.0)
    };
    let mut due: Vec<_> = match id {
        KW => (0..copies).map(|n| at(n % 2, n)).collect(),
        _ => [0, 1].into_iter().flat_map(|replica| (0..copies).map(move |n| at(replica, n))).collect(),
    };
    due.sort_unstable();
    // A counter that is the place of several copies counts a report once.
    if id == KI {
        due.dedup();
    }
    due
}

/// One report of each primitive for a key; the path is complete.
fn reports(bench: &mut Bench, key: Key, redundancy: u8) -> [(u16, u8, Vec<u8>); 3] {
    let asked = if redundancy == 0 { 2 } else { redundancy };
    [
        (KW, asked, bench.v1(7, KW, DtaBody::KeyWrite { redundancy, key, value: &[1; 12] })),
        (KI, 2, bench.v1(7, KI, DtaBody::KeyIncrement { redundancy: 0, key, delta: 5 })),
        (PC, 2, bench.v1(7, PC, DtaBody::Postcard { key, hop: 0, path_length: 1, value: 7 })),
    ]
}

fn sorted(frames: &[Vec<u8>]) -> Vec<(u8, u64, u32)> {
    let mut at = places(frames);
    at.sort_unstable();
    at
}

#[test]
fn a_counter_that_two_copies_of_one_replica_share_counts_once() {
    let key = Key([2, 48, 141, 194, 151, 56, 121, 188, 209, 82, 234, 225, 188, 71, 3, 13]);
    let program = apart();
    let mut bench = bench(&program);
    let [_, (id, copies, report), _] = reports(&mut bench, key, 0);
    let due = due(&program, id, &key, copies);
    assert_eq!((sorted(&bench.ingest(0, &[report])), due.len()), (due, 3));
}

proptest! {
    #[test]
    fn copies_of_values_are_spread_and_others_go_to_each(key: [u8; 16], redundancy in 0u8..3) {
        let program = apart();
        let mut bench = bench(&program);
        for (id, copies, report) in reports(&mut bench, Key(key), redundancy) {
            prop_assert_eq!(sorted(&bench.ingest(0, &[report])), due(&program, id, &Key(key), copies));
        }
        prop_assert_eq!(bench.engine.engine_counters().find_imbalance(), None);
        prop_assert_eq!(bench.engine.engine_counters().named_counters().into_iter().find(|(name, _)| name == "lost_operations"), Some(("lost_operations".into(), 0)));
    }

    /// Without its queue pairs, or without its region.
    #[test]
    fn what_one_collector_cannot_take_the_other_still_gets(key: [u8; 16], gone in 0u8..2, is_unknown: bool) {
        let mut program = apart();
        let whole = program.clone();
        for purpose in Purpose::ALL {
            program.remove(&EntryKey::QueuePair(gone, purpose));
        }
        if is_unknown {
            [KW, KI, PC].into_iter().for_each(|id| { program.remove(&EntryKey::Store(id, gone)); });
        }
        let mut bench = bench(&program);
        let mut lost = 0;
        for (id, copies, report) in reports(&mut bench, Key(key), 0) {
            let mut left = due(&whole, id, &Key(key), copies);
            let all = left.len();
            left.retain(|(collector, ..)| *collector != gone);
            // For counters, it is not known without its region whether another collector should have a key.
            lost += if id == KI && is_unknown { 0 } else { (all - left.len()) as u64 };
            let sent = sorted(&bench.ingest(0, &[report]));
            prop_assert_eq!(sent, left);
        }
        let counters = bench.engine.engine_counters();
        prop_assert_eq!(counters.find_imbalance(), None);
        let named = |name: &str| counters.named_counters().into_iter().find(|(of, _)| of == name).map(|(_, count)| count);
        prop_assert_eq!((named("lost"), named("lost_operations"), named("accepted")), (Some(0), Some(lost), Some(3)));
    }
}

#[test]
fn a_run_of_values_is_spread_like_single_ones() {
    let program = apart();
    let mut bench = Bench::new(&program, EngineLimits::default());
    let keys: Vec<Key> = (0..20).map(numbered).collect();
    let reports: Vec<_> = keys
        .iter()
        .map(|key| bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 0, key: *key, value: &[1; 12] }))
        .collect();
    let mut all: Vec<_> = keys.iter().flat_map(|key| due(&program, KW, key, 2)).collect();
    all.sort_unstable();
    assert_eq!(sorted(&bench.ingest(0, &reports)), all);
}

#[test]
fn a_path_that_is_held_for_both_stays_when_one_of_them_is_forgotten() {
    let program = apart();
    let mut bench = bench(&program);
    let key = numbered(3);
    let report = bench.v1(7, PC, DtaBody::Postcard { key, hop: 0, path_length: 2, value: 7 });
    assert!(bench.ingest(0, &[report]).is_empty());
    for collector in [0, 1] {
        let entry = DataPlaneEntry::Store(program.store_part(PC, collector).unwrap().clone());
        bench.engine.apply_changes(0, &[DataPlaneChange::Forget { entry }], &mut bench.out).unwrap();
        assert_eq!(bench.engine.engine_counters().discarded(Discard::StoreRemoved), 0);
    }
    let report = bench.v1(7, PC, DtaBody::Postcard { key, hop: 1, path_length: 2, value: 8 });
    assert_eq!(sorted(&bench.ingest(0, &[report])), due(&program, PC, &key, 2));
}
