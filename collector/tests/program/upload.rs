//! Copies of histories in object storage, which moto's server stands in for.

#[path = "../../../testbed/tests/shared/object_storage.rs"]
#[allow(dead_code, unreachable_pub, reason = "not all of it is needed here")]
mod object_storage;

use std::collections::BTreeMap;
use std::path::PathBuf;

use dta_history::EpochTable;
use object_storage::{Fate, ObjectStorage};
use rustix::process::{Pid, Signal, kill_process};

use super::epochs::{World, counter, until, value};
use super::*;

fn storage() -> Option<ObjectStorage> {
    ObjectStorage::start(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(".."))
}

/// A collector's folder, with copies in the bucket.
fn world(keys: u32) -> World {
    let world = World::new(keys);
    let path = world.path("collector.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("[history]\n", "[history]\nurl = 's3://bucket/one'\n")).unwrap();
    world
}

fn start(world: &World, storage: &ObjectStorage) -> Running {
    let variables = storage.variables();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    world.start_with(&variables)
}

fn rows(folder: &Path) -> BTreeMap<u64, BTreeMap<u64, Vec<u8>>> {
    let table = EpochTable::open_existing(folder, "flows").unwrap();
    assert_eq!(table.log_damage(), [""; 0]);
    let mut all: BTreeMap<u64, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    for kept in table.kept_epochs().unwrap() {
        let rows = all.entry(kept.epoch.number).or_default();
        table
            .scan_epoch(kept.epoch.number, |slot, element| {
                assert!(rows.insert(slot, element.to_vec()).is_none())
            })
            .unwrap();
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs moto (make python)"]
async fn object_storage_that_is_away_delays_no_epoch_and_gets_all_of_them_later() {
    let Some(storage) = storage() else { return };
    // For a minute, in a long run.
    let away = std::env::var("DTA_OUTAGE_SECONDS").map_or(0, |seconds| seconds.parse::<usize>().unwrap());
    let epochs = (away / 2).max(4);
    let world = world(100_000);
    let collector = start(&world, &storage);
    // Keys come all the time.
    let load = |n: &mut u32| {
        world.write(*n % 100_000, &value(*n));
        *n += 1;
    };
    let mut n = 0;
    until("an epoch is there", || {
        load(&mut n);
        storage.keys().iter().any(|key| key.ends_with("1.json"))
    });
    // It takes what it is sent and does not answer; then nobody is there.
    for fate in [Fate::After(Duration::from_secs(600)), Fate::Refused] {
        storage.faults(move |_| fate);
        for _ in 0..epochs {
            let before = world.kept().len();
            until("epochs go on", || {
                load(&mut n);
                world.kept().len() > before
            });
        }
    }
    assert_eq!(counter(&collector, "epochs.lost").await, 0);
    drop(collector);
    // A start goes on without it.
    let mut collector = start(&world, &storage);
    let log = || std::fs::read_to_string(world.path("log")).unwrap();
    assert!(log().contains("object storage does not answer"), "{}", log());
    while counter(&collector, "upload.failed").await == 0 {
        load(&mut n);
    }
    // Meanwhile, it counts what waits.
    let waiting = counter(&collector, "upload.waiting").await;
    assert!(waiting >= 2 * epochs as u64, "{waiting}");
    storage.faults(|_| Fate::Answered);
    while counter(&collector, "upload.epochs").await < 2 * epochs as u64 {
        load(&mut n);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(counter(&collector, "upload.missed").await, 0);
    kill_process(Pid::from_child(&collector.child), Signal::TERM).unwrap();
    assert!(collector.child.wait().unwrap().success());
    // The last ones with the next start.
    let written = world.kept().len();
    let mut collector = start(&world, &storage);
    let folder = tempfile::tempdir().unwrap();
    until("all of them are there", || {
        std::fs::remove_dir_all(folder.path()).unwrap();
        storage.download("one", folder.path());
        rows(folder.path()).len() >= written
    });
    collector.child.kill().unwrap();
    collector.child.wait().unwrap();
    let (copied, kept) = (rows(folder.path()), rows(&world.path("history")));
    assert!(copied.iter().all(|(epoch, rows)| kept[epoch] == *rows));
    assert!(copied.values().map(BTreeMap::len).sum::<usize>() > 80_000);
    // No data file was put twice, but for those whose answer was lost.
    let mut puts: BTreeMap<String, usize> = BTreeMap::new();
    for request in storage.requests() {
        if request.method == "PUT"
            && request.path.contains("/epoch-")
            && request.status == Some(200)
            && request.fate == Fate::Answered
        {
            *puts.entry(request.path).or_default() += 1;
        }
    }
    assert!(puts.values().all(|count| *count == 1), "{puts:#?}");
}

#[test]
#[ignore = "needs moto (make python)"]
fn a_server_that_replaces_objects_ends_the_start() {
    let Some(storage) = storage() else { return };
    storage.faults(|_| Fate::Unconditional);
    let world = world(0);
    let output = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory"])
        .arg(world.path("memory"))
        .arg("--config")
        .arg(world.path("collector.toml"))
        .envs(storage.variables())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(
            "history.url: s3://bucket/one: its server replaces an object although it was asked not to"
        ),
        "{said}"
    );
}
