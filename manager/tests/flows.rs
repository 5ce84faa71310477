//! Flows of real traffic, as Debian's softflowd and an independent maker of sFlow export them, in memory as tshark counts them. What an
//! exporter loses on the way is known to the last number.

mod common;
#[path = "../../testbed/tests/shared/sflow.rs"]
mod sflow;
#[path = "../../testbed/tests/shared/softflowd.rs"]
mod softflowd;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use common::captures;
use common::int_bed::{Counted, IntBed, PATIENCE, Setup, until_room};
use dta_proto::key::Flow;
use dta_proto::key::Key;
use dta_proto::telemetry::{self, Location, Means, TelemetryEntry, list};
use dta_rpc::AskKeys;
use softflowd::{Flows, exported, is_lost, missing, traffic, truth};

struct Bed(IntBed);

impl Bed {
    async fn new() -> Bed {
        Bed(IntBed::start(&Setup { flows: true, ..Setup::default() }).await)
    }

    /// Sends datagrams from an address of loopback, at a pace that no buffer minds, even while the translator is not
    /// scheduled.
    fn send<'a>(&self, exporter: &str, datagrams: impl IntoIterator<Item = &'a Vec<u8>>) {
        let to: SocketAddrV4 = self.0.translator.ready["flows"][0].as_str().unwrap().parse().unwrap();
        let socket = UdpSocket::bind((exporter, 0)).unwrap();
        for datagram in datagrams {
            socket.send_to(datagram, to).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            until_room(to);
        }
    }

    /// Waits until so many datagrams are in memory. Every record must have ended once.
    async fn until(&mut self, datagrams: usize) -> Counted {
        let all = |counted: &Counted| {
            counted.own("flows.datagrams") == datagrams as u64
                && counted.own("flows.counts_held") == 0
                && counted.own("held") == 0
                && counted.is_executed()
        };
        let counted = self.0.until("flows in memory", all).await;
        let own = |name: &str| counted.own(name);
        let ended = own("flows.counted") + own("flows.elsewhere") + own("flows.drops");
        assert_eq!(own("flows.records"), ended + own("flows.dropped.no_flow"), "a record was dropped");
        assert_eq!((own("flows.primitives"), own("accepted")), (own("received"), own("received")));
        assert_eq!(own("int.evicted"), 0);
        counted
    }

    /// What the counters hold of these flows.
    async fn counted(&mut self, flows: &Flows) -> Flows {
        let keys: Vec<_> = flows
            .keys()
            .flat_map(|flow| [telemetry::packets_key(flow), telemetry::bytes_key(flow)])
            .collect();
        let answers = self.0.client.query_counters("int-counters", &keys).await.unwrap();
        let counts: Vec<_> = answers.iter().map(|answer| answer.value).collect();
        flows.keys().zip(counts.chunks(2)).map(|(flow, counts)| (*flow, (counts[0], counts[1]))).collect()
    }

    /// The flows of the key directory.
    async fn known(&self) -> BTreeSet<Flow> {
        let (entries, lost) = self.0.entries(list::KEYS).await;
        assert_eq!(lost, 0);
        let flow = |entry| match entry {
            TelemetryEntry::Key { means: Means::Flow(flow), .. } => Some(flow),
            TelemetryEntry::Key { key, means: Means::Itself } => key.to_ipv4_flow(),
            _ => None,
        };
        entries.into_iter().filter_map(flow).collect()
    }

    async fn assert_counts(&mut self, what: &str, flows: &Flows) {
        assert_eq!(self.known().await, flows.keys().copied().collect(), "{what}");
        let counted = self.counted(flows).await;
        let wrong: Vec<_> = flows.iter().filter(|(flow, count)| counted[flow] != **count).collect();
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
    }
}

