//! Stores whose memory stays: counters, sketches and lists.

use std::ops::ControlFlow;

use dta_history::HistoryEntry;
use dta_memory::reader::{key_increment, sketch_merge};
use dta_proto::control::{EntriesRequest, TailResponse};
use dta_proto::layout::append;
use dta_proto::layout::key_increment as counter;
use dta_proto::layout::sketch_merge as sketch;
use dta_proto::store::Merge;
use dta_rpc::Ask;

use tokio_stream::StreamExt;

use super::*;
use crate::answers::Memory;

fn started(spec: &StoreSpec, memory: &Path, history: &Path) -> Bench {
    let memory = MemoryBacking::Directory(memory.to_owned());
    Bench::start_with(std::slice::from_ref(spec), &memory, keep(history), EVERY)
}

fn count(store: &Store, key: &Key) -> u64 {
    let mut answers = [0];
    key_increment::KeyIncrementReader::new(store).unwrap().query_keys(&[*key], &mut answers).unwrap();
    answers[0]
}

#[test]
fn counters_are_asked_as_of_the_end_of_each_epoch_and_go_on() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let spec = store(1, "bytes", StoreKind::KeyIncrement { slots: 1 << 10, redundancy: 2, replicas: 1 });
    let mut total = 0;
    let mut known: Vec<(u64, u64)> = Vec::new();
    for life in 0..2 {
        let bench = started(&spec, memory.path(), history.path());
        let live = bench.stores.get("bytes").unwrap();
        assert_eq!(count(&live, &key(1)), total, "nothing is zeroed");
        for _ in 0..3 {
            let before = bench.kept("bytes").len();
            until("an epoch ends", || bench.kept("bytes").len() > before);
            // Early in an epoch.
            for slot in hash::key_slots(&key(1), 2, 1 << 10).iter() {
                live.region.fetch_add(counter::counter_offset(*slot), 1 << 40).unwrap();
            }
            total += 1 << 40;
            let at = now();
            assert_eq!(
                count(&bench.epochs.store_at_moment("bytes", &[key(1)], at).unwrap().0, &key(1)),
                total,
                "live"
            );
            known.push((at, total));
            until("it is written", || bench.kept("bytes").last().unwrap().flipped_from > at);
        }
        for (at, total) in &known {
            let (then, _) = bench.epochs.store_at_moment("bytes", &[key(1), key(2)], *at).unwrap();
            assert_eq!((count(&then, &key(1)), count(&then, &key(2))), (*total, 0), "at {at} in life {life}");
        }
        assert_eq!((bench.count("epochs.failed"), bench.count("epochs.lost")), (0, 0));
        let epochs = bench.kept("bytes");
        assert!(
            epochs
                .windows(2)
                .all(|pair| pair[1].opened <= pair[0].flipped_to && pair[1].opened >= pair[0].flipped_from)
        );
        bench.end();
    }
}

