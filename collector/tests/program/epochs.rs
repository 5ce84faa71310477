//! Epochs of a collector that is killed, whose translator falls silent, whose history is damaged, and whose clock jumps.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use dta_history::{EpochTable, KeptEpoch};
use dta_memory::region::Region;
use dta_proto::control::Policy;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::{KeyAnswer, Question, QuestionKind};
use tempfile::TempDir;

use super::*;

const SLOTS: u64 = 1 << 20;
const KEYS: u32 = 300_000;
const PATIENCE: Duration = Duration::from_secs(300);

fn key(n: u32) -> Key {
    Key([n.to_be_bytes(); 4].as_flattened().try_into().unwrap())
}

pub(super) fn value(n: u32) -> [u8; 12] {
    [n, !n, n].map(u32::to_be_bytes).as_flattened().try_into().unwrap()
}

fn spec() -> StoreSpec {
    let kind = StoreKind::KeyWrite { slots: SLOTS, value_len: 12, redundancy: 1, keys: Default::default() };
    StoreSpec { id: 1, name: "flows".into(), kind }
}

/// The folder of a collector with epochs of two seconds.
pub(super) struct World(TempDir);

impl World {
    /// Its store "flows" has these keys.
    pub(super) fn new(keys: u32) -> World {
        let world = World(tempfile::tempdir().unwrap());
        let text = format!(
            "[collector]\nname = 'epochs'\n[history]\ndirectory = '{}'\nkeep = '30m'\n[[store]]\nid = 1\nname = 'flows'\nkind = 'key-write'\n\
             slots = {SLOTS}\nvalue_len = 12\nredundancy = 1\nepoch = '2s'\n",
            world.path("history").display()
        );
        std::fs::write(world.path("collector.toml"), text).unwrap();
        std::fs::create_dir(world.path("memory")).unwrap();
        let memory = MemoryBacking::Directory(world.path("memory"));
        let stores = ServedStores::open(&[spec()], &memory, RegionOptions::default()).unwrap();
        let region = stores.get("flows").unwrap().region.clone();
        for n in 0..keys {
            let mut slot = [0; 16];
            layout::key_write::encode_slot(&mut slot, &key(n), &value(n));
            let at = hash::key_slots(&key(n), 1, SLOTS)[0];
            region.write(layout::key_write::slot_offset(at, 12), &slot).unwrap();
        }
        world
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self) -> Running {
        self.start_with(&[])
    }

    /// With these variables of the environment.
    pub(super) fn start_with(&self, variables: &[(&str, &str)]) -> Running {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = program()
            .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory"])
            .arg(self.path("memory"))
            .arg("--config")
            .arg(self.path("collector.toml"))
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect("a ready line");
        Running { child, address: ready["listen"].as_str().unwrap().to_owned() }
    }

    /// Writes a value of a key into the memory of the open epoch, as a NIC does, and gives its generation.
    pub(super) fn write(&self, n: u32, value: &[u8; 12]) -> u64 {
        let path = self.path("memory/flows.region");
        let mut slot = [0; 16];
        layout::key_write::encode_slot(&mut slot, &key(n), value);
        let at = layout::key_write::slot_offset(hash::key_slots(&key(n), 1, SLOTS)[0], 12);
        loop {
            let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            let mut data = [0; 8];
            file.read_exact_at(&mut data, 16).unwrap();
            file.write_all_at(&slot, u64::from_le_bytes(data) + at).unwrap();
            let generation = Region::open_read_only(&path).unwrap().file_header().unwrap().generation;
            // The epoch may have ended meanwhile.
            if std::fs::metadata(&path).unwrap().ino() == file.metadata().unwrap().ino() {
                return generation;
            }
        }
    }

    pub(super) fn kept(&self) -> Vec<KeptEpoch> {
        let table = EpochTable::open_existing(&self.path("history"), "flows");
        let epochs = table.and_then(|table| table.kept_epochs());
        epochs.map_or(Vec::new(), |epochs| epochs.iter().map(|kept| KeptEpoch::clone(kept)).collect())
    }

