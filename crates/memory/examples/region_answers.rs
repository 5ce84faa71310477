//! Writes region files with all kinds of contents and prints what the readers answer: the truth that the Python
//! package is compared with (`python/tests`).
//!
//! ```text
//! cargo run -p dta-memory --example region_answers -- DIRECTORY
//! ```
//!
//! It makes `DIRECTORY/memory`, a memory directory with dense, damaged and half-written stores, and
//! `DIRECTORY/collector.toml` for `dta-collector serve`; it prints questions and answers as JSON.

use std::path::Path;
use std::time::{Duration, Instant};

use dta_memory::reader::append::{Lists, ReadProgress, ReadStart};
use dta_memory::reader::{key_increment, key_write, postcarding, sketch_merge};
use dta_memory::region::RegionOptions;
use dta_memory::store::MemoryBacking;
use dta_memory::store::Store;
use dta_proto::key::Key;
use dta_proto::layout::key_write::Choice;
use dta_proto::layout::sketch_merge::SketchColumn;
use dta_proto::layout::{self, hash};
use dta_proto::random::SplitMix64;
use dta_proto::store::{Merge, SlotKeys, StoreKind, StoreSpec};
use dta_proto::to_hex_digits;
use serde_json::{Value, json};

/// Keys that are written and queried; a quarter of them is only queried.
const KEYS: u64 = 200;

/// Texts that are valid keys, and some that are not.
const TEXTS: [&str; 31] = [
    "10.0.0.1:5000->10.0.0.2:5000/udp",
    " 10.0.0.1:5000 -> 10.0.0.2:5000 / UDP ",
    "10.0.0.1->10.0.0.2/icmp",
    "10.0.0.1:1->10.0.0.2:65535/255",
    "[2001:db8::1]:1->[2001:db8::2]:2/tcp",
    "2001:db8::1->[2001:db8::2]/icmp6",
    "[::ffff:1.2.3.4]:9->[::1]:10/sctp",
    "0a0b0c0d",
    "0x0A0B0C0D",
    "00112233445566778899aabbccddeeff",
    "",
    "abc",
    "xyz",
    "00112233445566778899aabbccddeeff00",
    "10.0.0.1:5000->10.0.0.2:5000",
    "10.0.0.1:5000->10.0.0.2:5000/xyz",
    "10.0.0.1:5000->10.0.0.2:5000/256",
    "10.0.0.1:65536->10.0.0.2:5000/udp",
    "10.0.0.1:+5->10.0.0.2:5000/udp",
    "10.0.0.1:->10.0.0.2:5000/udp",
    "10.0.0:1->10.0.0.2:5000/udp",
    "010.0.0.1:1->10.0.0.2:5000/udp",
    "[::1:5->[::2]:5/udp",
    "[::1]5->[::2]:5/udp",
    "[::1]:5->10.0.0.2:5/udp",
    "[10.0.0.1]:5->10.0.0.2:5/udp",
    "[fe80::1%eth0]:5->[::2]:5/udp",
    "::1:5->::2/udp",
    "10.0.0.1:5000/udp",
    "->/udp",
    "1_0",
];

/// The same contents in each run.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

