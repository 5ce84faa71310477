//! Finds the oldest held elements: a doubly linked list in arrays, so that adding, removing and finding the
//! oldest take constant time and no allocation.

/// Elements `0..capacity` in insertion order.
#[derive(Debug)]
pub(crate) struct AgeList {
    /// Index + 1 of the neighbour; 0 = none. Zeroed memory costs nothing until it is used.
    prev: Vec<u32>,
    next: Vec<u32>,
    /// Insertion time plus one; 0 = not in the list.
    born: Vec<u64>,
    head: u32,
    tail: u32,
}

impl AgeList {
    pub(crate) fn new(capacity: usize) -> Self {
        AgeList {
            prev: vec![0; capacity],
            next: vec![0; capacity],
            born: vec![0; capacity],
            head: 0,
            tail: 0,
        }
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        self.born[index] != 0
    }

    /// Insertion time of an element; 0 if it is not in the list.
    pub(crate) fn insertion_time(&self, index: usize) -> u64 {
        self.born[index].saturating_sub(1)
    }

    /// Adds an element as the youngest; it must not be in the list.
    pub(crate) fn push(&mut self, index: usize, now: u64) {
        debug_assert!(!self.contains(index));
        let link = index as u32 + 1;
        self.born[index] = now + 1;
        self.prev[index] = self.tail;
        self.next[index] = 0;
        match self.tail {
            0 => self.head = link,
            tail => self.next[tail as usize - 1] = link,
        }
        self.tail = link;
    }

    /// Removes an element; does nothing if it is not in the list.
    pub(crate) fn remove(&mut self, index: usize) {
        if !self.contains(index) {
            return;
        }
        self.born[index] = 0;
        let (prev, next) = (self.prev[index], self.next[index]);
        match prev {
            0 => self.head = next,
            p => self.next[p as usize - 1] = next,
        }
        match next {
            0 => self.tail = prev,
            n => self.prev[n as usize - 1] = prev,
        }
    }

    /// The oldest element and its insertion time.
    pub(crate) fn oldest_element(&self) -> Option<(usize, u64)> {
        match self.head {
            0 => None,
            head => Some((head as usize - 1, self.born[head as usize - 1] - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain vector.
        #[test]
        fn behaves_like_a_queue_with_removal(steps in prop::collection::vec((0usize..8, any::<bool>()), 0..200)) {
            let mut list = AgeList::new(8);
            let mut model: Vec<(usize, u64)> = Vec::new();
            for (now, (index, add)) in steps.into_iter().enumerate() {
                let now = now as u64;
                if add && !list.contains(index) {
                    list.push(index, now);
                    model.push((index, now));
                } else if !add {
                    list.remove(index);
                    model.retain(|(i, _)| *i != index);
                }
                prop_assert_eq!(list.oldest_element(), model.first().copied());
                for i in 0..8 {
                    prop_assert_eq!(list.contains(i), model.iter().any(|(m, _)| *m == i));
                }
            }
        }
    }
}
