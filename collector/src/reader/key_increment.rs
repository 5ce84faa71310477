//! Key-increment: the smallest counter of a key.

use dta_proto::control::CounterAnswer;
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_increment::{
    CountingRole, MAX_SLOTS_PER_KEY, counter_offset, estimates, lane_count, total_count,
};
use dta_proto::store::StoreKind;

use super::{KeyAnswers, QueryError};
use crate::region::{AccessError, Region};
use crate::store::Store;

/// How this collector counts each of some keys of a store (by its name) that two collectors count; `None` if it does not
/// know.
pub type Roles = dyn Fn(&str, &[Key]) -> Option<Vec<CountingRole>> + Send + Sync;

/// What one collector counted of a key, in all lanes.
pub fn total_of_lanes(of_lanes: &[u64]) -> u64 {
    of_lanes.iter().copied().fold(0, u64::saturating_add)
}

/// Answers from one key-increment store.
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

    /// Queries many keys: of each, one count for each lane. Counts are never below what was applied, and 0 for a key
    /// that was never counted and shares no counter.
    ///
    /// # Errors
    /// A slot lies outside the region: the region does not match the store's description. Then no answer counts.
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

/// The count of each key. Of stores that two collectors count, `roles` tells which counts are this collector's.
pub(super) fn answer_keys(
    store: &Store,
    keys: &[Key],
    roles: Option<&Roles>,
) -> Result<KeyAnswers, QueryError> {
    let reader = KeyIncrementReader::new(store).ok_or(QueryError::Layout)?;
    let mut lanes = vec![0; keys.len() * reader.lane_count()];
    reader.query_keys(keys, &mut lanes).map_err(|error| store.outside_region(error))?;
    let of_keys = roles.filter(|_| reader.lane_count() > 1).and_then(|roles| roles(&store.spec.name, keys));
    let answer = |(n, (key, lanes)): (usize, (&Key, &[u64]))| {
        let key = key.0.to_vec();
        let Some(roles) = &of_keys else {
            return CounterAnswer { key, value: total_of_lanes(lanes), by_colour: Vec::new() };
        };
        let by_colour = roles[n].by_colour(lanes);
        CounterAnswer { key, value: total_count(&by_colour), by_colour }
    };
    let answers = keys.iter().zip(lanes.chunks(reader.lane_count())).enumerate();
    let answers: Vec<CounterAnswer> = answers.map(answer).collect();
    let found = answers.iter().filter(|answer| answer.value != 0).count();
    Ok(KeyAnswers { answers: answers.into_iter().map(Into::into).collect(), found })
}
