//! Where the parts of one store are: each collector that shares it has its own region, found by the bucket of
//! a key or by the collector of a list.

use dta_proto::buckets::{self, Buckets};

/// A place that never has a region.
const NOWHERE: u16 = u16::MAX;

/// The regions of one store, by their places among those of all stores.
pub(crate) struct Regions {
    parts: Vec<Part>,
    by_bucket: [u16; 256],
}

struct Part {
    collector: u8,
    place: u16,
    buckets: Buckets,
}

impl Regions {
    /// No region.
    pub(crate) fn new() -> Regions {
        Regions { parts: Vec::new(), by_bucket: [NOWHERE; 256] }
    }

    /// The place of the region with the keys of this hash.
    #[inline]
    pub(crate) fn of_hash(&self, h: u32) -> Option<usize> {
        let place = self.by_bucket[usize::from(buckets::of_hash(h))];
        (place != NOWHERE).then_some(usize::from(place))
    }

    /// The place of a collector's region.
    #[inline]
    pub(crate) fn of_collector(&self, collector: u8) -> Option<usize> {
        self.parts.iter().find(|part| part.collector == collector).map(|part| usize::from(part.place))
    }

    /// The collectors with a region.
    pub(crate) fn collectors(&self) -> impl Iterator<Item = u8> {
        self.parts.iter().map(|part| part.collector)
    }

    /// Number of regions.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// Adds a collector's region, or changes its buckets.
    pub(crate) fn set(&mut self, collector: u8, place: usize, buckets: Buckets) {
        self.parts.retain(|part| part.collector != collector);
        self.parts.push(Part { collector, place: place as u16, buckets });
        self.parts.sort_unstable_by_key(|part| part.collector);
        self.fill();
    }

    /// Removes a collector's region.
    pub(crate) fn remove(&mut self, collector: u8) {
        self.parts.retain(|part| part.collector != collector);
        self.fill();
    }

    fn fill(&mut self) {
        self.by_bucket = [NOWHERE; 256];
        for part in &self.parts {
            part.buckets.iter().for_each(|bucket| self.by_bucket[usize::from(bucket)] = part.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_has_the_region_that_was_given_it_last() {
        let mut regions = Regions::new();
        let at = |regions: &Regions| {
            [0x0000_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff].map(|h| regions.of_hash(h))
        };
        assert_eq!(at(&regions), [None; 4]);
        regions.set(3, 7, Buckets::range(0, 127));
        assert_eq!(at(&regions), [Some(7), Some(7), None, None]);
        regions.set(0, 2, Buckets::range(255, 255));
        assert_eq!(at(&regions), [Some(7), Some(7), None, Some(2)]);
        regions.set(3, 7, Buckets::range(128, 254));
        assert_eq!(at(&regions), [None, None, Some(7), Some(2)]);
        assert_eq!((regions.of_collector(3), regions.of_collector(1)), (Some(7), None));
        assert_eq!(regions.collectors().collect::<Vec<_>>(), [0, 3]);
        regions.remove(3);
        assert_eq!((at(&regions), regions.count()), ([None, None, None, Some(2)], 1));
    }
}
