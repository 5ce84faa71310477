//! Rules, as configured and as checked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;
use std::time::Duration;

use dta_export::kind::EventKind;
use dta_export::names::Names;
use dta_files::config_file::ConfigError;
use dta_proto::flow_query::{FLOW_COLUMNS, FilterError, FlowFilter, FlowSum, MAX_COLUMNS};
use dta_proto::flow_record::{Column, ColumnType};
use dta_proto::name;
use serde::{Deserialize, Serialize};

use super::alert::format_quantity;
use super::deliver::AlertReceiver;
use super::reading::ReadingKind;
use super::source::{Source, address_by_name};

/// Most rules, including the default set.
const MAX_RULES: usize = 10_000;
/// Longest window, and the longest time that a condition can be required to hold.
const MAX_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Seconds for which a value counts as current: three keep-alives of the translator.
const KEEP_LATEST: u64 = 180;
/// Shortest window of sources that are read, which happens once in each bucket.
const LEAST_READ_WINDOW: Duration = Duration::from_secs(10);

dta_proto::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum AlertSeverity {
        Info: "info",
        Warning: "warning",
        Critical: "critical",
    }
}

dta_proto::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum RuleKind {
        Threshold: "threshold",
        Baseline: "baseline",
        Percentile: "percentile",
        NewHeavy: "new-heavy",
        Silent: "silent",
    }
}

dta_proto::parse_by_name!(AlertSeverity, RuleKind);
dta_proto::serde_as_text!(AlertSeverity, RuleKind);

dta_files::config_table! {
    /// Table `[alerts]`.
    pub struct AlertsConfig {
        /// Whether the default set is evaluated.
        pub defaults: bool = true;
        /// Rules of the default set that are not evaluated.
        pub off: Vec<String> = Vec::new();
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub rule: Vec<RuleConfig> = Vec::new();
        #[serde(skip_serializing_if = "Vec::is_empty")]
        /// Alertmanagers that are sent firing and resolved alerts.
        pub alertmanager: Vec<AlertReceiver> = Vec::new();
        #[serde(skip_serializing_if = "Vec::is_empty")]
        /// Receivers of one message for each alert that fires or is resolved.
        pub webhook: Vec<AlertReceiver> = Vec::new();
    }
}

/// A table `[[alerts.rule]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    pub(super) name: String,
    #[serde(default)]
    pub(super) source: Source,
    /// The events it is about, for source `int-events`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<String>,
    /// The counters it is about, for source `counters`, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) counter: Option<String>,
    /// The value it is about, for source `values`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<String>,
    #[serde(default = "default_kind")]
    pub(super) kind: RuleKind,
    #[serde(rename = "where", default)]
    pub(super) condition: String,
    /// Columns, separated by commas.
    #[serde(default)]
    pub(super) group: String,
    #[serde(default)]
    pub(super) measure: String,
    #[serde(with = "dta_files::span", default = "default_window")]
    pub(super) window: Duration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) above: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) below: Option<f64>,
    /// For `baseline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deviations: Option<f64>,
    /// For `percentile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) percentile: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) times: Option<f64>,
    /// For `new-heavy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) top: Option<usize>,
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub(super) lasting: Option<Length>,
    #[serde(default = "default_severity")]
    pub(super) severity: AlertSeverity,
    #[serde(default)]
    pub(super) text: String,
    #[serde(default)]
    pub(super) runbook: String,
    #[serde(default = "default_max_groups")]
    pub(super) max_groups: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Length(#[serde(with = "dta_files::span")] Duration);

impl Length {
    pub(super) fn duration(self) -> Duration {
        self.0
    }
}

fn default_kind() -> RuleKind {
    RuleKind::Threshold
}

fn default_severity() -> AlertSeverity {
    AlertSeverity::Warning
}

fn default_window() -> Duration {
    Duration::from_secs(60)
}

fn default_max_groups() -> usize {
    10_000
}

pub static DEFAULT_RULES: LazyLock<Vec<RuleConfig>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct DefaultSet {
        rule: Vec<RuleConfig>,
    }
    let set: DefaultSet = toml::from_str(include_str!("defaults.toml")).expect("the default set is TOML");
    set.rule
});

