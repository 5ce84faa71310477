//! Paths of flows as traces of OTLP, against a server that records what it is sent.

use std::collections::BTreeSet;

use dta_export::config::{Config, Otlp, Signal, TraceSelection};
use dta_proto::key::Flow;
use dta_proto::telemetry::{
    Location, Metric, SwitchPath, TelemetryEntry, TimedValue as Stored, Via, Why, hop_latency_key, list,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::recorder::{Bed, Recorder, counted, end};

/// A moment since 1970, in nanoseconds.
pub(crate) fn at(n: u64) -> u64 {
    1_800_000_000_000_000_000 + n
}

pub(crate) fn flow(n: u8) -> Flow {
    format!("10.0.0.{n}:5000->10.1.0.1:5000/udp").parse().unwrap()
}

/// A change of a flow's path or latency.
pub(crate) fn change(
    flow: &Flow,
    metric: Metric,
    why: Why,
    new: u64,
    path: &SwitchPath,
    time: u64,
) -> Vec<u8> {
    let (key, place) = (flow.to_key(), Location::default());
    let path =
        Some(if metric == Metric::FlowPath { Via::from_path(path) } else { Via::Digest(path.path_digest()) });
    TelemetryEntry::Change { time, key, metric, why, old: 0, new, place, path }.to_bytes().to_vec()
}

fn bed(url: &str, traces: TraceSelection) -> Bed {
    Bed::new(|folder| {
        let otlp = Otlp {
            url: url.to_owned(),
            signals: vec![Signal::Traces],
            traces,
            spool: Some(folder.join("spool")),
            ..Otlp::default()
        };
        Config { otlp: Some(otlp), ..Config::default() }
    })
}

pub(crate) fn spans(server: &Recorder) -> Vec<Span> {
    let of = |body: &[u8]| {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        request.resource_spans[0].scope_spans[0].spans.clone()
    };
    server.asked().iter().flat_map(|asked| of(&asked.body)).collect()
}

pub(crate) fn number(attributes: &[KeyValue], name: &str) -> Option<i64> {
    match attributes.iter().find(|one| one.key == name)?.value.as_ref()?.value.as_ref()? {
        Value::IntValue(number) => Some(*number),
        other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test]
async fn a_path_is_a_span_with_a_child_for_each_switch() {
    let server = Recorder::start(&["503 Away|", "200 OK|"]);
    let bed = bed(&server.url, TraceSelection { one_in: 1, ..TraceSelection::default() });
    let (one, path) = (flow(1), SwitchPath::from_switches(&[6, 5, 4]));
    let value = |value, time| Stored { value, time: at(time) }.to_bytes();
    bed.lists.write(&one.to_key().0, &value(1000, 90));
    bed.lists.write(&hop_latency_key(&one, 6).0, &value(300, 90));
    // Of a later packet.
    bed.lists.write(&hop_latency_key(&one, 5).0, &value(7, 101));
    bed.lists.write(&hop_latency_key(&one, 4).0, &value(500, 100));
    bed.lists.put(
        list::CHANGES,
        vec![
            change(&one, Metric::FlowPath, Why::New, 3, &path, at(100)),
            // Of the same report, of another metric, and with the switch's own time.
            change(&one, Metric::FlowLatency, Why::New, 1000, &path, at(100)),
            change(&one, Metric::HopLatency, Why::New, 300, &path, at(100)),
            change(&one, Metric::FlowPath, Why::Moved, 3, &path, 5),
            change(&one, Metric::FlowLatency, Why::Moved, 2000, &path, at(9000)),
        ],
    );
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    let counts = ["made", "delivered", "skipped", "retried"];
    assert_eq!(counts.map(|name| counted(&exporters, name)), [2, 2, 3, 1]);
    exporters.stop_exporters().await;
    let asked = server.asked();
    assert_eq!((asked.len(), &asked[0]), (2, &asked[1]));
    assert!(asked[0].head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{}", asked[0].head);
    let all = spans(&server);
    let spans = &all[all.len() / 2..];
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let flow = one.to_string();
    let of_one = [flow.as_str(), "switch 6", "switch 5", "switch 4"];
    assert_eq!(names, [of_one, of_one].concat());
    let times = |spans: &[Span]| -> Vec<(u64, u64)> {
        spans.iter().map(|span| (span.start_time_unix_nano, span.end_time_unix_nano)).collect()
    };
    let from = at(100) - 1000;
    assert_eq!(
        times(&spans[..4]),
        [(from, at(100)), (from, from + 300), (from + 300, from + 300), (from + 300, from + 800)]
    );
    assert_eq!(times(&spans[4..5]), [(at(7000), at(9000))]);
    assert_eq!([1, 2, 3].map(|n| number(&spans[n].attributes, "dta.latency")), [Some(300), None, Some(500)]);
    assert_eq!(number(&spans[0].attributes, "destination.port"), Some(5000));
    for trace in spans.chunks(4) {
        assert!(trace.iter().all(|span| span.trace_id == trace[0].trace_id && span.trace_id.len() == 16));
        assert!(trace[1..].iter().all(|span| span.parent_span_id == trace[0].span_id));
        let ids: BTreeSet<_> = trace.iter().map(|span| span.span_id.clone()).collect();
        assert_eq!((ids.len(), trace[0].parent_span_id.is_empty()), (4, true));
    }
    assert_ne!(spans[0].trace_id, spans[4].trace_id);
    // What is read again by somebody else is the same.
    let other = Recorder::start(&["200 OK|"]);
    let mut again = bed;
    again.config.otlp.as_mut().unwrap().url = other.url.clone();
    again.config.otlp.as_mut().unwrap().spool = Some(again.folder.path().join("other"));
    let mut exporters = again.start(true);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    assert_eq!(self::spans(&other), spans);
}

#[tokio::test]
async fn a_share_of_the_flows_that_the_rule_names_are_traces() {
    const CHANGES: u64 = 3000;
    let path = SwitchPath::from_switches(&[6, 5]);
    let traced = async |traces: TraceSelection| {
        let server = Recorder::start(&["200 OK|"]);
        let bed = bed(&server.url, traces);
        let entry = |n: u64| change(&flow((n % 2) as u8), Metric::FlowLatency, Why::Moved, n, &path, at(n));
        // The exporter learns the path first.
        let first = [0, 1].map(|n| change(&flow(n), Metric::FlowPath, Why::New, 2, &path, 5));
        bed.lists.put(list::CHANGES, first.into_iter().chain((0..CHANGES).map(entry)).collect());
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        let (made, skipped) = (counted(&exporters, "made"), counted(&exporters, "skipped"));
        exporters.stop_exporters().await;
        assert_eq!(made + skipped, CHANGES + 2);
        let roots = spans(&server).into_iter().filter(|span| span.parent_span_id.is_empty());
        let roots: Vec<Span> = roots.collect();
        assert_eq!(roots.len() as u64, made);
        roots
    };
    let share = traced(TraceSelection { one_in: 10, ..TraceSelection::default() }).await;
    assert!((200..400).contains(&share.len()), "{}", share.len());
    let prefix = traced(TraceSelection {
        one_in: 1,
        prefix: Some("10.0.0.1/32".parse().unwrap()),
        ..TraceSelection::default()
    });
    let prefix = prefix.await;
    assert_eq!(prefix.len() as u64, CHANGES / 2);
    assert!(prefix.iter().all(|span| span.name.starts_with("10.0.0.1:")));
    let slow =
        traced(TraceSelection { one_in: 1, least_latency_ns: 2990, ..TraceSelection::default() }).await;
    assert_eq!(slow.len(), 10);
}

#[tokio::test]
async fn rejected_spans_are_traces_only_as_far_as_other_spans_do_not_account_for_them() {
    let (one, path) = (flow(1), SwitchPath::from_switches(&[6, 5]));
    // Of two traces with three spans each.
    for (rejected_spans, traces) in [(1, 0), (4, 0), (5, 1), (6, 2), (99, 2)] {
        let part = ExportTracePartialSuccess { rejected_spans, error_message: "too old".into() };
        let said = ExportTraceServiceResponse { partial_success: Some(part) }.encode_to_vec();
        let server = Recorder::answering(move |_, _| ("200 OK".into(), said.clone()));
        let bed = bed(&server.url, TraceSelection { one_in: 1, ..TraceSelection::default() });
        let moved = |n| change(&one, Metric::FlowLatency, Why::Moved, 1000, &path, at(n));
        let first = change(&one, Metric::FlowPath, Why::New, 2, &path, 5);
        bed.lists.put(list::CHANGES, vec![first, moved(9000), moved(19_000)]);
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        assert_eq!(
            ["made", "delivered", "dropped.rejected", "retried"].map(|name| counted(&exporters, name)),
            [2, 2 - traces, traces, 0],
            "{rejected_spans}"
        );
        exporters.stop_exporters().await;
        assert_eq!(spans(&server).len(), 6);
    }
}
