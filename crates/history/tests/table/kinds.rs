//! Lists, and what makes no sense for which kind of store.

use std::ops::ControlFlow;

use super::*;

fn lists() -> StoreSpec {
    store(StoreKind::Append { lists: 8, ring: 64, batch_len: 64, entry_len: 12, notify: false })
}

/// Entries of some lists, as they came: list, sequence, number, entry.
type Came = Vec<(u32, u32, u16, [u8; 12])>;

fn came(epoch: u32, many: u32) -> Came {
    let entry = |n: u32| {
        let (list, sequence) = (n * 5 % 7, epoch * 1_000_000 + n);
        (
            list,
            sequence,
            (n % 4) as u16,
            [list, sequence, u32::MAX].map(u32::to_be_bytes).as_flattened().try_into().unwrap(),
        )
    };
    (1..=many).map(entry).collect()
}

fn push(table: &EpochTable, epoch: &HistoryEpoch, came: &Came) {
    let mut flush = table.begin_epoch(epoch.number).unwrap();
    for (list, sequence, number, bytes) in came {
        flush.push(HistoryEntry { list: *list, sequence: *sequence, number: *number, bytes }).unwrap();
    }
    assert_eq!(flush.finish(epoch).unwrap().rows, came.len() as u64);
}

fn entries(table: &EpochTable, epoch: u64) -> Came {
    let mut all = Came::new();
    let each = |entry: HistoryEntry<'_>| {
        all.push((entry.list, entry.sequence, entry.number, entry.bytes.try_into().unwrap()));
        ControlFlow::Continue(())
    };
    table.scan_entries(epoch, each).unwrap();
    all
}

#[test]
fn entries_come_back_as_they_came_also_compacted_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &lists()).unwrap();
    // More than a row group, an empty one, and more than a batch.
    let all = [came(0, 300_000), came(1, 0), came(2, 20_000), came(3, 10)];
    for (number, came) in (0..).zip(&all) {
        let lists = vec![(3, number as u32)];
        push(&table, &HistoryEpoch { lists, ..epoch(number) }, came);
    }
    assert_eq!(
        table.compaction_spans(4 * MINUTE).unwrap(),
        BTreeMap::from([(0, Spanned { files: 4, epochs: 4 })])
    );
    for compacted in [false, true] {
        if compacted {
            assert_eq!(table.compact_span(0..3 * MINUTE).unwrap().unwrap().rows, 320_000);
            assert_eq!(table.compaction_spans(4 * MINUTE).unwrap()[&0], Spanned { files: 2, epochs: 4 });
        }
        for table in [&table, &EpochTable::open(dir.path(), &lists()).unwrap()] {
            for (number, came) in (0..).zip(&all) {
                assert!(entries(table, number) == *came, "epoch {number}");
            }
            let mut some = 0;
            let three = |_: HistoryEntry<'_>| {
                some += 1;
                if some < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            table.scan_entries(2, three).unwrap();
            assert_eq!(some, 3);
            assert_eq!(table.epoch_at_moment(MINUTE / 2).unwrap().unwrap().epoch.lists, [(3, 0)]);
        }
    }
}

#[test]
fn what_makes_no_sense_for_a_kind_of_store_is_refused() {
    let told = |of: Result<(), HistoryError>| of.unwrap_err().to_string();
    let dir = tempfile::tempdir().unwrap();
    let of_lists = EpochTable::open(dir.path(), &lists()).unwrap();
    push(&of_lists, &epoch(0), &came(0, 10));
    push(&of_lists, &epoch(1), &came(1, 10));
    let mut flush = of_lists.begin_epoch(2).unwrap();
    assert_eq!(
        told(flush.write_slots(0, &[0; 64])),
        "store `last`: append stores have no slots that could be written: push their entries"
    );
    let entry = |list, bytes| HistoryEntry { list, sequence: 1, number: 0, bytes };
    assert!(
        told(flush.push(entry(8, &[0; 12])))
            .contains("for list 8, in a store of 8 lists with entries of 12 bytes")
    );
    assert!(told(flush.push(entry(7, &[0; 8]))).contains("an entry of 8 bytes"));
    assert!(
        told(of_lists.read_slots(0, &[1], &mut [0; 20])).contains("have no slots that could be looked up")
    );
    let coarse = |table: &EpochTable| told(table.coarsen_span(0..9 * MINUTE, |_| unreachable!()).map(drop));
    assert!(!of_lists.can_be_coarse() && coarse(&of_lists).contains("append stores cannot be made coarser"));

    let dir = tempfile::tempdir().unwrap();
    let of_sketches = EpochTable::open(dir.path(), &sketch(2)).unwrap();
    write(&of_sketches, &HistoryEpoch { sketch: Some(77), ..epoch(0) }, &model(&sketch(2), 1, 0)).unwrap();
    assert_eq!(of_sketches.epoch_at_moment(0).unwrap().unwrap().epoch.sketch, Some(77));
    assert!(coarse(&of_sketches).contains("sketch-merge stores cannot be made coarser"));
    let mut flush = of_sketches.begin_epoch(1).unwrap();
    assert!(told(flush.write_slots(512, &[1; 16])).contains("in a store of 512"));
    assert!(
        told(flush.push(entry(0, &[0; 12])))
            .contains("sketch-merge stores have no entries that could be written")
    );
    assert!(told(of_sketches.scan_entries(0, |_| unreachable!())).contains("have no entries: scan"));
}

#[test]
fn of_two_epochs_of_one_moment_the_newer_is_found_and_one_from_the_future_keeps_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &key_write(64, 4)).unwrap();
    let rows = model(table.store_spec(), 2, 1);
    // A clock that jumped ahead by an hour and back: the minutes 3 to 5 are shown twice.
    for (number, minute) in [1, 2, 3, 64, 65, 4, 3, 4, 5].into_iter().enumerate() {
        let epoch = HistoryEpoch { number: number as u64 + 1, ..epoch(minute) };
        write(&table, &epoch, &rows).unwrap();
    }
    let at =
        |minute: u64| table.epoch_at_moment(minute * MINUTE + 30_000).unwrap().map(|kept| kept.epoch.number);
    assert_eq!([1, 3, 4, 5, 64, 6].map(at), [Some(1), Some(7), Some(8), Some(9), Some(4), None]);
    let keep = Retention { keep: Some(Duration::from_secs(120)), keep_bytes: None };
    assert_eq!(table.apply_retention(&keep, 7 * MINUTE).unwrap().epochs, [1, 2, 3, 7]);
    let one = table.data_bytes() / 5;
    let keep = Retention { keep: None, keep_bytes: Some(3 * one) };
    assert_eq!(
        table.apply_retention(&keep, 7 * MINUTE).unwrap().epochs,
        [4, 5],
        "those of the future are not kept for ever"
    );
}
