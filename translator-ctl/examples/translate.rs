//! How fast key-write datagrams become frames in memory, beside the floor: `cargo run --release -p dta-translator --example translate`.

use std::time::Instant;

use dta_translator::dataplane::bench::KeyWriteBench;

fn main() {
    const BATCH: usize = 64;
    const BATCHES: usize = 200_000;
    let mut bench = KeyWriteBench::new(BATCH, 1 << 26, (1 << 40, 0x1234), 0x11);
    for _ in 0..3 {
        let start = Instant::now();
        std::hint::black_box(bench.floor(BATCHES));
        let floor = start.elapsed();
        let start = Instant::now();
        let frames = bench.run(BATCHES, |frames| {
            std::hint::black_box(frames);
        });
        let took = start.elapsed();
        let rate = |d: std::time::Duration| frames as f64 / d.as_secs_f64() / 1e6;
        println!(
            "{frames} reports: {:.2} M/s, floor {:.2} M/s, ratio {:.2}",
            rate(took),
            rate(floor),
            rate(took) / rate(floor)
        );
    }
}
