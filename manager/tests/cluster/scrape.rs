//! What Prometheus finds and scrapes of a cluster.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::ground::{Ground, PATIENCE};

impl Ground {
    /// Asserts that Prometheus finds all collectors by asking one of them, and that each says that it is in the cluster.
    pub(crate) fn check_scraped(&mut self) {
        let view = self.view().unwrap();
        let metrics: BTreeMap<&str, &str> =
            view.collectors.iter().map(|(id, collector)| (id.as_str(), collector.metrics.as_str())).collect();
        let (_, first) = metrics.first_key_value().unwrap();
        let config = self.folder.path().join("prometheus.yml");
        let job = format!(
            "scrape_configs:\n- job_name: dta\n  http_sd_configs:\n  - url: http://{first}/targets\n"
        );
        std::fs::write(&config, job).unwrap();
        let begin = Instant::now();
        let found = loop {
            let (found, stderr) = discovered(&config);
            if found.iter().map(|(id, at)| (id.as_str(), at.as_str())).eq(metrics.clone()) {
                break found;
            }
            assert!(begin.elapsed() < PATIENCE, "{found:?}: {stderr}");
        };
        let size = view.collectors.len();
        for (id, at) in found {
            let page = get(&at, "/metrics");
            for gauge in [
                "dta_collector_in_cluster 1".to_owned(),
                format!("dta_collector_cluster_size {size}"),
                format!("dta_collector_placement_version {}", view.placement.version),
            ] {
                assert!(page.lines().any(|line| line == gauge), "{id}: {gauge} is not in {page}");
            }
            let buckets = view.placement.buckets_of_copy(0, &id).iter().count();
            let gauge = format!("dta_collector_placement_buckets{{copy=\"0\"}} {buckets}");
            assert!(page.lines().any(|line| line == gauge), "{id}: {gauge} is not in {page}");
        }
    }
}

/// The collectors that promtool finds, by their names, and what else it says. It takes all of its time, however soon it
/// has an answer.
fn discovered(config: &Path) -> (BTreeMap<String, String>, String) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "service-discovery", "--timeout=5s"]).arg(config).arg("dta");
    let output = promtool.output().expect("Debian's package prometheus (scripts/install-deps test)");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let found: Vec<Value> =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
    let label =
        |target: &Value, name: &str| target["discoveredLabels"][name].as_str().unwrap_or_default().to_owned();
    let found = found.iter().map(|target| (label(target, "dta_collector"), label(target, "__address__")));
    (found.collect(), stderr)
}

/// The answer of a server to a request, with its head.
pub(crate) fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
