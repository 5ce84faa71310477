//! Readers beside a live writer: whatever they believe was written as a whole. Columns of sketches
//! are not among them: they have no check, and docs/memory-layout.md says what a reader may see of
//! one.
//!
//! The writer writes elements in which all words hold the same number, so an element put together
//! of two writes shows. A reader that skipped its check, or believed it too early, fails here
//! within a moment.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dta_memory::reader::{append, key_increment, key_write, postcarding};
use dta_memory::region::RegionOptions;
use dta_memory::store::MemoryBacking;
use dta_memory::store::Store;
use dta_proto::key::Key;
use dta_proto::layout::{self, append as append_layout, hash};
use dta_proto::store::{StoreKind, StoreSpec};

/// Values that a reader must have seen before the race counts as one.
const SEEN: usize = 1000;
/// Longest that this may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: Key = Key(*b"racing flow key!");

fn store(kind: StoreKind) -> Store {
    let spec = StoreSpec { id: 1, name: "raced".into(), kind };
    Store::open(&spec, &MemoryBacking::Anonymous, RegionOptions::default()).unwrap()
}

/// Calls `write` with 1, 2, 3, … in a thread of its own, and `read` here, until `read` has given
/// [`SEEN`] different numbers.
fn race(write: impl Fn(u32) + Sync, mut read: impl FnMut() -> Option<u32>) {
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|threads| {
        threads.spawn(|| (1..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(&write));
        let _end = End(&over);
        let (start, mut seen) = (Instant::now(), HashSet::new());
        while seen.len() < SEEN && start.elapsed() < PATIENCE {
            seen.extend(read());
        }
        seen.len()
    });
    assert_eq!(seen, SEEN, "reader and writer did not meet");
}

/// Ends the writer, also when the reader has found something wrong.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The number in all words.
fn only(words: &[u8]) -> u32 {
    let numbers: Vec<u32> =
        words.chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]), "put together of two writes: {numbers:?}");
    numbers[0]
}

#[test]
fn key_write_values_are_whole() {
    for value_len in [12u8, 60] {
        let store =
            store(StoreKind::KeyWrite { slots: 16, value_len, redundancy: 2, keys: Default::default() });
        let reader = key_write::KeyWriteReader::new(&store).unwrap();
        let slots = hash::key_slots(&KEY, 2, 16);
        let write = |number: u32| {
            let value = number.to_be_bytes().repeat(usize::from(value_len) / 4);
            let mut slot = vec![0; 4 + value.len()];
            layout::key_write::encode_slot(&mut slot, &KEY, &value);
            for at in slots.iter() {
                store.region.write(layout::key_write::slot_offset(*at, value_len), &slot).unwrap();
            }
        };
        race(write, || {
            let (mut answers, mut values) =
                ([key_write::KeyWriteReading::default()], vec![0; usize::from(value_len)]);
            reader.query_keys(&[KEY], layout::key_write::Choice::First, &mut answers, &mut values).unwrap();
            answers[0].found.then(|| only(&values))
        });
    }
}

#[test]
fn paths_are_whole() {
    let store = store(StoreKind::Postcarding { slots: 16, hops: 14, redundancy: 2 });
    let reader = postcarding::PostcardingReader::new(&store).unwrap();
    let slots = hash::key_slots(&KEY, 2, 16);
    let write = |number: u32| {
        let mut path = layout::postcarding::PostcardPath { length: 14, ..Default::default() };
        (0..14).for_each(|hop| assert!(path.set(hop, number)));
        let mut row = [0; 64];
        layout::postcarding::encode_row(&mut row, &KEY, &path);
        for at in slots.iter() {
            store.region.write(layout::postcarding::row_offset(*at, 14), &row).unwrap();
        }
    };
    race(write, || {
        let mut answers = [postcarding::PostcardingReading::default()];
        reader.query_keys(&[KEY], &mut answers).unwrap();
        let path = answers[0].path?;
        assert!(path.is_complete());
        let hops: Vec<u8> = (0..14).flat_map(|hop| path.hop_value(hop).unwrap().to_be_bytes()).collect();
        Some(only(&hops))
    });
}

#[test]
fn batches_are_whole_and_their_own() {
    let store = store(StoreKind::Append { lists: 1, ring: 8, batch_len: 64, entry_len: 4, notify: false });
    let lists = append::Lists::new(&store).unwrap();
    let write = |number: u32| {
        let mut batch = [0; 64];
        append_layout::encode_batch(&mut batch, 0, number, 14, &number.to_be_bytes().repeat(14));
        store.region.write(append_layout::batch_offset(0, number, 8, 64), &batch).unwrap();
    };
    let mut reader = lists.open_reader(0, append::ReadStart::Oldest).unwrap();
    let mut newest = 0;
    // For the reader, no time passes: a batch that the writer is kept from completing is not given up.
    let now = Instant::now();
    race(write, || {
        let mut last = None;
        let read = reader.read(8, now, |sequence, entries| {
            assert_eq!(only(entries), sequence, "another batch's entries");
            assert!(sequence > newest, "{sequence} after {newest}");
            newest = sequence;
            last = Some(sequence);
        });
        assert_eq!(read.unwrap().damaged, 0);
        last
    });
}

#[test]
fn counters_only_rise() {
    let store = store(StoreKind::KeyIncrement { slots: 16, redundancy: 2, replicas: 1 });
    let reader = key_increment::KeyIncrementReader::new(&store).unwrap();
    let slots = hash::key_slots(&KEY, 2, 16);
    assert_ne!(slots[0], slots[1], "a key with two counters of its own");
    // Each step carries into the upper half, so a counter read in two halves shows.
    let step = (1 << 32) + 1;
    let write = |_| {
        for at in slots.iter() {
            store.region.fetch_add(layout::key_increment::counter_offset(*at), step).unwrap();
        }
    };
    let mut before = 0;
    race(write, || {
        let mut answers = [0];
        reader.query_keys(&[KEY], &mut answers).unwrap();
        assert!(answers[0] >= before, "{} after {before}", answers[0]);
        assert_eq!(answers[0] % step, 0, "two halves of different times");
        before = answers[0];
        Some((answers[0] / step) as u32)
    });
}
