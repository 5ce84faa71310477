//! Where append lists stand, read from memory, so that a new writer continues where the last one ended.

use super::lease::NamedLists;
use crate::store::Stores;
use crate::store::append::Lists;

/// The newest batch of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPosition {
    /// Name of the store.
    pub store: String,
    /// The list.
    pub list: u32,
    /// Sequence of its newest batch, from 1.
    pub sequence: u32,
}

/// The positions of those lists that hold something. Reads their whole rings.
pub fn of(stores: &Stores, ranges: &[NamedLists]) -> Vec<ListPosition> {
    let mut positions = Vec::new();
    for range in ranges {
        let Ok(store) = stores.get(&range.store) else { continue };
        let Some(lists) = Lists::new(&store) else { continue };
        let end = range.first.saturating_add(range.count).min(lists.count());
        for list in range.first..end {
            let sequence = lists.newest(list);
            if sequence != 0 {
                positions.push(ListPosition { store: range.store.clone(), list, sequence });
            }
        }
    }
    positions
}
