//! From captures of Telemetry Reports to a real InfluxDB (Debian's `influxdb`, 1.6), through translator and collector.

mod common;
#[path = "../../testbed/tests/shared/influx.rs"]
mod influx;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::daemon::counter;
use common::int_bed::{Counted, IntBed, PATIENCE, Setup, int_capture};
use common::loopback;
use dta_proto::telemetry::{Metric, TelemetryEntry, list};
use dta_rpc::Ask;
use influx::Influx;
use serde_json::{Value, json};

impl Influx {
    /// All points, each as its time and fields, by measurement.
    fn all_points(&self) -> BTreeMap<String, Value> {
        let answer = self.try_ask("SELECT * FROM /.*/").unwrap();
        let series = answer["results"][0]["series"].as_array().cloned().unwrap_or_default();
        let points = |series: &Value| {
            let columns = series["columns"].as_array().unwrap();
            let point = |row: &Value| {
                let fields = columns.iter().zip(row.as_array().unwrap());
                let there = fields.filter(|(_, value)| !value.is_null());
                there
                    .map(|(name, value)| (name.as_str().unwrap().to_owned(), value.clone()))
                    .collect::<Value>()
            };
            let points: Vec<Value> = series["values"].as_array().unwrap().iter().map(point).collect();
            (series["name"].as_str().unwrap().to_owned(), points.into())
        };
        series.iter().map(points).collect()
    }

    fn measurements(&self) -> Vec<String> {
        let rows = self.ask("SHOW MEASUREMENTS").remove("measurements").unwrap_or_default();
        rows.iter().map(|row| row[0].as_str().unwrap().to_owned()).collect()
    }

    /// Time and fields of all points of a measurement.
    fn points(&self, fields: &str, measurement: &str) -> Vec<Vec<Value>> {
        let query = format!("SELECT {fields} FROM \"{measurement}\"");
        self.ask(&query).remove(measurement).unwrap_or_default()
    }
}

struct Bed(IntBed);

