//! Copies of tables in object storage, which moto's server stands in for.

#[path = "../../../../testbed/tests/shared/object_storage.rs"]
#[allow(dead_code, unreachable_pub, reason = "not all of it is needed here")]
mod object_storage;

mod bad_days;
mod copies;
mod race;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dta_history::s3::{Mirror, MirrorProgress, S3Error, StorageBucket};
use dta_history::{EpochTable, HistoryEpoch};
use dta_proto::store::{StoreKind, StoreSpec};
use object_storage::{Fate, ObjectStorage, Request};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

const MINUTE: u64 = 60_000;
const URL: &str = "s3://bucket/of/this";

/// A table with nothing in it, object storage, and the program's wish to stop.
struct World {
    folder: TempDir,
    table: EpochTable,
    storage: ObjectStorage,
    stop: watch::Sender<bool>,
}

impl World {
    fn new() -> Option<World> {
        let storage = ObjectStorage::start(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../.."))?;
        let folder = tempfile::tempdir().unwrap();
        let table = EpochTable::open(folder.path(), &spec()).unwrap();
        Some(World { folder, table, storage, stop: watch::channel(false).0 })
    }

    fn bucket(&self, url: &str) -> Result<StorageBucket, S3Error> {
        StorageBucket::open(url, &self.storage.variables().into_iter().collect(), self.stop.subscribe())
    }

    fn mirror(&self) -> Mirror {
        Mirror::new(Arc::new(self.bucket(URL).unwrap()), "last")
    }

    /// Writes the epoch of this minute.
    fn write(&self, number: u64) {
        write(&self.table, number, 200);
    }

    /// Checks that the copy has the same epochs and rows, and no other files.
    fn check(&self) {
        let folder = tempfile::tempdir().unwrap();
        self.storage.download("of/this", folder.path());
        let copy = EpochTable::open_existing(folder.path(), "last").unwrap();
        assert_eq!(copy.log_damage(), [""; 0]);
        let (of_copy, of_table) = (copy.kept_epochs().unwrap(), self.table.kept_epochs().unwrap());
        assert_eq!(of_copy, of_table);
        for kept in &of_table {
            assert_eq!(scanned(&copy, kept.epoch.number), scanned(&self.table, kept.epoch.number));
        }
        let files = |table: &EpochTable| {
            table.data_files().unwrap().into_iter().map(|file| file.name).collect::<BTreeSet<_>>()
        };
        assert_eq!(files(&copy), files(&self.table));
    }

    /// The actions of all commits of the copy, by version: there is none left out.
    fn commits(&self) -> Vec<Vec<Value>> {
        let keys = self.storage.keys().into_iter().filter(|key| key.ends_with(".json"));
        let commits: Vec<Vec<Value>> = keys
            .enumerate()
            .map(|(version, key)| {
                assert_eq!(key, format!("of/this/last/_delta_log/{version:020}.json"));
                let text =
                    String::from_utf8(self.storage.ask("GET", &format!("/bucket/{key}"), b"").1).unwrap();
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
            })
            .collect();
        commits
    }

    /// Checks that each version names only files that are there or that were removed since, none is added twice, and no version has an
    /// epoch twice.
    fn check_versions(&self) {
        let objects: BTreeSet<String> = self.storage.keys().into_iter().collect();
        let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
        let mut epochs: BTreeMap<u64, String> = BTreeMap::new();
        for commit in self.commits() {
            let of =
                |what: &str| commit.iter().filter_map(|action| action.get(what)).cloned().collect::<Vec<_>>();
            for remove in of("remove") {
                let path = remove["path"].as_str().unwrap().to_owned();
                epochs.retain(|_, file| *file != path);
                assert!(removed.insert(path));
            }
            for add in of("add") {
                let path = add["path"].as_str().unwrap().to_owned();
                let in_file: Vec<Value> =
                    serde_json::from_str(add["tags"]["dta.epochs"].as_str().unwrap()).unwrap();
                for epoch in in_file {
                    let twice = epochs.insert(epoch["number"].as_u64().unwrap(), path.clone());
                    assert_eq!(twice, None, "{epoch}");
                }
                assert!(objects.contains(&format!("of/this/last/{path}")), "{path}");
                assert!(added.insert(path));
            }
        }
    }
}

fn spec() -> StoreSpec {
    let kind = StoreKind::KeyWrite { slots: 1 << 22, value_len: 12, redundancy: 2, keys: Default::default() };
    StoreSpec { id: 1, name: "last".to_owned(), kind }
}

fn write(table: &EpochTable, number: u64, rows: u64) {
    let mut flush = table.begin_epoch(number).unwrap();
    for slot in 0..rows {
        let noise = (slot << 20 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let element = [noise.to_ne_bytes(), noise.rotate_left(29).to_ne_bytes()].concat();
        flush.write_slots(slot, &element).unwrap();
    }
    let epoch = HistoryEpoch {
        number,
        opened: number * MINUTE,
        flipped_from: (number + 1) * MINUTE,
        flipped_to: (number + 1) * MINUTE + 20,
        waterfall: json!({ "landed": number }),
        ..HistoryEpoch::default()
    };
    flush.finish(&epoch).unwrap();
}

fn scanned(table: &EpochTable, epoch: u64) -> BTreeMap<u64, Vec<u8>> {
    let mut rows = BTreeMap::new();
    table.scan_epoch(epoch, |slot, element| assert!(rows.insert(slot, element.to_vec()).is_none())).unwrap();
    rows
}

/// The data files that were put, and how often that was answered.
fn puts(requests: &[Request]) -> BTreeMap<String, usize> {
    let mut puts = BTreeMap::new();
    let is_put = |request: &&Request| {
        request.method == "PUT" && request.status == Some(200) && request.fate == Fate::Answered
    };
    for request in requests.iter().filter(is_put) {
        if let Some((_, name)) = request.path.split_once("/last/epoch-") {
            *puts.entry(name.to_owned()).or_default() += 1;
        }
    }
    puts
}

/// Follows until it has no fault; gives how often it had one.
fn follow(mirror: &mut Mirror, table: &EpochTable, done: &mut MirrorProgress) -> usize {
    let mut failed = 0;
    while let Err(error) = mirror.mirror_table(table, done) {
        assert!(error.is_transient(), "{error}");
        failed += 1;
        assert!(failed < 1000, "{error}");
    }
    failed
}