fn specs() -> Vec<StoreSpec> {
    use StoreKind::{Append, KeyIncrement, KeyWrite, Postcarding, SketchMerge};
    let key_write =
        |slots, value_len, redundancy| KeyWrite { slots, value_len, redundancy, keys: Default::default() };
    let postcarding = |slots, hops, redundancy| Postcarding { slots, hops, redundancy };
    let append = |ring, batch_len, entry_len| Append { lists: 4, ring, batch_len, entry_len, notify: false };
    let sketch = |columns, rows, merge| SketchMerge { columns, rows, epochs: 4, merge, expected: 2 };
    let kinds = [
        ("flows", key_write(1 << 16, 12, 2)),
        ("paths", postcarding(1 << 16, 6, 2)),
        ("events", append(64, 64, 16)),
        ("bytes", KeyIncrement { slots: 1 << 16, redundancy: 2, replicas: 1 }),
        ("packets", sketch(1 << 10, 3, Merge::Sum)),
        ("values4", key_write(256, 4, 1)),
        ("values28", key_write(128, 28, 3)),
        ("values60", key_write(256, 60, 4)),
        ("paths14", postcarding(128, 14, 4)),
        ("events4", append(8, 16, 4)),
        ("events60", append(16, 128, 60)),
        ("events24", append(1, 32, 24)),
        ("bytes1", KeyIncrement { slots: 16, redundancy: 4, replicas: 1 }),
        ("bytes3", KeyIncrement { slots: 256, redundancy: 3, replicas: 1 }),
        ("sketch1", sketch(64, 1, Merge::Max)),
        ("sketch4", sketch(8, 4, Merge::Or)),
        ("sketch2", sketch(32, 2, Merge::Sum)),
        ("bytes22", KeyIncrement { slots: 256, redundancy: 2, replicas: 2 }),
        ("inline", KeyWrite { slots: 256, value_len: 12, redundancy: 3, keys: SlotKeys::Inline }),
    ];
    let ids = 1..;
    kinds.into_iter().zip(ids).map(|((name, kind), id)| StoreSpec { id, name: name.into(), kind }).collect()
}

fn keys() -> Vec<Key> {
    let mut random = Random(SplitMix64(1));
    let first: Key = TEXTS[0].parse().expect("the first text is a flow");
    let others = (1..KEYS).map(|_| {
        let mut key = [0; 16];
        key.copy_from_slice(&random.bytes(16));
        if key[0] & 1 == 0 {
            key[13..].fill(0);
        }
        Key(key)
    });
    std::iter::once(first).chain(others).collect()
}

fn put(store: &Store, offset: u64, bytes: &[u8]) {
    store.region.write(offset, bytes).expect("the element lies in its region");
}

/// Flips a bit of some elements, so that their checks are wrong.
fn damage(store: &Store, random: &mut Random, times: u64) {
    for _ in 0..times {
        let at = random.below(store.region.len());
        let mut byte = [0];
        store.region.read(at, &mut byte).expect("inside");
        put(store, at, &[byte[0] ^ 1 << random.below(8)]);
    }
}

/// Writes to a random share of a key's slots.
fn some(random: &mut Random) -> impl Fn(usize) -> bool + use<> {
    let which = if random.below(3) == 0 { random.next() } else { u64::MAX };
    move |n| which >> n & 1 == 1
}

fn fill_key_write(store: &Store, keys: &[Key]) {
    let StoreKind::KeyWrite { slots, value_len, redundancy, keys: held } = store.spec.kind else {
        unreachable!("a store of its kind")
    };
    let mut random = Random(SplitMix64(store.spec.id.into()));
    let mut slot = vec![0; store.spec.element_len() as usize];
    let mut encode = |key: &Key, value: &[u8]| {
        let both = layout::key_write::inline_value(key, value);
        let value = both.as_ref().filter(|_| !held.are_hashed()).map_or(value, |both| both);
        layout::key_write::encode_slot(&mut slot, key, value);
        slot.clone()
    };
    for _ in 0..2 * keys.len() {
        let key = &keys[random.below(3 * KEYS / 4) as usize];
        // Few values, so that copies agree by chance too.
        let value = [random.below(3) as u8].repeat(value_len.into());
        let slot = encode(key, &value);
        let writes = some(&mut random);
        for (n, at) in hash::key_slots(key, redundancy, slots).iter().enumerate() {
            if writes(n) {
                put(store, at * store.spec.element_len(), &slot);
            }
        }
    }
    damage(store, &mut random, 20);
    // What the README asks for: three counters of the first key.
    let value: Vec<u8> = [1u32, 2, 3].iter().flat_map(|n| n.to_be_bytes()).take(value_len.into()).collect();
    let slot = encode(&keys[0], &value);
    for at in hash::key_slots(&keys[0], redundancy, slots).iter() {
        put(store, at * store.spec.element_len(), &slot);
    }
}

