//! Maps random numbers to places in a table, to find rkeys and queue pairs.
//!
//! Open addressing with linear probing, at most a quarter full. The responder draws the numbers at random, so their
//! low bits serve as the hash, and no outsider can choose numbers that collide: looking up an unknown number takes
//! one or two probes.

const FREE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct IndexSlot {
    number: u32,
    place: u32,
}

const FREE_SLOT: IndexSlot = IndexSlot { number: 0, place: FREE };

pub(super) struct NumberIndex {
    /// Their count is a power of two, so the low bits of a number say where to look first.
    slots: Vec<IndexSlot>,
    used: usize,
}

impl Default for NumberIndex {
    fn default() -> NumberIndex {
        NumberIndex { slots: vec![FREE_SLOT; 16], used: 0 }
    }
}

impl NumberIndex {
    #[inline(always)]
    pub(super) fn find_place(&self, number: u32) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut at = number as usize & mask;
        loop {
            let slot = self.slots[at & mask];
            // A free slot holds number 0, which is never given out.
            if slot.number == number && slot.place != FREE {
                return Some(slot.place as usize);
            }
            if slot.place == FREE {
                return None;
            }
            at += 1;
        }
    }

    /// Inserts a number that is not in the index yet; `place` is below 2^32 - 1.
    pub(super) fn insert(&mut self, number: u32, place: usize) {
        if (self.used + 1) * 4 > self.slots.len() {
            let larger = vec![FREE_SLOT; self.slots.len() * 2];
            let old = std::mem::replace(&mut self.slots, larger);
            old.into_iter().filter(|slot| slot.place != FREE).for_each(|slot| self.insert_slot(slot));
        }
        self.insert_slot(IndexSlot { number, place: place as u32 });
        self.used += 1;
    }

    /// Removes a number; returns its place, if it was there.
    pub(super) fn remove(&mut self, number: u32) -> Option<usize> {
        let place = self.find_place(number)?;
        // Rebuilds the table without it, because later entries may have to move up. This is not urgent.
        let free = vec![FREE_SLOT; self.slots.len()];
        let old = std::mem::replace(&mut self.slots, free);
        let others = old.into_iter().filter(|slot| slot.place != FREE && slot.number != number);
        others.for_each(|slot| self.insert_slot(slot));
        self.used -= 1;
        Some(place)
    }

    fn insert_slot(&mut self, slot: IndexSlot) {
        let mask = self.slots.len() - 1;
        let mut at = slot.number as usize & mask;
        while self.slots[at].place != FREE {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in prop::collection::vec((any::<bool>(), 0u32..64, any::<bool>()), 1..300)) {
            let (mut index, mut map) = (NumberIndex::default(), BTreeMap::new());
            for (place, (insert, number, high)) in steps.into_iter().enumerate() {
                // Numbers that collide in a table of any size.
                let number = if high { number << 26 | 5 } else { number };
                if insert && !map.contains_key(&number) {
                    index.insert(number, place);
                    map.insert(number, place);
                } else if !insert {
                    prop_assert_eq!(index.remove(number), map.remove(&number));
                }
                for number in (0..64).chain((0..64).map(|n| n << 26 | 5)) {
                    prop_assert_eq!(index.find_place(number), map.get(&number).copied(), "{:#x}", number);
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_not_there_costs_few_looks() {
        let mut index = NumberIndex::default();
        let mut random =
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
        for place in 0..4096 {
            let number = random.next_u32();
            if index.find_place(number).is_none() {
                index.insert(number, place);
            }
        }
        let most = (0..index.slots.len())
            .map(|first| {
                let taken = |at: &usize| index.slots[at % index.slots.len()].place != FREE;
                (first..).take_while(taken).count()
            })
            .max();
        assert!(most < Some(40), "{most:?} taken slots in a row");
    }
}
