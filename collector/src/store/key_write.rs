//! Key-write: the last value of a key, from its copies.

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_write::{Outcome, Policy, choose, matches, offset};
use dta_proto::store::{MAX_REDUNDANCY, StoreKind};

use super::Store;
use crate::region::Region;

/// Keys whose slots are on their way from memory while an earlier key's are looked at. More than a core's outstanding cache misses
/// (10 to 50) with N copies each; measured, 16 to 64 differ little.
const AHEAD: usize = 32;

/// The most bytes of a slot.
const MAX_SLOT: usize = 64;

/// What the copies say of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether there is a value.
    pub found: bool,
    /// Matching copies that hold it (or, without a value, the value that most hold).
    pub agreeing: u8,
    /// Matching copies with another value.
    pub differing: u8,
}

/// Answers from one key-write store.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    region: &'a Region,
    slots: u64,
    value_len: u8,
    redundancy: u8,
}

impl<'a> Reader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy } => {
                Some(Self { region: &store.region, slots, value_len, redundancy })
            }
            _ => None,
        }
    }

    /// Bytes of a value.
    pub fn value_len(&self) -> usize {
        usize::from(self.value_len)
    }

    /// Copies that every query reads.
    pub fn copies(&self) -> u8 {
        self.redundancy
    }

    /// Asks for many keys: answer `i` is of key `i`, and its value, if it is found, is in `values` at `i * value_len`.
    ///
    /// # Panics
    /// If `answers` has not one entry per key, or `values` not [`Reader::value_len`] bytes per key.
    pub fn query(&self, keys: &[Key], policy: Policy, answers: &mut [Answer], values: &mut [u8]) {
        assert_eq!(keys.len(), answers.len(), "one answer per key");
        assert_eq!(keys.len() * self.value_len(), values.len(), "one value per key");
        // The length as a constant makes the copy out of memory, the checksum and the comparison straight code.
        match self.value_len {
            4 => self.query_slots::<8>(keys, policy, answers, values),
            12 => self.query_slots::<16>(keys, policy, answers, values),
            28 => self.query_slots::<32>(keys, policy, answers, values),
            _ => self.query_slots::<MAX_SLOT>(keys, policy, answers, values),
        }
    }

    fn query_slots<const LEN: usize>(
        &self,
        keys: &[Key],
        policy: Policy,
        answers: &mut [Answer],
        values: &mut [u8],
    ) {
        let mut offsets = [[0u64; MAX_REDUNDANCY as usize]; AHEAD];
        for i in 0..keys.len() + AHEAD {
            if let Some(done) = i.checked_sub(AHEAD) {
                let offsets = &offsets[done % AHEAD][..usize::from(self.redundancy)];
                let value = &mut values[done * (LEN - 4)..][..LEN - 4];
                answers[done] = self.look::<LEN>(&keys[done], offsets, policy, value);
            }
            if let Some(key) = keys.get(i) {
                for (at, slot) in
                    offsets[i % AHEAD].iter_mut().zip(hash::slots(key, self.redundancy, self.slots).iter())
                {
                    *at = offset(*slot, self.value_len);
                    self.region.prefetch(*at);
                }
            }
        }
    }

    #[inline]
    fn look<const LEN: usize>(&self, key: &Key, offsets: &[u64], policy: Policy, value: &mut [u8]) -> Answer {
        let mut copies = [[0u8; LEN]; MAX_REDUNDANCY as usize];
        let mut found: [Option<&[u8]>; MAX_REDUNDANCY as usize] = [None; MAX_REDUNDANCY as usize];
        for ((copy, found), at) in copies.iter_mut().zip(&mut found).zip(offsets) {
            if self.region.read(*at, copy).is_ok() {
                *found = matches(copy, key);
            }
        }
        match choose(policy, &found[..offsets.len()]) {
            Outcome::Absent => Answer::default(),
            Outcome::Undecided { agreeing, differing } => Answer { found: false, agreeing, differing },
            Outcome::Found { value: found, agreeing, differing } => {
                value.copy_from_slice(found);
                Answer { found: true, agreeing, differing }
            }
        }
    }
}
