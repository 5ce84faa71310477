use std::time::Duration;

use dta_memory::region::{Region, RegionOptions};
use dta_proto::control::TailRequest;
use dta_proto::key::Key;
use dta_proto::layout::key_increment::{CountingRole, copy_in_lane, counter_offset, encode_counter};
use dta_proto::layout::{append, hash, postcarding};
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use dta_rpc::{Ask, AskKeys, Policy};
use tonic::Code;

use super::*;

/// Stores whose memory of 4 KiB is shorter than their descriptions say.
fn short() -> Memory {
    let kinds = [
        StoreKind::KeyWrite { slots: 1 << 20, value_len: 12, redundancy: 2, keys: Default::default() },
        StoreKind::Postcarding { slots: 1 << 16, hops: 6, redundancy: 2 },
        StoreKind::Append { lists: 4, ring: 1024, batch_len: 64, entry_len: 4, notify: false },
        StoreKind::KeyIncrement { slots: 1 << 20, redundancy: 2, replicas: 1 },
        StoreKind::SketchMerge { columns: 1 << 12, rows: 3, epochs: 2, merge: Merge::Sum, expected: 2 },
    ];
    let store = |(id, kind): (usize, StoreKind)| {
        let region = Region::anonymous(4096, 0, RegionOptions { huge_pages: false }).unwrap();
        let spec = StoreSpec { id: id as u16, name: format!("store{id}"), kind };
        Store { spec, region: Arc::new(region), generation: 1 }
    };
    Memory::new(Arc::new(kinds.into_iter().enumerate().map(store).collect()))
}

#[tokio::test]
async fn memory_that_is_too_short_is_reported_with_its_store_and_what_to_do() {
    let memory = short();
    let keys: Vec<Key> = (0..100u8).map(|i| Key([i; 16])).collect();
    let tail = |from_sequence| TailRequest { list: 2, from_sequence, ..Default::default() };
    let refused = [
        (0, memory.key_write("", &keys, Policy::First, 0).await.map(drop)),
        (1, memory.query_paths("", &keys).await.map(drop)),
        (2, memory.tail_list(tail(0)).await.map(drop)),
        (2, memory.tail_list(tail(7)).await.map(drop)),
        (3, memory.query_counters("", &keys).await.map(drop)),
        (4, memory.query_sketches("", &keys, 1).await.map(drop)),
        (0, memory.fetch_stores().await.map(drop)),
    ];
    for (store, refused) in refused {
        let error = refused.expect_err("outside of the region");
        assert_eq!(error.status().map(tonic::Status::code), Some(Code::Internal), "{error}");
        let message = error.to_string();
        assert!(message.contains(&format!("store \"store{store}\" is shorter")), "{message}");
        assert!(message.contains("restart the collector"), "{message}");
    }
}

#[tokio::test]
async fn a_file_that_is_cut_short_under_a_reader_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let specs = [
        StoreSpec {
            id: 1,
            name: "flows".into(),
            kind: StoreKind::KeyWrite {
                slots: 1 << 10,
                value_len: 12,
                redundancy: 2,
                keys: Default::default(),
            },
        },
        StoreSpec {
            id: 2,
            name: "events".into(),
            kind: StoreKind::Append { lists: 1, ring: 1024, batch_len: 64, entry_len: 4, notify: false },
        },
    ];
    let options = RegionOptions { huge_pages: false };
    let directory = crate::config::MemoryBacking::Directory(dir.path().to_owned());
    drop(ServedStores::open(&specs, &directory, options).unwrap());
    let memory = Memory::open(dir.path()).unwrap();
    let keys = [Key([1; 16])];
    assert!(memory.key_write("", &keys, Policy::First, 0).await.is_ok());
    let mut following = memory.tail_list(TailRequest::default()).await.unwrap();
    for file in ["flows", "events"] {
        let path = dir.path().join(format!("{file}.region"));
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
    }
    let refused = [
        memory.key_write("", &keys, Policy::First, 0).await.map(drop),
        memory.fetch_stores().await.map(drop),
        following.next_message().await.map(drop),
    ];
    for refused in refused {
        let error = refused.expect_err("the memory is gone").to_string();
        assert!(error.contains(".region: is cut off: 4096 bytes, but it should have"), "{error}");
    }
}

#[tokio::test]
async fn what_followed_lists_look_at_waits_for_few_threads() {
    let kind = StoreKind::Append { lists: 1, ring: 1024, batch_len: 64, entry_len: 4, notify: false };
    let specs = [StoreSpec { id: 1, name: "events".into(), kind }];
    let options = RegionOptions { huge_pages: false };
    let memory = Memory::new(Arc::new(
        ServedStores::open(&specs, &crate::config::MemoryBacking::Anonymous, options).unwrap(),
    ));
    let all = memory.looks.clone().acquire_many_owned(LOOKS as u32).await.unwrap();
    // The list is empty, so following ends once the ring has been scanned.
    let request = TailRequest { until_caught_up: true, ..Default::default() };
    let mut following = memory.tail_list(request).await.unwrap();
    let looked = tokio::time::timeout(Duration::from_secs(2), following.next_message()).await;
    assert!(looked.is_err(), "{looked:?}");
    drop(all);
    let ended = tokio::time::timeout(Duration::from_secs(60), following.next_message()).await.unwrap();
    assert!(matches!(ended, Ok(None)), "{ended:?}");
}