    /// Whether a file of an epoch is being written.
    fn is_writing(&self) -> bool {
        let files = std::fs::read_dir(self.path("history/flows")).into_iter().flatten().flatten();
        files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with(".new-"))
    }

    /// Whether memory has an epoch that is over.
    fn has_former(&self) -> bool {
        let files = std::fs::read_dir(self.path("memory")).unwrap().flatten();
        files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("flows.region-"))
    }
}

pub(super) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < PATIENCE, "{what}: not yet");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The values that keys had at a moment; an error is what the collector says.
async fn held(collector: &Running, keys: &[u32], at: u64) -> Result<Vec<Option<Vec<u8>>>, String> {
    let client = RemoteCollector::connect(&ClientOptions::without_tls(&collector.address)).await.unwrap();
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let keys: Vec<Key> = keys.iter().map(|n| key(*n)).collect();
    let question = Question { at: at.into(), ..Question::now("flows", &keys[..], kind) };
    let answers = client.query_keys(question).await.map_err(|error| error.to_string())?;
    let value = |answer| match answer {
        KeyAnswer::KeyWrite(answer) => answer.value,
        other => panic!("{other:?}"),
    };
    Ok(answers.of_keys.into_iter().map(value).collect())
}

pub(super) async fn counter(collector: &Running, name: &str) -> u64 {
    let client = RemoteCollector::connect(&ClientOptions::without_tls(&collector.address)).await.unwrap();
    let nodes = client.statistics().await.unwrap();
    let own = nodes.iter().find(|node| node.node == "collector").unwrap();
    own.counters.iter().find(|counter| counter.name == name).unwrap().value
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_an_epoch_is_written_leaves_it_whole_or_in_memory_and_the_next_start_writes_it() {
    let mut world = World::new(KEYS);
    let asked: Vec<u32> = (0..KEYS).step_by(997).collect();
    let whole = |kept: &[KeptEpoch]| kept.first().is_none_or(|first| first.rows > u64::from(KEYS) * 4 / 5);
    let mut in_the_middle = 0;
    // Kills at ever later moments, until one comes too late; on a slow machine that may be the first.
    let (mut tries, mut after) = (0, Duration::ZERO);
    loop {
        let mut collector = world.start();
        until("it writes", || world.is_writing() || !world.kept().is_empty());
        std::thread::sleep(after);
        let was_written = !world.kept().is_empty();
        collector.child.kill().unwrap();
        collector.child.wait().unwrap();
        let kept = world.kept();
        assert!(whole(&kept), "half an epoch: {} rows", kept[0].rows);
        assert!(!kept.is_empty() || world.has_former(), "an epoch that is nowhere");
        in_the_middle += u64::from(kept.is_empty());
        match (was_written, in_the_middle) {
            (true, 0) if tries < 10 => {
                world = World::new(KEYS);
                (tries, after) = (tries + 1, Duration::ZERO);
            }
            (true, _) => break,
            (false, _) => after = Duration::from_millis(5) + after * 5 / 4,
        }
    }
    assert!(in_the_middle > 0, "no kill was in the middle");
    let collector = world.start();
    until("the epoch is written", || !world.kept().is_empty());
    let first = world.kept()[0].clone();
    assert_eq!(world.kept().iter().filter(|kept| kept.epoch.generation == 1).count(), 1);
    let hits = held(&collector, &asked, first.epoch.opened).await.unwrap();
    let mut found = 0;
    for (n, held) in asked.iter().zip(hits) {
        found += u32::from(held.is_some());
        assert!(held.is_none_or(|held| held == value(*n)), "{n}");
    }
    // The others share their slot with a later key.
    assert!(found as usize > asked.len() * 4 / 5, "{found} of {}", asked.len());
}

/// Values are written into memory all the time, and the collector is killed at other moments of its epochs each time. An epoch
/// that a kill was in answers with what reached its memory: no key is absent, and none has an older value.
#[tokio::test(flavor = "multi_thread")]
async fn kills_at_any_moment_of_an_epoch_lose_nothing_that_reached_its_memory() {
    const KEYS: u32 = 40;
    let world = World::new(0);
    // By generation and key: what was written last. A write that met the end of an epoch may be in the former one, too.
    let mut written: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    let (mut number, mut kills) = (0, 0);
    let goes_on = |kept: &&KeptEpoch| kept.epoch.restarted.is_some();
    // Until kills were in several epochs: on a slow machine many lives are too short to end one.
    while world.kept().iter().filter(goes_on).count() < 3 {
        assert!(kills < 100, "kills are in no epoch");
        kills += 1;
        let mut collector = world.start();
        let end = Instant::now() + Duration::from_millis(150 + 317 * kills % 2300);
        while Instant::now() < end {
            number += 1;
            let key = number * 7 % KEYS;
            let generation = world.write(key, &value(number));
            written.insert((generation, key), number);
            std::thread::sleep(Duration::from_millis(2));
        }
        collector.child.kill().unwrap();
        collector.child.wait().unwrap();
    }
    let collector = world.start();
    let last = written.keys().map(|(generation, _)| *generation).max().unwrap();
    until("all of it is kept", || world.kept().iter().any(|kept| kept.epoch.generation > last));
    let kept = world.kept();
    let keys: Vec<u32> = (0..KEYS).collect();
    let mut compared = 0;
    for KeptEpoch { epoch, .. } in kept.iter().filter(|kept| kept.epoch.generation <= last) {
        let answers = held(&collector, &keys, epoch.flipped_from - 1).await.unwrap();
        for (key, answer) in keys.iter().zip(answers) {
            let Some(wanted) = written.get(&(epoch.generation, *key)) else { continue };
            let found = answer.map(|value| u32::from_be_bytes(*value.first_chunk().unwrap()));
            let is_of_end = |found: u32| found > *wanted && found * 7 % KEYS == *key;
            assert!(
                found == Some(*wanted) || found.is_some_and(is_of_end),
                "key {key} of {epoch:?}: {found:?}, {wanted} was written"
            );
            compared += 1;
        }
    }
    assert!(compared > 2 * KEYS, "{compared} compared after {kills} kills");
    assert_eq!(counter(&collector, "epochs.lost").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_translator_that_does_not_confirm_keeps_an_epoch_open_until_its_lease_ends_and_the_epoch_says_so() {
    let world = World::new(10);
    let collector = world.start();
    let mut client = RemoteCollector::connect(&ClientOptions::without_tls(&collector.address)).await.unwrap();
    let open = control::OpenSessionRequest { lease_seconds: 6, ..open_leaf1() };
    let begun = Instant::now();
    client.open_session(open).await.unwrap();
    until("its epoch is over", || world.has_former());
    // Nobody renews. What can still be written to is not sealed.
    until("its epoch is written", || world.kept().iter().any(|kept| !kept.epoch.confirmed));
    assert!(begun.elapsed() >= Duration::from_secs(6), "before its lease ended: {:?}", begun.elapsed());
    let log = std::fs::read_dir(world.path("history/flows/_delta_log")).unwrap().flatten();
    let commits: Vec<String> =
        log.map(|commit| std::fs::read_to_string(commit.path()).unwrap_or_default()).collect();
    assert!(commits.iter().any(|text| text.contains("\\\"confirmed\\\":false")), "{commits:?}");
    until("the next ones are confirmed", || world.kept().last().is_some_and(|last| last.epoch.confirmed));
    assert_eq!(world.kept().iter().filter(|kept| !kept.epoch.confirmed).count(), 1);
    assert_eq!(counter(&collector, "session.expired").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_a_history_is_named_in_the_log_and_counted_and_the_rest_is_answered() {
    let world = World::new(1000);
    let mut collector = world.start();
    // Each with something of its own: without, it would have no commit.
    let mut written = 0;
    until("three epochs are written", || {
        written += 1;
        world.write(7, &value(written));
        world.kept().len() >= 3
    });
    collector.child.kill().unwrap();
    collector.child.wait().unwrap();
    let kept = world.kept();
    let commit = world.path("history/flows/_delta_log/00000000000000000002.json");
    let text = std::fs::read_to_string(&commit).unwrap();
    std::fs::write(&commit, &text[..text.len() / 2]).unwrap();
    let collector = world.start();
    let log = || std::fs::read_to_string(world.path("log")).unwrap();
    until("it is named", || log().contains("00000000000000000002.json line"));
    assert_eq!(log().matches("00000000000000000002.json line").count(), 1, "{}", log());
    assert_eq!(counter(&collector, "epochs.damaged").await, 1);
    let first = held(&collector, &[1, 2], kept[0].epoch.opened).await.unwrap();
    assert_eq!(first, [1, 2].map(|n| Some(value(n).to_vec())));
    let none = held(&collector, &[1], kept[1].epoch.flipped_from - 1).await.unwrap_err();
    assert!(none.contains("is kept"), "{none}");
    // The third epoch has nothing of it: what the first has counts.
    assert_eq!(held(&collector, &[1, 2], kept[2].epoch.flipped_from - 1).await.unwrap(), first);
    let newest = world.kept().last().unwrap().epoch.number;
    until("epochs go on", || world.kept().last().unwrap().epoch.number > newest);
}

/// The wall clock of the collector alone, ahead of the machine's by what a file says.
struct Clock {
    library: String,
    file: PathBuf,
}

impl Clock {
    fn new(folder: &Path) -> Clock {
        let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
        let library =
            folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
        let library = library.expect("Debian's faketime (scripts/install-deps test)").display().to_string();
        let clock = Clock { library, file: folder.join("clock") };
        clock.set("+0");
        clock
    }

    fn set(&self, ahead: &str) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{ahead}\n")).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    fn variables(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME_TIMESTAMP_FILE", self.file.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Debian's faketime (scripts/install-deps test)"]
async fn a_wall_clock_that_jumps_by_an_hour_and_back_loses_no_epoch_and_each_is_found_by_its_moments() {
    let world = World::new(0);
    let clock = Clock::new(world.0.path());
    let collector = world.start_with(&clock.variables());
    let mut all: Vec<(KeptEpoch, u32)> = Vec::new();
    for (phase, ahead) in [(1, "+0"), (2, "+3600"), (3, "+0"), (4, "-3600"), (5, "+0")] {
        clock.set(ahead);
        // The epochs that the jump is in, before those that count.
        for _ in 0..2 {
            let written = world.kept().len();
            until("epochs go on", || world.kept().len() > written);
        }
        for n in 0..3 {
            let generation = world.write(1, &value(10 * phase + n));
            let written = || world.kept().into_iter().find(|kept| kept.epoch.generation == generation);
            until("it is written", || written().is_some());
            all.push((written().unwrap(), 10 * phase + n));
        }
        for (kept, n) in all.iter().rev().take(3) {
            let at = kept.epoch.opened.midpoint(kept.epoch.flipped_from);
            assert_eq!(
                held(&collector, &[1], at).await.unwrap(),
                [Some(value(*n).to_vec())],
                "{kept:?} of {ahead}"
            );
        }
    }
    let kept = world.kept();
    let numbers: Vec<u64> = kept.iter().map(|kept| kept.epoch.number).collect();
    assert_eq!(numbers, (1..=kept.len() as u64).collect::<Vec<_>>(), "none is lost or removed");
    for KeptEpoch { epoch, .. } in &kept {
        assert!(epoch.opened < epoch.flipped_from && epoch.flipped_from <= epoch.flipped_to, "{epoch:?}");
        assert!(epoch.flipped_to - epoch.opened < 3_700_000, "{epoch:?}");
    }
    // What the clock shows now was shown in the first, the third and the last phase alone.
    for (kept, n) in all.iter().filter(|(_, n)| n / 10 % 2 == 1) {
        let at = kept.epoch.opened.midpoint(kept.epoch.flipped_from);
        assert_eq!(held(&collector, &[1], at).await.unwrap(), [Some(value(*n).to_vec())], "{kept:?}");
    }
    assert_eq!(counter(&collector, "epochs.lost").await, 0);
}
