//! The threads of the software NIC: each moves packets between its link and its responder.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dta_link::Link;
use dta_link::fault::{FaultInjector, Faults};
use dta_proto::batch::PacketBatch;
use dta_proto::counter::nic as names;

use super::counter::{Counter, NicCounts};
use super::counter_file::CounterFile;
use super::nic::SoftNicConfig;
use super::responder::Responder;
use crate::nic::Immediate;

/// Packets received in one call.
const BATCH: usize = 256;

/// How long the thread waits for packets before it checks whether to stop.
const IDLE: Duration = Duration::from_millis(20);

/// How often the link's own counters are read, which takes a system call.
const LINK_COUNTERS: Duration = Duration::from_millis(100);

/// Least interval between log lines about refusals, so that senders cannot flood the log.
const LOG_REFUSED_INTERVAL: Duration = Duration::from_secs(10);

/// Most yields of the data thread to a waiting control call, after each batch.
const STEP_ASIDE: usize = 1000;

pub(super) struct SoftNicState {
    pub(super) config: SoftNicConfig,
    pub(super) stop: AtomicBool,
    /// The sums of all threads.
    pub(super) counters: CounterFile,
    pub(super) immediates: Mutex<Vec<Immediate>>,
    pub(super) immediate_came: Condvar,
    /// Why a data thread stopped.
    pub(super) failure: Mutex<Option<String>>,
}

/// What a data thread and control calls share.
pub(super) struct SharedResponder {
    /// Taken by the data thread once per batch, and by control calls.
    responder: Mutex<Responder>,
    /// Control calls that wait for the lock, which the data thread lets go first.
    waiting: AtomicUsize,
    /// How often the data thread has polled for packets.
    turns: AtomicU64,
}

impl SharedResponder {
    pub(super) fn new(responder: Responder) -> SharedResponder {
        SharedResponder {
            responder: Mutex::new(responder),
            waiting: AtomicUsize::new(0),
            turns: AtomicU64::new(0),
        }
    }

    /// Locks the responder for a control call, ahead of the data thread.
    pub(super) fn run_control_call<T>(&self, call: impl FnOnce(&mut Responder) -> T) -> T {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut responder = lock_ignoring_poison(&self.responder);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        call(&mut responder)
    }

