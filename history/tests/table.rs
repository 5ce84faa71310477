//! What is written is read: by slot, as a whole, after a restart, beside others, and in spite of what kills and damage leave.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dta_history::{Epoch, HistoryError, Removed, Retention, Table};
use dta_proto::store::{StoreKind, StoreSpec};
use proptest::prelude::*;
use serde_json::json;

const MINUTE: u64 = 60_000;

fn store(kind: StoreKind) -> StoreSpec {
    StoreSpec { id: 1, name: "last".to_owned(), kind }
}

fn key_write(slots: u64, value_len: u8) -> StoreSpec {
    store(StoreKind::KeyWrite { slots, value_len, redundancy: 2 })
}

/// Epoch `number` is the minute of this number.
fn epoch(number: u64) -> Epoch {
    Epoch {
        number,
        generation: 10 + number,
        opened: number * MINUTE,
        flipped_from: (number + 1) * MINUTE,
        flipped_to: (number + 1) * MINUTE + 20,
        confirmed: true,
        waterfall: json!({ "landed": 7 * number }),
    }
}

type Model = BTreeMap<u64, Vec<u8>>;

/// Elements, the same for the same seed, in every `every`th slot on average.
fn model(spec: &StoreSpec, every: u64, seed: u64) -> Model {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let element = |random: &mut dyn FnMut() -> u64| (0..spec.element_len()).map(|_| random() as u8).collect();
    (0..spec.elements())
        .filter_map(|slot| (random() % every == 0).then(|| (slot, element(&mut random))))
        .collect()
}

fn write(table: &Table, epoch: &Epoch, rows: &Model) -> Result<dta_history::Written, HistoryError> {
    let mut flush = table.begin(epoch.number)?;
    for (slot, element) in rows {
        flush.put(*slot, element)?;
    }
    flush.finish(epoch)
}

fn scanned(table: &Table, epoch: u64) -> Model {
    let mut rows = Model::new();
    table.scan(epoch, |slot, element| assert!(rows.insert(slot, element.to_vec()).is_none())).unwrap();
    rows
}

