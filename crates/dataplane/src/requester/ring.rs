//! Operations of an RC queue pair from creation to acknowledgement, in preallocated memory.

use super::{Departure, OperationEffect, Verb};
use crate::losses::FrameMeta;
use dta_proto::wire::roce::Psn;

/// A stored operation, waiting to be sent or acknowledged.
#[derive(Clone)]
pub(super) struct StoredOperation {
    pub(super) action: OperationEffect,
    pub(super) store: u32,
    pub(super) offset: u64,
    pub(super) meta: FrameMeta,
    /// The responder refused it once, with an error NAK.
    pub(super) refused: bool,
    /// It occupies one of the responder's resources, or may have done so.
    pub(super) atomic: bool,
    /// Bytes of its payload.
    len: u16,
}

impl StoredOperation {
    const EMPTY: StoredOperation = StoredOperation {
        action: OperationEffect::IDLE,
        store: 0,
        offset: 0,
        meta: FrameMeta::IDLE,
        refused: false,
        atomic: false,
        len: 0,
    };

    /// Turns it into a no-op under its PSN.
    pub(super) fn make_idle(&mut self) {
        *self = StoredOperation { atomic: self.atomic, ..StoredOperation::EMPTY };
    }
}

/// The operations by number; places are reused after acknowledgement.
pub(super) struct OperationRing {
    slots: Vec<StoredOperation>,
    /// Room for the payload of each.
    payloads: Vec<u8>,
    payload_len: usize,
}

impl OperationRing {
    /// Room for at least `operations` with payloads of up to `payload_len` bytes.
    pub(super) fn new(operations: usize, payload_len: usize) -> OperationRing {
        let slots = operations.next_power_of_two();
        OperationRing {
            slots: vec![StoredOperation::EMPTY; slots],
            payloads: vec![0; slots * payload_len],
            payload_len,
        }
    }

    /// For UC, which keeps nothing.
    pub(super) fn without_room() -> OperationRing {
        OperationRing { slots: Vec::new(), payloads: Vec::new(), payload_len: 0 }
    }

    /// Makes room for longer payloads; what is stored stays.
    pub(super) fn widen_payloads(&mut self, payload_len: usize) {
        if payload_len <= self.payload_len || self.slots.is_empty() {
            return;
        }
        let mut payloads = vec![0; self.slots.len() * payload_len];
        if self.payload_len != 0 {
            let old = self.payloads.chunks_exact(self.payload_len);
            payloads
                .chunks_exact_mut(payload_len)
                .zip(old)
                .for_each(|(new, old)| new[..old.len()].copy_from_slice(old));
        }
        (self.payloads, self.payload_len) = (payloads, payload_len);
    }

    fn slot_index(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }

    pub(super) fn operation_at(&self, number: u64) -> &StoredOperation {
        &self.slots[self.slot_index(number)]
    }

    pub(super) fn operation_at_mut(&mut self, number: u64) -> &mut StoredOperation {
        let place = self.slot_index(number);
        &mut self.slots[place]
    }

    /// The operation with this number, to send under `psn`.
    pub(super) fn departure(&self, number: u64, psn: Psn, ack_request: bool) -> Departure<'_> {
        let place = self.slot_index(number);
        let operation = &self.slots[place];
        Departure {
            psn,
            ack_request,
            action: operation.action,
            store: operation.store as usize,
            offset: operation.offset,
            payload: &self.payloads[place * self.payload_len..][..usize::from(operation.len)],
            meta: &operation.meta,
        }
    }

    pub(super) fn store_operation(
        &mut self,
        number: u64,
        action: OperationEffect,
        (store, offset): (usize, u64),
        payload: &[u8],
        meta: &FrameMeta,
    ) {
        let place = self.slot_index(number);
        self.slots[place] = StoredOperation {
            action,
            store: store as u32,
            offset,
            meta: *meta,
            refused: false,
            atomic: action.verb == Verb::FetchAdd,
            len: payload.len() as u16,
        };
        self.payloads[place * self.payload_len..][..self.payload_len][..payload.len()]
            .copy_from_slice(payload);
    }

    pub(super) fn swap_operations(&mut self, a: u64, b: u64) {
        let (a, b) = (self.slot_index(a), self.slot_index(b));
        self.slots.swap(a, b);
        for byte in 0..self.payload_len {
            self.payloads.swap(a * self.payload_len + byte, b * self.payload_len + byte);
        }
    }
}