/// What a rule measures for a group in its window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Quantity {
    /// Bytes, packets and records or events.
    Sums,
    /// The number of different values of columns.
    Distinct(Vec<&'static str>),
    /// The value of the latest event, which may have come before the window.
    Latest(&'static str),
    /// The largest value.
    Largest(&'static str),
    /// When something last came.
    Seen,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measure {
    pub(super) quantity: Quantity,
    /// For [`Quantity::Sums`].
    pub(super) sum: FlowSum,
    /// The quantity is multiplied by `factor`, and for a rate then divided by the window's seconds.
    pub(super) factor: f64,
    pub(super) is_rate: bool,
    pub(super) unit: String,
}

/// When a value fulfils the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Condition {
    Above(f64),
    Below(f64),
    /// Above the group's own past, as its median plus this many deviations, and above the floor.
    Baseline {
        deviations: f64,
        floor: f64,
    },
    /// Above this many times the percentile of the group's own past, and above the floor.
    Percentile {
        percentile: f64,
        times: f64,
        floor: f64,
    },
    /// Among this many groups with the greatest values, but not so in the previous window, and above the floor.
    NewHeavy {
        top: usize,
        floor: f64,
    },
    Silent,
}

/// A checked rule.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) name: String,
    pub(super) source: Source,
    pub(super) event: Option<EventKind>,
    /// What is read, for sources that are read.
    pub(super) readings: Vec<ReadingKind>,
    pub(super) filter: FlowFilter,
    pub(super) group: Vec<&'static Column>,
    pub(super) measure: Measure,
    pub(super) condition: Condition,
    /// In nanoseconds.
    pub(super) window: u64,
    /// Nanoseconds for which the condition must hold before the alert fires.
    pub(super) lasting: u64,
    pub(super) severity: AlertSeverity,
    pub(super) text: String,
    pub(super) runbook: String,
    pub(super) max_groups: usize,
}

impl AlertsConfig {
    /// The rules to evaluate, those of the default set first.
    ///
    /// # Errors
    /// The first rule that cannot be used, and why. Names of exporters and switches come from a file.
    pub fn to_rules(&self, names: &Names) -> Result<Vec<Rule>, ConfigError> {
        self.check_rules(&|name| address_by_name(name, names))
    }

    /// Checks what can be checked without the file of names: any word may turn out to be a name.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (table, receivers) in [("alertmanager", &self.alertmanager), ("webhook", &self.webhook)] {
            let is_url = |receiver: &AlertReceiver| {
                receiver.url.starts_with("http://") || receiver.url.starts_with("https://")
            };
            if let Some(index) = receivers.iter().position(|receiver| !is_url(receiver)) {
                let (key, url) = (format!("alerts.{table}[{index}].url"), &receivers[index].url);
                return Err(ConfigError::invalid_quoted(
                    key,
                    url,
                    "a URL that begins with http:// or https://",
                ));
            }
        }
        let is_name = |name: &str| name.starts_with(|c: char| c.is_alphanumeric());
        self.check_rules(&|name| is_name(name).then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED))).map(drop)
    }

    fn check_rules(&self, names: dta_proto::flow_query::AddressNames<'_>) -> Result<Vec<Rule>, ConfigError> {
        let mut own = BTreeMap::new();
        for (index, rule) in self.rule.iter().enumerate() {
            let key = |field: &str| format!("alerts.rule[{index}].{field}");
            if let Some(first) = own.insert(&rule.name, index) {
                let twice = format!(
                    "rules {} and {} are both called {:?}: give each its own name",
                    first + 1,
                    index + 1,
                    rule.name
                );
                return Err(ConfigError::new(key("name"), twice));
            }
        }
        if let Some(unknown) =
            self.off.iter().find(|name| DEFAULT_RULES.iter().all(|rule| rule.name != **name))
        {
            return Err(ConfigError::invalid_quoted(
                "alerts.off",
                unknown,
                "names of rules of the default set (docs/alerts.md)",
            ));
        }
        let is_on = |rule: &&RuleConfig| {
            self.defaults && !self.off.contains(&rule.name) && !own.contains_key(&rule.name)
        };
        let defaults = DEFAULT_RULES.iter().filter(is_on).map(|rule| (None, rule));
        let all = defaults.chain(self.rule.iter().enumerate().map(|(index, rule)| (Some(index), rule)));
        let check = |(index, rule): (Option<usize>, &RuleConfig)| {
            let located = |(field, reason): (&str, String)| match index {
                Some(index) => ConfigError::new(
                    format!("alerts.rule[{index}].{field}"),
                    format!("rule {:?}, {field}: {reason}", rule.name),
                ),
                None => ConfigError::new(
                    "alerts.defaults",
                    format!("rule {:?} of the default set, {field}: {reason}", rule.name),
                ),
            };
            rule.to_rule(names).map_err(located)
        };
        let rules: Vec<Rule> = all.map(check).collect::<Result<_, _>>()?;
        if rules.len() > MAX_RULES {
            return Err(ConfigError::new(
                "alerts",
                format!("there are {} rules, but at most {MAX_RULES} can be evaluated", rules.len()),
            ));
        }
        Ok(rules)
    }
}

