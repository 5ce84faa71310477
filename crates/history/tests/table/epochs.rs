//! What is written is read: by moment, by slot and as a whole, after a restart and beside others.

use super::*;

#[test]
fn epochs_are_found_by_moment_and_slots_in_them_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(1 << 12, 12);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    assert_eq!(table.kept_epochs().unwrap(), []);
    let rows: Vec<Model> = (0..3).map(|number| model(&spec, 3, number)).collect();
    for (number, rows) in rows.iter().enumerate() {
        let written = write(&table, &epoch(number as u64), rows).unwrap();
        assert_eq!(written.rows, rows.len() as u64);
        assert!(written.bytes > 0);
    }
    // Another process sees each epoch as soon as it is committed.
    let beside = EpochTable::open_existing(dir.path(), "last").unwrap();
    assert_eq!(beside.store_spec(), &spec);
    write(&table, &epoch(3), &Model::new()).unwrap();
    for table in [&table, &beside, &EpochTable::open(dir.path(), &spec).unwrap()] {
        let kept = table.kept_epochs().unwrap();
        assert_eq!(kept.iter().map(|kept| kept.epoch.clone()).collect::<Vec<_>>(), [0, 1, 2, 3].map(epoch));
        let counts = rows.iter().map(|rows| rows.len() as u64).chain([0]);
        assert_eq!(kept.iter().map(|kept| kept.rows).collect::<Vec<_>>(), counts.collect::<Vec<_>>());
        let at = |moment| table.epoch_at_moment(moment).unwrap().map(|kept| kept.epoch.number);
        assert_eq!(at(MINUTE / 2), Some(0));
        // While the writers move, the newer epoch is the one that is asked.
        assert_eq!(at(MINUTE + 10), Some(1));
        assert_eq!(at(4 * MINUTE + 20), Some(3));
        assert_eq!(at(4 * MINUTE + 21), None);
        for (number, rows) in rows.iter().enumerate() {
            check_slots(table, number as u64, rows, &[7, 4095, 0, 7, 1024, 1025]);
            check_slots(table, number as u64, rows, &(0..spec.element_count()).collect::<Vec<_>>());
            assert_eq!(scanned(table, number as u64), *rows);
        }
        check_slots(table, 3, &Model::new(), &[0, 1]);
        assert!(matches!(table.read_slots(4, &[], &mut []), Err(HistoryError::NotKept(4))));
    }
}

#[test]
fn an_epoch_that_was_sealed_late_does_not_answer_for_the_time_after_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &key_write(64, 4)).unwrap();
    write(&table, &HistoryEpoch { flipped_to: 4 * MINUTE, ..epoch(0) }, &Model::new()).unwrap();
    write(&table, &HistoryEpoch { flipped_to: 2 * MINUTE, ..epoch(1) }, &Model::new()).unwrap();
    let at = |moment| table.epoch_at_moment(moment).unwrap().map(|kept| kept.epoch.number);
    assert_eq!([MINUTE - 1, MINUTE, 2 * MINUTE].map(at), [Some(0), Some(1), Some(1)]);
    // Its collector was down.
    assert_eq!([2 * MINUTE + 1, 3 * MINUTE].map(at), [None, None]);
}

