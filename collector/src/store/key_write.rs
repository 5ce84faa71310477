//! Key-write: the last value of a key, from its copies.

use dta_proto::crc;
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_write::{Outcome, Policy, choose, offset};
use dta_proto::store::StoreKind;

use super::Store;
use crate::region::{AccessError, Region};

/// Keys that pass a station together (see [`Reader::query`]). With N copies each, more slots than a
/// core has outstanding cache misses (10 to 50); measured, 16 to 64 differ little.
const GROUP: usize = 32;

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

    /// Asks for many keys: answer `i` is of key `i`, and its value, if it is found, is in `values`
    /// at `i * value_len`, where there are zeros if it is not.
    ///
    /// # Errors
    /// A slot lies outside the region: it is not that of the store's description. Then no answer counts.
    ///
    /// # Panics
    /// If `answers` has not one entry per key, or `values` not [`Reader::value_len`] bytes per key.
    pub fn query(
        &self,
        keys: &[Key],
        policy: Policy,
        answers: &mut [Answer],
        values: &mut [u8],
    ) -> Result<(), AccessError> {
        assert_eq!(keys.len(), answers.len(), "one answer per key");
        assert_eq!(keys.len() * self.value_len(), values.len(), "one value per key");
        // Lengths as constants make the copy out of memory, the checksums and the comparisons straight code.
        match self.value_len {
            4 => self.query_values::<4, 8>(keys, policy, answers, values),
            12 => self.query_values::<12, 16>(keys, policy, answers, values),
            28 => self.query_values::<28, 32>(keys, policy, answers, values),
            _ => self.query_values::<60, 64>(keys, policy, answers, values),
        }
    }

    fn query_values<const VALUE: usize, const SLOT: usize>(
        &self,
        keys: &[Key],
        policy: Policy,
        answers: &mut [Answer],
        values: &mut [u8],
    ) -> Result<(), AccessError> {
        let (values, _) = values.as_chunks_mut();
        match self.redundancy {
            1 => self.query_slots::<VALUE, SLOT, 1>(keys, policy, answers, values),
            2 => self.query_slots::<VALUE, SLOT, 2>(keys, policy, answers, values),
            3 => self.query_slots::<VALUE, SLOT, 3>(keys, policy, answers, values),
            _ => self.query_slots::<VALUE, SLOT, 4>(keys, policy, answers, values),
        }
    }

    /// A group of keys goes through three stations: their slots are asked for, copied, and judged.
    /// While a group's slots are on their way from memory, the group before is copied and judged.
    fn query_slots<const VALUE: usize, const SLOT: usize, const N: usize>(
        &self,
        keys: &[Key],
        policy: Policy,
        answers: &mut [Answer],
        values: &mut [[u8; VALUE]],
    ) -> Result<(), AccessError> {
        let mut offsets = [[[0; N]; GROUP]; 2];
        let [here, ahead] = &mut offsets;
        let (mut here, mut ahead) = (here, ahead);
        let mut copied = Copied::<VALUE, SLOT, N>::EMPTY;
        let mut groups = keys.chunks(GROUP);
        let mut asked = groups.next();
        if let Some(first) = asked {
            self.ask(first, here);
        }
        for (answers, values) in answers.chunks_mut(GROUP).zip(values.chunks_mut(GROUP)) {
            let Some(keys) = asked else { break };
            asked = groups.next();
            if let Some(next) = asked {
                self.ask(next, ahead);
            }
            copied.copy(self.region, &here[..keys.len()])?;
            copied.judge(keys, policy, answers, values);
            std::mem::swap(&mut here, &mut ahead);
        }
        Ok(())
    }

    #[inline(always)]
    fn ask<const N: usize>(&self, keys: &[Key], offsets: &mut [[u64; N]; GROUP]) {
        for (key, offsets) in keys.iter().zip(offsets) {
            let h = hash::key_hash(key);
            for (n, at) in offsets.iter_mut().enumerate() {
                *at = offset(hash::slot(h, n, self.slots), self.value_len);
                self.region.prefetch(*at);
            }
        }
    }
}

