//! The counters of exporters, named as in `docs/counters.md`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dta_proto::counter::collector as names;

use crate::spool::Spool;
use crate::{events, source};

/// The counters of one exporter. Shared and read at any time.
#[derive(Debug, Default)]
pub struct ExportCounters {
    /// What was read from the lists.
    pub source: Arc<source::ListCounters>,
    /// What was unknown about events.
    pub events: Arc<events::LookupCounters>,
    pub(crate) taken: AtomicU64,
    /// Those for which the schema has no point.
    pub(crate) skipped: AtomicU64,
    /// Points or lines made, including those of the state.
    pub(crate) made: AtomicU64,
    /// Those that are points of the state.
    pub(crate) state: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) retried: AtomicU64,
    /// Points that the receiver will never accept.
    pub(crate) rejected: AtomicU64,
    /// Pages of metrics that could not be made.
    pub(crate) without_page: AtomicU64,
    /// Points that were in the spool at the start.
    pub(crate) found: AtomicU64,
    pub(crate) spool: OnceLock<Arc<Spool>>,
}

/// The counters of several exporters, by the name of the sink.
pub type OfSinks = Vec<(&'static str, Arc<ExportCounters>)>;

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl ExportCounters {
    /// All counters by name, for the exporter to `sink`, such as `influx`.
    pub fn named_counters(&self, sink: &str) -> Vec<(String, u64)> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [entries, unreadable, overwritten, missing, damaged, interrupted] =
            self.source.named_counters().map(|(_, value)| value);
        let spool = self.spool.get();
        [
            (&names::EXPORT_ENTRIES, entries),
            (&names::EXPORT_UNREADABLE, unreadable),
            (&names::EXPORT_OVERWRITTEN, overwritten),
            (&names::EXPORT_MISSING, missing),
            (&names::EXPORT_DAMAGED, damaged),
            (&names::EXPORT_INTERRUPTED, interrupted),
            (&names::EXPORT_EVENTS, load(&self.taken)),
            (&names::EXPORT_SKIPPED, load(&self.skipped)),
            (&names::EXPORT_UNNAMED, load(&self.events.unnamed)),
            (&names::EXPORT_WITHOUT_PATH, load(&self.events.without_path)),
            (&names::EXPORT_FORGOTTEN, load(&self.events.forgotten)),
            (&names::EXPORT_WITHOUT_PAGE, load(&self.without_page)),
            (&names::EXPORT_FOUND, load(&self.found)),
            (&names::EXPORT_MADE, load(&self.made)),
            (&names::EXPORT_STATE, load(&self.state)),
            (&names::EXPORT_DELIVERED, load(&self.delivered)),
            (&names::EXPORT_SPOOLED, spool.map_or(0, |spool| spool.pending_points())),
            (&names::EXPORT_DROPPED_SPOOL_FULL, spool.map_or(0, |spool| spool.dropped_points())),
            (&names::EXPORT_DROPPED_SPOOL_DAMAGED, spool.map_or(0, |spool| spool.damaged_points())),
            (&names::EXPORT_DROPPED_REJECTED, load(&self.rejected)),
            (&names::EXPORT_RETRIED, load(&self.retried)),
        ]
        .map(|(counter, value)| (counter.format_name(&[sink]), value))
        .into()
    }
}
