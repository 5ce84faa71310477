use std::collections::BTreeSet;
use std::time::Instant;

use dta_proto::key::Key;
use dta_proto::layout::key_write as layout;
use dta_proto::layout::{hash, postcarding};
use dta_proto::store::{StoreKind, StoreSpec};

use super::*;
use crate::region::RegionOptions;
use crate::store::{key_write, postcarding as paths};

const EVERY: Duration = Duration::from_millis(300);

fn key(n: u32) -> Key {
    Key([n.to_be_bytes(); 4].as_flattened().try_into().unwrap())
}

fn write(store: &Store, key: &Key, value: u8) {
    let StoreKind::KeyWrite { slots, redundancy, .. } = store.spec.kind else { panic!() };
    for slot in hash::slots(key, redundancy, slots).iter() {
        let mut bytes = [0; 16];
        layout::encode(&mut bytes, key, &[value; 12]);
        store.region.write(layout::offset(*slot, 12), &bytes).unwrap();
    }
}

fn value(store: &Store, key: &Key) -> Option<u8> {
    let reader = key_write::Reader::new(store).unwrap();
    let (mut answers, mut values) = ([key_write::Answer::default()], [0; 12]);
    reader.query(&[*key], layout::Policy::First, &mut answers, &mut values).unwrap();
    answers[0].found.then_some(values[0])
}

/// Stores with epochs, whose former memory somebody writes to for as long as `held` has its generation.
struct Bench {
    stores: Arc<Stores>,
    epochs: Epochs,
    held: Arc<Mutex<BTreeSet<u64>>>,
    stop: watch::Sender<bool>,
}

impl Bench {
    fn start(memory: &MemoryConfig, history: &Path) -> Bench {
        let store = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
        let specs = [
            store(1, "flows", StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2 }),
            store(2, "paths", StoreKind::Postcarding { slots: 1 << 10, hops: 6, redundancy: 2 }),
        ];
        let stores = Arc::new(Stores::open(&specs, memory, RegionOptions { huge_pages: false }).unwrap());
        let retention = Retention { keep: Some(Duration::from_secs(3600)), keep_bytes: Some(1 << 30) };
        let keep = Keep { directory: history.to_owned(), retention };
        let every = BTreeMap::from(["flows", "paths"].map(|name| (name.to_owned(), EVERY)));
        let held: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
        let holds = held.clone();
        let is_written: Arc<IsWritten> = Arc::new(move |store, generation| {
            store == "flows" && holds.lock().unwrap().contains(&generation)
        });
        let (stop, stopped) = watch::channel(false);
        let epochs = Epochs::start(&stores, &every, &keep, is_written, &stopped).unwrap();
        Bench { stores, epochs, held, stop }
    }

    fn count(&self, name: &str) -> u64 {
        self.epochs.counters().iter().find(|(counter, _)| counter == name).unwrap().1
    }

    fn generation(&self) -> u64 {
        self.stores.get("flows").unwrap().generation
    }

    fn end(self) {
        self.stop.send_replace(true);
        self.epochs.join();
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A moment at which the open epoch of "flows" was open, and its generation, once `store` has it to itself.
fn moment(bench: &Bench, write: impl Fn(&Store)) -> (u64, u64) {
    loop {
        let before = bench.stores.get("flows").unwrap();
        write(&before);
        let at = now();
        // What is written just as the epoch ends may belong to the next moment.
        std::thread::sleep(Duration::from_millis(2));
        if bench.generation() == before.generation {
            let asked = bench.epochs.at("flows", &[], at).unwrap();
            assert_eq!(asked.generation, before.generation);
            return (at, before.generation);
        }
    }
}

#[test]
fn each_epoch_has_its_values_from_memory_from_its_history_and_after_a_restart() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for directory in [MemoryConfig::Anonymous, MemoryConfig::Directory(memory.path().to_owned())] {
        let history = history.path().join(format!("{}", matches!(directory, MemoryConfig::Anonymous)));
        let bench = Bench::start(&directory, &history);
        let mut moments = Vec::new();
        for n in 1..=4 {
            let (at, generation) = moment(&bench, |store| write(store, &key(1), n));
            moments.push((at, n));
            until("the next epoch", || bench.generation() > generation);
        }
        until("all is written", || bench.count("epochs.written") >= 4);
        let check = |bench: &Bench| {
            for (at, n) in &moments {
                let then = bench.epochs.at("flows", &[key(1), key(2)], *at).unwrap();
                assert_eq!((value(&then, &key(1)), value(&then, &key(2))), (Some(*n), None), "at {at}");
            }
        };
        check(&bench);
        assert_eq!(value(&bench.stores.get("flows").unwrap(), &key(1)), None);
        assert_eq!((bench.count("epochs.lost"), bench.count("epochs.failed")), (0, 0));
        bench.end();
        let bench = Bench::start(&directory, &history);
        if let MemoryConfig::Directory(_) = directory {
            check(&bench);
        }
        bench.end();
    }
}

