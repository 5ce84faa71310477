//! The dashboards in `testbed/dashboards/`: each query of each is answered, with something, by the real database that
//! it is for, filled by captures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bed::{Bed, RECORDS};
use crate::influx::{DATABASE, Influx};
use crate::prometheus::{PATIENCE, Prometheus};

/// A query of a dashboard, and where it stands.
struct Query {
    place: String,
    text: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/dashboards")
}

/// All dashboards for a database.
fn dashboards(database: &str) -> Vec<(String, Value)> {
    let mut all: Vec<_> = std::fs::read_dir(folder().join(database))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let content = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            (path.file_name().unwrap().to_string_lossy().into_owned(), content)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Queries of all panels, with values in the places of Grafana's variables.
fn queries(database: &str, field: &str) -> Vec<Query> {
    let mut found = Vec::new();
    for (file, dashboard) in dashboards(database) {
        for panel in dashboard["panels"].as_array().expect("panels") {
            let targets = panel["targets"].as_array().expect("targets");
            assert!(!targets.is_empty(), "{file}: {} asks for nothing", panel["title"]);
            for target in targets {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{file}: {}", panel["title"]);
                assert_eq!(target["datasource"]["type"], database, "{file}: {}", panel["title"]);
                let text = target[field].as_str().expect("a query");
                let text = text
                    .replace("$__rate_interval", "1m")
                    .replace("$timeFilter", "time > now() - 1h")
                    .replace("$__interval", "1s")
                    .replace("$instance", ".*")
                    .replace("$flow", ".*")
                    .replace("$exporter", ".*");
                let mut rest = text.split('$').skip(1);
                let is_known =
                    rest.all(|rest| !rest.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '{'));
                assert!(is_known, "{file}: {text} has a variable that this test does not know");
                found.push(Query { place: format!("{file}: {}", panel["title"]), text });
            }
        }
    }
    found
}

/// What variables of dashboards ask for.
fn variables(database: &str) -> Vec<Query> {
    let all = dashboards(database);
    let of = |(file, dashboard): &(String, Value)| {
        let list = dashboard["templating"]["list"].as_array().expect("a list").clone();
        let file = file.clone();
        assert!(list[0]["type"] == "datasource" && list[0]["query"] == database, "{file}: {}", list[0]);
        list.into_iter().skip(1).map(move |one| Query {
            place: format!("{file}: variable {}", one["name"]),
            text: one["query"].as_str().expect("a query").to_owned(),
        })
    };
    all.iter().flat_map(of).collect()
}

#[test]
fn the_files_are_as_they_are_made() {
    let made = Command::new(folder().join("make")).arg("--check").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for database in ["prometheus", "influxdb"] {
        let mut uids: Vec<_> = dashboards(database).iter().map(|(_, one)| one["uid"].to_string()).collect();
        let count = uids.len();
        uids.dedup();
        assert!(count >= 4 && uids.len() == count, "{uids:?}");
    }
}

/// Captures with everything that dashboards show.
const CAPTURES: [(&str, u64); 2] =
    [("int-v0.5-6-hops-all-fields.pcap", 100), ("sdfabric-v0.5-real-traffic.pcap", 3579)];

async fn replay_all(bed: &mut Bed) -> bool {
    for (capture, reports) in CAPTURES {
        if !bed.replay(capture, reports).await {
            return false;
        }
    }
    true
}

#[tokio::test]
#[ignore = "needs Debian's prometheus"]
async fn prometheus_answers_every_query_of_its_dashboards() {
    let mut bed = Bed::start("tags", "auto").await;
    if !replay_all(&mut bed).await {
        return;
    }
    bed.send_flows("127.0.0.1", 1, &RECORDS);
    bed.pages();
    let prometheus = Prometheus::start(bed.int.folder.path(), &bed.addresses());
    let mut wrong = empty_panels(&prometheus, queries("prometheus", "expr"));
    for Query { place, text } in variables("prometheus") {
        let (metric, label) = text
            .strip_prefix("label_values(")
            .and_then(|text| text.strip_suffix(')')?.split_once(", "))
            .expect("label_values(METRIC, LABEL)");
        match prometheus.label_values(metric, label) {
            Ok(values) if !values.is_empty() => {}
            answer => wrong.push(format!("{place}: {text}: {answer:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The queries that have no answer, or an empty one, however often Prometheus is asked: a rate takes two good scrapes of
/// what it is of.
fn empty_panels(prometheus: &Prometheus, mut queries: Vec<Query>) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let mut wrong = Vec::new();
        queries.retain(|Query { place, text }| match prometheus.query(text) {
            Ok(series) if !series.is_empty() => false,
            answer => {
                wrong.push(format!("{place}: {text}: {answer:?}"));
                true
            }
        });
        if queries.is_empty() || begun.elapsed() > PATIENCE {
            return wrong;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Who has NetFlow alone finds something on each panel but those about INT.
#[tokio::test]
#[ignore = "needs Debian's prometheus"]
async fn no_panel_is_empty_for_users_of_netflow() {
    let bed = Bed::start("tags", "auto").await;
    bed.send_flows("127.0.0.1", 1, &RECORDS);
    bed.pages();
    let prometheus = Prometheus::start(bed.int.folder.path(), &bed.addresses());
    let is_theirs =
        |query: &Query| !["flows.json", "queues.json"].iter().any(|file| query.place.starts_with(file));
    let queries: Vec<_> = queries("prometheus", "expr").into_iter().filter(is_theirs).collect();
    assert!(queries.len() > 30, "{} queries", queries.len());
    let wrong = empty_panels(&prometheus, queries);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dashboards_ask_for_metrics_that_there_are() {
    let document = std::fs::read_to_string(folder().join("../../docs/metrics.md")).unwrap();
    let mut asked = std::collections::BTreeSet::new();
    for Query { text, .. } in queries("prometheus", "expr") {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned);
        asked.extend(words.filter(|word| word.starts_with("dta_")));
    }
    assert!(asked.len() > 30, "{asked:?}");
    for metric in asked {
        assert!(document.contains(&format!("`{metric}`")), "docs/metrics.md has no {metric}");
    }
}

#[tokio::test]
#[ignore = "needs Debian's influxdb"]
async fn influxdb_answers_every_query_of_its_dashboards() {
    let folder = tempfile::tempdir().unwrap();
    let influx = Influx::start(folder.path());
    let export = format!(
        "[export.influx]\nurl = \"http://{}\"\ndatabase = \"{DATABASE}\"\nspool = \"{}\"\ntraffic_seconds = 1\n",
        influx.address,
        folder.path().join("spool").display()
    );
    let mut bed = Bed::with("off", "auto", &export).await;
    if !replay_all(&mut bed).await {
        return;
    }
    bed.send_flows("127.0.0.1", 1, &RECORDS);
    influx.expect("traffic_largest_flow", 3);
    influx.expect("traffic_exporter", 4);
    influx.expect("flow_latency", 100);
    influx.expect("drops", 1);
    influx.expect("congestion", 1);
    let mut wrong = Vec::new();
    for Query { place, text } in queries("influxdb", "query").into_iter().chain(variables("influxdb")) {
        match influx.query(&text) {
            Ok(series) if !series.is_empty() => {}
            answer => wrong.push(format!("{place}: {text}: {answer:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