#[tokio::test]
#[ignore = "starts Debian's softflowd (scripts/install-deps test)"]
async fn every_flow_of_the_captures_is_in_memory_with_its_packets_and_bytes() {
    let Some(folder) = captures("every_flow_of_the_captures") else { return };
    let captures = traffic(&folder);
    for version in [5, 9, 10] {
        for capture in &captures {
            let mut flows = truth(capture);
            if version == 5 {
                flows.retain(|flow, _| flow.src.is_ipv4());
            }
            let datagrams = exported(capture, version);
            let mut bed = Bed::new().await;
            bed.send("127.0.0.1", &datagrams);
            let counted = bed.until(datagrams.len()).await;
            let what = format!("version {version}, {}", capture.display());
            assert_eq!((counted.own("flows.gaps"), counted.own("flows.restarts")), (0, 0), "{what}");
            assert_eq!(counted.own("flows.elsewhere"), 0, "{what}");
            bed.assert_counts(&what, &flows).await;
        }
    }
}

#[tokio::test]
#[ignore = "starts Debian's softflowd (scripts/install-deps test)"]
async fn what_two_of_four_exporters_lose_is_known_and_what_all_see_is_counted_once() {
    let Some(folder) = captures("what_two_of_four_exporters_lose") else { return };
    let captures = traffic(&folder);
    let capture = &captures[0];
    let flows = truth(capture);
    let mut bed = Bed::new().await;
    let (mut sent, mut expected) = (0, BTreeMap::new());
    for (exporter, version, lossy) in
        [("127.0.1.1", 9, false), ("127.0.1.2", 10, false), ("127.0.1.3", 5, true), ("127.0.1.4", 10, true)]
    {
        let datagrams = exported(capture, version);
        let goes = |n: usize| !lossy || !is_lost(n, datagrams.len());
        let kept = datagrams.iter().enumerate().filter(|(n, _)| goes(*n)).map(|(_, datagram)| datagram);
        bed.send(exporter, kept.clone());
        sent += kept.count();
        if lossy {
            let missing = missing(&datagrams, version);
            assert!(missing > 20, "{exporter}: {missing}");
            let format = if version == 5 { "v5" } else { "ipfix" };
            let domain = match version {
                5 => u32::from(u16::from_be_bytes([datagrams[0][20], datagrams[0][21]])),
                _ => u32::from_be_bytes(datagrams[0][12..16].try_into().unwrap()),
            };
            expected.insert(format!("flows.gaps_of.{exporter}/{format}/{domain}"), missing);
        }
    }
    let counted = bed.until(sent).await;
    for (name, missing) in &expected {
        assert_eq!(counted.own(name), *missing, "{name}");
    }
    assert_eq!(counted.own("flows.gaps"), expected.values().sum::<u64>());
    assert_eq!((counted.own("flows.gaps_filled"), counted.own("flows.repeats")), (0, 0));
    assert_eq!((counted.own("flows.sources"), counted.own("flows.restarts")), (4, 0));
    assert_eq!(counted.own("flows.counted"), counted.own("flows.records") - counted.own("flows.elsewhere"));
    bed.assert_counts("four exporters", &flows).await;
}

