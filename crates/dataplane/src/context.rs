//! What a primitive needs besides a report: the time, the place of its store, and the outputs.

use super::counters::Reason;
use super::egress::{Egress, StoreWrite};
use super::frame::EngineOutput;
use super::losses::Origin;
use super::regions::Regions;

/// What sending a store's operations needs.
pub(crate) struct Context<'a> {
    /// Time in nanoseconds.
    pub(crate) now: u64,
    pub(crate) regions: &'a Regions,
    pub(crate) egress: &'a mut Egress,
    pub(crate) out: &'a mut EngineOutput,
}

impl Context<'_> {
    /// The place of the region with the keys of this hash, if it can be sent to.
    #[inline]
    pub(crate) fn place_of_hash(&self, h: u32) -> Result<usize, Reason> {
        self.with_pair(self.regions.place_of_hash(h).ok_or(Reason::NoBucket)?)
    }

    /// Whether any region with the keys of this hash can be sent to.
    #[inline]
    pub(crate) fn check_reachable(&self, h: u32) -> Result<(), Reason> {
        let mut places = (0..self.regions.replica_count()).filter_map(|n| self.regions.of_replica(h, n));
        let first = self.with_pair(places.next().ok_or(Reason::NoBucket)?).map(|_| ());
        if places.any(|place| self.egress.has_pair_of(place)) { Ok(()) } else { first }
    }

    /// The place of a collector's region, if it can be sent to.
    #[inline]
    pub(crate) fn place_of_collector(&self, collector: u8) -> Result<usize, Reason> {
        self.with_pair(self.regions.of_collector(collector).ok_or(Reason::NoQueuePair)?)
    }

    #[inline]
    fn with_pair(&self, place: usize) -> Result<usize, Reason> {
        if self.egress.has_pair_of(place) { Ok(place) } else { Err(Reason::NoQueuePair) }
    }

    /// Sends copies of one payload, which carries the reports of `origins`, to the region at a place: copy n
    /// to `offset_of(n)`. Without a place, they count as lost.
    #[inline]
    pub(crate) fn write_copies(
        &mut self,
        place: Option<usize>,
        write: &StoreWrite<'_>,
        offset_of: impl Fn(u8) -> u64,
        origins: impl Iterator<Item = Origin>,
    ) {
        let place = place.unwrap_or(usize::MAX);
        self.egress.write_copies(self.now, place, write, offset_of, origins, self.out);
    }

    /// Sends copies of one payload to the regions with the keys of this hash: copy n to the
    /// `replica_of(n)`-th, at `offset_of(n)`. Copies without a queue pair count as lost operations.
    #[inline]
    pub(crate) fn write_replicas(
        &mut self,
        h: u32,
        write: &StoreWrite<'_>,
        replica_of: impl Fn(u8) -> usize,
        offset_of: impl Fn(u8) -> u64,
        origins: impl Iterator<Item = Origin>,
    ) {
        if self.regions.replica_count() == 1 {
            return self.write_copies(self.regions.place_of_hash(h), write, offset_of, origins);
        }
        let place = |n| self.regions.of_replica(h, replica_of(n)).unwrap_or(usize::MAX);
        self.egress.write_apart(self.now, write, |n| (place(n), offset_of(n)), origins, self.out);
    }
}
