//! Stores that hold reports for a while before sending them.

use super::context::Context;
use super::counters::EngineCounters;
use super::regions::Regions;

/// A store's state that gathers reports, to send many in one operation.
pub(crate) trait Gathers {
    /// Sends what was started at or before `born_by`.
    fn flush_started_by(&mut self, born_by: u64, context: &mut Context<'_>);

    /// Sends everything held, in order of place (lists by number), the order in which a switch's registers
    /// are read.
    fn flush_all(&mut self, context: &mut Context<'_>);

    /// Start time of the oldest held element; `None` if nothing is held.
    fn oldest_start_time(&self) -> Option<u64>;

    /// Discards what is held and known for the region at a place, because the region goes or memory may hold
    /// newer data. The region then starts out like one of a new store. What another collector has, too, stays.
    fn discard_region(&mut self, regions: &Regions, place: usize, counters: &mut EngineCounters);
}
