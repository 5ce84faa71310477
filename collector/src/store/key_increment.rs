//! Key-increment: the smallest counter of a key.

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_increment::{estimates, offset};
use dta_proto::store::{MAX_REDUNDANCY, StoreKind};

use super::Store;
use crate::region::{AccessError, Region};

/// What was counted of a key, from what each of its replicas counted: the highest, as one that was down counted less.
pub fn highest(of_replicas: &[u64]) -> u64 {
    of_replicas.iter().copied().max().unwrap_or_default()
}

/// Answers from one key-increment store.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    region: &'a Region,
    slots: u64,
    redundancy: u8,
    replicas: u8,
}

impl<'a> Reader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::KeyIncrement { slots, redundancy, replicas } => {
                Some(Self { region: &store.region, slots, redundancy, replicas })
            }
            _ => None,
        }
    }

    /// Replicas of each key.
    pub fn replicas(&self) -> usize {
        self.replicas.into()
    }

    /// Queries many keys: of each, one count for each replica. Counts are never below what was applied, and 0 for a key
    /// that was never counted and shares no counter.
    ///
    /// # Errors
    /// A slot lies outside the region: the region does not match the store's description. Then no answer counts.
    ///
    /// # Panics
    /// If `answers` does not have [`Reader::replicas`] entries per key.
    pub fn query(&self, keys: &[Key], answers: &mut [u64]) -> Result<(), AccessError> {
        assert_eq!(keys.len() * self.replicas(), answers.len(), "one answer per key and replica");
        for (keys, answers) in keys.chunks(32).zip(answers.chunks_mut(32 * self.replicas())) {
            let mut slots = [None; 32];
            for (key, slots) in keys.iter().zip(&mut slots) {
                let at = hash::slots(key, self.redundancy * self.replicas, self.slots);
                at.iter().for_each(|slot| self.region.prefetch(offset(*slot)));
                *slots = Some(at);
            }
            for (answers, slots) in answers.chunks_mut(self.replicas()).zip(slots.iter().flatten()) {
                let mut counters = [0u64; MAX_REDUNDANCY as usize];
                for (counter, slot) in counters.iter_mut().zip(slots.iter()) {
                    // In the host's byte order, in which the NIC adds.
                    *counter = self.region.load_u64(offset(*slot))?;
                }
                let counted = estimates(self.redundancy, slots, &counters);
                answers.iter_mut().zip(counted).for_each(|(answer, counted)| *answer = counted);
            }
        }
        Ok(())
    }
}
