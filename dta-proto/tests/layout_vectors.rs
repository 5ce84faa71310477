//! Checks the layout against `vectors/layout.json`, which `vectors/layout.py` wrote without this
//! crate's code.

use dta_proto::key::Key;
use dta_proto::layout::{append, hash, key_increment, key_write, postcarding, sketch_merge};
use dta_proto::store::Merge;
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../vectors/layout.json")).unwrap()
}

/// The vectors under `path`; an empty list is a mistake in the file.
fn cases<'a>(all: &'a Value, path: &str) -> &'a [Value] {
    let list = all.pointer(path).and_then(Value::as_array).unwrap_or_else(|| panic!("no list {path}"));
    assert!(!list.is_empty(), "{path} is empty");
    list
}

fn hex(case: &Value, field: &str) -> Vec<u8> {
    let text = case[field].as_str().unwrap_or_else(|| panic!("no {field} in {case}"));
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn key(case: &Value) -> Key {
    Key(hex(case, "key").try_into().unwrap())
}

fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(case: &Value, field: &str) -> T {
    case[field].as_u64().unwrap_or_else(|| panic!("no {field} in {case}")).try_into().unwrap()
}

fn numbers(case: &Value, field: &str) -> Vec<u64> {
    case[field].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

#[test]
fn slots() {
    for case in cases(&vectors(), "/slots") {
        let slots: u64 = number(case, "slots");
        assert_eq!(hash::key_hash(&key(case)), number::<u32>(case, "hash"), "{case}");
        assert_eq!(&hash::key_slots(&key(case), 8, slots)[..], numbers(case, "at"), "{case}");
    }
}

#[test]
fn key_write_slots() {
    for case in cases(&vectors(), "/key_write") {
        let expect = hex(case, "slot");
        let (key, value, is_inline) = (key(case), hex(case, "value"), case["keys"] == "inline");
        let held = if is_inline { key_write::inline_value(&key, &value).unwrap().to_vec() } else { value };
        let mut slot = vec![0xaa; expect.len()];
        key_write::encode_slot(&mut slot, &key, &held);
        assert_eq!(slot, expect, "{case}");
        assert_eq!(key_write::verified_value(&expect, &key), Some(&expect[4..]), "{case}");
        let whole = if is_inline { key_write::matches_inline } else { key_write::verified_value };
        let value_len = number::<usize>(case, "value_len");
        assert_eq!(whole(&expect, &key), Some(&expect[expect.len() - value_len..]), "{case}");
        assert_eq!(key_write::slot_offset(3, expect.len() as u8 - 4), 3 * expect.len() as u64);
    }
    for case in cases(&vectors(), "/rejected/key_write") {
        let whole =
            if case["keys"] == "inline" { key_write::matches_inline } else { key_write::verified_value };
        assert_eq!(whole(&hex(case, "slot"), &key(case)), None, "{case}");
    }
}

#[test]
fn postcarding_rows() {
    for case in cases(&vectors(), "/postcarding") {
        let mut path =
            postcarding::PostcardPath { length: number(case, "path_length"), ..Default::default() };
        for (hop, value) in case["values"].as_object().unwrap() {
            assert!(path.set(hop.parse().unwrap(), value.as_u64().unwrap() as u32));
        }
        let expect = hex(case, "row");
        let mut row = vec![0xaa; postcarding::row_length(number(case, "hops")) as usize];
        postcarding::encode_row(&mut row, &key(case), &path);
        assert_eq!(row, expect, "{case}");
        assert_eq!(postcarding::verified_path(&expect, &key(case)), Some(path), "{case}");
        assert_eq!(path.is_complete(), case["complete"].as_bool().unwrap(), "{case}");
        assert_eq!(postcarding::row_offset(3, number(case, "hops")), 3 * expect.len() as u64);
    }
    for case in cases(&vectors(), "/rejected/postcarding") {
        assert_eq!(postcarding::verified_path(&hex(case, "row"), &key(case)), None, "{case}");
    }
}

#[test]
fn append_batches() {
    for case in cases(&vectors(), "/append") {
        let (expect, entries) = (hex(case, "batch"), hex(case, "entries"));
        let (list, sequence, count) = (number(case, "list"), number(case, "sequence"), number(case, "count"));
        let mut batch = vec![0xaa; expect.len()];
        append::encode_batch(&mut batch, list, sequence, count, &entries);
        assert_eq!(batch, expect, "{case}");
        let decoded = append::decode_batch(&expect, list, number(case, "entry_len"));
        assert_eq!(decoded, append::RingBatch::Valid { sequence, count, entries: &entries }, "{case}");
        let ring = number(case, "ring");
        assert_eq!(append::ring_place(sequence, ring), number::<u64>(case, "place"), "{case}");
        assert_eq!(
            append::batch_offset(list, sequence, ring, expect.len() as u16),
            number::<u64>(case, "offset"),
            "{case}"
        );
    }
    for case in cases(&vectors(), "/rejected/append") {
        let expect = match case["verdict"].as_str().unwrap() {
            "empty" => append::RingBatch::Empty,
            "torn" => append::RingBatch::Torn,
            other => panic!("no verdict is called {other}"),
        };
        let batch = hex(case, "batch");
        assert_eq!(
            append::decode_batch(&batch, number(case, "list"), number(case, "entry_len")),
            expect,
            "{case}"
        );
    }
}

#[test]
fn key_increment_counters() {
    for case in cases(&vectors(), "/key_increment") {
        let slots = hash::key_slots(&key(case), 8, number(case, "slots"));
        let offsets: Vec<u64> = slots.iter().map(|s| key_increment::counter_offset(*s)).collect();
        assert_eq!(offsets, numbers(case, "offsets"), "{case}");
        assert_eq!(&key_increment::encode_counter(number(case, "counter"))[..], hex(case, "bytes"), "{case}");
        assert_eq!(
            key_increment::decode_counter(&hex(case, "bytes")),
            Some(number(case, "counter")),
            "{case}"
        );
    }
}

#[test]
fn sketch_merge_columns() {
    for case in cases(&vectors(), "/sketch_merge") {
        let given = numbers(case, "cells");
        let rows = given.len() as u8;
        let mut cells = [0; 4];
        cells.iter_mut().zip(&given).for_each(|(cell, n)| *cell = *n as u32);
        let column = sketch_merge::SketchColumn {
            epoch: number(case, "epoch"),
            merged: number(case, "merged"),
            expected: number(case, "expected"),
            cells,
        };
        let expect = hex(case, "bytes");
        let mut bytes = vec![0xaa; sketch_merge::column_len(rows) as usize];
        sketch_merge::encode_column(&mut bytes, rows, &column);
        assert_eq!(bytes, expect, "{case}");
        assert_eq!(sketch_merge::decode_column(&expect, rows), Some(column), "{case}");
        let (epochs, columns) = (number(case, "epochs"), number(case, "columns"));
        let offset = sketch_merge::column_offset(column.epoch, number(case, "column"), epochs, columns, rows);
        assert_eq!(offset, number::<u64>(case, "offset"), "{case}");
    }
    for case in cases(&vectors(), "/merge") {
        let (a, b) = (number(case, "a"), number(case, "b"));
        for (how, name) in [(Merge::Sum, "sum"), (Merge::Max, "max"), (Merge::Or, "or")] {
            assert_eq!(sketch_merge::merge_cells(how, a, b), number::<u32>(case, name), "{case} {name}");
        }
    }
}
