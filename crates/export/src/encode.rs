//! How what is exported becomes records of a spool.

use crate::metrics::Page;
use dta_proto::telemetry::Entry;

use crate::events::Event;
use crate::unique::Times;

/// Collects events, or packets of hosts, for a record.
pub(crate) trait EncodeEvents<E = Event>: Send {
    /// Adds an event; `false` if it has no form here. `times` are those given in each series.
    fn put(&mut self, event: &E, times: &mut Times) -> bool;

    /// The record of all events since the last one.
    fn take(&mut self) -> Vec<u8>;
}

/// Makes records of pages of metrics.
pub(crate) trait EncodePages: Send {
    /// The records of a page made at this time (nanoseconds since 1970), each with its number of points.
    fn records(&mut self, page: Page, time: u64) -> Vec<(Vec<u8>, u64)>;
}

/// What separates series in which the points of one report should have the same time, such as a path and its latency.
pub(crate) fn part(event: &Event) -> u8 {
    match event.entry {
        Entry::Change { metric, .. } => metric as u8,
        _ => 0,
    }
}
