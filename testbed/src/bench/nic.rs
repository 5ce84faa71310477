//! UC WRITE frames into a large region at random; the floor is the CRC and the random store.

use super::harness::{Rates, Scale, measure_shares, pin_to_current_cpu};
use super::translator::BATCH;
use super::write_bench::WriteBench;

/// Frames per call: a millisecond or two.
const FRAMES: u64 = 32_768;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let bench = std::cell::RefCell::new(WriteBench::new(scale.memory, BATCH)?);
    let mut handed = 0;
    let rates = measure_shares(
        scale,
        || {
            let share = bench.borrow_mut().run(FRAMES);
            handed += share.0;
            share
        },
        |turn| bench.borrow_mut().run_floor(FRAMES, turn),
    );
    let executed = bench.borrow().executed_writes();
    anyhow::ensure!(executed == handed, "{handed} frames were handed to the NIC, and {executed} executed");
    Ok(rates)
}

/// A store that fits into the caches.
pub(super) fn bench_small_region(scale: &Scale) -> anyhow::Result<Rates> {
    run(&Scale { memory: 1 << 22, ..*scale })
}
