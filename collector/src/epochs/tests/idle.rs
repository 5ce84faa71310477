//! What an hour without reports leaves on disk.

use dta_export::directory::Meaning;
use dta_history::HistoryEpoch;
use dta_proto::key::Flow;
use dta_proto::layout::key_increment as counter;
use dta_proto::telemetry;
use dta_proto::wire::dta::EpochEnd;

use super::*;
use crate::epochs::key_directory::{KnownKeys, id};
use crate::epochs::write::write_epoch;

const MINUTE: u64 = 60_000;
const FLOWS: u32 = 7000;

fn flow(number: u32) -> Flow {
    format!("10.1.{}.{}:5000->10.0.0.2:80/tcp", number >> 8, number & 0xff).parse().unwrap()
}

/// Bytes of all files, and of the 4 KiB disk blocks that they take.
fn bytes_in(folder: &Path) -> (u64, u64) {
    let mut sums = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (bytes, blocks) = match entry.metadata().unwrap() {
            of if of.is_dir() => bytes_in(&entry.path()),
            of => (of.len(), of.len().next_multiple_of(4096)),
        };
        sums = (sums.0 + bytes, sums.1 + blocks);
    }
    sums
}

/// The default stores with epochs of a minute, and counters of 7000 flows: reports, packets and bytes of each.
#[test]
fn an_hour_without_reports_takes_less_than_a_megabyte() {
    let history = tempfile::tempdir().unwrap();
    let keep = keep(history.path());
    let specs = crate::config::default_stores();
    let stores = ServedStores::open(&specs, &MemoryBacking::Anonymous, RegionOptions::default()).unwrap();
    let counters = stores.get(telemetry::store::COUNTERS).unwrap();
    let mut known = KnownKeys::new();
    for number in 0..FLOWS {
        let flow = flow(number);
        known.insert(id(&flow.to_key()), (flow.to_key(), Meaning::Flow(flow)));
        for key in [flow.to_key(), telemetry::packets_key(&flow), telemetry::bytes_key(&flow)] {
            let (copies, slots) = (counters.spec.redundancy().unwrap(), counters.spec.element_count());
            for slot in hash::key_slots(&key, copies, slots).iter() {
                counters
                    .region
                    .fetch_add(counter::counter_offset(*slot), u64::from(number) * 977 + 1)
                    .unwrap();
            }
        }
    }
    let tables: Vec<(Arc<Store>, EpochTable, Vec<Typed>)> = (specs.iter())
        .map(|spec| {
            let span = thin::compaction_span(&keep, spec);
            let table = EpochTable::open(history.path(), spec).unwrap().with_unchanged_epochs(span);
            (stores.get(&spec.name).unwrap(), table, Typed::open(history.path(), spec, span).unwrap())
        })
        .collect();
    // The last epoch is the first of the next hour; its commit names all earlier ones.
    for minute in 0..=60 {
        for (store, table, typed) in &tables {
            let end = store.spec.kind.primitive().epoch_end();
            // Reporters number the epochs of sketches: without reports there are none.
            if end == EpochEnd::Closes {
                continue;
            }
            let opened = HOUR + minute * MINUTE;
            let waterfall = serde_json::json!({ "sent": 0, "landed": 0, "frames": 0, "lost": {} });
            let epoch = HistoryEpoch {
                opened,
                flipped_from: opened + MINUTE,
                flipped_to: opened + MINUTE + 1003,
                confirmed: true,
                waterfall,
                ..HistoryEpoch::default()
            };
            let epoch = write_epoch(table, epoch, |flush, _| match end {
                EpochEnd::Reads => elements::read(store, |first, bytes| Ok(flush.write_slots(first, bytes)?)),
                _ => Ok(()),
            })
            .unwrap();
            typed.iter().for_each(|typed| typed.write_epoch(table, store, &epoch, &known).unwrap());
        }
    }
    let (bytes, on_disk) = bytes_in(history.path());
    let count = tables.iter().map(|(_, _, typed)| 1 + typed.len()).sum::<usize>();
    assert!(bytes < 1_000_000 && on_disk < 1_500_000, "{bytes} bytes of {count} tables, {on_disk} on disk");
    // Each moment has its counts.
    let (_, table, typed) =
        tables.iter().find(|(store, ..)| store.spec.name == telemetry::store::COUNTERS).unwrap();
    assert_eq!(table.kept_epochs().unwrap().len(), 61);
    for number in [1, 31, 60, 61] {
        let mut rows = 0;
        typed[0].table.scan_epoch(number, |_, _| rows += 1).unwrap();
        assert_eq!(rows, FLOWS, "epoch {number}");
    }
}