fn check_slots(table: &Table, epoch: u64, rows: &Model, slots: &[u64]) {
    let len = table.spec().element_len() as usize;
    let mut out = vec![0xaa; slots.len() * len];
    table.slots(epoch, slots, &mut out).unwrap();
    for (slot, element) in slots.iter().zip(out.chunks_exact(len)) {
        let expected = rows.get(slot).cloned().unwrap_or_else(|| vec![0; len]);
        assert_eq!(element, expected, "slot {slot} of epoch {epoch}");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn data_files(table: &Table) -> Vec<String> {
    names(table.path()).into_iter().filter(|name| name != "_delta_log").collect()
}

fn commit_file(table: &Table, version: u64) -> PathBuf {
    table.path().join("_delta_log").join(format!("{version:020}.json"))
}

#[test]
fn epochs_are_found_by_moment_and_slots_in_them_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(1 << 12, 12);
    let table = Table::open(dir.path(), &spec).unwrap();
    assert_eq!(table.epochs().unwrap(), []);
    let rows: Vec<Model> = (0..3).map(|number| model(&spec, 3, number)).collect();
    for (number, rows) in rows.iter().enumerate() {
        let written = write(&table, &epoch(number as u64), rows).unwrap();
        assert_eq!(written.rows, rows.len() as u64);
        assert!(written.bytes > 0);
    }
    // Another process sees each epoch as soon as it is committed.
    let beside = Table::open_existing(dir.path(), "last").unwrap();
    assert_eq!(beside.spec(), &spec);
    write(&table, &epoch(3), &Model::new()).unwrap();
    for table in [&table, &beside, &Table::open(dir.path(), &spec).unwrap()] {
        let kept = table.epochs().unwrap();
        assert_eq!(kept.iter().map(|kept| kept.epoch.clone()).collect::<Vec<_>>(), [0, 1, 2, 3].map(epoch));
        let counts = rows.iter().map(|rows| rows.len() as u64).chain([0]);
        assert_eq!(kept.iter().map(|kept| kept.rows).collect::<Vec<_>>(), counts.collect::<Vec<_>>());
        let at = |moment| table.at(moment).unwrap().map(|kept| kept.epoch.number);
        assert_eq!(at(MINUTE / 2), Some(0));
        // While the writers move, the newer epoch is the one that is asked.
        assert_eq!(at(MINUTE + 10), Some(1));
        assert_eq!(at(4 * MINUTE + 20), Some(3));
        assert_eq!(at(4 * MINUTE + 21), None);
        for (number, rows) in rows.iter().enumerate() {
            check_slots(table, number as u64, rows, &[7, 4095, 0, 7, 1024, 1025]);
            check_slots(table, number as u64, rows, &(0..spec.elements()).collect::<Vec<_>>());
            assert_eq!(scanned(table, number as u64), *rows);
        }
        check_slots(table, 3, &Model::new(), &[0, 1]);
        assert!(matches!(table.slots(4, &[], &mut []), Err(HistoryError::NotKept(4))));
    }
}

#[test]
fn many_row_groups_and_pages_are_looked_up_in_one_file_and_in_a_compacted_one() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(1 << 19, 4);
    let table = Table::open(dir.path(), &spec).unwrap();
    let rows: Vec<Model> = (0..2).map(|number| model(&spec, 4 / (number + 1), number)).collect();
    for (number, rows) in rows.iter().enumerate() {
        write(&table, &epoch(number as u64), rows).unwrap();
    }
    let slots: Vec<u64> = (0..spec.elements()).step_by(97).chain([0, spec.elements() - 1]).collect();
    for compacted in [false, true] {
        if compacted {
            let made = table.compact(0..2 * MINUTE).unwrap().unwrap();
            assert_eq!((made.files, made.rows), (2, rows.iter().map(|rows| rows.len() as u64).sum()));
            assert_eq!(table.compact(0..2 * MINUTE).unwrap(), None);
        }
        for (number, rows) in rows.iter().enumerate() {
            check_slots(&table, number as u64, rows, &slots);
            check_slots(&table, number as u64, rows, &slots[1000..1001]);
            assert_eq!(scanned(&table, number as u64), *rows);
        }
    }
    let again = Table::open(dir.path(), &spec).unwrap();
    check_slots(&again, 1, &rows[1], &slots);
    assert_eq!(again.epochs().unwrap().len(), 2);
    assert_eq!(again.at(MINUTE / 2).unwrap().unwrap().epoch, epoch(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_elements_come_back_exactly(
        kind in 0usize..6, every in 1u64..9, seed: u64, cuts in prop::collection::vec(0u64..512, 0..4),
        slots in prop::collection::vec(0u64..512, 0..40), compact: bool,
    ) {
        let spec = match kind {
            0..=3 => key_write(512, [4, 12, 28, 60][kind]),
            _ => store(StoreKind::Postcarding { slots: 512, hops: [6, 14][kind - 4], redundancy: 1 }),
        };
        let dir = tempfile::tempdir().unwrap();
        let table = Table::open(dir.path(), &spec).unwrap();
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
            let mut flush = table.begin(number as u64).unwrap();
            for piece in cuts.windows(2) {
                flush.put(piece[0], &region[piece[0] as usize * len..piece[1] as usize * len]).unwrap();
            }
            flush.finish(&epoch(number as u64)).unwrap();
        }
        if compact {
            table.compact(0..10 * MINUTE).unwrap().unwrap();
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
    let table = Table::open(dir.path(), &key_write(64, 4)).unwrap();
    let mut flush = table.begin(1).unwrap();
    flush.put(8, &[1; 16]).unwrap();
    for (first, bytes, problem) in [
        (9, 8, "slot 9 comes after slot 9"),
        (10, 12, "12 bytes are no whole elements of 8"),
        (63, 16, "2 elements from slot 63 on, in a store of 64"),
        (u64::MAX, 8, "in a store of 64"),
    ] {
        let error = flush.put(first, &vec![1; bytes]).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    assert!(flush.finish(&epoch(2)).unwrap_err().to_string().contains("it ends as epoch 2"));
    assert_eq!(data_files(&table), Vec::<String>::new());
    write(&table, &epoch(1), &Model::new()).unwrap();
    assert!(matches!(table.begin(1).err(), Some(HistoryError::AlreadyKept(1))));
    assert!(matches!(table.begin(1 << 63).err(), Some(HistoryError::Rows { .. })));
}

#[test]
fn a_killed_writer_leaves_nothing_that_is_seen_and_what_it_left_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = Table::open(dir.path(), &spec).unwrap();
    let rows = model(&spec, 2, 1);
    write(&table, &epoch(1), &rows).unwrap();
    let kept = data_files(&table);
    // Killed while it wrote the file; between the file's naming and the commit; while it wrote the commit.
    let log = table.path().join("_delta_log");
    fs::write(table.path().join(".new-00000000000000aa"), "PAR1").unwrap();
    fs::copy(table.path().join(&kept[0]), table.path().join("epoch-000000000002-00000000000000aa.parquet"))
        .unwrap();
    fs::write(log.join(".new-00000000000000ab"), "{\"add\"").unwrap();
    // And one that still writes.
    let mut living = table.begin(3).unwrap();
    living.put(0, &[1; 8]).unwrap();
    assert_eq!(data_files(&table).len(), 4);
    assert_eq!(Table::open_existing(dir.path(), "last").unwrap().epochs().unwrap().len(), 1);
    assert_eq!(data_files(&table).len(), 4, "a reader removes nothing");
    let again = Table::open(dir.path(), &spec).unwrap();
    assert_eq!(again.epochs().unwrap().len(), 1);
    assert_eq!(data_files(&table).len(), 2, "{:?}", data_files(&table));
    assert_eq!(names(&log).len(), 2);
    check_slots(&again, 1, &rows, &(0..64).collect::<Vec<_>>());
    living.finish(&epoch(3)).unwrap();
    check_slots(&again, 3, &Model::from([(0, vec![1; 8])]), &[0, 1]);
    assert_eq!(again.vacuum().unwrap(), 0);
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
                let table = Table::open(dir, spec).unwrap();
                for number in 0..each {
                    write(&table, &epoch(writer * each + number), rows).unwrap();
                }
            });
        }
    });
    let table = Table::open(dir.path(), &spec).unwrap();
    let numbers: Vec<u64> = table.epochs().unwrap().iter().map(|kept| kept.epoch.number).collect();
    assert_eq!(numbers, (0..4 * each).collect::<Vec<_>>());
    // The table's making, and a version for each epoch.
    assert_eq!(names(&table.path().join("_delta_log")).len() as u64, 1 + 4 * each);
    assert_eq!(table.damage(), Vec::<String>::new());
    // The same epoch twice: one is refused.
    let (one, other) = (table.begin(100).unwrap(), table.begin(100).unwrap());
    one.finish(&epoch(100)).unwrap();
    assert!(matches!(other.finish(&epoch(100)), Err(HistoryError::AlreadyKept(100))));
    assert_eq!(data_files(&table).len() as u64, 4 * each + 1);
}

