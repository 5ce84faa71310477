mod bad_days;
mod events;
mod idle;
mod kinds;
mod typed;

use std::collections::BTreeSet;

use dta_memory::reader::{key_write, postcarding as paths};
use dta_memory::region::RegionOptions;
use dta_proto::control::{Epoch, EpochState, EpochsRequest};
use dta_proto::key::Key;
use dta_proto::layout::key_write as layout;
use dta_proto::layout::{hash, postcarding};
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use dta_rpc::Span;
use rustix::fs::{CWD, RenameFlags};

use super::*;

const EVERY: Duration = Duration::from_millis(300);

#[test]
fn only_stores_that_begin_empty_take_more_memory() {
    let kinds = [
        (3, StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2, keys: Default::default() }),
        (3, StoreKind::Postcarding { slots: 1 << 10, hops: 6, redundancy: 2 }),
        (1, StoreKind::KeyIncrement { slots: 1 << 10, redundancy: 2, replicas: 1 }),
        (1, StoreKind::Append { lists: 2, ring: 256, batch_len: 64, entry_len: 4, notify: false }),
        (1, StoreKind::SketchMerge { columns: 256, rows: 2, epochs: 2, merge: Merge::Sum, expected: 1 }),
    ];
    for (generations, kind) in kinds {
        let store = store(1, "store", kind);
        assert_eq!(memory_len(&store, true), generations * store.region_len(), "{}", store.name);
        assert_eq!(memory_len(&store, false), store.region_len(), "{}", store.name);
    }
}

fn key(n: u32) -> Key {
    Key([n.to_be_bytes(); 4].as_flattened().try_into().unwrap())
}

fn write(store: &Store, key: &Key, value: u8) {
    let StoreKind::KeyWrite { slots, redundancy, .. } = store.spec.kind else { panic!() };
    for slot in hash::key_slots(key, redundancy, slots).iter() {
        let mut bytes = [0; 16];
        layout::encode_slot(&mut bytes, key, &[value; 12]);
        store.region.write(layout::slot_offset(*slot, 12), &bytes).unwrap();
    }
}

fn value(store: &Store, key: &Key) -> Option<u8> {
    let reader = key_write::KeyWriteReader::new(store).unwrap();
    let (mut answers, mut values) = ([key_write::KeyWriteReading::default()], [0; 12]);
    reader.query_keys(&[*key], layout::Choice::First, &mut answers, &mut values).unwrap();
    answers[0].found.then_some(values[0])
}

/// The writers, as the test sets them.
#[derive(Default)]
struct Writing {
    /// Generations of "flows" that somebody holds a key to, and those where somebody's key has ended.
    held: Mutex<BTreeSet<u64>>,
    gone: Mutex<BTreeSet<u64>>,
    counted: Mutex<Vec<Counted>>,
}

impl StoreTraffic for Writing {
    fn begin_generation(&self, _: &str, _: u64, _: u64) {}

    fn store_writers(&self, store: &str, generation: u64) -> Writers {
        let is_in = |of: &Mutex<BTreeSet<u64>>| store == "flows" && of.lock().unwrap().contains(&generation);
        match (is_in(&self.held), is_in(&self.gone)) {
            (true, _) => Writers::There,
            (_, true) => Writers::Gone,
            (_, false) => Writers::Moved,
        }
    }

    fn node_counters(&self) -> Vec<Counted> {
        self.counted.lock().unwrap().clone()
    }
}

fn store(id: u16, name: &str, kind: StoreKind) -> StoreSpec {
    StoreSpec { id, name: name.into(), kind }
}

/// A collector's stores, all with epochs.
struct Bench {
    stores: Arc<ServedStores>,
    epochs: Arc<Epochs>,
    writing: Arc<Writing>,
    stop: watch::Sender<bool>,
}

impl Bench {
    fn start(memory: &MemoryBacking, history: &Path) -> Bench {
        let specs = [
            store(
                1,
                "flows",
                StoreKind::KeyWrite {
                    slots: 1 << 10,
                    value_len: 12,
                    redundancy: 2,
                    keys: Default::default(),
                },
            ),
            store(2, "paths", StoreKind::Postcarding { slots: 1 << 10, hops: 6, redundancy: 2 }),
        ];
        Bench::start_with(&specs, memory, keep(history), EVERY)
    }

