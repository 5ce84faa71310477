//! Captures of Telemetry Reports, replayed with `dta-manager replay` into a translator and a collector as they are
//! without a configuration of stores: every report is decoded, and the answers are the capture's. Needs no privilege.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::int_bed::{Counted, IntBed, Setup, int_capture};
use common::manager;
use dta_proto::control::Policy;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Metric, SwitchPath, TelemetryEntry, TimedValue, Why, list};
use dta_rpc::AskKeys;

struct Bed(IntBed);

impl Bed {
    /// `more` is for `[translator.int]`.
    async fn new(dialect: &str, more: &str) -> Bed {
        let translator = format!("[translator.int]\n{more}");
        Bed(IntBed::start(&Setup { dialects: &[dialect], translator: &translator, ..Setup::default() }).await)
    }

    /// Replays a capture of this many reports, and waits until all are in memory. All must be decoded.
    async fn replay(&mut self, capture: PathBuf, reports: u64) -> Counted {
        let printed = self.0.replay(&capture, 0, &[]).replace(',', "");
        assert!(printed.starts_with(&format!("{reports} of {reports} datagrams sent")), "{printed}");
        let counted = self.0.until("reports in memory", |counted| counted.is_in_memory(reports)).await;
        let own = |name| counted.own(name);
        assert_eq!((own("accepted"), own("int.primitives")), (own("received"), own("received")));
        assert_eq!(own("int.unchanged") + own("int.changed"), reports, "a report was not decoded");
        assert_eq!((own("int.gaps"), own("int.evicted")), (0, 0));
        counted
    }

    async fn values(&mut self, keys: &[Key]) -> Vec<Option<u32>> {
        let answers = self.0.client.key_write("int-values", keys, Policy::First, 0).await.unwrap();
        answers
            .iter()
            .map(|a| a.value.as_ref().map(|value| TimedValue::parse_bytes(value).unwrap().value))
            .collect()
    }

    async fn paths(&mut self, flows: &[Flow]) -> Vec<String> {
        let keys: Vec<_> = flows.iter().map(Flow::to_key).collect();
        let answers = self.0.client.key_write("int-paths", &keys, Policy::First, 0).await.unwrap();
        answers
            .iter()
            .map(|a| SwitchPath::parse_bytes(a.value.as_ref().unwrap()).unwrap().to_string())
            .collect()
    }

    async fn counts(&mut self, keys: &[Key]) -> Vec<u64> {
        self.0
            .client
            .query_counters("int-counters", keys)
            .await
            .unwrap()
            .iter()
            .map(|answer| answer.value)
            .collect()
    }

    async fn entries(&mut self, list: u32) -> Vec<TelemetryEntry> {
        let (entries, lost) = self.0.entries(list).await;
        assert_eq!(lost, 0, "list {list}");
        entries
    }

    /// Reason, old and new of the changes of one metric.
    async fn changes(&mut self, metric: Metric) -> Vec<(Key, Why, u64, u64)> {
        let entries = self.entries(list::CHANGES).await;
        let of_metric = |entry| match entry {
            TelemetryEntry::Change { key, metric: of, why, old, new, .. } if of == metric => {
                Some((key, why, old, new))
            }
            _ => None,
        };
        entries.into_iter().filter_map(of_metric).collect()
    }
}

fn flow(text: &str) -> Flow {
    text.parse().unwrap()
}

#[tokio::test]
async fn three_reports_change_what_they_change() {
    let Some(file) = int_capture("int-v1.0-three-reports.pcap") else { return };
    let mut bed = Bed::new("intcollector", "timestamps = \"raw\"").await;
    let counted = bed.replay(file, 3).await;
    assert_eq!((counted.own("int.changed"), counted.own("int.unchanged")), (2, 1));
    let flow = flow("10.0.0.1:5000->10.0.0.2:5000/udp");
    assert_eq!(bed.paths(&[flow]).await, ["6:5:4"]);
    let keys = [
        flow.to_key(),
        telemetry::hop_latency_key(&flow, 4),
        telemetry::hop_latency_key(&flow, 5),
        telemetry::queue_occupancy_key(4, Some(3), Some(5)),
        telemetry::queue_congestion_key(4, Some(3), Some(5)),
        telemetry::link_utilization_key(4, Some(3)),
    ];
    let last = [12, 4, 4, 6, 10, 1000].map(Some);
    assert_eq!(bed.values(&keys).await, last);
    assert_eq!(bed.counts(&[flow.to_key()]).await, [3]);
    let (new, moved) = (Why::New, Why::Moved);
    let expected = [(flow.to_key(), new, 0, 408), (flow.to_key(), moved, 408, 12)];
    assert_eq!(bed.changes(Metric::FlowLatency).await, expected);
    let of_switch_4: Vec<_> =
        bed.changes(Metric::HopLatency).await.into_iter().filter(|change| change.0 == keys[1]).collect();
    assert_eq!(of_switch_4, [(keys[1], new, 0, 400), (keys[1], moved, 400, 4)]);
    // Three of each at the first report, and what changed at the third.
    for (metric, count) in [
        (Metric::FlowPath, 1),
        (Metric::QueueOccupancy, 4),
        (Metric::QueueCongestion, 4),
        (Metric::LinkUtilization, 4),
    ] {
        assert_eq!(bed.changes(metric).await.len(), count, "{metric:?}");
    }
    // The moment that the switch sent, as it is.
    let answer = bed.0.client.key_write("int-values", &keys[1..2], Policy::First, 0).await.unwrap();
    assert_eq!(TimedValue::parse_bytes(answer[0].value.as_ref().unwrap()).unwrap().time, 0x5ad9_f94a);
}

