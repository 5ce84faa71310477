use std::time::Duration;

use dta_client::{Ask, AskKeys, Policy};
use dta_proto::control::TailRequest;
use dta_proto::key::Key;
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use tonic::Code;

use super::*;
use crate::region::{Region, RegionOptions};

/// Stores of 4 KiB, whose descriptions say more.
fn short() -> Memory {
    let kinds = [
        StoreKind::KeyWrite { slots: 1 << 20, value_len: 12, redundancy: 2 },
        StoreKind::Postcarding { slots: 1 << 16, hops: 6, redundancy: 2 },
        StoreKind::Append { lists: 4, ring: 1024, batch_len: 64, entry_len: 4, notify: false },
        StoreKind::KeyIncrement { slots: 1 << 20, redundancy: 2 },
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
async fn memory_that_is_too_short_is_told_with_its_store_and_what_to_do() {
    let memory = short();
    let keys: Vec<Key> = (0..100u8).map(|i| Key([i; 16])).collect();
    let tail = |from_sequence| TailRequest { list: 2, from_sequence, ..Default::default() };
    let refused = [
        (0, memory.key_write("", &keys, Policy::First, 0).await.map(drop)),
        (1, memory.path("", &keys).await.map(drop)),
        (2, memory.tail(tail(0)).await.map(drop)),
        (2, memory.tail(tail(7)).await.map(drop)),
        (3, memory.counter("", &keys).await.map(drop)),
        (4, memory.sketch("", &keys, 1).await.map(drop)),
        (0, memory.stores().await.map(drop)),
    ];
    for (store, refused) in refused {
        let error = refused.expect_err("outside of the region");
        assert_eq!(error.status().map(tonic::Status::code), Some(Code::Internal), "{error}");
        let told = error.to_string();
        assert!(told.contains(&format!("store \"store{store}\" is shorter")), "{told}");
        assert!(told.contains("start the collector again"), "{told}");
    }
}

#[tokio::test]
async fn a_file_that_is_cut_short_under_a_reader_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let specs = [
        StoreSpec {
            id: 1,
            name: "flows".into(),
            kind: StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2 },
        },
        StoreSpec {
            id: 2,
            name: "events".into(),
            kind: StoreKind::Append { lists: 1, ring: 1024, batch_len: 64, entry_len: 4, notify: false },
        },
    ];
    let options = RegionOptions { huge_pages: false };
    let directory = crate::config::Memory::Directory(dir.path().to_owned());
    drop(Stores::open(&specs, &directory, options).unwrap());
    let memory = Memory::open(dir.path()).unwrap();
    let keys = [Key([1; 16])];
    assert!(memory.key_write("", &keys, Policy::First, 0).await.is_ok());
    let mut following = memory.tail(TailRequest::default()).await.unwrap();
    for file in ["flows", "events"] {
        let path = dir.path().join(format!("{file}.region"));
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
    }
    let refused = [
        memory.key_write("", &keys, Policy::First, 0).await.map(drop),
        memory.stores().await.map(drop),
        following.message().await.map(drop),
    ];
    for refused in refused {
        let told = refused.expect_err("the memory is gone").to_string();
        assert!(told.contains(".region: is cut off: 4096 bytes, but it should have"), "{told}");
    }
}

#[tokio::test]
async fn what_followed_lists_look_at_waits_for_few_threads() {
    let kind = StoreKind::Append { lists: 1, ring: 1024, batch_len: 64, entry_len: 4, notify: false };
    let specs = [StoreSpec { id: 1, name: "events".into(), kind }];
    let options = RegionOptions { huge_pages: false };
    let memory =
        Memory::new(Arc::new(Stores::open(&specs, &crate::config::Memory::Anonymous, options).unwrap()));
    let all = memory.looks.clone().acquire_many_owned(LOOKS as u32).await.unwrap();
    // Nothing is there: it ends once the ring was looked at.
    let request = TailRequest { until_caught_up: true, ..Default::default() };
    let mut following = memory.tail(request).await.unwrap();
    let looked = tokio::time::timeout(Duration::from_secs(2), following.message()).await;
    assert!(looked.is_err(), "{looked:?}");
    drop(all);
    let ended = tokio::time::timeout(Duration::from_secs(60), following.message()).await.unwrap();
    assert!(matches!(ended, Ok(None)), "{ended:?}");
}

#[tokio::test]
async fn a_list_whose_memory_is_replaced_is_to_be_followed_again() {
    let dir = tempfile::tempdir().unwrap();
    let kind = StoreKind::Append { lists: 1, ring: 1024, batch_len: 64, entry_len: 4, notify: false };
    let specs = [StoreSpec { id: 1, name: "events".into(), kind }];
    let directory = crate::config::Memory::Directory(dir.path().to_owned());
    let stores = Stores::open(&specs, &directory, RegionOptions { huge_pages: false }).unwrap();
    for memory in [Memory::open(dir.path()).unwrap(), Memory::new(Arc::new(stores))] {
        let mut following = memory.tail(TailRequest::default()).await.unwrap();
        // Beside the collector it is another one's stores that are replaced, and only their file is seen.
        if memory.beside {
            std::fs::remove_file(dir.path().join("events.region")).unwrap();
            drop(Stores::open(&specs, &directory, RegionOptions { huge_pages: false }).unwrap());
        } else {
            memory.stores.replace("events").unwrap();
        }
        let told = following.message().await.map(drop).expect_err("the memory is another").to_string();
        assert!(told.contains("\"events\" was replaced; follow the list again"), "{told}");
        assert!(memory.tail(TailRequest::default()).await.is_ok());
    }
}