#[test]
fn many_row_groups_and_pages_are_looked_up_in_one_file_and_in_a_compacted_one() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(1 << 19, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let rows: Vec<Model> = (0..2).map(|number| model(&spec, 4 / (number + 1), number)).collect();
    for (number, rows) in rows.iter().enumerate() {
        write(&table, &epoch(number as u64), rows).unwrap();
    }
    let slots: Vec<u64> =
        (0..spec.element_count()).step_by(97).chain([0, spec.element_count() - 1]).collect();
    for compacted in [false, true] {
        if compacted {
            let made = table.compact_span(0..2 * MINUTE).unwrap().unwrap();
            assert_eq!((made.files, made.rows), (2, rows.iter().map(|rows| rows.len() as u64).sum()));
            assert_eq!(table.compact_span(0..2 * MINUTE).unwrap(), None);
            // Also those whose rows end on another page than they begin.
            check_slots(&table, 1, &rows[1], &(0..spec.element_count()).collect::<Vec<_>>());
        }
        for (number, rows) in rows.iter().enumerate() {
            check_slots(&table, number as u64, rows, &slots);
            check_slots(&table, number as u64, rows, &slots[1000..1001]);
            assert_eq!(scanned(&table, number as u64), *rows);
        }
    }
    // Several epochs at once, of one file and of another.
    write(&table, &epoch(2), &rows[0]).unwrap();
    let mut out = vec![0xaa; 4 * slots.len() * 8];
    table.read_slot_series(&[1, 2, 0, 1], &slots, &mut out).unwrap();
    let mut elements = out.chunks_exact(8);
    for rows in [1, 0, 0, 1].map(|number| &rows[number]) {
        for slot in &slots {
            assert_eq!(
                elements.next().unwrap(),
                rows.get(slot).map_or(&[0; 8][..], |element| element),
                "{slot}"
            );
        }
    }
    assert!(matches!(
        table.read_slot_series(&[1, 5], &slots, &mut out[..2 * slots.len() * 8]),
        Err(HistoryError::NotKept(5))
    ));
    let again = EpochTable::open(dir.path(), &spec).unwrap();
    check_slots(&again, 1, &rows[1], &slots);
    assert_eq!(again.kept_epochs().unwrap().len(), 3);
    assert_eq!(again.epoch_at_moment(MINUTE / 2).unwrap().unwrap().epoch, epoch(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_elements_come_back_exactly(
        kind in 0usize..9, every in 1u64..9, seed: u64, cuts in prop::collection::vec(0u64..512, 0..4),
        slots in prop::collection::vec(0u64..512, 0..40), compact: bool,
    ) {
        let spec = match kind {
            0..=3 => key_write(512, [4, 12, 28, 60][kind]),
            4 | 5 => store(StoreKind::Postcarding { slots: 512, hops: [6, 14][kind - 4], redundancy: 1 }),
            6 => store(StoreKind::KeyIncrement { slots: 512, redundancy: 1, replicas: 1 }),
            _ => sketch([2, 3][kind - 7]),
        };
        let dir = tempfile::tempdir().unwrap();
        let table = EpochTable::open(dir.path(), &spec).unwrap();
        let all = [model(&spec, every, seed), model(&spec, every, !seed)];
        let len = spec.element_len() as usize;
        for (number, rows) in all.iter().enumerate() {
            // A region, handed over in pieces.
            let mut region = vec![0; 512 * len];
            for (slot, element) in rows {
                region[*slot as usize * len..][..len].copy_from_slice(element);
            }
            let mut cuts: Vec<u64> = cuts.iter().copied().chain([0, 512]).collect();
            cuts.sort_unstable();
            let mut flush = table.begin_epoch(number as u64).unwrap();
            for piece in cuts.windows(2) {
                flush.write_slots(piece[0], &region[piece[0] as usize * len..piece[1] as usize * len]).unwrap();
            }
            flush.finish(&epoch(number as u64)).unwrap();
        }
        if compact {
            table.compact_span(0..10 * MINUTE).unwrap().unwrap();
        }
        for (number, rows) in all.iter().enumerate() {
            check_slots(&table, number as u64, rows, &slots);
            prop_assert_eq!(&scanned(&table, number as u64), rows);
        }
    }
}

#[test]
fn what_is_handed_over_wrongly_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &key_write(64, 4)).unwrap();
    let mut flush = table.begin_epoch(1).unwrap();
    flush.write_slots(8, &[1; 16]).unwrap();
    for (first, bytes, problem) in [
        (9, 8, "slot 9 comes after slot 9"),
        (10, 12, "12 bytes are no whole elements of 8"),
        (63, 16, "2 elements from slot 63 on, in a store of 64"),
        (u64::MAX, 8, "in a store of 64"),
    ] {
        let error = flush.write_slots(first, &vec![1; bytes]).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    assert!(flush.finish(&epoch(2)).unwrap_err().to_string().contains("it ends as epoch 2"));
    assert_eq!(data_files(&table), Vec::<String>::new());
    write(&table, &epoch(1), &Model::new()).unwrap();
    assert!(matches!(table.begin_epoch(1).err(), Some(HistoryError::AlreadyKept(1))));
    assert!(matches!(table.begin_epoch(1 << 63).err(), Some(HistoryError::Rows { .. })));
}

#[test]
fn writers_that_race_for_a_version_both_commit() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let rows = model(&spec, 2, 1);
    let each = 10;
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (spec, dir, rows) = (&spec, dir.path(), &rows);
            // The table, too, is made by whoever comes first.
            scope.spawn(move || {
                let table = EpochTable::open(dir, spec).unwrap();
                for number in 0..each {
                    write(&table, &epoch(writer * each + number), rows).unwrap();
                }
            });
        }
    });
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let numbers: Vec<u64> = table.kept_epochs().unwrap().iter().map(|kept| kept.epoch.number).collect();
    assert_eq!(numbers, (0..4 * each).collect::<Vec<_>>());
    // The table's making, and a version for each epoch.
    assert_eq!(names(&table.table_path().join("_delta_log")).len() as u64, 1 + 4 * each);
    assert_eq!(table.log_damage(), Vec::<String>::new());
    // The same epoch twice: one is refused.
    let (one, other) = (table.begin_epoch(100).unwrap(), table.begin_epoch(100).unwrap());
    one.finish(&epoch(100)).unwrap();
    assert!(matches!(other.finish(&epoch(100)), Err(HistoryError::AlreadyKept(100))));
    assert_eq!(data_files(&table).len() as u64, 4 * each + 1);
}