impl RuleConfig {
    /// The checked rule, or else the wrong field and the reason.
    fn to_rule(
        &self,
        names: dta_proto::flow_query::AddressNames<'_>,
    ) -> Result<Rule, (&'static str, String)> {
        if !name::is_valid_name(&self.name) {
            return Err(("name", format!("must be {}", name::PLAIN)));
        }
        let source = self.source;
        let event = self.parse_event()?;
        let readings = self.parse_readings()?;
        let columns = |name: &str| self.column(&readings, name);
        let filter = self.parse_filter(&columns, names).map_err(|error| ("where", error.to_string()))?;
        let group = parse_columns(&columns, &self.group).map_err(|reason| ("group", reason))?;
        let measure = self.parse_measure(&readings).map_err(|reason| ("measure", reason))?;
        if source.is_read() && !(LEAST_READ_WINDOW..=MAX_WINDOW).contains(&self.window) {
            return Err(("window", format!("must be 10s to 1d with source = \"{source}\"")));
        }
        if !(Duration::from_secs(1)..=MAX_WINDOW).contains(&self.window) {
            return Err(("window", "must be 1s to 1d".into()));
        }
        let lasting = self.lasting.map_or(Duration::ZERO, Length::duration);
        if lasting > MAX_WINDOW {
            return Err(("for", "must be at most 1d".into()));
        }
        if !(1..=1_000_000).contains(&self.max_groups) {
            return Err(("max_groups", "must be 1 to 1000000".into()));
        }
        let rule = Rule {
            name: self.name.clone(),
            source,
            event,
            readings,
            filter,
            group,
            measure,
            condition: self.check_condition()?,
            window: self.window.as_nanos() as u64,
            lasting: lasting.as_nanos() as u64,
            severity: self.severity,
            text: if self.text.is_empty() { "{rule}: {value}".into() } else { self.text.clone() },
            runbook: self.runbook.clone(),
            max_groups: self.max_groups,
        };
        rule.check_text().map_err(|reason| ("text", reason))?;
        Ok(rule)
    }

    /// `None` means that any event counts.
    fn parse_event(&self) -> Result<Option<EventKind>, (&'static str, String)> {
        match (self.source, self.event.as_deref()) {
            // Any event is a sign of life.
            (Source::IntEvents, None) if self.kind == RuleKind::Silent => Ok(None),
            (Source::IntEvents, text) => {
                let kind = text.and_then(EventKind::from_name).filter(|kind| *kind != EventKind::Key);
                let shown = EventKind::SHOWN.map(EventKind::name).join(", ");
                Ok(Some(kind.ok_or_else(|| ("event", format!("must be one of {shown}")))?))
            }
            (_, None) => Ok(None),
            (source, Some(_)) => Err(("event", format!("must be left out with source = \"{source}\""))),
        }
    }

    /// What is read; empty for sources that are followed.
    fn parse_readings(&self) -> Result<Vec<ReadingKind>, (&'static str, String)> {
        let by_name = |field, name: &str, all: Vec<ReadingKind>| {
            let names = all.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
            let kind = all.into_iter().find(|kind| kind.name() == name.trim());
            kind.ok_or_else(|| (field, format!("must be one of {names}")))
        };
        match (self.source, &self.counter, &self.value) {
            (Source::Counters, counter, None) => {
                let counter = counter.as_deref().unwrap_or_default();
                let kind = |name| by_name("counter", name, ReadingKind::counters().collect());
                let mut kinds: Vec<ReadingKind> = counter.split(',').map(kind).collect::<Result<_, _>>()?;
                let mut seen = BTreeSet::new();
                kinds.retain(|kind| seen.insert(kind.name()));
                if kinds.iter().any(|kind| kind.counts_bytes() != kinds[0].counts_bytes()) {
                    return Err(("counter", "bytes and packets cannot be added".into()));
                }
                Ok(kinds)
            }
            (Source::Values, None, value) => {
                let value = value.as_deref().unwrap_or_default();
                Ok(vec![by_name("value", value, ReadingKind::values().collect())?])
            }
            (source, Some(_), _) if source != Source::Counters => {
                Err(("counter", format!("must be left out with source = \"{source}\"")))
            }
            (source, _, Some(_)) => Err(("value", format!("must be left out with source = \"{source}\""))),
            _ => Ok(Vec::new()),
        }
    }

