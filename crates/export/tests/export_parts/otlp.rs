//! OTLP over HTTP, against a server that records what it is sent; a real collector is in `rotel.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::mpsc;

use dta_export::config::{Config, Json, Otlp, Signal};
use dta_proto::telemetry::list;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, number_data_point};
use prost::Message;

use crate::hostile_names::{NAMES, export_drops};
use crate::recorder::{Asked, Bed, Recorder, alert_message, answer, counted, end, export_alert, until};
use crate::source::drop_at;

fn bed(url: &str, signal: Signal) -> Bed {
    Bed::new(|folder| {
        let otlp = Otlp {
            url: url.to_owned(),
            signals: vec![signal],
            secret_file: Some(folder.join("token")),
            spool: Some(folder.join("spool")),
            ..Otlp::default()
        };
        Config { otlp: Some(otlp), ..Config::default() }
    })
}

fn logs(asked: &Asked) -> Vec<LogRecord> {
    records(&asked.body)
}

fn records(body: &[u8]) -> Vec<LogRecord> {
    let request = ExportLogsServiceRequest::decode(body).unwrap();
    let [resource] = &request.resource_logs[..] else { panic!("{request:?}") };
    let named = texts(&resource.resource.as_ref().unwrap().attributes);
    assert_eq!((&*named["service.name"], &*named["service.instance.id"]), ("dta-collector", "test"));
    let [scope] = &resource.scope_logs[..] else { panic!("{request:?}") };
    assert_eq!(scope.scope.as_ref().unwrap().name, "dta");
    scope.log_records.clone()
}

/// Attributes as text.
fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| match one.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|one| (one.key.clone(), text(one))).collect()
}

fn times(records: &[LogRecord]) -> Vec<u64> {
    records.iter().map(|record| record.time_unix_nano).collect()
}

/// A moment since 1970, in nanoseconds.
fn at(n: u64) -> u64 {
    1_800_000_000_000_000_000 + n
}

#[tokio::test]
async fn events_are_log_records_and_what_is_sent_again_is_the_same() {
    let server = Recorder::start(&["503 Away\r\nRetry-After: 0|", "429 Slow down|", "200 OK|"]);
    let bed = bed(&server.url, Signal::Logs);
    bed.lists.put(list::DROPS, vec![drop_at(at(5)), drop_at(at(5)), drop_at(6)]);
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    let asked = server.asked();
    assert_eq!((asked.len(), &asked[0], &asked[1]), (3, &asked[1], &asked[2]));
    assert!(asked[0].head.starts_with("POST /v1/logs HTTP/1.1\r\n"), "{}", asked[0].head);
    assert_eq!(asked[0].header("content-type"), Some("application/x-protobuf"));
    assert_eq!(asked[0].header("authorization"), Some("Bearer very-secret"));
    let records = logs(&asked[0]);
    // The last has a switch's own time.
    assert_eq!(times(&records), [at(5), at(5), 0]);
    let ids: BTreeSet<String> =
        records.iter().map(|record| texts(&record.attributes)["log.record.uid"].clone()).collect();
    assert_eq!(ids.len(), 3);
    let first = &records[0];
    assert_eq!((&*first.event_name, &*first.severity_text), ("dta.drop", "WARN"));
    let attributes = texts(&first.attributes);
    assert_eq!(
        (&*attributes["dta.switch"], &*attributes["dta.reason"], &*attributes["dta.reason_name"]),
        ("1", "71", "traffic-manager")
    );
    let body = first.body.clone().unwrap().value.unwrap();
    assert_eq!(body, Value::StringValue("packet dropped at switch 1: traffic-manager".into()));
    assert_eq!(
        ["made", "delivered", "spooled", "retried"].map(|name| counted(&exporters, name)),
        [3, 3, 0, 2]
    );
    assert!(!format!("{exporters:?}").contains("very-secret"));
    exporters.stop_exporters().await;
}

#[tokio::test]
async fn alerts_are_log_records_that_outlive_an_outage_in_the_spool() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bed = bed(&format!("http://{nobody}"), Signal::Logs);
    let (exporters, alerts) = bed.start_with_alerts();
    export_alert(&alerts, 1).await;
    export_alert(&alerts, 2).await;
    until(&exporters, "retried", 1).await;
    exporters.stop_exporters().await;
    let server = Recorder::start(&["200 OK|"]);
    bed.config.otlp.as_mut().unwrap().url = server.url.clone();
    let (exporters, alerts) = bed.start_with_alerts();
    export_alert(&alerts, 3).await;
    until(&exporters, "delivered", 3).await;
    exporters.stop_exporters().await;
    let records: Vec<LogRecord> = server.asked().iter().flat_map(logs).collect();
    let ids = |record: &LogRecord| texts(&record.attributes)["log.record.uid"].clone();
    assert_eq!(records.iter().map(ids).collect::<Vec<_>>(), [1, 2, 3].map(|n| alert_message(n).id));
    assert_eq!(
        records.iter().map(|record| &*record.severity_text).collect::<Vec<_>>(),
        ["ERROR", "INFO", "ERROR"]
    );
    let first = &records[0];
    assert_eq!((&*first.event_name, first.time_unix_nano), ("dta.alert", 1_800_000_000_001_000_000));
    let body = first.body.clone().unwrap().value.unwrap();
    assert_eq!(body, Value::StringValue("120k SYN/s to 192.0.2.7".into()));
    let attributes = texts(&first.attributes);
    assert_eq!(
        (&*attributes["dta.rule"], &*attributes["dta.state"], &*attributes["dta.label.dst"]),
        ("syn-flood", "firing", "192.0.2.7")
    );
}

