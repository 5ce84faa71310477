//! Draws a flow as a path, for a terminal of 80 columns.

use dta_cli::number::{format_bytes, format_count, format_grouped};
use dta_cli::table::words_in_lines;
use dta_export::names::describe_switch;
use dta_proto::key::Flow;
use dta_proto::telemetry::SwitchNumber;

use super::event::describe_reason;
use super::flow::{FlowSummary, Hop, Measured};
use super::moment::age_in_words;

/// Longest line; a single longer word overflows.
const COLUMNS: usize = 80;
/// The column where the words of a hop begin.
const WORDS: usize = 22;

/// What is known about a flow, in lines.
pub fn flow_lines(report: &FlowSummary) -> Vec<String> {
    let at = report.at.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
    let mut lines = vec![format!("{}{at}", report.flow)];
    lines.extend(report.ends.describe());
    lines.push(String::new());
    if !report.found {
        lines.push("  Nothing is known about this flow.".into());
    } else {
        push_facts(report, &mut lines);
        if !report.hops.is_empty() {
            lines.push(String::new());
            push_path(report, &mut lines);
        }
        if !report.others.is_empty() {
            lines.push(String::new());
            lines.push("  Switches that reported a latency but are not on that path:".into());
            report.others.iter().for_each(|hop| draw_hop(hop, " ", &mut lines));
        }
    }
    if !report.unknown.is_empty() {
        lines.push(String::new());
        lines.push("  Unknown:".into());
        report.unknown.iter().for_each(|sentence| push_wrapped("  - ", sentence, &mut lines));
    }
    lines
}

fn push_facts(report: &FlowSummary, lines: &mut Vec<String>) {
    let mut fact = |name: &str, what: String| push_wrapped(&format!("  {name:11}"), &what, lines);
    let count = |n: Option<u64>| n.map_or("none counted".to_owned(), format_grouped);
    fact(
        "path",
        match &report.path {
            None => "not known".into(),
            Some(route) => {
                let known =
                    |hop: &Hop| hop.switch.map_or("?".to_owned(), |switch| SwitchNumber(switch).to_string());
                let hops = report.hops.iter().map(known).collect::<Vec<_>>().join(":");
                let more = if route.length.is_some_and(|length| length as usize > report.hops.len()) {
                    ":..."
                } else {
                    ""
                };
                let looped = if route.looped { ", passes a switch twice" } else { "" };
                let age = match route.age_seconds {
                    Some(age) => format!(", reported {}", age_in_words(Some(age))),
                    None => String::new(),
                };
                let copies = format!("{} of {} copies", route.agreeing, route.copies);
                format!("{hops}{more}{looped}{age} ({}, {copies})", route.store)
            }
        },
    );
    fact("latency", report.latency.as_ref().map_or("not known".into(), nanoseconds));
    fact("reports", count(report.reports));
    fact("packets", count(report.packets));
    fact("bytes", report.bytes.map_or("none counted".to_owned(), format_bytes));
    for seen in &report.exporters {
        let name = seen.exporter_name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let records = format_count(seen.records, "record", "records");
        let (bytes, packets) = (format_bytes(seen.bytes), format_grouped(seen.packets));
        fact("seen by", format!("{}{name}: {bytes}, {packets} packets, {records}", seen.exporter));
    }
    if report.drops.is_empty() {
        fact("drops", "none known".into());
    }
    for drops in &report.drops {
        let reason = describe_reason(drops.reason, drops.reason_name.as_deref());
        let counted = drops.counted.map_or("not counted".to_owned(), format_grouped);
        let at = match &drops.switches[..] {
            [] => String::new(),
            [one] => format!(", at {}", describe_switch(*one, None)),
            all => {
                let numbers: Vec<_> = all.iter().map(|switch| SwitchNumber(*switch).to_string()).collect();
                let what = if SwitchNumber(all[0]).is_address() { "exporters" } else { "switches" };
                format!(", at {what} {}", numbers.join(", "))
            }
        };
        let age = if drops.switches.is_empty() {
            String::new()
        } else {
            format!(", the last {}", age_in_words(drops.age_seconds))
        };
        fact("drops", format!("{counted}: {reason}{at}{age}"));
    }
    if let Some(congested) = &report.congested {
        let switch =
            congested.switch.map_or(String::new(), |switch| format!(" at {}", describe_switch(switch, None)));
        let occupancy = congested
            .occupancy
            .map_or(String::new(), |n| format!(", occupancy {}", format_grouped(n.into())));
        let latency =
            congested.latency.map_or(String::new(), |n| format!(", {} ns", format_grouped(n.into())));
        let packets = format_count(congested.packets, "packet", "packets");
        fact(
            "congested",
            format!(
                "{packets}, the last{switch}{occupancy}{latency}, {}",
                age_in_words(congested.age_seconds)
            ),
        );
    }
    if let Some(traced) = report.traced {
        let packets = format_count(traced, "packet", "packets");
        fact("traced", format!("{packets} by hosts: dta-collector trace '{}'", report.flow));
    }
    for answer in &report.stores {
        let what = match (&answer.path, answer.counted, &answer.value) {
            (Some(hops), ..) => {
                let hop = |hop: &Option<u32>| hop.map_or("?".to_owned(), |hop| hop.to_string());
                format!("path {}", hops.iter().map(hop).collect::<Vec<_>>().join(":"))
            }
            (None, Some(count), _) => format!("{} counted", format_grouped(count)),
            (None, None, Some(value)) => format!("value {value}"),
            (None, None, None) => "absent".into(),
        };
        // A space sets even a long name apart.
        fact(&format!("{} ", answer.store), what);
    }
}

