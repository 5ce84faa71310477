//! Gauges of telemetry: what they are called, and that they have a bound whatever is sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_export::gauges::{GaugeLimits, Gauges};
use dta_export::metrics::MetricsPage;
use dta_export::names::Names;
use dta_export::schema::Schema;
use dta_export::source::EntryBatch;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Location, Means, Metric, TelemetryEntry, Why, list};

fn flow(n: u32) -> Flow {
    let src = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n));
    Flow { src, dst: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)), sport: 5000, dport: 80, proto: 6 }
}

fn change(metric: Metric, key: Key, new: u64) -> TelemetryEntry {
    TelemetryEntry::Change {
        time: 1,
        key,
        metric,
        why: Why::New,
        old: 0,
        new,
        place: Location::default(),
        path: None,
    }
}

fn changes(entries: Vec<TelemetryEntry>) -> EntryBatch {
    EntryBatch { list: list::CHANGES, sequence: 1, entries, ..EntryBatch::default() }
}

fn keys(entries: Vec<TelemetryEntry>) -> EntryBatch {
    EntryBatch { list: list::KEYS, sequence: 1, entries, ..EntryBatch::default() }
}

/// The lines of a page that are no comments and begin with one of these.
fn lines(gauges: &mut Gauges, now: Instant, begin: &[&str]) -> Vec<String> {
    let mut page = MetricsPage::default();
    gauges.add_to_page(&mut page, now);
    let text = page.into_text();
    let chosen = text.lines().filter(|line| begin.iter().any(|begin| line.starts_with(begin)));
    chosen.map(Into::into).collect()
}

#[test]
fn every_metric_has_its_gauge_in_both_schemas() {
    let now = Instant::now();
    let f = flow(1);
    let entries = vec![
        change(Metric::FlowPath, f.to_key(), 3),
        change(Metric::FlowLatency, f.to_key(), 408),
        change(Metric::HopLatency, telemetry::hop_latency_key(&f, 4), 400),
        change(Metric::QueueOccupancy, telemetry::queue_occupancy_key(4, None, Some(7)), 40),
        change(Metric::QueueCongestion, telemetry::queue_congestion_key(4, Some(2), Some(7)), 1),
        change(Metric::LinkUtilization, telemetry::link_utilization_key(4, Some(2)), 50),
        TelemetryEntry::Drop {
            time: 1,
            key: f.to_key(),
            place: Location { switch: Some(4), ..Location::default() },
            ingress_port: None,
            reason: DropReason::from_int(71),
        },
        TelemetryEntry::Congestion {
            time: 1,
            key: f.to_key(),
            place: Location { switch: Some(4), port: Some(2), queue: Some(7) },
            occupancy: Some(9),
            latency: None,
        },
    ];
    let page_lines = |schema| {
        let mut gauges = Gauges::new(schema, GaugeLimits::default(), Arc::new(Names::empty()));
        gauges.take(&changes(entries.clone()), now);
        // The key of the hop comes after the event about it.
        let unnamed = lines(&mut gauges, now, &["dta_int_unnamed"]);
        assert_eq!(unnamed, ["dta_int_unnamed_series 1"]);
        let hop =
            TelemetryEntry::Key { key: telemetry::hop_latency_key(&f, 4), means: Means::Hop(f.to_key(), 4) };
        gauges.take(&keys(vec![hop]), now);
        assert_eq!(lines(&mut gauges, now, &["dta_int_unnamed"]), ["dta_int_unnamed_series 0"]);
        lines(&mut gauges, now, &["dta_int_", "flow_", "tx_", "queue_"])
    };
    let f = "flow=\"10.0.0.1:5000->10.9.0.1:80/tcp\",src=\"10.0.0.1\",sport=\"5000\",dst=\"10.9.0.1\",dport=\"80\",proto=\"6\"";
    assert_eq!(
        page_lines(Schema::Tags),
        [
            "dta_int_congested_packets_total{switch=\"4\",port=\"2\",queue=\"7\"} 1".to_owned(),
            "dta_int_dropped_packets_total{switch=\"4\",reason=\"71\"} 1".into(),
            "dta_int_events_total{list=\"changes\"} 8".into(),
            "dta_int_events_total{list=\"congestion\"} 0".into(),
            "dta_int_events_total{list=\"drops\"} 0".into(),
            "dta_int_events_total{list=\"keys\"} 1".into(),
            format!("dta_int_flow_hops{{{f}}} 3.0"),
            format!("dta_int_flow_latency_seconds{{{f}}} 4.08e-7"),
            format!("dta_int_hop_latency_seconds{{{f},switch=\"4\"}} 4e-7"),
            "dta_int_left_out_events_total 0".into(),
            "dta_int_link_utilization{switch=\"4\",port=\"2\"} 50.0".into(),
            "dta_int_queue_congestion{switch=\"4\",port=\"2\",queue=\"7\"} 1.0".into(),
            "dta_int_queue_occupancy{switch=\"4\",queue=\"7\"} 40.0".into(),
            "dta_int_unnamed_series 0".into(),
        ]
    );
    let f = "src_ip=\"10.0.0.1\",src_port=\"5000\",dst_ip=\"10.9.0.1\",dst_port=\"80\",ip_proto=\"6\"";
    assert_eq!(
        page_lines(Schema::IntCollector),
        [
            "dta_int_events_total{list=\"changes\"} 8".to_owned(),
            "dta_int_events_total{list=\"congestion\"} 0".into(),
            "dta_int_events_total{list=\"drops\"} 0".into(),
            "dta_int_events_total{list=\"keys\"} 1".into(),
            "dta_int_left_out_events_total 0".into(),
            "dta_int_unnamed_series 0".into(),
            format!("flow_hop_latency{{{f},sw_id=\"4\"}} 400.0"),
            format!("flow_latency{{{f}}} 408.0"),
            "queue_occup{sw_id=\"4\",q_id=\"7\"} 40.0".into(),
            "tx_utilize{sw_id=\"4\",p_id=\"2\"} 50.0".into(),
        ]
    );
}