#[tokio::test]
async fn a_vendors_header_carries_the_token() {
    let server = Recorder::start(&["200 OK|"]);
    let mut bed = bed(&format!("{}/otlp/", server.url), Signal::Logs);
    bed.config.otlp.as_mut().unwrap().secret_header = Some("api-key".into());
    bed.lists.put(list::DROPS, vec![drop_at(at(5))]);
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    let asked = server.asked();
    assert!(asked[0].head.starts_with("POST /otlp/v1/logs "), "{}", asked[0].head);
    assert_eq!((asked[0].header("api-key"), asked[0].header("authorization")), (Some("very-secret"), None));
}

#[tokio::test]
async fn partial_success_counts_what_was_rejected_and_sends_nothing_again() {
    for rejected in [2, 3, 9] {
        let part =
            ExportLogsPartialSuccess { rejected_log_records: rejected, error_message: "too old".into() };
        let said = ExportLogsServiceResponse { partial_success: Some(part) }.encode_to_vec();
        let server = Recorder::answering(move |_, _| ("200 OK".into(), said.clone()));
        let bed = bed(&server.url, Signal::Logs);
        bed.lists.put(list::DROPS, (1..=3).map(drop_at).collect());
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        let lost = (rejected as u64).min(3);
        assert_eq!(
            ["delivered", "dropped.rejected", "retried"].map(|name| counted(&exporters, name)),
            [3 - lost, lost, 0]
        );
        exporters.stop_exporters().await;
        assert_eq!(server.asked().len(), 1);
    }
}

#[tokio::test]
async fn what_is_refused_is_dropped_and_counted_and_blocks_nothing() {
    for status in ["400 Bad Request|\u{12}\u{7}bad log", "413 Too Large|", "500 Oops|"] {
        // The record of this time is refused wherever it is.
        let bad = |body: &[u8]| times(&records(body)).contains(&at(7));
        let server = Recorder::answering(move |_, body| answer(if bad(body) { status } else { "200 OK|" }));
        let bed = bed(&server.url, Signal::Logs);
        bed.lists.put(list::DROPS, (1..=40).map(|n| drop_at(at(n))).collect());
        let exporters = bed.start(false);
        until(&exporters, "delivered", 39).await;
        bed.lists.put(list::DROPS, vec![drop_at(at(41))]);
        until(&exporters, "delivered", 40).await;
        // What is made is counted after it was handed over.
        until(&exporters, "made", 41).await;
        assert_eq!(
            ["made", "dropped.rejected", "spooled", "retried"].map(|name| counted(&exporters, name)),
            [41, 1, 0, 0],
            "{status}"
        );
        exporters.stop_exporters().await;
        let taken = server
            .asked()
            .iter()
            .filter(|asked| !bad(&asked.body))
            .flat_map(|asked| times(&logs(asked)))
            .collect::<Vec<_>>();
        let once: BTreeSet<u64> = taken.iter().copied().collect();
        assert_eq!((taken.len(), once.len()), (40, 40), "{status}");
    }
}

#[tokio::test]
async fn what_waits_for_a_wrong_token_or_url_is_kept() {
    for status in [
        "401 Unauthorized|",
        "403 Forbidden|",
        "404 Not Found|",
        "302 Found|",
        "502 Bad Gateway|",
        "504 Late|",
    ] {
        let server = Recorder::answering(move |n, _| answer(if n == 0 { status } else { "200 OK|" }));
        let bed = bed(&server.url, Signal::Logs);
        bed.lists.put(list::DROPS, vec![drop_at(at(1))]);
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        assert_eq!(["delivered", "retried"].map(|name| counted(&exporters, name)), [1, 1], "{status}");
        exporters.stop_exporters().await;
    }
}

