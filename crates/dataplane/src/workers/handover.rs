//! A ring of reports from one worker to another.
//!
//! One thread writes and one reads. Everything is atomics, so there is no unsafe code: a message is copied in
//! with relaxed stores, which compile to plain ones, and becomes visible with the index released after it.
//! The writer publishes a batch at a time, and each side reads the other's index only when its copy shows
//! nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dta_proto::wire::dta::MAX_REPORT_LEN;

use crate::reporters::PackedSocketAddr;

/// Capacity of a ring in messages, a power of two.
pub const CAPACITY: usize = 4096;
/// 64-bit words of a message: one of metadata, two for source and destination, and the report as sent. Two
/// cache lines; a report of 40 bytes or less takes one.
const WORDS: usize = 16;
/// Places that the writer prefetches at once, and how far ahead. The reader had each place last, so a write
/// waits for its cache line to move; several requested together arrive together.
const FETCHED: u64 = 32;
const AHEAD: u64 = 8;
const BEFORE: usize = 3;

const _: () = assert!(MAX_REPORT_LEN <= (WORDS - BEFORE) * 8);

/// What to do with a report that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Judge it by its reporter's window.
    Judge = 0,
    Execute = 1,
    /// Execute it; it has no reporter and no number.
    ExecuteUnnumbered = 2,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoverMessage<'a> {
    pub(crate) stage: Stage,
    /// Reporter restarts when it was admitted.
    pub(crate) restarts: u32,
    pub(crate) source: PackedSocketAddr,
    pub(crate) destination: PackedSocketAddr,
    /// The report, as it is on the wire.
    pub(crate) report: &'a [u8],
}

/// An index on its own cache line: one side writes it and the other polls it.
#[repr(align(128))]
struct HandoverIndex(AtomicU64);

/// A place for a message, on its own cache lines.
#[repr(align(128))]
struct MessageCell([AtomicU64; WORDS]);

struct HandoverRing {
    written: HandoverIndex,
    /// Messages ever read and fully processed.
    read: HandoverIndex,
    places: Box<[MessageCell]>,
}

impl HandoverRing {
    #[inline]
    fn message_words(&self, index: u64) -> Option<&[AtomicU64; WORDS]> {
        self.places.get(index as usize & (CAPACITY - 1)).map(|place| &place.0)
    }
}

pub(super) struct Sender {
    shared: Arc<HandoverRing>,
    /// Messages put in; the last ones may be unpublished.
    put: u64,
    published: u64,
    /// Last known value of `read`.
    read: u64,
    /// Places up to here were prefetched.
    fetched: u64,
}

pub(super) struct HandoverReceiver {
    shared: Arc<HandoverRing>,
    /// Messages taken; the last ones may not be released.
    taken: u64,
    /// Last known value of `written`.
    written: u64,
}

pub(super) fn new_ring() -> (Sender, HandoverReceiver) {
    let shared = Arc::new(HandoverRing {
        written: HandoverIndex(AtomicU64::new(0)),
        read: HandoverIndex(AtomicU64::new(0)),
        places: (0..CAPACITY).map(|_| MessageCell([const { AtomicU64::new(0) }; WORDS])).collect(),
    });
    let sender = Sender { shared: Arc::clone(&shared), put: 0, published: 0, read: 0, fetched: 0 };
    (sender, HandoverReceiver { shared, taken: 0, written: 0 })
}

impl Sender {
    /// How many more messages there is room for; at least `wanted` if there is that much room.
    pub(super) fn free_message_slots(&mut self, wanted: usize) -> usize {
        let free = |read: u64, put: u64| CAPACITY - (put - read) as usize;
        if free(self.read, self.put) < wanted {
            self.read = self.shared.read.0.load(Ordering::Acquire);
        }
        free(self.read, self.put)
    }

