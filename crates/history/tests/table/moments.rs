//! The moments of a row's epoch in its Parquet file, for readers that do not know the log's tags.

use std::collections::BTreeSet;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;

use super::*;

/// Of each epoch in the files that the log names, what its rows say of `opened` and `closed` (microseconds).
fn moments_in_rows(table: &EpochTable) -> BTreeSet<(u64, [i64; 2])> {
    let mut found = BTreeSet::new();
    for file in table.data_files().unwrap() {
        let file = fs::File::open(table.table_path().join(&file.name)).unwrap();
        for row in SerializedFileReader::new(file).unwrap().get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let place = |name: &str| row.get_column_iter().position(|(column, _)| column == name).unwrap();
            let moment = |name: &str| row.get_timestamp_micros(place(name)).unwrap();
            found.insert((row.get_long(0).unwrap().cast_unsigned(), [moment("opened"), moment("closed")]));
        }
    }
    found
}

fn moments_in_log(table: &EpochTable) -> BTreeSet<(u64, [i64; 2])> {
    let kept = table.kept_epochs().unwrap();
    let moments = |kept: &KeptEpoch| [kept.epoch.opened, kept.epoch.flipped_to].map(|at| 1000 * at as i64);
    kept.iter().map(|kept| (kept.epoch.number, moments(kept))).collect()
}

#[test]
fn rows_say_when_their_epoch_began_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    // More slots than a row group has rows: the first one is written before the epoch's end is known.
    let spec = key_write(1 << 19, 4);
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let rows = model(&spec, 1, 1);
    assert!(rows.len() > 1 << 18);
    write(&table, &epoch(1), &rows).unwrap();
    assert_eq!(moments_in_rows(&table), moments_in_log(&table));
    let few = model(&key_write(64, 4), 2, 2);
    for number in 2..=5 {
        write(&table, &epoch(number), &few).unwrap();
    }
    assert_eq!(moments_in_rows(&table), moments_in_log(&table));
    table.compact_span(2 * MINUTE..4 * MINUTE).unwrap().unwrap();
    assert_eq!(moments_in_rows(&table), moments_in_log(&table));
    table.coarsen_span(2 * MINUTE..6 * MINUTE, |_| json!({})).unwrap().unwrap();
    assert_eq!(moments_in_rows(&table), moments_in_log(&table));
    assert_eq!(moments_in_log(&table).len(), 2);
}

#[test]
fn entries_of_lists_have_them_too() {
    let dir = tempfile::tempdir().unwrap();
    let kind = StoreKind::Append { lists: 2, ring: 64, batch_len: 64, entry_len: 12, notify: false };
    let table = EpochTable::open(dir.path(), &store(kind)).unwrap();
    for number in 1..=2 {
        let mut flush = table.begin_epoch(number).unwrap();
        for sequence in 1..=100 {
            flush.push(HistoryEntry { list: 1, sequence, number: 0, bytes: &[7; 12] }).unwrap();
        }
        flush.finish(&epoch(number)).unwrap();
    }
    assert_eq!(moments_in_rows(&table), moments_in_log(&table));
    assert_eq!(moments_in_log(&table).len(), 2);
}