    fn start_with(specs: &[StoreSpec], memory: &MemoryBacking, keep: Keep, every: Duration) -> Bench {
        let stores =
            Arc::new(ServedStores::open(specs, memory, RegionOptions { huge_pages: false }).unwrap());
        let every = specs.iter().map(|spec| (spec.name.clone(), every)).collect();
        let writing = Arc::new(Writing::default());
        let traffic: Arc<dyn StoreTraffic> = writing.clone();
        let (stop, stopped) = watch::channel(false);
        let epochs = Epochs::start(&stores, &every, &keep, &traffic, &stopped).unwrap();
        Bench { stores, epochs: Arc::new(epochs), writing, stop }
    }

    /// The epochs in a store's history.
    fn kept(&self, store: &str) -> Vec<dta_history::HistoryEpoch> {
        self.history(store).kept_epochs().unwrap().iter().map(|kept| kept.epoch.clone()).collect()
    }

    fn history(&self, store: &str) -> &EpochTable {
        &self.epochs.of[store].history
    }

    fn count(&self, name: &str) -> u64 {
        self.epochs.named_counters().iter().find(|(counter, _)| counter == name).unwrap().1
    }

    /// The generation of the open epoch's memory.
    fn generation(&self) -> u64 {
        self.open("flows")
    }

    fn open(&self, store: &str) -> u64 {
        self.epochs.open(store).unwrap().0.generation
    }

    /// Keeps the open epoch of "flows" and all later ones from being sealed. Returns its generation.
    fn hold(&self) -> u64 {
        loop {
            let open = self.generation();
            self.writing.held.lock().unwrap().extend(open..open + 1000);
            // If it has changed, the former may have been sealed too early.
            if self.generation() == open {
                return open;
            }
            self.writing.held.lock().unwrap().clear();
        }
    }

    /// Like [`moment`], but in an epoch that is kept.
    fn held_moment(&self, write: impl Fn(&Store)) -> (u64, u64) {
        loop {
            let (at, generation) = moment(self, "flows", &write);
            if self.hold() == generation {
                return (at, generation);
            }
            self.writing.held.lock().unwrap().clear();
        }
    }

    /// Whether the open epoch of a store stays open because the one before it is not sealed.
    fn is_held_up(&self, store: &str) -> bool {
        let former = self.epochs.of[store].in_memory().former.first().map(|former| former.store.generation);
        former.is_some_and(|former| store == "flows" && self.writing.held.lock().unwrap().contains(&former))
    }

    fn end(self) {
        self.stop.send_replace(true);
        self.epochs.join_threads();
    }
}

fn keep(directory: &Path) -> Keep {
    Keep {
        directory: directory.to_owned(),
        keep: Some(Duration::from_secs(3600)),
        url: None,
        clickhouse: None,
        keep_bytes: Some(1 << 30),
        look_back: Duration::from_secs(600),
        coarse: None,
        patience: Duration::from_secs(60),
    }
}

/// Atomically exchanges two paths.
fn exchange(one: &Path, other: &Path) {
    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
}

fn until(what: &str, is: impl Fn() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(300), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A moment at which a store's epoch was open, and its generation, once `write` has it to itself.
fn moment(bench: &Bench, name: &str, write: impl Fn(&Store)) -> (u64, u64) {
    loop {
        let (before, epoch) = bench.epochs.open(name).unwrap();
        let every = bench.epochs.store_epochs(name).unwrap().every.as_millis() as u64;
        let end = (epoch.opened / every + 1) * every;
        write(&before);
        let at = now();
        // What is written after an epoch is over, while it still has its memory, belongs to the next moment.
        if at >= end && !bench.is_held_up(name) {
            until("the next epoch", || bench.open(name) > before.generation);
        }
        std::thread::sleep(Duration::from_millis(2));
        if bench.open(name) == before.generation {
            let (asked, epoch) = bench.epochs.store_at_moment(name, &[], at).unwrap();
            assert_eq!((asked.generation, epoch.generation), (before.generation, before.generation));
            return (at, before.generation);
        }
    }
}

#[test]
fn each_epoch_has_its_values_from_memory_from_its_history_and_after_a_restart() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for directory in [MemoryBacking::Anonymous, MemoryBacking::Directory(memory.path().to_owned())] {
        let history = history.path().join(format!("{}", matches!(directory, MemoryBacking::Anonymous)));
        let bench = Bench::start(&directory, &history);
        let mut moments = Vec::new();
        for n in 1..=4 {
            let (at, generation) = moment(&bench, "flows", |store| write(store, &key(1), n));
            moments.push((at, n));
            until("the next epoch", || bench.generation() > generation);
        }
        until("all is written", || bench.count("epochs.written") >= 4);
        let check = |bench: &Bench| {
            for (at, n) in &moments {
                let (then, _) = bench.epochs.store_at_moment("flows", &[key(1), key(2)], *at).unwrap();
                assert_eq!((value(&then, &key(1)), value(&then, &key(2))), (Some(*n), None), "at {at}");
            }
        };
        check(&bench);
        assert_eq!(value(&bench.stores.get("flows").unwrap(), &key(1)), None);
        assert_eq!((bench.count("epochs.lost"), bench.count("epochs.failed")), (0, 0));
        bench.end();
        let bench = Bench::start(&directory, &history);
        if let MemoryBacking::Directory(_) = directory {
            check(&bench);
        }
        bench.end();
    }
}