    /// Puts in a message; there must be [room](Sender::free_message_slots).
    #[inline]
    pub(super) fn put_message(&mut self, message: &HandoverMessage<'_>) {
        debug_assert!(((self.put - self.read) as usize) < CAPACITY);
        let HandoverMessage { stage, restarts, source, destination, report } = *message;
        if self.put + AHEAD >= self.fetched {
            self.prefetch_places();
        }
        let Some(words) = self.shared.message_words(self.put) else { return };
        let first = u64::from(restarts) << 32 | (report.len() as u64) << 8 | stage as u64;
        words[0].store(first, Ordering::Relaxed);
        words[1].store(source.to_bits(), Ordering::Relaxed);
        words[2].store(destination.to_bits(), Ordering::Relaxed);
        let mut words = words[BEFORE..].iter();
        let (wholes, rest) = report.as_chunks::<8>();
        for (whole, word) in wholes.iter().zip(&mut words) {
            word.store(u64::from_le_bytes(*whole), Ordering::Relaxed);
        }
        if let (false, Some(word)) = (rest.is_empty(), words.next()) {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        self.put += 1;
    }

    /// Writes to the next free places so that they are cached when needed.
    fn prefetch_places(&mut self) {
        let until = (self.put + AHEAD + FETCHED).min(self.read + CAPACITY as u64);
        for index in self.fetched.max(self.put)..until {
            if let Some(words) = self.shared.message_words(index) {
                words[0].store(0, Ordering::Relaxed);
            }
        }
        self.fetched = until;
    }

    /// Publishes everything put in. Returns whether there was anything.
    pub(super) fn publish_messages(&mut self) -> bool {
        let news = self.published != self.put;
        if news {
            self.published = self.put;
            self.shared.written.0.store(self.put, Ordering::Release);
        }
        news
    }
}

impl HandoverReceiver {
    pub(super) fn waiting_messages(&mut self) -> usize {
        if self.written == self.taken {
            self.written = self.shared.written.0.load(Ordering::Acquire);
        }
        (self.written - self.taken) as usize
    }

    /// Takes as many of the [waiting](HandoverReceiver::waiting_messages) messages as fit. Returns how many.
    ///
    /// Several at once: the writer had each place last, so a read waits for its cache line to move, and
    /// several such waits overlap. Copying in words also means that later, larger reads hit the cache.
    pub(super) fn take(&mut self, room: &mut [MessageBuffer]) -> usize {
        let before = self.taken;
        for to in room {
            if self.taken == self.written {
                break;
            }
            let Some(words) = self.shared.message_words(self.taken) else { break };
            to.first = words[0].load(Ordering::Relaxed);
            to.source = words[1].load(Ordering::Relaxed);
            to.destination = words[2].load(Ordering::Relaxed);
            let reports = words[BEFORE..].iter().zip(to.report.as_chunks_mut().0);
            for (word, bytes) in reports.take(report_len(to.first).div_ceil(8)) {
                *bytes = word.load(Ordering::Relaxed).to_le_bytes();
            }
            self.taken += 1;
        }
        (self.taken - before) as usize
    }

    /// Releases the places of everything taken.
    pub(super) fn give_back(&mut self) {
        self.shared.read.0.store(self.taken, Ordering::Release);
    }

    /// Whether nothing is waiting or being processed, seen from outside.
    pub(super) fn outside_view(&self) -> View {
        View(Arc::clone(&self.shared))
    }
}

/// Length of a message's report, from its first word.
#[inline]
fn report_len(first: u64) -> usize {
    (first >> 8 & 0xff) as usize
}

#[derive(Clone, Debug)]
pub(crate) struct MessageBuffer {
    first: u64,
    source: u64,
    destination: u64,
    report: [u8; (WORDS - BEFORE) * 8],
}

impl MessageBuffer {
    pub(super) const EMPTY: MessageBuffer =
        MessageBuffer { first: 0, source: 0, destination: 0, report: [0; (WORDS - BEFORE) * 8] };

