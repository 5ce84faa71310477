//! What readers see of INT and of DTA reports: `query flow`, `tail events` and `top` give what the replayed captures
//! say, and what other code computes from them. Needs no privilege.

mod common;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::int_bed::{Counted, IntBed, Setup, int_capture};
use common::{MANAGER, captures, manager};
use dta_proto::key::Flow;
use dta_telemetry::int::emit::{self, EmittedDatagram, Hop, Local, Stack};
use dta_telemetry::int::{Fill, Flags, IntVersion, ReportVersion};
use schema::hold;
use serde_json::{Value, json};

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:5000/udp";

/// A collector and a translator that takes INT.
struct Bed(IntBed);

impl Bed {
    /// `stores` are tables of the collector's configuration.
    async fn new(dialect: &str, stores: &str) -> Bed {
        Bed(IntBed::start(&Setup { dialects: &[dialect], collector: stores, ..Setup::default() }).await)
    }

    /// Replays a capture of this many reports, and waits until all are in memory.
    async fn replay(&mut self, capture: PathBuf, reports: u64) {
        self.0.replay(&capture, 0, &[]);
        self.0.until("reports in memory", |counted| counted.is_in_memory(reports)).await;
    }

    /// Runs a command of the collector's program.
    fn run(&self, arguments: &[&str]) -> Output {
        collector(self.0.address(), arguments)
    }

    /// What a command prints for programs, and its exit status.
    fn json(&self, arguments: &[&str]) -> (Value, i32) {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let document =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {stderr}"));
        let schema = if arguments[0] == "top" { "dta-collector-top" } else { "dta-collector-query-flow" };
        hold(schema, &document);
        (document, output.status.code().unwrap())
    }

