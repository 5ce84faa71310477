//! Compares the CRCs here with other crates' at the lengths that DTA uses:
//! `cargo run --release -p dta-crc --example compare`. Prints nanoseconds per CRC, the best of many short
//! rounds.

use std::hint::black_box;
use std::time::Instant;

/// CRCs per round: short, so that some rounds are not interrupted.
const ROUND: usize = 20_000;
const ROUNDS: usize = 300;

fn time(name: &str, len: usize, crc: impl Fn(&[u8]) -> u32) {
    let data: Vec<u8> = (0..4096 + len).map(|i| (i * 7 + i / 251) as u8).collect();
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut all = 0;
        for i in 0..ROUND {
            let at = (i * 16) & 4095;
            all ^= crc(black_box(&data[at..at + len]));
        }
        black_box(all);
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:32} {len:4} bytes {:6.2} ns", best / ROUND as f64 * 1e9);
}

fn main() {
    static MASK: dta_proto::crc::Mask = dta_proto::crc::Mask::with_ones_at(&[1, 8, 10, 11, 26, 27, 32]);
    for len in [16, 20, 36, 60, 76, 110] {
        time("CRC-32, dta-crc", len, |b| dta_proto::crc::crc32_update(1, b));
        time("CRC-32, dta-crc, masked", len, |b| dta_proto::crc::crc32_update_masked(1, b, &MASK));
        time("CRC-32, crc32fast", len, |b| {
            let mut hasher = crc32fast::Hasher::new_with_initial(1);
            hasher.update(b);
            hasher.finalize()
        });
        time("CRC-32, crc-fast", len, |b| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, b) as u32);
    }
    time("CRC-32C, dta-crc, one word", 4, |b| dta_proto::crc::crc32c_u32(b.len() as u32));
    for len in [4, 16, 20, 36, 60] {
        time("CRC-32C, dta-crc", len, dta_proto::crc::crc32c);
        time("CRC-32C, crc32c", len, crc32c::crc32c);
        time("CRC-32C, crc-fast", len, |b| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, b) as u32);
    }
}
