//! Packets of hosts as traces, over HTTP, against a server that records what it is sent. `manager/tests/trace.rs` has a real
//! collector.

use std::sync::Arc;
use std::time::Duration;

use dta_export::config::{Config, Otlp, Signal, TraceSelection};
use dta_export::events::Events;
use dta_export::hosts::journey::HostTrace;
use dta_export::hosts::reader::HostReader;
use dta_export::source::{Begin, EventSource, LISTS, SourceOptions};
use dta_proto::key::{Flow, Key};
use dta_proto::trace::{HOPS, Named, PacketSighting, TraceEntry, TraceName, list, path_key, store};
use dta_rpc::Ask;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use crate::lists::Lists;
use crate::recorder::{Bed, Recorder, counted, end, until};
use crate::traces::{at, flow, number, spans};

fn bed(url: &str, host_traces: TraceSelection) -> Bed {
    Bed::new(|folder| {
        let otlp = Otlp {
            url: url.to_owned(),
            signals: vec![Signal::HostTraces],
            host_traces,
            spool: Some(folder.join("spool")),
            ..Otlp::default()
        };
        Config { otlp: Some(otlp), ..Config::default() }
    })
}

fn all() -> TraceSelection {
    TraceSelection { one_in: 1, ..TraceSelection::default() }
}

fn append(lists: &Lists, entries: &[TraceEntry]) {
    let bytes = entries.iter().map(|entry| entry.to_bytes().to_vec()).collect();
    lists.put_in(store::EVENTS, entries[0].list_number(), bytes);
}

/// What two hosts say of themselves: the first has the points 0, 1 and 2, the second 6 and 7, and one where packets are
/// dropped.
fn names(lists: &Lists) {
    let name = |host, of, number, name| {
        append(lists, &[TraceEntry::Name { time: at(0), host, of, number, name: TraceName::new(name) }]);
    };
    name(1, Named::Host, 0, "node1");
    name(1, Named::Point, 0, "netns:pod1/iface:eth0");
    name(1, Named::Point, 1, "tp:net_dev_queue");
    name(1, Named::Point, 2, "iface:eth0");
    name(2, Named::Host, 0, "node2");
    name(2, Named::Point, 6, "iface:eth1");
    name(2, Named::Point, 7, "tp:netif_receive_skb");
    name(2, Named::Point, 128, "tp:kfree_skb");
    name(2, Named::Reason, 64, "QDISC_DROP");
}

/// A packet of a flow.
#[derive(Clone, Copy)]
struct Of {
    flow: Key,
    digest: u64,
    left: u64,
    synced: bool,
}

fn of(flow: &Flow, digest: u64) -> Of {
    Of { flow: flow.to_key(), digest, left: digest, synced: true }
}

impl Of {
    fn seen(&self, host: u16, hop: u8, time: u64) -> PacketSighting {
        let Of { flow, digest, synced, .. } = *self;
        PacketSighting { time: at(time), flow, digest, host, hop, synced, length: 84 }
    }

    /// Writes what a host saw of it, as hosts do: where it was first, and all points.
    fn passes(&self, lists: &Lists, host: u16, stops: &[(u8, u64)]) {
        let seen = self.seen(host, stops[0].0, stops[0].1);
        append(lists, &[TraceEntry::Packet { seen, points: stops.len() as u8, left: self.left }]);
        let mut row = [None; HOPS as usize];
        for (hop, time) in stops {
            row[usize::from(*hop)] = Some(at(*time) as u32);
        }
        lists.path(&path_key(self.digest, host).0, &row);
    }

    fn is_dropped(&self, lists: &Lists, host: u16, time: u64) {
        append(lists, &[TraceEntry::Drop { seen: self.seen(host, 128, time), reason: 64, interface: 3 }]);
    }
}

const HERE: [(u8, u64); 3] = [(0, 1000), (1, 3000), (2, 4000)];
const THERE: [(u8, u64); 2] = [(6, 24_000), (7, 26_000)];

/// What is exported of the lists, by the spans, and the counters of these names.
async fn exported<const N: usize>(bed: &Bed, server: &Recorder, names: [&str; N]) -> (Vec<Span>, [u64; N]) {
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    let counts = names.map(|name| counted(&exporters, name));
    exporters.stop_exporters().await;
    (spans(server), counts)
}