impl Bed {
    /// `more` is of the table `[export.influx]`.
    async fn new(influx: &Influx, schema: &str, more: &str, dialects: &[&str], translator: &str) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let collector = format!(
            "[export.influx]\nurl = \"{}\"\ndatabase = \"int\"\nschema = \"{schema}\"\n{more}\nspool = \"{}\"",
            influx.url(),
            folder.path().join("spool").display(),
        );
        // So that the translator finds it after a restart.
        let same_ports = true;
        let setup = Setup { dialects, collector: &collector, same_ports, translator, ..Setup::default() };
        Bed(IntBed::start_in(folder, &setup).await)
    }

    /// Waits until this many reports were decoded, and all that they became has left the translator.
    async fn executed(&mut self, reports: u64) {
        self.0.until("reports taken", |counted| counted.is_taken(reports)).await;
    }

    async fn events(&self, list: u32) -> Vec<TelemetryEntry> {
        self.0.entries(list).await.0
    }

    async fn counted(&self, name: &str) -> u64 {
        let nodes = self.0.client.statistics().await.unwrap();
        counter(&nodes, "collector", &format!("export.influx.{name}"))
    }

    /// Waits until the exporter has taken these events, and the database all points.
    async fn exported(&self, events: u64) {
        let begun = Instant::now();
        loop {
            let (taken, spooled) = (self.counted("events").await, self.counted("spooled").await);
            let made = self.counted("found").await + self.counted("made").await;
            let skipped = self.counted("skipped").await;
            let done = self.counted("delivered").await + self.counted("dropped.rejected").await;
            if taken >= events && taken - skipped <= made && spooled == 0 && made == done {
                return;
            }
            let nodes = self.0.client.statistics().await.unwrap();
            assert!(begun.elapsed() < PATIENCE, "{events} events: {nodes:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

const ALL_LISTS: [u32; 3] = [list::CHANGES, list::DROPS, list::CONGESTION];

/// How long INTCollector's own end-to-end test waits for the points of a report.
const THEIR_WAIT_MS: u64 = 1000;

/// Both of INTCollector's modes, at each time that the page on the way from it names.
#[tokio::test]
#[ignore = "starts Debian's influxd (scripts/install-deps test)"]
async fn what_intcollectors_own_test_asserts_holds_at_every_flush_ms_that_is_named() {
    let Some(file) = int_capture("int-v1.0-three-reports.pcap") else { return };
    let page = include_str!("../../docs/migrate-from-intcollector.md");
    let times = page.lines().filter_map(|line| line.trim().strip_prefix("flush_ms = "));
    let times: Vec<&str> = times.chain(page.contains("up to 500").then_some("500")).collect();
    assert_eq!(times, ["200", "500"], "the page names others");
    let reports = datagrams(&std::fs::read(file).unwrap());
    assert_eq!(reports.len(), 3);
    for detect in ["threshold=50", "width=64"] {
        for flush_ms in &times {
            points_of_three_reports(&reports, detect, flush_ms).await;
        }
    }
}

/// What the UDP datagrams of a capture carry (classic pcap, little-endian; Ethernet, IPv4 without options).
fn datagrams(pcap: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut all) = (&pcap[24..], Vec::new());
    while let Some((header, behind)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        all.push(behind[42..len].to_vec());
        rest = &behind[len..];
    }
    all
}

async fn points_of_three_reports(reports: &[Vec<u8>], detect: &str, flush_ms: &str) {
    let run = format!("{detect}, flush_ms = {flush_ms}");
    // Each point is held by the translator, and by the exporter, and both let it go in time.
    let held = u64::from(dta_translator::config::FlushTimes::default().append_ms);
    assert!(held + flush_ms.parse::<u64>().unwrap() < THEIR_WAIT_MS, "{run}");
    let influx = Influx::start();
    let rule =
        |metric| format!("[translator.int.metric.{metric}]\ndetect = \"{detect}\"\nkeep_alive_ms = 0\n");
    let rules = ["hop-latency", "flow-latency", "queue-occupancy", "link-utilization"].map(rule).concat();
    let int = format!("[translator.int]\ntimestamps = \"raw\"\n{rules}");
    let flush = format!("flush_ms = {flush_ms}");
    let mut bed = Bed::new(&influx, "intcollector", &flush, &["intcollector"], &int).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = bed.0.translator.ready["int"][0].as_str().unwrap().to_owned();
    // The second report changes nothing that counts, so what is there stays. The third moves switch 4 and the flow.
    for (number, report) in (1..).zip(reports) {
        socket.send_to(report, &to).unwrap();
        bed.0.until_unasked(&run, |counted| counted.is_taken(number)).await;
        let events = bed.events(list::CHANGES).await.len() as u64;
        bed.exported(events).await;
        let expected = points_after(number == 3);
        let begun = Instant::now();
        // A measurement is listed a moment before its points are.
        while influx.all_points() != expected && begun.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(influx.all_points(), expected, "{run}, report {number}");
    }
    assert_eq!((bed.counted("unnamed").await, bed.counted("without_path").await), (0, 0), "{run}");
}

/// Times and fields of all points that INTCollector's test looks for, by measurement, before and after the third report.
fn points_after(third: bool) -> BTreeMap<String, Value> {
    let flow = "10.0.0.1:5000->10.0.0.2:5000,proto=17";
    let mut all = BTreeMap::new();
    let mut put = |name: String, mut first: Vec<Value>, then: Option<Value>| {
        first.extend(then.filter(|_| third));
        assert!(all.insert(name, Value::from(first)).is_none());
    };
    let stat = |time: u64, latency: u64| json!({ "time": time, "flow_latency": latency, "path": "6:5:4" });
    put(format!("flow_stat,{flow}"), vec![stat(1524138290, 408)], Some(stat(1524138300, 12)));
    let point = |time: u64, value: u64| json!({ "time": time, "value": value });
    for (switch, time, [latency, queue, link], then) in [
        (4, 1524234560, [400, 600, 1], Some([4, 6, 1000])),
        (5, 1524234561, [4, 6, 1], None),
        (6, 1524234562, [4, 6, 1], None),
    ] {
        let then = |at: usize| then.map(|then: [u64; 3]| point(1524234570, then[at]));
        put(format!("flow_hop_latency,{flow},sw_id={switch}"), vec![point(time, latency)], then(0));
        put(format!("queue_occupancy,sw_id={switch},queue_id=5"), vec![point(time, queue)], then(1));
        put(format!("port_tx_utilize,sw_id={switch},port_id=3"), vec![point(time, link)], then(2));
    }
    all
}

#[tokio::test]
#[ignore = "starts Debian's influxd (scripts/install-deps test)"]
async fn a_latency_gives_a_point_when_it_leaves_its_interval() {
    let Some(file) = int_capture("int-v0.5-latency-events.pcap") else { return };
    // The third hop's latency, in every report; and INTCollector's rule, whose intervals are 64 wide.
    let bytes = std::fs::read(&file).unwrap();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut changes: Vec<u32> = Vec::new();
    for latency in (0..100).map(|n| word(24 + n * (16 + 148) + 16 + 132 + 4)) {
        if changes.last().is_none_or(|last| last / 64 != latency / 64) {
            changes.push(latency);
        }
    }
    assert!(changes.len() > 2, "{changes:?}");
    let influx = Influx::start();
    let int = "[translator.int.metric.hop-latency]\ndetect = \"width=64\"";
    let mut bed = Bed::new(&influx, "intcollector", "", &["intcollector"], int).await;
    bed.0.replay(&file, 0, &[]);
    bed.executed(100).await;
    let events = bed.events(list::CHANGES).await.len() as u64;
    bed.exported(events).await;
    let names = influx.measurements();
    let hops: Vec<_> = names.iter().filter(|name| name.starts_with("flow_hop_latency,")).collect();
    assert_eq!(hops.len(), 3, "{names:?}");
    let values = |name: &&String| -> Vec<u32> {
        influx.points("value", name).iter().map(|point| point[1].as_u64().unwrap() as u32).collect()
    };
    let third = hops.iter().map(values).find(|values| values.first() == Some(&200)).unwrap();
    assert_eq!(third, changes);
}

/// How many points each measurement is to have, of these events.
fn expected(events: &[TelemetryEntry]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for event in events {
        let (name, field) = match event {
            TelemetryEntry::Change { metric: Metric::FlowPath, .. } => ("flow_path".into(), "hops"),
            TelemetryEntry::Change { metric, .. } => (metric.name().replace('-', "_"), "value"),
            TelemetryEntry::Drop { .. } => ("drops".into(), "value"),
            TelemetryEntry::Congestion { .. } => ("congestion".into(), "value"),
            TelemetryEntry::Key { .. } => continue,
        };
        *counts.entry(format!("{name}.{field}")).or_default() += 1;
    }
    counts
}

fn counts(influx: &Influx) -> BTreeMap<String, u64> {
    let count = |name: &String| {
        let field = if name == "flow_path" { "hops" } else { "value" };
        let rows = influx.points(&format!("COUNT(\"{field}\")"), name);
        // A measurement is listed a moment before its points are.
        (format!("{name}.{field}"), rows.first().map_or(0, |row| row[1].as_u64().unwrap()))
    };
    // Sums of traffic are no events.
    influx.measurements().iter().filter(|name| !name.starts_with("traffic_")).map(count).collect()
}

#[tokio::test]
#[ignore = "starts Debian's influxd (scripts/install-deps test)"]
async fn a_database_that_is_away_and_a_collector_that_is_killed_cost_no_event() {
    let files = [
        "int-v0.5-1000-flows-paths.pcap",
        "int-v0.5-6-hops-all-fields.pcap",
        "sdfabric-v0.5-real-traffic.pcap",
    ];
    let Some(files) = files.iter().map(|file| int_capture(file)).collect::<Option<Vec<_>>>() else { return };
    // `make soak` takes the whole minute.
    let away = std::env::var("DTA_OUTAGE_SECONDS").map_or(12, |seconds| seconds.parse().unwrap());
    let mut influx = Influx::start();
    let mut bed = Bed::new(&influx, "tags", "", &["intcollector", "sdfabric"], "").await;
    // The database goes in the middle of a load.
    std::thread::scope(|scope| {
        let load = scope.spawn(|| bed.0.replay(&files[0], 0, &["--rate", "250"]));
        std::thread::sleep(Duration::from_secs(2));
        influx.stop();
        load.join().unwrap();
    });
    let stopped = Instant::now();
    bed.executed(1000).await;
    bed.0.replay(&files[1], 0, &[]);
    bed.executed(1100).await;
    let begun = Instant::now();
    while bed.counted("events").await < bed.events(list::CHANGES).await.len() as u64
        || bed.counted("spooled").await == 0
        || bed.counted("retried").await == 0
    {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let spooled = bed.counted("spooled").await;
    bed.0.restart_collector();
    assert!(bed.counted("found").await >= spooled);
    // Until the translator has its session again, the NIC refuses what it sends. It hands in its counters there then.
    let is_back = |counted: &Counted| {
        counted.collector("session.queue_pairs_rebuilt") > 0
            && counted.reported("received") == counted.own("received")
    };
    bed.0.until("a session with the collector that was started again", is_back).await;
    bed.0.replay(&files[2], 1, &[]);
    bed.executed(1100 + 3579).await;
    tokio::time::sleep(Duration::from_secs(away).saturating_sub(stopped.elapsed())).await;
    influx.go_on();
    let mut events = Vec::new();
    for list in ALL_LISTS {
        events.extend(bed.events(list).await);
    }
    let begun = Instant::now();
    while counts(&influx) != expected(&events) {
        assert!(begun.elapsed() < PATIENCE, "{:?} is not {:?}", counts(&influx), expected(&events));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // And no more than that.
    let begun = Instant::now();
    while bed.counted("spooled").await > 0 {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(counts(&influx), expected(&events));
    for name in ["dropped.spool_full", "dropped.rejected", "overwritten", "damaged", "unreadable"] {
        assert_eq!(bed.counted(name).await, 0, "{name}");
    }
    // The translator may go on for a moment with the queue pairs that ended with the collector.
    let refused = counter(&bed.0.client.statistics().await.unwrap(), "nic/", "dropped.unknown_queue_pair");
    let missing = bed.counted("missing").await;
    assert!(missing <= refused, "{missing} batches are missing, and the NIC refused {refused} frames");
    // A missing batch may have had keys.
    assert!(missing > 0 || bed.counted("unnamed").await == 0);
    assert!(expected(&events).values().sum::<u64>() > 2000, "{:?}", expected(&events));
}
