//! Translator and NIC in one thread: from report to memory. The floor is the sum of their floors.

use std::cell::RefCell;
use std::time::Instant;

use super::harness::{Rates, Scale, measure_shares, pin};
use super::key_write_bench::KeyWriteBench;
use super::translator::BATCH;
use super::write_bench::{ELEMENT, WriteBench};

/// Batches of a call.
const BATCHES: usize = 512;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin();
    let nic = RefCell::new(WriteBench::new(scale.memory, BATCH)?);
    let (store, slots, qpn) = {
        let target = &nic.borrow().target;
        let region = &target.registration;
        ((region.iova, region.rkey), region.len / ELEMENT as u64, target.queue_pair.qpn)
    };
    let translator = RefCell::new(KeyWriteBench::new(BATCH, slots, store, qpn));
    let mut answers = nic.borrow().target.responder.answer_batch(BATCH);
    let mut sent = 0;
    let rates = measure_shares(
        scale,
        || {
            let target = &mut nic.borrow_mut().target;
            let start = Instant::now();
            let reports = translator.borrow_mut().run(BATCHES, |frames| {
                for batch in frames.batches() {
                    target.responder.process(batch, &mut answers, &mut |full| full.clear());
                }
            });
            sent += reports;
            (reports, start.elapsed())
        },
        || {
            let start = Instant::now();
            std::hint::black_box(translator.borrow_mut().floor(BATCHES));
            let translated = start.elapsed();
            let (_, written) = nic.borrow_mut().floor((BATCH * BATCHES) as u64);
            ((BATCH * BATCHES) as u64, translated + written)
        },
    );
    let executed = nic.borrow().executed();
    anyhow::ensure!(executed == sent, "{sent} reports were translated, and {executed} came to memory");
    Ok(rates)
}