#[test]
fn an_epoch_in_which_the_collector_was_down_says_until_when() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kind = StoreKind::KeyWrite { slots: 8, value_len: 12, redundancy: 2, keys: Default::default() };
    let start = |every| {
        let memory = MemoryBacking::Directory(memory.path().to_owned());
        Bench::start_with(&[store(1, "flows", kind.clone())], &memory, keep(history.path()), every)
    };
    let bench = start(Duration::from_secs(3600));
    assert_eq!(listed(&bench)[0].restarted, 0);
    bench.end();
    let before = now();
    let bench = start(EVERY);
    until("the epoch and the next one are written", || bench.kept("flows").len() > 1);
    let kept = bench.kept("flows");
    let down_until = kept[0].restarted.expect("it was down in the first");
    assert!((before..=kept[0].flipped_from).contains(&down_until), "{before} {kept:?}");
    assert!(kept[1..].iter().all(|kept| kept.restarted.is_none()), "{kept:?}");
    assert_eq!(listed(&bench)[0].restarted, down_until);
    bench.end();
}

fn span(since: u64, until: u64) -> EpochsRequest {
    EpochsRequest { since, until, ..EpochsRequest::default() }
}

/// All epochs of "flows", oldest first.
fn listed(bench: &Bench) -> Vec<Epoch> {
    let mut answer = bench.epochs.list_epochs("flows", &span(0, 0)).unwrap();
    assert_eq!(answer.older, 0);
    answer.epochs.reverse();
    answer.epochs
}

#[test]
fn each_moment_is_that_of_the_epoch_that_is_listed_for_it() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryBacking::Anonymous, history.path());
    until("three epochs are written", || bench.count("epochs.written") >= 6 && listed(&bench).len() >= 5);
    // One stays in memory, and the next one stays open. Those before it may already be on their way into the
    // history.
    let first = bench.hold();
    until("one is over and not written", || {
        let all = listed(&bench);
        let mut closed = all.iter().filter(|epoch| epoch.state() == EpochState::Closed);
        closed.next().is_some_and(|epoch| epoch.generation >= first)
            && closed.next().is_none()
            && bench.epochs.open("flows").is_some_and(|(_, open)| all.last() == Some(&open))
    });
    let all = listed(&bench);
    let states: Vec<EpochState> = all.iter().map(Epoch::state).collect();
    let (open, kept) = (states.len() - 1, states.len() - 2);
    assert!(states[..kept].iter().all(|state| *state == EpochState::Kept), "{states:?}");
    assert_eq!(states[kept..], [EpochState::Closed, EpochState::Open]);
    assert!(all[..kept].iter().all(|epoch| epoch.confirmed && epoch.flipped_to >= epoch.flipped_from));
    assert_eq!((all[open].flipped_from, all[open].flipped_to), (0, 0));
    for (n, epoch) in all.iter().enumerate() {
        // At its first and its last moment.
        let end = all.get(n + 1).map_or(epoch.opened, |next| next.opened - 1);
        for at in [epoch.opened, end] {
            assert_eq!(bench.epochs.store_at_moment("flows", &[], at).unwrap().1, *epoch, "at {at}");
            let of_moment = bench.epochs.list_epochs("flows", &span(at, at + 1)).unwrap().epochs;
            assert_eq!(of_moment, std::slice::from_ref(epoch));
        }
        assert!(n == 0 || all[n - 1].flipped_from == epoch.opened, "{all:?}");
    }
    // Part of them, then page by page.
    let part = bench.epochs.list_epochs("flows", &span(all[1].opened, all[3].opened)).unwrap();
    assert_eq!(part.epochs, [all[2].clone(), all[1].clone()]);
    let (mut backwards, mut before) = (Vec::new(), 0);
    loop {
        let request = EpochsRequest { most: 2, until: before, ..EpochsRequest::default() };
        let answer = bench.epochs.list_epochs("flows", &request).unwrap();
        backwards.extend(answer.epochs);
        before = answer.older;
        if before == 0 {
            break;
        }
    }
    backwards.reverse();
    assert_eq!(backwards, all);
    bench.end();
}

