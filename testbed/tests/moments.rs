//! No answer about now or about any moment depends on whether there is history: captures of Telemetry Reports are repeated
//! for some minutes, into stores with epochs and into stores without, and answers are compared at 50 moments. Time passes
//! a hundred times as fast; `DTA_SPEEDUP=1` is the long form (`make soak`).

#[path = "shared/captures.rs"]
mod captures;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dta_collector::answers::Memory;
use dta_collector::epochs::{Counted, Epochs, Keep, StoreTraffic};
use dta_collector::session::Writers;
use dta_files::moment::now;
use dta_memory::region::RegionOptions;
use dta_memory::store::{MemoryBacking, ServedStores, Store};
use dta_proto::control::PathAnswer;
use dta_proto::key::Key;
use dta_proto::layout::postcarding::PostcardPath;
use dta_proto::layout::{hash, key_increment, key_write, postcarding};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::dta::DtaBody;
use dta_rpc::{Ask, KeyAnswer, Question, QuestionKind, Span};
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Rules, StoreIds, Telemetry};
use tokio::sync::watch;

/// Milliseconds within which a translator on a busy machine learns that an epoch has ended: it writes into it until then.
const LEARNED_WITHIN: u64 = 5_000;

const MOMENTS: u32 = 50;
/// Time of the capture between two moments, in milliseconds: all of them together are more than two keep-alives.
const STEP: u64 = 2600;
/// Keys of a store that are asked at a moment.
const ASKED: usize = 150;

const PATHS: u16 = 1;
const VALUES: u16 = 2;
const COUNTERS: u16 = 4;
const POSTCARDS: u16 = 5;

fn specs() -> [StoreSpec; 4] {
    let values = |value_len| StoreKind::KeyWrite {
        slots: 1 << 17,
        value_len,
        redundancy: 4,
        keys: Default::default(),
    };
    let store = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
    [
        store(PATHS, "int-paths", values(60)),
        store(VALUES, "int-values", values(12)),
        store(
            COUNTERS,
            "int-counters",
            StoreKind::KeyIncrement { slots: 1 << 17, redundancy: 2, replicas: 1 },
        ),
        store(POSTCARDS, "int-postcards", StoreKind::Postcarding { slots: 1 << 16, hops: 14, redundancy: 2 }),
    ]
}

/// A translator that never lags: it writes to the open memory while it holds the lock.
#[derive(Default)]
struct Translator(Mutex<()>);

impl StoreTraffic for Translator {
    fn store_writers(&self, _: &str, _: u64) -> Writers {
        drop(self.0.lock());
        Writers::Moved
    }

    fn begin_generation(&self, _: &str, _: u64, _: u64) {}

    fn node_counters(&self) -> Vec<Counted> {
        Vec::new()
    }
}

/// Writes what a report says as the NIC would.
fn write(store: &Store, body: &DtaBody<'_>, path: &PostcardPath) {
    match (body, &store.spec.kind) {
        (DtaBody::KeyWrite { key, value, .. }, StoreKind::KeyWrite { slots, value_len, redundancy, .. }) => {
            let mut slot = vec![0; key_write::CHECKSUM_LEN + usize::from(*value_len)];
            key_write::encode_slot(&mut slot, key, value);
            for place in hash::key_slots(key, *redundancy, *slots).iter() {
                store.region.write(key_write::slot_offset(*place, *value_len), &slot).unwrap();
            }
        }
        (DtaBody::KeyIncrement { key, delta, .. }, StoreKind::KeyIncrement { slots, redundancy, .. }) => {
            for place in hash::key_slots(key, *redundancy, *slots).iter() {
                let (offset, mut counter) = (key_increment::counter_offset(*place), [0; 8]);
                store.region.read(offset, &mut counter).unwrap();
                let count = u64::from_le_bytes(counter) + delta;
                store.region.write(offset, &key_increment::encode_counter(count)).unwrap();
            }
        }
        (DtaBody::Postcard { key, .. }, StoreKind::Postcarding { slots, hops, redundancy }) => {
            let mut row = vec![0; postcarding::row_length(*hops) as usize];
            postcarding::encode_row(&mut row, key, path);
            for place in hash::key_slots(key, *redundancy, *slots).iter() {
                store.region.write(postcarding::row_offset(*place, *hops), &row).unwrap();
            }
        }
        (body, kind) => panic!("{body:?} for {kind:?}"),
    }
}

/// What is comparable of an answer; `None` = absent.
fn content(answer: &KeyAnswer) -> Option<String> {
    match answer {
        KeyAnswer::KeyWrite(answer) => answer.value.as_ref().map(|value| format!("{value:?}")),
        KeyAnswer::Postcarding(PathAnswer { found, hops, present, path_length, .. }) => {
            found.then(|| format!("{hops:?} {present:?} {path_length}"))
        }
        KeyAnswer::KeyIncrement(answer) => (answer.value != 0).then(|| answer.value.to_string()),
        KeyAnswer::SketchMerge(answer) => panic!("{answer:?}"),
    }
}

