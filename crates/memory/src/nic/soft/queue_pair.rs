//! Passive queue pairs: their state in the responder, and how they are found.
//!
//! A queue pair number is 24 random bits, so that one of an earlier session is not mistaken for a new one, and a
//! writer must know it as well as an rkey.

use dta_proto::wire::AddressPair;
use dta_proto::wire::roce::Psn;

use super::counter::NicCounts;
use super::index::NumberIndex;
use super::keys::free_place;
use crate::nic::{NicError, QueuePairRequest, QueuePairState, QueuePairStatus};

pub(super) const MAX_QUEUE_PAIRS: usize = 1024;

/// Numbers that may be given out: InfiniBand reserves 0, 1 and 0xffffff.
const NUMBERS: std::ops::Range<u32> = 2..0xff_ffff;

pub(super) struct PassiveQueuePair {
    pub(super) qpn: u32,
    pub(super) request: QueuePairRequest,
    /// The addresses of its answers: the NIC's and the peer's.
    pub(super) ends: AddressPair,
    pub(super) state: QueuePairState,
    pub(super) psn: Psn,
    /// The PSN after the last WRITE or atomic executed: a repeated WRITE is acknowledged with the one before.
    pub(super) ack_psn: Psn,
    /// Messages executed, modulo 2^24.
    pub(super) msn: u32,
    /// Whether a sequence-error NAK was sent and the expected PSN has not arrived yet.
    pub(super) sequence_nak_sent: bool,
    /// (UC) Whether the rest of a message is to be dropped.
    pub(super) drop_message: bool,
    /// The WRITE whose LAST has not arrived yet.
    pub(super) message: Option<WriteMessage>,
    /// Receives posted for WRITEs with immediate.
    pub(super) receives: u32,
    /// The newest atomics and READs, kept to be answered again; one per responder resource.
    pub(super) resources: Vec<Option<Resource>>,
    /// The place of the next one.
    pub(super) next_resource: usize,
    pub(super) counts: NicCounts,
}

/// A WRITE of several packets in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteMessage {
    pub(super) rkey: u32,
    /// Where the next packet's data goes.
    pub(super) va: u64,
    /// Bytes still to come.
    pub(super) left: u32,
    /// Bytes in all.
    pub(super) length: u32,
}

/// An atomic or READ, kept to be answered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// An atomic and the value before it.
    Atomic { psn: Psn, before: u64 },
    /// A READ; its answer had `packets` packets, from `psn` on.
    Read { psn: Psn, packets: u32, va: u64, length: u32, rkey: u32 },
}

impl Resource {
    fn covers_psn(&self, at: Psn) -> bool {
        match *self {
            Resource::Atomic { psn, .. } => at == psn,
            Resource::Read { psn, packets, .. } => {
                (0..i64::from(packets)).contains(&i64::from(at.distance_from(psn)))
            }
        }
    }
}

impl PassiveQueuePair {
    /// The atomic or READ with a PSN, if it is still kept.
    pub(super) fn resource_at_psn(&mut self, psn: Psn) -> Option<&mut Resource> {
        self.resources.iter_mut().flatten().find(|resource| resource.covers_psn(psn))
    }

    /// (UC) A new message begins; an unfinished one is forgotten.
    #[inline(always)]
    pub(super) fn begin_message(&mut self) {
        self.drop_message = false;
        self.message = None;
    }

    /// The packet of this PSN was executed, and its message continues.
    #[inline(always)]
    pub(super) fn mark_executed(&mut self, psn: Psn) {
        self.psn = psn.next();
        self.ack_psn = self.psn;
    }

    /// The packet of this PSN was executed, and its message is complete.
    #[inline(always)]
    pub(super) fn end_message(&mut self, psn: Psn) {
        self.end_messages(psn, 1);
    }

    /// This many packets were executed, each a message; the last one had this PSN.
    #[inline(always)]
    pub(super) fn end_messages(&mut self, psn: Psn, count: u32) {
        self.mark_executed(psn);
        self.message = None;
        self.msn = self.msn.wrapping_add(count);
    }

    /// Keeps an atomic or READ in place of the oldest.
    pub(super) fn retain_resource(&mut self, resource: Resource) {
        if let Some(slot) = self.resources.get_mut(self.next_resource) {
            *slot = Some(resource);
            self.next_resource = (self.next_resource + 1) % self.resources.len();
        }
    }

    pub(super) fn status(&self) -> QueuePairStatus {
        QueuePairStatus {
            qpn: self.qpn,
            request: self.request.clone(),
            state: self.state,
            expected_psn: self.psn.get(),
            counters: self.counts.nonzero_counters(),
        }
    }
}

#[derive(Default)]
pub(super) struct QueuePairs {
    slots: Vec<Option<Box<PassiveQueuePair>>>,
    index: NumberIndex,
}

impl QueuePairs {
    /// Adds the queue pair that `make` creates for a new number for which `ours` holds; `None` if the table is full.
    /// `random` returns 32 random bits.
    pub(super) fn insert(
        &mut self,
        ours: impl Fn(u32) -> bool,
        mut random: impl FnMut() -> Result<u32, NicError>,
        make: impl FnOnce(u32) -> PassiveQueuePair,
    ) -> Result<Option<&mut PassiveQueuePair>, NicError> {
        let Some(place) = free_place(&mut self.slots, MAX_QUEUE_PAIRS) else { return Ok(None) };
        let qpn = loop {
            let qpn = random()? >> 8;
            if NUMBERS.contains(&qpn) && ours(qpn) && self.index.find_place(qpn).is_none() {
                break qpn;
            }
        };
        self.index.insert(qpn, place);
        Ok(Some(self.slots[place].insert(Box::new(make(qpn)))))
    }

    /// Ends a queue pair and returns it, if there was one.
    pub(super) fn remove(&mut self, qpn: u32) -> Option<Box<PassiveQueuePair>> {
        let place = self.index.remove(qpn)?;
        self.slots[place].take()
    }

    /// The queue pair of a number, and its place in the table.
    #[inline(always)]
    pub(super) fn find_queue_pair(&self, qpn: u32) -> Option<(usize, &PassiveQueuePair)> {
        let place = self.index.find_place(qpn)?;
        Some((place, self.slots.get(place)?.as_deref()?))
    }

    /// The queue pair at a place that [`QueuePairs::find_queue_pair`] returned.
    #[inline(always)]
    pub(super) fn queue_pair_at(&mut self, index: usize) -> Option<&mut PassiveQueuePair> {
        self.slots.get_mut(index)?.as_deref_mut()
    }

    pub(super) fn get(&mut self, qpn: u32) -> Option<&mut PassiveQueuePair> {
        let place = self.index.find_place(qpn)?;
        self.queue_pair_at(place)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PassiveQueuePair> {
        self.slots.iter().flatten().map(Box::as_ref)
    }
}
