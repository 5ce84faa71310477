//! Asks every reader, and compares.

use std::time::{Duration, Instant};

use dta_memory::reader::{append, key_increment, key_write, postcarding, sketch_merge};
use dta_proto::key::Key;
use dta_proto::layout::key_write::{Choice, CombinedCopies, combine_copies};
use dta_proto::layout::postcarding::PostcardPath;
use dta_proto::layout::sketch_merge::columns_of;
use dta_proto::program::Transport;

use crate::reports::{
    ALARMS, COLUMNS, COUNTERS, EPOCHS, EVENTS, LISTS, PATHS, ROWS, Reports, SKETCH, SKETCHERS, VALUE_LEN,
    VALUES,
};
use crate::truth::{Column, Truth};
use crate::world::World;

/// Compares every answer with the truth.
pub(crate) fn compare(world: &World, reports: &Reports, truth: &Truth) {
    values(world, &reports.value_keys, truth);
    let events = entries(world, EVENTS, truth);
    let alarms = entries(world, ALARMS, truth);
    for batches in [&events, &alarms] {
        assert!(batches.iter().all(|count| *count > 10), "{events:?} and {alarms:?} batches");
    }
    woken(world, &alarms);
    counters(world, &reports.counter_keys, truth);
    paths(world, &reports.path_keys, truth);
    sketch(world, reports, truth);
}

fn values(world: &World, keys: &[Key], truth: &Truth) {
    let reader = key_write::KeyWriteReader::new(world.store(VALUES)).expect("a key-write store");
    for policy in [Choice::First, Choice::Plurality, Choice::AtLeast(2)] {
        let mut answers = vec![key_write::KeyWriteReading::default(); keys.len()];
        let mut values = vec![0; keys.len() * VALUE_LEN];
        reader.query_keys(keys, policy, &mut answers, &mut values).unwrap();
        let mut found = 0;
        for ((key, answer), value) in keys.iter().zip(&answers).zip(values.chunks_exact(VALUE_LEN)) {
            let copies = truth.values.get(key).copied().unwrap_or_default();
            let (expected, bytes) = match combine_copies(policy, &copies) {
                CombinedCopies::Absent => (key_write::KeyWriteReading::default(), [0; VALUE_LEN]),
                CombinedCopies::Undecided { agreeing, differing } => {
                    (key_write::KeyWriteReading { found: false, agreeing, differing }, [0; VALUE_LEN])
                }
                CombinedCopies::Found { value, agreeing, differing } => {
                    (key_write::KeyWriteReading { found: true, agreeing, differing }, value)
                }
            };
            assert_eq!((*answer, value), (expected, &bytes[..]), "{key:?} by {policy:?}");
            found += usize::from(answer.found);
        }
        assert!(found > 100 && found <= truth.values.len(), "{found} keys by {policy:?}");
    }
}

/// Compares all lists of a store. Returns how many batches there were in each.
fn entries(world: &World, id: u16, truth: &Truth) -> Vec<u64> {
    let lists = append::Lists::new(world.store(id)).expect("an append store");
    let mut batches = Vec::new();
    for list in 0..LISTS {
        let mut count = 0;
        let mut reader = lists.open_reader(list, append::ReadStart::At(1)).expect("a list of the store");
        let (mut read, mut sequence) = (Vec::new(), 0);
        // What is missing is given up when time has passed; here it passes as fast as we like.
        let mut now = Instant::now();
        loop {
            let progress = reader.read(u64::MAX, now, |number, entries| {
                assert!(number > sequence, "{number} after {sequence}");
                sequence = number;
                read.extend(entries.chunks_exact(lists.entry_len()).map(<[u8]>::to_vec));
            });
            let progress = progress.unwrap();
            count += progress.batches;
            assert_eq!((progress.overwritten, progress.damaged), (0, 0));
            if reader.caught_up().unwrap() {
                break;
            }
            now += Duration::from_secs(1);
        }
        let expected = &truth.entries[&(id, list)];
        assert_eq!(&read, expected, "list {list} of store {id}");
        batches.push(count);
    }
    batches
}