#[tokio::test]
async fn what_was_spooled_while_nobody_listened_arrives_once_after_a_restart() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bed = bed(&format!("http://{nobody}"), Signal::Logs);
    bed.lists.put(list::DROPS, vec![drop_at(at(1)), drop_at(at(2))]);
    let exporters = bed.start(false);
    until(&exporters, "spooled", 2).await;
    until(&exporters, "retried", 1).await;
    exporters.stop_exporters().await;
    let server = Recorder::start(&["200 OK|"]);
    bed.config.otlp.as_mut().unwrap().url = server.url.clone();
    bed.lists.put(list::DROPS, vec![drop_at(at(3))]);
    let mut exporters = bed.start(true);
    assert_eq!(counted(&exporters, "found"), 2);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    let arrived: Vec<u64> = server.asked().iter().flat_map(|asked| times(&logs(asked))).collect();
    assert_eq!(arrived, [at(1), at(2), at(3)]);
    // And nothing after another one.
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    assert_eq!(server.asked().iter().flat_map(logs).count(), 3);
}

#[tokio::test]
async fn a_receiver_that_is_slow_holds_up_no_other_exporter() {
    let (release, released) = mpsc::channel::<()>();
    let server = Recorder::answering(move |_, _| {
        // Until the test says so, or ends.
        let _ = released.recv();
        answer("200 OK|")
    });
    let mut bed = bed(&server.url, Signal::Logs);
    let file = bed.folder.path().join("events.jsonl");
    bed.config.json = Some(Json { file: file.clone(), names: true });
    bed.lists.put(list::DROPS, vec![drop_at(at(1))]);
    let mut exporters = bed.start(true);
    until(&exporters, "spooled", 1).await;
    bed.lists.put(list::DROPS, vec![drop_at(at(2))]);
    while std::fs::read_to_string(&file).unwrap_or_default().lines().count() < 1 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(counted(&exporters, "delivered"), 0);
    drop(release);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
}

#[tokio::test]
async fn metrics_are_sums_and_gauges() {
    let server = Recorder::start(&["200 OK|"]);
    let bed = bed(&server.url, Signal::Metrics);
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    let asked = server.asked();
    let [asked] = &asked[..] else { panic!("{} requests", asked.len()) };
    assert!(asked.head.starts_with("POST /v1/metrics "), "{}", asked.head);
    let request = ExportMetricsServiceRequest::decode(&asked.body[..]).unwrap();
    let [left_out, test] = &request.resource_metrics[0].scope_metrics[0].metrics[..] else {
        panic!("{request:?}")
    };
    assert_eq!(
        (&*left_out.name, &*test.name, &*test.description),
        ("dta_metrics_left_out", "dta_test", "pages")
    );
    assert!(matches!(&left_out.data, Some(Data::Gauge(gauge)) if gauge.data_points.len() == 1));
    let Some(Data::Sum(sum)) = &test.data else { panic!("{test:?}") };
    assert!(sum.is_monotonic);
    assert_eq!(sum.aggregation_temporality, AggregationTemporality::Cumulative as i32);
    let [point] = &sum.data_points[..] else { panic!("{sum:?}") };
    assert_eq!(point.value, Some(number_data_point::Value::AsInt(1)));
    assert_eq!(texts(&point.attributes)["reason"], "a b");
    assert!(point.time_unix_nano > at(0) / 2);
}

#[tokio::test]
async fn each_signal_has_a_spool_of_its_own() {
    let server = Recorder::start(&["200 OK|"]);
    let mut bed = bed(&server.url, Signal::Logs);
    bed.config.otlp.as_mut().unwrap().signals = Signal::ALL.into();
    bed.lists.put(list::DROPS, vec![drop_at(at(1))]);
    let mut exporters = bed.start(true);
    let sinks: Vec<_> = exporters.exporter_counters().iter().map(|(sink, _)| *sink).collect();
    assert_eq!(sinks, ["otlp-logs", "otlp-metrics", "otlp-traces", "otlp-host-traces"]);
    exporters.wait_until_done().await;
    exporters.stop_exporters().await;
    for signal in ["logs", "metrics", "traces", "host-traces"] {
        assert!(bed.folder.path().join("spool").join(signal).join("lock").exists());
    }
    let paths: BTreeSet<String> =
        server.asked().iter().map(|asked| asked.head.split(' ').nth(1).unwrap().to_owned()).collect();
    // A drop has no path.
    assert_eq!(paths.into_iter().collect::<Vec<_>>(), ["/v1/logs", "/v1/metrics"]);
}

#[tokio::test]
async fn hostile_names_are_attributes_as_they_are() {
    let server = Recorder::start(&["200 OK|"]);
    let bed = bed(&server.url, Signal::Logs);
    export_drops(&bed).await;
    let records: Vec<_> = server.asked().iter().flat_map(logs).collect();
    let found: Vec<_> =
        records.iter().map(|record| texts(&record.attributes)["dta.switch_name"].clone()).collect();
    assert_eq!(found, NAMES.map(|(name, _)| name));
}
