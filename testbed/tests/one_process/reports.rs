//! Reports of all five primitives, made from a seed.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::random::SplitMix64;
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{DtaBody, DtaReport};

pub(crate) const VALUES: u16 = 1;
pub(crate) const EVENTS: u16 = 2;
pub(crate) const COUNTERS: u16 = 3;
pub(crate) const PATHS: u16 = 4;
pub(crate) const SKETCH: u16 = 5;
/// Lists that wake a reader.
pub(crate) const ALARMS: u16 = 6;

pub(crate) const VALUE_LEN: usize = 12;
pub(crate) const VALUE_COPIES: u8 = 3;
const VALUE_SLOTS: u64 = 1 << 12;
const COUNTER_COPIES: u8 = 2;
const COUNTER_SLOTS: u64 = 1 << 12;
pub(crate) const PATH_COPIES: u8 = 2;
const PATH_SLOTS: u64 = 1 << 11;
const HOPS: u8 = 6;
pub(crate) const LISTS: u32 = 4;
pub(crate) const ENTRY: usize = 8;
pub(crate) const ALARM: usize = 4;
pub(crate) const COLUMNS: u32 = 32;
pub(crate) const ROWS: u8 = 3;
pub(crate) const EPOCHS: [u32; 2] = [7, 8];
const REPORTERS: u16 = 6;
/// Of them, those that keep a sketch.
pub(crate) const SKETCHERS: u16 = 3;

/// The stores that the reports are for.
pub(crate) fn stores() -> Vec<StoreSpec> {
    let store = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
    let lists = |batch_len, entry_len: usize, notify| StoreKind::Append {
        lists: LISTS,
        ring: 1 << 10,
        batch_len,
        entry_len: entry_len as u8,
        notify,
    };
    vec![
        store(
            VALUES,
            "values",
            StoreKind::KeyWrite {
                slots: VALUE_SLOTS,
                value_len: VALUE_LEN as u8,
                redundancy: VALUE_COPIES,
                keys: Default::default(),
            },
        ),
        store(EVENTS, "events", lists(64, ENTRY, false)),
        store(
            COUNTERS,
            "counters",
            StoreKind::KeyIncrement { slots: COUNTER_SLOTS, redundancy: COUNTER_COPIES, replicas: 1 },
        ),
        store(
            PATHS,
            "paths",
            StoreKind::Postcarding { slots: PATH_SLOTS, hops: HOPS, redundancy: PATH_COPIES },
        ),
        store(
            SKETCH,
            "sketch",
            StoreKind::SketchMerge {
                columns: COLUMNS,
                rows: ROWS,
                epochs: 4,
                merge: Merge::Sum,
                expected: SKETCHERS as u8,
            },
        ),
        store(ALARMS, "alarms", lists(32, ALARM, true)),
    ]
}

/// What a report says, with bytes of its own.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Value { key: Key, copies: u8, value: Vec<u8> },
    Entry { store: u16, list: u32, entry: Vec<u8>, immediate: bool },
    Count { key: Key, delta: u64 },
    Hop { key: Key, hop: u8, length: u8, value: u32 },
    Column { epoch: u32, column: u32, cells: [u32; ROWS as usize] },
}

/// One report.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) reporter: u16,
    pub(crate) sequence: u32,
    pub(crate) said: Said,
}

/// All reports, in the order in which they are sent.
pub(crate) struct Reports {
    pub(crate) all: Vec<Made>,
    /// Keys that each store is asked for. The last ones of each were never reported.
    pub(crate) value_keys: Vec<Key>,
    pub(crate) counter_keys: Vec<Key>,
    pub(crate) path_keys: Vec<Key>,
    sizes: Vec<usize>,
}