fn fill_postcarding(store: &Store, keys: &[Key], slots: u64, hops: u8, redundancy: u8) {
    let mut random = Random(SplitMix64(store.spec.id.into()));
    let mut row = vec![0; layout::postcarding::row_length(hops) as usize];
    let mut write = |key: &Key, path: &layout::postcarding::PostcardPath, which: &dyn Fn(usize) -> bool| {
        layout::postcarding::encode_row(&mut row, key, path);
        for (n, at) in hash::key_slots(key, redundancy, slots).iter().enumerate() {
            if which(n) {
                put(store, layout::postcarding::row_offset(*at, hops), &row);
            }
        }
    };
    for _ in 0..2 * keys.len() {
        let key = &keys[random.below(3 * KEYS / 4) as usize];
        let mut path = layout::postcarding::PostcardPath::default();
        let length = random.below(u64::from(hops)) as u8 + 1;
        (0..length).filter(|_| random.below(5) > 0).for_each(|hop| {
            path.set(hop, 100 + u32::from(hop));
        });
        path.length = if random.below(4) == 0 { 0 } else { length };
        if path.bitmap != 0 {
            write(key, &path, &some(&mut random));
        }
    }
    damage(store, &mut random, 20);
    let mut path = layout::postcarding::PostcardPath { length: 3, ..Default::default() };
    (0..3).for_each(|hop| {
        path.set(hop, [101, 104, 102][usize::from(hop)]);
    });
    write(&keys[0], &path, &|_| true);
}

fn fill_append(store: &Store, ring: u64, batch_len: u16, entry_len: u8) {
    use layout::append::{advance_sequence, batch_offset, encode_batch, entries_per_batch, place_offset};
    let mut random = Random(SplitMix64(store.spec.id.into()));
    let room = entries_per_batch(batch_len, entry_len);
    let mut number = 0u32;
    let mut write = |list: u32, sequence: u32, count: u8| {
        let mut batch = vec![0; batch_len.into()];
        let entries: Vec<u8> = (0..u32::from(count) * u32::from(entry_len) / 4)
            .flat_map(|_| {
                number += 1;
                number.to_be_bytes()
            })
            .collect();
        encode_batch(&mut batch, list, sequence, count, &entries);
        put(store, batch_offset(list, sequence, ring, batch_len), &batch);
    };
    // List 0: some batches, the last one half full. List 1: several turns, and across the wrap.
    let some = (ring / 2).max(1) as u32;
    (1..=some).for_each(|s| write(0, s, if s == some { (room / 2).max(1) } else { room }));
    (0..3 * ring as u32).for_each(|n| write(1, advance_sequence(u32::MAX - ring as u32, n), room));
    // List 2: gaps, a batch of the turn before, and damage. List 3 is empty, or torn everywhere.
    if batch_len == 64 {
        (0..ring).for_each(|at| put(store, place_offset(3, at, ring, batch_len), &[0xee; 64]));
    }
    for s in ring as u32 + 1..=2 * ring as u32 {
        if random.below(5) > 0 {
            write(2, s, 1 + random.below(room.into()) as u8);
        }
    }
    if ring >= 8 {
        write(2, 5, room);
        put(store, place_offset(2, ring - 3, ring, batch_len), &[0xee; 5]);
        put(store, place_offset(2, ring - 1, ring, batch_len) + u64::from(batch_len) - 1, &[0xee]);
    }
}

fn fill_counters(store: &Store, keys: &[Key], slots: u64, [redundancy, replicas]: [u8; 2]) {
    let mut random = Random(SplitMix64(store.spec.id.into()));
    let mut counters = vec![0u64; slots as usize];
    let lanes = layout::key_increment::lane_count(replicas);
    let mut add = |lane: usize, key: &Key, delta: u64| {
        let at = hash::key_slots(key, lanes as u8 * redundancy, slots);
        let of_lane = at.iter().skip(lane * usize::from(redundancy)).take(redundancy.into());
        of_lane.for_each(|at| counters[*at as usize] += delta);
    };
    for _ in 0..2 * keys.len() {
        let lane = random.below(lanes as u64) as usize;
        add(lane, &keys[1 + random.below(3 * KEYS / 4) as usize], random.next() >> 12);
    }
    add(0, &keys[0], 1500);
    for (at, counter) in counters.iter().enumerate() {
        put(
            store,
            layout::key_increment::counter_offset(at as u64),
            &layout::key_increment::encode_counter(*counter),
        );
    }
}

