//! Key-write: a value under a key, written at once.

use dta_proto::key::Key;
use dta_proto::layout::{hash, key_write as layout};
use dta_proto::program::Primitive;
use dta_proto::wire::dta::MAX_VALUE_LEN;

use crate::context::Context;
use crate::counters::Reason;
use crate::egress::StoreWrite;
use crate::losses::Origin;
use crate::requester::OperationEffect;

/// Slots up to this length are built in a shorter buffer.
const SHORT: usize = 32;
const LONG: usize = layout::CHECKSUM_LEN + MAX_VALUE_LEN;

/// The shape of one store. Nothing is held.
#[derive(Clone, Copy)]
pub(crate) struct KeyWriteShape {
    pub(crate) slots: u64,
    /// Length of a slot's value.
    pub(crate) value_len: u8,
    /// Copies of each value, unless a report asks for fewer.
    pub(crate) copies: u8,
}

impl KeyWriteShape {
    /// The number of copies that a report asks for; a `redundancy` of 0 asks for as many as the store has.
    #[inline]
    pub(crate) fn requested_copies(&self, redundancy: u8) -> Result<u8, Reason> {
        match redundancy {
            0 => Ok(self.copies),
            fewer if fewer <= self.copies => Ok(fewer),
            _ => Err(Reason::Redundancy),
        }
    }

    /// Writes a value to slots of its key: as many as [`Self::requested_copies`] says.
    #[inline]
    pub(crate) fn ingest_value(
        &self,
        redundancy: u8,
        key: &Key,
        value: &[u8],
        origin: Origin,
        context: &mut Context<'_>,
    ) -> Result<(), Reason> {
        let KeyWriteShape { slots, value_len, .. } = *self;
        let copies = self.requested_copies(redundancy)?;
        if value.len() > usize::from(value_len) {
            return Err(Reason::ValueLength);
        }
        let h = hash::key_hash(key);
        context.check_reachable(h)?;
        // Most slots are short, which leaves less to clear per report.
        let (mut short, mut long);
        let slot = match layout::CHECKSUM_LEN + usize::from(value_len) {
            len @ ..=SHORT => {
                short = [0; SHORT];
                &mut short[..len]
            }
            len => {
                long = [0; LONG];
                &mut long[..len]
            }
        };
        layout::encode_slot(slot, key, value);
        let write = StoreWrite {
            action: OperationEffect::WRITE,
            copies,
            payload: slot,
            primitive: Primitive::KeyWrite,
            reports: 1,
        };
        let offset = |n: u8| layout::slot_offset(hash::slot_index(h, usize::from(n), slots), value_len);
        // Copies are spread over the collectors that have the key.
        let replicas = context.regions.replica_count();
        context.write_replicas(h, &write, |n| usize::from(n) % replicas, offset, std::iter::once(origin));
        Ok(())
    }
}
