//! Encodes what is exported into records for a spool.

use crate::metrics::MetricsPage;
use dta_proto::telemetry::TelemetryEntry;

use crate::alert::AlertMessage;
use crate::events::TelemetryEvent;
use crate::unique::SeriesTimes;

/// Collects events, or packets of hosts, into a record.
pub(crate) trait EncodeEvents<E = TelemetryEvent>: Send {
    /// Adds an event; `false` if it has no form here. `times` are the times assigned in each series.
    fn encode_event(&mut self, event: &E, times: &mut SeriesTimes) -> bool;

    /// Adds the [sums of traffic](crate::traffic) on a page made at this time (nanoseconds since 1970); returns the
    /// number of points.
    fn encode_traffic(&mut self, _: MetricsPage, _: u64) -> u64 {
        0
    }

    /// Adds an alert; `false` if it has no form here.
    fn encode_alert(&mut self, _: &AlertMessage) -> bool {
        false
    }

    /// The record of all events since the last one.
    fn take(&mut self) -> Vec<u8>;
}

/// Makes records of pages of metrics.
pub(crate) trait EncodePages: Send {
    /// The records of a page made at this time (nanoseconds since 1970), each with its number of points.
    fn encode_page(&mut self, page: MetricsPage, time: u64) -> Vec<(Vec<u8>, u64)>;
}

/// Separates series in which the points of one report should have the same time, such as a path and its latency.
pub(crate) fn series_part(event: &TelemetryEvent) -> u8 {
    match event.entry {
        TelemetryEntry::Change { metric, .. } => metric as u8,
        _ => 0,
    }
}
