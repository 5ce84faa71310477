//! Epochs in which nothing changed have no file, and answer as if they had one.

use super::*;

const HOUR: u64 = 60 * MINUTE;

fn counters() -> StoreSpec {
    store(StoreKind::KeyIncrement { slots: 1 << 12, redundancy: 2, replicas: 1 })
}

/// A table that keeps epochs without files, and one that writes all of them.
struct Tables {
    folders: [tempfile::TempDir; 2],
    tables: [EpochTable; 2],
    spec: StoreSpec,
}

impl Tables {
    fn new(spec: StoreSpec) -> Tables {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let tables = Tables::open(&folders, &spec);
        Tables { folders, tables, spec }
    }

    fn open(folders: &[tempfile::TempDir; 2], spec: &StoreSpec) -> [EpochTable; 2] {
        let [sparing, all] = [0, 1].map(|of| EpochTable::open(folders[of].path(), spec).unwrap());
        [sparing.with_unchanged_epochs(Duration::from_millis(HOUR)), all]
    }

    fn restart(&mut self) {
        self.tables = Tables::open(&self.folders, &self.spec);
    }

    /// Writes the epoch of a minute to both; says whether it got a file.
    fn write(&self, minute: u64, rows: &Model) -> bool {
        let [sparing, all] = &self.tables;
        assert_eq!(write(all, &epoch(minute), rows).unwrap().rows, rows.len() as u64);
        let written = write(sparing, &epoch(minute), rows).unwrap();
        assert_eq!(written.rows, rows.len() as u64);
        written.bytes > 0
    }

    /// Whether both answer the same, also for another process.
    fn check(&self) {
        let [_, all] = &self.tables;
        let beside = EpochTable::open_existing(self.folders[0].path(), &self.spec.name).unwrap();
        let slots = [0, 7, 7, 4095, 1024, 1025];
        for table in [&self.tables[0], &beside] {
            let kept = |table: &EpochTable| -> Vec<(HistoryEpoch, u64)> {
                let kept = table.kept_epochs().unwrap();
                kept.iter().map(|kept| (kept.epoch.clone(), kept.rows)).collect()
            };
            assert_eq!(kept(table), kept(all));
            let numbers: Vec<u64> = kept(all).iter().map(|(epoch, _)| epoch.number).collect();
            for (epoch, _) in kept(all) {
                assert_eq!(
                    scanned(table, epoch.number),
                    scanned(all, epoch.number),
                    "epoch {}",
                    epoch.number
                );
                for moment in [epoch.opened, epoch.flipped_from, epoch.flipped_to] {
                    let at = |table: &EpochTable| {
                        table.epoch_at_moment(moment).unwrap().map(|kept| kept.epoch.clone())
                    };
                    assert_eq!(at(table), at(all), "at {moment}");
                }
            }
            let series = |table: &EpochTable| {
                let len = self.spec.element_len() as usize;
                let mut elements = vec![0xaa; numbers.len() * slots.len() * len];
                table.read_slot_series(&numbers, &slots, &mut elements).unwrap();
                elements
            };
            assert!(series(table) == series(all), "the elements of slots");
            assert_eq!(table.log_damage(), Vec::<String>::new());
        }
    }

    fn unchanged_files(&self) -> usize {
        let log = names(&self.tables[0].table_path().join("_delta_log"));
        log.iter().filter(|name| name.starts_with("_unchanged")).count()
    }
}

