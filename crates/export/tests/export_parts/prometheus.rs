//! Remote write to a real Prometheus (Debian's package, 2.42: it takes 1.0).

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dta_export::config::{Config, RemoteWrite};
use dta_export::metrics::{MetricKind, MetricsPage};
use dta_export::run::{ExportOptions, Exporters, Pages};
use dta_rpc::Ask;
use serde_json::Value;

use crate::hostile_names::NAMES;
use crate::loopback::free_address;
use crate::recorder::{Bed, counted, end, until};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that keeps its files while it is stopped.
struct Prometheus {
    address: String,
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Prometheus {
    fn start() -> Self {
        let address = free_address().to_string();
        let mut prometheus = Self { address, folder: tempfile::tempdir().unwrap(), child: None };
        prometheus.go_on();
        prometheus
    }

    fn go_on(&mut self) {
        let folder = self.folder.path();
        let config = folder.join("prometheus.yml");
        std::fs::write(&config, "").unwrap();
        let child = Command::new("prometheus")
            .args(["--log.level=error", "--web.enable-remote-write-receiver"])
            .arg(format!("--web.listen-address={}", self.address))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("Debian's package prometheus is installed (scripts/install-deps test)");
        self.child = Some(child);
        let begun = Instant::now();
        while self.get("/-/ready").is_none_or(|(status, _)| status != 200) {
            assert!(begun.elapsed() < PATIENCE, "prometheus is not ready");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// Labels and values of what a query finds now.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (_, body) = self.get(&format!("/api/v1/query?query={query}")).unwrap();
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["status"], "success", "{answer}");
        let found = answer["data"]["result"].as_array().unwrap().iter();
        let one = |one: &Value| (one["metric"].clone(), one["value"][1].as_str().unwrap().parse().unwrap());
        found.map(one).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.stop();
    }
}

fn bed(prometheus: &Prometheus) -> Bed {
    Bed::new(|folder| {
        let remote = RemoteWrite {
            url: format!("http://{}/api/v1/write", prometheus.address),
            spool: Some(folder.join("spool")),
            metrics_seconds: 1,
            ..RemoteWrite::default()
        };
        Config { remote_write: Some(remote), ..Config::default() }
    })
}

#[tokio::test]
#[ignore = "starts Debian's prometheus (scripts/install-deps test)"]
async fn a_prometheus_that_was_away_has_every_sample_once() {
    let mut prometheus = Prometheus::start();
    let bed = bed(&prometheus);
    let exporters = bed.start(false);
    until(&exporters, "delivered", 4).await;
    prometheus.stop();
    until(&exporters, "retried", 1).await;
    until(&exporters, "spooled", 4).await;
    exporters.stop_exporters().await;
    prometheus.go_on();
    let mut exporters = bed.start(true);
    assert!(counted(&exporters, "found") >= 4);
    end(&mut exporters).await;
    assert_eq!(["dropped.rejected", "retried"].map(|name| counted(&exporters, name)), [0, 0]);
    exporters.stop_exporters().await;
    // The second run's first page, too.
    let labels = r#"job="dta-collector",instance="test",reason="a b""#;
    let count = prometheus.query(&format!("count_over_time(dta_test_total{{{labels}}}[1h])"));
    let pages = prometheus.query(&format!("max_over_time(dta_test_total{{{labels}}}[1h])"));
    // The first run made as many pages as its counter says.
    assert_eq!(count[0].1, pages[0].1 + 1.0);
}

#[tokio::test]
#[ignore = "starts Debian's prometheus (scripts/install-deps test)"]
async fn a_series_that_ended_is_not_found_any_more() {
    let prometheus = Prometheus::start();
    let bed = bed(&prometheus);
    let made = Arc::new(AtomicU64::new(0));
    let pages: Pages = Arc::new(move || {
        let n = made.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let mut page = MetricsPage::default();
            let reason = if n == 0 { "first" } else { "then" };
            page.add("dta_test", MetricKind::Gauge, "a gauge", vec![("reason".into(), reason.into())], n + 1);
            Ok(page)
        })
    });
    let ask: Arc<dyn Ask> = Arc::new(bed.lists.clone());
    let exporters = Exporters::start(&bed.config, "test", &ask, &pages, ExportOptions::default()).unwrap();
    until(&exporters, "delivered", 2).await;
    until(&exporters, "delivered", 5).await;
    exporters.stop_exporters().await;
    let found = prometheus.query("dta_test");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0["reason"], "then");
    assert_eq!(prometheus.query("count_over_time(dta_test{reason=\"first\"}[1h])")[0].1, 1.0);
}

#[tokio::test]
#[ignore = "starts Debian's prometheus (scripts/install-deps test)"]
async fn hostile_names_are_labels_as_they_are() {
    let prometheus = Prometheus::start();
    let bed = bed(&prometheus);
    let names = || NAMES.iter().map(|(name, _)| *name).chain(["two\nlines"]);
    let pages: Pages = Arc::new(move || {
        Box::pin(async move {
            let mut page = MetricsPage::default();
            for name in names() {
                page.add("dta_test", MetricKind::Gauge, "a gauge", vec![("port".into(), name.into())], 1);
            }
            Ok(page)
        })
    });
    let ask: Arc<dyn Ask> = Arc::new(bed.lists.clone());
    let run = ExportOptions { once: true, ..ExportOptions::default() };
    let mut exporters = Exporters::start(&bed.config, "test", &ask, &pages, run).unwrap();
    end(&mut exporters).await;
    exporters.stop_exporters().await;
    let found = prometheus.query("dta_test");
    let found: BTreeSet<_> = found.iter().map(|(labels, _)| labels["port"].as_str().unwrap()).collect();
    assert_eq!(found, names().collect());
}
