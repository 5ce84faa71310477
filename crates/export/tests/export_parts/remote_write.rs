//! Remote write against a server that records what it is sent; a real Prometheus is in `manager/tests/metrics`.

use std::net::TcpListener;

use dta_export::config::{Config, RemoteWrite, RemoteWriteVersion};
use prost::Message;

use crate::recorder::{Asked, Bed, Recorder, answer, counted, end, until};

/// A request of 1.0, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<Series>,
}

#[derive(Clone, PartialEq, Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

fn bed(url: &str, version: RemoteWriteVersion) -> Bed {
    Bed::new(|folder| {
        let remote = RemoteWrite {
            url: format!("{url}/api/v1/write"),
            version,
            secret_file: Some(folder.join("token")),
            spool: Some(folder.join("spool")),
            metrics_seconds: 1,
            ..RemoteWrite::default()
        };
        Config { remote_write: Some(remote), ..Config::default() }
    })
}

fn unpacked(body: &[u8]) -> Vec<u8> {
    snap::raw::Decoder::new().decompress_vec(body).unwrap()
}

/// Series as text, with their values.
fn series(asked: &Asked) -> Vec<(String, f64)> {
    let request = Request::decode(&unpacked(&asked.body)[..]).unwrap();
    let one = |series: &Series| {
        let labels: Vec<_> =
            series.labels.iter().map(|label| format!("{}={}", label.name, label.value)).collect();
        let [sample] = &series.samples[..] else { panic!("{series:?}") };
        assert!(sample.timestamp > 1_700_000_000_000, "{sample:?}");
        (labels.join(","), sample.value)
    };
    request.timeseries.iter().map(one).collect()
}

const TEST: &str = "__name__=dta_test_total,instance=test,job=dta-collector,reason=a b";

#[tokio::test]
async fn a_page_is_a_request_and_what_is_sent_again_is_the_same() {
    let server =
        Recorder::start(&["503 Away|", "500 Oops|", "429 Slow\r\nRetry-After: 0|", "204 No Content|"]);
    let bed = bed(&server.url, RemoteWriteVersion::One);
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    let asked = server.asked();
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|other| *other == asked[0]));
    assert!(asked[0].head.starts_with("POST /api/v1/write HTTP/1.1\r\n"), "{}", asked[0].head);
    for (name, value) in [
        ("content-type", "application/x-protobuf"),
        ("content-encoding", "snappy"),
        ("x-prometheus-remote-write-version", "0.1.0"),
        ("authorization", "Bearer very-secret"),
    ] {
        assert_eq!(asked[0].header(name), Some(value));
    }
    assert!(asked[0].header("user-agent").unwrap().starts_with("dta-export/"));
    let sent = series(&asked[0]);
    assert_eq!(sent[0].0, "__name__=dta_metrics_left_out,instance=test,job=dta-collector");
    assert_eq!(sent[1..], [(TEST.to_owned(), 1.0)]);
    assert_eq!(["made", "delivered", "retried"].map(|name| counted(&exporters, name)), [2, 2, 3]);
    exporters.stop_exporters().await;
}

#[tokio::test]
async fn a_user_has_a_password() {
    let server = Recorder::start(&["204 No Content|"]);
    let mut bed = bed(&server.url, RemoteWriteVersion::One);
    bed.config.remote_write.as_mut().unwrap().user = Some("dta".into());
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    assert_eq!(server.asked()[0].header("authorization"), Some("Basic ZHRhOnZlcnktc2VjcmV0"));
}

#[tokio::test]
async fn a_series_that_is_refused_costs_no_other() {
    // `out of order sample`, say.
    let bad = |body: &[u8]| {
        let request = Request::decode(&unpacked(body)[..]).unwrap();
        request.timeseries.iter().any(|series| series.labels[0].value == "dta_metrics_left_out")
    };
    let server = Recorder::answering(move |_, body| {
        answer(if bad(body) { "400 Bad Request|out of order sample" } else { "204 No Content|" })
    });
    let bed = bed(&server.url, RemoteWriteVersion::One);
    let exporters = bed.start(false);
    until(&exporters, "delivered", 2).await;
    exporters.stop_exporters().await;
    let taken: Vec<_> = server.asked().iter().filter(|asked| !bad(&asked.body)).flat_map(series).collect();
    assert_eq!(taken[..2], [(TEST.to_owned(), 1.0), (TEST.to_owned(), 2.0)]);
}

#[tokio::test]
async fn what_was_spooled_while_nobody_listened_arrives_in_order_after_a_restart() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bed = bed(&format!("http://{nobody}"), RemoteWriteVersion::One);
    let exporters = bed.start(false);
    until(&exporters, "spooled", 4).await;
    until(&exporters, "retried", 1).await;
    exporters.stop_exporters().await;
    let server = Recorder::start(&["204 No Content|"]);
    bed.config.remote_write.as_mut().unwrap().url = server.url.clone();
    let mut exporters = bed.start(true);
    let found = counted(&exporters, "found") as usize / 2;
    assert!(found >= 2);
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    let asked = server.asked();
    let values = asked.iter().flat_map(series).filter(|one| one.0 == TEST).map(|one| one.1);
    // The pages of the first run, and the first one of the second.
    let expected: Vec<f64> = (1..=found).map(|n| n as f64).chain([1.0]).collect();
    assert_eq!(values.collect::<Vec<_>>(), expected);
}

/// The texts of a request of 2.0, among other bytes.
fn symbols(asked: &Asked) -> String {
    String::from_utf8_lossy(&unpacked(&asked.body)).into_owned()
}

#[tokio::test]
async fn version_2_counts_by_what_the_receiver_says_that_it_wrote() {
    for (status, [delivered, rejected]) in [
        ("204 No Content\r\nX-Prometheus-Remote-Write-Samples-Written: 2|", [2, 0]),
        ("200 OK\r\nX-Prometheus-Remote-Write-Samples-Written: 1|", [1, 1]),
        ("400 Bad Request\r\nX-Prometheus-Remote-Write-Samples-Written: 1|", [1, 1]),
        ("400 Bad Request\r\nX-Prometheus-Remote-Write-Samples-Written: 0|", [0, 2]),
    ] {
        let server = Recorder::start(Box::leak(Box::new([status])));
        let bed = bed(&server.url, RemoteWriteVersion::Two);
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        let counts = ["delivered", "dropped.rejected", "retried"].map(|name| counted(&exporters, name));
        assert_eq!(counts, [delivered, rejected, 0], "{status}");
        exporters.stop_exporters().await;
        let asked = server.asked();
        // A part that was written is not sent again.
        assert_eq!(asked.len(), if delivered > 0 { 1 } else { 3 }, "{status}");
        for (name, value) in [
            ("content-type", "application/x-protobuf;proto=io.prometheus.write.v2.Request"),
            ("x-prometheus-remote-write-version", "2.0.0"),
        ] {
            assert_eq!(asked[0].header(name), Some(value));
        }
        assert!(symbols(&asked[0]).contains("dta_test_total"));
    }
}

#[tokio::test]
async fn a_receiver_that_does_not_speak_version_2_gets_nothing_counted_as_delivered() {
    for status in ["204 No Content|", "415 Unsupported|"] {
        let server = Recorder::start(Box::leak(Box::new([status])));
        let bed = bed(&server.url, RemoteWriteVersion::Two);
        let exporters = bed.start(false);
        until(&exporters, "retried", 2).await;
        assert_eq!(
            ["delivered", "dropped.rejected"].map(|name| counted(&exporters, name)),
            [0, 0],
            "{status}"
        );
        exporters.stop_exporters().await;
    }
}