/// What a key had from which moments on.
type KeyHistory = Vec<(u64, Option<String>)>;

struct World {
    telemetry: Telemetry,
    translator: Arc<Translator>,
    epochs: Arc<Epochs>,
    plain: Arc<ServedStores>,
    with_history: Memory,
    without: Memory,
    /// All keys of each store, and what each had from which moment on.
    written: BTreeMap<u16, BTreeMap<Key, KeyHistory>>,
    stop: watch::Sender<bool>,
}

impl World {
    fn start(history: &Path, every: Duration) -> World {
        let open = || {
            let options = RegionOptions { huge_pages: false };
            Arc::new(ServedStores::open(&specs(), &MemoryBacking::Anonymous, options).unwrap())
        };
        let (stores, plain) = (open(), open());
        let keep = Keep {
            directory: history.to_owned(),
            url: None,
            clickhouse: None,
            keep: None,
            keep_bytes: None,
            look_back: Duration::from_secs(600),
            coarse: None,
            patience: Duration::from_secs(60),
        };
        let translator = Arc::new(Translator::default());
        let traffic: Arc<dyn StoreTraffic> = translator.clone();
        let (stop, stopped) = watch::channel(false);
        let every = specs().into_iter().map(|spec| (spec.name, every)).collect();
        let epochs = Arc::new(Epochs::start(&stores, &every, &keep, &traffic, &stopped).unwrap());
        let mut telemetry = Telemetry::new(Rules::default());
        telemetry.set_stores(StoreIds {
            paths: Some(PATHS),
            values: Some(VALUES),
            events: None,
            counters: Some(COUNTERS),
            postcards: Some(POSTCARDS),
        });
        World {
            telemetry,
            translator,
            with_history: Memory::new(stores).with_epochs(epochs.clone()),
            without: Memory::new(plain.clone()),
            epochs,
            plain,
            written: BTreeMap::new(),
            stop,
        }
    }

    /// Processes datagrams at a time, in nanoseconds; what they make is in memory then.
    fn report(&mut self, time: u64, datagrams: &[(IntSettings, Vec<u8>)]) {
        let mut made = PrimitiveBatch::default();
        let at = ArrivalTime { now: time, wall: 1_700_000_000_000_000_000 + time };
        for (settings, datagram) in datagrams {
            self.telemetry.ingest_datagram(at, IpAddr::from([127, 0, 0, 1]), datagram, settings, &mut made);
        }
        self.telemetry.write_due_counts(time, usize::MAX, &mut made);
        // Postcards of a key are one row.
        let mut paths: BTreeMap<Key, PostcardPath> = BTreeMap::new();
        for (_, body) in made.iter() {
            if let DtaBody::Postcard { key, hop, path_length, value } = body {
                let path = paths.entry(key).or_default();
                path.set(hop, value);
                path.length = path_length;
            }
        }
        let _writing = self.translator.0.lock().unwrap();
        for (id, body) in made.iter() {
            let spec = specs().into_iter().find(|spec| spec.id == id).unwrap();
            let (DtaBody::KeyWrite { key, .. }
            | DtaBody::KeyIncrement { key, .. }
            | DtaBody::Postcard { key, .. }) = body
            else {
                panic!("{body:?}");
            };
            let path = paths.get(&key).copied().unwrap_or_default();
            write(&self.epochs.open(&spec.name).unwrap().0, &body, &path);
            write(&self.plain.get(&spec.name).unwrap(), &body, &path);
            let said = match body {
                DtaBody::KeyWrite { value, .. } => Some(format!("{value:?}")),
                _ => None,
            };
            self.written.entry(id).or_default().entry(key).or_default().push((now(), said));
        }
    }

    fn questions(&self, first: usize) -> Vec<Question> {
        let question = |(id, keys): (&u16, &BTreeMap<Key, _>)| {
            let spec = specs().into_iter().find(|spec| spec.id == *id).unwrap();
            let step = (keys.len() / ASKED).max(1);
            let keys: Vec<Key> = keys.keys().skip(first % step).step_by(step).copied().collect();
            let kind = QuestionKind::default_for(spec.kind.primitive(), 0).unwrap();
            Question::now(spec.name, keys, kind)
        };
        self.written.iter().map(question).collect()
    }
}