    pub(super) fn poll_count(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

pub(super) struct DataThread {
    shared: Arc<SoftNicState>,
    part: Arc<SharedResponder>,
    link: Box<dyn Link>,
    injector: FaultInjector,
    input: PacketBatch,
    output: PacketBatch,
    /// The responder's counts that are already in the counter file.
    published: NicCounts,
    /// The counters of the link and the fault injector that are already in the counter file.
    link_published: Vec<u64>,
    link_counters_read: Instant,
    /// When refusals were last logged, and the counts then.
    refusals_logged: (Option<Instant>, NicCounts),
}

impl DataThread {
    /// Thread `number` of the NIC. `published` holds those counts of this part that the counter file already has.
    pub(super) fn new(
        (shared, part): (Arc<SoftNicState>, Arc<SharedResponder>),
        number: usize,
        link: Box<dyn Link>,
        published: NicCounts,
    ) -> DataThread {
        // Each thread has its own faults.
        let seed = shared.config.seed ^ (number as u64) << 32;
        let injector = FaultInjector::new(shared.config.faults, seed, link.corruption_scope());
        let responder = lock_ignoring_poison(&part.responder);
        let (output, counts) = (responder.answer_batch(BATCH), responder.counts().clone());
        drop(responder);
        let link_published = vec![0; link_counters(&*link, &injector).len()];
        DataThread {
            input: PacketBatch::with_packet_capacity(
                BATCH,
                shared.config.responder.mtu.max(1500) as usize + 128,
            ),
            output,
            shared,
            part,
            link,
            injector,
            published,
            link_published,
            link_counters_read: Instant::now(),
            refusals_logged: (None, counts),
        }
    }

    pub(super) fn run(mut self) {
        let (shared, part) = (Arc::clone(&self.shared), Arc::clone(&self.part));
        publish_counts(&shared.counters, &mut self.published, lock_ignoring_poison(&part.responder).counts());
        let result = self.serve_packets(&shared, &part);
        let leaving = self.injector.flush_held_frames(|_, _, _| {});
        if !leaving.is_empty() {
            // The link is closing, and counts what is not sent.
            let _ = self.link.send(leaving);
        }
        self.read_link_counters();
        // Refusals since the last line are due now.
        self.refusals_logged.0 = None;
        self.log_refused(&part);
        if let Err(error) = result {
            tracing::error!(%error, "the software NIC has stopped");
            *lock_ignoring_poison(&shared.failure) = Some(error.to_string());
        }
    }

    fn serve_packets(&mut self, shared: &SoftNicState, part: &SharedResponder) -> dta_link::Result<()> {
        let mut turns = 0;
        while !shared.stop.load(Ordering::Acquire) {
            turns += 1;
            // Nobody else writes it, and it publishes no other memory.
            part.turns.store(turns, Ordering::Relaxed);
            // Frames held back for reordering leave after a time.
            let timeout = if self.injector.fault_counts().held > 0 { Duration::from_millis(2) } else { IDLE };
            if self.link.recv(&mut self.input, Some(timeout))? > 0 {
                self.execute_batch(shared, part);
            }
            if !self.output.is_empty() || self.injector.fault_counts().held > 0 {
                send(&mut *self.link, &mut self.injector, &mut self.output)?;
            }
            if self.link_counters_read.elapsed() >= LINK_COUNTERS {
                self.read_link_counters();
                self.log_refused(part);
            }
        }
        Ok(())
    }

    /// Logs refused requests, if there are any and the interval has passed.
    fn log_refused(&mut self, part: &SharedResponder) {
        let (logged, before) = &mut self.refusals_logged;
        if logged.is_some_and(|at| at.elapsed() < LOG_REFUSED_INTERVAL) {
            return;
        }
        let mut responder = lock_ignoring_poison(&part.responder);
        let refused = responder.take_refused();
        if refused.is_empty() {
            return;
        }
        let now = responder.counts().clone();
        drop(responder);
        for refusal in refused {
            tracing::warn!(
                sender = %refusal.sender,
                queue_pair = format_args!("{:#08x}", refusal.qpn),
                reason = refusal.reason.name(),
                frames = now.get(refusal.reason) - before.get(refusal.reason),
                "the NIC refused RDMA requests; this is the first: a requester still uses keys or queue pairs of an earlier session, \
                 is faulty, or somebody is guessing (docs/rdma.md)"
            );
        }
        let broken = now.get(Counter::QueuePairErrors) - before.get(Counter::QueuePairErrors);
        if broken > 0 {
            tracing::warn!(queue_pairs = broken, "these refusals put RC queue pairs into ERROR");
        }
        *logged = Some(Instant::now());
        *before = now;
    }

    fn execute_batch(&mut self, shared: &SoftNicState, part: &SharedResponder) {
        let Self { link, injector, input, output, published, .. } = self;
        let mut responder = lock_ignoring_poison(&part.responder);
        // Counted as received before anything is executed: if this process is killed in between, the next one knows
        // how many packets were in hand.
        shared.counters.add(Counter::Received as usize, input.len() as u64);
        published.add(Counter::Received, input.len() as u64);
        responder.process_packets(input, output, &mut |full| {
            if let Err(error) = send(&mut **link, injector, full) {
                tracing::warn!(%error, "cannot send answers");
                full.clear();
            }
        });
        publish_counts(&shared.counters, published, responder.counts());
        let came = responder.immediates();
        if !came.is_empty() {
            lock_ignoring_poison(&shared.immediates).append(came);
            shared.immediate_came.notify_all();
        }
        drop(responder);
        // Locks are not fair: without this, a busy data thread could retake it again and again before a control call
        // does.
        for _ in 0..STEP_ASIDE {
            if part.waiting.load(Ordering::Acquire) == 0 {
                break;
            }
            std::thread::yield_now();
        }
    }

    fn read_link_counters(&mut self) {
        self.link_counters_read = Instant::now();
        let first = Counter::ALL.len();
        let now = link_counters(&*self.link, &self.injector);
        for (index, ((_, value), before)) in now.into_iter().zip(&mut self.link_published).enumerate() {
            self.shared.counters.add(first + index, value.wrapping_sub(*before));
            *before = value;
        }
    }
}

fn send(link: &mut dyn Link, injector: &mut FaultInjector, output: &mut PacketBatch) -> dta_link::Result<()> {
    let leaving = injector.apply_to_batch(output, Instant::now(), |_, _, _| {});
    if !leaving.is_empty() {
        link.send(leaving)?;
    }
    output.clear();
    Ok(())
}

/// Adds what a responder has counted since the last call to the counter file.
///
/// Written from the last counter to the first, but read from the first to the last: a reader that sees the executed
/// packets of a batch also sees its dropped packets and its answers.
fn publish_counts(file: &CounterFile, published: &mut NicCounts, counts: &NicCounts) {
    for (index, &counter) in Counter::ALL.iter().enumerate().rev() {
        let (before, now) = (published.get(counter), counts.get(counter));
        if now != before {
            file.add(index, now.wrapping_sub(before));
            published.set(counter, now);
        }
    }
}

/// The link's and the fault injector's counters, always the same ones in the same order.
fn link_counters(link: &dyn Link, injector: &FaultInjector) -> Vec<(String, u64)> {
    let counters = link.link_counters();
    let named = [
        (&names::LINK_RECEIVED, counters.received),
        (&names::LINK_RECEIVED_BYTES, counters.received_bytes),
        (&names::LINK_SENT, counters.sent),
        (&names::LINK_SENT_BYTES, counters.sent_bytes),
    ];
    let mut named: Vec<_> = named.map(|(counter, count)| (counter.format_name(&[]), count)).into();
    let losses = counters.losses_by_reason();
    named.extend(losses.map(|(loss, count)| (names::LINK_LOST.format_name(&[loss.name_at_nic()]), count)));
    let ignored = counters.ignored_by_reason();
    named.extend(ignored.map(|(reason, count)| (names::LINK_IGNORED.format_name(&[reason.name()]), count)));
    named.extend(link.ring_counters().named_counters());
    let faults = injector.fault_counts().counts_by_fault();
    named.extend(faults.map(|(fault, count)| (names::FAULTS.format_name(&[fault.name()]), count)));
    named
}

/// The names of all counters, in the order of the file.
pub(super) fn counter_names(link: &dyn Link) -> Vec<String> {
    let injector = FaultInjector::new(Faults::NONE, 0, link.corruption_scope());
    let mut names: Vec<String> = Counter::ALL.iter().map(|c| c.name().to_owned()).collect();
    names.extend(link_counters(link, &injector).into_iter().map(|(name, _)| name));
    names
}

/// Locks, even if an earlier holder panicked: every value here is consistent between statements that can panic.
pub(super) fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sees_what_a_batch_executed_finds_the_rest_of_it_in_the_later_counters() {
        let names: Vec<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        let file = CounterFile::open(None, "soft", &names).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut published, mut counts) = (NicCounts::default(), NicCounts::default());
                for _ in 0..1_000_000 {
                    for counter in [Counter::ExecutedWrite, Counter::DroppedNotRoce, Counter::SentAck] {
                        counts.increment(counter);
                    }
                    publish_counts(&file, &mut published, &counts);
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let [executed, dropped, sent] =
                    [Counter::ExecutedWrite, Counter::DroppedNotRoce, Counter::SentAck]
                        .map(|counter| file.load(counter as usize));
                assert!(executed <= dropped && dropped <= sent, "{executed} {dropped} {sent}");
            }
        });
    }
}
