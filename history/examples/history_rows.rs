//! Makes tables of both kinds of stores in a folder, and prints their rows as JSON: what readers written by others must find there.

use std::path::PathBuf;
use std::time::Duration;

use dta_history::{Epoch, Retention, Table};
use dta_proto::key::Key;
use dta_proto::layout::{key_write, postcarding};
use dta_proto::store::{StoreKind, StoreSpec};
use serde_json::{Value, json};

fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("usage: history_rows FOLDER"));
    let key_write = |slots| StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2 };
    let table = |name: &str, kind| {
        Table::open(&dir, &StoreSpec { id: 1, name: name.to_owned(), kind }).expect("a table")
    };
    let paths = StoreKind::Postcarding { slots: 1 << 15, hops: 6, redundancy: 2 };
    let tables = [table("key-write", key_write(1 << 15)), table("postcarding", paths)];
    for table in &tables {
        (0..7).for_each(|number| write(table, number));
        // Epochs 1 to 3 are one file, 0 is removed, 4 to 6 are as they were written; 5 is empty.
        table.compact(1..4).expect("compacted").expect("files");
        let retention = Retention { keep: Some(Duration::from_millis(100)), keep_bytes: None };
        assert_eq!(table.retain(&retention, 102).expect("removed").epochs, [0]);
    }
    let checkpointed = table("key-write-checkpoint", key_write(1 << 8));
    (0..98).for_each(|number| write(&checkpointed, number));
    checkpointed.compact(0..50).expect("compacted").expect("files");
    (98..102).for_each(|number| write(&checkpointed, number));
    // As after a day.
    for version in 0..100 {
        let commit = checkpointed.path().join(format!("_delta_log/{version:020}.json"));
        std::fs::remove_file(commit).expect("a commit");
    }
    let tables: Vec<Value> = tables.iter().chain([&checkpointed]).map(said).collect();
    println!("{}", Value::from(tables));
}

/// The table's name, and all of its rows.
fn said(table: &Table) -> Value {
    let mut rows = Vec::new();
    for kept in table.epochs().expect("a log") {
        let number = kept.epoch.number;
        table
            .scan(number, |slot, element| rows.push(row(table.spec(), number, slot, element)))
            .expect("an epoch");
    }
    json!({ "store": table.spec().name, "rows": rows })
}

/// Writes an epoch with something in every third slot.
fn write(table: &Table, number: u64) {
    let len = table.spec().element_len() as usize;
    let slots = table.spec().elements();
    let mut region = vec![0; slots as usize * len];
    let used = (0..slots).filter(|slot| slot % 3 == number % 3 && number != 5);
    for slot in used {
        let element = &mut region[slot as usize * len..][..len];
        let key = Key(u128::from(number << 32 | slot).to_be_bytes());
        let value = (slot as u32).wrapping_mul(0x9e37_79b9);
        match table.spec().kind {
            StoreKind::KeyWrite { .. } => {
                key_write::encode(element, &key, &[value.to_be_bytes(), [0xff; 4], [0; 4]].concat())
            }
            _ => {
                let mut path = postcarding::Path { length: 5, ..postcarding::Path::default() };
                for hop in (0..5).filter(|hop| slot >> hop & 1 == 1 || *hop == 0) {
                    path.set(hop, if hop == 4 { value } else { u32::MAX - u32::from(hop) });
                }
                postcarding::encode(element, &key, &path);
            }
        }
    }
    let mut flush = table.begin(number).expect("a new epoch");
    flush.put(0, &region).expect("its rows");
    let epoch = Epoch {
        number,
        generation: 1,
        opened: number,
        flipped_from: number + 1,
        flipped_to: number + 1,
        confirmed: true,
        waterfall: json!({ "landed": number }),
    };
    flush.finish(&epoch).expect("committed");
}

/// A row as the table's columns have it; bytes in hexadecimal.
fn row(spec: &StoreSpec, epoch: u64, slot: u64, element: &[u8]) -> Value {
    let be32 = |at: usize| u32::from_be_bytes(element[at..at + 4].try_into().expect("four bytes"));
    let mut row = vec![Value::from(epoch), Value::from(slot), Value::from(be32(0))];
    match spec.kind {
        StoreKind::KeyWrite { .. } => {
            row.push(element[4..].iter().map(|byte| format!("{byte:02x}")).collect::<String>().into());
        }
        _ => {
            row.push(u16::from_be_bytes([element[4], element[5]]).into());
            row.push(element[6].into());
            row.extend((8..element.len()).step_by(4).map(|at| Value::from(be32(at))));
        }
    }
    Value::from(row)
}
