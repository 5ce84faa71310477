//! What a primitive is given beside a report: the time, where its store is, and the way out.

use super::counters::Reason;
use super::egress::{Egress, Write};
use super::frame::Output;
use super::losses::Origin;
use super::regions::Regions;

/// What the operations of one store need in order to leave.
pub(crate) struct Context<'a> {
    /// The time in nanoseconds.
    pub(crate) now: u64,
    /// Where the store is.
    pub(crate) regions: &'a Regions,
    /// The queue pairs, and what is counted.
    pub(crate) egress: &'a mut Egress,
    /// Where finished packets go.
    pub(crate) out: &'a mut Output,
}

impl Context<'_> {
    /// The place of the region that has the keys with this hash, if something can be sent there.
    #[inline]
    pub(crate) fn place_of_hash(&self, h: u32) -> Result<usize, Reason> {
        self.with_pair(self.regions.of_hash(h).ok_or(Reason::NoBucket)?)
    }

    /// The place of a collector's region, if something can be sent there.
    #[inline]
    pub(crate) fn place_of_collector(&self, collector: u8) -> Result<usize, Reason> {
        self.with_pair(self.regions.of_collector(collector).ok_or(Reason::NoQueuePair)?)
    }

    #[inline]
    fn with_pair(&self, place: usize) -> Result<usize, Reason> {
        if self.egress.has_pair_of(place) { Ok(place) } else { Err(Reason::NoQueuePair) }
    }

    /// Sends copies of one payload to the region at a place, copy n to `offset_of(n)`. It carries the reports
    /// of `origins`. Without a place they are lost, and counted so.
    #[inline]
    pub(crate) fn write(
        &mut self,
        place: Option<usize>,
        write: &Write<'_>,
        offset_of: impl Fn(u8) -> u64,
        origins: impl Iterator<Item = Origin>,
    ) {
        let place = place.unwrap_or(usize::MAX);
        self.egress.write(self.now, place, write, offset_of, origins, self.out);
    }
}
