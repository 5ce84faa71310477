//! What a rule finds for a group, and the alert made from it. [`Alert`] is the `dta.v1` message; its JSON
//! uses the same names.

use std::collections::BTreeMap;
use std::ops::Range;

use dta_cli::number::format_short;
use dta_export::kind::EventKind;
use dta_files::moment::format_utc;
use dta_proto::control::{Alert, AlertState};
use dta_proto::flow_query::{FLOW_COLUMNS, FlowFilter, FlowQuestion, FlowSum, flow_from_values};
use dta_proto::flow_record::Column;
use dta_proto::telemetry::SwitchNumber;

use super::reading::ReadingKind;
use super::rule::{Quantity, Rule};
use super::source::{Source, condition_text, switch_from_value};

/// A group for which a rule's condition holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The values of the columns of `group`.
    pub values: Vec<u128>,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
    /// What the value is compared with.
    pub limit: f64,
    /// The window, in nanoseconds since 1970.
    pub span: Range<u64>,
    /// Why the value may be wrong.
    pub notes: Vec<String>,
}

impl Finding {
    /// Asks for the flow records that are the evidence, ranked by a sum; `None` if the evidence is something else.
    pub fn to_question(&self, rule: &Rule) -> Option<(FlowQuestion, FlowSum)> {
        let filter = match rule.source {
            Source::FlowRecords => {
                let equal = rule.group.iter().zip(&self.values);
                equal.fold(rule.filter.clone(), |filter, (column, value)| filter.and_equal(column, *value))
            }
            _ => FlowFilter::parse(&self.interface_condition(rule)?, &|_| None).ok()?,
        };
        let group = FlowQuestion::parse_group(&evidence_group(rule)).ok()?;
        let question = FlowQuestion { filter, group, since: self.span.start, until: self.span.end, per: 0 };
        Some((question, rule.measure.sum))
    }

    /// The command and the address on the page that show the evidence.
    fn evidence(&self, rule: &Rule) -> (String, String) {
        if rule.source == Source::FlowRecords {
            let conditions = std::iter::once(rule.filter.to_string())
                .filter(|text| !text.is_empty())
                .map(|text| if rule.group.is_empty() { text } else { format!("({text})") })
                .chain(
                    rule.group.iter().zip(&self.values).map(|(column, value)| condition_text(column, *value)),
                );
            return self.flow_evidence(rule, &conditions.collect::<Vec<_>>().join(" and "));
        }
        if let Some(condition) = self.interface_condition(rule) {
            return self.flow_evidence(rule, &condition);
        }
        match (self.event_kind(rule), self.grouped_flow(rule)) {
            // The view of a flow shows its counters along with everything else known about it.
            (None, Some(flow)) if rule.source == Source::Counters => {
                let page = format!("#/flow?flow={}", percent_encode(&flow));
                (format!("dta-collector query flow '{flow}'"), page)
            }
            (None, _) if rule.source == Source::Counters => {
                let by = if rule.measure.sum == FlowSum::Bytes { "bytes" } else { "packets" };
                (format!("dta-collector top --by {by}"), format!("#/top?by={by}"))
            }
            (kind, flow) => self.event_evidence(rule, kind, flow),
        }
    }

    fn flow_evidence(&self, rule: &Rule, condition: &str) -> (String, String) {
        let [since, until] = self.moments();
        let (group, by) = (evidence_group(rule), rule.measure.sum.name());
        let command = format!(
            "dta-collector flows --group {group} --by {by} --where '{condition}' --since {since} --until {until}"
        );
        let seconds = rule.window / 1_000_000_000;
        let spans = [(300, "5m"), (900, "15m"), (3600, "1h"), (21_600, "6h")];
        let span = spans.iter().find(|(most, _)| seconds <= *most).map_or("1d", |(_, name)| *name);
        let page = format!(
            "#/flows?group={group}&by={by}&where={}&span={span}&at={until}",
            percent_encode(condition)
        );
        (command, page)
    }

