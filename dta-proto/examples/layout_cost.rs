//! What the per-report arithmetic costs on this machine: `cargo run --release -p dta-proto
//! --example layout_cost`.
//!
//! Nanoseconds per call on one core, the best of five runs over a million distinct keys.

use std::hint::black_box;
use std::time::Instant;

use dta_proto::key::Key;
use dta_proto::layout::{append, hash, key_write, postcarding};

const KEYS: usize = 1 << 20;

fn measure(name: &str, mut call: impl FnMut(usize)) {
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..KEYS).for_each(&mut call);
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<40} {:6.1} ns", best * 1e9 / KEYS as f64);
}

fn main() {
    let keys: Vec<Key> = (0..KEYS as u64)
        .map(|i| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            key[8..].copy_from_slice(&i.to_be_bytes());
            Key(key)
        })
        .collect();
    let slots = 1 << 26;
    for n in 1..=4u8 {
        measure(&format!("slots, N = {n}"), |i| {
            black_box(hash::key_slots(black_box(&keys[i]), n, slots));
        });
    }
    for len in [4, 12, 28, 60] {
        let value = vec![7; len];
        measure(&format!("checksum, {len}-byte value"), |i| {
            black_box(hash::value_checksum(black_box(&keys[i]), &value));
        });
    }
    for n in [1, 2] {
        let value = [7; 12];
        measure(&format!("slots + checksum, N = {n}, 12-byte value"), |i| {
            black_box((
                hash::key_slots(black_box(&keys[i]), n, slots),
                hash::value_checksum(&keys[i], &value),
            ));
        });
    }
    let mut slot = [0; 16];
    measure("key-write slot, 12-byte value", |i| {
        key_write::encode_slot(black_box(&mut slot), &keys[i], &[7; 12]);
    });
    let mut row = [0; 32];
    let path = postcarding::PostcardPath { bitmap: 31, length: 5, hops: [9; 14] };
    measure("postcarding row, 32 bytes", |i| {
        postcarding::encode_row(black_box(&mut row), &keys[i], &path);
    });
    let mut batch = [0; 64];
    append::encode_batch(&mut batch, 3, 1, 14, &[9; 56]);
    measure("append batch of 64 bytes: check and decode", |_| {
        black_box(append::decode_batch(black_box(&batch), 3, 4));
    });
}