/// Runs captures with epochs of so many seconds.
fn compare_with_epochs_of(seconds: u64) {
    let test = format!("no_answer_depends_on_epochs_of_{seconds}_s");
    let Some(folder) = captures::captures(&test, "int") else { return };
    let speedup: u64 = std::env::var("DTA_SPEEDUP").map_or(100, |text| text.parse().expect("a number"));
    let mut datagrams = Vec::new();
    for (name, dialect) in [
        ("int-v0.5-1000-flows-paths.pcap", "intcollector"),
        ("int-v0.5-6-hops-all-fields.pcap", "intcollector"),
        ("int-v1.0-6-hops-all-fields.pcap", "intcollector"),
        ("int-v1.0-three-reports.pcap", "intcollector"),
        ("sdfabric-v0.5-real-traffic.pcap", "sdfabric"),
    ] {
        let settings = IntSettings { dialect: dialect.parse().unwrap(), ..IntSettings::default() };
        dta_testbed::capture::read(&folder.join(name), |packet| {
            let payload = dta_testbed::capture::udp_payload(&packet);
            datagrams.extend(payload.map(|(_, payload)| (settings, payload.to_vec())));
        })
        .unwrap();
    }
    let history = tempfile::tempdir().unwrap();
    let mut world = World::start(history.path(), Duration::from_millis(1000 * seconds / speedup));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (start, mut earlier, mut asked) = (Instant::now(), 0, Vec::new());
    for n in 0..MOMENTS {
        loop {
            world.report(start.elapsed().as_nanos() as u64 * speedup, &datagrams);
            if start.elapsed() >= Duration::from_millis(STEP * u64::from(n) / speedup) {
                break;
            }
            std::thread::sleep(Duration::from_millis(500 / speedup));
        }
        // Some epochs are over since, with nothing in them.
        std::thread::sleep(Duration::from_millis(500 / speedup));
        let at = now();
        for question in world.questions(n as usize) {
            let with_history = runtime.block_on(world.with_history.query_keys(question.clone())).unwrap();
            let without = runtime.block_on(world.without.query_keys(question.clone())).unwrap();
            for (with_history, without) in with_history.of_keys.iter().zip(&without.of_keys) {
                // Other keys that took its slots were in other epochs.
                if let Some(said) = content(without) {
                    assert_eq!(content(with_history), Some(said), "{} at moment {n}", question.store);
                    earlier += usize::from(with_history.earlier_epoch().is_some());
                }
            }
            asked.push((at, question, without.of_keys));
        }
    }
    assert!(earlier > 0, "no answer was from an earlier epoch: nothing is shown");
    for (at, question, then) in asked {
        let question = Question { at: at.into(), ..question };
        let answers = runtime.block_on(world.with_history.query_keys(question.clone())).unwrap();
        let ids = specs().into_iter().find(|spec| spec.name == question.store).unwrap();
        let end = answers.epoch.as_ref().map(|epoch| epoch.flipped_to).filter(|end| *end != 0);
        for ((key, answer), then) in question.keys.iter().zip(&answers.of_keys).zip(&then) {
            let (Some(then), said) = (content(then), content(answer)) else { continue };
            let said = said.unwrap_or_else(|| panic!("{} knows nothing of {key:?} at {at}", question.store));
            // What was reported later in the epoch of the moment is what it has.
            let log = &world.written[&ids.id][key];
            let is_in_epoch = |time: u64| end.is_none_or(|end| time <= end + LEARNED_WITHIN);
            let later = log.iter().filter(|(time, _)| *time >= at && is_in_epoch(*time));
            let mut later = later.map(|(_, said)| said);
            let is_value = matches!(answer, KeyAnswer::KeyWrite(_));
            let is_later = later.any(|later| !is_value || later.as_ref() == Some(&said));
            assert!(said == then || is_later, "{} at {at}: {said}, not {then}", question.store);
        }
    }
    for question in world.questions(0) {
        let question = Question { keys: question.keys[..10.min(question.keys.len())].to_vec(), ..question };
        let series = world.with_history.query_keys_in_span(question.clone(), Span::default());
        let mut known = vec![false; question.keys.len()];
        for answers in runtime.block_on(series).unwrap().epochs {
            for (known, answer) in known.iter_mut().zip(&answers.of_keys) {
                assert!(!*known || !answer.is_absent(), "{}: {:?}", question.store, answers.epoch);
                *known = !answer.is_absent();
            }
        }
        assert!(known.iter().all(|known| *known), "{}", question.store);
    }
    world.stop.send_replace(true);
    world.epochs.join_threads();
}

#[test]
fn no_answer_depends_on_epochs_of_2_s() {
    compare_with_epochs_of(2);
}

#[test]
fn no_answer_depends_on_epochs_of_20_s() {
    compare_with_epochs_of(20);
}

#[test]
fn no_answer_depends_on_epochs_of_60_s() {
    compare_with_epochs_of(60);
}
