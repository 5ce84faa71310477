//! Draws a flow's path, for a terminal of 80 columns.

use dta_cli::number::{format_count, format_grouped};

use super::flow::{ClockKind, FlowTrace, FlowTracePoint, Segment, TransitTimes};
use crate::int::draw::{endpoint_text, push_wrapped};
use crate::int::moment::{age_in_seconds, age_in_words, now};

/// What is known about a flow, in lines.
pub fn trace_lines(report: &FlowTrace) -> Vec<String> {
    let mut lines = vec![report.flow.to_string(), String::new()];
    if !report.found {
        lines.push("  No host reported this flow.".into());
    } else {
        push_facts(report, &mut lines);
        if !report.points.is_empty() {
            lines.push(String::new());
            push_path(report, &mut lines);
        }
        let others: Vec<&Segment> = report.segments.iter().filter(|segment| !segment.on_way).collect();
        if !others.is_empty() {
            lines.push(String::new());
            lines.push("  Between other points:".into());
            for segment in others {
                push_wrapped(
                    &format!("    {} to {}: ", segment.from, segment.to),
                    &segment_words(segment),
                    &mut lines,
                );
            }
        }
    }
    if !report.lacks.is_empty() {
        lines.push(String::new());
        lines.push("  Unknown:".into());
        report.lacks.iter().for_each(|sentence| push_wrapped("  - ", sentence, &mut lines));
    }
    lines
}

fn push_facts(report: &FlowTrace, lines: &mut Vec<String>) {
    let mut fact = |name: &str, what: String| push_wrapped(&format!("  {name:11}"), &what, lines);
    let more = match report.sampled - report.with_path {
        0 => String::new(),
        without => format!(", and {} whose points are no longer known", format_grouped(without)),
    };
    fact("packets", format!("{} sampled{more}", format_grouped(report.with_path)));
    if let Some(way) = report.ways.first() {
        let others: u64 = report.ways[1..].iter().map(|way| way.packets).sum();
        let others = match (others, report.ways.len() - 1) {
            (0, _) => String::new(),
            (packets, 1) => format!(", {} another way", format_grouped(packets)),
            (packets, ways) => format!(", {} on {ways} other ways", format_grouped(packets)),
        };
        fact(
            "way",
            format!(
                "{}, {}{others}",
                format_count(way.hops.len() as u64, "point", "points"),
                format_packets(way.packets)
            ),
        );
    }
    if let Some(total) = &report.total {
        fact("in all", format_times(total, report.total_bound));
    }
    if report.drops.is_empty() {
        fact("drops", "none known".into());
    }
    for drops in &report.drops {
        let host = format_host(drops.host_name.as_deref(), drops.host);
        let why = match (&drops.reason_name, drops.reason) {
            (Some(name), Some(number)) => format!("{name} ({number})"),
            (None, Some(number)) => format!("reason {number}"),
            (_, None) => "for any reason".to_owned(),
        };
        let count = drops.counted.unwrap_or(drops.listed);
        let last = match drops.listed {
            0 => String::new(),
            _ => format!(", the last {}", age_in_words(drops.age_seconds)),
        };
        let of = if drops.reason.is_some() { " of sampled packets" } else { "" };
        fact("drops", format!("{}{of}: {why}, in host {host}{last}", format_grouped(count)));
    }
    for slow in &report.slow {
        let host = format_host(slow.host_name.as_deref(), slow.host);
        let (from, to) = slow.between;
        fact(
            "slow",
            format!(
                "{} in host {host}, the longest {} ns from {from} to {to}, the last {}",
                format_packets(slow.packets),
                format_grouped(slow.most),
                age_in_words(slow.age_seconds)
            ),
        );
    }
    for size in &report.sizes {
        let hosts = format_count(size.hosts.into(), "host", "hosts");
        let ended = (size.began + u64::from(size.seconds)).saturating_mul(1_000_000_000);
        let when = age_in_words(age_in_seconds(ended, now()));
        let bytes = format_count(size.bytes, "byte", "bytes");
        fact("size", format!("at most {bytes} in the {} s that ended {when}, by {hosts}", size.seconds));
    }
    for clock in &report.clocks {
        let host = format_host(clock.host_name.as_deref(), clock.host);
        let within = clock.bound.map(|bound| format!("within {} ns", format_grouped(bound)));
        match clock.clock {
            ClockKind::Fitted => {
                let within = within.map_or(String::new(), |within| format!(", {within}"));
                fact(
                    "clock",
                    format!("that of host {host} was fitted by packets in both directions{within}"),
                );
            }
            ClockKind::Synchronized => {
                let within = within.map_or("error unknown".into(), |within| {
                    format!("{within}, by packets in both directions")
                });
                fact("clock", format!("that of host {host} is kept by PTP, {within}"));
            }
            ClockKind::Same | ClockKind::Unknown => {}
        }
    }
}