    /// A column that everything the rule is about has.
    fn column(&self, readings: &[ReadingKind], name: &str) -> Option<&'static Column> {
        let column = self.source.column(name);
        column.filter(|column| readings.iter().all(|kind| kind.has_column(column.name)))
    }

    /// The condition on entries. It leaves out values that are no longer repeated, unless it mentions their age.
    fn parse_filter(
        &self,
        columns: dta_proto::flow_query::ColumnNames<'_>,
        names: dta_proto::flow_query::AddressNames<'_>,
    ) -> Result<FlowFilter, FilterError> {
        let filter = FlowFilter::parse_with_columns(&self.condition, columns, names)?;
        let is_word = |c: char| c.is_alphanumeric() || c == '-';
        let names_age = self.condition.split(|c| !is_word(c)).any(|word| word == "age");
        if self.source != Source::Values || names_age {
            return Ok(filter);
        }
        let recent = format!("age <= {KEEP_LATEST}");
        let text = match self.condition.trim() {
            "" => recent,
            condition => format!("({condition}) and {recent}"),
        };
        FlowFilter::parse_with_columns(&text, columns, names)
    }

    fn parse_measure(&self, readings: &[ReadingKind]) -> Result<Measure, String> {
        let sum = |sum, factor, is_rate, unit: &str| Measure {
            quantity: Quantity::Sums,
            sum,
            factor,
            is_rate,
            unit: unit.to_owned(),
        };
        let of_columns =
            |quantity, unit: String| Measure { quantity, unit, ..sum(FlowSum::Flows, 1.0, false, "") };
        let measure = self.measure.trim();
        if self.kind == RuleKind::Silent {
            return match measure {
                "" => Ok(of_columns(Quantity::Seen, "s".into())),
                _ => Err("must be left out with kind = \"silent\"".into()),
            };
        }
        if let Some((word, names)) = measure.split_once(' ') {
            let columns = parse_columns(&|name| self.column(readings, name), names)?;
            let number = || match *columns {
                _ if self.source == Source::Counters => {
                    Err(format!("counters have no `{word}`: bytes or packets, or `distinct`"))
                }
                [column] if column.kind != ColumnType::Address => Ok(column.name),
                _ => Err(format!("`{word}` must be followed by one column with numbers")),
            };
            let names = || columns.iter().map(|column| column.name).collect::<Vec<_>>();
            return match word {
                "distinct" if columns.is_empty() => Err("`distinct` must be followed by columns".into()),
                "distinct" => {
                    Ok(of_columns(Quantity::Distinct(names()), format!("different {}", names().join(","))))
                }
                "latest" if self.kind == RuleKind::NewHeavy => {
                    Err("`latest` forgets the window before: use `largest` with kind = \"new-heavy\"".into())
                }
                "latest" => Ok(of_columns(Quantity::Latest(number()?), number()?.to_owned())),
                "largest" => Ok(of_columns(Quantity::Largest(number()?), number()?.to_owned())),
                _ => Err(format!("`{word}`: must be `distinct`, `latest` or `largest`, and columns")),
            };
        }
        let has_flows = self.source == Source::FlowRecords;
        let has_bytes = has_flows || readings.first().is_some_and(|kind| kind.counts_bytes());
        let has_packets = has_flows || (self.source == Source::Counters && !has_bytes);
        let has_events = self.source == Source::IntEvents;
        match measure {
            "bytes" if has_bytes => Ok(sum(FlowSum::Bytes, 1.0, false, "bytes")),
            "bytes-per-second" if has_bytes => Ok(sum(FlowSum::Bytes, 1.0, true, "bytes/s")),
            "bits-per-second" if has_bytes => Ok(sum(FlowSum::Bytes, 8.0, true, "bit/s")),
            "packets" if has_packets => Ok(sum(FlowSum::Packets, 1.0, false, "packets")),
            "packets-per-second" if has_packets => Ok(sum(FlowSum::Packets, 1.0, true, "packets/s")),
            "flows" if has_flows => Ok(sum(FlowSum::Flows, 1.0, false, "flows")),
            "flows-per-second" if has_flows => Ok(sum(FlowSum::Flows, 1.0, true, "flows/s")),
            "events" if has_events => Ok(sum(FlowSum::Flows, 1.0, false, "events")),
            "events-per-second" if has_events => Ok(sum(FlowSum::Flows, 1.0, true, "events/s")),
            _ => Err(match self.source {
                Source::FlowRecords => "must be bytes, packets, flows, one of them or bits with -per-second, `distinct COLUMNS`, `latest COLUMN` or `largest COLUMN`",
                Source::IntEvents => "must be events, events-per-second, `distinct COLUMNS`, `latest COLUMN` or `largest COLUMN`",
                Source::Counters if has_bytes => "must be bytes, bytes-per-second, bits-per-second or `distinct COLUMNS`",
                Source::Counters => "must be packets, packets-per-second or `distinct COLUMNS`",
                Source::Values => "must be `latest value`, `largest value`, the same of age, or `distinct COLUMNS`",
            }.into()),
        }
    }

    fn check_condition(&self) -> Result<Condition, (&'static str, String)> {
        let of_kind = |field: &'static str, kind: RuleKind, is_set: bool| match is_set && self.kind != kind {
            true => Err((field, format!("must be left out unless kind = {:?}", kind.name()))),
            false => Ok(()),
        };
        of_kind("deviations", RuleKind::Baseline, self.deviations.is_some())?;
        of_kind("percentile", RuleKind::Percentile, self.percentile.is_some())?;
        of_kind("times", RuleKind::Percentile, self.times.is_some())?;
        of_kind("top", RuleKind::NewHeavy, self.top.is_some())?;
        of_kind("below", RuleKind::Threshold, self.below.is_some())?;
        let is_number = |field, number: Option<f64>, least: f64| match number {
            Some(number) if !(number.is_finite() && number >= least) => {
                Err((field, format!("must be a number from {least} on")))
            }
            _ => Ok(()),
        };
        is_number("above", self.above, 0.0)?;
        is_number("below", self.below, 0.0)?;
        is_number("deviations", self.deviations, 1.0)?;
        is_number("times", self.times, 1.0)?;
        let floor = self.above.unwrap_or(0.0);
        match (self.kind, self.above, self.below) {
            (RuleKind::Threshold, Some(above), None) => Ok(Condition::Above(above)),
            (RuleKind::Threshold, None, Some(below)) => Ok(Condition::Below(below)),
            (RuleKind::Threshold, ..) => Err(("above", "give either `above` or `below`".into())),
            (RuleKind::Silent, None, _) => Ok(Condition::Silent),
            (RuleKind::Silent, Some(_), _) => {
                Err(("above", "must be left out with kind = \"silent\"".into()))
            }
            (RuleKind::Baseline, ..) => {
                Ok(Condition::Baseline { deviations: self.deviations.unwrap_or(6.0), floor })
            }
            (RuleKind::Percentile, ..) => {
                let percentile = self.percentile.unwrap_or(99.0);
                if !(percentile > 0.0 && percentile < 100.0) {
                    return Err(("percentile", "must be above 0 and below 100".into()));
                }
                Ok(Condition::Percentile { percentile, times: self.times.unwrap_or(2.0), floor })
            }
            (RuleKind::NewHeavy, None, _) => Err(("above", "must be given with kind = \"new-heavy\"".into())),
            (RuleKind::NewHeavy, Some(floor), _) => {
                let top = self.top.unwrap_or(10);
                if !(1..=1000).contains(&top) {
                    return Err(("top", "must be 1 to 1000".into()));
                }
                Ok(Condition::NewHeavy { top, floor })
            }
        }
    }
}