    #[inline]
    pub(crate) fn as_message(&self) -> HandoverMessage<'_> {
        HandoverMessage {
            stage: match self.first as u8 {
                0 => Stage::Judge,
                1 => Stage::Execute,
                _ => Stage::ExecuteUnnumbered,
            },
            restarts: (self.first >> 32) as u32,
            source: PackedSocketAddr::from_bits(self.source),
            destination: PackedSocketAddr::from_bits(self.destination),
            report: self.report.get(..report_len(self.first)).unwrap_or_default(),
        }
    }
}

/// An outside view of a ring.
pub(super) struct View(Arc<HandoverRing>);

impl View {
    pub(super) fn is_empty(&self) -> bool {
        let written = self.0.written.0.load(Ordering::Acquire);
        self.0.read.0.load(Ordering::Acquire) == written
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn messages_arrive_whole_and_in_order_between_two_threads() {
        let (mut sender, mut receiver) = new_ring();
        const COUNT: u32 = 100_000;
        let report = |n: u32| vec![n as u8; 1 + n as usize % MAX_REPORT_LEN];
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut n = 0;
                while n < COUNT {
                    if sender.free_message_slots(64) < 64 {
                        std::thread::yield_now();
                        continue;
                    }
                    for _ in 0..64.min(COUNT - n) {
                        let source = PackedSocketAddr::new(Ipv4Addr::from(n), n as u16);
                        let stage = if n % 2 == 0 { Stage::Judge } else { Stage::Execute };
                        let destination = PackedSocketAddr::new(Ipv4Addr::from(!n), 1);
                        sender.put_message(&HandoverMessage {
                            stage,
                            restarts: n,
                            source,
                            destination,
                            report: &report(n),
                        });
                        n += 1;
                    }
                    assert!(sender.publish_messages());
                    assert!(!sender.publish_messages());
                }
            });
            let mut room = [const { MessageBuffer::EMPTY }; 7];
            let mut n = 0;
            while n < COUNT {
                if receiver.waiting_messages() == 0 {
                    receiver.give_back();
                    std::thread::yield_now();
                    continue;
                }
                let taken = receiver.take(&mut room);
                assert_ne!(taken, 0);
                for message in room[..taken].iter().map(MessageBuffer::as_message) {
                    assert_eq!(message.report, report(n));
                    let source = PackedSocketAddr::new(Ipv4Addr::from(n), n as u16);
                    assert_eq!((message.restarts, message.source), (n, source));
                    assert_eq!(message.destination, PackedSocketAddr::new(Ipv4Addr::from(!n), 1));
                    assert_eq!(message.stage == Stage::Judge, n % 2 == 0);
                    n += 1;
                }
            }
            assert!(!receiver.outside_view().is_empty());
            receiver.give_back();
            assert!(receiver.outside_view().is_empty() && receiver.take(&mut room) == 0);
        });
    }

    #[test]
    fn a_ring_that_is_full_has_no_room_until_its_places_are_given_back() {
        let (mut sender, mut receiver) = new_ring();
        let source = PackedSocketAddr::new(Ipv4Addr::LOCALHOST, 1);
        let message = HandoverMessage {
            stage: Stage::Execute,
            restarts: 0,
            source,
            destination: source,
            report: &[1; 88],
        };
        for left in (1..=CAPACITY).rev() {
            assert_eq!(sender.free_message_slots(1), left);
            sender.put_message(&message);
        }
        assert_eq!(
            (sender.free_message_slots(1), receiver.waiting_messages()),
            (0, 0),
            "nothing is published yet"
        );
        sender.publish_messages();
        assert_eq!(receiver.waiting_messages(), CAPACITY);
        assert_eq!(receiver.take(&mut [MessageBuffer::EMPTY]), 1);
        assert_eq!(sender.free_message_slots(1), 0);
        receiver.give_back();
        assert_eq!(sender.free_message_slots(1), 1);
    }
}
