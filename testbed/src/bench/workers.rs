//! Translator and NIC in each of two threads, from report to memory, compared with one thread.
//!
//! Each worker has its own reporter with its window, and a queue pair into one store. The keys are random, so half of
//! what a worker receives is handed over to the other. On a machine with one processor both take turns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use dta_dataplane::PacketBatches;
use dta_dataplane::workers::{Crew, build_crew};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::batch::PacketBatch;

use super::harness::{Rates, Scale, Share, measure_shares, pin_to_allowed_cpu};
use super::key_write_bench::BATCH;
use super::key_write_bench::KeyWriteBench;
use super::write_bench::{ELEMENT, Target};

const WORKERS: usize = 2;
/// Batches of each worker per call: some milliseconds.
const BATCHES: usize = 1024;

/// A worker with its part of the NIC.
struct Worker {
    crew: Crew,
    translator: KeyWriteBench,
    target: Target,
    answers: PacketBatch,
}

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    let region = Region::anonymous(
        scale.memory,
        (1u64 << 40).next_multiple_of(scale.memory),
        RegionOptions::default(),
    )?;
    let region = Arc::new(region);
    let (mut several, mut one) = (build_workers(WORKERS, &region)?, build_workers(1, &region)?);
    let (mut sent, mut alone) = (0, 0);
    let rates = measure_shares(
        scale,
        || {
            let share = run_workers(&mut several);
            sent += share.0;
            share
        },
        |_| {
            let share = run_workers(&mut one);
            alone += share.0;
            share
        },
    );
    for (workers, sent) in [(&several, sent), (&one, alone)] {
        let executed: u64 = workers.iter().map(|worker| worker.target.executed_writes()).sum();
        ensure!(executed == sent, "{sent} reports were sent, but {executed} reached memory");
    }
    Ok(rates)
}

fn build_workers(count: usize, region: &Arc<Region>) -> anyhow::Result<Vec<Worker>> {
    let (crews, _) = build_crew(count);
    let worker = |(number, crew)| {
        let target = Target::new(Arc::clone(region)).context("a part of the NIC")?;
        let registration = &target.registration;
        let (store, slots) = ((registration.iova, registration.rkey), registration.len / ELEMENT as u64);
        // This worker handles the reporter with this number.
        let translator = KeyWriteBench::new(number as u16, BATCH, slots, store, target.queue_pair.qpn);
        let answers = target.responder.answer_batch(BATCH);
        Ok(Worker { crew, translator, target, answers })
    };
    crews.into_iter().enumerate().map(worker).collect()
}

/// Has each worker receive [`BATCHES`] batches, until everything from them is in memory.
fn run_workers(workers: &mut [Worker]) -> Share {
    let count = workers.len();
    let (start, through) = (Barrier::new(count + 1), AtomicUsize::new(0));
    let reports = (count * BATCHES * BATCH) as u64;
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .enumerate()
            .map(|(number, worker)| {
                let (start, through) = (&start, &through);
                scope.spawn(move || {
                    pin_to_allowed_cpu(number);
                    start.wait();
                    worker.run(count, through);
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        for thread in threads {
            // A thread's panic continues when the scope ends.
            let _ = thread.join();
        }
        (reports, began.elapsed())
    })
}

impl Worker {
    fn run(&mut self, workers: usize, through: &AtomicUsize) {
        let Worker { crew, translator, target, answers } = self;
        let mut execute = |frames: &PacketBatches| {
            for batch in frames.batches() {
                target.responder.process_packets(batch, answers, &mut |full| full.clear());
            }
        };
        if workers == 1 {
            translator.run(BATCHES, execute);
            return;
        }
        translator.run_among(BATCHES, crew, &mut execute);
        through.fetch_add(1, Ordering::Release);
        loop {
            let all = through.load(Ordering::Acquire) == workers;
            if translator.translate_handovers(crew, &mut execute) == 0 && crew.waiting_reports() == 0 {
                if all {
                    return;
                }
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_of_two_workers_comes_to_memory() {
        let region = Arc::new(Region::anonymous(1 << 16, 1 << 40, RegionOptions::default()).unwrap());
        let mut all = build_workers(2, &region).unwrap();
        let (sent, _) = run_workers(&mut all);
        let executed: Vec<u64> = all.iter().map(|worker| worker.target.executed_writes()).collect();
        assert_eq!(executed.iter().sum::<u64>(), sent);
        assert!(executed.iter().all(|n| n.abs_diff(sent / 2) < sent / 20), "{executed:?}");
    }
}