fn push_path(report: &FlowSummary, lines: &mut Vec<String>) {
    let Flow { src, dst, sport, dport, .. } = report.flow;
    lines.push(format!("    {}", endpoint_text(src, sport)));
    for hop in &report.hops {
        lines.push("    │".into());
        draw_hop(hop, "│", lines);
    }
    lines.push("    │".into());
    // The path is longer than the known hops.
    if report
        .path
        .as_ref()
        .is_some_and(|route| route.length.is_some_and(|length| length as usize > report.hops.len()))
    {
        lines.push("    ┊ unknown hops".into());
    }
    lines.push(format!("    {}", endpoint_text(dst, dport)));
}

/// An end of a flow; a port of 0 is left out.
pub(crate) fn endpoint_text(address: std::net::IpAddr, port: u16) -> String {
    if port == 0 { address.to_string() } else { std::net::SocketAddr::new(address, port).to_string() }
}

/// Draws a switch, followed by what is known about the flow there; `line` continues on the left.
fn draw_hop(hop: &Hop, line: &str, lines: &mut Vec<String>) {
    let name = match (&hop.switch_name, hop.switch) {
        (Some(name), Some(number)) => format!("{name} ({})", SwitchNumber(number)),
        (None, Some(number)) => SwitchNumber(number).to_string(),
        (_, None) => "not known".into(),
    };
    let mut words = Vec::new();
    words.push(match (&hop.latency, hop.switch) {
        (Some(latency), _) => format!("latency {}", nanoseconds(latency)),
        (None, Some(_)) => "latency unknown".into(),
        (None, None) => String::new(),
    });
    let link = hop.utilization.as_ref().map(|value| format!("utilization {}", format_measured(value)));
    let port = hop.port.map(|port| match &hop.port_name {
        Some(name) => format!("out of port {name} ({port})"),
        None => format!("out of port {port}"),
    });
    let out = [port, link].into_iter().flatten().collect::<Vec<_>>().join(", ");
    if !out.is_empty() {
        words.push(out);
    }
    let is_fault = |name: &str| name.ends_with("errors") || name.ends_with("discards");
    let faults = hop.counters.iter().filter(|(name, _)| is_fault(name));
    let faults: Vec<_> = faults.map(|(name, count)| format!("{name} {}", format_grouped(*count))).collect();
    if !faults.is_empty() {
        words.push(format!("of that port: {}", faults.join(", ")));
    }
    for queue in &hop.queues {
        let describe = |what: &str, value: &Option<Measured>| {
            value.as_ref().map(|value| format!("{what} {}", format_measured(value)))
        };
        let of: Vec<_> = [describe("occupancy", &queue.occupancy), describe("congestion", &queue.congestion)]
            .into_iter()
            .flatten()
            .collect();
        let queue = queue.queue.map_or("a queue".to_owned(), |queue| format!("queue {queue}"));
        words.push(format!("{queue}: {}", of.join(", ")));
    }
    let first = format!("    ● {name}");
    // A long name gets a line of its own.
    let long = first.chars().count() + 2 > WORDS;
    if long {
        lines.push(first.clone());
    }
    for (n, words) in words.iter().enumerate() {
        let begin = if n == 0 && !long { &first } else { &format!("    {line}") };
        let space = " ".repeat(WORDS.saturating_sub(begin.chars().count()));
        let before = lines.len();
        push_wrapped(&format!("{begin}{space}"), words, lines);
        // The line continues next to text of several lines.
        for wrapped in &mut lines[before + 1..] {
            wrapped.replace_range(4..5, line);
        }
    }
}

fn nanoseconds(value: &Measured) -> String {
    format!("{} ns, {}", format_saturated(value), age_in_words(value.age_seconds))
}

fn format_measured(value: &Measured) -> String {
    format!("{} ({})", format_saturated(value), age_in_words(value.age_seconds))
}