#[test]
fn names_are_labels_beside_the_numbers_and_can_be_left_out() {
    let now = Instant::now();
    let file =
        "[switch.4]\nname = \"leaf1\"\ndrop-reasons = \"fabric-tna-1.0\"\n[switch.4.port]\n2 = \"uplink\"\n";
    let file = Names::parse(file, std::path::Path::new("names.toml")).unwrap();
    let place = Location { switch: Some(4), port: Some(2), queue: Some(7) };
    let dropped = |switch, reason| TelemetryEntry::Drop {
        time: 1,
        key: Key::default(),
        place: Location { switch: Some(switch), ..place },
        ingress_port: None,
        reason,
    };
    let of = flow(1);
    let hop = telemetry::hop_latency_key(&of, 4);
    let entries = vec![
        change(Metric::LinkUtilization, telemetry::link_utilization_key(4, Some(2)), 50),
        change(Metric::QueueOccupancy, telemetry::queue_occupancy_key(4, Some(2), Some(7)), 40),
        change(Metric::HopLatency, hop, 400),
        dropped(4, DropReason::from_int(133)),
        dropped(5, DropReason::from_int(133)),
        dropped(5, DropReason::from_int(1)),
        dropped(5, DropReason::from_sflow(1)),
        dropped(5, DropReason::from_sflow(269)),
        TelemetryEntry::Congestion { time: 1, key: Key::default(), place, occupancy: None, latency: None },
    ];
    let page_lines = |schema, names| {
        let mut gauges = Gauges::new(schema, GaugeLimits::default(), Arc::new(names));
        gauges.take(&keys(vec![TelemetryEntry::Key { key: hop, means: Means::Hop(of.to_key(), 4) }]), now);
        gauges.take(&changes(entries.clone()), now);
        let metrics = ["link", "queue_occ", "hop", "dropped", "congested"].map(|of| format!("dta_int_{of}"));
        let begin: Vec<&str> = metrics.iter().map(String::as_str).chain(["tx_"]).collect();
        lines(&mut gauges, now, &begin)
    };
    let (leaf, port) = ("switch_name=\"leaf1\"", "port_name=\"uplink\"");
    let f = "flow=\"10.0.0.1:5000->10.9.0.1:80/tcp\",src=\"10.0.0.1\",sport=\"5000\",dst=\"10.9.0.1\",dport=\"80\",proto=\"6\"";
    let mut named = [
        format!("dta_int_congested_packets_total{{switch=\"4\",port=\"2\",queue=\"7\",{leaf},{port}}} 1"),
        format!("dta_int_dropped_packets_total{{switch=\"4\",{leaf},reason=\"133\",reason_name=\"upf-uplink-pdr-miss\"}} 1"),
        "dta_int_dropped_packets_total{switch=\"5\",reason=\"133\",reason_name=\"upf-downlink-session-drop\"} 1".into(),
        "dta_int_dropped_packets_total{switch=\"5\",reason=\"1\"} 1".into(),
        "dta_int_dropped_packets_total{switch=\"5\",reason=\"1\",reason_name=\"host-unreachable\",reason_source=\"sflow\"} 1".into(),
        "dta_int_dropped_packets_total{switch=\"5\",reason=\"269\",reason_name=\"blackhole-route\",reason_source=\"sflow\"} 1".into(),
        format!("dta_int_hop_latency_seconds{{{f},switch=\"4\",{leaf}}} 4e-7"),
        format!("dta_int_link_utilization{{switch=\"4\",port=\"2\",{leaf},{port}}} 50.0"),
        format!("dta_int_queue_occupancy{{switch=\"4\",port=\"2\",queue=\"7\",{leaf},{port}}} 40.0"),
    ];
    let mut of_tags = page_lines(Schema::Tags, file.clone());
    named.sort();
    of_tags.sort();
    assert_eq!(of_tags, named);
    assert!(page_lines(Schema::Tags, Names::empty()).iter().all(|line| !line.contains("_name=")));
    assert_eq!(page_lines(Schema::IntCollector, file), ["tx_utilize{sw_id=\"4\",p_id=\"2\"} 50.0"]);
}

