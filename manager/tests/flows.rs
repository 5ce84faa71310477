//! Flows of real traffic, as Debian's softflowd and pmacct and an independent maker of sFlow export them, in memory as tshark counts them. What an
//! exporter loses on the way is known to the last number.

mod common;
#[path = "../../testbed/tests/shared/sflow.rs"]
mod sflow;
#[path = "../../testbed/tests/shared/softflowd.rs"]
mod softflowd;

use std::collections::BTreeMap;
use std::net::{SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use common::captures;
use common::int_bed::{Counted, IntBed, PATIENCE, Setup, until_room};
use dta_proto::control::{EpochsRequest, EpochsResponse};
use dta_proto::flow_query::{FLOW_COLUMNS, FlowQuestion, FlowRow, FlowSum, flow_from_values};
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Location, TelemetryEntry, list};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys};
use softflowd::{
    Flows, exported, exported_by_pmacct, ip_truth, is_lost, missing, packets, sampled_by_pmacct, traffic,
    truth,
};

struct Bed(IntBed);

/// All flows in memory, with their packets and bytes.
async fn known_flows(client: &RemoteCollector) -> Flows {
    let question = FlowQuestion { group: FLOW_COLUMNS.iter().collect(), ..FlowQuestion::default() };
    let most = u32::MAX as usize;
    let (answer, scanned) = client.query_flows("", &question, FlowSum::Bytes, most).await.unwrap();
    assert_eq!((scanned.missing, scanned.torn, answer.beyond.flows), (0, 0, 0));
    let flow = |row: &FlowRow| (flow_from_values(&row.values).unwrap(), (row.sums.packets, row.sums.bytes));
    answer.rows.iter().map(flow).collect()
}

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
                && counted.own("held") == 0
                && counted.is_executed()
        };
        let counted = self.0.until("flows in memory", all).await;
        let own = |name: &str| counted.own(name);
        let ended = own("flows.appended") + own("flows.drops");
        assert_eq!(own("flows.records"), ended + own("flows.dropped.no_flow"), "a record was dropped");
        assert_eq!((own("flows.primitives"), own("accepted")), (own("received"), own("received")));
        assert_eq!(own("int.evicted"), 0);
        counted
    }

    async fn known(&self) -> Flows {
        known_flows(&self.0.client).await
    }

    async fn assert_counts(&mut self, what: &str, flows: &Flows) {
        let known = self.known().await;
        let wrong: Vec<_> = flows.iter().filter(|(flow, count)| known.get(flow) != Some(count)).collect();
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
        assert_eq!(known.len(), flows.len(), "{what}");
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
            bed.assert_counts(&what, &flows).await;
        }
    }
}

#[tokio::test]
#[ignore = "starts Debian's pmacct (scripts/install-deps test)"]
async fn every_flow_that_pmacct_exports_is_in_memory_with_its_packets_and_bytes() {
    let Some(folder) = captures("every_flow_that_pmacct_exports") else { return };
    let capture = &traffic(&folder)[0];
    for version in [9, 10] {
        let datagrams = exported_by_pmacct(capture, version);
        let mut bed = Bed::new().await;
        bed.send("127.0.0.1", &datagrams);
        bed.until(datagrams.len()).await;
        bed.assert_counts(&format!("version {version}"), &ip_truth(capture)).await;
    }
}