/// The slots of a group, out of memory that changes: `N` of each key.
struct Copied<const VALUE: usize, const SLOT: usize, const N: usize> {
    slots: [[[u8; SLOT]; N]; GROUP],
}

impl<const VALUE: usize, const SLOT: usize, const N: usize> Copied<VALUE, SLOT, N> {
    const EMPTY: Self = Self { slots: [[[0; SLOT]; N]; GROUP] };

    #[inline(always)]
    fn copy(&mut self, region: &Region, offsets: &[[u64; N]]) -> Result<(), AccessError> {
        let slots = self.slots.as_flattened_mut();
        offsets.as_flattened().iter().zip(slots).try_for_each(|(at, slot)| region.read(*at, slot))
    }

    #[inline(always)]
    fn judge(&self, keys: &[Key], policy: Policy, answers: &mut [Answer], values: &mut [[u8; VALUE]]) {
        let mut sums = [[0; N]; GROUP];
        let slots = &self.slots[..keys.len()];
        crc::crc32_each_behind(keys.iter().map(|key| &key.0), slots, &mut sums);
        for (((slots, sums), answer), to) in slots.iter().zip(&sums).zip(answers).zip(values) {
            // Without branches: whether a random key's copy matches is nothing that a processor can foresee.
            let matching: [bool; N] = std::array::from_fn(|n| checksum::<SLOT>(&slots[n]) == sums[n]);
            // Of no copy at all, the last: it is blanked out below.
            let first = (0..N).rev().fold(N - 1, |first, n| if matching[n] { n } else { first });
            let first = value::<VALUE, SLOT>(&slots[first]);
            let (mut agreeing, mut differing) = (0, 0);
            for (matching, slot) in matching.iter().zip(slots) {
                let equal = value::<VALUE, SLOT>(slot) == first;
                agreeing += u8::from(*matching & equal);
                differing += u8::from(*matching & !equal);
            }
            if policy != Policy::First && differing != 0 {
                *answer = weigh(slots, matching, policy, to);
                continue;
            }
            let found = agreeing != 0 && !matches!(policy, Policy::AtLeast(least) if agreeing < least);
            let blank = if found { u32::MAX } else { 0 };
            for (to, from) in to.as_chunks_mut().0.iter_mut().zip(first.as_chunks().0) {
                *to = (u32::from_ne_bytes(*from) & blank).to_ne_bytes();
            }
            *answer = Answer { found, agreeing, differing };
        }
    }
}

/// The checksum in front of the value.
#[inline(always)]
fn checksum<const SLOT: usize>(slot: &[u8; SLOT]) -> u32 {
    slot.first_chunk().map_or(0, |sum| u32::from_be_bytes(*sum))
}

/// The value behind the checksum.
#[inline(always)]
fn value<const VALUE: usize, const SLOT: usize>(slot: &[u8; SLOT]) -> &[u8; VALUE] {
    slot.last_chunk().unwrap_or(&[0; VALUE])
}

/// Copies that match and differ, under a policy that has to weigh them.
#[cold]
fn weigh<const VALUE: usize, const SLOT: usize, const N: usize>(
    slots: &[[u8; SLOT]; N],
    matching: [bool; N],
    policy: Policy,
    to: &mut [u8; VALUE],
) -> Answer {
    let found: [_; N] = std::array::from_fn(|n| matching[n].then(|| value::<VALUE, SLOT>(&slots[n])));
    let (value, answer) = match choose(policy, &found) {
        Outcome::Absent => (&[0; VALUE], Answer::default()),
        Outcome::Undecided { agreeing, differing } => {
            (&[0; VALUE], Answer { found: false, agreeing, differing })
        }
        Outcome::Found { value, agreeing, differing } => (value, Answer { found: true, agreeing, differing }),
    };
    *to = *value;
    answer
}