#[test]
fn a_damaged_log_is_named_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = Table::open(dir.path(), &spec).unwrap();
    let rows = model(&spec, 2, 1);
    for number in 1..=6 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    let text = fs::read_to_string(commit_file(&table, 2)).unwrap();
    fs::write(commit_file(&table, 2), &text[..text.len() - 30]).unwrap();
    fs::write(commit_file(&table, 3), [0xff; 100]).unwrap();
    fs::remove_file(commit_file(&table, 5)).unwrap();
    let again = Table::open(dir.path(), &spec).unwrap();
    let numbers: Vec<u64> = again.epochs().unwrap().iter().map(|kept| kept.epoch.number).collect();
    assert_eq!(numbers, [1, 4, 6]);
    check_slots(&again, 6, &rows, &(0..64).collect::<Vec<_>>());
    let damage = again.damage();
    assert_eq!(damage.len(), 3, "{damage:?}");
    assert!(damage[0].contains("00000000000000000002.json line 2 is damaged"), "{damage:?}");
    assert!(damage[1].contains("00000000000000000003.json line 1 is damaged"), "{damage:?}");
    assert!(damage[2].contains("00000000000000000005.json is missing"), "{damage:?}");
    assert_eq!(data_files(&again).len(), 6, "what the damaged commits named is not removed");
    // It goes on behind the damage.
    write(&again, &epoch(7), &rows).unwrap();
    assert!(commit_file(&table, 7).exists());
    assert_eq!(Table::open_existing(dir.path(), "last").unwrap().epochs().unwrap().len(), 4);
    // What the table is was in the first commit: with the store's description it is read all the same.
    fs::write(commit_file(&table, 0), "").unwrap();
    fs::write(commit_file(&table, 1), "{").unwrap();
    assert_eq!(Table::open(dir.path(), &spec).unwrap().epochs().unwrap().len(), 3);
    let error = Table::open_existing(dir.path(), "last").err().unwrap().to_string();
    assert!(
        error.contains("nothing in its log says which store it is of") && error.contains("1.json"),
        "{error}"
    );
}