#[tokio::test]
#[ignore = "starts tshark (scripts/install-deps test)"]
async fn samples_and_notices_of_drops_of_sflow_are_in_memory() {
    let Some(folder) = captures("samples_and_notices_of_drops") else { return };
    let capture = &traffic(&folder)[0];
    let into = tempfile::NamedTempFile::new().unwrap();
    let datagrams = sflow::made(capture, into.path());
    let (flows, others, drops) = sflow::truth(capture);
    let mut bed = Bed::new().await;
    bed.send("127.0.2.1", &datagrams);
    let counted = bed.until(datagrams.len()).await;
    assert_eq!(counted.own("flows.dropped.no_flow"), others);
    assert_eq!(counted.own("flows.drops"), drops.values().sum::<u64>());
    assert_eq!((counted.own("flows.gaps"), counted.own("flows.sources")), (0, 1));
    assert_eq!(bed.counted(&flows).await, flows);
    // The agent names itself in its datagrams.
    let switch = u32::from_be_bytes([10, 200, 0, 1]);
    let (entries, lost) = bed.0.entries(list::DROPS).await;
    assert_eq!(lost, 0);
    let mut told = BTreeMap::new();
    for entry in entries {
        let TelemetryEntry::Drop { key, place, ingress_port, reason, .. } = entry else {
            panic!("{entry:?}")
        };
        assert_eq!(place, Location { switch: Some(switch), port: Some(3), queue: None });
        assert_eq!(ingress_port, Some(1));
        *told.entry((key, reason)).or_insert(0) += 1;
    }
    let of = |flow: &Option<Flow>| flow.map_or(Key::default(), |flow| flow.to_key());
    let expected: BTreeMap<_, u64> =
        drops.iter().map(|((flow, reason), count)| ((of(flow), *reason), *count)).collect();
    assert_eq!(told, expected);
    let mut by_reason = BTreeMap::new();
    drops.iter().for_each(|((_, reason), count)| *by_reason.entry(*reason).or_insert(0) += count);
    let keys: Vec<_> = by_reason.keys().map(|reason| telemetry::drops_key(switch, *reason)).collect();
    let answers = bed.0.client.query_counters("int-counters", &keys).await.unwrap();
    let counts: Vec<u64> = answers.iter().map(|answer| answer.value).collect();
    assert_eq!(counts, by_reason.into_values().collect::<Vec<_>>());
}

