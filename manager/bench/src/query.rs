//! Key-write queries of random keys; the floor is the hashes and the random loads.

use std::hint::black_box;

use anyhow::Context;
use dta_collector::config::MemoryConfig;
use dta_collector::region::RegionOptions;
use dta_collector::store::{Store, key_write};
use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_testbed::traffic::SplitMix;

use super::harness::{Rates, Scale, measure, pin};

const BATCH: usize = 64;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin();
    let slots = scale.memory / 16;
    let kind = StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2 };
    let spec = StoreSpec { id: 1, name: "bench".into(), kind };
    let store = Store::open(&spec, &MemoryConfig::Anonymous, RegionOptions { huge_pages: true })
        .context("memory for the store")?;
    // One key per eight slots: lightly loaded, with keys all over the memory.
    let present = slots / 8;
    let mut slot = [0; 16];
    for number in 0..present {
        let key = key(number);
        layout::key_write::encode(&mut slot, &key, &[number as u8; 12]);
        for at in hash::slots(&key, 2, slots).iter() {
            store.region.write(layout::key_write::offset(*at, 12), &slot).context("inside the store")?;
        }
    }
    let mut random = SplitMix(7);
    let keys: Vec<Key> = (0..slots / 16).map(|_| key(random.draw() % present)).collect();
    let reader = key_write::Reader::new(&store).context("a key-write store")?;
    let mut answers = [key_write::Answer::default(); BATCH];
    let mut values = [0; BATCH * 12];
    let (mut work, mut floor) = (keys.chunks_exact(BATCH).cycle(), keys.chunks_exact(BATCH).cycle());
    let (mut asked, mut found) = (0u64, 0u64);
    let rates = measure(
        scale,
        || {
            for keys in work.by_ref().take(64) {
                reader
                    .query(keys, layout::key_write::Policy::First, &mut answers, &mut values)
                    .expect("the store is whole");
                asked += BATCH as u64;
                found += answers.iter().filter(|answer| answer.found).count() as u64;
                black_box(&values);
            }
            64 * BATCH as u64
        },
        || {
            for keys in floor.by_ref().take(64) {
                let mut offsets = [[0; 2]; BATCH];
                for (key, offsets) in keys.iter().zip(&mut offsets) {
                    let h = hash::key_hash(key);
                    for (n, at) in offsets.iter_mut().enumerate() {
                        *at = layout::key_write::offset(hash::slot(h, n, slots), 12);
                        store.region.prefetch(*at);
                    }
                }
                for at in offsets.as_flattened() {
                    black_box(store.region.load_u64(*at).unwrap_or(0));
                }
            }
            64 * BATCH as u64
        },
    );
    // At this load about 1 key in 20 is overwritten.
    anyhow::ensure!(found * 10 > asked * 9, "{found} of {asked} keys were found");
    Ok(rates)
}

pub(super) fn key(number: u64) -> Key {
    let mut random = SplitMix(number);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random.draw().to_be_bytes());
    bytes[8..].copy_from_slice(&random.draw().to_be_bytes());
    Key(bytes)
}