#[test]
fn tables_of_something_else_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |spec: &StoreSpec| EpochTable::open(dir.path(), spec).err().unwrap().to_string();
    EpochTable::open(dir.path(), &key_write(64, 4)).unwrap();
    EpochTable::open(dir.path(), &StoreSpec { id: 9, ..key_write(64, 4) }).unwrap();
    for other in [key_write(128, 4), key_write(64, 12)] {
        let error = refused(&other);
        assert!(error.contains("store `last`") && error.contains("move the folder away"), "{error}");
    }
    let counters = store(StoreKind::KeyIncrement { slots: 64, redundancy: 1, replicas: 1 });
    assert!(refused(&counters).contains("has another layout (key-write with 64 elements"));
    let missing = EpochTable::open_existing(dir.path(), "none").err().unwrap().to_string();
    assert!(missing.contains("none/_delta_log"), "{missing}");
    let log = dir.path().join("last/_delta_log/00000000000000000000.json");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, text.replace("\"minReaderVersion\":1", "\"minReaderVersion\":3")).unwrap();
    assert!(refused(&key_write(64, 4)).contains("needs readers of version 3"));
    fs::write(&log, text.replace("dta.store", "other")).unwrap();
    assert!(refused(&key_write(64, 4)).contains("no dta.store"));
    fs::write(&log, "{\"commitInfo\":{}}\n").unwrap();
    assert!(refused(&key_write(64, 4)).contains("says nothing about what it is"));
}

#[test]
fn other_readers_get_files_and_columns() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    assert!(table.data_files().unwrap().is_empty());
    for number in 0..3 {
        write(&table, &epoch(number), &model(&spec, 2, number)).unwrap();
    }
    table.compact_span(0..2 * MINUTE).unwrap().unwrap();
    let files = table.data_files().unwrap();
    let epochs: Vec<Vec<u64>> =
        files.iter().map(|file| file.epochs.iter().map(|kept| kept.epoch.number).collect()).collect();
    assert_eq!(epochs, [vec![0, 1], vec![2]]);
    for file in &files {
        assert_eq!(fs::metadata(table.table_path().join(&file.name)).unwrap().len(), file.bytes);
        table.check_file(&file.name).unwrap();
    }
    let error = table.check_file("none.parquet").unwrap_err().to_string();
    assert!(error.contains("its log does not name it any more"), "{error}");
    let path = table.table_path().join(&files[1].name);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 10;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = table.check_file(&files[1].name).unwrap_err().to_string();
    assert!(error.contains("its index is damaged"), "{error}");

    let columns: serde_json::Value = serde_json::from_str(&table.delta_schema()).unwrap();
    let names: Vec<_> = columns["fields"].as_array().unwrap().iter().map(|field| &field["name"]).collect();
    assert_eq!(names, ["epoch", "slot", "checksum", "value", "opened", "closed"]);
    assert_eq!(dta_history::store_delta_schema(&spec), table.delta_schema());
}
