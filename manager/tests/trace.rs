//! Records of two hosts, made up as the kernel would hand them up, become reports, go through a translator into a collector, and are
//! asked for with `dta-collector trace`. Needs no privilege: the kernel's part has tests of its own.

mod common;
mod schema;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::int_bed::{IntBed, PATIENCE, Setup as BedSetup, until_room};
use common::manager;
use common::namespaces::Namespaces;
use common::tracing::Tracing;
use dta_proto::key::Flow;
use dta_reporter::packet_trace::counts::{Books, FlowAt, FlowCount};
use dta_reporter::packet_trace::record::{TraceRecord, flags};
use dta_reporter::trace::{Setup, TraceStores, Tracer, number_points};
use dta_reporter::{Config, ReportOptions, Reporter};
use serde_json::Value;

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:80/tcp";
const BACK: &str = "10.0.0.2:80->10.0.0.1:5000/tcp";
/// Packets in each direction.
const PACKETS: u64 = 1000;
/// Of these, the least whose rows are there at both hosts: at this load a store with four copies keeps 99.99 %.
const MOST: u64 = PACKETS - 5;
/// Points of each host.
const POINTS: u64 = 6;
/// Nanoseconds from one point of a host to the next.
const STEP: u64 = 1500;
/// Nanoseconds between the hosts, without waiting.
const WIRE: u64 = 20_000;
/// What the queue between point 2 and 3 of the first host adds to some packets.
const QUEUE: u64 = 5_000_000;
const DROPPED: u64 = 24;
/// SKB_DROP_REASON_QDISC_DROP of some kernel.
const REASON: u32 = 64;

fn flow(text: &str) -> Flow {
    text.parse().unwrap()
}

/// The clock of the second host: 7.3 ms ahead, and 40 ppm too fast. Times are nanoseconds since the start of the run.
fn second_clock(start: u64, since: u64) -> u64 {
    start + since + 7_300_000 + since / 25_000
}

fn record(digest: u64, flow: Flow, point: u64, time: u64) -> TraceRecord {
    let (flags, reason, namespace, interface) = (0, 0, 4_026_531_840, 2 + point as u32);
    let (first, core, length, cpu, segments) = (digest, digest, 100, 0, 1);
    let point = point as u16;
    TraceRecord {
        time,
        digest,
        first,
        core,
        flow,
        flags,
        length,
        reason,
        namespace,
        interface,
        point,
        cpu,
        segments,
    }
}

fn points(host: u64) -> Vec<(bool, String)> {
    let mut points: Vec<_> = (0..POINTS).map(|n| (true, format!("iface:h{host}p{n}"))).collect();
    points.push((false, "tp:kfree_skb".to_owned()));
    points
}

fn tracer(bed: &IntBed, host: u64, slow: Option<Duration>) -> Tracer {
    let to = bed.translator.said("listen").parse().unwrap();
    let options = ReportOptions { retransmittable: true, immediate: false };
    let reporter = Reporter::open(Config { reporter: host as u16, options, ..Config::new(to) }).unwrap();
    let first = if host == 1 { 0 } else { POINTS as u8 };
    let points = number_points(points(host), first).unwrap();
    let setup = Setup {
        slow,
        ..Setup::new(host as u16, format!("node{host}"), points, TraceStores::with_default_ids())
    };
    Tracer::new(reporter, setup, Box::new(|reason| (reason == REASON).then(|| "QDISC_DROP".to_owned())))
}

