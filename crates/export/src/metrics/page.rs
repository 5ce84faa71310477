//! The result of one scrape.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

/// Names and values of labels, in order.
pub type Labels = Vec<(Cow<'static, str>, String)>;

/// The metric that counts what does not fit on a page.
const LEFT_OUT: (&str, &str) = (
    "dta_metrics_left_out",
    "counters that are not on this page: there was no room, or no definition has their names",
);

/// A format of pages that Prometheus reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageFormat {
    /// OpenMetrics 1.0, for scrapers that ask for it.
    OpenMetrics,
    /// Prometheus' older text format, version 0.0.4, for all others. In it, a counter's `_total` is part of
    /// its family's name, too.
    Text,
}

impl PageFormat {
    pub(crate) const ALL: [PageFormat; 2] = [PageFormat::OpenMetrics, PageFormat::Text];
}

/// Whether a number may fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only rises; its name gets `_total`.
    Counter,
    Gauge,
}

/// Counters and gauges at one moment.
#[derive(Debug, Default)]
pub struct MetricsPage {
    families: BTreeMap<String, Family>,
    left_out: u64,
}

#[derive(Debug)]
pub struct Family {
    pub help: Cow<'static, str>,
    pub kind: MetricKind,
    pub series: BTreeMap<Labels, Number>,
}

/// A number with all its digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Whole(u64),
    Real(f64),
}

impl Number {
    pub fn to_f64(self) -> f64 {
        match self {
            Number::Whole(whole) => whole as f64,
            Number::Real(real) => real,
        }
    }
}

impl MetricsPage {
    /// Adds to a counter or gauge; numbers with the same labels are summed.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        kind: MetricKind,
        help: impl Into<Cow<'static, str>>,
        labels: Labels,
        value: u64,
    ) {
        let number = self.number_at(name.into(), kind, help.into(), labels);
        *number = match *number {
            Number::Whole(sum) => Number::Whole(sum.saturating_add(value)),
            Number::Real(sum) => Number::Real(sum + value as f64),
        };
    }

    /// A gauge that is not an integer.
    pub fn add_real_gauge(
        &mut self,
        name: impl Into<String>,
        help: impl Into<Cow<'static, str>>,
        labels: Labels,
        value: f64,
    ) {
        *self.number_at(name.into(), MetricKind::Gauge, help.into(), labels) = Number::Real(value);
    }

    /// A counter of seconds; its name says so.
    pub fn add_seconds(&mut self, name: impl Into<String>, help: impl Into<Cow<'static, str>>, value: f64) {
        *self.number_at(name.into(), MetricKind::Counter, help.into(), Labels::new()) = Number::Real(value);
    }

    /// Counts series that are left out.
    pub fn leave_out(&mut self, series: u64) {
        self.left_out += series;
    }

    /// Where to add a number. A name keeps its first help and kind.
    fn number_at(
        &mut self,
        name: String,
        kind: MetricKind,
        help: Cow<'static, str>,
        labels: Labels,
    ) -> &mut Number {
        let new = || Family { help, kind, series: BTreeMap::new() };
        let family = self.families.entry(name).or_insert_with(new);
        family.series.entry(labels).or_insert(Number::Whole(0))
    }

    pub fn series_count(&self) -> usize {
        self.families.values().map(|family| family.series.len()).sum()
    }

    /// The text that a scraper reads, in Prometheus' older format.
    pub fn into_text(self) -> String {
        self.into_encoded(PageFormat::Text)
    }

    /// All families by name, a counter's without `_total`.
    pub fn into_families(mut self) -> BTreeMap<String, Family> {
        let (name, help) = LEFT_OUT;
        let left_out = self.left_out;
        self.add(name, MetricKind::Gauge, help, Labels::new(), left_out);
        self.families
    }

    pub(crate) fn into_encoded(self, format: PageFormat) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Formatted { families: self.into_families(), format }));
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = match format {
            PageFormat::OpenMetrics => text::encode(&mut text, &registry),
            PageFormat::Text => text::encode_registry(&mut text, &registry),
        };
        text
    }
}

