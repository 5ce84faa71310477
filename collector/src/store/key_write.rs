//! Key-write: the last value of a key, from its copies.

use dta_proto::crc;
use dta_proto::key::{KEY_LEN, Key};
use dta_proto::layout::hash;
use dta_proto::layout::key_write::{CHECKSUM_LEN, Outcome, Policy, choose, offset};
use dta_proto::store::{MAX_REDUNDANCY, StoreKind};

use super::Store;
use crate::region::Region;

/// Keys whose slots are on their way from memory while an earlier key's are looked at. More than a core's outstanding cache misses
/// (10 to 50) with N copies each; measured, 16 to 64 differ little.
const AHEAD: usize = 32;

/// Keys whose slots have been copied and not yet judged. The checksum reads 16 bytes at a time where the copy wrote 8, which has to wait
/// until the stores are through; measured, it halves the rate not to do something else meanwhile.
const COPIED: usize = 8;

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

    /// Asks for many keys: answer `i` is of key `i`, and its value, if it is found, is in `values` at `i * value_len`,
    /// where there are zeros if it is not.
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

    /// Each key goes through three stations, one behind the other: its slots are asked for, copied, and judged. Other keys are in
    /// between, so that no station waits for memory, nor for the stores of the one before to reach the cache.
    fn query_slots<const LEN: usize>(
        &self,
        keys: &[Key],
        policy: Policy,
        answers: &mut [Answer],
        values: &mut [u8],
    ) {
        let mut offsets = [[0u64; MAX_REDUNDANCY as usize]; AHEAD];
        let mut copied = [Copied::EMPTY; COPIED];
        let redundancy = usize::from(self.redundancy);
        for i in 0..keys.len() + AHEAD + COPIED {
            if let Some(done) = i.checked_sub(AHEAD + COPIED) {
                let value = &mut values[done * (LEN - CHECKSUM_LEN)..][..LEN - CHECKSUM_LEN];
                answers[done] = copied[done % COPIED].judge::<LEN>(redundancy, policy, value);
            }
            if let Some(here) = i.checked_sub(AHEAD)
                && let Some(key) = keys.get(here)
            {
                copied[here % COPIED].copy::<LEN>(self.region, key, &offsets[here % AHEAD][..redundancy]);
            }
            if let Some(key) = keys.get(i) {
                let slots = hash::slots(key, self.redundancy, self.slots);
                for (at, slot) in offsets[i % AHEAD].iter_mut().zip(slots.iter()) {
                    *at = offset(*slot, self.value_len);
                    self.region.prefetch(*at);
                }
            }
        }
    }
}

/// The slots of one key, out of memory that changes.
#[derive(Clone, Copy)]
struct Copied([Message; MAX_REDUNDANCY as usize]);

/// One slot as its checksum wants it: key and value in one piece, which takes half the time of two.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Message {
    key_and_value: [u8; KEY_LEN + MAX_SLOT],
    checksum: [u8; CHECKSUM_LEN],
}

impl Copied {
    const EMPTY: Copied = Copied(
        [Message { key_and_value: [0; KEY_LEN + MAX_SLOT], checksum: [0; CHECKSUM_LEN] };
            MAX_REDUNDANCY as usize],
    );

    #[inline(always)]
    fn copy<const LEN: usize>(&mut self, region: &Region, key: &Key, offsets: &[u64]) {
        for (message, at) in self.0.iter_mut().zip(offsets) {
            // The slot goes to where its value follows the key; its checksum lies under the key's end until it is saved.
            let slot = &mut message.key_and_value[KEY_LEN - CHECKSUM_LEN..][..LEN];
            // Slots are inside the region: the spec that gave their number gave the region its length.
            let _ = region.read(*at, slot);
            message.checksum.copy_from_slice(&slot[..CHECKSUM_LEN]);
            message.key_and_value[..KEY_LEN].copy_from_slice(&key.0);
        }
    }

    /// Counts without branches: whether a random key's copy matches is nothing that a processor can foresee.
    #[inline(always)]
    fn judge<const LEN: usize>(&self, redundancy: usize, policy: Policy, value: &mut [u8]) -> Answer {
        let copies = &self.0[..redundancy];
        let matching = bits(copies, |copy| copy.is_of_key::<LEN>());
        // Of no copy at all, the first: it is blanked out below.
        let first =
            copies[matching.trailing_zeros() as usize % MAX_REDUNDANCY as usize % redundancy].value::<LEN>();
        let agreeing = (matching & bits(copies, |copy| copy.value::<LEN>() == first)).count_ones() as u8;
        let differing = matching.count_ones() as u8 - agreeing;
        if policy != Policy::First && differing != 0 {
            return self.weigh::<LEN>(redundancy, policy, value);
        }
        let enough = !matches!(policy, Policy::AtLeast(least) if agreeing < least);
        let found = matching != 0 && enough;
        let blank = if found { 0xff } else { 0 };
        value.iter_mut().zip(first).for_each(|(to, from)| *to = from & blank);
        Answer { found, agreeing, differing }
    }

    /// Copies that match and differ, under a policy that has to weigh them.
    #[cold]
    fn weigh<const LEN: usize>(&self, redundancy: usize, policy: Policy, value: &mut [u8]) -> Answer {
        let mut found: [Option<&[u8]>; MAX_REDUNDANCY as usize] = [None; MAX_REDUNDANCY as usize];
        for (message, found) in self.0[..redundancy].iter().zip(&mut found) {
            *found = message.is_of_key::<LEN>().then(|| message.value::<LEN>());
        }
        value.fill(0);
        match choose(policy, &found[..redundancy]) {
            Outcome::Absent => Answer::default(),
            Outcome::Undecided { agreeing, differing } => Answer { found: false, agreeing, differing },
            Outcome::Found { value: found, agreeing, differing } => {
                value.copy_from_slice(found);
                Answer { found: true, agreeing, differing }
            }
        }
    }
}

impl Message {
    /// Whether the checksum is that of key and value: what [`dta_proto::layout::key_write::matches`] says.
    #[inline(always)]
    fn is_of_key<const LEN: usize>(&self) -> bool {
        let sum = crc::crc32(&self.key_and_value[..KEY_LEN + LEN - CHECKSUM_LEN]);
        u32::from_be_bytes(self.checksum) == sum
    }

    #[inline(always)]
    fn value<const LEN: usize>(&self) -> &[u8] {
        &self.key_and_value[KEY_LEN..KEY_LEN + LEN - CHECKSUM_LEN]
    }
}

/// Bit n: whether `is` holds of copy n.
#[inline(always)]
fn bits(copies: &[Message], is: impl Fn(&Message) -> bool) -> u32 {
    copies.iter().enumerate().fold(0, |bits, (n, copy)| bits | u32::from(is(copy)) << n)
}
