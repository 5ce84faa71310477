//! A range of lists of an append store, as configuration, sessions and programs name it.

use serde::{Deserialize, Serialize};

/// Lists `first` to `first + count - 1` of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRange {
    /// Name of the store.
    pub store: String,
    /// First list, from 0.
    pub first: u32,
    /// How many; a range must have at least one.
    pub count: u32,
}

impl ListRange {
    /// The number after the last list. It may exceed 32 bits.
    pub fn end_of_lists(&self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }

    /// Whether the range contains a list of its store.
    pub fn contains(&self, list: u32) -> bool {
        self.first <= list && u64::from(list) < self.end_of_lists()
    }

    /// Whether two ranges share a list.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.store == other.store
            && u64::from(self.first) < other.end_of_lists()
            && u64::from(other.first) < self.end_of_lists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_in_one_store_only() {
        let range = |store: &str, first, count| ListRange { store: store.into(), first, count };
        for (a, b, overlap) in [
            (range("a", 0, 4), range("a", 4, 4), false),
            (range("a", 0, 5), range("a", 4, 4), true),
            (range("a", 0, 5), range("b", 4, 4), false),
            (range("a", u32::MAX, u32::MAX), range("a", u32::MAX - 1, 1), false),
            (range("a", u32::MAX, u32::MAX), range("a", u32::MAX - 1, 2), true),
        ] {
            assert_eq!((a.overlaps(&b), b.overlaps(&a)), (overlap, overlap), "{a:?} {b:?}");
        }
    }
}
