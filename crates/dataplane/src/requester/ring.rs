//! Operations of an RC queue pair from creation to acknowledgement, in preallocated memory.

use super::{Departure, MAX_PAYLOAD, OperationEffect, Verb};
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
    len: u8,
    payload: [u8; MAX_PAYLOAD],
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
        payload: [0; MAX_PAYLOAD],
    };

    /// Turns it into a no-op under its PSN.
    pub(super) fn make_idle(&mut self) {
        *self = StoredOperation { atomic: self.atomic, ..StoredOperation::EMPTY };
    }

    pub(super) fn departure(&self, psn: Psn, ack_request: bool) -> Departure<'_> {
        Departure {
            psn,
            ack_request,
            action: self.action,
            store: self.store as usize,
            offset: self.offset,
            payload: &self.payload[..usize::from(self.len)],
            meta: &self.meta,
        }
    }
}

/// The operations by number; places are reused after acknowledgement.
pub(super) struct OperationRing {
    slots: Vec<StoredOperation>,
}

impl OperationRing {
    /// Room for at least `operations`.
    pub(super) fn new(operations: usize) -> OperationRing {
        OperationRing { slots: vec![StoredOperation::EMPTY; operations.next_power_of_two()] }
    }

    /// Without room: UC keeps nothing.
    pub(super) fn without_room() -> OperationRing {
        OperationRing { slots: Vec::new() }
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

    pub(super) fn store_operation(
        &mut self,
        number: u64,
        action: OperationEffect,
        (store, offset): (usize, u64),
        payload: &[u8],
        meta: &FrameMeta,
    ) {
        let slot = self.operation_at_mut(number);
        slot.action = action;
        slot.store = store as u32;
        slot.offset = offset;
        slot.meta = *meta;
        slot.refused = false;
        slot.atomic = action.verb == Verb::FetchAdd;
        slot.len = payload.len() as u8;
        slot.payload[..payload.len()].copy_from_slice(payload);
    }

    pub(super) fn swap_operations(&mut self, a: u64, b: u64) {
        let (a, b) = (self.slot_index(a), self.slot_index(b));
        self.slots.swap(a, b);
    }
}