#[test]
fn a_checkpoint_stands_for_the_commits_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = Table::open(dir.path(), &spec).unwrap();
    let idle = Table::open_existing(dir.path(), "last").unwrap();
    let rows = model(&spec, 2, 1);
    for number in 1..=96 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    table.compact(10 * MINUTE..20 * MINUTE).unwrap().unwrap();
    table
        .retain(&Retention { keep: Some(Duration::from_secs(94 * 60)), keep_bytes: None }, 97 * MINUTE)
        .unwrap();
    let log = table.path().join("_delta_log");
    assert!(!names(&log).contains(&"_last_checkpoint".to_owned()));
    for number in 97..=102 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    assert!(names(&log).contains(&format!("{:020}.checkpoint.parquet", 100)), "{:?}", names(&log));
    let said = |table: &Table| (table.epochs().unwrap(), table.bytes(), table.damage());
    let before = said(&table);
    assert_eq!((before.0.len(), &before.2), (101, &vec![]));
    // As if the commits before it had been removed after a day.
    for version in 0..100 {
        fs::remove_file(commit_file(&table, version)).unwrap();
    }
    for table in [
        &table,
        &idle,
        &Table::open(dir.path(), &spec).unwrap(),
        &Table::open_existing(dir.path(), "last").unwrap(),
    ] {
        assert_eq!(said(table), before);
        check_slots(table, 12, &rows, &(0..64).collect::<Vec<_>>());
    }
    assert_eq!(idle.spec(), &spec);
    // What was compacted is still known to be removed lately.
    assert_eq!(data_files(&table).len(), 101 - 9 + 10);
    // A damaged one is named; what stands behind it is read.
    fs::write(log.join(format!("{:020}.checkpoint.parquet", 100)), "PAR1").unwrap();
    let damaged = Table::open(dir.path(), &spec).unwrap();
    assert_eq!(damaged.epochs().unwrap().len(), 5);
    assert!(damaged.damage()[0].contains("checkpoint.parquet is damaged"), "{:?}", damaged.damage());
    assert_eq!(data_files(&damaged).len(), 102);
}

#[test]
fn damaged_data_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = Table::open(dir.path(), &spec).unwrap();
    write(&table, &epoch(1), &model(&spec, 2, 1)).unwrap();
    write(&table, &epoch(2), &model(&spec, 2, 1)).unwrap();
    let path = table.path().join(&data_files(&table)[0]);
    let whole = fs::read(&path).unwrap();
    let look = || {
        let table = Table::open_existing(dir.path(), "last").unwrap();
        let mut out = [0; 8 * 64];
        let looked = table.slots(1, &(0..64).collect::<Vec<_>>(), &mut out);
        looked.and(table.scan(1, |_, _| ())).map_err(|error| error.to_string())
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
    let table = Table::open(dir.path(), &spec).unwrap();
    let few: Model =
        model(&spec, 2, 1).into_iter().map(|(slot, _)| (slot, vec![slot as u8 % 5; 32])).collect();
    write(&table, &epoch(1), &few).unwrap();
    write(&table, &epoch(2), &model(&spec, 2, 2)).unwrap();
    table.compact(0..9 * MINUTE).unwrap().unwrap();
    let name = data_files(&table).into_iter().find(|name| name.matches('-').count() == 3).unwrap();
    let path = table.path().join(name);
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
        let table = Table::open_existing(dir.path(), "last").unwrap();
        let mut out = vec![0; 32 * 1000];
        let looked = table.slots(1, &(0..16_000).step_by(16).collect::<Vec<_>>(), &mut out);
        errors += u32::from(looked.is_err());
        errors += u32::from(table.scan(2, |_, _| ()).is_err());
    }
    assert!(errors > 0);
}