#[test]
fn sketches_are_kept_once_they_are_complete_or_about_to_be_replaced() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (columns, rows, epochs) = (64, 3, 4);
    let kind = StoreKind::SketchMerge { columns, rows, epochs, merge: Merge::Sum, expected: 2 };
    let spec = store(1, "packets", kind);
    let put = |bench: &Bench, epoch: u32, merged: u16| {
        let live = bench.stores.get("packets").unwrap();
        for column in 0..columns {
            let cells = [epoch * 1000 + column, 7, u32::MAX, 0];
            let mut bytes = [0; 32];
            sketch::encode_column(
                &mut bytes,
                rows,
                &sketch::SketchColumn { epoch, merged, expected: 2, cells },
            );
            live.region.write(sketch::column_offset(epoch, column, epochs, columns, rows), &bytes).unwrap();
        }
    };
    let sketches = |bench: &Bench| -> Vec<(u32, bool)> {
        bench.kept("packets").iter().map(|kept| (kept.sketch.unwrap(), kept.confirmed)).collect()
    };
    let bench = started(&spec, memory.path(), history.path());
    put(&bench, 10, 1);
    put(&bench, 11, 2);
    until("the complete one is written", || sketches(&bench) == [(11, true)]);
    // The other one began with it, and is still open.
    let listed = bench.epochs.list_epochs("packets", &span(0, 0)).unwrap().epochs;
    assert_eq!(listed.iter().map(Epoch::state).collect::<Vec<_>>(), [EpochState::Open, EpochState::Kept]);
    put(&bench, 13, 2);
    until("10 is about to be replaced", || sketches(&bench) == [(11, true), (10, false), (13, true)]);
    bench.end();
    // What is in both the ring and the history is not written again.
    let bench = started(&spec, memory.path(), history.path());
    put(&bench, 14, 2);
    until("the next is written", || sketches(&bench).len() > 3);
    assert_eq!(sketches(&bench)[3..], [(14, true)]);
    let table = bench.history("packets");
    for (number, epoch) in [(1, 11), (2, 10), (3, 13), (4, 14)] {
        let mut rows_of = Vec::new();
        table
            .scan_epoch(number, |column, bytes| {
                rows_of.push((column, sketch::decode_column(bytes, rows).unwrap()))
            })
            .unwrap();
        assert_eq!(rows_of.len(), columns as usize);
        let is_right = |(column, of): &(u64, sketch::SketchColumn)| {
            of.epoch == epoch && of.cells == [epoch * 1000 + *column as u32, 7, u32::MAX, 0]
        };
        assert!(rows_of.iter().all(is_right), "{rows_of:?}");
    }
    // The answer at a moment within this epoch.
    let at = table.kept_epochs().unwrap()[1].epoch.flipped_to;
    let (keys, mut answers) = ([key(1), key(2)], [sketch_merge::SketchMergeReading::default(); 2]);
    let kept = table.epoch_at_moment(at).unwrap().unwrap().epoch.sketch.unwrap();
    let (then, _) = bench.epochs.store_at_moment("packets", &keys, at).unwrap();
    sketch_merge::SketchMergeReader::new(&then).unwrap().query_keys(&keys, kept, &mut answers).unwrap();
    assert!(answers.iter().all(|answer| answer.estimate.is_some()), "{answers:?}");
    // Reporters that start again reuse numbers.
    for epoch in [30, 31, 32, 33, 11] {
        put(&bench, epoch, 2);
        until("it is written", || sketches(&bench).last().unwrap().0 == epoch);
    }
    assert_eq!(bench.count("epochs.failed"), 0);
    bench.end();
}

/// A store of four lists, with three entries in a batch.
fn events(ring: u64) -> StoreSpec {
    store(1, "events", StoreKind::Append { lists: 4, ring, batch_len: 32, entry_len: 8, notify: false })
}

/// Writes a batch, as a NIC does.
fn append(bench: &Bench, list: u32, sequence: u32) {
    let live = bench.stores.get("events").unwrap();
    let StoreKind::Append { ring, .. } = live.spec.kind else { panic!() };
    let entries: Vec<u8> = (0..3)
        .flat_map(|n| [[list; 1], [sequence * 3 + n; 1]])
        .flatten()
        .flat_map(u32::to_be_bytes)
        .collect();
    let mut batch = [0; 32];
    append::encode_batch(&mut batch, list, sequence, 3, &entries);
    live.region.write(append::batch_offset(list, sequence, ring, 32), &batch).unwrap();
}

/// An epoch, the sequences of a list's batches in it, and the batches it lacks: overwritten and missing.
type ListIn = (Epoch, Vec<u32>, [u64; 2]);

/// The answer about a list in a span.
fn then(bench: &Bench, list: u32, since: u64, until: u64) -> Result<Vec<ListIn>, String> {
    let memory = Memory::new(bench.stores.clone()).with_epochs(bench.epochs.clone());
    let request = EntriesRequest { store: "events".into(), list, since, until };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let messages: Result<Vec<TailResponse>, _> =
        runtime.block_on(async { memory.stream_entries(request).await?.collect().await });
    let mut all: Vec<ListIn> = Vec::new();
    for message in messages.map_err(|error| error.to_string())? {
        if let Some(epoch) = message.epoch {
            assert!(message.entries.is_empty());
            all.push((epoch, Vec::new(), [0; 2]));
        }
        let (_, sequences, [overwritten, missing]) = all.last_mut().expect("an epoch first");
        *overwritten += message.overwritten_batches;
        *missing += message.missing_batches;
        for batch in message.entries.chunks(3) {
            let values = batch.iter().map(|entry| {
                assert_eq!(entry[..4], list.to_be_bytes());
                u32::from_be_bytes(entry[4..].try_into().unwrap())
            });
            let values: Vec<u32> = values.collect();
            sequences.push(values[0] / 3);
            assert_eq!(values, [0, 1, 2].map(|n| values[0] / 3 * 3 + n));
        }
    }
    Ok(all)
}