/// Each batch of alarms woke the readers with its list's number, once. On UC a frame that comes
/// twice is written twice, and wakes twice.
fn woken(world: &World, batches: &[u64]) {
    let uc = world.writes == Transport::Uc;
    let again = if uc { world.frame_faults.fault_counts().duplicated } else { 0 };
    for (list, batches) in (0..).zip(batches) {
        let woken = world.woken.iter().filter(|value| **value == list).count() as u64;
        assert!((*batches..=batches + again).contains(&woken), "list {list}: {woken} for {batches} batches");
    }
    let all = world.woken.len() as u64;
    assert!(all <= batches.iter().sum::<u64>() + again, "{all} for {batches:?}");
}

fn counters(world: &World, keys: &[Key], truth: &Truth) {
    let reader =
        key_increment::KeyIncrementReader::new(world.store(COUNTERS)).expect("a key-increment store");
    let mut answers = vec![0; keys.len()];
    reader.query_keys(keys, &mut answers).expect("slots of the store");
    for (key, answer) in keys.iter().zip(&answers) {
        assert_eq!(*answer, truth.sums.get(key).copied().unwrap_or(0), "{key:?}");
    }
    assert!(truth.sums.len() > 90 && truth.sums.len() < keys.len());
}

fn paths(world: &World, keys: &[Key], truth: &Truth) {
    let reader = postcarding::PostcardingReader::new(world.store(PATHS)).expect("a postcarding store");
    let mut answers = vec![postcarding::PostcardingReading::default(); keys.len()];
    reader.query_keys(keys, &mut answers).expect("rows of the store");
    let (mut whole, mut cut) = (0, 0);
    for (key, answer) in keys.iter().zip(&answers) {
        let (path, copies) = truth.paths.get(key).copied().unwrap_or((PostcardPath::default(), 0));
        let expected = postcarding::PostcardingReading {
            path: (copies > 0).then_some(path),
            agreeing: copies,
            differing: 0,
        };
        assert_eq!(*answer, expected, "{key:?}");
        whole += usize::from(answer.path.is_some_and(|path| path.is_complete()));
        cut += usize::from(answer.path.is_some_and(|path| !path.is_complete()));
    }
    assert!(whole > 50 && cut > 2, "{whole} whole paths, {cut} cut ones");
}

fn sketch(world: &World, reports: &Reports, truth: &Truth) {
    let reader = sketch_merge::SketchMergeReader::new(world.store(SKETCH)).expect("a sketch-merge store");
    let mut unknown = 0;
    for epoch in EPOCHS {
        for column in 0..COLUMNS {
            let held =
                reader.read_column(epoch, column).expect("a column of the store").expect("nobody writes now");
            match truth.columns.get(&(epoch, column)) {
                Some(Column { cells, merged }) => {
                    assert_eq!((held.epoch, held.merged), (epoch, *merged), "column {column}");
                    assert_eq!(held.expected, SKETCHERS);
                    assert_eq!(held.cells[..usize::from(ROWS)], *cells, "column {column} of {epoch}");
                }
                None => assert_ne!(held.epoch, epoch, "column {column} was not reported, or did not come"),
            }
        }
        // Any keys will do.
        let keys = &reports.value_keys;
        let mut answers = vec![sketch_merge::SketchMergeReading::default(); keys.len()];
        reader.query_keys(keys, epoch, &mut answers).expect("columns of the store");
        for (key, answer) in keys.iter().zip(&answers) {
            let at = columns_of(key, ROWS, COLUMNS);
            let columns: Option<Vec<&Column>> =
                at.iter().map(|column| truth.columns.get(&(epoch, *column as u32))).collect();
            let estimate = columns.as_ref().map(|columns| {
                let cells = columns.iter().enumerate().map(|(row, column)| column.cells[row]);
                cells.min().expect("a cell of each row")
            });
            let merged = columns.map_or(0, |columns| columns.iter().map(|c| c.merged).min().unwrap_or(0));
            assert_eq!((answer.estimate, answer.merged), (estimate, merged), "{key:?} in {epoch}");
            unknown += usize::from(estimate.is_none());
        }
    }
    // Some columns were never reported.
    assert!(unknown > 0 && unknown < EPOCHS.len() * reports.value_keys.len());
}