#[test]
fn an_epoch_that_somebody_can_write_to_is_answered_and_not_sealed() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = MemoryConfig::Directory(memory.path().to_owned());
    let bench = Bench::start(&directory, history.path());
    bench.held.lock().unwrap().extend(1..1000);
    let first = bench.stores.get("flows").unwrap();
    let (at, generation) = moment(&bench, |store| write(store, &key(1), 1));
    until("the next epoch", || bench.generation() > generation);
    // A writer that has not moved yet.
    let former = bench.epochs.at("flows", &[], at).unwrap();
    write(&former, &key(2), 2);
    let then = bench.epochs.at("flows", &[key(2)], at).unwrap();
    assert_eq!((value(&then, &key(1)), value(&then, &key(2))), (Some(1), Some(2)));
    let paths = || bench.stores.get("paths").unwrap().generation;
    let has_turned = paths() + 3;
    until("epochs of another store go on", || paths() >= has_turned);
    assert_eq!(bench.generation(), first.generation + 1, "one former memory at a time");
    let files = || former_files(memory.path(), "flows").len();
    assert_eq!(files(), 1);
    // The collector ends; nobody has a key then.
    drop((first, former, then));
    bench.end();
    let bench = Bench::start(&directory, history.path());
    until("the epoch is written", || {
        bench.epochs.of["flows"].in_memory().former.iter().all(|former| former.store.generation != generation)
    });
    let then = bench.epochs.at("flows", &[key(1), key(2)], at).unwrap();
    assert_eq!((value(&then, &key(1)), value(&then, &key(2))), (Some(1), Some(2)));
    bench.end();
}

#[test]
fn paths_have_epochs_too() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryConfig::Anonymous, history.path());
    let StoreKind::Postcarding { slots, hops, redundancy } = bench.stores.get("paths").unwrap().spec.kind
    else {
        panic!()
    };
    let mut path = postcarding::Path { length: 3, ..postcarding::Path::default() };
    (0..3).for_each(|hop| assert!(path.set(hop, 100 + u32::from(hop))));
    let (at, generation) = loop {
        let store = bench.stores.get("paths").unwrap();
        let mut row = [0; 32];
        postcarding::encode(&mut row, &key(7), &path);
        for slot in hash::slots(&key(7), redundancy, slots).iter() {
            store.region.write(postcarding::offset(*slot, hops), &row).unwrap();
        }
        let at = now();
        std::thread::sleep(Duration::from_millis(2));
        if bench.stores.get("paths").unwrap().generation == store.generation {
            break (at, store.generation);
        }
    };
    until("it is written", || {
        bench.stores.get("paths").unwrap().generation > generation
            && bench.epochs.of["paths"]
                .in_memory()
                .former
                .iter()
                .all(|former| former.store.generation > generation)
    });
    let then = bench.epochs.at("paths", &[key(7), key(8)], at).unwrap();
    let mut answers = [paths::Answer::default(); 2];
    paths::Reader::new(&then).unwrap().query(&[key(7), key(8)], &mut answers).unwrap();
    assert_eq!((answers[0].path, answers[0].agreeing, answers[1].path), (Some(path), 2, None));
    bench.end();
}

#[test]
fn moments_without_an_epoch_are_refused_each_in_its_words() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryConfig::Anonymous, history.path());
    let refusal = |store: &str, at| bench.epochs.at(store, &[], at).unwrap_err();
    assert!(matches!(refusal("x", now()), MomentError::NoHistory(_)));
    assert!(matches!(refusal("flows", now() + 60_000), MomentError::Future { .. }));
    let MomentError::NotKept { oldest: Some(oldest), .. } = refusal("flows", 1) else { panic!() };
    assert!(oldest <= now());
    until("an epoch is written", || bench.count("epochs.written") >= 2);
    assert!(
        matches!(refusal("flows", oldest - 1), MomentError::NotKept { oldest: Some(o), .. } if o == oldest)
    );
    bench.end();
}

