//! Registered regions, found by remote key.
//!
//! A key is `tag << 12 | index`: the index finds the entry at once, the random tag makes keys hard to guess and
//! worthless after a restart.

use std::sync::Arc;

use crate::nic::{Access, Registration};
use crate::region::Region;

/// Registrations that there can be at once.
pub(super) const MAX_REGISTRATIONS: usize = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 12;

/// A registered region.
pub(super) struct Entry {
    pub(super) rkey: u32,
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    pub(super) region: Arc<Region>,
}

impl Entry {
    /// The offset of `len` bytes at `va`, if all of them lie inside.
    #[inline(always)]
    pub(super) fn offset(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.wrapping_sub(self.iova);
        (len <= self.len && offset <= self.len - len).then_some(offset)
    }
}

/// The table of registrations.
#[derive(Default)]
pub(super) struct Keys {
    entries: Vec<Option<Entry>>,
}

impl Keys {
    /// Registers a region under a new key; `None` if the table is full. `random` is where the tag comes from.
    pub(super) fn insert(
        &mut self,
        region: Arc<Region>,
        access: Access,
        random: u32,
    ) -> Option<Registration> {
        let index = match self.entries.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.entries.len() < MAX_REGISTRATIONS => {
                self.entries.push(None);
                self.entries.len() - 1
            }
            None => return None,
        };
        let rkey = random << INDEX_BITS | index as u32;
        let (iova, len) = (region.iova(), region.len());
        self.entries[index] = Some(Entry { rkey, iova, len, access, region });
        Some(Registration { iova, len, rkey })
    }

    /// Ends a registration; says whether there was one.
    pub(super) fn remove(&mut self, rkey: u32) -> bool {
        let found = self.get(rkey).is_some();
        if found {
            self.entries[Self::index_of(rkey)] = None;
        }
        found
    }

    /// The place of a key in the table.
    #[inline(always)]
    pub(super) fn index_of(rkey: u32) -> usize {
        (rkey & (MAX_REGISTRATIONS as u32 - 1)) as usize
    }

    /// The registration at a place, whatever its key.
    #[inline(always)]
    pub(super) fn at(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)?.as_ref()
    }

    /// The registration of a key.
    #[inline(always)]
    pub(super) fn get(&self, rkey: u32) -> Option<&Entry> {
        match self.entries.get(Self::index_of(rkey)) {
            Some(Some(entry)) if entry.rkey == rkey => Some(entry),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::RegionOptions;

    fn region(iova: u64) -> Arc<Region> {
        Arc::new(Region::anonymous(4096, iova, RegionOptions { huge_pages: false }).unwrap())
    }

    #[test]
    fn keys_end_and_are_not_given_again() {
        let mut keys = Keys::default();
        let first = keys.insert(region(1 << 20), Access::WRITE, 7).unwrap().rkey;
        let second = keys.insert(region(1 << 21), Access::WRITE, 7).unwrap().rkey;
        assert_ne!(first, second);
        assert_eq!(keys.get(first).unwrap().iova, 1 << 20);
        assert!(keys.get(first ^ 1 << 31).is_none());
        assert!(keys.remove(first) && !keys.remove(first));
        assert!(keys.get(first).is_none());
        // The place is used again, under another tag.
        let third = keys.insert(region(1 << 22), Access::WRITE, 8).unwrap().rkey;
        assert_eq!(Keys::index_of(third), Keys::index_of(first));
        assert!(keys.get(first).is_none() && keys.get(second).is_some());
    }

    #[test]
    fn ranges_are_exact_and_do_not_wrap() {
        let mut keys = Keys::default();
        let rkey = keys.insert(region(1 << 20), Access::WRITE, 1).unwrap().rkey;
        let entry = keys.get(rkey).unwrap();
        let base = 1u64 << 20;
        assert_eq!(entry.offset(base, 4096), Some(0));
        assert_eq!(entry.offset(base + 4092, 4), Some(4092));
        assert_eq!(entry.offset(base + 4093, 4), None);
        assert_eq!(entry.offset(base - 1, 1), None);
        assert_eq!(entry.offset(base, 4097), None);
        assert_eq!(entry.offset(u64::MAX, 8), None);
        assert_eq!(entry.offset(0, u64::MAX), None);
    }
}
