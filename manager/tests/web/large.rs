//! A network of 100 switches and 10,000 flows on the map: all of it is drawn, and how fast is printed.

use std::net::SocketAddrV4;

use dta_proto::key::Flow;
use dta_proto::telemetry::{Means, SwitchPath, TelemetryEntry, list, store};
use dta_proto::wire::dta::DtaBody;
use dta_reporter::{Config, Reporter};
use dta_rpc::Ask as _;

use crate::browser::Browser;
use crate::common::int_bed::{IntBed, Setup, until_room};
use crate::http;

const FLOWS: u32 = 10_000;
const LEAVES: u32 = 80;
const SPINES: u32 = 20;

/// From a host of one leaf to one of another, over a spine.
fn flow_and_path(number: u32) -> (Flow, [u32; 3]) {
    let [from, to] = [number % LEAVES, (number / LEAVES + number + 1) % LEAVES];
    let host = |leaf: u32| format!("10.1.{leaf}.{}", number % 4 + 1);
    let flow = format!("{}:{}->{}:80/tcp", host(from), 1024 + number % 60_000, host(to));
    (flow.parse().unwrap(), [1 + from, 1 + LEAVES + number % SPINES, 1 + to])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_switches_and_ten_thousand_flows_are_drawn() {
    let Some(browser) = Browser::start("the map of a large network") else { return };
    let example = dta_collector::config::EXAMPLE;
    let stores = &example[example.find("[[store]]").unwrap()..];
    let collector = format!("[web]\nlisten = \"127.0.0.1:0\"\n[metrics]\nlisten = \"off\"\n{stores}");
    let mut bed = IntBed::start(&Setup { collector: &collector, ..Setup::default() }).await;
    let stores = bed.client.fetch_stores().await.unwrap();
    let id = |name: &str| {
        let store = stores.iter().filter_map(|info| info.store.as_ref()).find(|store| store.name == name);
        u16::try_from(store.unwrap().id).unwrap()
    };
    let (paths, events) = (id(store::PATHS), id(store::EVENTS));
    let reports: SocketAddrV4 = bed.translator.said("listen").parse().unwrap();
    let mut reporter = Reporter::open(Config::new(reports)).unwrap();
    for number in 0..FLOWS {
        let (flow, switches) = flow_and_path(number);
        let key = flow.to_key();
        let path = SwitchPath::from_switches(&switches).to_bytes();
        reporter.report(paths, DtaBody::KeyWrite { redundancy: 0, key, value: &path }).unwrap();
        let entry = TelemetryEntry::Key { key, means: Means::Itself }.to_bytes();
        reporter.report(events, DtaBody::Append { list: list::KEYS, value: &entry }).unwrap();
        if number % 64 == 0 {
            reporter.flush().unwrap();
            until_room(reports);
        }
    }
    reporter.flush().unwrap();
    bed.until("reports", |counted| {
        counted.own("received") == u64::from(2 * FLOWS) && counted.own("held") == 0 && counted.is_executed()
    })
    .await;
    let page = bed.collector.as_ref().unwrap().said("web").trim_start_matches("http://").to_owned();
    let page = page.trim_end_matches('/');
    let map = http::get(page, "/api/v1/map?flows=10000&number=500").json();
    // Some paths are gone where two flows share all slots.
    let with_path = map["with_path"].as_u64().unwrap();
    assert!(with_path > 9900, "{with_path} flows have a path");
    assert_eq!(map["node_count"], LEAVES + SPINES + 4 * LEAVES);

    browser.open(&format!("http://{page}/"));
    browser.until("document.querySelectorAll(\"nav a\").length > 0", true);
    browser.evaluate(
        "void (window.begun = performance.now(), window.drawn = new Promise((done) => new MutationObserver((_, seen) => { \
         if (document.querySelector(\"#network .link\")) { seen.disconnect(); requestAnimationFrame(() => done(performance.now() - window.begun)); } \
         }).observe(document.body, { childList: true, subtree: true })).then((took) => { window.took = Math.round(took); }), \
         location.hash = \"#/map?flows=10000&number=500\")",
    );
    browser.until("(window.took ?? 0) > 0", true);
    let nodes = "document.querySelectorAll(\".map-node.switch\").length";
    browser.until(nodes, LEAVES + SPINES);
    let links = browser.evaluate("document.querySelectorAll(\"#network .link\").length");
    assert_eq!(links.as_u64(), map["links"].as_array().map(|links| links.len() as u64));
    // Each frame lights up the links of another node.
    browser.evaluate(
        "void (() => { const nodes = [...document.querySelectorAll(\".map-node\")]; let frames = 0; const begun = performance.now(); \
         const next = () => { nodes[frames % nodes.length].dispatchEvent(new Event(\"pointerleave\")); \
         nodes[++frames % nodes.length].dispatchEvent(new Event(\"pointerenter\")); \
         if (performance.now() - begun < 3000) requestAnimationFrame(next); \
         else window.fps = Math.round(frames * 1000 / (performance.now() - begun)); }; next(); })()",
    );
    browser.until("(window.fps ?? 0) > 0", true);
    let [took, fps] = ["window.took", "window.fps"].map(|name| browser.evaluate(name));
    println!("{links} links of 100 switches: first picture after {took} ms, {fps} frames per second");
}
