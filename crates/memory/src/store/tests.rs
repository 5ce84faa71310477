use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::store::{SlotKeys, StoreKind, StoreSpec};

use super::*;
use crate::reader::key_write;

pub(crate) fn store(kind: StoreKind) -> Store {
    let spec = StoreSpec { id: 1, name: "s".into(), kind };
    spec.validate().unwrap();
    Store::open(&spec, &MemoryBacking::Anonymous, RegionOptions { huge_pages: false }).unwrap()
}

pub(crate) fn key(i: u32) -> Key {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&i.to_be_bytes());
    Key(bytes)
}

/// Writes `value` to those of the key's copies that `which` selects.
pub(crate) fn write(store: &Store, key: &Key, value: &[u8], which: impl Fn(usize) -> bool) {
    let StoreKind::KeyWrite { slots, redundancy, keys, .. } = store.spec.kind else {
        panic!("not key-write")
    };
    let mut slot = vec![0; store.spec.element_len() as usize];
    match keys {
        SlotKeys::Hashed => layout::key_write::encode_slot(&mut slot, key, value),
        SlotKeys::Inline => layout::key_write::encode_slot(
            &mut slot,
            key,
            &layout::key_write::inline_value(key, value).unwrap(),
        ),
    }
    for (_, at) in hash::key_slots(key, redundancy, slots).iter().enumerate().filter(|(n, _)| which(*n)) {
        store.region.write(at * store.spec.element_len(), &slot).unwrap();
    }
}

pub(crate) const RING: u64 = 256;

pub(crate) fn list_store(batch_len: u16) -> Store {
    store(StoreKind::Append { lists: 4, ring: RING, batch_len, entry_len: 4, notify: false })
}

pub(crate) fn put_batch(store: &Store, list: u32, sequence: u32) {
    let len = store.spec.element_len() as usize;
    let mut batch = vec![0; len];
    let entries: Vec<u8> = (0..((len - 8) / 4).min(255)).flat_map(|_| sequence.to_be_bytes()).collect();
    layout::append::encode_batch(&mut batch, list, sequence, (entries.len() / 4) as u8, &entries);
    store.region.write(layout::append::batch_offset(list, sequence, RING, len as u16), &batch).unwrap();
}

#[test]
fn load_is_estimated_from_a_sample() {
    // 64 MiB, of which 4 MiB are read.
    let store =
        store(StoreKind::KeyWrite { slots: 1 << 22, value_len: 12, redundancy: 2, keys: Default::default() });
    assert_eq!(load::measure_load(&store).unwrap().used, 0);
    let keys = 400_000u32;
    (0..keys).for_each(|i| write(&store, &key(i.wrapping_mul(0x9e37_79b9)), &[1; 12], |_| true));
    let measured = load::measure_load(&store).unwrap();
    assert!((f64::from(keys) - measured.used as f64).abs() / f64::from(keys) < 0.02, "{measured:?}");
    assert!(
        measured.survival.is_some_and(|s| s > 0.95) && measured.advised_redundancy.is_some_and(|n| n >= 3)
    );
}

#[test]
fn load_of_rings_and_epochs_counts_what_is_there() {
    let lists = list_store(64);
    (1..=100).for_each(|s| put_batch(&lists, 1, s));
    let measured = load::measure_load(&lists).unwrap();
    assert_eq!((measured.used, measured.capacity, measured.survival), (100, 4 * RING, None));
}

#[test]
fn rings_that_turned_over_say_how_much_they_lost() {
    let lists = list_store(64);
    let overwritten = |store| load::measure_load(store).unwrap().overwritten;
    let last = u32::try_from(RING).unwrap();
    (1..=last).for_each(|sequence| put_batch(&lists, 1, sequence));
    assert_eq!(overwritten(&lists), Some(0));
    (last + 1..=last + 7).for_each(|sequence| put_batch(&lists, 1, sequence));
    put_batch(&lists, 3, last + 2);
    assert_eq!(overwritten(&lists), Some(7 + 2));
    let counters = store(StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 1 });
    assert_eq!(overwritten(&counters), None);
}

#[test]
fn a_full_store_says_at_least() {
    let store = store(StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 1 });
    (0..64).for_each(|i| store.region.store_u64(8 * i, 1).unwrap());
    let measured = load::measure_load(&store).unwrap();
    assert!(measured.used > 64 && measured.survival.is_some_and(|s| s < 0.2), "{measured:?}");
}

#[test]
fn stores_are_found_by_name_and_kind() {
    let specs = [
        ("flows", StoreKind::KeyWrite { slots: 256, value_len: 12, redundancy: 2, keys: Default::default() }),
        ("events", StoreKind::Append { lists: 4, ring: RING, batch_len: 64, entry_len: 4, notify: false }),
        ("paths", StoreKind::Postcarding { slots: 256, hops: 6, redundancy: 2 }),
        ("int-paths", StoreKind::Postcarding { slots: 256, hops: 6, redundancy: 2 }),
    ];
    let specs =
        specs.into_iter().zip(1..).map(|((name, kind), id)| StoreSpec { id, name: name.into(), kind });
    let specs: Vec<StoreSpec> = specs.collect();
    let stores = ServedStores::open(&specs, &MemoryBacking::Anonymous, RegionOptions::default()).unwrap();
    assert_eq!(stores.of_primitive("", Primitive::KeyWrite).unwrap().spec.name, "flows");
    assert_eq!(stores.of_primitive("flows", Primitive::KeyWrite).unwrap().spec.name, "flows");
    assert_eq!(stores.of_primitive("1", Primitive::KeyWrite).unwrap().spec.name, "flows");
    assert!(stores.of_primitive("9", Primitive::KeyWrite).is_err());
    let error = stores.of_primitive("flows", Primitive::Append).unwrap_err().to_string();
    assert!(error.contains("key-write") && error.contains("events"), "{error}");
    assert!(
        stores.of_primitive("x", Primitive::Append).unwrap_err().to_string().contains("paths (postcarding)")
    );
    assert!(
        ServedStores::from_iter([])
            .of_primitive("", Primitive::Append)
            .unwrap_err()
            .to_string()
            .contains("none")
    );
}