#[test]
fn entries_of_a_moment_are_those_of_its_epoch_in_the_ring_or_in_the_history() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bench = started(&events(1024), memory.path(), history.path());
    // Some batches in each of several epochs; 500, which would be the first of an epoch, never comes.
    let mut next = 1;
    for _ in 0..3 {
        let before = bench.kept("events").len();
        (next..next + 300)
            .filter(|sequence| *sequence != 601)
            .for_each(|sequence| append(&bench, 3, sequence));
        append(&bench, 1, next / 300 + 1);
        next += 300;
        until("an epoch ends", || bench.kept("events").len() > before + 1);
    }
    let all = then(&bench, 3, 0, 0).unwrap();
    let sequences: Vec<u32> = all.iter().flat_map(|(_, sequences, _)| sequences).copied().collect();
    assert_eq!(sequences, (1..=900).filter(|sequence| *sequence != 601).collect::<Vec<_>>());
    assert_eq!(all.iter().map(|(.., [overwritten, _])| overwritten).sum::<u64>(), 0);
    let lacking: Vec<&ListIn> = all.iter().filter(|(.., [_, missing])| *missing > 0).collect();
    assert!(lacking.len() == 1 && lacking[0].1[0] == 602 && lacking[0].2[1] == 1, "{lacking:?}");
    assert!(all.iter().map(|(epoch, ..)| epoch.opened).is_sorted());
    assert_eq!(all.last().unwrap().0.state(), EpochState::Open);
    let with_entries: Vec<_> = all.iter().filter(|(_, sequences, _)| !sequences.is_empty()).collect();
    assert!(with_entries.len() >= 3);
    // Each answers at its moments from the history, also once that is compacted and after a restart.
    let each = |bench: &Bench| {
        for (epoch, sequences, lacks) in all.iter().filter(|(epoch, ..)| epoch.state() == EpochState::Kept) {
            let at = epoch.flipped_from - 1;
            let of_moment = then(bench, 3, at, at + 1).unwrap();
            assert_eq!(of_moment, [(epoch.clone(), sequences.clone(), *lacks)], "at {at}");
        }
    };
    each(&bench);
    bench.history("events").compact_span(0..u64::MAX).unwrap().unwrap();
    each(&bench);
    assert_eq!(
        then(&bench, 1, 0, 0).unwrap().iter().flat_map(|(_, of, _)| of).collect::<Vec<_>>(),
        [&1, &2, &3]
    );
    // Entries of other lists do not appear in this one, and no entries is not the same as not kept.
    assert!(then(&bench, 2, 0, 0).unwrap().iter().all(|(_, sequences, _)| sequences.is_empty()));
    let first = all[0].0.opened;
    assert!(then(&bench, 3, 1, first - 1).unwrap_err().contains("the oldest epoch kept"));
    assert!(then(&bench, 3, now() + 60_000, 0).unwrap_err().contains("is in the future"));
    assert!(then(&bench, 4, 0, 0).unwrap_err().contains("has lists 0 to 3"));
    bench.end();
    let bench = started(&events(1024), memory.path(), history.path());
    each(&bench);
    bench.end();
}

#[test]
fn what_the_ring_of_an_open_epoch_no_longer_has_is_counted_until_it_is_written() {
    let history = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let bench = Bench::start_with(&[events(64)], &MemoryBacking::Anonymous, keep(history.path()), hour);
    (1..=20).for_each(|sequence| append(&bench, 0, sequence));
    let [(epoch, sequences, lacks)] = &then(&bench, 0, 0, 0).unwrap()[..] else { panic!() };
    assert_eq!(
        (epoch.state(), &sequences[..], *lacks),
        (EpochState::Open, &(1..=20).collect::<Vec<_>>()[..], [0, 0])
    );
    // What is being read appears in no answer before it is written.
    std::thread::sleep(Duration::from_secs(2));
    (21..=100).for_each(|sequence| append(&bench, 0, sequence));
    let [(_, sequences, lacks)] = &then(&bench, 0, now(), 0).unwrap()[..] else { panic!() };
    assert_eq!((&sequences[..], *lacks), (&(37..=100).collect::<Vec<_>>()[..], [36, 0]));
    // The epoch ends with the collector.
    bench.end();
    let table = EpochTable::open_existing(history.path(), "events").unwrap();
    let mut kept = Vec::new();
    let each = |entry: HistoryEntry<'_>| {
        kept.push(entry.sequence);
        ControlFlow::Continue(())
    };
    table.scan_entries(1, each).unwrap();
    kept.dedup();
    let lost = table.kept_epochs().unwrap()[0].epoch.waterfall["overwritten"].as_u64().unwrap();
    assert_eq!(kept.len() as u64, 100 - lost, "{kept:?}");
    // All of them, unless the reading thread did not run in these seconds.
    assert!(lost == 36 || kept[..20].iter().copied().eq(1..=20), "{kept:?}");
}

