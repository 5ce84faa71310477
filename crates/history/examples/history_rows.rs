//! Makes tables of all kinds of stores in a folder, and prints their rows as JSON: what readers written by others must find there,
//! in the copies that it makes in object storage if a URL follows (with the feature `s3`), and in ClickHouse if the URL is that of a server
//! (with the feature `clickhouse`).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dta_history::{Cell, EpochFlush, EpochTable, HistoryEntry, HistoryEpoch, Retention};
use dta_proto::key::Key;
use dta_proto::layout::{key_increment, key_write, postcarding, sketch_merge};
use dta_proto::store::{Merge, SlotKeys, StoreKind, StoreSpec};
use dta_proto::to_hex_digits;
use serde_json::{Value, json};

fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("usage: history_rows FOLDER [URL]"));
    let key_write = |slots, keys| StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2, keys };
    let table = |name: &str, kind| {
        EpochTable::open(&dir, &StoreSpec { id: 1, name: name.to_owned(), kind }).expect("a table")
    };
    let paths = StoreKind::Postcarding { slots: 1 << 15, hops: 6, redundancy: 2 };
    let counters = StoreKind::KeyIncrement { slots: 1 << 15, redundancy: 2, replicas: 1 };
    let sketches =
        StoreKind::SketchMerge { columns: 1 << 15, rows: 3, epochs: 4, merge: Merge::Sum, expected: 2 };
    let lists = StoreKind::Append { lists: 4, ring: 64, batch_len: 64, entry_len: 12, notify: false };
    let tables = [
        table("key-write", key_write(1 << 15, SlotKeys::Hashed)),
        table("inline-key-write", key_write(1 << 15, SlotKeys::Inline)),
        table("postcarding", paths),
        table("key-increment", counters),
        table("sketch-merge", sketches),
        table("append", lists),
    ];
    for table in &tables {
        (0..7).for_each(|number| write(table, number));
        // Epochs 1 to 3 are one file, 0 is removed, 4 to 6 are as they were written; 5 is empty.
        table.compact_span(1..4).expect("compacted").expect("files");
        let retention = Retention { keep: Some(Duration::from_millis(100)), keep_bytes: None };
        assert_eq!(table.apply_retention(&retention, 102).expect("removed").epochs, [0]);
    }
    let checkpointed = table("key-write-checkpoint", key_write(1 << 8, SlotKeys::Hashed));
    (0..98).for_each(|number| write(&checkpointed, number));
    checkpointed.compact_span(0..50).expect("compacted").expect("files");
    (98..102).for_each(|number| write(&checkpointed, number));
    // As after a day.
    for version in 0..100 {
        let commit = checkpointed.table_path().join(format!("_delta_log/{version:020}.json"));
        std::fs::remove_file(commit).expect("a commit");
    }
    let mut summaries: Vec<Value> = tables.iter().chain([&checkpointed]).map(said).collect();
    let ((flows, of_flows), (events, of_events)) = (flows(&dir), events(&dir));
    summaries.extend([of_flows, of_events]);
    if let Some(url) = std::env::args().nth(2) {
        let all = tables.iter().chain([&checkpointed, &flows, &events]);
        if url.starts_with("http://") { insert(&url, all) } else { upload(&url, all) }
    }
    println!("{}", Value::from(summaries));
}

#[cfg(feature = "s3")]
fn upload<'a>(url: &str, tables: impl Iterator<Item = &'a EpochTable>) {
    use dta_history::s3::{Mirror, MirrorProgress, StorageBucket};

    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let bucket = StorageBucket::open(url, &std::env::vars().collect(), stopped).expect("a place");
    let bucket = std::sync::Arc::new(bucket);
    for table in tables {
        Mirror::new(bucket.clone(), &table.table_name())
            .mirror_table(table, &mut MirrorProgress::default())
            .expect("a copy");
    }
}

#[cfg(not(feature = "s3"))]
fn upload<'a>(url: &str, _: impl Iterator<Item = &'a EpochTable>) {
    panic!("{url}: built without the feature s3");
}

#[cfg(feature = "clickhouse")]
fn insert<'a>(url: &str, tables: impl Iterator<Item = &'a EpochTable>) {
    use dta_history::clickhouse::{ClickHouseServer, InsertProgress, Inserter};

    let server = std::sync::Arc::new(ClickHouseServer::open(url, "dta", None, None, "c1").expect("a URL"));
    server.check_server().expect("a server");
    for table in tables {
        let mut inserter = Inserter::new(server.clone(), &table.table_name());
        inserter.insert_new_epochs(table, &mut InsertProgress::default()).expect("all rows");
    }
}

