//! A history whose every row is known: key-write and postcarding stores over ten minutes, of which the first half is compacted.

use std::path::Path;

use dta_history::{EpochTable, HistoryEpoch};
use dta_proto::key::Key;
use dta_proto::layout::{hash, key_write, postcarding};
use dta_proto::store::{StoreKind, StoreSpec};
use serde_json::json;

/// 2026-11-24T14:00:00Z, in milliseconds since 1970.
pub(crate) const BEGIN: u64 = 1_795_528_800_000;
pub(crate) const MINUTE: u64 = 60_000;
/// The reason of an epoch's losses that grow.
pub(crate) const LINK: &str = "lost.translator-nic";
/// Epochs 1 to 10, of a minute each.
pub(crate) const EPOCHS: std::ops::RangeInclusive<u64> = 1..=10;
pub(crate) const FLOWS: u64 = 40;
const SLOTS: u64 = 4096;
pub(crate) const HOPS: u8 = 6;

pub(crate) fn flow(number: u64) -> String {
    format!("10.0.0.{}:5000->10.0.1.1:80/udp", number + 1)
}

fn key(number: u64) -> Key {
    flow(number).parse().unwrap()
}

/// What flow `number` reported in an epoch: packets, bytes, queue depth.
pub(crate) fn reported(number: u64, epoch: u64) -> Option<[u32; 3]> {
    let packets = 100 * number + epoch;
    (!(number + epoch).is_multiple_of(3))
        .then(|| [packets, 64 * packets, number * epoch % 50].map(|n: u64| n as u32))
}

/// The hops of a flow's path in an epoch: its second switch changes with the fifth epoch, and its postcard is lost of each seventh flow.
pub(crate) fn hops(number: u64, epoch: u64) -> [Option<u32>; 3] {
    let second = 10 + ((number + epoch / 5) % 3) as u32;
    [Some(1 + (number % 4) as u32), (!number.is_multiple_of(7)).then_some(second), Some(20)]
}

pub(crate) fn key_writes() -> StoreSpec {
    let kind = StoreKind::KeyWrite { slots: SLOTS, value_len: 12, redundancy: 2, keys: Default::default() };
    StoreSpec { id: 1, name: "flows".to_owned(), kind }
}

pub(crate) fn postcards() -> StoreSpec {
    let kind = StoreKind::Postcarding { slots: SLOTS, hops: HOPS, redundancy: 2 };
    StoreSpec { id: 2, name: "paths".to_owned(), kind }
}

/// The memory of a store at an epoch's end.
pub(crate) fn region(spec: &StoreSpec, epoch: u64) -> Vec<u8> {
    let len = spec.element_len() as usize;
    let mut region = vec![0; SLOTS as usize * len];
    for number in 0..FLOWS {
        let key = key(number);
        for slot in hash::key_slots(&key, 2, SLOTS).iter() {
            let element = &mut region[*slot as usize * len..][..len];
            match spec.kind {
                StoreKind::KeyWrite { .. } => {
                    if let Some(values) = reported(number, epoch) {
                        key_write::encode_slot(element, &key, &values.map(u32::to_be_bytes).concat());
                    }
                }
                _ => {
                    let mut path =
                        postcarding::PostcardPath { length: 3, ..postcarding::PostcardPath::default() };
                    for (hop, value) in (0..).zip(hops(number, epoch)) {
                        value.map(|value| path.set(hop, value));
                    }
                    postcarding::encode_row(element, &key, &path);
                }
            }
        }
    }
    region
}

/// Writes the history into a folder. Its epochs begin at `begin` (milliseconds since 1970).
pub(crate) fn history(folder: &Path, begin: u64) {
    for spec in [key_writes(), postcards()] {
        let table = EpochTable::open(folder, &spec).unwrap();
        for number in EPOCHS {
            let opened = begin + (number - 1) * MINUTE;
            let mut flush = table.begin_epoch(number).unwrap();
            flush.write_slots(0, &region(&spec, number)).unwrap();
            let epoch = HistoryEpoch {
                number,
                generation: 100 + number,
                opened,
                flipped_from: opened + MINUTE,
                flipped_to: opened + MINUTE + 500,
                confirmed: number != 7,
                waterfall: json!({
                    "sent": 1000 * number, "landed": 998 * number, "frames": 1996 * number,
                    "lost": { LINK: number, "dropped.nic.icrc": 1 },
                }),
                ..HistoryEpoch::default()
            };
            flush.finish(&epoch).unwrap();
        }
        table.compact_span(begin..begin + 5 * MINUTE).unwrap().expect("five files");
    }
}

/// How many slots of a store are used in an epoch.
pub(crate) fn used(spec: &StoreSpec, epoch: u64) -> usize {
    let len = spec.element_len() as usize;
    region(spec, epoch).chunks_exact(len).filter(|element| element.iter().any(|byte| *byte != 0)).count()
}

/// The copies of a flow that are its own at an epoch's end.
pub(crate) fn copies(spec: &StoreSpec, number: u64, epoch: u64) -> Vec<usize> {
    let (region, len, key) = (region(spec, epoch), spec.element_len() as usize, key(number));
    let is_own = |slot: u64| {
        let element = &region[slot as usize * len..][..len];
        match spec.kind {
            StoreKind::KeyWrite { .. } => key_write::verified_value(element, &key).is_some(),
            _ => postcarding::verified_path(element, &key).is_some(),
        }
    };
    hash::key_slots(&key, 2, SLOTS)
        .iter()
        .enumerate()
        .filter(|(_, slot)| is_own(**slot))
        .map(|(copy, _)| copy)
        .collect()
}
