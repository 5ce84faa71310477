//! The messages, as far as needed: `prometheus.WriteRequest` of 1.0 (prompb/remote.proto and types.proto of
//! Prometheus) and `io.prometheus.write.v2.Request` of 2.0 (prompb/io/prometheus/write/v2/types.proto).

use std::collections::HashMap;

use prost::{Enumeration, Message};

#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) timeseries: Vec<TimeSeries>,
    #[prost(message, repeated, tag = "3")]
    pub(super) metadata: Vec<MetricMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<MetricSample>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// The same in both versions.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct MetricSample {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "2")]
    pub(super) timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricMetadata {
    #[prost(enumeration = "MetricType", tag = "1")]
    pub(super) r#type: i32,
    #[prost(string, tag = "2")]
    pub(super) metric_family_name: String,
    #[prost(string, tag = "4")]
    pub(super) help: String,
    #[prost(string, tag = "5")]
    pub(super) unit: String,
}

/// The same numbers in both versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum MetricType {
    Unknown = 0,
    Counter = 1,
    Gauge = 2,
}

/// A request of 2.0.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request2 {
    /// The first symbol is empty.
    #[prost(string, repeated, tag = "4")]
    symbols: Vec<String>,
    #[prost(message, repeated, tag = "5")]
    timeseries: Vec<TimeSeries2>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries2 {
    /// Names and values alternate.
    #[prost(uint32, repeated, tag = "1")]
    labels_refs: Vec<u32>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<MetricSample>,
    #[prost(message, optional, tag = "5")]
    metadata: Option<Metadata2>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Metadata2 {
    #[prost(enumeration = "MetricType", tag = "1")]
    r#type: i32,
    #[prost(uint32, tag = "3")]
    help_ref: u32,
    #[prost(uint32, tag = "4")]
    unit_ref: u32,
}

impl Request2 {
    /// Converts series of a 1.0 request, with what it says of their families.
    pub(super) fn from_series(series: &[TimeSeries], metadata: &[MetricMetadata]) -> Request2 {
        let mut symbols = Symbols::default();
        symbols.intern_text("");
        let families: HashMap<&str, &MetricMetadata> =
            metadata.iter().map(|family| (family.metric_family_name.as_str(), family)).collect();
        let mut timeseries = Vec::with_capacity(series.len());
        for one in series {
            let labels_refs = one
                .labels
                .iter()
                .flat_map(|label| [symbols.intern_text(&label.name), symbols.intern_text(&label.value)])
                .collect();
            let name = one.labels.iter().find(|label| label.name == "__name__");
            let family = name.and_then(|name| families.get(name.value.as_str()));
            let metadata = family.map(|family| Metadata2 {
                r#type: family.r#type,
                help_ref: symbols.intern_text(&family.help),
                unit_ref: symbols.intern_text(&family.unit),
            });
            timeseries.push(TimeSeries2 { labels_refs, samples: one.samples.clone(), metadata });
        }
        Request2 { symbols: symbols.all, timeseries }
    }
}

#[derive(Default)]
struct Symbols<'a> {
    all: Vec<String>,
    at: HashMap<&'a str, u32>,
}

impl<'a> Symbols<'a> {
    fn intern_text(&mut self, text: &'a str) -> u32 {
        let all = &mut self.all;
        *self.at.entry(text).or_insert_with(|| {
            all.push(text.to_owned());
            all.len() as u32 - 1
        })
    }
}
