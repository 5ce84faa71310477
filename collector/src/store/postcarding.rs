//! Postcarding: the path of a key, whole or partial.

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::postcarding::{Path, matches, offset};
use dta_proto::store::{MAX_REDUNDANCY, StoreKind};

use super::Store;
use crate::region::{AccessError, Region};

const MAX_ROW: usize = 64;

/// What the copies say about one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The path, if any copy matched.
    pub path: Option<Path>,
    /// Matching copies that hold it.
    pub agreeing: u8,
    /// Matching copies with another path.
    pub differing: u8,
}

/// Answers from one postcarding store.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    region: &'a Region,
    slots: u64,
    hops: u8,
    redundancy: u8,
}

impl<'a> Reader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::Postcarding { slots, hops, redundancy } => {
                Some(Self { region: &store.region, slots, hops, redundancy })
            }
            _ => None,
        }
    }

    /// Queries many keys. If copies differ, the one with the most hops is the answer: a row only loses hops when it
    /// is started again.
    ///
    /// # Errors
    /// A slot lies outside the region: the region does not match the store's description. Then no answer counts.
    ///
    /// # Panics
    /// If `answers` does not have one entry per key.
    pub fn query(&self, keys: &[Key], answers: &mut [Answer]) -> Result<(), AccessError> {
        assert_eq!(keys.len(), answers.len(), "one answer per key");
        for (keys, answers) in keys.chunks(32).zip(answers.chunks_mut(32)) {
            let mut slots = [None; 32];
            for (key, slots) in keys.iter().zip(&mut slots) {
                let at = hash::slots(key, self.redundancy, self.slots);
                at.iter().for_each(|slot| self.region.prefetch(offset(*slot, self.hops)));
                *slots = Some(at);
            }
            for ((key, answer), slots) in keys.iter().zip(answers).zip(slots.iter().flatten()) {
                *answer = self.look(key, slots)?;
            }
        }
        Ok(())
    }

    fn look(&self, key: &Key, slots: &[u64]) -> Result<Answer, AccessError> {
        let mut found = [None; MAX_REDUNDANCY as usize];
        let mut row = [0u8; MAX_ROW];
        let row = &mut row[..8 + 4 * usize::from(self.hops)];
        for (found, slot) in found.iter_mut().zip(slots) {
            self.region.read(offset(*slot, self.hops), row)?;
            *found = matches(row, key);
        }
        let Some(best) =
            found.iter().flatten().copied().reduce(|a, b| if b.present() > a.present() { b } else { a })
        else {
            return Ok(Answer::default());
        };
        let matching = found.iter().flatten().count() as u8;
        let agreeing = found.iter().flatten().filter(|p| **p == best).count() as u8;
        Ok(Answer { path: Some(best), agreeing, differing: matching - agreeing })
    }
}
