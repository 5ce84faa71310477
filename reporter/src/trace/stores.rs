//! The stores that traces are written to.

use dta_proto::fit::{self, Misfit};
use dta_proto::key::Key;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::trace::{ENTRY_LEN, HOPS, LATENCY_LEN, list, store};
use dta_proto::wire::dta::{DtaBody, Primitive};

/// The ids of the trace stores; nothing is reported to those that are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceStores {
    pub paths: Option<u16>,
    /// Packets, drops, slow packets and names.
    pub events: Option<u16>,
    /// Latencies of flows and segments.
    pub latencies: Option<u16>,
    /// Packets, bytes and drops of flows.
    pub counters: Option<u16>,
    /// Sizes of flows in epochs.
    pub sizes: Option<SizeStore>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeStore {
    pub(crate) id: u16,
    pub(crate) columns: u32,
    pub(crate) rows: u8,
    pub(crate) expected: u8,
}

/// The collector's trace stores are missing or have another layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStore {
    /// It cannot hold what is written to it.
    #[error("the collector's store {0}: {1}; docs/host-tracing.md lists the trace stores")]
    Misfit(&'static str, Misfit),
    /// There are no trace stores.
    #[error("the collector has no trace stores (trace-...); docs/host-tracing.md lists them")]
    None,
}

impl TraceStores {
    /// Finds the trace stores among a collector's stores.
    ///
    /// # Errors
    /// There is none, or one of them has the wrong kind or layout.
    pub fn from_specs(all: &[StoreSpec]) -> Result<TraceStores, BadStore> {
        let find = |name: &'static str, body: &DtaBody<'_>| {
            let found = all.iter().find(|spec| spec.name == name);
            found
                .map(|spec| fit::check_report_fit(spec, body).map(|()| spec.id))
                .transpose()
                .map_err(|misfit| BadStore::Misfit(name, misfit))
        };
        let key = Key([0; 16]);
        let sizes = all.iter().find(|spec| spec.name == store::SIZES);
        let sizes = match sizes.map(|spec| (spec.id, &spec.kind)) {
            Some((id, &StoreKind::SketchMerge { columns, rows, expected, .. })) => {
                Some(SizeStore { id, columns, rows, expected })
            }
            Some((_, kind)) => {
                let misfit = Misfit::wrong_kind(store::SIZES, kind.primitive(), Primitive::SketchMerge);
                return Err(BadStore::Misfit(store::SIZES, misfit));
            }
            None => None,
        };
        let found = TraceStores {
            paths: find(store::PATHS, &DtaBody::Postcard { key, hop: HOPS - 1, path_length: 0, value: 0 })?,
            events: find(store::EVENTS, &DtaBody::Append { list: list::COUNT - 1, value: &[0; ENTRY_LEN] })?,
            latencies: find(
                store::LATENCIES,
                &DtaBody::KeyWrite { redundancy: 0, key, value: &[0; LATENCY_LEN] },
            )?,
            counters: find(store::COUNTERS, &DtaBody::KeyIncrement { redundancy: 0, key, delta: 0 })?,
            sizes,
        };
        if found == TraceStores::default() { Err(BadStore::None) } else { Ok(found) }
    }

    /// The trace stores of a collector whose configuration names no stores.
    pub fn with_default_ids() -> TraceStores {
        TraceStores::from_specs(&dta_proto::trace::default_trace_stores()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_of_a_collector_are_found_and_others_refused() {
        let mut all = dta_proto::trace::default_trace_stores().to_vec();
        let usual = TraceStores::with_default_ids();
        assert_eq!(
            (usual.paths, usual.events, usual.latencies, usual.counters),
            (Some(32), Some(33), Some(34), Some(35))
        );
        assert_eq!(usual.sizes, Some(SizeStore { id: 36, columns: 1024, rows: 3, expected: 1 }));
        all.remove(4);
        assert_eq!(TraceStores::from_specs(&all), Ok(TraceStores { sizes: None, ..usual }));
        all[0].kind = StoreKind::Postcarding { slots: 8, hops: 6, redundancy: 1 };
        let error = TraceStores::from_specs(&all).unwrap_err().to_string();
        assert!(error.contains("trace-paths") && error.contains("hop"), "{error}");
        all[0].kind = StoreKind::KeyIncrement { slots: 8, redundancy: 1, replicas: 1 };
        assert!(
            TraceStores::from_specs(&all).unwrap_err().to_string().contains("takes no postcarding reports")
        );
        assert_eq!(TraceStores::from_specs(&[]), Err(BadStore::None));
    }
}
