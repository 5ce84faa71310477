//! Prometheus remote write, 1.0 and 2.0. (prometheus.io, "Prometheus Remote-Write Specification")
//!
//! A record of the spool is an uncompressed 1.0 request, whichever version is sent. Prometheus keeps one sample of a
//! series for each time, so what arrives twice is stored once.

mod message;
mod server;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::metrics::{MetricKind, MetricsPage};
use prost::Message;

use self::message::{Label, MetricMetadata, MetricSample, MetricType, TimeSeries, WriteRequest};
use self::server::RemoteWriteServer;
use crate::ExportError;
use crate::config::RemoteWrite;
use crate::encode::EncodePages;
use crate::run::RECORD;
use crate::sink::{Sink, SinkInput};

pub(crate) fn build_sink(config: &RemoteWrite, name: &str) -> Result<Sink, ExportError> {
    let encoder = Box::new(Samples { instance: name.to_owned(), last: BTreeSet::new() });
    Ok(Sink {
        spool: config.configured_spool(name),
        what: SinkInput::Pages { encoder, every: Duration::from_secs(config.metrics_seconds) },
        receiver: Box::new(RemoteWriteServer::new(config)?),
    })
}

/// The value that ends a series: a NaN with this payload.
const STALE: u64 = 0x7ff0_0000_0000_0002;

struct Samples {
    /// The label `instance`.
    instance: String,
    /// The series of the last page.
    last: BTreeSet<Vec<Label>>,
}

impl Samples {
    /// The labels of a series, sorted, with those that a scraper would add.
    fn sorted_labels(&self, name: &str, own: crate::metrics::Labels) -> Vec<Label> {
        let own = own.into_iter().map(|(name, value)| Label { name: name.into_owned(), value });
        let added = [("__name__", name), ("instance", &self.instance), ("job", "dta-collector")];
        let added = added.map(|(name, value)| Label { name: name.into(), value: value.into() });
        let mut labels: Vec<Label> =
            added.into_iter().chain(own).filter(|label| !label.value.is_empty()).collect();
        labels.sort();
        labels
    }
}

impl EncodePages for Samples {
    fn encode_page(&mut self, page: MetricsPage, time: u64) -> Vec<(Vec<u8>, u64)> {
        let timestamp = (time / 1_000_000) as i64;
        let mut now = BTreeSet::new();
        let (mut records, mut request) = (Vec::new(), WriteRequest::default());
        let mut put = |request: &mut WriteRequest, labels, value| {
            request.timeseries.push(TimeSeries { labels, samples: vec![MetricSample { value, timestamp }] });
            if request.timeseries.len() as u64 == RECORD {
                records.push((std::mem::take(request).encode_to_vec(), RECORD));
            }
        };
        for (name, family) in page.into_families() {
            let (name, kind) = match family.kind {
                MetricKind::Counter => (format!("{name}_total"), MetricType::Counter),
                MetricKind::Gauge => (name, MetricType::Gauge),
            };
            let metadata = MetricMetadata {
                r#type: kind.into(),
                metric_family_name: name.clone(),
                help: family.help.into_owned(),
                unit: String::new(),
            };
            for (labels, number) in family.series {
                let labels = self.sorted_labels(&name, labels);
                // With the first series of the family in each record.
                if request.metadata.last().is_none_or(|last| last.metric_family_name != name) {
                    request.metadata.push(metadata.clone());
                }
                put(&mut request, labels.clone(), number.to_f64());
                now.insert(labels);
            }
        }
        for gone in self.last.difference(&now) {
            put(&mut request, gone.clone(), f64::from_bits(STALE));
        }
        self.last = now;
        let points = request.timeseries.len() as u64;
        if points > 0 {
            records.push((request.encode_to_vec(), points));
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(reason: &str, value: u64) -> MetricsPage {
        let mut page = MetricsPage::default();
        let labels = vec![("reason".into(), reason.to_owned()), ("b".into(), String::new())];
        page.add("dta_dropped", MetricKind::Counter, "drops", labels, value);
        page
    }

    fn series(record: &(Vec<u8>, u64)) -> Vec<(String, f64)> {
        let request = WriteRequest::decode(&record.0[..]).unwrap();
        assert_eq!(request.timeseries.len() as u64, record.1);
        let one = |series: TimeSeries| {
            let labels = series.labels.iter().map(|label| format!("{}={}", label.name, label.value));
            let [MetricSample { value, timestamp: 1 }] = series.samples[..] else { panic!("{series:?}") };
            (labels.collect::<Vec<_>>().join(","), value)
        };
        request.timeseries.into_iter().map(one).collect()
    }

    #[test]
    fn labels_are_sorted_and_a_series_that_ends_says_so_once() {
        let mut samples = Samples { instance: "c".into(), last: BTreeSet::new() };
        let named =
            |reason: &str| format!("__name__=dta_dropped_total,instance=c,job=dta-collector,reason={reason}");
        let mut encoded = |page| series(&samples.encode_page(page, 1_999_999)[0]);
        let first = encoded(page("a", 7));
        assert_eq!(first[0], (named("a"), 7.0));
        // Plus what was left out of the page.
        assert_eq!(first.len(), 2);
        let second = encoded(page("b", 1));
        assert_eq!((second.len(), &second[0]), (3, &(named("b"), 1.0)));
        assert_eq!((second[2].0.clone(), second[2].1.to_bits()), (named("a"), STALE));
        assert_eq!(encoded(page("b", 2)).len(), 2);
    }

    #[test]
    fn a_long_page_is_several_records_each_with_its_metadata() {
        let mut page = MetricsPage::default();
        let count = RECORD + 10;
        for n in 0..count {
            page.add("dta_x", MetricKind::Gauge, "x", vec![("n".into(), n.to_string())], n);
        }
        let mut samples = Samples { instance: "c".into(), last: BTreeSet::new() };
        let records = samples.encode_page(page, 1_000_000);
        assert_eq!(records.iter().map(|record| record.1).collect::<Vec<_>>(), [RECORD, 11]);
        for (record, names) in records.iter().zip([&["dta_metrics_left_out", "dta_x"][..], &["dta_x"]]) {
            let request = WriteRequest::decode(&record.0[..]).unwrap();
            let families: Vec<_> =
                request.metadata.iter().map(|one| one.metric_family_name.as_str()).collect();
            assert_eq!(families, names);
        }
    }
}