/// Columns by name, separated by commas; `flow` stands for the five of a flow.
fn parse_columns(
    columns_by_name: &dyn Fn(&str) -> Option<&'static Column>,
    text: &str,
) -> Result<Vec<&'static Column>, String> {
    let mut columns = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let flow = FLOW_COLUMNS.iter().map(|column| column.name);
        let names: Vec<&str> = if name == "flow" { flow.collect() } else { vec![name] };
        for name in names {
            let column = columns_by_name(name).ok_or_else(|| format!("there is no column `{name}`"))?;
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
    }
    if columns.len() > MAX_COLUMNS {
        Err(format!("at most {MAX_COLUMNS} columns can group"))
    } else {
        Ok(columns)
    }
}

/// A column's name as the name of a label, which cannot contain `-`.
pub(super) fn label_name(column: &Column) -> String {
    column.name.replace('-', "_")
}

impl Rule {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn severity(&self) -> AlertSeverity {
        self.severity
    }

    /// The rule in one line.
    pub fn describe(&self) -> String {
        let unit = &self.measure.unit;
        let above = |limit| format!("above {}", format_quantity(limit, unit));
        let mut text = match self.condition {
            Condition::Above(limit) => above(limit),
            Condition::Below(limit) => format!("below {}", format_quantity(limit, unit)),
            Condition::Baseline { deviations, floor } => {
                format!(
                    "{unit} above the median of the group's past plus {deviations} deviations, and {}",
                    above(floor)
                )
            }
            Condition::Percentile { percentile, times, floor } => {
                format!(
                    "{unit} above {times} times percentile {percentile} of the group's past, and {}",
                    above(floor)
                )
            }
            Condition::NewHeavy { top, floor } => {
                format!("new among the {top} with most {unit}, and {}", above(floor))
            }
            Condition::Silent => "nothing received".to_owned(),
        };
        text += &format!(", in {} s", self.window / 1_000_000_000);
        if !self.group.is_empty() {
            let names: Vec<_> = self.group.iter().map(|column| column.name).collect();
            text += &format!(", by {}", names.join(","));
        }
        if let Some(event) = self.event {
            text += &format!(", of {event} events");
        }
        if !self.readings.is_empty() {
            let names: Vec<_> = self.readings.iter().map(|kind| kind.name()).collect();
            text += &format!(", of {}", names.join(","));
        }
        let filter = self.filter.to_string();
        if !filter.is_empty() {
            text += &format!(", where {filter}");
        }
        if self.lasting > 0 {
            text += &format!(", for {} s", self.lasting / 1_000_000_000);
        }
        text
    }