#[cfg(not(feature = "clickhouse"))]
fn insert<'a>(url: &str, _: impl Iterator<Item = &'a EpochTable>) {
    panic!("{url}: built without the feature clickhouse");
}

/// Makes a table of rows with names.
fn flows(dir: &Path) -> (EpochTable, Value) {
    let kind = StoreKind::KeyWrite { slots: 8, value_len: 12, redundancy: 1, keys: SlotKeys::Hashed };
    let spec = StoreSpec { id: 1, name: "int-values".to_owned(), kind };
    let cells = [
        ("src", Cell::Address),
        ("dst", Cell::Address),
        ("name", Cell::Text),
        ("sport", Cell::U16),
        ("latency", Cell::U32),
        ("time", Cell::U64),
    ];
    let table = EpochTable::open_rows(dir, "int-values.flows", &spec, "flow", &cells).expect("a table");
    let mut rows = Vec::new();
    for number in 0..6 {
        let mut flush = table.begin_epoch(number).expect("a new epoch");
        for n in (0..20_000u32).filter(|_| number != 3) {
            let (v4, v6) = (Ipv4Addr::from_bits(n << 8), Ipv6Addr::from_bits(u128::MAX - u128::from(n)));
            // Above the first ones, some that need all bits.
            let id = if n < 1000 { n.into() } else { u64::from(n) << 47 | u64::from(n) };
            let sport = n as u16;
            let (latency, time) = (u32::MAX - n, u64::MAX - u64::from(n) * number);
            let addresses = [v4.to_ipv6_mapped().octets(), v6.octets()];
            // Of no bytes, and of all of them.
            let name = &"sixteen bytes is"[..n as usize % 17];
            let text: [u8; 16] = std::array::from_fn(|at| name.as_bytes().get(at).copied().unwrap_or(0));
            let numbers =
                [&sport.to_be_bytes()[..], &latency.to_be_bytes(), &time.to_be_bytes(), &[0; 2]].concat();
            flush.write_slots(id, &[addresses.as_flattened(), &text, &numbers].concat()).expect("a row");
            let time = time.cast_signed();
            rows.push(json!([number, id, v4.to_string(), v6.to_string(), name, sport, latency, time]));
        }
        let epoch =
            HistoryEpoch { number, opened: number, flipped_to: number + 1, ..HistoryEpoch::default() };
        flush.finish(&epoch).expect("committed");
    }
    table.compact_span(1..3).expect("compacted").expect("files");
    (table, json!({ "store": "int-values.flows", "rows": rows }))
}

/// Makes a table of entries with names.
fn events(dir: &Path) -> (EpochTable, Value) {
    let kind = StoreKind::Append { lists: 4, ring: 64, batch_len: 64, entry_len: 12, notify: false };
    let spec = StoreSpec { id: 1, name: "int-events".to_owned(), kind };
    let cells = [("name", Cell::Text), ("time", Cell::U64), ("src", Cell::Address)];
    let table = EpochTable::open_entries(dir, "int-events.events", &spec, &cells).expect("a table");
    let mut rows = Vec::new();
    for epoch in 0..6 {
        let mut flush = table.begin_epoch(epoch).expect("a new epoch");
        for n in 0..20_000u32 {
            let (list, sequence, number) = (n % 4, u32::MAX - n, (n % 5) as u16);
            let (name, source) = (&"congested-packet"[..n as usize % 17], Ipv4Addr::from_bits(n << 8));
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(16, 0);
            bytes.extend(u64::from(n).to_be_bytes());
            bytes.extend(source.to_ipv6_mapped().octets());
            flush.push(HistoryEntry { list, sequence, number, bytes: &bytes }).expect("an entry");
            rows.push(json!([epoch, list, sequence, number, name, n, source.to_string()]));
        }
        let of =
            HistoryEpoch { number: epoch, opened: epoch, flipped_to: epoch + 1, ..HistoryEpoch::default() };
        flush.finish(&of).expect("committed");
    }
    table.compact_span(1..3).expect("compacted").expect("files");
    (table, json!({ "store": "int-events.events", "rows": rows }))
}

/// The table's name, and all of its rows.
fn said(table: &EpochTable) -> Value {
    let mut rows = Vec::new();
    for kept in table.kept_epochs().expect("a log") {
        let number = kept.epoch.number;
        let read = match table.store_spec().kind {
            StoreKind::Append { .. } => table.scan_entries(number, |entry| {
                rows.push(json!([
                    number,
                    entry.list,
                    entry.sequence,
                    entry.number,
                    to_hex_digits(entry.bytes)
                ]));
                ControlFlow::Continue(())
            }),
            _ => table.scan_epoch(number, |slot, element| {
                rows.push(row(table.store_spec(), number, slot, element))
            }),
        };
        read.expect("an epoch");
    }
    json!({ "store": table.store_spec().name, "rows": rows })
}

