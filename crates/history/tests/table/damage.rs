//! What kills and damage leave is named or removed, and the rest is read.

use super::*;

#[test]
fn a_killed_writer_leaves_nothing_that_is_seen_and_what_it_left_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let rows = model(&spec, 2, 1);
    write(&table, &epoch(1), &rows).unwrap();
    let kept = data_files(&table);
    // Killed while it wrote the file; between the file's naming and the commit; while it wrote the commit.
    let log = table.table_path().join("_delta_log");
    fs::write(table.table_path().join(".new-00000000000000aa"), "PAR1").unwrap();
    fs::copy(
        table.table_path().join(&kept[0]),
        table.table_path().join("epoch-000000000002-00000000000000aa.parquet"),
    )
    .unwrap();
    fs::write(log.join(".new-00000000000000ab"), "{\"add\"").unwrap();
    // And one that still writes.
    let mut living = table.begin_epoch(3).unwrap();
    living.write_slots(0, &[1; 8]).unwrap();
    assert_eq!(data_files(&table).len(), 4);
    assert_eq!(EpochTable::open_existing(dir.path(), "last").unwrap().kept_epochs().unwrap().len(), 1);
    assert_eq!(data_files(&table).len(), 4, "a reader removes nothing");
    let again = EpochTable::open(dir.path(), &spec).unwrap();
    assert_eq!(again.kept_epochs().unwrap().len(), 1);
    assert_eq!(data_files(&table).len(), 2, "{:?}", data_files(&table));
    assert_eq!(names(&log).len(), 2);
    check_slots(&again, 1, &rows, &(0..64).collect::<Vec<_>>());
    living.finish(&epoch(3)).unwrap();
    check_slots(&again, 3, &Model::from([(0, vec![1; 8])]), &[0, 1]);
    assert_eq!(again.vacuum_files().unwrap(), 0);
}

#[test]
fn a_damaged_log_is_named_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let rows = model(&spec, 2, 1);
    for number in 1..=6 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    let text = fs::read_to_string(commit_file(&table, 2)).unwrap();
    fs::write(commit_file(&table, 2), &text[..text.len() - 30]).unwrap();
    fs::write(commit_file(&table, 3), [0xff; 100]).unwrap();
    fs::remove_file(commit_file(&table, 5)).unwrap();
    let again = EpochTable::open(dir.path(), &spec).unwrap();
    let numbers: Vec<u64> = again.kept_epochs().unwrap().iter().map(|kept| kept.epoch.number).collect();
    assert_eq!(numbers, [1, 4, 6]);
    check_slots(&again, 6, &rows, &(0..64).collect::<Vec<_>>());
    let damage = again.log_damage();
    assert_eq!(damage.len(), 3, "{damage:?}");
    assert!(damage[0].contains("00000000000000000002.json line 2 is damaged"), "{damage:?}");
    assert!(damage[1].contains("00000000000000000003.json line 1 is damaged"), "{damage:?}");
    assert!(damage[2].contains("00000000000000000005.json is missing"), "{damage:?}");
    assert_eq!(data_files(&again).len(), 6, "what the damaged commits named is not removed");
    // It goes on behind the damage.
    write(&again, &epoch(7), &rows).unwrap();
    assert!(commit_file(&table, 7).exists());
    assert_eq!(EpochTable::open_existing(dir.path(), "last").unwrap().kept_epochs().unwrap().len(), 4);
    // What the table is was in the first commit: with the store's description it is read all the same.
    fs::write(commit_file(&table, 0), "").unwrap();
    fs::write(commit_file(&table, 1), "{").unwrap();
    assert_eq!(EpochTable::open(dir.path(), &spec).unwrap().kept_epochs().unwrap().len(), 3);
    let error = EpochTable::open_existing(dir.path(), "last").err().unwrap().to_string();
    assert!(
        error.contains("nothing in its log says which store it is of") && error.contains("1.json"),
        "{error}"
    );
}

#[test]
fn damaged_data_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    write(&table, &epoch(1), &model(&spec, 2, 1)).unwrap();
    write(&table, &epoch(2), &model(&spec, 2, 1)).unwrap();
    let path = table.table_path().join(&data_files(&table)[0]);
    let whole = fs::read(&path).unwrap();
    let look = || {
        let table = EpochTable::open_existing(dir.path(), "last").unwrap();
        let mut out = [0; 8 * 64];
        let looked = table.read_slots(1, &(0..64).collect::<Vec<_>>(), &mut out);
        looked.and(table.scan_epoch(1, |_, _| ())).map_err(|error| error.to_string())
    };
    look().unwrap();
    for cut in [0, 4, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        assert!(look().unwrap_err().contains("epoch-000000000001-"), "{cut}");
    }
    // Any single damage is an error or shows in values alone, and never ends the program.
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        fs::write(&path, bytes).unwrap();
        let _ = look();
    }
    fs::remove_file(&path).unwrap();
    assert!(look().unwrap_err().contains("epoch-000000000001-"));
    check_slots(&table, 2, &model(&spec, 2, 1), &[1, 2, 3]);
}

/// With dictionaries, several pages and row groups' worth of index: any bytes of it changed are an error or wrong values, at most.
#[test]
fn damage_anywhere_never_ends_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let spec = store(StoreKind::Postcarding { slots: 1 << 14, hops: 6, redundancy: 1 });
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let few: Model = model(&spec, 2, 1).into_keys().map(|slot| (slot, vec![slot as u8 % 5; 32])).collect();
    write(&table, &epoch(1), &few).unwrap();
    write(&table, &epoch(2), &model(&spec, 2, 2)).unwrap();
    table.compact_span(0..9 * MINUTE).unwrap().unwrap();
    let name = data_files(&table).into_iter().find(|name| name.matches('-').count() == 3).unwrap();
    let path = table.table_path().join(name);
    let whole = fs::read(&path).unwrap();
    let (mut errors, mut seed) = (0, 1u64);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..1 + seed % 3 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (seed >> 33) as usize % bytes.len();
            bytes[at] = (seed >> 20) as u8;
        }
        fs::write(&path, bytes).unwrap();
        let table = EpochTable::open_existing(dir.path(), "last").unwrap();
        let mut out = vec![0; 32 * 1000];
        let looked = table.read_slots(1, &(0..16_000).step_by(16).collect::<Vec<_>>(), &mut out);
        errors += u32::from(looked.is_err());
        errors += u32::from(table.scan_epoch(2, |_, _| ()).is_err());
    }
    assert!(errors > 0);
}

#[test]
fn a_folder_that_is_gone_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 12);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    write(&table, &epoch(1), &model(&spec, 3, 1)).unwrap();
    fs::remove_dir_all(table.table_path()).unwrap();
    fs::write(table.table_path(), "").unwrap();
    assert!(matches!(table.kept_epochs(), Err(HistoryError::Io { .. })), "{:?}", table.kept_epochs());
    assert!(write(&table, &epoch(2), &model(&spec, 3, 2)).is_err());
}
