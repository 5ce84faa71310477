//! A real Prometheus that scrapes a collector and a translator.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bed::Bed;
use crate::common::loopback::free_address;
use crate::http::{encoded, get};

/// How long it may take to start, and to scrape.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server that ends with the test.
pub(crate) struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Scrapes both every 5 seconds, which is also the longest that a scrape may take. Its files lie in the folder.
    pub(crate) fn start(folder: &Path, [collector, translator]: &[String; 2]) -> Prometheus {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 5s}}\nscrape_configs:\n\
             - {{job_name: dta-collector, static_configs: [{{targets: ['{collector}']}}]}}\n\
             - {{job_name: dta-translator, static_configs: [{{targets: ['{translator}']}}]}}\n"
        );
        std::fs::write(&config, text).unwrap();
        let address = free_address().to_string();
        let child = Command::new("prometheus")
            .arg("--log.level=error")
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("Debian's package prometheus is installed (scripts/install-deps test)");
        let prometheus = Prometheus { child, address };
        let ready = || get(&prometheus.address, "/-/ready").is_some_and(|(status, _)| status == 200);
        prometheus.until("it is ready", || ready().then_some(()));
        prometheus.until("it has scraped both twice", || {
            // `up` is 0 after a scrape that failed.
            let scraped = prometheus.query("sum_over_time(up[1m]) >= 2 and up == 1").ok()?;
            (scraped.len() == 2).then_some(())
        });
        prometheus
    }

    fn until<T>(&self, what: &str, found: impl Fn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: not so in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Labels and values of what it answers now.
    pub(crate) fn query(&self, query: &str) -> Result<Vec<(Value, f64)>, String> {
        let path = format!("/api/v1/query?query={}", encoded(query));
        let answer = self.ask(&path)?;
        let results = answer["data"]["result"].as_array().ok_or("no result")?;
        let value = |result: &Value| result["value"][1].as_str()?.parse().ok();
        results
            .iter()
            .map(|result| Some((result["metric"].clone(), value(result)?)))
            .collect::<Option<_>>()
            .ok_or_else(|| answer.to_string())
    }

    /// Waits until a query returns exactly this value.
    pub(crate) fn expect(&self, query: &str, value: f64) {
        let began = Instant::now();
        loop {
            let answer = self.query(query);
            match &answer {
                Ok(series) if series.len() == 1 && series[0].1 == value => return,
                _ => assert!(began.elapsed() < PATIENCE, "{query} is {answer:?} and not {value}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Values of a label.
    pub(crate) fn label_values(&self, metric: &str, label: &str) -> Result<Vec<String>, String> {
        let answer = self.ask(&format!("/api/v1/label/{label}/values?match[]={}", encoded(metric)))?;
        let values = answer["data"].as_array().ok_or("no data")?;
        Ok(values.iter().filter_map(|value| Some(value.as_str()?.to_owned())).collect())
    }

    fn ask(&self, path: &str) -> Result<Value, String> {
        let (status, body) = get(&self.address, path).ok_or("no answer")?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        if status == 200 && answer["status"] == "success" { Ok(answer) } else { Err(body) }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "needs Debian's prometheus"]
async fn it_reads_both_daemons_and_intcollectors_gauges() {
    let mut bed = Bed::start("intcollector", "intcollector").await;
    if !bed.replay("int-v1.0-three-reports.pcap", 3).await {
        return;
    }
    let prometheus = Prometheus::start(bed.int.folder.path(), &bed.addresses());
    let flow = "src_ip=\"10.0.0.1\",src_port=\"5000\",dst_ip=\"10.0.0.2\",dst_port=\"5000\",ip_proto=\"17\"";
    prometheus.expect("count({__name__=~\"flow_latency|flow_hop_latency|tx_utilize|queue_occup\"})", 10.0);
    prometheus.expect(&format!("flow_latency{{{flow}}}"), 12.0);
    prometheus.expect(&format!("flow_hop_latency{{{flow},sw_id=\"4\"}}"), 4.0);
    prometheus.expect("count(count by (sw_id, p_id) (tx_utilize))", 3.0);
    prometheus.expect("count(count by (sw_id, q_id) (queue_occup))", 3.0);
    // The accounting, of the translator itself and as it handed it in.
    prometheus.expect("dta_translator_int_reports_total{job=\"dta-translator\"}", 3.0);
    prometheus.expect("dta_session_translator_int_reports_total{job=\"dta-collector\",session=\"int\"}", 3.0);
    prometheus.expect("dta_translator_serving", 1.0);
    prometheus.expect("dta_collector_serving", 1.0);
    prometheus.expect("count(dta_build_info)", 2.0);
    // A sum over all that is scraped counts nothing twice.
    prometheus.expect("sum(dta_translator_int_reports_total)", 3.0);
    let sums = "sum(dta_translator_received_reports_total) - sum(dta_translator_accepted_reports_total) \
                - sum(dta_translator_dropped_reports_total)";
    prometheus.expect(sums, 0.0);
}

/// What promtool says of a page; empty if nothing is wrong.
fn linted(page: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().expect("Debian's package prometheus is installed (scripts/install-deps test)");
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() || !printed.is_empty(), "promtool ended with {}", output.status);
    printed
}

#[tokio::test]
#[ignore = "needs Debian's prometheus"]
async fn promtool_finds_nothing_wrong_with_either_page() {
    let mut bed = Bed::start("tags", "intcollector").await;
    if !bed.replay("int-v1.0-three-reports.pcap", 3).await {
        return;
    }
    for page in bed.pages() {
        assert_eq!(linted(&page), "");
    }
}