/// Paths and latencies of 100 flows through six hops whose latencies are 4 to 9.
async fn six_hops(file: &str, path: &str) {
    let Some(file) = int_capture(file) else { return };
    let mut bed = Bed::new("auto", "").await;
    let counted = bed.replay(file, 100).await;
    let keys = bed.entries(list::KEYS).await;
    let flows: Vec<Flow> = keys
        .iter()
        .filter_map(|entry| match entry {
            TelemetryEntry::Key { key, .. } => key.to_ipv4_flow(),
            _ => None,
        })
        .collect();
    // A flow is in the directory for its path and for its latency.
    assert_eq!(flows.len(), 200);
    let flows: Vec<Flow> = flows
        .iter()
        .map(Flow::to_key)
        .collect::<std::collections::BTreeSet<_>>()
        .iter()
        .filter_map(Key::to_ipv4_flow)
        .collect();
    assert_eq!(flows.len(), 100);
    assert!(bed.paths(&flows).await.iter().all(|found| found == path));
    let keys: Vec<_> = flows.iter().map(Flow::to_key).collect();
    assert!(bed.values(&keys).await.iter().all(|latency| *latency == Some(39)));
    let first: u32 = path.rsplit(':').next().unwrap().parse().unwrap();
    for hop in 0..6 {
        let keys: Vec<_> = flows.iter().map(|flow| telemetry::hop_latency_key(flow, first + hop)).collect();
        assert!(bed.values(&keys).await.iter().all(|latency| *latency == Some(4 + hop)), "hop {hop}");
        let queue = telemetry::queue_occupancy_key(first + hop, Some(3), Some(5));
        let link = telemetry::link_utilization_key(first + hop, Some(3));
        assert_eq!(bed.values(&[queue, link]).await, [Some(6), Some(11 + hop)]);
    }
    // The first flow reports queues and links.
    assert_eq!(counted.own("int.suppressed.queue-occupancy"), 99 * 6);
}

#[tokio::test]
async fn all_fields_of_six_hops_in_v05() {
    six_hops("int-v0.5-6-hops-all-fields.pcap", "5:4:3:2:1:0").await;
}

#[tokio::test]
async fn all_fields_of_six_hops_in_v10() {
    six_hops("int-v1.0-6-hops-all-fields.pcap", "6:5:4:3:2:1").await;
}

#[tokio::test]
async fn paths_of_a_thousand_flows() {
    let Some(file) = int_capture("int-v0.5-1000-flows-paths.pcap") else { return };
    // Of three workers, the first decodes, and others write its events.
    for workers in [1, 3] {
        let translator = format!("workers = {workers}");
        let setup = Setup { dialects: &["intcollector"], translator: &translator, ..Setup::default() };
        let mut bed = Bed(IntBed::start(&setup).await);
        bed.replay(file.clone(), 1000).await;
        let changes = bed.changes(Metric::FlowPath).await;
        let flows: Vec<Flow> = changes.iter().filter_map(|change| change.0.to_ipv4_flow()).collect();
        assert_eq!(flows.len(), 1000);
        assert!(bed.paths(&flows).await.iter().all(|path| path == "5:4:3:2:1:0"));
        assert!(bed.changes(Metric::FlowLatency).await.is_empty(), "nothing says it");
        assert_eq!(bed.0.entries(list::KEYS).await.0.len(), 1000);
    }
}