    /// Nanoseconds from a start until the first window is complete.
    pub(super) fn first_complete_window(&self) -> u64 {
        match self.measure.quantity {
            Quantity::Latest(_) => self.keep_latest(),
            _ => self.window,
        }
    }

    /// Nanoseconds for which a value is the latest one. One that is read comes again as long as it exists.
    pub(super) fn keep_latest(&self) -> u64 {
        if self.source.is_read() { self.window } else { self.window.max(KEEP_LATEST * 1_000_000_000) }
    }

    pub fn window(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    /// How long the condition must hold before the alert fires.
    pub fn lasting(&self) -> Duration {
        Duration::from_nanos(self.lasting)
    }

    /// Checks the names in braces in the text.
    fn check_text(&self) -> Result<(), String> {
        let known = |name: &str| {
            matches!(name, "rule" | "value" | "limit" | "window")
                || self.group.iter().any(|column| label_name(column) == name.replace('-', "_"))
        };
        match parse_template(&self.text)?
            .into_iter()
            .find(|part| matches!(part, TextPart::Name(name) if !known(name)))
        {
            Some(TextPart::Name(name)) => Err(format!(
                "`{{{name}}}` is not one of {{rule}}, {{value}}, {{limit}}, {{window}} and the columns of `group`"
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn render_text(&self, labels: &BTreeMap<String, String>, value: &str, limit: &str) -> String {
        let replace = |part| match part {
            TextPart::Literal(text) => text.to_owned(),
            TextPart::Name("rule") => self.name.clone(),
            TextPart::Name("value") => value.to_owned(),
            TextPart::Name("limit") => limit.to_owned(),
            TextPart::Name("window") => format!("{} s", self.window / 1_000_000_000),
            TextPart::Name(name) => labels.get(&name.replace('-', "_")).cloned().unwrap_or_default(),
        };
        parse_template(&self.text).unwrap_or_default().into_iter().map(replace).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum TextPart<'a> {
    Literal(&'a str),
    Name(&'a str),
}

fn parse_template(text: &str) -> Result<Vec<TextPart<'_>>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}').ok_or("a `{` has no `}`")?;
        parts.extend([TextPart::Literal(before), TextPart::Name(name)]);
        rest = behind;
    }
    parts.push(TextPart::Literal(rest));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Rule, String> {
        let config: RuleConfig = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let config = AlertsConfig { defaults: false, rule: vec![config], ..AlertsConfig::default() };
        config.to_rules(&Names::empty()).map(|mut rules| rules.remove(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn rules_are_read_and_wrong_ones_name_the_field() {
        let rule = parse(
            "name = \"flood\"\nwhere = \"tcp-flags = syn\"\ngroup = \"dst\"\nmeasure = \"packets-per-second\"\nabove = 1000\nfor = \"10s\"\ntext = \"{dst} gets {value}\"\n",
        )
        .unwrap();
        assert_eq!((rule.window, rule.lasting), (60_000_000_000, 10_000_000_000));
        assert_eq!(rule.condition, Condition::Above(1000.0));
        let labels = BTreeMap::from([("dst".to_owned(), "192.0.2.7".to_owned())]);
        assert_eq!(rule.render_text(&labels, "2 k packets/s", ""), "192.0.2.7 gets 2 k packets/s");
        for (more, says) in [
            ("measure = \"bytes\"", "above: give either"),
            ("measure = \"bytes\"\nabove = 1\nbelow = 2", "above: give either"),
            ("measure = \"octets\"\nabove = 1", "measure: must be bytes"),
            ("measure = \"distinct sport\"\nabove = 1", "measure: there is no column `sport`"),
            ("measure = \"largest src\"\nabove = 1", "one column with numbers"),
            (
                "measure = \"bytes\"\nabove = 1\ngroup = \"destination\"",
                "group: there is no column `destination`",
            ),
            ("measure = \"bytes\"\nabove = 1\nwhere = \"dst-prot = 1\"", "where: at character 1, `dst-prot`"),
            (
                "measure = \"bytes\"\nabove = 1\nwhere = \"exporter = edge1\"",
                "where: at character 12, `edge1`",
            ),
            ("measure = \"bytes\"\nabove = 1\ntext = \"{src}\"", "text: `{src}` is not one of"),
            ("measure = \"bytes\"\nabove = 1\ntext = \"{src\"", "text: a `{` has no `}`"),
            ("measure = \"bytes\"\nabove = 1\nevent = \"drop\"", "event: must be left out"),
            ("source = \"int-events\"\nmeasure = \"events\"\nabove = 1", "event: must be one of drop"),
            (
                "source = \"int-events\"\nevent = \"drop\"\nmeasure = \"bytes\"\nabove = 1",
                "measure: must be events",
            ),
            ("measure = \"bytes\"\nabove = -1", "above: must be a number from 0 on"),
            ("measure = \"bytes\"\nabove = nan", "above: must be a number from 0 on"),
            ("measure = \"bytes\"\nabove = 1\nwindow = \"2d\"", "window: must be 1s to 1d"),
            ("measure = \"bytes\"\nabove = 1\ntop = 3", "top: must be left out"),
            ("measure = \"bytes\"\nkind = \"new-heavy\"", "above: must be given"),
            ("measure = \"bytes\"\nkind = \"silent\"", "measure: must be left out"),
            ("measure = \"bytes\"\nabove = 1\nmax_groups = 0", "max_groups: must be"),
            ("measure = \"bytes\"\nabove = 1\ncolour = 1", "unknown field `colour`"),
            ("measure = \"bytes\"\nabove = 1\ncounter = \"drops\"", "counter: must be left out"),
            ("measure = \"bytes\"\nabove = 1\nvalue = \"hop-latency\"", "value: must be left out"),
            ("kind = \"new-heavy\"\nmeasure = \"latest bytes\"\nabove = 1", "use `largest`"),
            ("source = \"counters\"\nmeasure = \"packets\"\nabove = 1", "counter: must be one of in-octets"),
            (
                "source = \"values\"\nmeasure = \"latest value\"\nabove = 1",
                "value: must be one of flow-latency",
            ),
            (
                "source = \"sketches\"\nmeasure = \"bytes\"\nabove = 1",
                "counters, values; a sketch does not have its keys",
            ),
        ] {
            let error = parse(&format!("name = \"x\"\n{more}\n")).unwrap_err();
            assert!(error.contains(says), "{more}: {error}");
        }
        for (counter, more, says) in [
            ("in-octets,in-errors", "measure = \"bytes\"", "counter: bytes and packets cannot be added"),
            ("in-octets,octets", "measure = \"bytes\"", "counter: must be one of in-octets"),
            ("in-octets", "measure = \"packets\"", "measure: must be bytes"),
            ("drops", "measure = \"bytes\"", "measure: must be packets"),
            ("drops", "measure = \"largest reason\"", "measure: counters have no `largest`"),
            ("drops", "measure = \"packets\"\ngroup = \"switch,port\"", "group: there is no column `port`"),
            ("drops", "measure = \"packets\"\nwhere = \"value > 1\"", "where: at character 1, `value`"),
            ("drops", "measure = \"packets\"\nwindow = \"5s\"", "window: must be 10s to 1d"),
            ("drops", "measure = \"packets\"\nevent = \"drop\"", "event: must be left out"),
            ("drops", "measure = \"packets\"\nvalue = \"hop-latency\"", "value: must be left out"),
        ] {
            let text =
                format!("name = \"x\"\nsource = \"counters\"\ncounter = \"{counter}\"\nabove = 1\n{more}\n");
            let error = parse(&text).unwrap_err();
            assert!(error.contains(says), "{counter}, {more}: {error}");
        }
        for (value, more, says) in [
            ("flow-path", "measure = \"latest value\"", "value: must be one of flow-latency"),
            ("hop-latency", "measure = \"events\"", "measure: must be `latest value`"),
            ("hop-latency", "measure = \"latest value\"\ngroup = \"queue\"", "group: there is no column"),
            ("hop-latency", "measure = \"latest value\"\ncounter = \"drops\"", "counter: must be left out"),
        ] {
            let text = format!("name = \"x\"\nsource = \"values\"\nvalue = \"{value}\"\nabove = 1\n{more}\n");
            let error = parse(&text).unwrap_err();
            assert!(error.contains(says), "{value}, {more}: {error}");
        }
        assert!(
            parse("name = \"a b\"\nmeasure = \"bytes\"\nabove = 1").unwrap_err().contains("name: must be")
        );
    }

    #[test]
    fn values_are_recent_unless_their_age_is_named() {
        let describe = |condition: &str| {
            let text = "name = \"x\"\nsource = \"values\"\nvalue = \"hop-latency\"\nmeasure = \"largest value\"\nabove = 1\ngroup = \"switch\"";
            parse(&format!("{text}\nwhere = \"{condition}\"")).unwrap().describe()
        };
        let says = |text: &str| format!("above 1 value, in 60 s, by switch, of hop-latency, where {text}");
        assert_eq!(describe(""), says("age <= 180"));
        assert_eq!(describe("value > 3 or value < 2"), says("(value > 3 or value < 2) and age <= 180"));
        assert_eq!(describe("value > 3 and (age < 600)"), says("value > 3 and age < 600"));
    }

    #[test]
    fn a_rule_of_the_file_replaces_the_default_of_its_name() {
        let names = |config: &AlertsConfig| {
            let rules = config.to_rules(&Names::empty()).unwrap();
            rules.iter().map(|rule| (rule.name.clone(), rule.severity)).collect::<Vec<_>>()
        };
        let all = names(&AlertsConfig::default());
        assert!(all.contains(&("syn-flood".to_owned(), AlertSeverity::Critical)));
        let own = RuleConfig { severity: AlertSeverity::Info, ..DEFAULT_RULES[0].clone() };
        let config =
            AlertsConfig { rule: vec![own.clone()], off: vec![all[1].0.clone()], ..AlertsConfig::default() };
        let replaced = names(&config);
        assert_eq!(replaced.len(), all.len() - 1);
        assert_eq!(replaced.last(), Some(&(own.name.clone(), AlertSeverity::Info)));
        let twice = AlertsConfig { rule: vec![own.clone(), own], ..AlertsConfig::default() };
        assert!(twice.validate().unwrap_err().to_string().contains("both called"));
        let unknown = AlertsConfig { off: vec!["x".into()], ..AlertsConfig::default() };
        assert!(unknown.validate().is_err());
    }
}
