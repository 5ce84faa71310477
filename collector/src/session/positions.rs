//! Positions of append lists, read from memory so that a new writer continues where the last one ended.

use dta_memory::reader::append::Lists;
use dta_memory::store::{MemoryError, ServedStores};
use dta_proto::layout::append;
use dta_proto::list_range::ListRange;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPosition {
    pub store: String,
    pub list: u32,
    /// Sequence of its newest batch, from 1.
    pub sequence: u32,
}

/// Sequences of a list to skip after a writer that did not say goodbye. If one frame in ten is lost, the last
/// four batches of a list are all lost once in ten thousand times.
const LEFT_OUT: u32 = 4;

impl ListPosition {
    /// Assumes that the batches after the newest one were written, and perhaps lost.
    pub(super) fn leave_out(&mut self) {
        self.sequence = append::advance_sequence(self.sequence, LEFT_OUT);
    }
}

/// The positions of the lists that are not empty. Reads their whole rings.
///
/// # Errors
/// A store's memory does not match its description.
pub fn read_positions(stores: &ServedStores, ranges: &[ListRange]) -> Result<Vec<ListPosition>, MemoryError> {
    let mut positions = Vec::new();
    for range in ranges {
        let Ok(store) = stores.get(&range.store) else { continue };
        let Some(lists) = Lists::new(&store) else { continue };
        let end = range.first.saturating_add(range.count).min(lists.list_count());
        for list in range.first..end {
            let sequence = lists.newest_sequence(list).map_err(|error| store.outside_region(error))?;
            if sequence != 0 {
                positions.push(ListPosition { store: range.store.clone(), list, sequence });
            }
        }
    }
    Ok(positions)
}
