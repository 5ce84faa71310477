//! Key-increment: the smallest counter of a key.

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_increment::{estimate, offset};
use dta_proto::store::{MAX_REDUNDANCY, StoreKind};

use super::Store;
use crate::region::{AccessError, Region};

/// Answers from one key-increment store.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    region: &'a Region,
    slots: u64,
    redundancy: u8,
}

impl<'a> Reader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::KeyIncrement { slots, redundancy } => {
                Some(Self { region: &store.region, slots, redundancy })
            }
            _ => None,
        }
    }

    /// Queries many keys: counts are never below what was applied, and 0 for a key that was never counted and shares
    /// no counter.
    ///
    /// # Errors
    /// A slot lies outside the region: the region does not match the store's description. Then no answer counts.
    ///
    /// # Panics
    /// If `answers` does not have one entry per key.
    pub fn query(&self, keys: &[Key], answers: &mut [u64]) -> Result<(), AccessError> {
        assert_eq!(keys.len(), answers.len(), "one answer per key");
        for (keys, answers) in keys.chunks(32).zip(answers.chunks_mut(32)) {
            let mut slots = [None; 32];
            for (key, slots) in keys.iter().zip(&mut slots) {
                let at = hash::slots(key, self.redundancy, self.slots);
                at.iter().for_each(|slot| self.region.prefetch(offset(*slot)));
                *slots = Some(at);
            }
            for (answer, slots) in answers.iter_mut().zip(slots.iter().flatten()) {
                let mut counters = [0u64; MAX_REDUNDANCY as usize];
                for (counter, slot) in counters.iter_mut().zip(slots.iter()) {
                    // In the host's byte order, in which the NIC adds.
                    *counter = self.region.load_u64(offset(*slot))?;
                }
                *answer = estimate(slots, &counters);
            }
        }
        Ok(())
    }
}
