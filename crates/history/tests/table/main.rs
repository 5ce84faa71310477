//! The table of a store.

mod bad_days;
mod damage;
mod epochs;
mod kinds;
mod moments;
mod thinning;
mod unchanged;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dta_history::{
    EpochTable, HistoryEntry, HistoryEpoch, HistoryError, KeptEpoch, RemovedEpochs, Retention, SpanFiles,
};
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use proptest::prelude::*;
use serde_json::json;

const MINUTE: u64 = 60_000;

fn store(kind: StoreKind) -> StoreSpec {
    StoreSpec { id: 1, name: "last".to_owned(), kind }
}

fn key_write(slots: u64, value_len: u8) -> StoreSpec {
    store(StoreKind::KeyWrite { slots, value_len, redundancy: 2, keys: Default::default() })
}

fn sketch(rows: u8) -> StoreSpec {
    store(StoreKind::SketchMerge { columns: 512, rows, epochs: 2, merge: Merge::Sum, expected: 2 })
}

/// Epoch `number` is the minute of this number.
fn epoch(number: u64) -> HistoryEpoch {
    HistoryEpoch {
        number,
        generation: 10 + number,
        opened: number * MINUTE,
        flipped_from: (number + 1) * MINUTE,
        flipped_to: (number + 1) * MINUTE + 20,
        confirmed: true,
        waterfall: json!({ "landed": 7 * number }),
        ..HistoryEpoch::default()
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
    let mut rows = Model::new();
    let slots = match spec.kind {
        StoreKind::SketchMerge { columns, .. } => columns.into(),
        _ => spec.element_count(),
    };
    for slot in 0..slots {
        if random().is_multiple_of(every) {
            let mut element: Vec<u8> = (0..spec.element_len()).map(|_| random() as u8).collect();
            if let StoreKind::SketchMerge { rows, .. } = spec.kind {
                // What stands behind the cells means nothing.
                element[8 + 4 * usize::from(rows)..].fill(0);
            }
            rows.insert(slot, element);
        }
    }
    rows
}

fn write(
    table: &EpochTable,
    epoch: &HistoryEpoch,
    rows: &Model,
) -> Result<dta_history::WrittenEpoch, HistoryError> {
    let mut flush = table.begin_epoch(epoch.number)?;
    for (slot, element) in rows {
        flush.write_slots(*slot, element)?;
    }
    flush.finish(epoch)
}

fn scanned(table: &EpochTable, epoch: u64) -> Model {
    let mut rows = Model::new();
    table.scan_epoch(epoch, |slot, element| assert!(rows.insert(slot, element.to_vec()).is_none())).unwrap();
    rows
}

fn check_slots(table: &EpochTable, epoch: u64, rows: &Model, slots: &[u64]) {
    let len = table.store_spec().element_len() as usize;
    let mut out = vec![0xaa; slots.len() * len];
    table.read_slots(epoch, slots, &mut out).unwrap();
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

fn data_files(table: &EpochTable) -> Vec<String> {
    names(table.table_path()).into_iter().filter(|name| name != "_delta_log").collect()
}

fn commit_file(table: &EpochTable, version: u64) -> PathBuf {
    table.table_path().join("_delta_log").join(format!("{version:020}.json"))
}
