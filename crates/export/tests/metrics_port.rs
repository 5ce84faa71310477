//! The port, over TCP: what it answers, and what it withstands.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dta_export::metrics::{Address, Labels, MetricKind, MetricsPage, MetricsPort, Targets};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const REQUEST: &str = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";

async fn open(address: &str) -> MetricsPort {
    let address: Address = address.parse().unwrap();
    MetricsPort::open(&address, "127.0.0.1:0".parse().unwrap()).await.unwrap().expect("a port")
}

fn page() -> MetricsPage {
    let mut page = MetricsPage::default();
    page.add("dta_test", MetricKind::Gauge, "a test", Labels::new(), 1);
    page
}

async fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // One that is closed with bytes unread is reset.
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn it_answers_what_scrapers_ask() {
    let served = open("127.0.0.1:0").await.serve_pages(|| async { Ok(page()) });
    let at = served.address;
    let answer = ask(at, REQUEST).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert!(answer.ends_with("dta_test 1\n"), "{answer}");
    let accept =
        "accept: application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    let answer = ask(at, &format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{accept}\r\n\r\n")).await;
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
    assert!(answer.ends_with("dta_test 1\n# EOF\n"), "{answer}");
    let answer = ask(at, "HEAD /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && !answer.contains("dta_test"), "{answer}");
    for (request, begins, ends) in [
        ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1 404 ", "metrics are at /metrics\n"),
        (
            "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 405 ",
            "read metrics with GET\n",
        ),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 ", "\r\n\r\n"),
    ] {
        let answer = ask(at, request).await;
        assert!(answer.starts_with(begins) && answer.ends_with(ends), "{request:?}: {answer:?}");
    }
    let answer = ask(at, "GET /targets HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("has targets\n"), "{answer}");
    let long = format!("GET /metrics HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(1 << 16));
    let answer = ask(at, &long).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn it_names_targets_where_there_are_some() {
    let targets: Targets = Box::new(|| r#"[{"targets":["10.0.0.1:40052"]}]"#.into());
    let served = open("127.0.0.1:0").await.serve_with(|| async { Ok(page()) }, Some(targets));
    let answer = ask(served.address, "GET /targets HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: application/json\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n[{\"targets\":[\"10.0.0.1:40052\"]}]"), "{answer}");
    assert!(ask(served.address, REQUEST).await.ends_with("dta_test 1\n"));
}

#[tokio::test]
async fn one_page_is_made_for_many_who_ask() {
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    let served = open("127.0.0.1:0").await.serve_pages(move || {
        count.fetch_add(1, Ordering::Relaxed);
        async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(page())
        }
    });
    let asked: Vec<_> = (0..10).map(|_| tokio::spawn(ask(served.address, REQUEST))).collect();
    for asked in asked {
        let answer = asked.await.unwrap();
        assert!(answer.contains("dta_test 1\n"), "{answer}");
    }
    // On a machine that is stopped for a second between them, it is made again.
    assert!(made.load(Ordering::Relaxed) <= 3, "{made:?}");
}

#[tokio::test]
async fn a_page_that_cannot_be_made_is_answered_with_the_reason() {
    let served = open("127.0.0.1:0").await.serve_pages(|| async { Err("the data plane stopped".into()) });
    let answer = ask(served.address, REQUEST).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("the data plane stopped\n"), "{answer}");
}

#[tokio::test]
async fn silent_connections_keep_nobody_out_and_are_counted() {
    let served = open("127.0.0.1:0").await.serve_pages(|| async { Ok(page()) });
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    let answer = ask(served.address, REQUEST).await;
    assert!(answer.contains("dta_test 1\n"), "{answer}");
    assert!(answer.contains("dta_metrics_connections_displaced_total 25\n"), "{answer}");
    drop(silent);
}

#[tokio::test]
async fn connections_that_ask_and_read_nothing_keep_nobody_out() {
    // More than sockets hold, so that the answers stay under way.
    let long = "a".repeat(16 << 20);
    let served = open("127.0.0.1:0").await.serve_pages(move || {
        let mut page = page();
        page.add("dta_long", MetricKind::Gauge, "long", vec![("label".into(), long.clone())], 1);
        async { Ok(page) }
    });
    let mut unread = Vec::new();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(REQUEST.as_bytes()).await.unwrap();
        unread.push(stream);
    }
    for stream in &unread {
        stream.readable().await.unwrap();
    }
    // A page may be a second old; one of those leaves for the first that asks.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = ask(served.address, REQUEST).await;
        assert!(answer.contains("dta_test 1\n"));
        if answer.contains("dta_metrics_connections_displaced_total 1\n") {
            break;
        }
        assert!(Instant::now() < until, "{}", answer.replace("aaaaaaaa", ""));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(unread);
}

#[tokio::test]
async fn a_port_that_is_taken_is_refused_or_done_without() {
    let taken = open("127.0.0.1:0").await;
    let own = taken.listen_address();
    let error = MetricsPort::open(&Address::At(own), own).await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "cannot serve metrics on {own}: Address already in use (os error 98); choose another --metrics, or `off`"
        )
    );
    assert!(MetricsPort::open(&Address::Auto, own).await.unwrap().is_none());
    assert!(MetricsPort::open(&Address::Off, own).await.unwrap().is_none());
    drop(taken);
    assert_eq!(
        MetricsPort::open(&Address::Auto, own).await.unwrap().expect("it is free").listen_address(),
        own
    );
}

#[tokio::test]
async fn a_client_of_grpc_learns_that_this_is_the_port_of_metrics() {
    let served = open("127.0.0.1:0").await.serve_pages(|| async { Ok(page()) });
    let options = ClientOptions::without_tls(served.address);
    let asked = async { RemoteCollector::connect(&options).await?.placement().await };
    let error = asked.await.expect_err("no collector answers there").to_string();
    assert!(error.contains("metrics") && error.contains("a collector's is 40050"), "{error}");
}
