//! Batches passed between threads of one process, without copying packets.
//!
//! A ring owns a fixed number of batches. The sender swaps its full batch for an empty one, the receiver its
//! empty batch for a full one; so all batches used with a ring should have the same size.

use std::mem::swap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use dta_proto::batch::Batch;

use crate::{Link, LinkCounters, LinkError, Result, Scope};

/// How long a full ring is waited for before packets count as not sent.
const SEND_PATIENCE: Duration = Duration::from_millis(100);

/// One end of a pair of rings. Cookies travel along.
pub struct RingLink {
    /// Full batches for the other end, and its empty ones back.
    out: SyncSender<Batch>,
    out_free: Receiver<Batch>,
    /// Full batches from the other end, and the empty ones returned to it.
    inward: Receiver<Batch>,
    inward_free: SyncSender<Batch>,
    counters: LinkCounters,
}

/// Two ends that send to each other, each direction with `depth` batches from `batch`.
pub fn pair(depth: usize, batch: impl Fn() -> Batch) -> (RingLink, RingLink) {
    let direction = || {
        let (full, full_end) = sync_channel(depth);
        // One more place than batches in the ring: the receiver returns its own first.
        let (free, free_end) = sync_channel(depth + 1);
        for _ in 0..depth {
            free.try_send(batch()).expect("the channel holds depth + 1");
        }
        (full, full_end, free, free_end)
    };
    let (full_a, full_b_end, free_a, free_a_end) = direction();
    let (full_b, full_a_end, free_b, free_b_end) = direction();
    let end = |out, out_free, inward, inward_free| RingLink {
        out,
        out_free,
        inward,
        inward_free,
        counters: LinkCounters::default(),
    };
    (end(full_a, free_a_end, full_a_end, free_b), end(full_b, free_b_end, full_b_end, free_a))
}

impl RingLink {
    /// Sends if there is room, and returns whether; if not, `batch` stays as it is and nothing is counted.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn try_send(&mut self, batch: &mut Batch) -> Result<bool> {
        self.send_within(batch, Duration::ZERO)
    }

    fn send_within(&mut self, batch: &mut Batch, patience: Duration) -> Result<bool> {
        if batch.is_empty() {
            return Ok(true);
        }
        let mut full = match self.out_free.try_recv() {
            Ok(free) => free,
            Err(_) => match self.out_free.recv_timeout(patience) {
                Ok(free) => free,
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => return Err(LinkError::Closed),
            },
        };
        full.clear();
        swap(batch, &mut full);
        for packet in full.iter() {
            self.counters.count_sent(packet.len());
        }
        // Each batch of the ring has a place, so this does not wait.
        self.out.send(full).map_err(|_| LinkError::Closed)?;
        Ok(true)
    }
}

impl Link for RingLink {
    /// # Errors
    /// The other end is gone and everything that it sent has been received.
    fn recv(&mut self, batch: &mut Batch, timeout: Option<Duration>) -> Result<usize> {
        batch.clear();
        let mut full = match timeout {
            None => self.inward.recv().map_err(|_| LinkError::Closed)?,
            Some(timeout) => match self.inward.recv_timeout(timeout) {
                Ok(full) => full,
                Err(RecvTimeoutError::Timeout) => return Ok(0),
                Err(RecvTimeoutError::Disconnected) => return Err(LinkError::Closed),
            },
        };
        swap(batch, &mut full);
        // A sender that is gone needs no empty batch.
        let _ = self.inward_free.send(full);
        for packet in batch.iter() {
            self.counters.count_received(packet.len());
        }
        Ok(batch.len())
    }

    /// Waits up to 100 ms for room in a full ring; then the packets count as `unsent_queue_full`.
    fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        let count = batch.len();
        if self.send_within(batch, SEND_PATIENCE)? {
            return Ok(count);
        }
        self.counters.unsent_queue_full += count as u64;
        batch.clear();
        Ok(0)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }

    fn scope(&self) -> Scope {
        Scope::Packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(from: u32, count: u32) -> Batch {
        let mut batch = Batch::new(16);
        for number in from..from + count {
            batch.push(&number.to_be_bytes(), number.into()).unwrap();
        }
        batch
    }

    #[test]
    fn a_million_packets_come_through_two_threads_in_order() {
        const PACKETS: u32 = 1 << 20;
        let (mut a, mut b) = pair(4, || Batch::new(16));
        let sender = std::thread::spawn(move || {
            let mut batch = Batch::new(16);
            for number in 0..PACKETS {
                batch.push(&number.to_be_bytes(), number.into()).unwrap();
                if batch.is_full() {
                    while !a.try_send(&mut batch).unwrap() {
                        std::thread::yield_now();
                    }
                    assert!(batch.is_empty());
                }
            }
            a.counters()
        });
        let mut expected = 0u32;
        let mut batch = Batch::new(16);
        while expected < PACKETS {
            assert_ne!(b.recv(&mut batch, Some(Duration::from_secs(5))).unwrap(), 0, "stuck at {expected}");
            for index in 0..batch.len() {
                assert_eq!(batch.packet(index), expected.to_be_bytes());
                assert_eq!(batch.cookie(index), u64::from(expected));
                expected += 1;
            }
        }
        let sent = sender.join().unwrap();
        assert_eq!((sent.sent, sent.sent_bytes), (PACKETS.into(), u64::from(PACKETS) * 4));
        assert_eq!((b.counters().received, b.counters().received_bytes), (sent.sent, sent.sent_bytes));
    }

    #[test]
    fn a_full_ring_loses_nothing_uncounted() {
        let (mut a, mut b) = pair(2, || Batch::new(16));
        assert!(a.try_send(&mut filled(0, 3)).unwrap());
        assert_eq!(a.send(&mut filled(3, 3)).unwrap(), 3);
        let mut third = filled(6, 3);
        assert!(!a.try_send(&mut third).unwrap());
        assert_eq!(third.len(), 3);
        assert_eq!(a.send(&mut third).unwrap(), 0);
        assert_eq!((a.counters().sent, a.counters().unsent_queue_full), (6, 3));
        let mut batch = Batch::new(16);
        assert_eq!(b.recv(&mut batch, None).unwrap(), 3);
        assert!(a.try_send(&mut filled(9, 1)).unwrap());
        // Both directions are separate.
        assert_eq!(b.send(&mut filled(20, 2)).unwrap(), 2);
        assert_eq!(a.recv(&mut batch, Some(Duration::ZERO)).unwrap(), 2);
    }

    #[test]
    fn what_was_sent_before_the_end_is_received_and_then_the_end_shows() {
        let (mut a, mut b) = pair(2, || Batch::new(16));
        a.send(&mut filled(0, 1)).unwrap();
        drop(a);
        let mut batch = Batch::new(16);
        assert_eq!(b.recv(&mut batch, None).unwrap(), 1);
        assert!(matches!(b.recv(&mut batch, None), Err(LinkError::Closed)));
        assert!(matches!(
            b.send(&mut filled(0, 16)).and_then(|_| b.send(&mut filled(0, 16))),
            Err(LinkError::Closed)
        ));
    }
}