#[test]
fn random_flows_stay_under_the_bound_and_those_that_are_there_stay() {
    let limits = GaugeLimits { series: 500, keep_seconds: 60 };
    let mut gauges = Gauges::new(Schema::Tags, limits, Arc::default());
    let start = Instant::now();
    let good = flow(0);
    gauges.take(&changes(vec![change(Metric::FlowLatency, good.to_key(), 1)]), start);
    // 200,000 flows, of IPv6 and IPv4, each with a hop, a queue, a link and a drop of its own.
    let mut longest = 0;
    for n in 0..10_000_u32 {
        let now = start + Duration::from_millis(n.into());
        let mut batch = Vec::new();
        for m in 0..20 {
            let n = 1 + 20 * n + m;
            let f = match n % 2 {
                0 => flow(n),
                _ => Flow { src: IpAddr::V6(Ipv6Addr::from(u128::from(n))), ..flow(0) },
            };
            let place = Location { switch: Some(n), port: Some(n), queue: Some(n) };
            batch.extend([
                change(Metric::FlowPath, f.to_key(), 1),
                change(Metric::FlowLatency, f.to_key(), 1),
                change(Metric::HopLatency, telemetry::hop_latency_key(&f, n), 1),
                change(Metric::QueueOccupancy, telemetry::queue_occupancy_key(n, Some(n), Some(n)), 1),
                change(Metric::LinkUtilization, telemetry::link_utilization_key(n, Some(n)), 1),
                TelemetryEntry::Drop {
                    time: 1,
                    key: f.to_key(),
                    place,
                    ingress_port: None,
                    reason: DropReason::from_int(n as u8),
                },
                TelemetryEntry::Congestion {
                    time: 1,
                    key: f.to_key(),
                    place,
                    occupancy: None,
                    latency: None,
                },
            ]);
        }
        gauges.take(&changes(batch), now);
        longest = longest.max(gauges.series_count());
    }
    assert!(longest <= 8 * 500, "{longest} series");
    let now = start + Duration::from_secs(10);
    let mut page = MetricsPage::default();
    gauges.add_to_page(&mut page, now);
    assert!(page.series_count() <= 8 * 500 + 16, "{} series", page.series_count());
    // The earlier one is still there, and goes on.
    let latency = "dta_int_flow_latency_seconds{flow=\"10.0.0.0:5000->";
    gauges.take(&changes(vec![change(Metric::FlowLatency, good.to_key(), 2_000_000_000)]), now);
    let found = lines(&mut gauges, now, &[latency]);
    assert!(found.len() == 1 && found[0].ends_with(" 2.0"), "{found:?}");
    let left_out = lines(&mut gauges, now, &["dta_int_left_out_events_total "]);
    let left_out: u64 = left_out[0].split(' ').next_back().unwrap().parse().unwrap();
    assert!(left_out > 7 * 200_000 - 8 * 500, "{left_out}");
    // Old series leave, those of the attack too, and others find room.
    let later = now + Duration::from_secs(61);
    gauges.take(&changes(vec![change(Metric::FlowLatency, flow(7).to_key(), 3)]), later);
    assert_eq!(gauges.series_count(), 1);
}

/// Anyone who can send packets can make up flows, and so keys in the directory: more than it holds.
#[test]
fn a_flood_of_flows_takes_no_name_from_a_series_that_is_there() {
    let mut gauges = Gauges::new(Schema::Tags, GaugeLimits::default(), Arc::default());
    let now = Instant::now();
    let v6 = |n: u32| Flow { src: IpAddr::V6(Ipv6Addr::from(u128::from(n))), ..flow(0) };
    // As for a report of a new flow of one hop: the hop comes before its flow.
    let mut report = |f: &Flow| {
        let hop = telemetry::hop_latency_key(f, 4);
        gauges.take(&changes(vec![change(Metric::HopLatency, hop, 400)]), now);
        let of_hop = TelemetryEntry::Key { key: hop, means: Means::Hop(f.to_key(), 4) };
        let means = if f.src.is_ipv4() { Means::Itself } else { Means::Flow(*f) };
        gauges.take(&keys(vec![of_hop, TelemetryEntry::Key { key: f.to_key(), means }]), now);
    };
    (0..5).for_each(|n| report(&flow(n)));
    (0..5).for_each(|n| report(&v6(n)));
    (1_000..121_000).for_each(|n| report(&if n % 2 == 0 { flow(n) } else { v6(n) }));
    let named = lines(&mut gauges, now, &["dta_int_hop_latency_seconds{"]);
    for f in (0..5).map(flow).chain((0..5).map(v6)) {
        let f = format!("flow=\"{f}\"");
        assert!(named.iter().any(|line| line.contains(&f)), "{f} left");
    }
    assert_eq!(named.len(), 2000);
}
