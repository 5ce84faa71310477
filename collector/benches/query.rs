//! How fast readers answer, each beside its floor: the same hashes, loads and checksums with nothing else, in the same run.
//!
//! `cargo bench -p dta-collector` prints one line of JSON per figure.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dta_collector::config::Memory;
use dta_collector::region::RegionOptions;
use dta_collector::store::{Store, append, key_write};
use dta_proto::crc;
use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::store::{StoreKind, StoreSpec};

const BATCH: usize = 64;

fn main() {
    // `cargo test --benches` runs this too: small, to see that it works.
    let full = std::env::args().any(|a| a == "--bench");
    let (slots, rounds, ring) = if full { (1 << 26, 1 << 16, 1 << 20) } else { (1 << 12, 4, 1 << 8) };
    key_write(slots, rounds);
    append(ring, if full { 16 } else { 1 });
}

fn report(name: &str, operations: u64, took: Duration, floor: Duration) {
    let rate = |t: Duration| operations as f64 / t.as_secs_f64();
    println!(
        "{{\"name\":\"{name}\",\"unit\":\"ops/s\",\"value\":{:.0},\"floor\":{:.0},\"ratio\":{:.2}}}",
        rate(took),
        rate(floor),
        rate(took) / rate(floor)
    );
}

fn key(i: u64) -> Key {
    let mut bytes = [0; 16];
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes[..8].copy_from_slice(&mixed.to_le_bytes());
    bytes[8..].copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
    Key(bytes)
}

/// N = 2, 12-byte values, 16-byte slots (1 GiB in full), random keys of which half are there.
fn key_write(slots: u64, rounds: usize) {
    let kind = StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2 };
    let store = Store::open(
        &StoreSpec { id: 1, name: "s".into(), kind },
        &Memory::Anonymous,
        RegionOptions::default(),
    )
    .expect("memory for the store");
    let present = slots / 8;
    let mut slot = [0; 16];
    for i in 0..present {
        let key = key(i);
        layout::key_write::encode(&mut slot, &key, &[i as u8; 12]);
        for at in hash::slots(&key, 2, slots).iter() {
            store.region.write(layout::key_write::offset(*at, 12), &slot).expect("inside");
        }
    }
    eprintln!("key-write store in {}", store.region.pages());
    for (name, spread) in
        [("key-write query, N=2, keys present", present), ("key-write query, N=2, half absent", 2 * present)]
    {
        let keys: Vec<Key> = (0..rounds * BATCH)
            .map(|i| key((i as u64).wrapping_mul(0x2545_f491_4f6c_dd1d) % spread))
            .collect();
        let reader = key_write::Reader::new(&store).expect("a key-write store");
        let mut answers = [key_write::Answer::default(); BATCH];
        let mut values = [0; BATCH * 12];
        // Floor: hashes and prefetched loads.
        let mut best = [Duration::MAX; 2];
        for _ in 0..3 {
            let began = Instant::now();
            for keys in keys.chunks_exact(BATCH) {
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
            best[0] = best[0].min(began.elapsed());
            let began = Instant::now();
            for keys in keys.chunks_exact(BATCH) {
                reader.query(keys, layout::key_write::Policy::First, &mut answers, &mut values);
                black_box((&answers, &values));
            }
            best[1] = best[1].min(began.elapsed());
        }
        report(name, keys.len() as u64, best[1], best[0]);
    }
}

/// 64-byte batches of 4-byte entries, checked; the floor reads the memory and computes the CRC.
fn append(ring: u64, turns: u32) {
    let kind = StoreKind::Append { lists: 1, ring, batch_len: 64, entry_len: 4, notify: false };
    let store = Store::open(
        &StoreSpec { id: 1, name: "s".into(), kind },
        &Memory::Anonymous,
        RegionOptions::default(),
    )
    .expect("memory for the store");
    let mut batch = [0; 64];
    for sequence in 1..=ring as u32 {
        layout::append::encode(&mut batch, 0, sequence, 14, &[sequence as u8; 56]);
        store.region.write(layout::append::offset(0, sequence, ring, 64), &batch).expect("inside");
    }
    let lists = append::Lists::new(&store).expect("an append store");
    let mut best = [Duration::MAX; 2];
    for _ in 0..3 {
        let began = Instant::now();
        for _ in 0..turns {
            for place in 0..ring {
                store.region.read(64 * place, &mut batch).expect("inside");
                black_box(crc::crc32_update(crc::crc32(&[0; 4]), &batch[..61]));
            }
        }
        best[0] = best[0].min(began.elapsed());
        let began = Instant::now();
        for _ in 0..turns {
            let mut reader = lists.reader(0, append::Start::At(1)).expect("a list");
            let mut sum = 0u64;
            let progress = reader.read(u64::MAX, began, |_, entries| sum += u64::from(entries[0]));
            assert_eq!(progress.batches, ring);
            black_box(sum);
        }
        best[1] = best[1].min(began.elapsed());
    }
    report("append tail, 64-byte batches (entries)", 14 * ring * u64::from(turns), best[1], best[0]);
}