impl Reports {
    pub(crate) fn generate(seed: u64) -> Reports {
        let mut random = Random(SplitMix64(seed));
        let value_keys = keys(&mut random, 160, VALUE_COPIES, VALUE_SLOTS);
        let counter_keys = keys(&mut random, 110, COUNTER_COPIES, COUNTER_SLOTS);
        let path_keys = keys(&mut random, 130, PATH_COPIES, PATH_SLOTS);
        let mut all: Vec<(u16, Said)> = Vec::new();
        let anybody = |random: &mut Random| 1 + random.below(REPORTERS.into()) as u16;
        // Each key has its number of copies; some keys are written over and over.
        for _ in 0..900 {
            let n = random.below(150) as usize;
            let copies = n as u8 % (VALUE_COPIES + 1);
            let len = 4 * (1 + random.below(3) as usize);
            let value = random.bytes(len);
            all.push((anybody(&mut random), Said::Value { key: value_keys[n], copies, value }));
        }
        for _ in 0..1200 {
            let list = random.below(LISTS.into()) as u32;
            let entry = random.bytes(ENTRY);
            // Nobody waits for these lists, so the flag has no effect.
            let immediate = random.below(50) == 0;
            all.push((anybody(&mut random), Said::Entry { store: EVENTS, list, entry, immediate }));
        }
        for _ in 0..300 {
            let list = random.below(LISTS.into()) as u32;
            let entry = random.bytes(ALARM);
            let immediate = random.below(3) == 0;
            all.push((anybody(&mut random), Said::Entry { store: ALARMS, list, entry, immediate }));
        }
        for _ in 0..900 {
            let key = counter_keys[random.below(100) as usize];
            // Now and then one that turns the counter over.
            let delta = if random.below(40) == 0 { u64::MAX - 3 } else { random.below(1 << 40) };
            all.push((anybody(&mut random), Said::Count { key, delta }));
        }
        for key in &path_keys[..120] {
            let length = 1 + random.below(HOPS.into()) as u8;
            let cut = random.below(4) == 0;
            for hop in 0..length {
                // Some hops of every fourth path never report.
                if !cut || hop == 0 || random.below(2) == 0 {
                    let value = random.0.next_u64() as u32;
                    all.push((1 + u16::from(hop), Said::Hop { key: *key, hop, length, value }));
                }
            }
        }
        for epoch in EPOCHS {
            for column in 0..COLUMNS {
                for reporter in 1..=SKETCHERS {
                    // The last one is silent now and then, and nobody ever reports the last columns.
                    if column >= COLUMNS - 2 || (reporter == SKETCHERS && random.below(5) == 0) {
                        continue;
                    }
                    let cells = std::array::from_fn(|_| match random.below(30) {
                        0 => u32::MAX,
                        _ => random.below(1 << 20) as u32,
                    });
                    all.push((reporter, Said::Column { epoch, column, cells }));
                }
            }
        }
        random.shuffle(&mut all);
        let mut sequences: HashMap<u16, u32> = HashMap::new();
        let all: Vec<Made> = all
            .into_iter()
            .map(|(reporter, said)| {
                // One reporter's numbers turn over on the way.
                let start = if reporter == 2 { u32::MAX - 100 } else { 0 };
                let next = sequences.entry(reporter).or_insert(start);
                let sequence = *next;
                *next = next.wrapping_add(1);
                Made { reporter, sequence, said }
            })
            .collect();
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < all.len() {
            sizes.push(1 + random.below(100) as usize);
        }
        Reports { all, value_keys, counter_keys, path_keys, sizes }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The reports as packets, in batches of all sizes.
    pub(crate) fn batches(&self) -> impl Iterator<Item = Vec<Vec<u8>>> {
        let mut rest = &self.all[..];
        self.sizes.iter().map(move |size| {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            rest = later;
            now.iter().map(Made::packet).collect()
        })
    }
}

impl Made {
    fn packet(&self) -> Vec<u8> {
        let cells: Vec<u8> = match &self.said {
            Said::Column { cells, .. } => cells.iter().flat_map(|cell| cell.to_be_bytes()).collect(),
            _ => Vec::new(),
        };
        let (store, body) = match &self.said {
            Said::Value { key, copies, value } => {
                (VALUES, DtaBody::KeyWrite { redundancy: *copies, key: *key, value })
            }
            Said::Entry { store, list, entry, .. } => (*store, DtaBody::Append { list: *list, value: entry }),
            Said::Count { key, delta } => {
                (COUNTERS, DtaBody::KeyIncrement { redundancy: 0, key: *key, delta: *delta })
            }
            Said::Hop { key, hop, length, value } => {
                (PATHS, DtaBody::Postcard { key: *key, hop: *hop, path_length: *length, value: *value })
            }
            Said::Column { epoch, column, .. } => {
                (SKETCH, DtaBody::SketchMerge { epoch: *epoch, column: *column, cells: &cells })
            }
        };
        let report = DtaReport {
            immediate: matches!(self.said, Said::Entry { immediate: true, .. }),
            sequence: self.sequence,
            reporter: self.reporter,
            ..DtaReport::new(store, body)
        };
        let mut payload = [0; 200];
        let len = report.encode_into(&mut payload).expect("a report of this test's own");
        let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, self.reporter as u8), 5555);
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40040);
        [&datagram::encode_header(from, to, len)[..], &payload[..len]].concat()
    }
}

/// Keys that share no slots, so that what memory holds of one is its own.
fn keys(random: &mut Random, count: usize, copies: u8, slots: u64) -> Vec<Key> {
    let (mut keys, mut taken) = (Vec::new(), std::collections::HashSet::new());
    while keys.len() < count {
        let mut key = Key([0; 16]);
        key.0.copy_from_slice(&random.bytes(16));
        let at = hash::key_slots(&key, copies, slots);
        if at.iter().all(|slot| !taken.contains(slot)) && at[1..].iter().all(|slot| *slot != at[0]) {
            taken.extend(at.iter().copied());
            keys.push(key);
        }
    }
    keys
}

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.0.next_u64() as u8).collect()
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