fn fill_sketch(store: &Store, keys: &[Key], columns: u32, rows: u8, epochs: u32) {
    let mut random = Random(SplitMix64(store.spec.id.into()));
    let mut bytes = vec![0; layout::sketch_merge::column_len(rows) as usize];
    // Epochs 3 to 6 are in the ring; in each, some columns are older or were never written.
    for epoch in 3..3 + epochs {
        for column in 0..columns {
            if random.below(12) == 0 {
                continue;
            }
            let epoch = if random.below(12) == 0 { epoch - epochs.min(epoch) } else { epoch };
            let cells = std::array::from_fn(|row| if row < rows.into() { random.next() as u32 } else { 0 });
            let column_is = SketchColumn { epoch, merged: random.below(3) as u16, expected: 2, cells };
            layout::sketch_merge::encode_column(&mut bytes, rows, &column_is);
            put(store, layout::sketch_merge::column_offset(epoch, column, epochs, columns, rows), &bytes);
        }
    }
    for column in layout::sketch_merge::columns_of(&keys[0], rows, columns).iter() {
        let column_is = SketchColumn { epoch: 5, merged: 2, expected: 2, cells: [7; 4] };
        layout::sketch_merge::encode_column(&mut bytes, rows, &column_is);
        put(store, layout::sketch_merge::column_offset(5, *column as u32, epochs, columns, rows), &bytes);
    }
}

/// Questions to one store with their answers.
fn questions(store: &Store, keys: &[Key]) -> Vec<Value> {
    match store.spec.kind {
        StoreKind::KeyWrite { redundancy, .. } => {
            fill_key_write(store, keys);
            let policies = [("first".into(), Choice::First), ("plurality".into(), Choice::Plurality)];
            let least = (1..=redundancy).map(|n| (format!("at-least={n}"), Choice::AtLeast(n)));
            policies
                .into_iter()
                .chain(least)
                .map(|(name, policy)| ask_values(store, keys, &name, policy))
                .collect()
        }
        StoreKind::Postcarding { slots, hops, redundancy } => {
            fill_postcarding(store, keys, slots, hops, redundancy);
            vec![ask_paths(store, keys)]
        }
        StoreKind::Append { lists, ring, batch_len, entry_len, .. } => {
            fill_append(store, ring, batch_len, entry_len);
            let turn = ring as u32;
            let starts = [0, 1, turn, turn + 2, 2 * turn, 2 * turn + 9, u32::MAX - 1];
            (0..lists).flat_map(|list| starts.map(|start| ask_list(store, list, start))).collect()
        }
        StoreKind::KeyIncrement { slots, redundancy, replicas } => {
            fill_counters(store, keys, slots, [redundancy, replicas]);
            let reader = key_increment::KeyIncrementReader::new(store).expect("a store of its kind");
            let mut lanes = vec![0; keys.len() * reader.lane_count()];
            reader.query_keys(keys, &mut lanes).expect("inside");
            let counts: Vec<_> =
                lanes.chunks(reader.lane_count()).map(key_increment::total_of_lanes).collect();
            vec![json!({ "counts": counts })]
        }
        StoreKind::SketchMerge { columns, rows, epochs, .. } => {
            fill_sketch(store, keys, columns, rows, epochs);
            (0..9).chain([u32::MAX]).map(|epoch| ask_sketch(store, keys, epoch)).collect()
        }
    }
}