/// A number that looks random, the same each time.
fn noise(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Records of one packet at both hosts: those of the first host and those of the second one, by their own clocks.
fn packet(start: u64, n: u64, is_back: bool) -> [Vec<TraceRecord>; 2] {
    // A packet each 2 ms in each direction: two seconds in all.
    let at = n * 2_000_000 + u64::from(is_back) * 700_000;
    let digest = noise(2 * n + u64::from(is_back)) | 1;
    let flow = flow(if is_back { BACK } else { FLOW });
    let wait = noise(n ^ 0xabc) % 60_000;
    let queue = if n.is_multiple_of(50) && !is_back { QUEUE } else { 0 };
    let host = |first: u64, begin: u64, clock: &dyn Fn(u64) -> u64| -> Vec<TraceRecord> {
        (0..POINTS)
            .map(|step| {
                let point = if is_back { POINTS - 1 - step } else { step };
                let queued = if first == 1 && step >= 3 { queue } else { 0 };
                record(digest, flow, point, clock(begin + step * STEP + queued))
            })
            .collect()
    };
    let through = (POINTS - 1) * STEP;
    let there = at + through + queue + WIRE + wait;
    let (here, far) = (|since: u64| start + since, |since: u64| second_clock(start, since));
    match is_back {
        false => [host(1, at, &here), host(2, there, &far)],
        true => [host(1, there, &here), host(2, at, &far)],
    }
}

fn ask(bed: &IntBed, arguments: &[&str]) -> Output {
    manager(&[&["__collector", "trace"], arguments, &["--collector", bed.address()]].concat())
}

fn trace(bed: &IntBed, flow: &str) -> Value {
    let output = ask(bed, &[flow, "-o", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::hold("dta-collector-trace", &document);
    document[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_over_two_hosts_is_shown_with_its_segments_drops_and_clocks() {
    let mut bed = IntBed::start(&BedSetup { dialects: &["auto"], ..BedSetup::default() }).await;
    let to = bed.translator.said("listen").parse().unwrap();
    let start = now() - 3_000_000_000;
    let mut hosts = [tracer(&bed, 1, Some(Duration::from_millis(4))), tracer(&bed, 2, None)];
    let end = [start + 2_100_000_000, second_clock(start, 2_100_000_000)];
    // Sketches begin with the first turn.
    hosts.iter_mut().for_each(|host| host.report_due(start).unwrap());
    for n in 0..PACKETS {
        for is_back in [false, true] {
            let both = packet(start, n, is_back);
            for (host, mut records) in hosts.iter_mut().zip(both) {
                // As rings of several processors are read: in any order.
                records.rotate_left((noise(n) % POINTS) as usize);
                records.iter().for_each(|record| host.process_record(record).unwrap());
            }
        }
        hosts[0].report_due(start + n * 2_000_000).unwrap();
        hosts[1].report_due(second_clock(start, n * 2_000_000)).unwrap();
        until_room(to);
    }
    for n in 0..DROPPED {
        let at = record(noise(n) & !1, flow(FLOW), POINTS, start + n);
        let dropped = TraceRecord { flags: flags::DROPPED, reason: REASON, ..at };
        hosts[0].process_record(&dropped).unwrap();
    }
    // What the kernel counts of the flow, sampled or not, in two parts.
    for part in [1, 2] {
        for point in 0..POINTS {
            let at = FlowAt { flow: flow(FLOW), namespace: 1, interface: 2, point: point as u16 };
            let count = FlowCount { packets: 5000 * part, bytes: 700_000 * part, drops: 0 };
            hosts[0].report_flow_count(&at, count).unwrap();
        }
        let at = FlowAt { flow: flow(FLOW), namespace: 0, interface: 0, point: POINTS as u16 };
        hosts[0]
            .report_flow_count(&at, FlowCount { packets: 30 * part, bytes: 3000 * part, drops: 30 * part })
            .unwrap();
    }
    hosts[0].set_totals(&Books { seen: 20, reported: 10, filtered: 3, ring_full: 7, ..Books::default() });
    for (host, end) in hosts.iter_mut().zip(end) {
        host.finish(end, Duration::from_millis(300)).unwrap();
    }

    let sent: u64 = hosts.iter().map(|host| host.counters().reporter.reports).sum();
    bed.until("reports in the collector", |counted| {
        let rest = counted.own("held") + counted.own("superseded");
        counted.own("accepted") == sent
            && rest == 0
            && counted.own("dropped.duplicate") == counted.own("received") - sent
            && counted.is_executed()
    })
    .await;
    let counted = hosts[0].counters();
    assert_eq!((counted.packets, counted.held, counted.drops, counted.repeats), (2 * PACKETS, 0, DROPPED, 0));
    assert_eq!(counted.slow, PACKETS / 50);
    assert!(counted.reporter.is_balanced());

    // The NIC takes a moment for the last frames.
    let begun = std::time::Instant::now();
    let answer = loop {
        let answer = trace(&bed, FLOW);
        if answer["with_path"] == PACKETS && answer["ways"][0]["packets"].as_u64() >= Some(MOST) {
            break answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{answer:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&answer["found"], &answer["sampled"]), (&true.into(), &PACKETS.into()));
    let hops: Vec<u64> = (0..2 * POINTS).collect();
    assert_eq!(answer["ways"][0]["hops"], serde_json::json!(hops));
    let points = answer["points"].as_array().unwrap();
    assert_eq!((&points[0]["name"], &points[0]["host_name"]), (&"iface:h1p0".into(), &"node1".into()));
    assert_eq!((&points[11]["name"], &points[11]["host"]), (&"iface:h2p5".into(), &2.into()));
    assert_eq!((&points[0]["packets"], &points[0]["bytes"]), (&10_000.into(), &1_400_000.into()));
    assert_eq!(points[6]["packets"], Value::Null);

    let segments = answer["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 11);
    let times = |n: usize| &segments[n]["times"];
    for n in [0, 1, 3, 4] {
        assert_eq!(segments[n]["clock"], "same", "{answer:#}");
        let all = ["least", "median", "p99", "most"].map(|name| times(n)[name].as_u64().unwrap());
        assert_eq!(all, [STEP; 4], "segment {n}");
        assert_eq!(segments[n]["of_host"]["most"], STEP);
    }
    // Every fiftieth packet waited in the queue: more than one in a hundred.
    assert_eq!(times(2)["median"], STEP);
    assert_eq!((&times(2)["p99"], &times(2)["most"]), (&(STEP + QUEUE).into(), &(STEP + QUEUE).into()));
    assert_eq!(segments[2]["of_host"]["packets"], PACKETS);
    // Between the hosts, 7.3 ms and 40 ppm are corrected, within 10 us and within the reported error.
    let between = &segments[5];
    assert_eq!(between["clock"], "fitted");
    let bound = between["bound"].as_i64().unwrap();
    let shortest = times(5)["least"].as_i64().unwrap();
    let error = shortest - WIRE as i64;
    assert!(error.abs() <= 10_000 && error.abs() <= bound, "{error} ns off, bound {bound}");
    assert!((10_000..40_000).contains(&bound), "about half of the way there and back: {bound}");
    assert!((20_000..100_000).contains(&times(5)["median"].as_i64().unwrap()), "{between:#}");
    // The parts of each packet's way are its whole.
    let sum: i64 = (0..11).map(|n| times(n)["least"].as_i64().unwrap()).sum();
    let least = answer["total"]["least"].as_i64().unwrap();
    assert!((sum - least).abs() <= 11, "{sum} and {least}");

    let drops = answer["drops"].as_array().unwrap();
    assert_eq!(drops.len(), 2, "{drops:#?}");
    assert_eq!((&drops[0]["reason"], &drops[0]["counted"]), (&Value::Null, &60.into()));
    assert_eq!((&drops[1]["reason_name"], &drops[1]["counted"]), (&"QDISC_DROP".into(), &DROPPED.into()));
    assert_eq!((&drops[1]["listed"], &drops[1]["host_name"]), (&DROPPED.into(), &"node1".into()));
    assert_eq!(answer["slow"][0]["packets"], PACKETS / 50);
    let lacks = answer["lacks"].to_string();
    assert!(lacks.contains("lost 7 records of 20"), "{lacks}");
    // And so does the waterfall.
    let stats = manager(&["__collector", "stats", "-o", "json", "--collector", bed.address()]);
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    let agent =
        stats["nodes"].as_array().unwrap().iter().find(|node| node["node"] == "agent/1").expect("books");
    assert_eq!((&agent["stage"], &agent["counters"]["dropped.ring-full"]), (&"agent".into(), &7.into()));
    assert_eq!(agent["counters"]["left-out"], 3);

    // The way back has the same points the other way round.
    let back = trace(&bed, BACK);
    let hops: Vec<u64> = (0..2 * POINTS).rev().collect();
    assert_eq!(back["ways"][0]["hops"], serde_json::json!(hops));
    assert!(back["ways"][0]["packets"].as_u64() >= Some(MOST), "{back:#}");

    // For people.
    let text = String::from_utf8(ask(&bed, &[FLOW]).stdout).unwrap();
    for words in
        ["1,000 sampled", "12 points", "QDISC_DROP (64)", "iface:h2p0 of node2 (2)", "┊", "10.0.0.2:80"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Of another flow nothing is known, and the exit status says so.
    assert_eq!(ask(&bed, &["10.9.9.9:1->10.0.0.2:80/tcp"]).status.code(), Some(3));

    // The size of the flow is in the epoch in which it was counted, at one point of the host that counted it.
    let sizes = answer["sizes"].as_array().unwrap();
    assert_eq!((sizes.len(), &sizes[0]["bytes"], &sizes[0]["hosts"]), (1, &1_400_000.into(), &1.into()));
    let epochs = [start, end[0]].map(|time| time / 10_000_000_000 * 10);
    assert!(epochs.contains(&sizes[0]["began"].as_u64().unwrap()), "{sizes:?} {epochs:?}");
    assert!(text.contains("at most 1,400,000 bytes in the 10 s that ended "), "{text}");

    // As traces over OTLP: one for each packet, and for each drop of a packet that no point saw.
    let Some((log, sent)) = exported(&bed) else { return };
    let traces = 2 * PACKETS + DROPPED;
    for counted in ["events", "made", "delivered"].map(|name| format!("otlp-host-traces.{name}={traces}")) {
        assert!(log.contains(&counted), "{counted}: {log}");
    }
    let count = |what: &str| sent.windows(what.len()).filter(|part| *part == what.as_bytes()).count() as u64;
    for stage in ["iface:h1p2 to iface:h1p3", "iface:h1p5 to iface:h2p0", "iface:h2p0 to iface:h1p5"] {
        assert!((MOST..=PACKETS).contains(&count(stage)), "{stage}: {}", count(stage));
    }
    assert!((2 * MOST..=2 * PACKETS).contains(&count("fitted")), "{}", count("fitted"));
    // Of the whole, and of the part where it was dropped.
    assert_eq!(count("dropped: QDISC_DROP (64), in host node1 (1)"), 2 * DROPPED);
}

/// Exports all packets over OTLP: the exporter's log, and the bodies of its requests. `None` if it was built without.
fn exported(bed: &IntBed) -> Option<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "[export.otlp]\nurl = \"http://{}\"\nsignals = [\"host-traces\"]\nspool = {:?}\n\
         [export.otlp.host_traces]\none_in = 1\n",
        server.local_addr().unwrap(),
        folder.path().join("spool")
    );
    let file = folder.path().join("collector.toml");
    std::fs::write(&file, config).unwrap();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let bodies = sent.clone();
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            bodies.lock().unwrap().extend(body);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            reader.get_mut().write_all(answer).unwrap();
        }
    });
    let file = file.to_str().unwrap();
    let output =
        manager(&["__collector", "export", "--config", file, "--once", "--collector", bed.address()]);
    let log = String::from_utf8(output.stderr).unwrap();
    if log.contains("was built without it") {
        eprintln!("not tested: traces over OTLP, which this program was built without");
        return None;
    }
    assert!(output.status.success(), "{log}");
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    Some((log, sent))
}

/// `dta-reporter trace` as host 3, of UDP on port 5001.
fn tracing(bed: &IntBed, points: &[String], more: &[&str]) -> Tracing {
    let points: Vec<&str> = points.iter().map(String::as_str).collect();
    let of_bed = ["--translator", bed.translator.said("listen"), "--collector", bed.address()];
    let host = ["--filter", "udp port 5001", "--reporter-id", "3", "--name", "node3"];
    Tracing::start(&points, &[&of_bed[..], &host, more].concat())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
async fn packets_that_the_kernel_saw_are_shown() {
    const SENT: u64 = 200;
    let bed = IntBed::start(&BedSetup { dialects: &["auto"], ..BedSetup::default() }).await;
    let namespaces = Namespaces::make();
    let points =
        [("va", 0), ("vb", 1)].map(|(device, end)| format!("netns:{}/iface:{device}", namespaces.0[end]));
    let tracing = tracing(&bed, &points, &[]);
    let receiver = namespaces.inside(1, || std::net::UdpSocket::bind("10.98.0.2:5001").unwrap());
    let sender = namespaces.inside(0, || std::net::UdpSocket::bind("10.98.0.1:6000").unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    for n in 0..SENT {
        sender.send_to(format!("packet {n}").as_bytes(), "10.98.0.2:5001").unwrap();
        assert!(receiver.recv(&mut [0; 64]).unwrap() > 0);
    }
    let said = tracing.end();

    let begun = std::time::Instant::now();
    let flow = "10.98.0.1:6000->10.98.0.2:5001/udp";
    let answer = loop {
        let output = ask(&bed, &[flow, "-o", "json"]);
        let answer = serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone();
        let counts = [
            &answer["with_path"],
            &answer["points"][1]["packets"],
            &answer["segments"][0]["of_host"]["packets"],
        ];
        if counts.iter().all(|count| **count == SENT) {
            break answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{answer:#}\n{said}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    // Out of the one interface, and into the other.
    assert_eq!(answer["ways"], serde_json::json!([{ "hops": [1, 2], "packets": SENT }]), "{said}");
    let points = answer["points"].as_array().unwrap();
    assert!(points[0]["name"].as_str().unwrap().ends_with("iface:va/egress"), "{answer:#}");
    assert_eq!((&points[0]["packets"], &points[0]["host_name"]), (&SENT.into(), &"node3".into()));
    assert_eq!(points[1]["packets"], SENT);
    let times = &answer["segments"][0]["times"];
    assert_eq!(times["packets"], SENT);
    assert!(times["least"].as_i64().unwrap() >= 0, "{answer:#}");
    assert_eq!(answer["segments"][0]["of_host"]["packets"], SENT);
    // ARP is of no flow.
    let lacks = answer["lacks"].as_array().unwrap();
    assert!(lacks.iter().all(|lack| lack.as_str().unwrap().contains("could not read")), "{answer:#}");
}

/// Counters as `dta-reporter trace` says them at its end.
fn counters(said: &str) -> HashMap<&str, u64> {
    let counter = |line: &'_ str| -> Option<u64> { line.replace(',', "").parse().ok() };
    said.lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, count)| Some((name.trim(), counter(count)?)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
async fn of_a_million_packets_each_is_in_the_answer_or_counted() {
    const SENT: u64 = 1_000_000;
    /// One packet in four goes to a port that the filter does not choose.
    const CHOSEN: u64 = SENT - SENT / 4;
    let mut bed = IntBed::start(&BedSetup { dialects: &["auto"], ..BedSetup::default() }).await;
    let namespaces = Namespaces::make();
    let points = [("va/egress", 0), ("vb/ingress", 1)]
        .map(|(device, end)| format!("netns:{}/iface:{device}", namespaces.0[end]));
    let tracing = tracing(&bed, &points, &["--sample", "1/256"]);
    let receiver = namespaces.inside(1, || std::net::UdpSocket::bind("10.98.0.2:5001").unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = namespaces.inside(0, || std::net::UdpSocket::bind("10.98.0.1:6000").unwrap());
    for number in 0..SENT {
        let port = if number % 4 == 0 { 9 } else { 5001 };
        // The sender learns that the other port is closed.
        while sender.send_to(&number.to_be_bytes(), ("10.98.0.2", port)).is_err() {}
        // No more are under way than the kernel queues for a CPU, however busy that is.
        if number % 64 == 63 {
            let mut came = [0; 8];
            while came != number.to_be_bytes() {
                receiver.recv(&mut came).unwrap();
            }
        }
    }
    let said = tracing.end();
    let counted = counters(&said);
    let of = |name: &str| counted.get(name).copied().unwrap_or(0);
    let agent = |reason: &str| of(&format!("dropped.agent.{reason}"));
    let refused = agent("not-ip") + agent("unreadable");
    let known = of("trace.reported")
        + of("trace.filtered")
        + of("trace.sampled-out")
        + of("trace.own")
        + agent("ring-full")
        + refused;
    assert_eq!(of("trace.seen"), known, "{said}");
    assert!(of("trace.seen") >= 2 * SENT && of("trace.filtered") >= 2 * (SENT - CHOSEN), "{said}");
    assert_eq!(of("trace.records"), of("trace.reported"), "{said}");
    // Each record is reported with its packet, which was at both points.
    let unreported = agent("repeat") + agent("shared-digest") + agent("unknown-point");
    assert_eq!(of("trace.records"), 2 * of("trace.packets") + unreported, "{said}");
    let packets = of("trace.packets");
    assert!((CHOSEN / 512..CHOSEN / 128).contains(&packets), "{said}");

    // What was reported is accepted: nothing is lost on the way.
    bed.until("reports in the collector", |counted| {
        counted.own("accepted") == of("reports") && counted.own("held") + counted.own("superseded") == 0
    })
    .await;
    let flow = "10.98.0.1:6000->10.98.0.2:5001/udp";
    let begun = std::time::Instant::now();
    let answer = loop {
        let answer = trace(&bed, flow);
        if answer["sampled"] == packets && answer["points"][1]["packets"] == CHOSEN {
            break answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{answer:#}\n{said}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(answer["points"][0]["packets"], CHOSEN);
    let gone = answer["lacks"].to_string().contains("are no longer known");
    assert!(answer["with_path"] == packets || gone, "{answer:#}");
    assert!(answer["with_path"].as_u64() >= Some(packets - 5), "{answer:#}");
}
