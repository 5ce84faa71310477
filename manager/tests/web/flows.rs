//! Flow records on the page: those of two exporters, whose sums are known.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::browser::Browser;
use crate::common::int_bed::{IntBed, PATIENCE, Setup};
use crate::{encoded, http};

/// Ports of the flows' destinations: each flow has as many packets of 100 bytes as its place.
const PORTS: [u16; 4] = [22, 80, 443, 8080];

/// A datagram of NetFlow v5 with a flow to each port, of which a part of the packets was counted.
fn v5(parts: u32) -> Vec<u8> {
    let mut bytes = [5, PORTS.len() as u16].map(u16::to_be_bytes).concat();
    bytes.resize(24, 0);
    for (packets, port) in (1..).zip(PORTS) {
        bytes.extend([[10, 0, 0, 1], [10, 0, 0, 2]].concat());
        bytes.extend([0; 8]);
        bytes.extend([packets * parts, packets * parts * 100].map(u32::to_be_bytes).concat());
        bytes.extend([0; 8]);
        bytes.extend([5000, port].map(u16::to_be_bytes).concat());
        bytes.extend([0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

/// A rule of each severity, which all fire.
fn firing_rules() -> String {
    let rule = |severity: &str| {
        format!(
            "[[alerts.rule]]\nname = \"much-{severity}\"\ngroup = \"dst\"\nmeasure = \"bytes\"\nabove = 1\n\
             window = \"2m\"\nseverity = \"{severity}\"\ntext = \"{{dst}} gets {{value}}\"\nrunbook = \"https://wiki.example/much\"\n"
        )
    };
    ["info", "warning", "critical"].map(rule).concat()
}

pub(crate) struct FlowsBed {
    _int: IntBed,
    pub(crate) page: String,
}

impl FlowsBed {
    /// One exporter counts all packets (1,000 for each place), the other half of them.
    pub(crate) async fn start() -> FlowsBed {
        let example = dta_collector::config::EXAMPLE;
        let stores = &example[example.find("[[store]]").unwrap()..];
        let rules = firing_rules();
        let collector =
            format!("[web]\nlisten = \"127.0.0.1:0\"\n[metrics]\nlisten = \"off\"\n{rules}{stores}");
        let setup = Setup { flows: true, collector: &collector, ..Setup::default() };
        let mut int = IntBed::start(&setup).await;
        let to = int.translator.ready["flows"][0].as_str().unwrap().to_owned();
        for (exporter, parts) in [("127.0.3.1", 1000), ("127.0.3.2", 500)] {
            UdpSocket::bind((exporter, 0)).unwrap().send_to(&v5(parts), &to).unwrap();
        }
        let records = 2 * PORTS.len() as u64;
        int.until("records", |counted| {
            counted.own("flows.appended") == records && counted.own("held") == 0 && counted.is_executed()
        })
        .await;
        let page = int.collector.as_ref().unwrap().said("web").to_owned();
        let page = page.trim_start_matches("http://").trim_end_matches('/').to_owned();
        FlowsBed { _int: int, page }
    }

    /// Waits until so many alerts fire.
    pub(crate) async fn until_firing(&self, count: usize) {
        let begun = Instant::now();
        loop {
            let document = self.get("/api/v1/alerts").json();
            let alerts = document["alerts"].as_array().unwrap().iter();
            if alerts.filter(|alert| alert["state"] == "firing").count() == count {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "not {count} alerts fire: {document:#}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn get(&self, path: &str) -> http::HttpAnswer {
        http::get(&self.page, path)
    }
}

#[tokio::test]
async fn the_interface_answers_as_the_command_does() {
    let bed = FlowsBed::start().await;
    let all = bed.get("/api/v1/flows?group=dst-port&since=-1h&per=1h&number=2").json();
    assert_eq!(all["total"], serde_json::json!({ "bytes": 1_000_000, "packets": 10_000, "flows": 4 }));
    assert_eq!(all["group_count"], 4);
    let ports: Vec<_> =
        all["groups"].as_array().unwrap().iter().map(|of| &of["values"]["dst_port"]).collect();
    assert_eq!(ports, [8080, 443]);
    let series: u64 = all["groups"][0]["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| bucket["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(series, 400_000);
    let condition = encoded("dst-port = 443 or dst-port = 80");
    let one = bed.get(&format!("/api/v1/flows?group=total&exporter=127.0.3.2&where={condition}")).json();
    assert_eq!(one["total"]["bytes"], 250_000);
    let csv = bed.get("/api/v1/flows?group=dst-port&number=1&format=csv");
    assert_eq!(csv.body, "dst_port,bytes,packets,flows\n8080,400000,4000,1\n");
    assert!(csv.header("content-type").starts_with("text/csv"));
    let sources = bed.get("/api/v1/sources").json();
    let sources = sources.as_array().unwrap().iter();
    let records: Vec<_> =
        sources.map(|one| (one["kind"].as_str(), one["number"].as_str(), one["records"].as_u64())).collect();
    let expected = ["127.0.3.1", "127.0.3.2"].map(|number| (Some("exporter"), Some(number), Some(4)));
    assert!(expected.iter().all(|one| records.contains(one)), "{records:?}");
    let columns = bed.get("/api/v1/flows/columns").json();
    assert!(columns.as_array().unwrap().iter().any(|column| column["name"] == "dst-as"));

    for (query, words) in [
        (format!("where={}", encoded("dst-prot = 443")), "dst-prot"),
        ("group=size".into(), "size"),
        ("by=octets".into(), "bytes, packets, flows"),
        ("format=xml".into(), "json, csv or parquet"),
        ("exporter=edge9".into(), "edge9"),
        ("at=-1h&since=-2h".into(), "not both"),
        ("since=-1h&until=-2h".into(), "must be earlier than"),
        ("per=soon".into(), "60s"),
        ("number=99999999".into(), "10000"),
        ("store=int-events".into(), "no flow records"),
    ] {
        let answer = bed.get(&format!("/api/v1/flows?{query}"));
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        assert!(answer.json()["detail"].as_str().unwrap().contains(words), "{query}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_shows_the_sums_of_the_records_and_keeps_what_is_chosen() {
    let Some(browser) = Browser::start("flow records in a browser") else { return };
    let bed = FlowsBed::start().await;
    let url = |view: &str| format!("http://{}/#/{view}", bed.page);
    let text = |selector: &str| {
        format!("[...document.querySelectorAll({selector:?})].map((one) => one.innerText.trim()).join()")
    };
    for width in [1280, 400] {
        browser.resize(width, 900);
        browser.open(&url("flows?group=dst-port&by=packets"));
        browser.until(&text("#flows tbody td:nth-child(2)"), "8080,443,80,22");
        browser.until(&text("#flows [data-sum=packets]"), "4,000,3,000,2,000,1,000");
        let stacked = "new Set([...document.querySelectorAll(\"#flows svg rect\")].map((one) => one.getAttribute(\"class\"))).size";
        browser.until(stacked, 4);
        browser.reload();
        browser.until(&text("#flows [data-sum=packets]"), "4,000,3,000,2,000,1,000");
        browser.until(&text("#flows tbody td:last-child"), "new,new,new,new");

        // A value filters.
        browser.evaluate("document.querySelector(\"#flows tbody tr:nth-child(2) a\").click()");
        browser.until(&text("#flows tbody td:nth-child(2)"), "443");
        browser.until("new URLSearchParams(location.hash.split(\"?\")[1]).get(\"where\")", "dst-port = 443");
        browser.until(&format!("{}.includes(\"1 group of 1 record\")", text("#flows .hint")), true);

        // Names of columns are completed.
        browser.evaluate(
            "(() => { const input = document.querySelector(\"input[name=where]\"); input.value = \"dst-port = 443 and dst-a\"; \
             input.dispatchEvent(new Event(\"input\")); })()",
        );
        let offered = "[...document.querySelectorAll(\"#columns option\")].map((one) => one.value).join()";
        browser.until(offered, "dst-port = 443 and dst-as");

        // What it downloads.
        let saved = "fetch(document.querySelector(\"#csv\").href).then((answer) => answer.text()).then((text) => { window.saved = text; })";
        browser.evaluate(&format!("void {saved}"));
        browser.until("window.saved ?? \"\"", "dst_port,bytes,packets,flows\n443,300000,3000,1\n");

        // From one source to one destination, and on to each port.
        browser.open(&url("flows?group=src,dst,dst-port"));
        browser.until("document.querySelectorAll(\"#sankey .sankey\").length", 5);

        browser.open(&url("flows?group=exporter&where=dst-port%20%3D%2080&before=no"));
        browser.until(&text("#flows tbody td:nth-child(2)"), "127.0.3.1,127.0.3.2");
        browser.open(&url("flows?at=-2h"));
        browser.until(&text("#flows strong"), "No flow records from this time");
        let is_wider = browser.evaluate("document.documentElement.scrollWidth > innerWidth");
        assert_eq!(is_wider, false, "the page is wider than {width} pixels");
    }
    // A condition that is wrong is a problem that the page shows.
    browser.open(&url("flows?where=dst-prot"));
    browser.until(&format!("{}.includes(\"dst-prot\")", text(".failed")), true);
    let complaints: Vec<String> =
        browser.complaints().into_iter().filter(|text| !text.contains("where=dst-prot")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