fn text(span: &Span, name: &str) -> Option<String> {
    match span.attributes.iter().find(|one| one.key == name)?.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::ArrayValue(all) => {
            let texts = all.values.iter().map(|one| match &one.value {
                Some(Value::StringValue(text)) => text.clone(),
                other => panic!("{name}: {other:?}"),
            });
            Some(texts.collect::<Vec<_>>().join("; "))
        }
        other => panic!("{name}: {other:?}"),
    }
}

fn times(spans: &[Span]) -> Vec<(u64, u64)> {
    let since = |time: u64| time - at(0);
    spans.iter().map(|span| (since(span.start_time_unix_nano), since(span.end_time_unix_nano))).collect()
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32)
}

#[tokio::test]
async fn a_packet_is_a_span_with_a_child_for_each_stage_between_points() {
    let server = Recorder::start(&["503 Away|", "200 OK|"]);
    let bed = bed(&server.url, all());
    names(&bed.lists);
    let (flow, digest) = (flow(1), 0x0102_0304_0506_0708);
    let packet = of(&flow, digest);
    // In no order.
    packet.is_dropped(&bed.lists, 2, 29_000);
    packet.passes(&bed.lists, 2, &THERE);
    packet.passes(&bed.lists, 1, &HERE);
    let counters = ["events", "made", "delivered", "skipped", "retried", "without_path"];
    let (spans, counts) = exported(&bed, &server, counters).await;
    assert_eq!(counts, [1, 1, 1, 0, 1, 0]);
    let asked = server.asked();
    assert_eq!((asked.len(), &asked[0]), (2, &asked[1]));
    assert!(asked[0].head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{}", asked[0].head);
    let spans = &spans[spans.len() / 2..];
    let named: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    let of_flow = flow.to_string();
    let stages = [
        of_flow.as_str(),
        "netns:pod1/iface:eth0 to tp:net_dev_queue",
        "tp:net_dev_queue to iface:eth0",
        "iface:eth0 to iface:eth1",
        "iface:eth1 to tp:netif_receive_skb",
        "tp:netif_receive_skb to tp:kfree_skb",
    ];
    assert_eq!(named, stages);
    let parts = [(1000, 3000), (3000, 4000), (4000, 24_000), (24_000, 26_000), (26_000, 29_000)];
    assert_eq!(times(spans), [&[(1000, 29_000)], &parts[..]].concat());
    let trace_id = [at(1000).to_be_bytes(), digest.to_be_bytes()].concat();
    for (n, span) in (1u64..).zip(spans) {
        let parent = if n == 1 { Vec::new() } else { 1u64.to_be_bytes().to_vec() };
        assert_eq!((&span.trace_id, &span.parent_span_id), (&trace_id, &parent), "{n}");
        assert_eq!(span.span_id, n.to_be_bytes());
    }
    let whole = &spans[0];
    assert_eq!(
        ["source.address", "network.type", "network.transport", "dta.digest", "dta.flow"]
            .map(|name| text(whole, name).unwrap()),
        ["10.0.0.1", "ipv4", "udp", "0102030405060708", &of_flow]
    );
    assert_eq!(
        text(whole, "dta.path").unwrap(),
        "netns:pod1/iface:eth0 of node1 (1); tp:net_dev_queue of node1 (1); iface:eth0 of node1 (1); \
         iface:eth1 of node2 (2); tp:netif_receive_skb of node2 (2)"
    );
    assert_eq!(text(whole, "dta.lacks"), None);
    assert_eq!(
        ["destination.port", "dta.length"].map(|name| number(&whole.attributes, name)),
        [Some(5000), Some(84)]
    );
    let stage = |n: usize| (text(&spans[n], "host.id"), text(&spans[n], "host.name"));
    let host = |id: &str, name: &str| (Some(id.to_owned()), Some(name.to_owned()));
    assert_eq!([1, 3, 5].map(stage), [host("1", "node1"), (None, None), host("2", "node2")]);
    assert_eq!(
        ["dta.from_host", "dta.to_host", "dta.clock"].map(|name| text(&spans[3], name).unwrap()),
        ["node1 (1)", "node2 (2)", "kept"]
    );
    assert_eq!([1, 3, 5].map(|n| number(&spans[n].attributes, "dta.latency").unwrap()), [2000, 20_000, 3000]);
    assert_eq!([1, 3, 5].map(|n| number(&spans[n].attributes, "dta.to").unwrap()), [1, 6, 128]);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|n| is_error(&spans[n])), [true, false, false, false, false, true]);
    let dropped = &spans[5];
    assert_eq!(dropped.status.as_ref().unwrap().message, "dropped: QDISC_DROP (64), in host node2 (2)");
    assert_eq!(dropped.status, whole.status);
    assert_eq!(
        (text(dropped, "error.type"), number(&dropped.attributes, "dta.reason")),
        (Some("QDISC_DROP".to_owned()), Some(64))
    );
}