#[test]
fn a_history_that_cannot_be_written_loses_epochs_and_no_report_of_now() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryConfig::Anonymous, history.path());
    // Where the tables were there is a file now.
    let table = history.path().join("flows");
    std::fs::remove_dir_all(&table).unwrap();
    std::fs::write(&table, "").unwrap();
    until("it was tried", || bench.count("epochs.failed") >= 1);
    let generation = bench.generation();
    write(&bench.stores.get("flows").unwrap(), &key(1), 9);
    assert_eq!(value(&bench.stores.get("flows").unwrap(), &key(1)), Some(9));
    assert_eq!(bench.generation(), generation, "nothing that is not written is given back");
    bench.end();
}

#[test]
fn memory_that_is_lost_begins_other_epochs_and_the_history_goes_on() {
    let history = tempfile::tempdir().unwrap();
    let mut moments = Vec::new();
    for n in 1..=2 {
        // The machine starts again, and its memory is empty: generations begin with 1.
        let memory = tempfile::tempdir().unwrap();
        let bench = Bench::start(&MemoryConfig::Directory(memory.path().to_owned()), history.path());
        let (at, generation) = moment(&bench, |store| write(store, &key(1), n));
        moments.push((at, n));
        until("it is written", || {
            bench.generation() > generation
                && bench.epochs.of["flows"].in_memory().former.iter().all(|f| f.store.generation > generation)
        });
        for (at, n) in &moments {
            assert_eq!(
                value(&bench.epochs.at("flows", &[key(1)], *at).unwrap(), &key(1)),
                Some(*n),
                "at {at}"
            );
        }
        assert_eq!((bench.count("epochs.lost"), bench.count("epochs.failed")), (0, 0));
        bench.end();
    }
}

#[test]
fn an_hour_that_is_over_becomes_one_file_and_an_epoch_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let kind = StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2 };
    let spec = StoreSpec { id: 1, name: "flows".into(), kind };
    let table = Table::open(folder.path(), &spec).unwrap();
    let hour = 1_795_528_800_000;
    let retention = Retention { keep: None, keep_bytes: None };
    let files = || {
        let files = std::fs::read_dir(table.path()).unwrap().flatten();
        files.filter(|file| file.path().extension().is_some_and(|e| e == "parquet")).count()
    };
    for n in 0..5u64 {
        // Four in one hour, the fifth in the next.
        let opened = hour + n * 900_000;
        let store =
            Stores::open(std::slice::from_ref(&spec), &MemoryConfig::Anonymous, RegionOptions::default())
                .unwrap();
        let store = store.get("flows").unwrap();
        write(&store, &key(n as u32), n as u8 + 1);
        let store = Arc::new(Store { generation: n + 1, ..Store::clone(&store) });
        let former = Former { store, opened, closed: opened + 900_000, file: None, found: false };
        let number = super::write::write(&table, &former, opened + 900_100).unwrap();
        assert_eq!(super::write::write(&table, &former, opened + 900_100).unwrap(), number, "once");
        super::write::thin_out(&table, &retention, opened).unwrap();
    }
    assert_eq!(table.epochs().unwrap().len(), 5);
    // Those of before stay for readers for a while.
    assert_eq!(files(), 6);
    for n in 0..5u32 {
        let kept = table.at(hour + u64::from(n) * 900_000 + 1).unwrap().unwrap();
        let wanted = elements::of_keys(&spec, &[key(n)]);
        let mut bytes = vec![0; wanted.len() * 16];
        table.slots(kept.epoch.number, &wanted, &mut bytes).unwrap();
        let like =
            Stores::open(std::slice::from_ref(&spec), &MemoryConfig::Anonymous, RegionOptions::default())
                .unwrap();
        let then = elements::store(&like.get("flows").unwrap(), 1, &wanted, &bytes).unwrap();
        assert_eq!(value(&then, &key(n)), Some(n as u8 + 1));
    }
}