    fn event_evidence(&self, rule: &Rule, kind: Option<EventKind>, flow: Option<String>) -> (String, String) {
        let [since, until] = self.moments();
        let switch = self.column_value(rule, "switch").and_then(switch_from_value).map(SwitchNumber);
        let flags = [
            kind.map(|kind| format!("--kind {kind} ")),
            switch.map(|switch| format!("--switch {switch} ")),
            flow.as_ref().map(|flow| format!("--flow '{flow}' ")),
        ];
        let flags: String = flags.into_iter().flatten().collect();
        // Without a span: the view shows what the rings hold, as events have no past without epochs.
        let parameters = [
            kind.map(|kind| format!("kind={kind}")),
            switch.map(|switch| format!("switch={switch}")),
            flow.map(|flow| format!("flow={}", percent_encode(&flow))),
        ];
        let parameters: Vec<String> = parameters.into_iter().flatten().collect();
        (
            format!("dta-collector tail events {flags}--since {since} --until {until}"),
            format!("#/events?{}", parameters.join("&")),
        )
    }

    /// The start and end of the window, in UTC.
    fn moments(&self) -> [String; 2] {
        [self.span.start, self.span.end].map(|moment| format_utc(moment / 1_000_000))
    }

    fn column_value(&self, rule: &Rule, name: &str) -> Option<u128> {
        let place = rule.group.iter().position(|column| column.name == name)?;
        self.values.get(place).copied()
    }

    /// The condition for flow records that used an exporter's interface, if the rule is about one.
    fn interface_condition(&self, rule: &Rule) -> Option<String> {
        let ReadingKind::Interface(counter) = *rule.readings.first()? else { return None };
        let exporter = SwitchNumber(switch_from_value(self.column_value(rule, "switch")?)?);
        let exporter = exporter.is_address().then(|| format!("exporter = {exporter}"))?;
        let Some(port) = self.column_value(rule, "port") else { return Some(exporter) };
        let enters = format!("in-if = {port}");
        let leaves = format!("out-if = {port}");
        let is_one_way = rule.readings.len() == 1;
        let way = match counter.name().starts_with("in-") {
            true if is_one_way => enters,
            false if is_one_way => leaves,
            _ => format!("({enters} or {leaves})"),
        };
        Some(format!("{exporter} and {way}"))
    }

    /// The kind of events that are the evidence.
    fn event_kind(&self, rule: &Rule) -> Option<EventKind> {
        match rule.readings.first() {
            Some(ReadingKind::Drops | ReadingKind::FlowDrops) => Some(EventKind::Drop),
            Some(ReadingKind::Value(metric)) => EventKind::from_name(metric.name()),
            _ => rule.event,
        }
    }

    /// The flow, if the group is one.
    fn grouped_flow(&self, rule: &Rule) -> Option<String> {
        let value = |column: &Column| self.column_value(rule, column.name);
        let values: Vec<u128> = FLOW_COLUMNS.iter().map(value).collect::<Option<_>>()?;
        let flow = flow_from_values(&values)?;
        // Events of packets that could not be parsed have no flow.
        (!flow.src.is_unspecified()).then(|| flow.to_string())
    }
}