#[test]
fn a_collector_that_stops_after_a_failure_writes_its_lists() {
    let history = tempfile::tempdir().unwrap();
    let spec = events(64);
    let bench = Bench::start_with(&[spec], &MemoryBacking::Anonymous, keep(history.path()), EVERY);
    // For a while, a file is in the place of the table.
    let (table, away) = (history.path().join("events"), history.path().join("away"));
    std::fs::write(&away, "").unwrap();
    exchange(&table, &away);
    append(&bench, 0, 1);
    until("it was tried", || bench.count("epochs.failed") >= 1);
    exchange(&table, &away);
    bench.end();
    let table = EpochTable::open_existing(history.path(), "events").unwrap();
    let mut kept = Vec::new();
    for epoch in table.kept_epochs().unwrap().iter() {
        let each = |entry: HistoryEntry<'_>| {
            kept.push(entry.sequence);
            ControlFlow::Continue(())
        };
        table.scan_entries(epoch.epoch.number, each).unwrap();
    }
    kept.dedup();
    assert_eq!(kept, [1]);
}

#[test]
fn entries_of_lists_are_kept_once_each_across_restarts_and_what_was_overwritten_is_counted() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (spec, put) = (events(64), append);
    // Sequences and entries of a list over all epochs.
    let kept = |bench: &Bench, list: u32| -> Vec<(u32, u16, u32)> {
        let mut all = Vec::new();
        for epoch in bench.kept("events") {
            let mut each = |entry: HistoryEntry<'_>| {
                if entry.list == list {
                    assert_eq!(entry.bytes[..4], list.to_be_bytes());
                    let value = u32::from_be_bytes(entry.bytes[4..].try_into().unwrap());
                    all.push((entry.sequence, entry.number, value));
                }
                ControlFlow::Continue(())
            };
            bench.history("events").scan_entries(epoch.number, &mut each).unwrap();
        }
        all
    };
    let expected = |sequences: std::ops::RangeInclusive<u32>| -> Vec<(u32, u16, u32)> {
        sequences.flat_map(|sequence| (0..3).map(move |n| (sequence, n as u16, sequence * 3 + n))).collect()
    };
    let bench = started(&spec, memory.path(), history.path());
    for sequence in 1..=20 {
        put(&bench, 0, sequence);
        put(&bench, 3, sequence);
        std::thread::sleep(EVERY / 15);
    }
    until("all is written", || kept(&bench, 0).len() == 60 && kept(&bench, 3).len() == 60);
    put(&bench, 3, 21);
    bench.end();
    // Written while nobody reads: to one list within a ring, to the other beyond it.
    let stores = ServedStores::open(
        std::slice::from_ref(&spec),
        &MemoryBacking::Directory(memory.path().to_owned()),
        RegionOptions::default(),
    );
    drop(stores.unwrap());
    let bench = started(&spec, memory.path(), history.path());
    (22..=40).for_each(|sequence| put(&bench, 3, sequence));
    until("it goes on", || kept(&bench, 3) == expected(1..=40));
    assert_eq!(kept(&bench, 0), expected(1..=20), "nothing twice");
    assert_eq!(bench.count("epochs.overwritten"), 0);
    (41..=400).for_each(|sequence| put(&bench, 0, sequence));
    until("what is there is written", || kept(&bench, 0).last().unwrap().0 == 400);
    let lost = bench
        .kept("events")
        .iter()
        .map(|epoch| epoch.waterfall["overwritten"].as_u64().unwrap())
        .sum::<u64>();
    assert!(lost > 0);
    until("it is counted", || bench.count("epochs.overwritten") == lost);
    let missing =
        bench.kept("events").iter().map(|epoch| epoch.waterfall["missing"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(kept(&bench, 0).len() as u64, 3 * (400 - lost - missing));
    assert_eq!(bench.count("epochs.failed"), 0);
    bench.end();
}
