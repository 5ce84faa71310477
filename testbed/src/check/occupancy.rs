//! Who last wrote to each slot: to know whether other keys have overwritten a key.

use std::collections::HashMap;

use crate::journal::ReportFate;

/// When a write happened. If the order is unknown, a write may be before and after any other.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteOrder {
    pub(super) earliest: usize,
    pub(super) latest: usize,
}

impl WriteOrder {
    pub(super) fn from_fate(place: usize, fate: &ReportFate, copy: usize) -> Self {
        if fate.order_unknown(copy) {
            Self { earliest: 0, latest: usize::MAX }
        } else {
            Self { earliest: place, latest: place }
        }
    }
}

/// Per slot the latest write, and the latest one by another key.
#[derive(Debug, Default)]
pub(super) struct Occupancy(HashMap<u64, [Option<(u32, usize)>; 2]>);

impl Occupancy {
    /// Notes a write of `key` that may be as late as `when.latest`.
    pub(super) fn note_write(&mut self, slot: u64, key: u32, when: WriteOrder) {
        let two = self.0.entry(slot).or_default();
        let at = when.latest;
        match two[0] {
            Some((owner, latest)) if owner == key => two[0] = Some((key, latest.max(at))),
            Some((_, latest)) if at >= latest => {
                two[1] = two[0];
                two[0] = Some((key, at));
            }
            None => two[0] = Some((key, at)),
            Some(_) => {
                if two[1].is_none_or(|(owner, latest)| owner == key || at > latest) {
                    let latest = two[1].filter(|(owner, _)| *owner == key).map_or(0, |(_, latest)| latest);
                    two[1] = Some((key, at.max(latest)));
                }
            }
        }
    }

    /// Whether another key may have written to `slot` after a write of `key` that may be as early as `when.earliest`.
    pub(super) fn may_be_overwritten(&self, slot: u64, key: u32, when: WriteOrder) -> bool {
        let Some(two) = self.0.get(&slot) else { return false };
        two.iter().flatten().any(|(owner, latest)| *owner != key && *latest > when.earliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn taken_is_what_the_list_of_all_writes_says(
            writes in proptest::collection::vec((0u32..4, any::<bool>()), 1..30),
            key in 0u32..4,
            early in 0usize..30,
        ) {
            let mut occupancy = Occupancy::default();
            let mut all = Vec::new();
            for (place, (owner, moved)) in writes.into_iter().enumerate() {
                let when = WriteOrder::from_fate(place, &ReportFate { moved, ..ReportFate::default() }, 0);
                occupancy.note_write(9, owner, when);
                all.push((owner, when.latest));
            }
            let expected = all.iter().any(|(owner, latest)| *owner != key && *latest > early);
            prop_assert_eq!(occupancy.may_be_overwritten(9, key, WriteOrder { earliest: early, latest: early }), expected);
            let untouched = occupancy.may_be_overwritten(8, key, WriteOrder { earliest: 0, latest: 0 });
            prop_assert!(!untouched);
        }
    }
}
