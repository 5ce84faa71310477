//! Translator and NIC in one thread: from report to memory. The floor is the sum of their floors.

use dta_collector::nic::soft::Counter;
use dta_link::Batch;
use dta_translator::dataplane::bench::KeyWriteBench;

use super::harness::{Rates, Scale, measure, pin};
use super::nic;
use super::translator::BATCH;

const BATCHES: usize = 32;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin();
    let mut ready = nic::nic(scale.memory)?;
    let frames = nic::frames(scale.memory, ready.rkey, ready.qpn, 256);
    let slots = ready.region.len() / 16;
    let bench = std::cell::RefCell::new(KeyWriteBench::new(BATCH, slots, (nic::IOVA, ready.rkey), ready.qpn));
    let region = std::sync::Arc::clone(&ready.region);
    let mut answers = ready.responder.answer_batch(BATCH);
    let mut between = Batch::with_packet_capacity(BATCH, 128);
    let (mut sent, mut turn) = (0, 0);
    let rates = measure(
        scale,
        || {
            let reports = bench.borrow_mut().run(BATCHES, |frames| {
                between.clear();
                for frame in frames.iter() {
                    let _ = between.push(frame, 0);
                }
                ready.responder.process(&between, &mut answers, &mut |full| full.clear());
            });
            sent += reports;
            reports
        },
        || {
            std::hint::black_box(bench.borrow_mut().floor(BATCHES));
            for _ in 0..BATCHES {
                nic::floor(&frames[turn % frames.len()], &region);
                turn += 1;
            }
            (BATCH * BATCHES) as u64
        },
    );
    let executed = ready.responder.counts().get(Counter::ExecutedWrite);
    anyhow::ensure!(executed == sent, "{sent} reports were translated, and {executed} came to memory");
    Ok(rates)
}
