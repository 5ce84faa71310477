//! Old epochs go, many become one file, and old commits a checkpoint.

use super::*;

#[test]
fn a_checkpoint_stands_for_the_commits_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let idle = EpochTable::open_existing(dir.path(), "last").unwrap();
    let rows = model(&spec, 2, 1);
    for number in 1..=96 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    table.compact_span(10 * MINUTE..20 * MINUTE).unwrap().unwrap();
    table
        .apply_retention(
            &Retention { keep: Some(Duration::from_secs(94 * 60)), keep_bytes: None },
            97 * MINUTE,
        )
        .unwrap();
    let log = table.table_path().join("_delta_log");
    assert!(!names(&log).contains(&"_last_checkpoint".to_owned()));
    for number in 97..=102 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    assert!(names(&log).contains(&format!("{:020}.checkpoint.parquet", 100)), "{:?}", names(&log));
    let said = |table: &EpochTable| (table.kept_epochs().unwrap(), table.data_bytes(), table.log_damage());
    let before = said(&table);
    assert_eq!((before.0.len(), &before.2), (101, &vec![]));
    // As if the commits before it had been removed after a day.
    for version in 0..100 {
        fs::remove_file(commit_file(&table, version)).unwrap();
    }
    for table in [
        &table,
        &idle,
        &EpochTable::open(dir.path(), &spec).unwrap(),
        &EpochTable::open_existing(dir.path(), "last").unwrap(),
    ] {
        assert_eq!(said(table), before);
        check_slots(table, 12, &rows, &(0..64).collect::<Vec<_>>());
    }
    assert_eq!(idle.store_spec(), &spec);
    // What was compacted is still known to be removed lately.
    assert_eq!(data_files(&table).len(), 101 - 9 + 10);
    // A damaged one is named; what stands behind it is read.
    fs::write(log.join(format!("{:020}.checkpoint.parquet", 100)), "PAR1").unwrap();
    let damaged = EpochTable::open(dir.path(), &spec).unwrap();
    assert_eq!(damaged.kept_epochs().unwrap().len(), 5);
    assert!(damaged.log_damage()[0].contains("checkpoint.parquet is damaged"), "{:?}", damaged.log_damage());
    assert_eq!(data_files(&damaged).len(), 102);
}

#[test]
fn the_oldest_epochs_go() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let rows = model(&spec, 2, 1);
    for number in 1..=8 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    let one = table.data_bytes() / 8;
    let numbers = || table.kept_epochs().unwrap().iter().map(|kept| kept.epoch.number).collect::<Vec<_>>();
    let keep =
        |keep, keep_bytes| table.apply_retention(&Retention { keep, keep_bytes }, 10 * MINUTE).unwrap();
    assert_eq!(keep(None, None), RemovedEpochs::default());
    assert_eq!(keep(Some(Duration::from_secs(9 * 60)), Some(u64::MAX)), RemovedEpochs::default());
    let removed = keep(Some(Duration::from_secs(7 * 60)), None);
    assert_eq!((removed.epochs, numbers()), (vec![1], (2..=8).collect()));
    assert!(removed.bytes > 0);
    assert_eq!(keep(None, Some(5 * one + one / 2)).epochs, [2, 3]);
    assert_eq!(data_files(&table).len(), 5);
    assert!(matches!(table.read_slots(2, &[], &mut []), Err(HistoryError::NotKept(2))));
    // A full disk: down to a floor.
    assert_eq!(table.make_room(one / 2, 1).unwrap().epochs, [4]);
    assert_eq!(table.make_room(u64::MAX, 2).unwrap().epochs, [5, 6]);
    assert_eq!(table.make_room(u64::MAX, 2).unwrap(), RemovedEpochs::default());
    assert_eq!(keep(None, Some(0)).epochs, [7], "the newest file stays");
    // By age all of them go.
    assert_eq!(keep(Some(Duration::ZERO), None).epochs, [8]);
    assert_eq!((numbers(), data_files(&table).len(), table.data_bytes()), (vec![], 0, 0));
    write(&EpochTable::open(dir.path(), &spec).unwrap(), &epoch(9), &rows).unwrap();
    assert_eq!(numbers(), [9]);
}