#[test]
fn tables_of_something_else_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |spec: &StoreSpec| Table::open(dir.path(), spec).err().unwrap().to_string();
    Table::open(dir.path(), &key_write(64, 4)).unwrap();
    Table::open(dir.path(), &StoreSpec { id: 9, ..key_write(64, 4) }).unwrap();
    for other in [key_write(128, 4), key_write(64, 12)] {
        let error = refused(&other);
        assert!(error.contains("store `last`") && error.contains("move the folder away"), "{error}");
    }
    let counters = store(StoreKind::KeyIncrement { slots: 64, redundancy: 1 });
    assert!(refused(&counters).contains("only key-write and postcarding stores are"));
    let missing = Table::open_existing(dir.path(), "none").err().unwrap().to_string();
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
fn the_oldest_epochs_go() {
    let dir = tempfile::tempdir().unwrap();
    let spec = key_write(64, 4);
    let table = Table::open(dir.path(), &spec).unwrap();
    let rows = model(&spec, 2, 1);
    for number in 1..=8 {
        write(&table, &epoch(number), &rows).unwrap();
    }
    let one = table.bytes() / 8;
    let numbers = || table.epochs().unwrap().iter().map(|kept| kept.epoch.number).collect::<Vec<_>>();
    let keep = |keep, keep_bytes| table.retain(&Retention { keep, keep_bytes }, 10 * MINUTE).unwrap();
    assert_eq!(keep(None, None), Removed::default());
    assert_eq!(keep(Some(Duration::from_secs(9 * 60)), Some(u64::MAX)), Removed::default());
    let removed = keep(Some(Duration::from_secs(7 * 60)), None);
    assert_eq!((removed.epochs, numbers()), (vec![1], (2..=8).collect()));
    assert!(removed.bytes > 0);
    assert_eq!(keep(None, Some(5 * one + one / 2)).epochs, [2, 3]);
    assert_eq!(data_files(&table).len(), 5);
    assert!(matches!(table.slots(2, &[], &mut []), Err(HistoryError::NotKept(2))));
    // A full disk: down to a floor.
    assert_eq!(table.make_room(one / 2, 1).unwrap().epochs, [4]);
    assert_eq!(table.make_room(u64::MAX, 2).unwrap().epochs, [5, 6]);
    assert_eq!(table.make_room(u64::MAX, 2).unwrap(), Removed::default());
    assert_eq!(keep(None, Some(0)).epochs, [7], "the newest file stays");
    // By age all of them go.
    assert_eq!(keep(Some(Duration::ZERO), None).epochs, [8]);
    assert_eq!((numbers(), data_files(&table).len(), table.bytes()), (vec![], 0, 0));
    write(&Table::open(dir.path(), &spec).unwrap(), &epoch(9), &rows).unwrap();
    assert_eq!(numbers(), [9]);
}

#[test]
fn a_compacted_file_goes_when_all_of_its_epochs_may_and_readers_follow() {
    let dir = tempfile::tempdir().unwrap();
    let spec = store(StoreKind::Postcarding { slots: 64, hops: 6, redundancy: 1 });
    let table = Table::open(dir.path(), &spec).unwrap();
    let rows: Vec<Model> = (0..4).map(|number| model(&spec, 2, number)).collect();
    for (number, rows) in rows.iter().enumerate() {
        write(&table, &epoch(number as u64), rows).unwrap();
    }
    let reader = Table::open_existing(dir.path(), "last").unwrap();
    check_slots(&reader, 0, &rows[0], &[1, 2]);
    assert_eq!(table.compact(0..3 * MINUTE).unwrap().unwrap().files, 3);
    assert_eq!(table.compact(3 * MINUTE..9 * MINUTE).unwrap(), None, "one file is compact");
    // What was compacted stays for a while: readers that know only it find it.
    assert_eq!((data_files(&table).len(), table.vacuum().unwrap()), (5, 0));
    for name in data_files(&table).iter().filter(|name| name.matches('-').count() == 2).take(3) {
        fs::remove_file(table.path().join(name)).unwrap();
    }
    for (number, rows) in rows.iter().enumerate() {
        check_slots(&reader, number as u64, rows, &(0..64).collect::<Vec<_>>());
    }
    let age = |minutes| {
        table.retain(
            &Retention { keep: Some(Duration::from_secs(60)), keep_bytes: None },
            minutes * MINUTE + 30,
        )
    };
    assert_eq!(age(3).unwrap(), Removed::default());
    assert_eq!(age(4).unwrap().epochs, [0, 1, 2]);
    check_slots(&table, 3, &rows[3], &[5]);
}
