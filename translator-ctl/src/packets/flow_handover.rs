//! How flow exports that arrived through an interface's queue reach the worker of their exporter, if that is another worker.
//!
//! As with reports (`docs/decisions/workers.md`): one worker writes and one reads, whole batches pass between
//! them, and a worker without an empty batch for each of the others receives nothing until they have given
//! theirs back. So nothing is lost, and what arrives through one queue stays in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use dta_proto::batch::PacketBatch;

/// Batches between two workers.
const BATCHES: usize = 4;

/// By worker, the datagrams handed over to it that it has not completely passed on yet.
#[derive(Clone, Default)]
pub struct ExportsInTransit(Arc<[AtomicUsize]>);

impl ExportsInTransit {
    /// Whether there are none, seen from outside.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| count.load(Ordering::Acquire) == 0)
    }
}

/// The ends of one worker.
pub(super) struct ExportHandover {
    own: usize,
    /// By worker; `None` for this one.
    to: Vec<Option<ToWorker>>,
    from: Vec<FromWorker>,
    in_transit: ExportsInTransit,
    /// Datagrams decoded since the last [`ExportHandover::confirm_decoded`].
    decoded: usize,
    /// Bit n: worker n was handed something since the last [`ExportHandover::take_news`].
    news: u32,
}

struct ToWorker {
    full: SyncSender<PacketBatch>,
    empty: Receiver<PacketBatch>,
    /// The batch to fill next; it is empty between two batches that are received.
    next: Option<PacketBatch>,
}

struct FromWorker {
    full: Receiver<PacketBatch>,
    empty: SyncSender<PacketBatch>,
}

impl ExportHandover {
    /// The ends of `workers` workers, which pass on batches of `datagrams` datagrams of at most `bytes` bytes each.
    pub(super) fn build_for_workers(workers: usize, datagrams: usize, bytes: usize) -> Vec<ExportHandover> {
        let in_transit = ExportsInTransit((0..workers).map(|_| AtomicUsize::new(0)).collect());
        let one = |own| ExportHandover {
            own,
            to: Vec::new(),
            from: Vec::new(),
            in_transit: in_transit.clone(),
            decoded: 0,
            news: 0,
        };
        let mut all: Vec<_> = (0..workers).map(one).collect();
        for from in 0..workers {
            for to in 0..workers {
                if from == to {
                    all[from].to.push(None);
                    continue;
                }
                // Each has room for all of them, so that nobody waits to send.
                let ((full, filled), (back, empty)) = (sync_channel(BATCHES), sync_channel(BATCHES));
                for _ in 0..BATCHES {
                    let _ = back.send(PacketBatch::with_packet_capacity(datagrams, bytes));
                }
                all[from].to.push(Some(ToWorker { full, empty, next: None }));
                all[to].from.push(FromWorker { full: filled, empty: back });
            }
        }
        all
    }

    pub(super) fn in_transit(&self) -> ExportsInTransit {
        self.in_transit.clone()
    }

    /// Whether there is room for a batch of datagrams, wherever they go. If not, wait for the others first.
    pub(super) fn has_room(&mut self) -> bool {
        self.to.iter_mut().flatten().all(|to| {
            to.next = to.next.take().or_else(|| to.empty.try_recv().ok());
            to.next.is_some()
        })
    }

    /// Hands a datagram with its headers over to another worker, with the next [`ExportHandover::send`]; `false` if there is no
    /// room.
    pub(super) fn push_datagram(&mut self, worker: usize, packet: &[u8]) -> bool {
        let to = self.to.get_mut(worker).and_then(Option::as_mut);
        to.and_then(|to| to.next.as_mut()).is_some_and(|batch| batch.push(packet, 0).is_ok())
    }