fn push_path(report: &FlowTrace, lines: &mut Vec<String>) {
    let flow = &report.flow;
    let hops = report.ways.first().map(|way| way.hops.as_slice()).unwrap_or_default();
    lines.push(format!("    {}", endpoint_text(flow.src, flow.sport)));
    lines.push("    │".into());
    let mut before: Option<&FlowTracePoint> = None;
    let on_way = hops.iter().filter_map(|hop| report.points.iter().find(|point| point.hop == *hop));
    for point in on_way {
        if let Some(before) = before {
            let segment = report.segments.iter().find(|s| (s.from, s.to) == (before.hop, point.hop));
            // Between hosts, the line is dotted.
            let line = if before.host == point.host { '│' } else { '┊' };
            let words = segment.map_or_else(String::new, segment_words);
            let first = lines.len();
            push_wrapped(&format!("    {line}     "), &words, lines);
            for wrapped in &mut lines[first + 1..] {
                wrapped.replace_range(4..5, &line.to_string());
            }
        }
        draw_point(point, lines);
        before = Some(point);
    }
    lines.push("    │".into());
    lines.push(format!("    {}", endpoint_text(flow.dst, flow.dport)));
    let others: Vec<&FlowTracePoint> =
        report.points.iter().filter(|point| !hops.contains(&point.hop)).collect();
    if !others.is_empty() {
        lines.push(String::new());
        lines.push("  Other points:".into());
        others.iter().for_each(|point| draw_point(point, lines));
    }
}

fn draw_point(point: &FlowTracePoint, lines: &mut Vec<String>) {
    let name = point.name.as_deref().unwrap_or("a point");
    let host = match point.host {
        Some(number) => format!(" of {}", format_host(point.host_name.as_deref(), number)),
        None => String::new(),
    };
    let counted = match (point.packets, point.bytes) {
        (Some(count), Some(bytes)) => {
            format!(": {}, {}", format_packets(count), format_count(bytes, "byte", "bytes"))
        }
        _ => String::new(),
    };
    push_wrapped(&format!("    ● {:<3} ", point.hop), &format!("{name}{host}{counted}"), lines);
}

fn segment_words(segment: &Segment) -> String {
    match &segment.times {
        Some(of) if of.packets == segment.packets => {
            format!("{}, {}", format_times(of, segment.bound), format_packets(segment.packets))
        }
        Some(of) => {
            format!(
                "{}, {} of {}",
                format_times(of, segment.bound),
                format_grouped(of.packets),
                format_packets(segment.packets)
            )
        }
        None => format!("{}, times unknown", format_packets(segment.packets)),
    }
}

fn format_times(times: &TransitTimes, bound: Option<u64>) -> String {
    let number = |n: i64| {
        if n < 0 { format!("-{}", format_grouped(n.unsigned_abs())) } else { format_grouped(n as u64) }
    };
    let bound = bound.map_or(String::new(), |bound| format!(" (± {})", format_grouped(bound)));
    format!(
        "median {} ns, 99 % {}, max {}{bound}",
        number(times.median),
        number(times.p99),
        number(times.most)
    )
}

fn format_packets(count: u64) -> String {
    format_count(count, "packet", "packets")
}

fn format_host(name: Option<&str>, number: u16) -> String {
    name.map_or_else(|| number.to_string(), |name| format!("{name} ({number})"))
}

#[cfg(test)]
mod tests {
    use super::super::flow::{FlowPath, FlowSize, HostClock, HostDropCount, Slow};
    use super::*;

    fn point(hop: u8, host: u16, name: &str) -> FlowTracePoint {
        let (name, host_name) = (Some(name.to_owned()), Some(format!("node{host}")));
        let (sampled, packets, bytes) = (1000, Some(64_000), Some(6_400_000));
        FlowTracePoint { hop, name, host: Some(host), host_name, sampled, packets, bytes }
    }

    fn times(most: i64) -> Option<TransitTimes> {
        Some(TransitTimes { packets: 998, least: -20, median: most / 4, p99: most / 2, most })
    }