#[test]
fn a_compacted_file_goes_when_all_of_its_epochs_may_and_readers_follow() {
    let dir = tempfile::tempdir().unwrap();
    let spec = store(StoreKind::Postcarding { slots: 64, hops: 6, redundancy: 1 });
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let rows: Vec<Model> = (0..4).map(|number| model(&spec, 2, number)).collect();
    for (number, rows) in rows.iter().enumerate() {
        write(&table, &epoch(number as u64), rows).unwrap();
    }
    let reader = EpochTable::open_existing(dir.path(), "last").unwrap();
    check_slots(&reader, 0, &rows[0], &[1, 2]);
    assert_eq!(table.compact_span(0..3 * MINUTE).unwrap().unwrap().files, 3);
    assert_eq!(table.compact_span(3 * MINUTE..9 * MINUTE).unwrap(), None, "one file is compact");
    // What was compacted stays for a while: readers that know only it find it.
    assert_eq!((data_files(&table).len(), table.vacuum_files().unwrap()), (5, 0));
    for name in data_files(&table).iter().filter(|name| name.matches('-').count() == 2).take(3) {
        fs::remove_file(table.table_path().join(name)).unwrap();
    }
    for (number, rows) in rows.iter().enumerate() {
        check_slots(&reader, number as u64, rows, &(0..64).collect::<Vec<_>>());
    }
    let age = |minutes| {
        table.apply_retention(
            &Retention { keep: Some(Duration::from_secs(60)), keep_bytes: None },
            minutes * MINUTE + 30,
        )
    };
    assert_eq!(age(3).unwrap(), RemovedEpochs::default());
    assert_eq!(age(4).unwrap().epochs, [0, 1, 2]);
    check_slots(&table, 3, &rows[3], &[5]);
}

#[test]
fn of_many_epochs_one_is_made_with_the_newest_of_each_slot() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(1 << 12, 12);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let rows: Vec<Model> = (0..5).map(|number| model(&spec, 3, number)).collect();
    for (number, rows) in rows.iter().enumerate() {
        let restarted = (number == 1).then_some(MINUTE + 7);
        let epoch = HistoryEpoch { confirmed: number != 2, restarted, ..epoch(number as u64) };
        write(&table, &epoch, rows).unwrap();
    }
    // Some of them in one file already.
    table.compact_span(0..2 * MINUTE).unwrap().unwrap();
    assert_eq!(table.coarsen_span(4 * MINUTE..9 * MINUTE, |_| unreachable!("one epoch")).unwrap(), None);
    let sum = |kept: &[KeptEpoch]| {
        kept.iter().map(|kept| kept.epoch.waterfall["landed"].as_u64().unwrap()).sum::<u64>().into()
    };
    let made = table.coarsen_span(0..4 * MINUTE, sum).unwrap().unwrap();
    let newest: Model = rows[..4].iter().flatten().map(|(slot, element)| (*slot, element.clone())).collect();
    assert_eq!((made.files, made.rows), (3, newest.len() as u64));
    for table in [&table, &EpochTable::open(dir.path(), &spec).unwrap()] {
        let kept = table.kept_epochs().unwrap();
        assert_eq!(kept.iter().map(|kept| kept.epoch.number).collect::<Vec<_>>(), [3, 4]);
        let restarted = Some(MINUTE + 7);
        let waterfall = json!(7 + 14 + 21);
        let coarse = HistoryEpoch { opened: 0, confirmed: false, restarted, waterfall, ..epoch(3) };
        assert_eq!((&kept[0].epoch, kept[0].rows), (&coarse, newest.len() as u64));
        assert_eq!(table.epoch_at_moment(MINUTE / 2).unwrap().unwrap().epoch.number, 3);
        check_slots(table, 3, &newest, &(0..spec.element_count()).collect::<Vec<_>>());
        check_slots(table, 4, &rows[4], &(0..spec.element_count()).collect::<Vec<_>>());
        assert_eq!(scanned(table, 3), newest);
        assert!(matches!(table.read_slots(1, &[], &mut []), Err(HistoryError::NotKept(1))));
    }
}
