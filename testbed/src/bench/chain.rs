//! Translator and NIC in one thread, from report to memory. The floor is the sum of their floors.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context as _;
use dta_dataplane::PacketBatches;
use dta_memory::reader::key_write;
use dta_memory::store::Store;
use dta_proto::batch::PacketBatch;
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_write::{CHECKSUM_LEN, Choice};
use dta_proto::store::{StoreKind, StoreSpec};

use super::harness::{Rates, Scale, measure_shares, pin_to_current_cpu};
use super::key_write_bench::BATCH;
use super::key_write_bench::KeyWriteBench;
use super::write_bench::{ELEMENT, Target, WriteBench};

const BATCHES: usize = 512;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let nic = RefCell::new(WriteBench::new(scale.memory, BATCH)?);
    let (store, slots, qpn) = {
        let target = &nic.borrow().target;
        let region = &target.registration;
        ((region.iova, region.rkey), region.len / ELEMENT as u64, target.queue_pair.qpn)
    };
    let translator = RefCell::new(KeyWriteBench::new(1, BATCH, slots, store, qpn));
    let mut answers = nic.borrow().target.responder.answer_batch(BATCH);
    let mut sent = 0;
    let rates = measure_shares(
        scale,
        || {
            let target = &mut nic.borrow_mut().target;
            let share =
                translator.borrow_mut().run(BATCHES, |frames| execute_frames(target, frames, &mut answers));
            sent += share.0;
            share
        },
        |turn| {
            let (reports, translated) = translator.borrow_mut().run_floor(BATCHES);
            let (_, written) = nic.borrow_mut().run_floor(reports, turn);
            (reports, translated + written)
        },
    );
    let mut last = translator.borrow_mut();
    let target = &mut nic.borrow_mut().target;
    sent += last.run(BATCHES, |frames| execute_frames(target, frames, &mut answers)).0;
    check_reported_values(target, last.reported_values(BATCHES))?;
    let executed = target.executed_writes();
    anyhow::ensure!(executed == sent, "{sent} reports were translated, but {executed} reached memory");
    Ok(rates)
}

fn execute_frames(target: &mut Target, frames: &PacketBatches, answers: &mut PacketBatch) {
    for batch in frames.batches() {
        target.responder.process_packets(batch, answers, &mut |full| full.clear());
    }
}

/// Queries every reported key: the reader has its value, unless a later one of these keys overwrote it.
fn check_reported_values<'a>(
    target: &Target,
    reported: impl Iterator<Item = (Key, &'a [u8])>,
) -> anyhow::Result<()> {
    let slots = target.registration.len / ELEMENT as u64;
    let value_len = (ELEMENT - CHECKSUM_LEN) as u8;
    let kind = StoreKind::KeyWrite { slots, value_len, redundancy: 1, keys: Default::default() };
    let spec = StoreSpec { id: 1, name: "bench".into(), kind };
    let store = Store { spec, region: Arc::clone(&target.region), generation: 1 };
    let reader = key_write::KeyWriteReader::new(&store).context("a key-write store")?;
    let newest: HashMap<u64, (Key, &[u8])> = reported
        .map(|(key, value)| (hash::slot_index(hash::key_hash(&key), 0, slots), (key, value)))
        .collect();
    let keys: Vec<Key> = newest.values().map(|(key, _)| *key).collect();
    let mut answers = vec![key_write::KeyWriteReading::default(); keys.len()];
    let mut values = vec![0; keys.len() * usize::from(value_len)];
    reader.query_keys(&keys, Choice::First, &mut answers, &mut values)?;
    let read = answers.iter().zip(values.chunks_exact(value_len.into()));
    let wrong =
        newest.values().zip(read).filter(|((_, value), (answer, read))| !answer.found || value != read);
    let wrong = wrong.count();
    anyhow::ensure!(wrong == 0, "{wrong} of {} keys are not in memory as reported", keys.len());
    Ok(())
}