/// The largest number stands for anything larger.
fn format_saturated(value: &Measured) -> String {
    let more = if value.value == u32::MAX { " or more" } else { "" };
    format!("{}{more}", format_grouped(value.value.into()))
}

/// Adds a text after the prefix `begin`; further lines are indented to match.
pub(crate) fn push_wrapped(begin: &str, text: &str, lines: &mut Vec<String>) {
    let indent = begin.chars().count();
    let mut wrapped = words_in_lines(text, COLUMNS.saturating_sub(indent)).into_iter();
    lines.push((begin.to_owned() + &wrapped.next().unwrap_or_default()).trim_end().to_owned());
    lines.extend(wrapped.map(|line| " ".repeat(indent) + &line));
}

#[cfg(test)]
mod tests {
    use dta_proto::drop_reason::DropReason;

    use super::super::flow::{Congested, FlowDropCount, FlowExporter, FlowRoute, Queue, StoreAnswer};
    use super::*;

    fn measured(value: u32, age_seconds: Option<f64>) -> Option<Measured> {
        Some(Measured { value, time: 7, age_seconds })
    }

    fn hop(switch: Option<u32>, name: &str) -> Hop {
        Hop {
            switch,
            switch_name: (!name.is_empty()).then(|| name.to_owned()),
            latency: switch.and_then(|switch| measured(switch * 1000, Some(3.0))),
            ..Hop::default()
        }
    }

    fn report() -> FlowSummary {
        let mut first = hop(Some(6), "leaf1");
        (first.port, first.port_name, first.utilization) =
            (Some(12), Some("uplink".into()), measured(1000, None));
        first.queues = vec![
            Queue {
                queue: Some(5),
                occupancy: measured(6, Some(3.0)),
                congestion: measured(10, Some(400.0)),
            },
            Queue { queue: None, occupancy: measured(u32::MAX, Some(3.0)), congestion: None },
        ];
        FlowSummary {
            flow: "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap(),
            ends: Default::default(),
            at: None,
            found: true,
            path: Some(FlowRoute {
                store: "int-paths".into(),
                length: Some(15),
                complete: false,
                looped: true,
                agreeing: 1,
                copies: 2,
                age_seconds: Some(12.0),
            }),
            hops: vec![first, hop(None, ""), hop(Some(5), "a-switch-with-quite-a-long-name")],
            others: vec![hop(Some(9), "")],
            latency: measured(12_000, Some(3.0)),
            reports: Some(1234),
            packets: None,
            bytes: None,
            exporters: vec![FlowExporter {
                exporter: [192, 0, 2, 1].into(),
                exporter_name: Some("edge1".into()),
                packets: 1000,
                bytes: 1_500_000,
                records: 1,
            }],
            drops: vec![FlowDropCount {
                reason: DropReason::from_int(71),
                reason_source: "int",
                reason_name: Some("traffic-manager".into()),
                counted: Some(2),
                switches: vec![3, 4],
                age_seconds: Some(100.0),
            }],
            congested: Some(Congested {
                packets: 2,
                switch: Some(6),
                occupancy: Some(20),
                latency: Some(3000),
                age_seconds: Some(1.0),
            }),
            traced: None,
            stores: vec![
                StoreAnswer { store: "bytes".into(), counted: Some(1500), ..StoreAnswer::default() },
                StoreAnswer {
                    store: "a-long-name".into(),
                    path: Some(vec![Some(1), None]),
                    ..StoreAnswer::default()
                },
            ],
            unknown: vec![
                "A sentence that says what is unknown and that is so long that it does not fit.".into(),
            ],
        }
    }

    #[test]
    fn a_flow_is_drawn_as_a_path_within_80_columns() {
        let drawn = flow_lines(&report());
        assert!(drawn.iter().all(|line| line.chars().count() <= 80), "{drawn:#?}");
        insta::assert_snapshot!(drawn.join("\n"));
    }

    #[test]
    fn a_flow_of_which_nothing_is_known_says_so() {
        let mut report = report();
        report.found = false;
        report.unknown.clear();
        assert_eq!(
            flow_lines(&report),
            ["10.0.0.1:5000->10.0.0.2:5000/udp", "", "  Nothing is known about this flow."]
        );
    }

    #[test]
    fn a_hop_that_sends_flow_records_shows_the_faults_of_its_interface() {
        let counters = [("in-errors", 3), ("out-discards", 1200), ("out-octets", 9)].into();
        let exporter = Hop { latency: None, port: Some(4), counters, ..hop(Some(6), "") };
        let mut lines = Vec::new();
        draw_hop(&exporter, "│", &mut lines);
        assert_eq!(
            lines,
            [
                "    ● 6               latency unknown",
                "    │                 out of port 4",
                "    │                 of that port: in-errors 3, out-discards 1,200",
            ]
        );
    }
}
