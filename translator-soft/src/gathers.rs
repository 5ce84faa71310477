//! Reports that are held for a while before they leave.

use super::context::Context;
use super::counters::EngineCounters;
use super::regions::Regions;

/// The state of a store that gathers reports, so that many of them leave in one operation.
pub(crate) trait Gathers {
    /// Sends what was begun at or before `born_by`.
    fn flush(&mut self, born_by: u64, context: &mut Context<'_>);

    /// Sends everything held, in the order of the places that it is held in (lists by number): the
    /// order in which somebody walks the registers of a switch.
    fn flush_all(&mut self, context: &mut Context<'_>);

    /// Time at which the oldest that is held was begun; `None` while nothing is held.
    fn oldest(&self) -> Option<u64>;

    /// Discards what is held for the region at a place and what is known of it, because the region goes or
    /// memory may hold newer. What is left of that is as in a new store.
    fn discard(&mut self, regions: &Regions, place: usize, counters: &mut EngineCounters);
}