#[test]
fn epochs_without_changes_answer_as_those_with_files_do() {
    for spec in [counters(), key_write(1 << 12, 12)] {
        let mut tables = Tables::new(spec.clone());
        let [a, b] = [1, 2].map(|seed| model(&spec, 3, seed));
        // Of the same length, and with another element.
        let mut other = b.clone();
        other.values_mut().last().unwrap()[7] ^= 1;
        let none = Model::new();
        let minutes: [(&Model, bool); 12] = [
            (&none, true),
            (&none, false),
            (&a, true),
            (&a, false),
            (&none, false),
            (&none, false),
            (&a, true),
            (&b, true),
            (&b, false),
            (&other, true),
            (&other, false),
            (&other, false),
        ];
        for (minute, (rows, has_file)) in (0..).zip(minutes) {
            assert_eq!(tables.write(minute, rows), has_file, "minute {minute}");
            tables.check();
            if minute % 3 == 1 {
                tables.restart();
                assert_eq!(tables.unchanged_files(), 0, "a start commits them");
                tables.check();
            }
        }
        assert_eq!((data_files(&tables.tables[0]).len(), tables.unchanged_files()), (5, 1));
        // In the next hour, files have epochs of that one alone.
        assert!(tables.write(60, &other));
        assert_eq!(tables.unchanged_files(), 0);
        assert!(!tables.write(61, &other));
        for table in &tables.tables {
            table.compact_span(0..HOUR).unwrap().unwrap();
        }
        tables.check();
        tables.restart();
        tables.check();
        // Its rows last as long as the epochs that have them: the one file is made anew once.
        let [sparing, all] = &tables.tables;
        assert!(sparing.compaction_spans(HOUR).unwrap()[&HOUR].has_longer_rows);
        assert_eq!(sparing.compact_span(HOUR..2 * HOUR).unwrap().map(|made| made.files), Some(1));
        assert!(!sparing.compaction_spans(HOUR).unwrap()[&HOUR].has_longer_rows);
        assert_eq!(sparing.compact_span(HOUR..2 * HOUR).unwrap(), None);
        let last = sparing.row_epochs().unwrap().pop().unwrap();
        assert_eq!((last.epoch.number, last.epoch.flipped_to), (60, epoch(61).flipped_to));
        all.compact_span(HOUR..2 * HOUR).unwrap();
        tables.check();
        let sum = |epochs: &[KeptEpoch]| json!(epochs.len());
        for table in &tables.tables {
            table.coarsen_span(0..HOUR, sum).unwrap().unwrap();
        }
        tables.check();
        let rows: u64 = tables.tables[0].data_files().unwrap().iter().map(|file| file.epochs[0].rows).sum();
        assert_eq!(
            rows,
            tables.tables[1].kept_epochs().unwrap()[..2].iter().map(|kept| kept.rows).sum::<u64>()
        );
    }
}

#[test]
fn what_a_killed_writer_left_of_an_unchanged_epoch_is_written_over() {
    let mut tables = Tables::new(counters());
    let rows = model(&tables.spec, 3, 1);
    (0..3).for_each(|minute| _ = tables.write(minute, &rows));
    let log = tables.tables[0].table_path().join("_delta_log");
    let name = names(&log).into_iter().find(|name| name.starts_with("_unchanged")).unwrap();
    let whole = fs::read(log.join(&name)).unwrap();
    fs::write(log.join(&name), [&whole[..], &whole[..whole.len() / 3]].concat()).unwrap();
    tables.restart();
    tables.check();
    assert!(!tables.write(3, &rows));
    tables.check();
    // One that says nothing is named, and the others are known.
    let name = names(&log).into_iter().find(|name| name.starts_with("_unchanged")).unwrap();
    let whole = fs::read(log.join(&name)).unwrap();
    fs::write(log.join(&name), [b"{\n", &whole[..]].concat()).unwrap();
    let beside = EpochTable::open_existing(tables.folders[0].path(), &tables.spec.name).unwrap();
    assert_eq!(beside.kept_epochs().unwrap().len(), 4);
    let damage = beside.log_damage();
    assert!(damage.len() == 1 && damage[0].contains(&name), "{damage:?}");
}

#[test]
fn epochs_of_a_file_go_with_it() {
    let tables = Tables::new(counters());
    let [a, b] = [1, 2].map(|seed| model(&tables.spec, 3, seed));
    (0..4).for_each(|minute| _ = tables.write(minute, &a));
    assert!(tables.write(4, &b));
    let removed = tables.tables[0].make_room(1, 1).unwrap();
    assert_eq!(removed.epochs, [0, 1, 2, 3]);
    assert_eq!(tables.tables[0].kept_epochs().unwrap().len(), 1);
    // By age, those that no commit named go, too.
    assert!(!tables.write(5, &b));
    let keep = Retention { keep: Some(Duration::ZERO), keep_bytes: None };
    assert_eq!(tables.tables[0].apply_retention(&keep, HOUR).unwrap().epochs, [4, 5]);
    let again = EpochTable::open(tables.folders[0].path(), &tables.spec).unwrap();
    assert_eq!(again.kept_epochs().unwrap(), []);
}

#[test]
fn an_hour_without_changes_is_some_kilobytes() {
    let tables = Tables::new(counters());
    let rows = model(&tables.spec, 3, 1);
    (0..60).for_each(|minute| _ = tables.write(minute, &rows));
    let bytes = |table: &EpochTable| -> u64 {
        let folders = [table.table_path().to_owned(), table.table_path().join("_delta_log")];
        let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        files
            .map(|file| file.unwrap().metadata().unwrap())
            .filter(fs::Metadata::is_file)
            .map(|of| of.len())
            .sum()
    };
    let [sparing, all] = tables.tables.each_ref().map(bytes);
    assert!(sparing < 40_000 && all > 500_000, "{sparing} of {all} bytes");
}
