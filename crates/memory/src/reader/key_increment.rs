//! Key-increment: the smallest counter of a key.

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_increment::{MAX_SLOTS_PER_KEY, counter_offset, estimates, lane_count};
use dta_proto::store::StoreKind;

use crate::region::{AccessError, Region};
use crate::store::Store;

/// What one collector counted for a key, over all lanes.
pub fn total_of_lanes(of_lanes: &[u64]) -> u64 {
    of_lanes.iter().copied().fold(0, u64::saturating_add)
}

#[derive(Clone, Copy, Debug)]
pub struct KeyIncrementReader<'a> {
    region: &'a Region,
    slots: u64,
    redundancy: u8,
    lanes: usize,
}

impl<'a> KeyIncrementReader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::KeyIncrement { slots, redundancy, replicas } => {
                Some(Self { region: &store.region, slots, redundancy, lanes: lane_count(replicas) })
            }
            _ => None,
        }
    }

    pub fn lane_count(&self) -> usize {
        self.lanes
    }

    /// Queries many keys, with one count per lane for each. Counts are never below what was applied, and 0 for a key
    /// that was never counted and shares no counter.
    ///
    /// # Errors
    /// A slot lies outside the region: the region does not match the store's description. Then no answer is valid.
    ///
    /// # Panics
    /// If `answers` does not have [`KeyIncrementReader::lane_count`] entries per key.
    pub fn query_keys(&self, keys: &[Key], answers: &mut [u64]) -> Result<(), AccessError> {
        assert_eq!(keys.len() * self.lanes, answers.len(), "one answer per key and lane");
        let of_key = self.redundancy * self.lanes as u8;
        for (keys, answers) in keys.chunks(32).zip(answers.chunks_mut(32 * self.lanes)) {
            let mut slots = [None; 32];
            for (key, slots) in keys.iter().zip(&mut slots) {
                let at = hash::key_slots(key, of_key, self.slots);
                at.iter().for_each(|slot| self.region.prefetch_line(counter_offset(*slot)));
                *slots = Some(at);
            }
            for (answers, slots) in answers.chunks_mut(self.lanes).zip(slots.iter().flatten()) {
                let mut counters = [0u64; MAX_SLOTS_PER_KEY];
                for (counter, slot) in counters.iter_mut().zip(slots.iter()) {
                    // In the host's byte order, in which the NIC adds.
                    *counter = self.region.load_u64(counter_offset(*slot))?;
                }
                let counted = estimates(self.redundancy, slots, &counters);
                answers.iter_mut().zip(counted).for_each(|(answer, counted)| *answer = counted);
            }
        }
        Ok(())
    }
}