/// What the evidence is grouped by: the columns counted as different, or flows.
fn evidence_group(rule: &Rule) -> String {
    match &rule.measure.quantity {
        Quantity::Distinct(names) if rule.source == Source::FlowRecords => names.join(","),
        _ if rule.group.len() < 5 => "flow".to_owned(),
        _ => "exporter".to_owned(),
    }
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

/// A value with its unit: `12.5M bit/s`, `140 different src`.
pub(super) fn format_quantity(value: f64, unit: &str) -> String {
    let number =
        if value.fract() != 0.0 && value < 100.0 { format!("{value:.2}") } else { format_short(value) };
    format!("{number} {unit}")
}

/// Identifies a rule and its labels: FNV-1a over both, the same in every run.
pub(super) fn fingerprint(rule: &str, labels: &BTreeMap<String, String>) -> String {
    let texts = std::iter::once(rule).chain(labels.iter().flat_map(|(name, value)| [name.as_str(), value]));
    let bytes = texts.flat_map(|text| text.bytes().chain([0xff]));
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// A pending alert for a finding.
pub(super) fn new_alert(rule: &Rule, finding: &Finding, now_ms: u64) -> Alert {
    let mut alert = Alert {
        rule: rule.name.clone(),
        state: AlertState::Pending.name().into(),
        labels: finding.labels.clone(),
        fingerprint: fingerprint(&rule.name, &finding.labels),
        since: now_ms,
        ..Alert::default()
    };
    update_alert(&mut alert, rule, finding, now_ms);
    alert
}

/// Brings an alert up to date with what its rule finds now.
pub(super) fn update_alert(alert: &mut Alert, rule: &Rule, finding: &Finding, now_ms: u64) {
    let unit = &rule.measure.unit;
    let [value, limit] = [finding.value, finding.limit].map(|number| format_quantity(number, unit));
    alert.severity = rule.severity.name().into();
    (alert.value, alert.unit) = (finding.value, unit.clone());
    alert.text = rule.render_text(&finding.labels, &value, &limit);
    alert.runbook.clone_from(&rule.runbook);
    alert.last_seen = now_ms;
    (alert.command, alert.page) = finding.evidence(rule);
    alert.notes.clone_from(&finding.notes);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use dta_export::names::Names;

    use super::super::rule::{AlertsConfig, RuleConfig};
    use super::*;

    fn evidence(rule: &str, values: &[u128]) -> (String, String) {
        let rule: RuleConfig = toml::from_str(&format!("name = \"x\"\nabove = 1\n{rule}")).unwrap();
        let config = AlertsConfig { defaults: false, rule: vec![rule], ..AlertsConfig::default() };
        let rule = config.to_rules(&Names::empty()).unwrap().remove(0);
        let second = 1_000_000_000;
        let finding = Finding {
            values: values.to_vec(),
            labels: BTreeMap::new(),
            value: 2.0,
            limit: 1.0,
            span: 1_767_225_600 * second..1_767_225_660 * second,
            notes: Vec::new(),
        };
        finding.evidence(&rule)
    }

    fn address(text: &str) -> u128 {
        text.parse::<Ipv4Addr>().unwrap().to_ipv6_mapped().to_bits()
    }

    #[test]
    fn evidence_names_the_flow_the_place_and_the_time() {
        const SPAN: &str = "--since 2026-01-01T00:00:00.000Z --until 2026-01-01T00:01:00.000Z";
        let flow = [address("10.0.0.1"), address("10.0.0.2"), 5000, 443, 6];
        let (command, page) = evidence(
            "source = \"int-events\"\nevent = \"drop\"\ngroup = \"switch,flow\"\nmeasure = \"events\"",
            &[&[address("192.0.2.1")], &flow[..]].concat(),
        );
        assert_eq!(
            command,
            format!(
                "dta-collector tail events --kind drop --switch 192.0.2.1 --flow '10.0.0.1:5000->10.0.0.2:443/tcp' {SPAN}"
            )
        );
        assert_eq!(page, "#/events?kind=drop&switch=192.0.2.1&flow=10.0.0.1%3A5000-%3E10.0.0.2%3A443%2Ftcp");
        let interface = "source = \"counters\"\ncounter = \"out-discards\"\nmeasure = \"packets\"\ngroup = \"switch,port\"";
        let (command, _) = evidence(interface, &[address("192.0.2.1"), 3]);
        assert_eq!(
            command,
            format!(
                "dta-collector flows --group flow --by packets --where 'exporter = 192.0.2.1 and out-if = 3' {SPAN}"
            )
        );
        // A switch that is not an exporter has no flow records.
        let (command, page) = evidence(interface, &[address("0.0.0.6"), 3]);
        assert_eq!((command.as_str(), page.as_str()), ("dta-collector top --by packets", "#/top?by=packets"));
        let (command, page) = evidence(
            "source = \"counters\"\ncounter = \"flow-bytes\"\nmeasure = \"bytes\"\ngroup = \"flow\"",
            &flow,
        );
        assert_eq!(command, "dta-collector query flow '10.0.0.1:5000->10.0.0.2:443/tcp'");
        assert!(page.starts_with("#/flow?flow=10.0.0.1%3A5000"), "{page}");
        let (command, _) = evidence(
            "source = \"values\"\nvalue = \"hop-latency\"\nmeasure = \"latest value\"\ngroup = \"switch\"",
            &[address("0.0.0.6")],
        );
        assert_eq!(command, format!("dta-collector tail events --kind hop-latency --switch 6 {SPAN}"));
    }
}