    /// The lines that a command prints for programs.
    fn events(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.run(&[&["tail", "events", "--once"], arguments, &["-o", "json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let event = |line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            hold("dta-collector-tail-events", &line);
            line["event"].take()
        };
        lines.lines().map(event).collect()
    }
}

fn collector(address: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(MANAGER);
    // The user's own file of names must not matter here.
    command.env("DTA_COLLECTOR_NAMES", "none").arg("__collector").args(arguments);
    command.args(["--collector", address]).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

const NAMES: &str =
    "[switch.4]\nname = \"spine\"\n[switch.4.port]\n3 = \"uplink\"\n[switch.6]\nname = \"leaf1\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_and_its_events_are_those_of_three_reports() {
    let Some(file) = int_capture("int-v1.0-three-reports.pcap") else { return };
    let mut bed = Bed::new("intcollector", "").await;
    bed.replay(file, 3).await;
    let names = bed.0.folder.path().join("names.toml");
    std::fs::write(&names, format!("networks = \"networks.csv\"\n{NAMES}")).unwrap();
    let networks = "prefix,name,asn\n10.0.0.0/8,all,64512\n10.0.0.2/31,lab,\n";
    std::fs::write(bed.0.folder.path().join("networks.csv"), networks).unwrap();
    let names = ["--names", names.to_str().unwrap()];

    // The flow, for programs.
    let (answers, status) = bed.json(&[&["query", "flow", FLOW][..], &names].concat());
    assert_eq!(status, 0, "{answers:#}");
    let flow = &answers[0];
    let hops = flow["hops"].as_array().unwrap();
    let of_hops = |field: &str| hops.iter().map(|hop| hop[field].clone()).collect::<Vec<_>>();
    assert_eq!(of_hops("switch"), [6, 5, 4].map(Value::from));
    assert_eq!(of_hops("switch_name"), [json!("leaf1"), Value::Null, json!("spine")]);
    assert_eq!(hops.iter().map(|hop| hop["latency"]["value"].clone()).collect::<Vec<_>>(), [4, 4, 4]);
    assert_eq!((&flow["latency"]["value"], &flow["reports"]), (&json!(12), &json!(3)));
    assert!(
        flow["latency"]["age_seconds"].as_f64().is_some_and(|age| (0.0..600.0).contains(&age)),
        "{flow:#}"
    );
    let last = &hops[2];
    assert_eq!((&last["port"], &last["port_name"]), (&json!(3), &json!("uplink")));
    assert_eq!(last["utilization"]["value"], 1000);
    let queue = &last["queues"][0];
    assert_eq!(
        (&queue["queue"], &queue["occupancy"]["value"], &queue["congestion"]["value"]),
        (&json!(5), &json!(6), &json!(10))
    );
    assert_eq!(
        (&flow["drops"], &flow["packets"], &flow["path"]["complete"]),
        (&json!([]), &Value::Null, &json!(true))
    );
    assert!(flow["path"]["age_seconds"].is_number(), "{flow:#}");

    // Whose its ends are, wherever it is shown.
    let ends = |of: &Value| {
        ["source_network", "source_as", "destination_network", "destination_as"].map(|end| of[end].clone())
    };
    let wanted = [json!("all"), json!(64512), json!("lab"), Value::Null];
    let (top, _) = bed.json(&[&["top", "--by", "reports"][..], &names].concat());
    let events = bed.events(&names);
    let about = events.iter().find(|event| event["flow"] == FLOW).unwrap();
    for of in [flow, &top["flows"][0], about] {
        assert_eq!(ends(of), wanted, "{of:#}");
    }
    const WORDS: &str = "all (AS 64512) -> lab";
    for command in [&["query", "flow", FLOW][..], &["top", "--by", "reports"], &["tail", "events", "--once"]]
    {
        let printed = text(&bed.run(&[command, &names].concat()));
        assert!(printed.contains(WORDS), "{command:?}: {printed}");
        let printed = text(&bed.run(command));
        assert!(!printed.contains("lab"), "{command:?}: {printed}");
    }

    // For people: it fits, and says what it does not know.
    let drawn = text(&bed.run(&[&["query", "flow", FLOW][..], &names].concat()));
    assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
    let order = [
        "path       6:5:4",
        "(int-paths, 4 of 4 copies)",
        "latency    12 ns",
        "● leaf1 (6)",
        "● 5 ",
        "● spine (4)",
        "out of port uplink (3)",
    ];
    let places: Vec<_> =
        order.iter().map(|part| drawn.find(part).unwrap_or_else(|| panic!("{part}: {drawn}"))).collect();
    assert!(places.is_sorted(), "{drawn}");
    assert!(
        drawn.contains("Packets and bytes are known with per_packet = true and from flow records."),
        "{drawn}"
    );

    // A flow that nobody reported is absent, and the others are shown anyway.
    let (answers, status) = bed.json(&["query", "flow", "10.0.0.9:1->10.0.0.2:2/tcp", FLOW]);
    assert_eq!((status, &answers[0]["found"], &answers[1]["found"]), (3, &json!(false), &json!(true)));
    for (arguments, says) in [
        (&["query", "flow", "10.0.0.9"][..], "is not a key"),
        (&["query", "flow", FLOW, "--counters", "nothing"], "there is no store nothing"),
        (&["query", "flow", FLOW, "--counters", "paths"], "store paths is of postcarding"),
        (&["query", "flow", FLOW, "--names", "/nonexistent"], "/nonexistent"),
        (&["tail", "events", "--once", "--switch", "leaf9"], "no switch is called \"leaf9\""),
        (&["top", "--store", "events"], "has no figures"),
        (&["top", "--keys", "bytes"], "no append store whose entries are keys"),
    ] {
        let output = bed.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(says), "{arguments:?}: {error}");
    }

    // Events: what changed at the first report, and at the third.
    let events = bed.events(&["--from-start"]);
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    events.iter().for_each(|event| *kinds.entry(event["kind"].as_str().unwrap()).or_default() += 1);
    let expected = [
        ("flow-path", 1),
        ("flow-latency", 2),
        ("hop-latency", 4),
        ("queue-occupancy", 4),
        ("queue-congestion", 4),
        ("link-utilization", 4),
    ];
    assert_eq!(kinds, expected.into());
    let moved: Vec<_> = events
        .iter()
        .filter(|event| event["kind"] == "flow-latency")
        .map(|event| json!([event["flow"], event["why"], event["old"], event["new"]]))
        .collect();
    assert_eq!(moved, [json!([FLOW, "new", null, 408]), json!([FLOW, "moved", 408, 12])]);
    let hop: Vec<_> = bed
        .events(
            &[&["--since", "10m", "--kind", "hop-latency", "--switch", "spine", "--flow", FLOW][..], &names]
                .concat(),
        )
        .iter()
        .map(|event| json!([event["switch_name"], event["port"], event["old"], event["new"]]))
        .collect();
    assert_eq!(hop, [json!(["spine", 3, null, 400]), json!(["spine", 3, 400, 4])]);
    assert_eq!(bed.events(&["-n", "2"]), events[events.len() - 2..]);
    assert_eq!(bed.events(&["--prefix", "10.0.0.1/32"]).len(), 7, "queues and links are no flow's");
    assert_eq!(bed.events(&["--prefix", "10.0.1.0/24"]).len(), 0);
    let lines = text(&bed.run(&["tail", "events", "--once", "--kind", "flow-latency"]));
    assert!(
        lines.lines().nth(1).unwrap().ends_with(&format!("{FLOW}: latency 12 ns, before 408 ns")),
        "{lines}"
    );

    // A store of DTA reports that is named is asked, too.
    let to = bed.0.translator.said("listen").to_owned();
    let sent = manager(&[
        "__reporter",
        "send",
        "key-increment",
        "--store",
        "bytes",
        "--key",
        FLOW,
        "--delta",
        "1500",
        "--to",
        &to,
        "--collector",
        bed.0.address(),
    ]);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    // One report next to the three Telemetry Reports.
    let is_there = |counted: &Counted| {
        counted.is_in_memory(3) && counted.own("received") == counted.own("int.primitives") + 1
    };
    bed.0.until("a report of DTA", is_there).await;
    let (answers, _) = bed.json(&["query", "flow", FLOW, "--counters", "bytes", "--paths", "paths"]);
    let (paths, bytes) = (&answers[0]["stores"][0], &answers[0]["stores"][1]);
    assert_eq!((&paths["store"], &paths["path"]), (&json!("paths"), &Value::Null));
    assert_eq!((&bytes["store"], &bytes["counted"]), (&json!("bytes"), &json!(1500)));
}

/// A datagram of Telemetry Report v1.0 with a stack of one hop.
fn report(flow: &str, instructions: u16, hop: Hop) -> Vec<u8> {
    let stack = Stack::new(IntVersion::V10, instructions, vec![hop]);
    let packet = emit::EmittedPacket::new(flow.parse().unwrap()).with_stack(stack);
    let flags = Flags { tracked: true, ..Flags::default() };
    let (local, hop) = (Local::Nothing, Hop::default());
    let report = emit::EmittedReport { flags, local, hop, halved_queue: false, packet, ethernet: true };
    let (version, reports) = (ReportVersion::V10, vec![report]);
    EmittedDatagram { version, version_nibble: 0, switch: 9, hardware: 0, sequence: 1, reports }.to_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_and_links_of_a_flow_are_found_with_and_without_ports_and_latencies() {
    let mut bed = Bed::new("v1.0", "").await;
    let flow = |port: u16| format!("10.0.0.1:{port}->10.0.0.2:80/udp");
    let queue = |id, value| Fill { id: Some(id), value: Some(value) };
    let of = |switch, port| Hop { switch: Some(switch), ports: [Some(1), Some(port)], ..Hop::default() };
    let at = |port, load| Hop {
        latency: Some(400),
        queue: queue(5, load),
        utilization: Some(load),
        ..of(7, port)
    };
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = bed.0.translator.ready["int"][0].as_str().unwrap().to_owned();
    let sent = [
        // Switch and queue only; switch, ports and utilisation; only the switch.
        report(&flow(1), 0x9000, Hop { queue: queue(5, 600), ..of(4, 3) }),
        report(&flow(2), 0xc100, Hop { utilization: Some(77), ..of(6, 3) }),
        report(&flow(3), 0x8000, of(8, 3)),
        // Another port, and a latency that is not another.
        report(&flow(4), 0xf100, at(3, 10)),
        report(&flow(4), 0xf100, at(4, 1000)),
    ];
    for datagram in &sent {
        socket.send_to(datagram, &to).unwrap();
    }
    bed.0.until("reports in memory", |counted| counted.is_in_memory(sent.len() as u64)).await;
    let flows: Vec<String> = (1..=4).map(flow).collect();
    let asked: Vec<&str> = ["query", "flow"].into_iter().chain(flows.iter().map(String::as_str)).collect();
    let (answers, status) = bed.json(&asked);
    assert_eq!(status, 0, "{answers:#}");
    let hop = |n: usize| {
        let hop = &answers[n]["hops"][0];
        let queue = &hop["queues"][0];
        json!([hop["port"], hop["utilization"]["value"], queue["queue"], queue["occupancy"]["value"]])
    };
    let unknown = |n: usize| answers[n]["unknown"].to_string();
    assert_eq!(hop(0), json!([null, null, 5, 600]), "{answers:#}");
    assert!(unknown(0).contains("Ports at switch 4: not in the reports."), "{answers:#}");
    assert_eq!(hop(1), json!([3, 77, null, null]), "{answers:#}");
    assert_eq!(hop(2), json!([null, null, null, null]), "{answers:#}");
    assert!(unknown(2).contains("at switch 8: no report of this flow has its egress port."), "{answers:#}");
    assert_eq!(hop(3), json!([4, 1000, 5, 1000]), "{answers:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_printed_as_they_come() {
    let Some(file) = int_capture("int-v1.0-three-reports.pcap") else { return };
    let mut bed = Bed::new("auto", "").await;
    bed.replay(file.clone(), 3).await;
    let arguments = ["tail", "events", "--from-start", "--kind", "flow-latency,flow-path", "-o", "json"];
    let mut tail = Followed::new(bed.0.address(), &arguments);
    let past: Vec<Value> = (0..3).map(|_| tail.next()["event"]["new"].clone()).collect();
    assert!(past.contains(&json!(408)) && past.contains(&json!(3)) && past[2] == 12, "{past:?}");
    // What comes later was not there when it began.
    bed.replay(file.with_file_name("int-v1.0-6-hops-all-fields.pcap"), 103).await;
    let mut flows = BTreeSet::new();
    for _ in 0..200 {
        let event = tail.next()["event"].take();
        let new = if event["kind"] == "flow-path" { 6 } else { 39 };
        assert_eq!((&event["new"], &event["why"]), (&json!(new), &json!("new")), "{event:#}");
        flows.insert(event["flow"].as_str().unwrap().to_owned());
    }
    assert_eq!(flows.len(), 100);
}

/// A command that goes on, and what it prints.
struct Followed {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Followed {
    fn new(address: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(MANAGER)
            .arg("__collector")
            .args(arguments)
            .args(["--names", "none", "--collector", address])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Big-endian number of two bytes.
fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// The frames of a capture: pcap of this byte order, or of the other.
fn frames(file: &PathBuf) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let little = [0xd4, 0x4d].contains(&bytes[0]);
    let number = |at: usize| {
        let four: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
        if little { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) }
    };
    let (mut at, mut frames) = (24, Vec::new());
    while at + 16 <= bytes.len() {
        let len = number(at + 8) as usize;
        frames.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

/// The flow of an IPv4 packet, what it carries, and its length; `None` if it is none.
fn ipv4(packet: &[u8]) -> Option<(Flow, &[u8], u64)> {
    if packet.first()? >> 4 != 4 {
        return None;
    }
    let payload = &packet[4 * usize::from(packet[0] & 15)..];
    let first = word(packet, 6) & 0x1fff == 0;
    let ports = first && [6, 17, 132].contains(&packet[9]) && payload.len() >= 4;
    let (sport, dport) = if ports { (word(payload, 0) as u16, word(payload, 2) as u16) } else { (0, 0) };
    let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
    let flow = Flow { src: address(12), dst: address(16), sport, dport, proto: packet[9] };
    Some((flow, payload, word(packet, 2) as u64))
}

/// The IPv4 packet of a frame.
fn of_frame(frame: &[u8]) -> Option<&[u8]> {
    (word(frame, 12) == 0x0800).then(|| &frame[14..])
}

/// The flow inside of GTP-U, if there is one.
fn inner(flow: Flow, payload: &[u8]) -> Flow {
    if flow.proto != 17 || flow.dport != 2152 {
        return flow;
    }
    let gtp = &payload[8..];
    let mut at = 8;
    if gtp[0] & 7 != 0 {
        at += 4;
        let mut next = gtp[11];
        while next != 0 {
            let len = 4 * usize::from(gtp[at]);
            next = gtp[at + len - 1];
            at += len;
        }
    }
    ipv4(&gtp[at..]).map_or(flow, |(flow, ..)| flow)
}

/// What the Telemetry Reports of SD-Fabric's capture say: reports of each flow, and drops.
fn sdfabric(file: &PathBuf) -> (BTreeMap<Flow, u64>, BTreeMap<Flow, u64>) {
    let (mut reports, mut drops) = (BTreeMap::new(), BTreeMap::new());
    for frame in frames(file) {
        let Some((outer, payload, _)) = of_frame(&frame).and_then(ipv4) else { continue };
        if outer.dport != 32766 {
            continue;
        }
        // Behind UDP: the fixed header of v0.5 with next protocol and flags, then what a switch says of a drop (12
        // bytes) or of itself (16), then the packet.
        let report = &payload[8..];
        let is_drop = report[1] & 0x80 != 0 || report[0] & 15 == 1;
        let packet = &report[12 + if is_drop { 12 } else { 16 }..];
        let Some((flow, payload, _)) = of_frame(packet).and_then(ipv4) else { continue };
        let flow = inner(flow, payload);
        *reports.entry(flow).or_default() += 1;
        if is_drop {
            *drops.entry(flow).or_default() += 1;
        }
    }
    (reports, drops)
}

/// The figures of a table, by flow.
fn figures(top: &Value) -> Vec<(Flow, u64)> {
    let rows = top["flows"].as_array().unwrap();
    rows.iter()
        .map(|row| (row["flow"].as_str().unwrap().parse().unwrap(), row["value"].as_u64().unwrap()))
        .collect()
}

/// Holds a table against what was counted elsewhere: the figures of all flows, the most first.
fn holds(top: &Value, counted: &BTreeMap<Flow, u64>, most: usize) {
    let shown = figures(top);
    assert_eq!(shown.len(), counted.len().min(most), "{top:#}");
    for (flow, figure) in &shown {
        assert_eq!(counted.get(flow), Some(figure), "{flow}");
    }
    let mut all: Vec<u64> = counted.values().copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(shown.iter().map(|(_, figure)| *figure).collect::<Vec<_>>(), all[..shown.len()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_top_flows_of_a_capture_are_those_that_it_has() {
    let Some(file) = int_capture("sdfabric-v0.5-real-traffic.pcap") else { return };
    let (reports, drops) = sdfabric(&file);
    assert!(reports.len() > 3 && !drops.is_empty(), "{reports:?}");
    let mut bed = Bed::new("sdfabric", "").await;
    bed.replay(file, 3579).await;
    for (by, counted) in [("reports", &reports), ("drops", &drops)] {
        for most in [3, 100_000] {
            let (top, _) = bed.json(&["top", "--by", by, "-n", &most.to_string()]);
            holds(&top, counted, most);
            assert_eq!(top["with_figure"], counted.len(), "{top:#}");
            assert_eq!(top["missed"]["overwritten"], 0);
        }
    }
    // Flows with an end in a prefix.
    let (flow, _) = reports.iter().max_by_key(|(_, n)| **n).unwrap();
    let prefix = format!("{}/32", flow.src);
    let of_prefix = reports
        .iter()
        .filter(|(other, _)| other.src == flow.src || other.dst == flow.src)
        .map(|(f, n)| (*f, *n))
        .collect();
    let (top, _) = bed.json(&["top", "--by", "reports", "--prefix", &prefix, "-n", "100000"]);
    holds(&top, &of_prefix, 100_000);
    // The drops of a flow are those by which it is ranked.
    let (flow, count) = drops.iter().next().unwrap();
    let (answers, _) = bed.json(&["query", "flow", &flow.to_string()]);
    let counted: u64 =
        answers[0]["drops"].as_array().unwrap().iter().map(|drop| drop["counted"].as_u64().unwrap()).sum();
    assert_eq!(counted, *count, "{answers:#}");
    // Nobody counted packets, which is shown.
    let nothing = text(&bed.run(&["top", "--by", "packets"]));
    assert!(nothing.contains("per_packet = true"), "{nothing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_past_epochs_are_those_that_were_followed() {
    let Some(file) = int_capture("int-v1.0-three-reports.pcap") else { return };
    let folder = tempfile::tempdir().unwrap();
    let stores = format!(
        "[history]\ndirectory = {:?}
[[store]]\nid = 16\nname = \"int-paths\"\nkind = \"key-write\"\nslots = 65536\nvalue_len = 60\nredundancy = 4
[[store]]\nid = 17\nname = \"int-values\"\nkind = \"key-write\"\nslots = 65536\nvalue_len = 12\nredundancy = 4
[[store]]\nid = 18\nname = \"int-events\"\nkind = \"append\"\nlists = 4\nring = 64\nbatch_len = 128\nentry_len = 60\nepoch = \"2s\"
[[store]]\nid = 19\nname = \"int-counters\"\nkind = \"key-increment\"\nslots = 65536\nredundancy = 2\n",
        folder.path().join("history")
    );
    let setup = Setup { dialects: &["intcollector"], collector: &stores, ..Setup::default() };
    let mut bed = Bed(IntBed::start_in(folder, &setup).await);
    bed.replay(file, 3).await;
    let now = bed.events(&["--from-start"]);
    assert_eq!(now.len(), 19);
    // Open, then kept: the same events, each below its epoch.
    let then = |arguments: &[&str]| {
        let output = bed.run(&[&["tail", "events"], arguments, &["-o", "json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.inspect(|line| hold("dta-collector-tail-events", line)).collect::<Vec<Value>>()
    };
    let events = |lines: &[Value]| -> Vec<Value> {
        lines.iter().filter_map(|line| line.get("event").cloned()).collect()
    };
    let since = std::time::Instant::now();
    loop {
        let lines = then(&["--since", "-1h"]);
        assert_eq!(events(&lines), now);
        let first = lines.iter().position(|line| line.get("event").is_some()).unwrap();
        let epoch = &lines[first - 1]["epoch"];
        if epoch["state"] == "kept" {
            let at = epoch["opened"].as_str().unwrap();
            let of_one = then(&["--at", at]);
            assert_eq!(&of_one[0]["epoch"], epoch);
            let of_epoch = events(&of_one);
            assert!(!of_epoch.is_empty() && of_epoch.iter().all(|event| now.contains(event)), "{of_one:#?}");
            break;
        }
        assert!(since.elapsed() < common::int_bed::PATIENCE, "{lines:#?}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let latencies = then(&["--since", "-1h", "--kind", "flow-latency", "--flow", FLOW]);
    assert_eq!(events(&latencies).len(), 2, "{latencies:#?}");
    let nothing = bed.run(&["tail", "events", "--since", "-1h", "--kind", "drop"]);
    assert_eq!(nothing.status.code(), Some(3), "{nothing:?}");
    for more in ["--once", "--from-start"] {
        let output = bed.run(&["tail", "events", "--at", "-1h", more]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_ring_of_keys_no_longer_holds_is_said() {
    let Some(file) = int_capture("int-v0.5-1000-flows-paths.pcap") else { return };
    // A ring of keys of 64 batches of two entries.
    let stores = "\
[[store]]\nid = 16\nname = \"int-paths\"\nkind = \"key-write\"\nslots = 65536\nvalue_len = 60\nredundancy = 4
[[store]]\nid = 18\nname = \"int-events\"\nkind = \"append\"\nlists = 4\nring = 64\nbatch_len = 128\nentry_len = 60
[[store]]\nid = 19\nname = \"int-counters\"\nkind = \"key-increment\"\nslots = 65536\nredundancy = 2\n";
    let mut bed = Bed::new("intcollector", stores).await;
    bed.replay(file, 1000).await;
    let (top, _) = bed.json(&["top", "--by", "reports"]);
    let gone = top["missed"]["overwritten"].as_u64().unwrap();
    assert!(gone > 100, "{top:#}");
    assert!(top["known"].as_u64().is_some_and(|known| (1..=128).contains(&known)), "{top:#}");
    let printed = text(&bed.run(&["top", "--by", "reports"])).replace('\n', " ");
    assert!(printed.contains(&format!("no longer has its first {gone} batches")), "{printed}");
    // A ring that turns over faster than the keep-alive is shown, with the ring that would do.
    let output = bed.run(&["stores", "-o", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    hold("dta-collector-stores", &document);
    let rings =
        &document.as_array().unwrap().iter().find(|store| store["name"] == "int-events").unwrap()["rings"];
    let ring = &rings[0];
    assert_eq!(ring["list"], "changes", "{document:#}");
    assert!(ring["seconds"].as_f64().is_some_and(|seconds| seconds < 60.0), "{ring:#}");
    let wants = ring["wants"].as_u64().unwrap();
    assert!(wants > 64 && wants.is_power_of_two(), "{ring:#}");
    let printed = text(&bed.run(&["stores"]));
    assert!(printed.contains("reaches back") && printed.contains("set ring = "), "{printed}");
    let doctor = manager(&["doctor", "--collector", bed.0.address(), "--seconds", "1"]);
    let printed = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(printed.contains("rings of events"), "{printed}");
    // With the flows from another source, all of them are shown.
    let output = bed.run(&["tail", "events", "--once", "--kind", "flow-path", "-o", "json"]);
    assert!(text(&output).lines().next().unwrap().contains("\"overwritten\""), "{output:?}");
    let flows = bed.0.folder.path().join("flows");
    std::fs::write(&flows, format!("10.0.0.200:1->10.0.0.2:5/udp\n{FLOW}\n")).unwrap();
    let (top, _) = bed.json(&["top", "--by", "reports", "--flows", flows.to_str().unwrap()]);
    assert_eq!((&top["known"], &top["keys"]), (&json!(2), &json!("given")));
}

/// Bytes of each flow of a capture.
fn bytes_of_flows(file: &PathBuf) -> BTreeMap<Flow, u64> {
    let mut bytes = BTreeMap::new();
    for frame in frames(file) {
        if let Some((flow, _, length)) = of_frame(&frame).and_then(ipv4) {
            *bytes.entry(flow).or_default() += length;
        }
    }
    bytes
}

/// A testbed that is left running.
struct Demo {
    testbed: Child,
    address: String,
}

impl Demo {
    fn new(arguments: &[&str]) -> Self {
        let mut testbed = Command::new(MANAGER)
            .args(["run-testbed", "--keep"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = None;
        for line in BufReader::new(testbed.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some((_, it)) = line.split_once("dta-collector dashboard --collector ") {
                address = Some(it.trim().to_owned());
            }
            if line.starts_with("Files are in") {
                break;
            }
        }
        Self { testbed, address: address.expect("it is left running") }
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = collector(&self.address, &[arguments, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{arguments:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // In order, so that its own processes end with it.
        if let Some(pid) = i32::try_from(self.testbed.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let _ = self.testbed.wait();
    }
}

#[test]
fn the_top_flows_of_a_demo_are_those_of_its_traffic() {
    use dta_testbed::topology::Topology;
    use dta_testbed::traffic::{Synthetic, TrafficShape};
    let folder = tempfile::tempdir().unwrap();
    let outcome = folder.path().join("outcome.json");
    let demo = Demo::new(&["--reports", "20000", "--seed", "5", "--json", outcome.to_str().unwrap()]);
    let outcome: Value = serde_json::from_str(&std::fs::read_to_string(&outcome).unwrap()).unwrap();
    let packets = outcome["run"]["packets"].as_u64().unwrap() as usize;
    let traffic = Topology::load(None).unwrap().traffic;
    let shape = TrafficShape { flows: traffic.flows, exponent: traffic.exponent, seed: 5 };
    let mut bytes: BTreeMap<Flow, u64> = BTreeMap::new();
    for packet in Synthetic::new(shape).take(packets) {
        *bytes.entry(packet.packet.flow).or_default() += u64::from(packet.packet.length);
    }
    // By the names of its stores, and with stores named.
    let top = demo.json(&["top", "--by", "bytes", "-n", "20"]);
    holds(&top, &bytes, 20);
    assert_eq!((&top["keys"], &top["store"]), (&json!("events"), &json!("bytes")));
    assert_eq!(top["known"], outcome["run"]["flows"]);
    assert_eq!(
        demo.json(&["top", "--keys", "events", "--store", "bytes", "-n", "20"])["flows"],
        top["flows"]
    );
    // The length of the last packet of each flow is what key-write holds.
    assert_eq!(demo.json(&["top", "--store", "flows", "-n", "1"])["flows"][0]["value"], 1500);
    // A flow of it has its path in a store of DTA.
    let flow = top["flows"][0]["flow"].as_str().unwrap();
    let answers = demo.json(&["query", "flow", flow, "--paths", "paths", "--counters", "bytes"]);
    assert_eq!(answers[0]["hops"].as_array().unwrap().len(), 5, "{answers:#}");
    assert_eq!(answers[0]["path"]["store"], "paths");
    assert_eq!(answers[0]["stores"][1]["counted"], top["flows"][0]["value"]);
}

#[test]
fn the_top_flows_of_a_demo_on_a_capture_are_those_of_the_capture() {
    let Some(folder) = captures("top of a testbed on real-wechat.pcap") else { return };
    let file = folder.join("traffic/real-wechat.pcap");
    let bytes = bytes_of_flows(&file);
    let demo = Demo::new(&["--pcap", file.to_str().unwrap()]);
    let top = demo.json(&["top", "--by", "bytes", "-n", "15"]);
    let mut all: Vec<u64> = bytes.values().copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    for (flow, figure) in figures(&top) {
        assert_eq!(bytes.get(&flow), Some(&figure), "{flow}");
    }
    assert_eq!(figures(&top).iter().map(|(_, figure)| *figure).collect::<Vec<_>>(), all[..15]);
}