/// A datagram of NetFlow v5 with records of so many flows, from one number on; each has 7 packets, and bytes by its number.
fn v5(first: u16, flows: u16) -> Vec<u8> {
    let mut bytes = [5, flows].map(u16::to_be_bytes).concat();
    bytes.resize(16, 0);
    bytes.extend(u32::from(first).to_be_bytes());
    bytes.resize(24, 0);
    for number in first..first + flows {
        let flow = numbered(number);
        bytes.extend([[10, 0, 0, 1], [10, 0, 0, 2]].concat());
        bytes.extend([0; 8]);
        bytes.extend([7, 1000 + u32::from(number)].map(u32::to_be_bytes).concat());
        bytes.extend([0; 8]);
        bytes.extend([flow.sport, flow.dport].map(u16::to_be_bytes).concat());
        bytes.extend([0, 0, flow.proto, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

fn numbered(number: u16) -> Flow {
    let [src, dst] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
    Flow { src, dst, sport: number, dport: 443, proto: 6 }
}

/// More counts wait than a queue pair keeps operations: all are written, whether by a flush or when the translator ends.
#[tokio::test]
async fn a_flush_and_an_end_write_the_counts_of_many_flows_and_lose_none() {
    const FLOWS: u16 = 12_000;
    for ends in [false, true] {
        let translator = "[translator.int]\ncount_wait_ms = 3600000\nkeys = 1048576";
        let mut bed = Bed(IntBed::start(&Setup { flows: true, translator, ..Setup::default() }).await);
        let datagrams: Vec<_> = (0..FLOWS / 30).map(|n| v5(30 * n, 30)).collect();
        bed.send("127.0.0.1", &datagrams);
        let all_wait = |counted: &Counted| {
            counted.own("flows.counts_held") + counted.own("flows.counts_early") == u64::from(FLOWS)
        };
        let counted = bed.0.until_unasked("counts that wait", all_wait).await;
        assert!(counted.own("flows.counts_held") > 11_000);
        if !ends {
            let written = |counted: &Counted| counted.own("flows.counts_held") == 0 && counted.is_executed();
            let counted = bed.0.until("counts in memory", written).await;
            assert_eq!((counted.own("lost"), counted.own("flows.counted")), (0, FLOWS.into()));
        }
        let IntBed { translator, client, collector: _collector, folder: _folder, .. } = bed.0;
        assert!(translator.terminate(PATIENCE).0.success());
        let keys: Vec<_> = (0..FLOWS).map(|number| telemetry::bytes_key(&numbered(number))).collect();
        for (first, keys) in (0..).step_by(1000).zip(keys.chunks(1000)) {
            let answers = client.query_counters("int-counters", keys).await.unwrap();
            let below = (first..).zip(&answers).filter(|(number, answer)| answer.value < 1000 + number);
            assert_eq!(below.count(), 0, "ends: {ends}");
        }
    }
}

/// What a command of the tutorial prints.
fn collector(address: &str, command: &str) -> String {
    let arguments = command.strip_prefix("dta-collector ").unwrap().split(' ');
    let mut command = Command::new(common::MANAGER);
    command
        .env("DTA_COLLECTOR_NAMES", "none")
        .arg("__collector")
        .args(arguments.map(|word| word.trim_matches('\'')));
    let output = command.args(["--collector", address]).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The tutorial of docs/flows.md, with a capture in place of an interface.
#[tokio::test]
#[ignore = "starts Debian's softflowd (scripts/install-deps test)"]
async fn who_fills_the_link_is_known_after_the_tutorial() {
    let Some(folder) = captures("who_fills_the_link") else { return };
    let capture = &traffic(&folder)[0];
    let page = include_str!("../../docs/flows.md");
    let tutorial = page.split_once("## Who fills this link?").unwrap().1.split("\n## ").next().unwrap();
    let flows = truth(capture);
    let mut bed = Bed::new().await;
    // Straight to the translator, by the page's command.
    let to = bed.0.translator.ready["flows"][0].as_str().unwrap().to_owned();
    let command = tutorial.split('`').find(|word| word.starts_with("softflowd -i ")).unwrap();
    let mut words = command.split(' ').skip(1).map(str::to_owned).collect::<Vec<_>>();
    let at = |words: &[String], flag: &str| words.iter().position(|word| word == flag).unwrap();
    let (interface, target) = (at(&words, "-i"), at(&words, "-n"));
    assert!(words[target + 1].ends_with(":2055"), "{command}");
    words[target + 1] = to;
    words.splice(
        interface..interface + 2,
        ["-r".into(), capture.canonicalize().unwrap().display().to_string()],
    );
    let folder = tempfile::tempdir().unwrap();
    let mut softflowd = Command::new("softflowd");
    softflowd.current_dir(folder.path()).args(["-d", "-p", "pid", "-c", "none"]).args(words);
    let output = softflowd.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let begun = Instant::now();
    while bed.counted(&flows).await != flows {
        assert!(begun.elapsed() < PATIENCE, "a flow is not in memory");
        bed.0.until("what arrived", Counted::is_executed).await;
    }

    let commands: Vec<_> = tutorial
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with("dta-"))
        .collect();
    let [top, query] = commands[..] else { panic!("{commands:?}") };
    let mut most: Vec<u64> = flows.values().map(|(_, bytes)| *bytes).collect();
    most.sort_unstable_by(|a, b| b.cmp(a));
    let told: serde_json::Value =
        serde_json::from_str(&collector(bed.0.address(), &format!("{top} -o json"))).unwrap();
    let told = told["flows"].as_array().unwrap();
    let values: Vec<_> = told.iter().map(|flow| flow["value"].as_u64().unwrap()).collect();
    assert_eq!(values, most[..3], "{told:#?}");

    let first: Flow = told[0]["flow"].as_str().unwrap().parse().unwrap();
    let (command, example) = query.rsplit_once(' ').unwrap();
    assert!(example.trim_matches('\'').parse::<Flow>().is_ok(), "{query}");
    let (packets, bytes) = flows[&first];
    let drawn = collector(bed.0.address(), &format!("{command} '{first}'")).replace(',', "");
    assert!(drawn.contains(&format!("packets    {packets}\n  bytes      ")), "{drawn}");
    let known: serde_json::Value =
        serde_json::from_str(&collector(bed.0.address(), &format!("{command} '{first}' -o json"))).unwrap();
    assert_eq!([&known[0]["packets"], &known[0]["bytes"]], [packets, bytes], "{known:#}");
}
