//! Alerts to receivers: webhooks, and a real Alertmanager (Debian's package).

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dta_collector::alerts::deliver::{AlertDeliveries, DeliveryOptions, export_feeds};
use dta_collector::alerts::{AlertBoard, AlertsConfig, Finding, Rule};
use dta_export::names::Names;
use dta_proto::control::{AlertTransition, AlertsRequest};
use serde_json::Value;

#[allow(dead_code)] // those of placement use more of it
#[path = "../../../crates/cluster/tests/etcd/nodes.rs"]
mod nodes;

#[path = "../../../manager/tests/schema/mod.rs"]
mod schema;

use nodes::Nodes;

const PATIENCE: Duration = Duration::from_secs(60);

/// A rule on the packets to each destination, and receivers.
fn config(receivers: &str) -> AlertsConfig {
    let rule = "[[rule]]\nname = 'flood'\ngroup = 'dst'\nmeasure = 'packets-per-second'\nabove = 1000\nseverity = 'critical'\n";
    toml::from_str(&format!("defaults = false\n{rule}{receivers}")).unwrap()
}

fn rule(config: &AlertsConfig) -> Rule {
    config.to_rules(&Names::empty()).unwrap().remove(0)
}

fn finding(now: u64) -> Finding {
    Finding {
        values: vec![0xffff_c000_0207],
        labels: [("dst".to_owned(), "192.0.2.7".to_owned())].into(),
        value: 120_000.0,
        limit: 1000.0,
        span: now - 60_000_000_000..now,
        notes: Vec::new(),
    }
}

/// A board as after a restart, whose alert fires (or no longer) at the present moment.
struct AlertingCollector {
    board: Arc<AlertBoard>,
    rule: Rule,
    _deliveries: AlertDeliveries,
}

impl AlertingCollector {
    fn start(folder: &Path, config: &AlertsConfig) -> Self {
        let board = AlertBoard::open(Some(folder.join("alerts.json"))).unwrap();
        Self::with_board(board, folder, config, "edge")
    }

    /// In a cluster, with a board of its own.
    fn join(name: &str, folder: &Path, config: &AlertsConfig, etcd: dta_cluster::Config) -> Self {
        let board = AlertBoard::default();
        board.set_cluster(dta_cluster::join_alerts(etcd, name.into()).unwrap());
        Self::with_board(board, folder, config, name)
    }

    fn with_board(board: AlertBoard, folder: &Path, config: &AlertsConfig, name: &str) -> Self {
        let board = Arc::new(board);
        let options = DeliveryOptions {
            collector: name.into(),
            page: "http://127.0.0.1:40055/".into(),
            folder: Some(folder.into()),
        };
        let deliveries = AlertDeliveries::start(config, &board, &options).unwrap();
        Self { board, rule: rule(config), _deliveries: deliveries }
    }

    fn evaluate(&self, fires: bool, seconds_ahead: u64) {
        let now = dta_files::moment::now_ns() + seconds_ahead * 1_000_000_000;
        let findings = if fires { vec![finding(now)] } else { Vec::new() };
        self.board.apply(&self.rule, &findings, now, 0);
        self.board.publish(now).unwrap();
    }

    /// Takes the rules away: that resolves what they found, now.
    fn resolve_all(&self) {
        self.board.begin_rules(&[], dta_files::moment::now_ns());
        self.board.publish(dta_files::moment::now_ns()).unwrap();
    }

    fn count(&self, name: &str) -> u64 {
        let counters = self.board.counters().named_counters();
        counters.into_iter().find(|(counter, _)| counter == name).unwrap().1
    }
}

/// Takes requests one by one, and answers them with these statuses, the last of which stays.
struct WebhookServer {
    url: String,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl WebhookServer {
    fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let (taken, mut statuses) = (bodies.clone(), VecDeque::from(statuses.to_vec()));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let status =
                    if statuses.len() > 1 { statuses.pop_front() } else { statuses.front().copied() };
                answer_request(stream, status.unwrap(), &taken);
            }
        });
        Self { url, bodies }
    }

    async fn wait_for_bodies(&self, count: usize) -> Vec<Value> {
        wait_until(|| self.bodies.lock().unwrap().len() >= count).await;
        self.bodies.lock().unwrap().clone()
    }
}