    /// Sends the batches that were filled.
    pub(super) fn send(&mut self) {
        for (worker, to) in self.to.iter_mut().enumerate() {
            let Some(to) = to else { continue };
            let Some(batch) = to.next.take_if(|batch| !batch.is_empty()) else { continue };
            self.in_transit.0[worker].fetch_add(batch.len(), Ordering::Relaxed);
            // A worker that has ended needs none.
            let _ = to.full.send(batch);
            self.news |= 1 << worker;
        }
    }

    /// The workers that were handed something since the last call: bit n for worker n.
    pub(super) fn take_news(&mut self) -> u32 {
        std::mem::take(&mut self.news)
    }

    /// Whether others have handed over something that waits here.
    pub(super) fn is_waiting(&self) -> bool {
        self.in_transit.0[self.own].load(Ordering::Relaxed) > self.decoded
    }

    /// Passes a batch from each other worker that has one to `decode`: as many as they hand over in a turn.
    /// Returns the number of datagrams, which are in transit until [`ExportHandover::confirm_decoded`].
    pub(super) fn take(&mut self, mut decode: impl FnMut(&PacketBatch)) -> usize {
        let mut taken = 0;
        for from in &self.from {
            let Ok(mut batch) = from.full.try_recv() else { continue };
            decode(&batch);
            taken += batch.len();
            batch.clear();
            let _ = from.empty.send(batch);
        }
        self.decoded += taken;
        taken
    }

    /// Notes that everything made from the datagrams taken so far has been passed on.
    pub(super) fn confirm_decoded(&mut self) {
        self.in_transit.0[self.own].fetch_sub(std::mem::take(&mut self.decoded), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_in_order_and_a_sender_without_room_waits() {
        const COUNT: u32 = 5_000;
        let mut all = ExportHandover::build_for_workers(3, 16, 64);
        let in_transit = all[0].in_transit();
        let (mut receiver, mut other, mut sender) = (all.remove(0), all.remove(0), all.remove(0));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut n = 0_u32;
                while n < COUNT {
                    if !sender.has_room() {
                        std::thread::yield_now();
                        continue;
                    }
                    for _ in 0..16.min(COUNT - n) {
                        assert!(sender.push_datagram(0, &n.to_be_bytes()));
                        n += 1;
                    }
                    assert_eq!(sender.take_news(), 0, "nothing is sent yet");
                    sender.send();
                    assert_eq!(sender.take_news(), 1);
                }
            });
            let mut next = 0_u32;
            while next < COUNT {
                let taken = receiver.take(|batch| {
                    for packet in batch.iter() {
                        assert_eq!(packet, next.to_be_bytes());
                        next += 1;
                    }
                });
                assert!(taken == 0 || !in_transit.is_empty(), "until it is confirmed");
                receiver.confirm_decoded();
            }
        });
        assert!(in_transit.is_empty() && !receiver.is_waiting());
        // The receiver takes nothing more: only this many batches have room, and another one to the other worker does not help.
        for _ in 0..BATCHES {
            assert!(other.has_room() && other.push_datagram(0, &[1]) && !other.push_datagram(1, &[1]));
            other.send();
        }
        assert!(!other.has_room() && !other.push_datagram(0, &[1]) && other.push_datagram(2, &[1]));
        assert!(receiver.is_waiting() && !in_transit.is_empty());
        assert_eq!(receiver.take(|_| ()), 1);
        assert!(receiver.is_waiting() && other.has_room());
    }

    #[test]
    fn what_each_of_the_others_hands_over_in_a_turn_is_taken_in_a_turn() {
        let mut all = ExportHandover::build_for_workers(4, 16, 64);
        let (receiver, others) = all.split_first_mut().unwrap();
        for turn in 0..2 * BATCHES {
            for other in &mut *others {
                assert!(other.has_room() && other.push_datagram(0, &[1]), "turn {turn}");
                other.send();
            }
            assert_eq!(receiver.take(|_| ()), 3);
            assert!(!receiver.is_waiting());
            receiver.confirm_decoded();
        }
    }
}
