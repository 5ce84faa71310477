//! The page in the browser and the HTTP interface of a running collector: what they say is what gRPC says, and what they
//! refuse is counted.

#[path = "../common/mod.rs"]
mod common;
#[path = "../schema/mod.rs"]
mod schema;

mod agents;
mod attack;
mod browser;
mod flows;
mod http;
mod large;
mod outside;
mod pages;

use std::process::Command;

use common::daemon::counter;
use common::int_bed::{IntBed, PATIENCE, Setup, int_capture};
use dta_rpc::Ask as _;
use serde_json::Value;

/// The flow of the capture of three reports: its path is 6, 5, 4, and its latency went from 408 to 12 ns.
const CAPTURE: &str = "int-v1.0-three-reports.pcap";

/// A collector with a page, and a translator that has taken the capture.
struct WebBed {
    int: IntBed,
    /// Host and port of the page.
    page: String,
}

impl WebBed {
    /// `None` where there are no captures.
    async fn start() -> Option<WebBed> {
        Self::start_at("127.0.0.1:0").await
    }

    /// The same with the page at an address.
    async fn start_at(listen: &str) -> Option<WebBed> {
        let capture = int_capture(CAPTURE)?;
        let folder = tempfile::tempdir().unwrap();
        // The stores that there are without a configuration, one of them with epochs.
        let example = dta_collector::config::EXAMPLE;
        let stores = &example[example.find("[[store]]").unwrap()..];
        let stores = stores.replace("name = \"int-values\"", "epoch = \"60s\"\nname = \"int-values\"");
        let collector = format!(
            "[web]\nlisten = \"{listen}\"\n[metrics]\nlisten = \"off\"\n[history]\ndirectory = {:?}\n{stores}",
            folder.path().join("history")
        );
        let setup = Setup { dialects: &["intcollector"], collector: &collector, ..Setup::default() };
        let mut int = IntBed::start_in(folder, &setup).await;
        int.replay(&capture, 0, &[]);
        // The translator's counters come with the renewals of its session.
        int.until("reports in memory", |counted| counted.is_in_memory(3) && counted.is_reported()).await;
        let url = int.collector.as_ref().unwrap().said("web").to_owned();
        let page = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let begun = std::time::Instant::now();
        loop {
            let waterfall = http::get(&page, "/api/v1/waterfall").json();
            if waterfall["stages"].as_array().unwrap().iter().any(|stage| stage["name"] == "received") {
                return Some(WebBed { int, page });
            }
            assert!(begun.elapsed() < PATIENCE, "the translator is missing: {waterfall:#}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// What the collector counts of the page.
    async fn counted(&self, name: &str) -> u64 {
        counter(&self.int.client.statistics().await.unwrap(), "collector", name)
    }

    /// The flow that has most latency.
    fn first_flow(&self) -> String {
        let top = http::get(&self.page, "/api/v1/top?by=latency").json();
        top["flows"][0]["flow"].as_str().unwrap_or_else(|| panic!("{top:#}")).to_owned()
    }
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

#[tokio::test]
async fn each_example_of_the_docs_answers_as_its_schema_says() {
    let Some(bed) = WebBed::start().await else { return };
    let flow = bed.first_flow();
    let described = http::get(&bed.page, "/api/openapi.json").json();
    let mut left: Vec<&String> = described["paths"].as_object().unwrap().keys().collect();
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/web.md")).unwrap();
    let examples = docs.lines().filter_map(|line| line.strip_prefix("    curl ")).collect::<Vec<_>>();
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("flows.parquet");
    for example in examples {
        let example = example.split(" | ").next().unwrap();
        let example = example.replace("127.0.0.1:40055", &bed.page);
        let example = example.replace("10.0.0.1:5000->10.0.0.2:5000/udp", &flow);
        let example = example.replace("flows.parquet", saved.to_str().unwrap());
        // What is live does not end by itself: of the waterfall the first message is enough, and there may be no event.
        let patience = if example.contains("events/live") { 3 } else { PATIENCE.as_secs() };
        let until = if example.contains("waterfall/live") { " | sed '/^data: /q'" } else { "" };
        let command = format!("curl -s --max-time {patience} {example}{until}");
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let path = example.split(&bed.page).nth(1).unwrap().split(['?', ' ', '"', '\'']).next().unwrap();
        let Some(route) = described["paths"].get(path) else {
            assert_eq!(path, "/api/openapi.json", "{command}");
            continue;
        };
        left.retain(|left| *left != path);
        let content = &route["get"]["responses"]["200"]["content"];
        if example.contains("format=csv") {
            assert!(
                content.get("text/csv").is_some() && text.starts_with("src,dst,bytes,"),
                "{command}: {text}"
            );
            continue;
        }
        if example.contains("format=parquet") {
            let is_described = content.get("application/vnd.apache.parquet").is_some();
            assert!(is_described && std::fs::read(&saved).unwrap().starts_with(b"PAR1"), "{command}: {text}");
            continue;
        }
        if content.get("text/event-stream").is_some() {
            if path.contains("waterfall") {
                assert!(text.starts_with("event: waterfall\ndata: {"), "{command}: {text}");
            }
            continue;
        }
        let document: Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{command}: {e}: {text}"));
        let of_document = &content["application/json"]["schema"];
        let (of_one, documents) = match of_document["items"].is_object() {
            true => (&of_document["items"], document.as_array().unwrap().iter().collect()),
            false => (of_document, vec![&document]),
        };
        let is_past = text.contains("without_epochs");
        let reference = match of_one["oneOf"].as_array() {
            Some(both) => &both[usize::from(is_past)]["$ref"],
            None => &of_one["$ref"],
        };
        let name = reference.as_str().unwrap().rsplit('/').next().unwrap();
        assert!(!documents.is_empty() || path.ends_with("/trace"), "{command} has nothing");
        for document in documents {
            schema::hold(name, document);
        }
    }
    assert!(left.is_empty(), "docs/web.md has no example of {left:?}");
}

#[tokio::test]
async fn answers_are_those_of_grpc() {
    let Some(bed) = WebBed::start().await else { return };
    let flow = bed.first_flow();
    let get = |path: &str| http::get(&bed.page, path).json();
    let known = get(&format!("/api/v1/flow?flow={}", encoded(&flow)));
    let switches: Vec<_> =
        known[0]["hops"].as_array().unwrap().iter().map(|hop| hop["switch"].as_u64()).collect();
    assert_eq!(switches, [Some(6), Some(5), Some(4)]);
    assert_eq!(known[0]["latency"]["value"], 12);
    let changes = get("/api/v1/events?kind=flow-latency");
    let latencies: Vec<_> =
        changes.as_array().unwrap().iter().map(|line| line["event"]["new"].as_u64()).collect();
    assert_eq!(latencies, [Some(408), Some(12)]);

    let nodes = bed.int.client.statistics().await.unwrap();
    let stages = get("/api/v1/waterfall");
    let stage = |name: &str| {
        let found = stages["stages"].as_array().unwrap().iter().find(|stage| stage["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {stages:#}"))["count"].as_u64().unwrap()
    };
    assert_eq!(stage("received"), counter(&nodes, "translator/", "received"));
    assert_eq!(stage("arrived"), counter(&nodes, "nic/", "received"));
    let stores = bed.int.client.fetch_stores().await.unwrap();
    // Three reports of one flow are far from overwriting each other.
    let used: u64 = stores.iter().map(|info| info.used).sum();
    assert_eq!((stage("stored"), stage("queryable")), (used, used), "{stages:#}");
    assert!(used > 0);
    let rows = get("/api/v1/stores");
    for (row, info) in rows.as_array().unwrap().iter().zip(&stores) {
        assert_eq!((row["used"].as_u64(), row["bytes"].as_u64()), (Some(info.used), Some(info.length)));
    }
    assert_eq!(rows.as_array().unwrap().len(), stores.len());

    // The memory's map counts what its elements show.
    let map = get("/api/v1/memory/map?store=int-paths&cells=64");
    let cells = map["cells"].as_array().unwrap();
    let full = cells.iter().find(|cell| cell["used"] != 0).expect("a path is there");
    let [first, count] = ["first", "count"].map(|name| full[name].as_u64().unwrap());
    let mut used = 0;
    for from in (first..first + count).step_by(256) {
        let rows = get(&format!("/api/v1/memory?store=int-paths&first={from}&count=256"));
        let rows = rows["rows"].as_array().unwrap().clone();
        used +=
            rows.iter().take((first + count - from) as usize).filter(|row| row["content"] != "empty").count()
                as u64;
    }
    assert_eq!(Some(used), full["used"].as_u64());
}

#[tokio::test]
async fn what_is_wrong_is_a_problem_that_says_what_to_do() {
    let Some(bed) = WebBed::start().await else { return };
    for (path, status, words) in [
        ("/api/v1/nothing", 404, "/api/openapi.json"),
        ("/nothing", 404, "/api/openapi.json"),
        ("/api/v1/flow", 400, "flow is missing"),
        ("/api/v1/flow?flow=x", 400, "flow is"),
        ("/api/v1/stores?colour=red", 400, "colour"),
        ("/api/v1/top?by=size", 400, "latency"),
        ("/api/v1/top?number=99999999999", 400, "10000"),
        ("/api/v1/memory?store=none", 404, "int-values"),
        ("/api/v1/memory?store=int-paths&first=99999999999", 404, "elements"),
        ("/api/v1/epochs?store=int-paths", 404, "epoch"),
        ("/api/v1/events?at=-1h&since=-2h", 400, "not both"),
        ("/api/v1/events?switch=leaf", 400, "leaf"),
    ] {
        let answer = http::get(&bed.page, path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        let problem = answer.json();
        assert_eq!(problem["status"], status);
        assert!(problem["detail"].as_str().unwrap().contains(words), "{path}: {problem}");
    }
}