/// Answers one request, and keeps its body if it is accepted.
fn answer_request(stream: TcpStream, status: u16, taken: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    if status == 200 {
        taken.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    }
    let _ =
        write!(reader.into_inner(), "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

async fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it did not happen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_gets_each_transition_once_over_outages_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let server = WebhookServer::start(&[503, 503, 200]);
    let config = config(&format!("[[webhook]]\nurl = '{}'\n", server.url));

    let collector = AlertingCollector::start(folder.path(), &config);
    collector.evaluate(true, 0);
    let bodies = server.wait_for_bodies(1).await;
    wait_until(|| collector.count("alerts.delivered") == 1).await;
    assert_eq!(collector.count("alerts.retried"), 2);
    assert_eq!(bodies[0]["number"], 1);
    assert!(bodies[0]["id"].as_str().unwrap().ends_with("-1"), "{}", bodies[0]["id"]);
    assert_eq!(bodies[0]["alert"]["state"], "firing");
    assert_eq!(bodies[0]["alert"]["labels"]["dst"], "192.0.2.7");
    assert!(bodies[0]["url"].as_str().unwrap().starts_with("http://127.0.0.1:40055/#/flows?"));
    // It goes on firing: that is no news.
    collector.evaluate(true, 1);
    // What was delivered is noted after the answer.
    let is_note = |path: &Path| path.extension().is_some_and(|extension| extension == "delivered");
    let noted = || {
        let mut files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        files.any(|path| is_note(&path) && std::fs::read_to_string(path).is_ok_and(|note| note.trim() == "1"))
    };
    wait_until(noted).await;
    drop(collector);
    let collector = AlertingCollector::start(folder.path(), &config);
    collector.evaluate(true, 2);
    collector.evaluate(false, 600);
    let bodies = server.wait_for_bodies(2).await;
    assert_eq!(bodies.len(), 2, "{bodies:?}");
    bodies.iter().for_each(|body| schema::hold("alert-webhook", body));
    assert_eq!((&bodies[1]["number"], &bodies[1]["alert"]["state"]), (&2.into(), &"resolved".into()));
    assert_ne!(bodies[0]["id"], bodies[1]["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_webhook_rejects_for_good_is_counted_and_keeps_nothing_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = WebhookServer::start(&[400, 200]);
    let config = config(&format!("[[webhook]]\nurl = '{}'\n", server.url));
    let collector = AlertingCollector::start(folder.path(), &config);
    collector.evaluate(true, 0);
    wait_until(|| collector.count("alerts.rejected") == 1).await;
    collector.evaluate(false, 600);
    let bodies = server.wait_for_bodies(1).await;
    assert_eq!(bodies[0]["number"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exporter_gets_each_transition_until_it_is_in_its_spool() {
    let folder = tempfile::tempdir().unwrap();
    let config = config("");
    let collector = AlertingCollector::start(folder.path(), &config);
    let options = DeliveryOptions {
        collector: "edge".into(),
        page: "http://127.0.0.1:40055/".into(),
        folder: Some(folder.path().into()),
    };
    let feeds = export_feeds(collector.board.clone(), options);
    let mut alerts = feeds("kafka");
    collector.evaluate(true, 0);
    let first = alerts.recv().await.unwrap();
    let line = serde_json::from_str(&first.message.to_event_line().unwrap()).unwrap();
    schema::hold("alert-export", &line);
    assert_eq!((&line["number"], &line["alert"]["state"]), (&1.into(), &"firing".into()));
    // It ends before the alert is in the spool.
    drop((first.spooled, alerts));
    let mut alerts = feeds("kafka");
    let repeated = alerts.recv().await.unwrap();
    assert_eq!(repeated.message.id, first.message.id);
    repeated.spooled.send(()).unwrap();
    collector.evaluate(false, 600);
    assert_eq!(alerts.recv().await.unwrap().message.transition.number, 2);
}

/// Waits for the transitions of the cluster that a collector answers with: their states.
async fn wait_for_answer(collector: &AlertingCollector, states: &[&str]) {
    let request = AlertsRequest { after: 0, most: 100 };
    let state = |transition: AlertTransition| transition.alert.unwrap().state;
    wait_until(|| {
        let transitions = collector.board.answer(request).transitions.into_iter();
        transitions.map(state).collect::<Vec<_>>() == states
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd-server and prometheus-alertmanager"]
async fn what_two_collectors_of_a_cluster_find_is_sent_once_whichever_of_them_dies() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let (server, alertmanager) = (WebhookServer::start(&[200]), Alertmanager::start());
    let receivers = format!(
        "[[webhook]]\nurl = '{}'\n[[alertmanager]]\nurl = 'http://{}'\n",
        server.url, alertmanager.address
    );
    let config = config(&receivers);
    let active = || alertmanager.alerts().unwrap_or_default().len();
    let is_keeper = |collector: &AlertingCollector| collector.board.cluster().unwrap().is_keeper();
    // Longer than a busy machine stands still.
    let cluster = || dta_cluster::Config { lease_seconds: 10, ..nodes.config() };
    let first = AlertingCollector::join("a", folder.path(), &config, cluster());
    wait_until(|| is_keeper(&first)).await;
    let second = AlertingCollector::join("b", folder.path(), &config, cluster());
    // That it is logged shows that the second one has said it.
    second.evaluate(true, 0);
    let bodies = server.wait_for_bodies(1).await;
    first.evaluate(true, 0);
    schema::hold("alert-webhook", &bodies[0]);
    wait_until(|| active() == 1).await;
    for collector in [&first, &second] {
        wait_for_answer(collector, &["firing"]).await;
    }
    // Only one of them finds it no longer: it fires all the same.
    first.evaluate(false, 600);
    assert_eq!(first.board.alerts()[0].state, "resolved");
    wait_until(|| first.count("alerts.delivered") >= 2).await;

    // The one that delivers dies.
    drop(first);
    wait_until(|| is_keeper(&second)).await;
    assert_eq!(active(), 1);
    second.resolve_all();
    wait_until(|| active() == 0).await;
    let is_resolved = |body: &Value| body["alert"]["state"] == "resolved";
    wait_until(|| server.bodies.lock().unwrap().iter().any(is_resolved)).await;
    let mut bodies = server.bodies.lock().unwrap().clone();
    // What was not noted when the first one died comes again.
    bodies.dedup_by(|a, b| a["id"] == b["id"]);
    wait_for_answer(&second, &["firing", "resolved"]).await;
    let states: Vec<_> = bodies.iter().map(|body| (&body["collector"], &body["alert"]["state"])).collect();
    assert_eq!(states, [(&"a".into(), &"firing".into()), (&"b".into(), &"resolved".into())]);
    let ids: Vec<_> = bodies.iter().map(|body| body["id"].as_str().unwrap()).collect();
    assert!(ids[0].starts_with("cluster-") && ids[0] != ids[1], "{ids:?}");
}

/// Debian's Alertmanager, which keeps its files while it is stopped.
struct Alertmanager {
    address: String,
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Alertmanager {
    fn start() -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut alertmanager = Self { address, folder: tempfile::tempdir().unwrap(), child: None };
        alertmanager.start_process();
        alertmanager
    }

    fn start_process(&mut self) {
        let config = self.folder.path().join("alertmanager.yml");
        std::fs::write(&config, "route: {receiver: none}\nreceivers: [{name: none}]\n").unwrap();
        let child = Command::new("prometheus-alertmanager")
            .args(["--log.level=error", "--cluster.listen-address="])
            .arg(format!("--web.listen-address={}", self.address))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", self.folder.path().join("data").display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("Debian's package prometheus-alertmanager is installed (scripts/install-deps test)");
        self.child = Some(child);
        let begun = Instant::now();
        while self.alerts().is_none() {
            assert!(begun.elapsed() < PATIENCE, "alertmanager is not ready");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The alerts that are active there.
    fn alerts(&self) -> Option<Vec<Value>> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET /api/v2/alerts HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.0 200").then(|| serde_json::from_str(body).unwrap())
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        self.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs prometheus-alertmanager"]
async fn alertmanager_has_what_fires_once_over_outages_and_restarts_until_it_is_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let mut alertmanager = Alertmanager::start();
    let config = config(&format!("[[alertmanager]]\nurl = 'http://{}'\n", alertmanager.address));
    let active = |alertmanager: &Alertmanager| alertmanager.alerts().unwrap_or_default().len();

    let collector = AlertingCollector::start(folder.path(), &config);
    collector.evaluate(true, 0);
    wait_until(|| active(&alertmanager) == 1).await;
    let alert = alertmanager.alerts().unwrap().remove(0);
    let labels = serde_json::json!({"alertname": "flood", "severity": "critical", "dst": "192.0.2.7"});
    assert_eq!(alert["labels"], labels);
    assert!(alert["annotations"]["command"].as_str().unwrap().starts_with("dta-collector flows "), "{alert}");
    assert_eq!(alert["status"]["state"], "active");
    drop(collector);

    // It is away while the alert is resolved, after a restart of the collector.
    alertmanager.stop();
    let collector = AlertingCollector::start(folder.path(), &config);
    collector.evaluate(true, 1);
    wait_until(|| collector.count("alerts.retried") > 0).await;
    alertmanager.start_process();
    wait_until(|| active(&alertmanager) == 1).await;
    collector.evaluate(true, 2);
    assert_eq!(active(&alertmanager), 1, "not a second one");
    collector.resolve_all();
    wait_until(|| active(&alertmanager) == 0).await;
}