/// Over UC: what left between the end of the first collector and the new queue pairs leaves again.
#[tokio::test]
async fn a_collector_that_is_killed_has_every_event_when_it_is_back() {
    let Some(file) = int_capture("int-v0.5-1000-flows-paths.pcap") else { return };
    let setup = Setup { dialects: &["intcollector"], same_ports: true, ..Setup::default() };
    let mut bed = IntBed::start(&setup).await;
    let to = bed.translator.ready["int"][0].as_str().unwrap().to_owned();
    let load = std::thread::spawn(move || {
        let arguments = ["replay", file.to_str().unwrap(), "--to", &to, "--port", "54321", "--rate", "200"];
        assert!(manager(&arguments).status.success());
    });
    bed.until("the first events", |counted| counted.own("append.emitted") > 400).await;
    bed.restart_collector();
    load.join().unwrap();
    let is_back = |counted: &Counted| counted.is_taken(1000) && counted.own("repeated_frames") > 0;
    let emitted = bed.until("new queue pairs", is_back).await.own("append.emitted");
    assert!(emitted >= 2000, "{emitted}");
    bed.until("frames that arrive", |counted| counted.reported("append.emitted") == emitted).await;
    let mut events = 0;
    for list in 0..list::COUNT {
        let (entries, missing) = bed.entries(list).await;
        assert_eq!(missing, 0, "batches of list {list}");
        events += entries.len() as u64;
    }
    assert_eq!(events, emitted);
}

#[tokio::test]
async fn a_latency_is_reported_when_it_leaves_its_interval() {
    let Some(file) = int_capture("int-v0.5-latency-events.pcap") else { return };
    // The third hop's latency is the third word of the third hop, in every report.
    let bytes = std::fs::read(&file).unwrap();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let latencies: Vec<u32> = (0..100).map(|n| word(24 + n * (16 + 148) + 16 + 132 + 4)).collect();
    assert_eq!(latencies[..2], [200, 202]);
    let mut expected: Vec<(Why, u64, u64)> = Vec::new();
    for latency in latencies.iter().map(|latency| u64::from(*latency)) {
        match expected.last() {
            None => expected.push((Why::New, 0, latency)),
            Some((_, _, last)) if last / 64 != latency / 64 => expected.push((Why::Moved, *last, latency)),
            Some(_) => {}
        }
    }
    assert!(expected.len() > 2, "{expected:?}");
    let mut bed =
        Bed::new("intcollector", "[translator.int.metric.hop-latency]\ndetect = \"width=64\"").await;
    bed.replay(file, 100).await;
    let changes = bed.changes(Metric::HopLatency).await;
    let third = changes.iter().find(|change| change.3 == 200).unwrap().0;
    let of_third: Vec<_> = changes
        .iter()
        .filter(|change| change.0 == third)
        .map(|(_, why, old, new)| (*why, *old, *new))
        .collect();
    assert_eq!(of_third, expected);
}

#[tokio::test]
async fn sdfabric_drops_per_reason_and_switch() {
    let Some(file) = int_capture("sdfabric-v0.5-real-traffic.pcap") else { return };
    let mut bed = Bed::new("sdfabric", "").await;
    let counted = bed.replay(file, 3579).await;
    assert_eq!(counted.own("int.sources"), 4);
    let drops: [((u32, u8), u64); 14] = [
        ((3, 26), 1),
        ((3, 29), 4),
        ((3, 71), 1),
        ((3, 89), 1),
        ((3, 129), 1),
        ((3, 130), 1),
        ((3, 131), 2),
        ((3, 133), 1),
        ((4, 26), 2),
        ((4, 29), 2),
        ((4, 89), 1),
        ((4, 130), 1),
        ((4, 131), 2),
        ((4, 133), 1),
    ];
    let drops: BTreeMap<_, _> = drops
        .into_iter()
        .map(|((switch, reason), count)| ((switch, DropReason::from_int(reason)), count))
        .collect();
    let keys: Vec<_> = drops.keys().map(|(switch, reason)| telemetry::drops_key(*switch, *reason)).collect();
    assert_eq!(bed.counts(&keys).await, drops.values().copied().collect::<Vec<_>>());
    assert_eq!(bed.counts(&[telemetry::drops_key(1, DropReason::from_int(71))]).await, [0]);
    let entries = bed.entries(list::DROPS).await;
    let mut listed = BTreeMap::new();
    for entry in &entries {
        let TelemetryEntry::Drop { place, reason, .. } = entry else { panic!("{entry:?}") };
        *listed.entry((place.switch.unwrap(), *reason)).or_insert(0) += 1;
    }
    assert_eq!(listed, drops);
    assert_eq!(bed.entries(list::CONGESTION).await.len(), 38);
    // The path of a flow whose switches each report for themselves.
    let paths = bed.changes(Metric::FlowPath).await;
    let (key, _, _, hops) = *paths.iter().rfind(|change| change.3 > 1).expect("a flow with several switches");
    let answers = bed.0.client.query_paths("int-postcards", &[key]).await.unwrap();
    assert_eq!(answers[0].path_length, hops as u32, "{:?}", answers[0]);
}
