//! Registered regions, found by rkey.
//!
//! An rkey is 32 random bits and nothing else. A wrong one costs one or two probes of a small table ([`NumberIndex`]), so a
//! flood of guesses slows nothing down.

use std::sync::Arc;

use super::index::NumberIndex;
use crate::nic::{Access, NicError, Registration};
use crate::region::Region;

pub(super) const MAX_REGISTRATIONS: usize = 4096;

pub(super) struct RegisteredRegion {
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    pub(super) region: Arc<Region>,
}

impl RegisteredRegion {
    /// The offset of `len` bytes at `va`, if they all lie inside.
    #[inline(always)]
    pub(super) fn offset_of_range(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.wrapping_sub(self.iova);
        (len <= self.len && offset <= self.len - len).then_some(offset)
    }
}

#[derive(Default)]
pub(super) struct Keys {
    entries: Vec<Option<RegisteredRegion>>,
    index: NumberIndex,
}

impl Keys {
    /// Registers a region under a new rkey, or under `given`; `None` if the table is full or has that rkey. `random`
    /// returns 32 random bits.
    pub(super) fn insert(
        &mut self,
        region: Arc<Region>,
        access: Access,
        given: Option<u32>,
        mut random: impl FnMut() -> Result<u32, NicError>,
    ) -> Result<Option<Registration>, NicError> {
        let Some(place) = free_place(&mut self.entries, MAX_REGISTRATIONS) else { return Ok(None) };
        // Elsewhere, 0 means "no rkey yet".
        let is_free = |rkey: u32| rkey != 0 && self.index.find_place(rkey).is_none();
        let rkey = match given {
            Some(rkey) if is_free(rkey) => rkey,
            Some(_) => return Ok(None),
            None => loop {
                let rkey = random()?;
                if is_free(rkey) {
                    break rkey;
                }
            },
        };
        let (iova, len) = (region.wire_address(), region.len());
        self.entries[place] = Some(RegisteredRegion { iova, len, access, region });
        self.index.insert(rkey, place);
        Ok(Some(Registration { iova, len, rkey }))
    }

    /// Ends a registration; returns whether there was one.
    pub(super) fn remove(&mut self, rkey: u32) -> bool {
        let place = self.index.remove(rkey);
        if let Some(place) = place {
            self.entries[place] = None;
        }
        place.is_some()
    }

    /// The registration of an rkey, and its place in the table.
    #[inline(always)]
    pub(super) fn find_region(&self, rkey: u32) -> Option<(usize, &RegisteredRegion)> {
        let place = self.index.find_place(rkey)?;
        Some((place, self.region_at(place)?))
    }

    /// The registration at a place that [`Keys::find_region`] returned.
    #[inline(always)]
    pub(super) fn region_at(&self, place: usize) -> Option<&RegisteredRegion> {
        self.entries.get(place)?.as_ref()
    }

    #[inline(always)]
    pub(super) fn get(&self, rkey: u32) -> Option<&RegisteredRegion> {
        self.find_region(rkey).map(|(_, entry)| entry)
    }
}

/// A free place in `table`; `None` if all `most` places are in use.
pub(super) fn free_place<T>(table: &mut Vec<Option<T>>, most: usize) -> Option<usize> {
    let place = table.iter().position(Option::is_none).unwrap_or(table.len());
    if place == table.len() {
        if place == most {
            return None;
        }
        table.push(None);
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::RegionOptions;

    fn region(iova: u64) -> Arc<Region> {
        Arc::new(Region::anonymous(4096, iova, RegionOptions { huge_pages: false }).unwrap())
    }

    fn insert(keys: &mut Keys, iova: u64, random: &[u32]) -> u32 {
        let mut random = random.iter().copied();
        let registration = keys.insert(region(iova), Access::WRITE, None, || Ok(random.next().unwrap()));
        registration.unwrap().unwrap().rkey
    }

    #[test]
    fn a_key_is_its_random_bits_and_no_two_are_one() {
        let mut keys = Keys::default();
        let first = insert(&mut keys, 1 << 20, &[0xdead_beef]);
        assert_eq!(first, 0xdead_beef, "all 32 bits are random");
        let second = insert(&mut keys, 1 << 21, &[0, 0xdead_beef, 7]);
        assert_eq!(second, 7, "neither 0 nor a key that is in use");
        assert_eq!(keys.get(first).unwrap().iova, 1 << 20);
        for bit in 0..32 {
            assert!(keys.get(first ^ 1 << bit).is_none());
        }
        assert!(keys.remove(first) && !keys.remove(first));
        assert!(keys.get(first).is_none() && keys.get(second).is_some());
        // The place is reused, under another rkey.
        let third = insert(&mut keys, 1 << 22, &[8]);
        assert_eq!(keys.find_region(third).unwrap().0, 0);
        assert!(keys.get(first).is_none() && keys.get(second).is_some());
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let mut keys = Keys::default();
        let (region, mut next) = (region(1 << 20), 0);
        let mut add = || {
            keys.insert(Arc::clone(&region), Access::WRITE, None, || {
                next += 1;
                Ok(next)
            })
        };
        for _ in 0..MAX_REGISTRATIONS {
            assert!(add().unwrap().is_some());
        }
        assert!(add().unwrap().is_none());
    }

    #[test]
    fn ranges_are_exact_and_do_not_wrap() {
        let mut keys = Keys::default();
        let rkey = insert(&mut keys, 1 << 20, &[1]);
        let entry = keys.get(rkey).unwrap();
        let base = 1u64 << 20;
        assert_eq!(entry.offset_of_range(base, 4096), Some(0));
        assert_eq!(entry.offset_of_range(base + 4092, 4), Some(4092));
        assert_eq!(entry.offset_of_range(base + 4093, 4), None);
        assert_eq!(entry.offset_of_range(base - 1, 1), None);
        assert_eq!(entry.offset_of_range(base, 4097), None);
        assert_eq!(entry.offset_of_range(u64::MAX, 8), None);
        assert_eq!(entry.offset_of_range(0, u64::MAX), None);
    }
}
