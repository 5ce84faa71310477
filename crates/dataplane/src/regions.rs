//! Where the parts of one store are: each collector that shares it has its own region, found by the bucket of a key or by the
//! collector of a list. A key may have replicas: regions of several collectors, in order (for counters, by lane).

use dta_proto::buckets::{self, Copies};

/// A place that never has a region.
const NOWHERE: u16 = u16::MAX;

/// The regions of one store, by their places among those of all stores.
pub(crate) struct Regions {
    parts: Vec<PlacedRegion>,
    by_bucket: [u16; 256],
    /// The same for further replicas; empty if every key is at one collector.
    further: Vec<[u16; 256]>,
}

struct PlacedRegion {
    collector: u8,
    place: u16,
    buckets: Copies,
}

impl Regions {
    pub(crate) fn new() -> Regions {
        Regions { parts: Vec::new(), by_bucket: [NOWHERE; 256], further: Vec::new() }
    }

    /// The place of the region with the keys of this hash; the first one, if they have replicas.
    #[inline]
    pub(crate) fn place_of_hash(&self, h: u32) -> Option<usize> {
        let place = self.by_bucket[usize::from(buckets::bucket_of_hash(h))];
        (place != NOWHERE).then_some(usize::from(place))
    }

    /// How many collectors have each key; for counters that two collectors count, the number of lanes.
    #[inline]
    pub(crate) fn replica_count(&self) -> usize {
        1 + self.further.len()
    }

    /// The place of the `n`-th region with the keys of this hash.
    pub(crate) fn of_replica(&self, h: u32, n: usize) -> Option<usize> {
        let Some(further) = n.checked_sub(1) else { return self.place_of_hash(h) };
        let place = self.further.get(further)?[usize::from(buckets::bucket_of_hash(h))];
        (place != NOWHERE).then_some(usize::from(place))
    }

    /// Whether the keys of this hash are in the region at a place, and in no other.
    pub(crate) fn are_only_at(&self, h: u32, place: usize) -> bool {
        let mut places = (0..self.replica_count()).filter_map(|n| self.of_replica(h, n)).peekable();
        places.peek().is_some() && places.all(|at| at == place)
    }

    /// The place of a collector's region.
    #[inline]
    pub(crate) fn of_collector(&self, collector: u8) -> Option<usize> {
        self.parts.iter().find(|part| part.collector == collector).map(|part| usize::from(part.place))
    }

    pub(crate) fn collectors(&self) -> impl Iterator<Item = u8> {
        self.parts.iter().map(|part| part.collector)
    }

    pub(crate) fn region_count(&self) -> usize {
        self.parts.len()
    }

    /// Adds a collector's region, or changes its buckets.
    pub(crate) fn set(&mut self, collector: u8, place: usize, buckets: Copies) {
        self.parts.retain(|part| part.collector != collector);
        self.parts.push(PlacedRegion { collector, place: place as u16, buckets });
        self.parts.sort_unstable_by_key(|part| part.collector);
        self.rebuild_bucket_tables();
    }

    pub(crate) fn remove_region(&mut self, collector: u8) {
        self.parts.retain(|part| part.collector != collector);
        self.rebuild_bucket_tables();
    }

    fn rebuild_bucket_tables(&mut self) {
        let replicas = self.parts.iter().map(|part| part.buckets.copy_count()).max().unwrap_or(1);
        self.by_bucket = [NOWHERE; 256];
        self.further = vec![[NOWHERE; 256]; replicas.max(1) - 1];
        for part in &self.parts {
            let tables = std::iter::once(&mut self.by_bucket).chain(&mut self.further);
            for (n, table) in tables.enumerate() {
                part.buckets
                    .buckets_of_copy(n)
                    .iter()
                    .for_each(|bucket| table[usize::from(bucket)] = part.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::buckets::Buckets;

    #[test]
    fn each_bucket_has_the_region_that_was_given_it_last() {
        let mut regions = Regions::new();
        let at = |regions: &Regions| {
            [0x0000_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff].map(|h| regions.place_of_hash(h))
        };
        assert_eq!(at(&regions), [None; 4]);
        regions.set(3, 7, Buckets::from_range(0, 127).into());
        assert_eq!(at(&regions), [Some(7), Some(7), None, None]);
        regions.set(0, 2, Buckets::from_range(255, 255).into());
        assert_eq!(at(&regions), [Some(7), Some(7), None, Some(2)]);
        regions.set(3, 7, Buckets::from_range(128, 254).into());
        assert_eq!(at(&regions), [None, None, Some(7), Some(2)]);
        assert_eq!((regions.of_collector(3), regions.of_collector(1)), (Some(7), None));
        assert_eq!(regions.collectors().collect::<Vec<_>>(), [0, 3]);
        regions.remove_region(3);
        assert_eq!((at(&regions), regions.region_count()), ([None, None, None, Some(2)], 1));
    }

    #[test]
    fn replicas_are_found_in_their_order() {
        let mut regions = Regions::new();
        let (low, high) = (Buckets::from_range(0, 127), Buckets::from_range(128, 255));
        regions.set(0, 4, [low, high].into_iter().collect());
        let of = |regions: &Regions, h| [0, 1, 2].map(|n| regions.of_replica(h, n));
        assert_eq!(
            (regions.replica_count(), of(&regions, 0), of(&regions, !0)),
            (2, [Some(4), None, None], [None, Some(4), None])
        );
        assert!(regions.are_only_at(0, 4) && !regions.are_only_at(0, 9));
        regions.set(1, 9, [high, low].into_iter().collect());
        assert_eq!((of(&regions, 0), of(&regions, !0)), ([Some(4), Some(9), None], [Some(9), Some(4), None]));
        assert!(!regions.are_only_at(0, 4));
        regions.remove_region(0);
        assert_eq!((regions.place_of_hash(0), of(&regions, 0)), (None, [None, Some(9), None]));
    }
}
