//! Key-write queries of random keys; the floor is the hashes and the random loads.

use std::hint::black_box;

use anyhow::Context;
use dta_memory::reader::key_write;
use dta_memory::region::RegionOptions;
use dta_memory::store::MemoryBacking;
use dta_memory::store::Store;
use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::random::SplitMix64;
use dta_proto::store::{StoreKind, StoreSpec};

use super::harness::{Rates, Scale, measure_rates, pin_to_current_cpu};

const BATCH: usize = 64;
const TOGETHER: usize = 64;

/// Queries of random keys of a large store.
pub(super) struct Queries {
    store: Store,
    keys: Vec<Key>,
    next: usize,
    asked: u64,
    found: u64,
}

impl Queries {
    /// A store of `scale.memory` bytes, with one key per eight slots: lightly loaded, with keys all over the memory.
    pub(super) fn new(scale: &Scale) -> anyhow::Result<Queries> {
        let slots = scale.memory / 16;
        let present = slots / 8;
        let store = filled_store(slots, present, |number| [number as u8; 12])?;
        let mut random = SplitMix64(7);
        let keys: Vec<Key> = (0..slots / 16).map(|_| key_from_number(random.next_u64() % present)).collect();
        Ok(Queries { store, keys, next: 0, asked: 0, found: 0 })
    }

    /// Asks about the next keys.
    pub(super) fn query_next_keys(&mut self) -> u64 {
        let reader = key_write::KeyWriteReader::new(&self.store).expect("a key-write store");
        let mut answers = [key_write::KeyWriteReading::default(); BATCH];
        let mut values = [0; BATCH * 12];
        for _ in 0..TOGETHER {
            let keys = self.next..self.next + BATCH;
            self.next = if keys.end + BATCH > self.keys.len() { 0 } else { keys.end };
            reader
                .query_keys(&self.keys[keys], layout::key_write::Choice::First, &mut answers, &mut values)
                .expect("the store is whole");
            self.asked += BATCH as u64;
            self.found += answers.iter().filter(|answer| answer.found).count() as u64;
            black_box(&values);
        }
        (TOGETHER * BATCH) as u64
    }
}

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let mut queries = Queries::new(scale)?;
    let (keys, region, slots) = (queries.keys.clone(), queries.store.region.clone(), scale.memory / 16);
    let mut floor = keys.chunks_exact(BATCH).cycle();
    let rates = measure_rates(
        scale,
        || queries.query_next_keys(),
        || {
            for keys in floor.by_ref().take(TOGETHER) {
                let mut offsets = [[0; 2]; BATCH];
                for (key, offsets) in keys.iter().zip(&mut offsets) {
                    let h = hash::key_hash(key);
                    for (n, at) in offsets.iter_mut().enumerate() {
                        *at = layout::key_write::slot_offset(hash::slot_index(h, n, slots), 12);
                        region.prefetch_line(*at);
                    }
                }
                for at in offsets.as_flattened() {
                    black_box(region.load_u64(*at).unwrap_or(0));
                }
            }
            (TOGETHER * BATCH) as u64
        },
    );
    // At this load about 1 key in 20 is overwritten.
    let Queries { asked, found, .. } = queries;
    anyhow::ensure!(found * 10 > asked * 9, "{found} of {asked} keys were found");
    Ok(rates)
}

/// A key-write store of 12-byte values, with two copies of each of this many keys.
pub(super) fn filled_store(slots: u64, keys: u64, value: impl Fn(u64) -> [u8; 12]) -> anyhow::Result<Store> {
    let kind = StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2, keys: Default::default() };
    let spec = StoreSpec { id: 1, name: "bench".into(), kind };
    let store = Store::open(&spec, &MemoryBacking::Anonymous, RegionOptions { huge_pages: true })
        .context("memory for the store")?;
    let mut slot = [0; 16];
    for number in 0..keys {
        let key = key_from_number(number);
        layout::key_write::encode_slot(&mut slot, &key, &value(number));
        for at in hash::key_slots(&key, 2, slots).iter() {
            store.region.write(layout::key_write::slot_offset(*at, 12), &slot).context("inside the store")?;
        }
    }
    Ok(store)
}

pub(super) fn key_from_number(number: u64) -> Key {
    let mut random = SplitMix64(number);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random.next_u64().to_be_bytes());
    bytes[8..].copy_from_slice(&random.next_u64().to_be_bytes());
    Key(bytes)
}