#[tokio::test]
#[ignore = "starts Debian's pmacct (scripts/install-deps test)"]
async fn every_packet_that_pmacct_samples_is_in_memory_with_its_bytes() {
    let Some(folder) = captures("every_packet_that_pmacct_samples") else { return };
    for capture in &traffic(&folder) {
        let datagrams = sampled_by_pmacct(capture);
        let mut bed = Bed::new().await;
        bed.send("127.0.0.1", &datagrams);
        let counted = bed.until(datagrams.len()).await;
        let without_ip = packets(capture).iter().filter(|packet| packet.is_none()).count();
        assert_eq!(counted.own("flows.dropped.no_flow"), without_ip as u64);
        assert_eq!((counted.own("flows.gaps"), counted.own("flows.sources")), (0, 1));
        bed.assert_counts(&format!("sFlow of {}", capture.display()), &ip_truth(capture)).await;
        let agents = asked_flows(&bed, &["--group", "exporter"]);
        assert_eq!(agents["groups"][0]["values"]["exporter"], "10.200.0.2");
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
    assert_eq!(bed.known().await, flows);
    // The agent names itself in its datagrams.
    let switch = u32::from_be_bytes([10, 200, 0, 1]);
    let (entries, lost) = bed.0.entries(list::DROPS).await;
    assert_eq!(lost, 0);
    let mut listed = BTreeMap::new();
    for entry in entries {
        let TelemetryEntry::Drop { key, place, ingress_port, reason, .. } = entry else {
            panic!("{entry:?}")
        };
        assert_eq!(place, Location { switch: Some(switch), port: Some(3), queue: None });
        assert_eq!(ingress_port, Some(1));
        *listed.entry((key, reason)).or_insert(0) += 1;
    }
    let of = |flow: &Option<Flow>| flow.map_or(Key::default(), |flow| flow.to_key());
    let expected: BTreeMap<_, u64> =
        drops.iter().map(|((flow, reason), count)| ((of(flow), *reason), *count)).collect();
    assert_eq!(listed, expected);
    let mut by_reason = BTreeMap::new();
    drops.iter().for_each(|((_, reason), count)| *by_reason.entry(*reason).or_insert(0) += count);
    let keys: Vec<_> = by_reason.keys().map(|reason| telemetry::drops_key(switch, *reason)).collect();
    let answers = bed.0.client.query_counters("int-counters", &keys).await.unwrap();
    let counts: Vec<u64> = answers.iter().map(|answer| answer.value).collect();
    assert_eq!(counts, by_reason.into_values().collect::<Vec<_>>());
}

/// A datagram of NetFlow v5 with records of so many flows, from one number on; each has 7 packets, and bytes by its number.
fn v5(first: u16, flows: u16) -> Vec<u8> {
    v5_with_bytes(first, flows, 1000)
}

fn v5_with_bytes(first: u16, flows: u16, bytes_of_0: u32) -> Vec<u8> {
    let mut bytes = [5, flows].map(u16::to_be_bytes).concat();
    bytes.resize(16, 0);
    bytes.extend(u32::from(first).to_be_bytes());
    bytes.resize(24, 0);
    for number in first..first + flows {
        let flow = numbered(number);
        bytes.extend([[10, 0, 0, 1], [10, 0, 0, 2]].concat());
        bytes.extend([0; 8]);
        bytes.extend([7, bytes_of_0 + u32::from(number)].map(u32::to_be_bytes).concat());
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

/// What `dta-collector flows -o json` answers.
fn asked_flows(bed: &Bed, arguments: &[&str]) -> serde_json::Value {
    let mut command = Command::new(common::MANAGER);
    command.args(["__collector", "flows", "--names", "none", "-o", "json", "--collector", bed.0.address()]);
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Two exporters report the same flows, one of them all bytes. Then others push them out of memory.
#[tokio::test]
async fn flows_that_two_exporters_see_count_once_in_memory_and_in_the_history() {
    const FLOWS: u16 = 30;
    let folder = tempfile::tempdir().unwrap();
    let collector = format!(
        "[history]\ndirectory = {:?}\n[[store]]\nid = 21\nname = \"flow-records\"\nkind = \"append\"\nlists = 4\nring = 16\n\
         batch_len = 1024\nentry_len = 192\nepoch = \"2s\"\n",
        folder.path().join("history")
    );
    let setup = Setup { flows: true, collector: &collector, ..Setup::default() };
    let mut bed = Bed(IntBed::start_in(folder, &setup).await);
    bed.send("127.0.1.1", &[v5_with_bytes(0, FLOWS, 500)]);
    bed.send("127.0.1.2", &[v5(0, FLOWS)]);
    let appended = |records| {
        move |counted: &Counted| {
            counted.own("flows.appended") == records && counted.own("held") == 0 && counted.is_executed()
        }
    };
    bed.0.until("both exporters' records", appended(2 * u64::from(FLOWS))).await;

    let bytes = |bytes_of_0: u32| (0..FLOWS).map(|n| u64::from(bytes_of_0) + u64::from(n)).sum::<u64>();
    let total = |bed: &Bed, more: &[&str]| {
        let of_both = ["--since", "-1h", "--group", "total", "--where", "src-port < 30"];
        let answer = asked_flows(bed, &[&of_both, more].concat());
        answer["total"]["bytes"].as_u64().unwrap()
    };
    let counts_once = |bed: &Bed| {
        assert_eq!(total(bed, &[]), bytes(1000));
        assert_eq!(total(bed, &["--exporter", "127.0.1.1"]), bytes(500));
        let each = asked_flows(bed, &["--since", "-1h", "--group", "exporter", "--where", "src-port < 30"]);
        let each: Vec<_> = each["groups"].as_array().unwrap().iter().collect();
        let found = each.iter().map(|of| (of["values"]["exporter"].as_str(), of["sums"]["bytes"].as_u64()));
        let expected =
            [("127.0.1.2", 1000), ("127.0.1.1", 500)].map(|(of, sum)| (Some(of), Some(bytes(sum))));
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let largest =
            asked_flows(bed, &["--since", "-1h", "-n", "1", "--per", "1h", "--where", "src-port < 30"]);
        assert_eq!(largest["groups"][0]["values"]["src_port"], FLOWS - 1);
        assert_eq!(
            largest["groups"][0]["sums"],
            serde_json::json!({ "bytes": 1029, "packets": 7, "flows": 1 })
        );
        assert_eq!(largest["group_count"], FLOWS);
    };
    counts_once(&bed);

    let begun = Instant::now();
    let kept = |epochs: EpochsResponse| epochs.epochs.iter().map(|epoch| epoch.rows).sum::<u64>();
    let request = EpochsRequest { store: "flow-records".into(), most: 100, ..EpochsRequest::default() };
    while kept(bed.0.client.fetch_epochs(request.clone()).await.unwrap()) < 2 * u64::from(FLOWS) {
        assert!(begun.elapsed() < PATIENCE, "the history does not have the records");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // 200 batches, of which each list holds 16.
    let others: Vec<_> = (1..=34).map(|n| v5(1000 * n, 30)).collect();
    for exporter in ["127.0.1.1", "127.0.1.2"] {
        bed.send(exporter, &others);
    }
    let sent = 2 * (u64::from(FLOWS) + 34 * 30);
    bed.0.until("records of others", appended(sent)).await;
    assert_eq!(asked_flows(&bed, &["--group", "total", "--where", "src-port < 30"])["total"]["bytes"], 0);
    counts_once(&bed);
}

/// A batch that is not full leaves when the translator ends.
#[tokio::test]
async fn an_end_writes_all_records_and_loses_none() {
    const FLOWS: u16 = 12_001;
    let mut bed = Bed::new().await;
    let datagrams: Vec<_> = (0..FLOWS).step_by(30).map(|n| v5(n, 30.min(FLOWS - n))).collect();
    bed.send("127.0.0.1", &datagrams);
    let arrived = |counted: &Counted| counted.own("flows.appended") == u64::from(FLOWS);
    bed.0.until_unasked("records", arrived).await;
    let IntBed { translator, client, collector: _collector, folder: _folder, .. } = bed.0;
    assert!(translator.terminate(PATIENCE).0.success());
    let expected: Flows = (0..FLOWS).map(|n| (numbered(n), (7, 1000 + u64::from(n)))).collect();
    assert_eq!(known_flows(&client).await, expected);
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
    while bed.known().await != flows {
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
    let answer: serde_json::Value =
        serde_json::from_str(&collector(bed.0.address(), &format!("{top} -o json"))).unwrap();
    let ranked = answer["flows"].as_array().unwrap();
    let values: Vec<_> = ranked.iter().map(|flow| flow["value"].as_u64().unwrap()).collect();
    assert_eq!(values, most[..3], "{ranked:#?}");

    let first: Flow = ranked[0]["flow"].as_str().unwrap().parse().unwrap();
    let (command, example) = query.rsplit_once(' ').unwrap();
    assert!(example.trim_matches('\'').parse::<Flow>().is_ok(), "{query}");
    let (packets, bytes) = flows[&first];
    let drawn = collector(bed.0.address(), &format!("{command} '{first}'")).replace(',', "");
    assert!(drawn.contains(&format!("packets    {packets}\n  bytes      ")), "{drawn}");
    let known: serde_json::Value =
        serde_json::from_str(&collector(bed.0.address(), &format!("{command} '{first}' -o json"))).unwrap();
    assert_eq!([&known[0]["packets"], &known[0]["bytes"]], [packets, bytes], "{known:#}");
}