/// The value of a key in each epoch of a span, some epochs at a time, with the epochs' generations.
fn series(bench: &Bench, of: &Key, span: Span, most: usize) -> Vec<(u64, Option<u8>)> {
    let (mut all, mut opened, mut rest) = (Vec::new(), Vec::new(), span);
    loop {
        let mut there = 0;
        let each = |store: &Store, epoch: Epoch| {
            assert_eq!(store.generation, epoch.generation);
            opened.push(epoch.opened);
            there += 1;
            all.push((epoch.generation, value(store, of)));
            Ok::<(), MomentError>(())
        };
        let next = bench.epochs.visit_series("flows", &[*of, key(9)], rest, most, each).unwrap();
        assert!(opened.is_sorted() && there <= most, "{opened:?}");
        match next {
            Some(next) => rest.since = next.get(),
            None => return all,
        }
    }
}

#[test]
fn a_series_has_each_epoch_be_it_compacted_over_or_open() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryBacking::Anonymous, history.path());
    let mut written = BTreeMap::new();
    // The value written when an epoch ended, and then the one written again.
    let tried = Mutex::new(BTreeMap::new());
    let put = |store: &Store, n| {
        write(store, &key(1), n);
        tried.lock().unwrap().insert(store.generation, n);
    };
    let mut next = |n: u8| {
        let (at, generation) = moment(&bench, "flows", |store| put(store, n));
        written.insert(generation, n);
        (at, generation)
    };
    // Not the epoch of this moment: that may belong to the previous one while only that is being written.
    let is_written = |generation| bench.kept("flows").iter().any(|epoch| epoch.generation == generation);
    let mut moments = Vec::new();
    for n in 1..=2 {
        let (at, generation) = next(n);
        moments.push(at);
        until("it is written", || is_written(generation));
    }
    let table = &bench.epochs.of["flows"].history;
    // An hour that has ended meanwhile is already one file.
    table.compact_span(0..u64::MAX).unwrap();
    let spans = table.compaction_spans(u64::MAX).unwrap();
    assert!(spans.values().any(|span| span.epochs > span.files), "{spans:?}");
    // Later, one more is written, one stays in memory, and one is open.
    let (_, generation) = next(3);
    until("it is written", || is_written(generation));
    let (_, held) = bench.held_moment(|store| put(store, 4));
    until("the next epoch", || bench.generation() > held);
    let (last, _) = next(5);
    written.insert(held, 4);

    let all = listed(&bench);
    let whole = series(&bench, &key(1), Span::default(), usize::MAX);
    assert_eq!(whole.len(), all.len());
    for (generation, value) in &whole {
        let wanted = written.get(generation).copied();
        let is_tried = || wanted.is_none() && tried.lock().unwrap().get(generation).copied() == *value;
        assert!(*value == wanted || is_tried(), "in {generation}: {value:?}, not {wanted:?}");
    }
    let mut values: Vec<u8> = whole.iter().filter_map(|(_, value)| *value).collect();
    values.dedup();
    assert_eq!(values, [1, 2, 3, 4, 5]);
    assert!(series(&bench, &key(2), Span::default(), 100).iter().all(|(_, value)| value.is_none()));
    for most in 1..=3 {
        assert_eq!(series(&bench, &key(1), Span::default(), most), whole, "{most} at a time");
    }
    // From within the first of them until before the last.
    let part = Span { since: moments[0], until: all.last().unwrap().opened };
    let from = whole.iter().position(|(generation, _)| written.get(generation) == Some(&1)).unwrap();
    assert_eq!(series(&bench, &key(1), part, 2), whole[from..whole.len() - 1]);
    let open = series(&bench, &key(1), Span { since: last, until: 0 }, 2);
    assert_eq!(open.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [Some(5)]);
    bench.end();
}