/// Writes an epoch with something in every third slot; of lists, as many entries.
fn write(table: &EpochTable, number: u64) {
    let slots = match table.store_spec().kind {
        StoreKind::SketchMerge { columns, .. } => columns.into(),
        StoreKind::Append { .. } => 1 << 15,
        _ => table.store_spec().element_count(),
    };
    let used = (0..slots).filter(|slot| slot % 3 == number % 3 && number != 5);
    let mut flush = table.begin_epoch(number).expect("a new epoch");
    for slot in used {
        put(&mut flush, table.store_spec(), number, slot);
    }
    let epoch = HistoryEpoch {
        number,
        generation: 1,
        opened: number,
        flipped_from: number + 1,
        flipped_to: number + 1,
        confirmed: true,
        waterfall: json!({ "landed": number }),
        ..HistoryEpoch::default()
    };
    flush.finish(&epoch).expect("committed");
}

/// Puts in a slot, or an entry.
fn put(flush: &mut EpochFlush<'_>, spec: &StoreSpec, number: u64, slot: u64) {
    let key = Key(u128::from(number << 32 | slot).to_be_bytes());
    let value = (slot as u32).wrapping_mul(0x9e37_79b9);
    let mut element = [0; 64];
    let element = &mut element[..spec.element_len() as usize];
    match spec.kind {
        StoreKind::KeyWrite { keys, .. } => {
            let value = [value.to_be_bytes(), [0xff; 4], [0; 4]].concat();
            match keys {
                SlotKeys::Hashed => key_write::encode_slot(element, &key, &value),
                SlotKeys::Inline => key_write::encode_slot(
                    element,
                    &key,
                    &key_write::inline_value(&key, &value).expect("12 bytes"),
                ),
            }
        }
        StoreKind::Postcarding { .. } => {
            let mut path = postcarding::PostcardPath { length: 5, ..postcarding::PostcardPath::default() };
            for hop in (0..5).filter(|hop| slot >> hop & 1 == 1 || *hop == 0) {
                path.set(hop, if hop == 4 { value } else { u32::MAX - u32::from(hop) });
            }
            postcarding::encode_row(element, &key, &path);
        }
        StoreKind::KeyIncrement { .. } => {
            element.copy_from_slice(&key_increment::encode_counter(u64::from(value) << (slot % 31) | 1))
        }
        StoreKind::SketchMerge { rows, .. } => {
            let cells = [value, 0, u32::MAX, 0];
            let column =
                sketch_merge::SketchColumn { epoch: u32::MAX - number as u32, merged: 1, expected: 2, cells };
            sketch_merge::encode_column(element, rows, &column);
        }
        StoreKind::Append { .. } => {
            let (list, sequence, place) = ((slot % 4) as u32, value | 1, (slot % 5) as u16);
            let bytes = &key.0[..12];
            return flush.push(HistoryEntry { list, sequence, number: place, bytes }).expect("an entry");
        }
    }
    flush.write_slots(slot, element).expect("a slot");
}

/// A row as the table's columns have it; bytes in hexadecimal.
fn row(spec: &StoreSpec, epoch: u64, slot: u64, element: &[u8]) -> Value {
    let be32 =
        |at: usize| Value::from(u32::from_be_bytes(element[at..at + 4].try_into().expect("four bytes")));
    let be16 = |at: usize| Value::from(u16::from_be_bytes([element[at], element[at + 1]]));
    let mut row = vec![Value::from(epoch), Value::from(slot)];
    match spec.kind {
        StoreKind::KeyWrite { keys, .. } => {
            let (key, value) = element[4..].split_at(keys.inline_key_len().into());
            row.push(be32(0));
            row.extend(
                [key, value]
                    .into_iter()
                    .filter(|bytes| !bytes.is_empty())
                    .map(|bytes| to_hex_digits(bytes).into()),
            );
        }
        StoreKind::Postcarding { .. } => {
            row.extend([be32(0), be16(4), element[6].into()]);
            row.extend((8..element.len()).step_by(4).map(be32));
        }
        StoreKind::KeyIncrement { .. } => {
            // As Delta has it, which knows no unsigned numbers.
            row.push(key_increment::decode_counter(element).expect("eight bytes").cast_signed().into())
        }
        _ => row.extend([be32(0), be16(4), be16(6), be32(8), be32(12), be32(16)]),
    }
    Value::from(row)
}
