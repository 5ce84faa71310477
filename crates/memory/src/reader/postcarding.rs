//! Postcarding: the path of a key, whole or partial.

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::postcarding::{PostcardPath, row_offset, verified_path};
use dta_proto::store::{MAX_REDUNDANCY, StoreKind};

use crate::region::{AccessError, Region};
use crate::store::Store;

const MAX_ROW: usize = 64;

/// What the copies say about one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostcardingReading {
    /// The path, if any copy matched.
    pub path: Option<PostcardPath>,
    /// Matching copies that hold it.
    pub agreeing: u8,
    /// Matching copies with another path.
    pub differing: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct PostcardingReader<'a> {
    region: &'a Region,
    slots: u64,
    hops: u8,
    redundancy: u8,
}

impl<'a> PostcardingReader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::Postcarding { slots, hops, redundancy } => {
                Some(Self { region: &store.region, slots, hops, redundancy })
            }
            _ => None,
        }
    }

    /// Queries many keys. If copies differ, the one with the most hops is the answer: a row loses hops only when it
    /// is started again.
    ///
    /// # Errors
    /// A slot lies outside the region: the region does not match the store's description. Then no answer is valid.
    ///
    /// # Panics
    /// If `answers` does not have one entry per key.
    pub fn query_keys(&self, keys: &[Key], answers: &mut [PostcardingReading]) -> Result<(), AccessError> {
        assert_eq!(keys.len(), answers.len(), "one answer per key");
        for (keys, answers) in keys.chunks(32).zip(answers.chunks_mut(32)) {
            let mut slots = [None; 32];
            for (key, slots) in keys.iter().zip(&mut slots) {
                let at = hash::key_slots(key, self.redundancy, self.slots);
                at.iter().for_each(|slot| self.region.prefetch_line(row_offset(*slot, self.hops)));
                *slots = Some(at);
            }
            for ((key, answer), slots) in keys.iter().zip(answers).zip(slots.iter().flatten()) {
                *answer = self.read_path(key, slots)?;
            }
        }
        Ok(())
    }

    fn read_path(&self, key: &Key, slots: &[u64]) -> Result<PostcardingReading, AccessError> {
        let mut found = [None; MAX_REDUNDANCY as usize];
        let mut row = [0u8; MAX_ROW];
        let row = &mut row[..8 + 4 * usize::from(self.hops)];
        for (found, slot) in found.iter_mut().zip(slots) {
            self.region.read(row_offset(*slot, self.hops), row)?;
            *found = verified_path(row, key);
        }
        let Some(best) = found
            .iter()
            .flatten()
            .copied()
            .reduce(|a, b| if b.present_hops() > a.present_hops() { b } else { a })
        else {
            return Ok(PostcardingReading::default());
        };
        let matching = found.iter().flatten().count() as u8;
        let agreeing = found.iter().flatten().filter(|p| **p == best).count() as u8;
        Ok(PostcardingReading { path: Some(best), agreeing, differing: matching - agreeing })
    }
}