#[test]
fn an_epoch_that_somebody_can_write_to_is_answered_and_not_sealed() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = MemoryBacking::Directory(memory.path().to_owned());
    let bench = Bench::start(&directory, history.path());
    let (at, generation) = bench.held_moment(|store| write(store, &key(1), 1));
    until("the next epoch", || bench.generation() > generation);
    // One writer has not moved yet.
    let (former, epoch) = bench.epochs.store_at_moment("flows", &[], at).unwrap();
    assert_eq!((epoch.state(), epoch.flipped_to, epoch.confirmed), (EpochState::Closed, 0, false));
    assert!(epoch.flipped_from > at && listed(&bench).contains(&epoch));
    write(&former, &key(2), 2);
    let (then, _) = bench.epochs.store_at_moment("flows", &[key(2)], at).unwrap();
    assert_eq!((value(&then, &key(1)), value(&then, &key(2))), (Some(1), Some(2)));
    let paths = || bench.stores.get("paths").unwrap().generation;
    let has_turned = paths() + 3;
    until("epochs of another store go on", || paths() >= has_turned);
    assert_eq!(bench.generation(), generation + 1, "one former memory at a time");
    let files = || former_files(memory.path(), "flows").len();
    assert_eq!(files(), 1);
    // The collector ends, so nobody has a key any more.
    drop((former, then));
    bench.end();
    let bench = Bench::start(&directory, history.path());
    until("the epoch is written", || {
        bench.epochs.of["flows"].in_memory().former.iter().all(|former| former.store.generation != generation)
    });
    let (then, _) = bench.epochs.store_at_moment("flows", &[key(1), key(2)], at).unwrap();
    assert_eq!((value(&then, &key(1)), value(&then, &key(2))), (Some(1), Some(2)));
    bench.end();
}

#[test]
fn paths_have_epochs_too() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryBacking::Anonymous, history.path());
    let StoreKind::Postcarding { slots, hops, redundancy } = bench.stores.get("paths").unwrap().spec.kind
    else {
        panic!()
    };
    let mut path = postcarding::PostcardPath { length: 3, ..postcarding::PostcardPath::default() };
    (0..3).for_each(|hop| assert!(path.set(hop, 100 + u32::from(hop))));
    let (at, generation) = moment(&bench, "paths", |store| {
        let mut row = [0; 32];
        postcarding::encode_row(&mut row, &key(7), &path);
        for slot in hash::key_slots(&key(7), redundancy, slots).iter() {
            store.region.write(postcarding::row_offset(*slot, hops), &row).unwrap();
        }
    });
    until("it is written", || {
        bench.stores.get("paths").unwrap().generation > generation
            && bench.epochs.of["paths"]
                .in_memory()
                .former
                .iter()
                .all(|former| former.store.generation > generation)
    });
    let (then, _) = bench.epochs.store_at_moment("paths", &[key(7), key(8)], at).unwrap();
    let mut answers = [paths::PostcardingReading::default(); 2];
    paths::PostcardingReader::new(&then).unwrap().query_keys(&[key(7), key(8)], &mut answers).unwrap();
    assert_eq!((answers[0].path, answers[0].agreeing, answers[1].path), (Some(path), 2, None));
    bench.end();
}

#[test]
fn moments_without_an_epoch_are_refused_each_in_its_words() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryBacking::Anonymous, history.path());
    let refusal = |store: &str, at| bench.epochs.store_at_moment(store, &[], at).unwrap_err();
    assert!(matches!(refusal("x", now()), MomentError::NoHistory(_)));
    assert!(matches!(refusal("flows", now() + 60_000), MomentError::Future { .. }));
    let refused = |store: &str, since, until| {
        bench
            .epochs
            .list_epochs(store, &EpochsRequest { since, until, ..EpochsRequest::default() })
            .unwrap_err()
    };
    assert!(matches!(refused("x", 0, 0), MomentError::NoHistory(_)));
    assert!(matches!(refused("flows", now() + 60_000, 0), MomentError::Future { .. }));
    assert!(matches!(refused("flows", 5, 5), MomentError::Empty { since: 5, until: 5 }));
    assert_eq!(bench.epochs.list_epochs("flows", &span(1, 2)).unwrap().epochs, []);
    let MomentError::NotKept { oldest, .. } = refusal("flows", 1) else { panic!() };
    assert!(oldest <= now());
    until("an epoch is written", || bench.count("epochs.written") >= 2);
    let before = refusal("flows", oldest - 1);
    assert!(matches!(before, MomentError::NotKept { oldest: o, .. } if o == oldest));
    let [at, oldest] = [oldest - 1, oldest].map(dta_files::moment::format_utc);
    let words = format!("store \"flows\": nothing is kept of {at}; the oldest epoch kept began at {oldest}");
    assert_eq!(before.to_string(), words);
    bench.end();
}