fn ask_values(store: &Store, keys: &[Key], name: &str, policy: Choice) -> Value {
    let reader = key_write::KeyWriteReader::new(store).expect("a store of its kind");
    let mut answers = vec![key_write::KeyWriteReading::default(); keys.len()];
    let mut values = vec![0; keys.len() * reader.value_len()];
    reader.query_keys(keys, policy, &mut answers, &mut values).expect("inside");
    let answers = answers.iter().zip(values.chunks_exact(reader.value_len()));
    let answers: Vec<_> =
        answers.map(|(a, v)| json!([a.found.then(|| to_hex_digits(v)), a.agreeing, a.differing])).collect();
    json!({ "policy": name, "answers": answers })
}

fn ask_paths(store: &Store, keys: &[Key]) -> Value {
    let reader = postcarding::PostcardingReader::new(store).expect("a store of its kind");
    let mut answers = vec![postcarding::PostcardingReading::default(); keys.len()];
    reader.query_keys(keys, &mut answers).expect("inside");
    let answer = |a: &postcarding::PostcardingReading| {
        let path = a.path.map(|p| {
            let last = 16 - p.bitmap.leading_zeros();
            (0..last.max(p.length.into()) as u8).map(|h| p.hop_value(h)).collect::<Vec<_>>()
        });
        let complete = a.path.is_some_and(|p| p.is_complete());
        json!([path, a.path.map_or(0, |p| p.length), complete, a.agreeing, a.differing])
    };
    json!({ "answers": answers.iter().map(answer).collect::<Vec<_>>() })
}

fn ask_list(store: &Store, list: u32, start: u32) -> Value {
    let lists = Lists::new(store).expect("a store of its kind");
    let from = if start == 0 { ReadStart::Oldest } else { ReadStart::At(start) };
    let mut reader = lists.open_reader(list, from).expect("inside");
    let (mut entries, mut progress) = (Vec::new(), ReadProgress::default());
    loop {
        let news = reader.read(u64::MAX, Instant::now(), |_, more| entries.extend_from_slice(more));
        progress.add(news.expect("inside"));
        if reader.caught_up().expect("inside") {
            progress.damaged += reader.torn_behind().expect("inside");
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    json!({
        "list": list, "from_sequence": start, "entries": to_hex_digits(&entries), "next_sequence": reader.next_sequence(),
        "overwritten": progress.overwritten, "missing": progress.missing, "damaged": progress.damaged,
    })
}

fn ask_sketch(store: &Store, keys: &[Key], epoch: u32) -> Value {
    let reader = sketch_merge::SketchMergeReader::new(store).expect("a store of its kind");
    let mut answers = vec![sketch_merge::SketchMergeReading::default(); keys.len()];
    reader.query_keys(keys, epoch, &mut answers).expect("inside");
    let answers: Vec<_> = answers.iter().map(|a| json!([a.estimate, a.merged, a.expected])).collect();
    json!({ "epoch": epoch, "answers": answers })
}

#[derive(serde::Serialize)]
struct Configuration {
    store: Vec<StoreSpec>,
}

fn main() -> anyhow::Result<()> {
    let directory =
        std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("usage: region_answers DIRECTORY"))?;
    let directory = Path::new(&directory);
    let memory = directory.join("memory");
    std::fs::create_dir_all(&memory)?;
    let specs = specs();
    std::fs::write(
        directory.join("collector.toml"),
        toml::to_string(&Configuration { store: specs.clone() })?,
    )?;
    let keys = keys();
    let mut stores = serde_json::Map::new();
    for spec in &specs {
        spec.validate()?;
        let store = Store::open(
            spec,
            &MemoryBacking::Directory(memory.clone()),
            RegionOptions { huge_pages: false },
        )?;
        stores.insert(spec.name.clone(), json!({ "spec": spec, "questions": questions(&store, &keys) }));
    }
    let texts: Vec<_> = TEXTS
        .iter()
        .map(|text| json!([text, text.parse::<Key>().ok().map(|k| (to_hex_digits(&k.0), k.to_string()))]))
        .collect();
    let keys: Vec<_> = keys.iter().map(|k| json!([to_hex_digits(&k.0), k.to_string()])).collect();
    println!("{}", json!({ "texts": texts, "keys": keys, "stores": stores }));
    Ok(())
}
