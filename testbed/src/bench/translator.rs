//! A key-write datagram to a finished RoCEv2 frame; the floor is the CRCs and the copy of the frame.

use super::harness::{Rates, Scale, measure_shares, pin_to_current_cpu};
use super::key_write_bench::KeyWriteBench;

pub(super) const BATCH: usize = 64;
/// Batches per call: about a millisecond.
const BATCHES: usize = 64;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let bench = std::cell::RefCell::new(KeyWriteBench::new(1, BATCH, 1 << 20, (1 << 40, 7), 5));
    Ok(measure_shares(
        scale,
        || {
            bench.borrow_mut().run(BATCHES, |frames| {
                std::hint::black_box(frames);
            })
        },
        |_| bench.borrow_mut().run_floor(BATCHES),
    ))
}
