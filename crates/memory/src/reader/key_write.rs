//! Key-write: the last value of a key, from its copies.

use dta_proto::crc;
use dta_proto::key::{KEY_LEN, Key};
use dta_proto::layout::hash;
use dta_proto::layout::key_write::{self, CHECKSUM_LEN, Choice, CombinedCopies, combine_copies};
use dta_proto::store::{SlotKeys, StoreKind};

use crate::region::{AccessError, Region};
use crate::store::Store;

/// Keys that pass a stage together (see [`KeyWriteReader::query_keys`]). With N copies each, they have more slots than
/// a core has outstanding cache misses (10 to 50); measured, 16 to 64 differ little.
const GROUP: usize = 32;

/// What the copies say about one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyWriteReading {
    /// Whether there is a value.
    pub found: bool,
    /// Matching copies that hold it (or, without a value, the most common value).
    pub agreeing: u8,
    /// Matching copies with another value.
    pub differing: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct KeyWriteReader<'a> {
    region: &'a Region,
    slots: u64,
    value_len: u8,
    keys: SlotKeys,
    redundancy: u8,
}

impl<'a> KeyWriteReader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy, keys } => {
                Some(Self { region: &store.region, slots, value_len, keys, redundancy })
            }
            _ => None,
        }
    }

    pub fn value_len(&self) -> usize {
        usize::from(self.value_len)
    }

    /// Copies that every query reads.
    pub fn copy_count(&self) -> u8 {
        self.redundancy
    }

    /// Queries many keys: answer `i` is for key `i`. Its value, if found, is in `values` at `i * value_len`; otherwise
    /// there are zeros.
    ///
    /// # Errors
    /// A slot lies outside the region: the region does not match the store's description. Then no answer is valid.
    ///
    /// # Panics
    /// If `answers` does not have one entry per key, or `values` not [`KeyWriteReader::value_len`] bytes per key.
    pub fn query_keys(
        &self,
        keys: &[Key],
        policy: Choice,
        answers: &mut [KeyWriteReading],
        values: &mut [u8],
    ) -> Result<(), AccessError> {
        assert_eq!(keys.len(), answers.len(), "one answer per key");
        assert_eq!(keys.len() * self.value_len(), values.len(), "one value per key");
        // Constant lengths make the copy out of memory, the checksums and the comparisons straight-line code.
        match (self.value_len, self.keys) {
            (4, _) => self.query_values::<4, 8>(keys, policy, answers, values),
            (12, SlotKeys::Hashed) => self.query_values::<12, 16>(keys, policy, answers, values),
            (12, SlotKeys::Inline) => self.query_values::<12, 32>(keys, policy, answers, values),
            (28, _) => self.query_values::<28, 32>(keys, policy, answers, values),
            _ => self.query_values::<60, 64>(keys, policy, answers, values),
        }
    }

    fn query_values<const VALUE: usize, const SLOT: usize>(
        &self,
        keys: &[Key],
        policy: Choice,
        answers: &mut [KeyWriteReading],
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

    /// A group of keys passes three stages: its slots are prefetched, copied, and judged. While a group's slots are
    /// on their way from memory, the previous group is copied and judged.
    fn query_slots<const VALUE: usize, const SLOT: usize, const N: usize>(
        &self,
        keys: &[Key],
        policy: Choice,
        answers: &mut [KeyWriteReading],
        values: &mut [[u8; VALUE]],
    ) -> Result<(), AccessError> {
        let mut places = [[[0; N]; GROUP]; 2];
        let [here, ahead] = &mut places;
        let (mut here, mut ahead) = (here, ahead);
        let mut copied = Copied::<VALUE, SLOT, N>::EMPTY;
        let mut groups = keys.chunks(GROUP);
        let mut asked = groups.next();
        if let Some(first) = asked {
            self.locate_slots::<SLOT, N>(first, here);
        }
        for (answers, values) in answers.chunks_mut(GROUP).zip(values.chunks_mut(GROUP)) {
            let Some(keys) = asked else { break };
            asked = groups.next();
            if let Some(next) = asked {
                self.locate_slots::<SLOT, N>(next, ahead);
            }
            copied.copy_slots(self.region, &here[..keys.len()])?;
            copied.decide_answers(keys, policy, answers, values);
            std::mem::swap(&mut here, &mut ahead);
        }
        Ok(())
    }

    /// Puts the numbers of the keys' slots into `places`, and prefetches the slots.
    #[inline(always)]
    fn locate_slots<const SLOT: usize, const N: usize>(&self, keys: &[Key], places: &mut [[u32; N]; GROUP]) {
        hash::slots_of_each(keys, self.slots, places);
        for place in places[..keys.len()].as_flattened() {
            self.region.prefetch_line(slot_offset::<SLOT>(*place));
        }
    }
}