#[test]
fn a_store_that_is_replaced_has_new_memory_and_who_has_the_old_one_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |id, name: &str| StoreSpec {
        id,
        name: name.into(),
        kind: StoreKind::KeyWrite { slots: 256, value_len: 12, redundancy: 2, keys: Default::default() },
    };
    let specs = [spec(1, "flows"), spec(2, "others")];
    let options = RegionOptions { huge_pages: false };
    let found = |store: &Store| {
        let reader = key_write::KeyWriteReader::new(store).unwrap();
        let (mut answers, mut values) = ([key_write::KeyWriteReading::default()], [0; 12]);
        let policy = layout::key_write::Choice::First;
        reader.query_keys(&[key(1)], policy, &mut answers, &mut values).unwrap();
        answers[0].found
    };
    for memory in [MemoryBacking::Anonymous, MemoryBacking::Directory(dir.path().to_owned())] {
        let stores = ServedStores::open(&specs, &memory, options).unwrap();
        let others = stores.get("others").unwrap();
        let before = stores.get("flows").unwrap();
        write(&before, &key(1), &[7; 12], |_| true);
        let after = stores.replace_memory(stores.successor("flows").unwrap(), false).unwrap();
        assert_eq!((before.generation, after.generation), (1, 2));
        assert_eq!((before.region.len(), &before.spec), (after.region.len(), &after.spec));
        assert!(before.region.wire_address().abs_diff(after.region.wire_address()) >= after.region.len());
        assert!(found(&before) && !found(&after));
        assert!(Arc::ptr_eq(&stores.of_primitive("flows", Primitive::KeyWrite).unwrap(), &after));
        assert!(
            stores.current_stores().iter().zip([&after, &others]).all(|(now, store)| Arc::ptr_eq(now, store))
        );
        write(&after, &key(1), &[8; 12], |_| true);
        assert_eq!(stores.replace_memory(stores.successor("flows").unwrap(), false).unwrap().generation, 3);
        assert!(stores.successor("x").unwrap_err().to_string().contains("others (key-write)"));
        if let MemoryBacking::Directory(dir) = &memory {
            // A reader in another process switches over, and a collector started later finds the newest.
            let path = region_path(dir, "flows");
            let region = Region::open_read_only(&path).unwrap();
            let spec = region.file_header().unwrap().spec.clone();
            let beside = ServedStores::from_iter([Store { spec, region: region.into(), generation: 3 }]);
            beside.follow_files().unwrap();
            assert_eq!(beside.get("flows").unwrap().generation, 3);
            let newest = stores.replace_memory(stores.successor("flows").unwrap(), false).unwrap();
            write(&newest, &key(1), &[9; 12], |_| true);
            beside.follow_files().unwrap();
            let there = beside.get("flows").unwrap();
            assert!(there.generation == 4 && found(&there));
            let iova = newest.region.wire_address();
            drop((stores, before, after, newest, others));
            let again = ServedStores::open(&specs, &memory, options).unwrap().get("flows").unwrap();
            assert_eq!((again.generation, again.region.wire_address()), (4, iova));
            assert!(again.region.is_preexisting() && found(&again));
            let files = std::fs::read_dir(dir).unwrap().count();
            assert_eq!(files, 2, "the files of before are gone");
        }
    }
}
/// CPU time that it takes this thread to open `count` stores of 4 KiB.
fn open_many(count: u16) -> std::time::Duration {
    let specs: Vec<StoreSpec> = (1..=count)
        .map(|id| StoreSpec {
            id,
            name: format!("s{id}"),
            kind: StoreKind::KeyWrite { slots: 256, value_len: 12, redundancy: 2, keys: Default::default() },
        })
        .collect();
    let clock = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let begin = clock();
    let stores = ServedStores::open(&specs, &MemoryBacking::Anonymous, RegionOptions::default()).unwrap();
    for store in stores.current_stores().iter() {
        // As when starting, for the log.
        assert!(!store.region.page_kind().to_string().is_empty());
    }
    let end = clock();
    std::time::Duration::new((end.tv_sec - begin.tv_sec) as u64, 0)
        + std::time::Duration::from_nanos(end.tv_nsec as u64)
        - std::time::Duration::from_nanos(begin.tv_nsec as u64)
}

#[test]
fn many_stores_open_in_a_time_that_grows_as_their_number() {
    open_many(50);
    let least = |count| (0..3).map(|_| open_many(count)).min().unwrap();
    let (few, many) = (least(100), least(1600));
    // Sixteen times as many stores; this once took more than a hundred times as long.
    assert!(many < few * 48, "{few:?} for 100, {many:?} for 1600");
}