#[test]
fn a_history_that_cannot_be_written_loses_epochs_and_no_report_of_now() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryBacking::Anonymous, history.path());
    // A file is now in the place of the table. An epoch may be being written.
    let [table, file] = ["flows", "file"].map(|name| history.path().join(name));
    std::fs::write(&file, "").unwrap();
    exchange(&table, &file);
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
        // The machine restarts with empty memory: generations begin with 1.
        let memory = tempfile::tempdir().unwrap();
        let bench = Bench::start(&MemoryBacking::Directory(memory.path().to_owned()), history.path());
        let (at, generation) = moment(&bench, "flows", |store| write(store, &key(1), n));
        moments.push((at, n));
        until("it is written", || {
            bench.generation() > generation
                && bench.epochs.of["flows"].in_memory().former.iter().all(|f| f.store.generation > generation)
        });
        for (at, n) in &moments {
            assert_eq!(
                value(&bench.epochs.store_at_moment("flows", &[key(1)], *at).unwrap().0, &key(1)),
                Some(*n),
                "at {at}"
            );
        }
        assert_eq!((bench.count("epochs.lost"), bench.count("epochs.failed")), (0, 0));
        bench.end();
    }
}

/// Begins at a full hour; milliseconds since 1970.
const HOUR: u64 = 1_795_528_800_000;
const QUARTER: u64 = 900_000;

/// A history of "flows" in which epoch n has key n with value n, and all of them key 1000.
fn history(folder: &Path, epochs: std::ops::Range<u64>) -> (EpochTable, StoreSpec) {
    let spec = store(
        1,
        "flows",
        StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2, keys: Default::default() },
    );
    let table = EpochTable::open(folder, &spec).unwrap();
    for n in epochs {
        let opened = HOUR + n * QUARTER;
        let specs = std::slice::from_ref(&spec);
        let stores = ServedStores::open(specs, &MemoryBacking::Anonymous, RegionOptions::default()).unwrap();
        let store = stores.get("flows").unwrap();
        write(&store, &key(n as u32), n as u8);
        write(&store, &key(1000), n as u8);
        let store = Arc::new(Store { generation: n, ..Store::clone(&store) });
        let former = FormerEpoch {
            store,
            opened,
            closed: opened + QUARTER,
            since: Instant::now(),
            file: None,
            found: false,
        };
        let (generation, flipped_from) = (n, former.closed);
        let waterfall = serde_json::json!({ "sent": 2 });
        let epoch = dta_history::HistoryEpoch {
            generation,
            opened,
            flipped_from,
            flipped_to: flipped_from + 100,
            waterfall,
            ..dta_history::HistoryEpoch::default()
        };
        // The second time, it is already there.
        for _ in 0..2 {
            let pace = Pace::new(Duration::ZERO, &watch::channel(false).1);
            turn::write_former(&table, &former, &epoch, pace).unwrap();
        }
    }
    (table, spec)
}

/// The value of a key in the epoch of a moment.
fn kept_value(table: &EpochTable, at: u64, of: u32) -> Option<u8> {
    let kept = table.epoch_at_moment(at).unwrap()?;
    let wanted = elements::slots_of_keys(table.store_spec(), &[key(of)]);
    let mut bytes = vec![0; wanted.len() * 16];
    table.read_slots(kept.epoch.number, &wanted, &mut bytes).unwrap();
    let specs = std::slice::from_ref(table.store_spec());
    let like = ServedStores::open(specs, &MemoryBacking::Anonymous, RegionOptions::default()).unwrap();
    value(&elements::sparse_store(&like.get("flows").unwrap(), 1, &wanted, &bytes).unwrap(), &key(of))
}