/// The offset of a slot by its number, if slots have `SLOT` bytes.
#[inline(always)]
fn slot_offset<const SLOT: usize>(place: u32) -> u64 {
    key_write::slot_offset(place.into(), (SLOT - CHECKSUM_LEN) as u8)
}

/// Copies the slots of a group, `N` of each key, out of memory that may change meanwhile.
struct Copied<const VALUE: usize, const SLOT: usize, const N: usize> {
    slots: [[[u8; SLOT]; N]; GROUP],
}

impl<const VALUE: usize, const SLOT: usize, const N: usize> Copied<VALUE, SLOT, N> {
    const EMPTY: Self = Self { slots: [[[0; SLOT]; N]; GROUP] };

    #[inline(never)] // out of line, so that it has all registers
    fn copy_slots(&mut self, region: &Region, places: &[[u32; N]]) -> Result<(), AccessError> {
        let offsets = places.as_flattened().iter().map(|place| slot_offset::<SLOT>(*place));
        region.read_each(offsets, self.slots.as_flattened_mut())
    }

    #[inline(never)] // out of line, so that it has all registers
    fn decide_answers(
        &self,
        keys: &[Key],
        policy: Choice,
        answers: &mut [KeyWriteReading],
        values: &mut [[u8; VALUE]],
    ) {
        let mut matching = [0; GROUP];
        let many = keys.len();
        let (slots, matching) = (&self.slots[..many], &mut matching[..many]);
        let (answers, values) = (&mut answers[..many], &mut values[..many]);
        crc::crc32_matches(keys.iter().map(|key| &key.0), slots, matching);
        if SLOT > CHECKSUM_LEN + VALUE {
            compare_keys(keys, slots, matching);
        }
        if let Choice::Copy(n) = policy {
            matching.iter_mut().for_each(|matching| *matching &= 1 << n);
        }
        for i in 0..many {
            let (slots, matching) = (&slots[i], matching[i]);
            // Branch-free: a processor cannot predict whether a random key's copy matches.
            let matches = |n: usize| matching >> n & 1;
            // If no copy matches, the last one: it is zeroed below.
            let first = |first, n| if matches(n) == 1 { slot_value::<VALUE, SLOT>(&slots[n]) } else { first };
            let first = (0..N - 1).rev().fold(slot_value::<VALUE, SLOT>(&slots[N - 1]), first);
            let (mut agreeing, mut differing) = (0, 0);
            for (n, slot) in slots.iter().enumerate() {
                let equal = u8::from(slot_value::<VALUE, SLOT>(slot) == first);
                agreeing += matches(n) & equal;
                differing += matches(n) & !equal;
            }
            if policy != Choice::First && differing != 0 {
                answers[i] = weigh_copies(slots, matching, policy, &mut values[i]);
                continue;
            }
            let found = agreeing != 0 && !matches!(policy, Choice::AtLeast(least) if agreeing < least);
            values[i] = if found { *first } else { [0; VALUE] };
            answers[i] = KeyWriteReading { found, agreeing, differing };
        }
    }
}

/// Keeps only copies that hold their key between checksum and value.
#[inline(always)]
fn compare_keys<const SLOT: usize, const N: usize>(
    keys: &[Key],
    slots: &[[[u8; SLOT]; N]],
    matching: &mut [u8],
) {
    for ((key, slots), matching) in keys.iter().zip(slots).zip(matching) {
        for (n, slot) in slots.iter().enumerate() {
            *matching &= !(u8::from(slot[CHECKSUM_LEN..][..KEY_LEN] != key.0) << n);
        }
    }
}

/// The value at the end of a slot.
#[inline(always)]
fn slot_value<const VALUE: usize, const SLOT: usize>(slot: &[u8; SLOT]) -> &[u8; VALUE] {
    slot.last_chunk().unwrap_or(&[0; VALUE])
}

/// Weighs matching and differing copies, for a policy that requires it.
#[cold]
fn weigh_copies<const VALUE: usize, const SLOT: usize, const N: usize>(
    slots: &[[u8; SLOT]; N],
    matching: u8,
    policy: Choice,
    to: &mut [u8; VALUE],
) -> KeyWriteReading {
    let found: [_; N] =
        std::array::from_fn(|n| (matching >> n & 1 == 1).then(|| slot_value::<VALUE, SLOT>(&slots[n])));
    let (value, answer) = match combine_copies(policy, &found) {
        CombinedCopies::Absent => (&[0; VALUE], KeyWriteReading::default()),
        CombinedCopies::Undecided { agreeing, differing } => {
            (&[0; VALUE], KeyWriteReading { found: false, agreeing, differing })
        }
        CombinedCopies::Found { value, agreeing, differing } => {
            (value, KeyWriteReading { found: true, agreeing, differing })
        }
    };
    *to = *value;
    answer
}