#[derive(Debug)]
struct Formatted {
    families: BTreeMap<String, Family>,
    format: PageFormat,
}

impl Collector for Formatted {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, family) in &self.families {
            let kind = match family.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
            };
            // If a counter is written as a gauge, its samples have the name of its family, without `_total`.
            let (name, written) = match (self.format, family.kind) {
                (PageFormat::Text, MetricKind::Counter) => {
                    (Cow::from(format!("{name}_total")), MetricKind::Gauge)
                }
                (_, kind) => (Cow::from(name), kind),
            };
            let mut metric = encoder.encode_descriptor(&name, &family.help, None, kind)?;
            for (labels, number) in &family.series {
                if labels.is_empty() {
                    encode_number(&mut metric, written, *number)?;
                } else {
                    encode_number(&mut metric.encode_family(labels)?, written, *number)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_number(series: &mut MetricEncoder<'_>, kind: MetricKind, number: Number) -> fmt::Result {
    match (kind, number) {
        (MetricKind::Counter, Number::Whole(value)) => {
            series.encode_counter(&value, None::<&Exemplar<Labels, u64>>)
        }
        (MetricKind::Counter, Number::Real(value)) => {
            series.encode_counter(&value, None::<&Exemplar<Labels, f64>>)
        }
        (MetricKind::Gauge, Number::Whole(value)) => series.encode_gauge(&value),
        (MetricKind::Gauge, Number::Real(value)) => series.encode_gauge(&value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> MetricsPage {
        let mut page = MetricsPage::default();
        let labels = |value: &str| vec![("reason".into(), value.to_owned())];
        page.add("dta_x_reports", MetricKind::Counter, "reports", labels("b"), 2);
        page.add("dta_x_reports", MetricKind::Counter, "not shown", labels("a \"quoted\"\\\n"), 1);
        page.add("dta_x_reports", MetricKind::Counter, "", labels("b"), u64::MAX - 3);
        page.add_real_gauge("dta_x_age_seconds", "age", Labels::new(), 1.5);
        page.leave_out(7);
        page
    }

    #[test]
    fn a_page_is_open_metrics_for_those_who_ask_for_it() {
        assert_eq!(
            page().into_encoded(PageFormat::OpenMetrics),
            "# HELP dta_metrics_left_out counters that are not on this page: there was no room, or no definition has their names\n\
             # TYPE dta_metrics_left_out gauge\n\
             dta_metrics_left_out 7\n\
             # HELP dta_x_age_seconds age\n\
             # TYPE dta_x_age_seconds gauge\n\
             dta_x_age_seconds 1.5\n\
             # HELP dta_x_reports reports\n\
             # TYPE dta_x_reports counter\n\
             dta_x_reports_total{reason=\"a \\\"quoted\\\"\\\\\\n\"} 1\n\
             dta_x_reports_total{reason=\"b\"} 18446744073709551614\n\
             # EOF\n"
        );
    }

    #[test]
    fn in_the_older_format_a_counter_has_its_type_and_help_under_its_whole_name() {
        assert_eq!(
            page().into_text(),
            "# HELP dta_metrics_left_out counters that are not on this page: there was no room, or no definition has their names\n\
             # TYPE dta_metrics_left_out gauge\n\
             dta_metrics_left_out 7\n\
             # HELP dta_x_age_seconds age\n\
             # TYPE dta_x_age_seconds gauge\n\
             dta_x_age_seconds 1.5\n\
             # HELP dta_x_reports_total reports\n\
             # TYPE dta_x_reports_total counter\n\
             dta_x_reports_total{reason=\"a \\\"quoted\\\"\\\\\\n\"} 1\n\
             dta_x_reports_total{reason=\"b\"} 18446744073709551614\n"
        );
    }
}
