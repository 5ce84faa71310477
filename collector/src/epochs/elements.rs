//! A store's memory as slots, and slots as a store.

use dta_proto::key::Key;
use dta_proto::layout::{hash, key_write, postcarding};
use dta_proto::store::StoreKind;

use crate::region::{AccessError, Region, RegionError};
use crate::store::Store;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;

/// How a store with epochs is made of slots.
#[derive(Clone, Copy)]
pub struct Slots {
    pub(super) count: u64,
    /// Bytes of one.
    pub(super) len: usize,
    redundancy: u8,
}

/// The slots of a store; `None` if it can have no epochs.
pub fn slots_of(kind: &StoreKind) -> Option<Slots> {
    let (count, len, redundancy) = match *kind {
        StoreKind::KeyWrite { slots, value_len, redundancy } => {
            (slots, key_write::offset(1, value_len), redundancy)
        }
        StoreKind::Postcarding { slots, hops, redundancy } => {
            (slots, postcarding::offset(1, hops), redundancy)
        }
        _ => return None,
    };
    Some(Slots { count, len: len as usize, redundancy })
}

impl Slots {
    /// The slots of keys, each once, in ascending order.
    pub(super) fn of_keys(&self, keys: &[Key]) -> Vec<u64> {
        let mut slots: Vec<u64> =
            keys.iter().flat_map(|key| hash::slots(key, self.redundancy, self.count).to_vec()).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Gives all slots of a region in ascending order, some at a time: the number of the first, and their bytes.
    ///
    /// # Errors
    /// The region is shorter than its store's description says, or what `take` says.
    pub(super) fn read<E: From<AccessError>>(
        &self,
        region: &Region,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let many = CHUNK / self.len;
        let mut chunk = vec![0; many * self.len];
        for first in (0..self.count).step_by(many) {
            let slots = (self.count - first).min(many as u64) as usize;
            let chunk = &mut chunk[..slots * self.len];
            region.read(first * self.len as u64, chunk)?;
            take(first, chunk)?;
        }
        Ok(())
    }

    /// A store like `like` that has these slots and zeros elsewhere.
    pub(super) fn store(
        &self,
        like: &Store,
        generation: u64,
        slots: &[u64],
        bytes: &[u8],
    ) -> Result<Store, RegionError> {
        let region = Region::sparse(like.region.len())?;
        for (slot, bytes) in slots.iter().zip(bytes.chunks_exact(self.len)) {
            if bytes.iter().any(|byte| *byte != 0) {
                // A slot of the store lies in memory of the store's length.
                let _ = region.write(slot * self.len as u64, bytes);
            }
        }
        Ok(like.of_elements(region, generation))
    }
}