#[tokio::test]
async fn what_is_not_known_of_a_packet_is_said() {
    let server = Recorder::start(&["200 OK|"]);
    let bed = bed(&server.url, all());
    names(&bed.lists);
    let packet = Of { synced: false, ..of(&flow(1), 7) };
    packet.passes(&bed.lists, 1, &HERE);
    packet.passes(&bed.lists, 2, &THERE);
    // Nothing is left of what the second host saw of it.
    let other = of(&flow(2), 8);
    other.passes(&bed.lists, 1, &[(0, 101_000), (1, 103_000)]);
    let seen = other.seen(2, 6, 124_000);
    append(&bed.lists, &[TraceEntry::Packet { seen, points: 2, left: 8 }]);
    // One of three points.
    let third = of(&flow(3), 9);
    third.passes(&bed.lists, 1, &[(0, 201_000)]);
    let mut row = [None; HOPS as usize];
    (row[0], row[1]) = (Some(at(301_000) as u32), Some(at(302_000) as u32));
    let fourth = of(&flow(4), 10);
    let seen = fourth.seen(1, 0, 301_000);
    append(&bed.lists, &[TraceEntry::Packet { seen, points: 3, left: 10 }]);
    bed.lists.path(&path_key(10, 1).0, &row);
    // Dropped before any point saw it, and of a flow whose key has no address.
    let fifth = Of { flow: Key([9; 16]), ..of(&flow(5), 11) };
    fifth.is_dropped(&bed.lists, 2, 401_000);
    let (spans, counts) = exported(&bed, &server, ["made", "without_path"]).await;
    assert_eq!(counts, [5, 3]);
    let whole: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id.is_empty()).collect();
    let lacks: Vec<_> = whole.iter().map(|span| text(span, "dta.lacks")).collect();
    let clock = lacks[0].clone().unwrap();
    assert!(clock.starts_with("The clock difference of host node1 (1) is unknown ("), "{clock}");
    assert_eq!(
        lacks[1..],
        [
            Some(
                "The points of host node2 (2) are no longer known: a later packet overwrote them.".to_owned()
            ),
            None,
            Some("Host node1 (1) saw it at 3 points, 1 of which are no longer known.".to_owned()),
            None,
        ]
    );
    // The stage between the hosts has no length, and says why.
    let between = spans.iter().find(|span| span.name == "iface:eth0 to iface:eth1").unwrap();
    assert_eq!(times(std::slice::from_ref(between)), [(4000, 4000)]);
    assert_eq!(text(between, "dta.clock").unwrap(), "unknown");
    assert_eq!(number(&between.attributes, "dta.latency"), None);
    let named: Vec<&str> = whole.iter().map(|span| span.name.as_str()).collect();
    let flows = [1, 2, 3, 4].map(|n| flow(n).to_string());
    assert_eq!(named, [&flows[0], &flows[1], &flows[2], &flows[3], "a packet"]);
    assert_eq!(text(whole[4], "dta.key").unwrap(), "09".repeat(16));
    assert_eq!(times(&spans[spans.len() - 2..]), [(401_000, 401_000); 2]);
    assert_eq!(spans[spans.len() - 1].name, "tp:kfree_skb");
}

#[tokio::test]
async fn a_packet_whose_addresses_are_translated_is_one_trace() {
    let server = Recorder::start(&["200 OK|"]);
    let bed = bed(&server.url, all());
    names(&bed.lists);
    let behind = of(&flow(9), 8);
    behind.passes(&bed.lists, 2, &THERE);
    Of { left: 8, ..of(&flow(1), 7) }.passes(&bed.lists, 1, &HERE);
    behind.is_dropped(&bed.lists, 2, 27_000);
    let (spans, counts) = exported(&bed, &server, ["made", "events"]).await;
    assert_eq!((spans.len(), counts), (6, [1, 1]));
    assert_eq!((spans[0].name.as_str(), is_error(&spans[0])), (flow(1).to_string().as_str(), true));
    assert_eq!(spans[0].trace_id[8..], 7u64.to_be_bytes());
}