/// A thinner for an existing history, with epochs that end now.
fn thinner(table: EpochTable, keep: Keep) -> Arc<StoreEpochs> {
    let specs = std::slice::from_ref(table.store_spec());
    let stores = ServedStores::open(specs, &MemoryBacking::Anonymous, RegionOptions::default()).unwrap();
    let of = Arc::new(StoreEpochs {
        name: "flows".into(),
        every: EVERY,
        restarted: None,
        in_memory: Mutex::new(InMemory {
            open: (stores.get("flows").unwrap(), Began::now()),
            former: Vec::new(),
        }),
        history: table,
        typed: Vec::new(),
        counters: Counters::default(),
        grown: AtomicBool::new(true),
    });
    let (_stop, stopped) = watch::channel(false);
    let mut thinner = Thinner::new(vec![of.clone()], keep, stopped).unwrap();
    let _ = thinner.thin_histories();
    of
}

fn files(table: &EpochTable) -> usize {
    let files = std::fs::read_dir(table.table_path()).unwrap().flatten();
    files.filter(|file| file.path().extension().is_some_and(|e| e == "parquet")).count()
}

#[test]
fn an_hour_that_is_over_becomes_one_file_and_an_epoch_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    // Two hours, one of which was over when nobody looked, and one epoch of the next hour.
    let (table, _) = history(folder.path(), 0..9);
    assert_eq!((table.kept_epochs().unwrap().len(), files(&table)), (9, 9));
    let forever = Keep { keep: None, ..keep(folder.path()) };
    let of = thinner(table, forever);
    assert_eq!(of.history.kept_epochs().unwrap().len(), 9);
    let hours: Vec<_> = of
        .history
        .compaction_spans(4 * QUARTER)
        .unwrap()
        .into_values()
        .map(|of| (of.files, of.epochs))
        .collect();
    assert_eq!(hours, [(1, 4), (1, 4), (1, 1)]);
    // The former files stay for readers for a while.
    assert_eq!(files(&of.history), 11);
    for n in 0..9 {
        assert_eq!(kept_value(&of.history, HOUR + n * QUARTER + 1, n as u32), Some(n as u8));
        assert_eq!(kept_value(&of.history, HOUR + n * QUARTER + 1, n as u32 + 1), None);
    }
}

#[test]
fn old_hours_become_one_epoch_with_the_newest_of_each_slot() {
    let folder = tempfile::tempdir().unwrap();
    let (table, _) = history(folder.path(), 0..12);
    let seconds = Duration::from_secs;
    let coarse = Some(Coarse { after: seconds(3600), every: seconds(3600) });
    // By the newest epoch it is three o'clock, so the first and second hours are old enough.
    let of = thinner(table, Keep { keep: None, coarse, ..keep(folder.path()) });
    let hours: Vec<_> = of
        .history
        .compaction_spans(4 * QUARTER)
        .unwrap()
        .into_values()
        .map(|of| (of.files, of.epochs))
        .collect();
    assert_eq!(hours, [(1, 1), (1, 1), (4, 4)]);
    let kept = of.history.kept_epochs().unwrap();
    assert_eq!((kept[0].epoch.opened, kept[0].epoch.flipped_to), (HOUR, HOUR + 4 * QUARTER + 100));
    assert_eq!(kept[0].epoch.waterfall, serde_json::json!({ "sent": 8 }));
    for n in 0..8 {
        let newest = if n < 4 { 3 } else { 7 };
        for moment in [0, 1, 2, 3].map(|quarter| HOUR + (newest - 3 + quarter) * QUARTER + 200) {
            assert_eq!(kept_value(&of.history, moment, n as u32), Some(n as u8), "{n} at {moment}");
            assert_eq!(kept_value(&of.history, moment, 1000), Some(newest as u8));
        }
    }
    assert_eq!(kept_value(&of.history, HOUR + 9 * QUARTER + 200, 1000), Some(9));
}

#[test]
fn the_largest_history_gives_way_where_all_together_have_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let (table, spec) = history(folder.path(), 0..8);
    let one = table.data_bytes() / 8;
    let of = thinner(table, Keep { keep: None, keep_bytes: Some(5 * one + one / 2), ..keep(folder.path()) });
    assert_eq!(of.history.kept_epochs().unwrap().len(), 5);
    assert_eq!(kept_value(&of.history, HOUR + 7 * QUARTER + 200, 7), Some(7));
    assert_eq!(kept_value(&of.history, HOUR + 200, 0), None);
    // Everything is too old to stay.
    drop(of);
    let table = EpochTable::open(folder.path(), &spec).unwrap();
    let of = thinner(table, Keep { keep: Some(Duration::from_secs(1)), ..keep(folder.path()) });
    assert_eq!(of.history.kept_epochs().unwrap().len(), 1, "the clock is an hour ahead at once");
}
