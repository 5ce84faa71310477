//! The counters of exporters, named as in `docs/counters.md`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dta_proto::counter::collector as names;

use crate::spool::Spool;
use crate::{events, source};

dta_proto::shared_counters! {
    /// What became of events and points.
    pub struct PointCounters(sink) {
        pub(crate) taken = names::EXPORT_EVENTS,
        pub(crate) skipped = names::EXPORT_SKIPPED,
        pub(crate) without_page = names::EXPORT_WITHOUT_PAGE,
        pub(crate) found = names::EXPORT_FOUND,
        pub(crate) made = names::EXPORT_MADE,
        pub(crate) state = names::EXPORT_STATE,
        pub(crate) traffic = names::EXPORT_TRAFFIC,
        pub(crate) delivered = names::EXPORT_DELIVERED,
        pub(crate) rejected = names::EXPORT_DROPPED_REJECTED,
        pub(crate) retried = names::EXPORT_RETRIED,
    }
}

/// The counters of one exporter. Shared and read at any time.
#[derive(Debug, Default)]
pub struct ExportCounters {
    /// What was read from the lists.
    pub source: Arc<source::ListCounters>,
    pub events: Arc<events::LookupCounters>,
    pub(crate) points: PointCounters,
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
        let spool = self.spool.get();
        let of_spool = [
            (&names::EXPORT_SPOOLED, spool.map_or(0, |spool| spool.pending_points())),
            (&names::EXPORT_DROPPED_SPOOL_FULL, spool.map_or(0, |spool| spool.dropped_points())),
            (&names::EXPORT_DROPPED_SPOOL_DAMAGED, spool.map_or(0, |spool| spool.damaged_points())),
        ];
        let mut all = self.source.named_counters(sink);
        all.extend(self.events.named_counters(sink));
        all.extend(self.points.named_counters(sink));
        all.extend(of_spool.map(|(counter, value)| (counter.format_name(&[sink]), value)));
        all
    }
}