#[tokio::test]
async fn a_share_of_the_packets_that_the_rule_names_are_traces() {
    const PACKETS: u64 = 2000;
    let traced = async |traces: TraceSelection| {
        let server = Recorder::start(&["200 OK|"]);
        let bed = bed(&server.url, traces);
        names(&bed.lists);
        for n in 0..PACKETS {
            let (from, packet) = (1000 * n, of(&flow((n % 2) as u8), n + 1));
            packet.passes(&bed.lists, 1, &[(0, from), (1, from + n)]);
        }
        // A packet that is dropped goes no further.
        of(&flow(1), 5).is_dropped(&bed.lists, 2, 4500);
        let (spans, [made, skipped]) = exported(&bed, &server, ["made", "skipped"]).await;
        assert_eq!(made + skipped, PACKETS);
        let whole = spans.into_iter().filter(|span| span.parent_span_id.is_empty()).collect::<Vec<_>>();
        assert_eq!(whole.len() as u64, made);
        whole
    };
    let share = traced(TraceSelection { one_in: 10, ..TraceSelection::default() }).await.len();
    assert!((130..270).contains(&share), "{share}");
    let prefix = Some("10.0.0.1/32".parse().unwrap());
    let prefix = traced(TraceSelection { one_in: 1, prefix, ..TraceSelection::default() }).await;
    assert_eq!(prefix.len() as u64, PACKETS / 2);
    assert!(prefix.iter().all(|span| span.name.starts_with("10.0.0.1:")));
    let slow =
        traced(TraceSelection { one_in: 1, least_latency_ns: 1990, ..TraceSelection::default() }).await;
    assert_eq!((slow.len(), slow.iter().filter(|span| is_error(span)).count()), (11, 1));
}

#[tokio::test]
async fn a_packet_waits_for_other_hosts_and_comes_once_after_a_restart() {
    let server = Recorder::start(&["200 OK|"]);
    let bed = bed(&server.url, all());
    names(&bed.lists);
    of(&flow(1), 7).passes(&bed.lists, 1, &HERE);
    let exporters = bed.start(false);
    until(&exporters, "entries", 10).await;
    of(&flow(1), 7).passes(&bed.lists, 2, &THERE);
    until(&exporters, "delivered", 1).await;
    exporters.stop_exporters().await;
    let (sent, counts) = exported(&bed, &server, ["found", "made"]).await;
    assert_eq!((sent.len(), counts), (5, [0, 0]));
}

#[tokio::test]
async fn what_waits_is_read_again_by_the_next_reader() {
    let lists = Lists::default();
    names(&lists);
    let reader = |begin| {
        let options = SourceOptions { store: store::EVENTS.into(), begin: [Some(begin); LISTS], once: false };
        let ask: Arc<dyn Ask> = Arc::new(lists.clone());
        HostReader::new(EventSource::new(ask.clone(), &options, Arc::default()), ask, all(), Arc::default())
    };
    let digests =
        |events: &Events<HostTrace>| events.events.iter().map(|trace| trace.digest).collect::<Vec<_>>();
    let mut first = reader(Begin::Oldest);
    of(&flow(1), 7).passes(&lists, 1, &HERE);
    assert!(tokio::time::timeout(Duration::from_secs(1), first.next()).await.is_err());
    of(&flow(1), 8).passes(&lists, 1, &HERE);
    let events = first.next().await.unwrap().unwrap();
    // The other one came later, in batch 2.
    assert_eq!((digests(&events), events.read[list::PACKETS as usize]), (vec![7], 1));
    drop(first);
    let events = reader(Begin::Behind(1)).next().await.unwrap().unwrap();
    assert_eq!((digests(&events), events.read[list::PACKETS as usize]), (vec![8], 2));
}

#[tokio::test]
async fn a_collector_that_goes_away_costs_nothing() {
    let server = Recorder::start(&["200 OK|"]);
    let bed = bed(&server.url, all());
    names(&bed.lists);
    of(&flow(1), 7).passes(&bed.lists, 1, &HERE);
    let exporters = bed.start(false);
    until(&exporters, "entries", 10).await;
    // Its points cannot be asked for.
    bed.lists.away(true);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(counted(&exporters, "made"), 0);
    bed.lists.away(false);
    until(&exporters, "delivered", 1).await;
    exporters.stop_exporters().await;
    let spans = spans(&server);
    assert_eq!((spans.len(), text(&spans[0], "dta.lacks")), (3, None));
}