#[tokio::test]
async fn a_list_whose_memory_is_replaced_is_to_be_followed_again() {
    let dir = tempfile::tempdir().unwrap();
    let kind = StoreKind::Append { lists: 1, ring: 1024, batch_len: 64, entry_len: 4, notify: false };
    let specs = [StoreSpec { id: 1, name: "events".into(), kind }];
    let directory = crate::config::MemoryBacking::Directory(dir.path().to_owned());
    let stores = ServedStores::open(&specs, &directory, RegionOptions { huge_pages: false }).unwrap();
    for memory in [Memory::open(dir.path()).unwrap(), Memory::new(Arc::new(stores))] {
        let mut following = memory.tail_list(TailRequest::default()).await.unwrap();
        // Outside the collector's process, only the file shows that a store was replaced.
        if memory.beside {
            std::fs::remove_file(dir.path().join("events.region")).unwrap();
            drop(ServedStores::open(&specs, &directory, RegionOptions { huge_pages: false }).unwrap());
        } else {
            memory.stores.replace_memory(memory.stores.successor("events").unwrap(), false).unwrap();
        }
        let error = following.next_message().await.map(drop).expect_err("the memory is another").to_string();
        assert!(error.contains("\"events\" was replaced; follow the list again"), "{error}");
        assert!(memory.tail_list(TailRequest::default()).await.is_ok());
    }
}

/// A store in a directory, and a reader of that directory.
fn of_files(directory: &std::path::Path, kind: StoreKind) -> (Store, Memory) {
    let spec = StoreSpec { id: 1, name: "s".into(), kind };
    let place = crate::config::MemoryBacking::Directory(directory.to_owned());
    let store = Store::open(&spec, &place, RegionOptions::default()).unwrap();
    (store, Memory::open(directory).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_are_damaged_or_never_come_are_given_up() {
    const RING: u64 = 64;
    let directory = tempfile::tempdir().unwrap();
    let kind = StoreKind::Append { lists: 1, ring: RING, batch_len: 64, entry_len: 4, notify: false };
    let (store, memory) = of_files(directory.path(), kind);
    for sequence in [1, 2, 3, 5, 6] {
        let mut batch = [0; 64];
        append::encode_batch(&mut batch, 0, sequence, 1, &sequence.to_be_bytes());
        store.region.write(append::batch_offset(0, sequence, RING, 64), &batch).unwrap();
    }
    store.region.write(append::batch_offset(0, 2, RING, 64), &[0xff]).unwrap();
    let request = TailRequest { from_start: true, ..Default::default() };
    let mut following = memory.tail_list(request).await.unwrap();
    let (mut last, mut entries) = (0, Vec::new());
    while last < 6 {
        let news = tokio::time::timeout(Duration::from_secs(30), following.next_message()).await;
        let news = news.unwrap().unwrap().unwrap();
        last = last.max(news.sequence);
        entries.extend(news.entries);
    }
    assert_eq!(entries, [1u32, 3, 5, 6].map(|sequence| sequence.to_be_bytes().to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn hops_at_the_end_of_a_path_are_answered_though_they_are_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let kind = StoreKind::Postcarding { slots: 1 << 8, hops: 6, redundancy: 2 };
    let (store, memory) = of_files(directory.path(), kind);
    let key: Key = "10.0.0.1:1->10.0.0.2:2/udp".parse().unwrap();
    let mut path = postcarding::PostcardPath { length: 5, ..Default::default() };
    assert!(path.set(0, 10) && path.set(2, 30));
    let mut row = [0; 32];
    postcarding::encode_row(&mut row, &key, &path);
    for at in hash::key_slots(&key, 2, 1 << 8).iter() {
        store.region.write(postcarding::row_offset(*at, 6), &row).unwrap();
    }
    let answer = memory.query_paths("s", &[key]).await.unwrap().remove(0);
    assert_eq!(answer.present, [true, false, true, false, false]);
    assert_eq!((answer.hops[0], answer.hops[2], answer.path_length, answer.complete), (10, 30, 5, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_counters_that_two_collectors_count_only_the_lanes_of_ones_own_keys_count() {
    let directory = tempfile::tempdir().unwrap();
    let (store, memory) =
        of_files(directory.path(), StoreKind::KeyIncrement { slots: 1 << 20, redundancy: 2, replicas: 2 });
    let keys = [Key([1; 16]), Key([2; 16])];
    for key in &keys {
        let slots = hash::key_slots(key, 8, 1 << 20);
        for (lane, count) in [1u64, 20, 300, 4000].into_iter().enumerate() {
            for n in 0..2 {
                store
                    .region
                    .write(counter_offset(slots[copy_in_lane(lane, n, 2)]), &encode_counter(count))
                    .unwrap();
            }
        }
    }
    let counts = async |memory: &Memory| {
        let answers = memory.query_counters("s", &keys).await.unwrap();
        answers.into_iter().map(|answer| (answer.value, answer.by_colour)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&memory).await, [(4321, vec![]), (4321, vec![])]);
    let role = CountingRole { colour: 1, lanes: [true, false, false, true] };
    let roles = memory.clone().with_roles(Arc::new(move |store, keys| {
        assert_eq!(store, "s");
        Some(keys.iter().map(|key| if key.0[0] == 1 { role } else { CountingRole::default() }).collect())
    }));
    let mut by_colour = vec![0; 16];
    (by_colour[4], by_colour[7]) = (1, 4000);
    assert_eq!(counts(&roles).await, [(4001, by_colour), (0, vec![0; 16])]);
    // This collector does not yet know what others have.
    let unknown = memory.with_roles(Arc::new(|_, _| None));
    assert_eq!(counts(&unknown).await[0], (4321, vec![]));
}