    fn segment(from: u8, to: u8, clock: ClockKind) -> Segment {
        let times = if clock == ClockKind::Unknown { None } else { times(1_234_567) };
        let bound = (clock == ClockKind::Fitted).then_some(12_345);
        let on_way = to == from + 1;
        Segment { from, to, on_way, packets: 998, times, clock, bound, of_host: None }
    }

    fn clock(host: u16, clock: ClockKind, bound: Option<u64>) -> HostClock {
        HostClock { host, host_name: Some(format!("node{host}")), clock, bound, why_not: None }
    }

    fn report() -> FlowTrace {
        FlowTrace {
            flow: "10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap(),
            found: true,
            sampled: 1000,
            with_path: 998,
            points: vec![
                point(0, 1, "netns:pod1/iface:eth0 in"),
                point(1, 1, "iface:eth0 out"),
                point(2, 2, "iface:a-quite-long-name in"),
                point(4, 2, "tp:net_dev_queue"),
            ],
            ways: vec![
                FlowPath { hops: vec![0, 1, 2], packets: 990 },
                FlowPath { hops: vec![0, 2], packets: 8 },
            ],
            segments: vec![
                segment(0, 1, ClockKind::Same),
                segment(1, 2, ClockKind::Fitted),
                segment(0, 2, ClockKind::Unknown),
            ],
            total: times(2_000_000),
            total_bound: Some(12_345),
            sizes: vec![FlowSize { began: 1_795_323_660, seconds: 10, bytes: 6_400_000, hosts: 2 }],
            drops: vec![
                HostDropCount {
                    host: 1,
                    host_name: Some("node1".into()),
                    reason: None,
                    reason_name: None,
                    counted: Some(24),
                    listed: 0,
                    age_seconds: None,
                },
                HostDropCount {
                    host: 1,
                    host_name: Some("node1".into()),
                    reason: Some(64),
                    reason_name: Some("QDISC_DROP".into()),
                    counted: Some(3),
                    listed: 3,
                    age_seconds: Some(3.0),
                },
            ],
            slow: vec![Slow {
                host: 2,
                host_name: None,
                packets: 1,
                most: 30_200_000,
                between: (2, 4),
                age_seconds: Some(100.0),
            }],
            clocks: vec![
                clock(2, ClockKind::Fitted, Some(12_345)),
                clock(3, ClockKind::Synchronized, Some(321)),
                clock(4, ClockKind::Synchronized, None),
            ],
            lacks: vec![
                "A sentence that says what is missing and that is too long for a single line of text.".into(),
            ],
        }
    }

    #[test]
    fn a_way_is_drawn_within_80_columns() {
        let drawn = trace_lines(&report());
        assert!(drawn.iter().all(|line| line.chars().count() <= 80), "{drawn:#?}");
        let all = drawn.join("\n");
        for words in [
            "  packets    998 sampled, and 2 whose points are no longer known",
            "  way        3 points, 990 packets, 8 another way",
            "  in all     median 500,000 ns, 99 % 1,000,000, max 2,000,000 (± 12,345)",
            "  size       at most 6,400,000 bytes in the 10 s that ended ",
            "  clock      that of host node2 (2) was fitted by packets in both directions,\n             within 12,345 ns",
            "  clock      that of host node3 (3) is kept by PTP, within 321 ns, by packets in\n             both directions",
            "  clock      that of host node4 (4) is kept by PTP, error unknown",
            "  drops      24: for any reason, in host node1 (1)",
            "  drops      3 of sampled packets: QDISC_DROP (64), in host node1 (1), the last\n             3 s ago",
            "    10.0.0.1:5000\n    │\n    ● 0   netns:pod1/iface:eth0 in of node1 (1): 64,000 packets, 6,400,000 bytes",
            "    │     median 308,641 ns, 99 % 617,283, max 1,234,567, 998 packets\n    ● 1   ",
            "    ┊     median 308,641 ns, 99 % 617,283, max 1,234,567 (± 12,345), 998",
            "    │\n    10.0.0.2:80\n",
            "  Other points:\n    ● 4   tp:net_dev_queue of node2 (2)",
            "    0 to 2: 998 packets, times unknown",
        ] {
            assert!(all.contains(words), "{words}\n{all}");
        }
    }

    #[test]
    fn a_flow_that_nobody_reported_says_so() {
        let mut report = report();
        (report.found, report.lacks) = (false, Vec::new());
        assert_eq!(
            trace_lines(&report),
            ["10.0.0.1:5000->10.0.0.2:80/tcp", "", "  No host reported this flow."]
        );
    }
}
