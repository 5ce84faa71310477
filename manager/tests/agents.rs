//! Agents of two hosts and `dta-manager trace`: points and filters are set on both at once, change while packets pass, and are taken
//! back. All of it in network namespaces on one machine; the agents' gRPC is on loopback.

mod common;
mod schema;

use std::collections::HashMap;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::daemon::Daemon;
use common::int_bed::{IntBed, PATIENCE, Setup};
use common::manager;
use common::namespaces::{Namespaces, run};
use common::tracing::Tracing;
use dta_reporter::packet_trace::kernel::{Tracer, TracerOptions};
use dta_reporter::packet_trace::record::TraceRecord;
use schema::hold;
use serde_json::{Value, json};

/// One test at a time: an agent that starts takes filters of clsact away, in all namespaces.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

impl Namespaces {
    fn socket(&self, host: usize, address: &str) -> UdpSocket {
        self.inside(host, || UdpSocket::bind(address).unwrap())
    }

    /// Does `work` while datagrams go from the first host to the second as fast as may be. What it is given waits until
    /// one that left since then arrives.
    fn under_load<T>(&self, work: impl FnOnce(&dyn Fn()) -> T) -> T {
        let (sender, receiver) = (self.socket(0, "10.98.0.1:0"), self.socket(1, "10.98.0.2:5005"));
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let number = sent.fetch_add(1, Ordering::Relaxed) + 1;
                    // A queue may be full for a moment.
                    let _ = sender.send_to(&number.to_be_bytes(), "10.98.0.2:5005");
                }
            });
            let passes = || {
                let since = sent.load(Ordering::Relaxed);
                let mut number = [0; 8];
                while u64::from_be_bytes(number) <= since {
                    assert_eq!(receiver.recv(&mut number).expect("traffic passes"), 8);
                }
            };
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&passes)));
            done.store(true, Ordering::Relaxed);
            worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Programs that are attached to the pair by clsact. (Debian 12 has no tool that lists those of tcx.)
    fn attached(&self) -> usize {
        let ends = [(0, "va"), (1, "vb")];
        let count = |(host, device): (usize, &str)| {
            let host = &self.0[host];
            let sides = ["ingress", "egress"].map(|side| {
                run(&format!("tc -n {host} filter show dev {device} {side} 2>/dev/null || true"))
            });
            sides.iter().map(|text| text.matches("direct-action").count()).sum::<usize>()
        };
        ends.into_iter().map(count).sum()
    }
}

/// An agent on a free port.
fn agent(folder: &Path, id: u16, translator: &str, more: &str) -> Daemon {
    agent_with(folder, id, translator, more, &[])
}

/// The same with more arguments.
fn agent_with(folder: &Path, id: u16, translator: &str, more: &str, arguments: &[&str]) -> Daemon {
    let path = folder.join(format!("agent{id}.toml"));
    let file = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\nname = \"node{id}\"\nreporter_id = {id}\ntranslator = \"{translator}\"\nnamespaces = true\n{more}"
    );
    std::fs::write(&path, file).unwrap();
    let all = [&["__reporter", "agent", "--config", path.to_str().unwrap()], arguments].concat();
    let agent = Daemon::start(&all);
    hold("dta-reporter-agent", &agent.ready);
    agent
}

/// What `dta-manager trace` answers, and its exit status.
fn trace(file: &Path, arguments: &[&str]) -> (Value, i32) {
    let output: Output =
        manager(&[&["trace", "--agents", file.to_str().unwrap(), "-o", "json"], arguments].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    hold("dta-manager-trace", &document);
    (document, output.status.code().unwrap())
}

/// Asks until it is so.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Threads of a process and what each may do: the effective capabilities, in hex.
fn capabilities(pid: &str) -> Vec<(String, u64)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads
        .filter_map(|thread| {
            // It may have ended since it was listed.
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).ok()?;
            let of = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                line.trim().to_owned()
            };
            let may = u64::from_str_radix(&of("CapEff:"), 16).unwrap()
                | u64::from_str_radix(&of("CapPrm:"), 16).unwrap();
            Some((of("Name:"), may))
        })
        .collect()
}

/// The same, when no thread may do more than `may_have`, or after five seconds: the kernel lists a thread that was
/// joined for a moment still.
fn capabilities_left(pid: &str, may_have: u64) -> Vec<(String, u64)> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let threads = capabilities(pid);
        if threads.iter().all(|(_, may)| may & !may_have == 0) || Instant::now() > end {
            return threads;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON and CAP_BPF (linux/capability.h).
const MAY: u64 = 1 << 12 | 1 << 21 | 1 << 38 | 1 << 39;
const MAY_NOT_ENTER: u64 = MAY & !(1 << 21);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
async fn points_and_filters_of_two_agents_change_at_once_and_are_taken_back() {
    const SENT: u64 = 50;
    let _turn = TURN.lock().await;
    let bed = IntBed::start(&Setup { dialects: &["auto"], ..Setup::default() }).await;
    let hosts = Namespaces::make();
    let folder = bed.folder.path();
    let points =
        [("va", 0), ("vb", 1)].map(|(device, host)| format!("netns:{}/iface:{device}", hosts.0[host]));
    let first = agent(
        folder,
        3,
        bed.translator.said("listen"),
        "clsact = true\n[trace]\nat = [\"tp:kfree_skb\"]\nfilter = \"udp port 5002\"\n",
    );
    let second = agent(folder, 4, bed.translator.said("listen"), "clsact = true\n");
    let file = folder.join("agents.toml");
    let write = |nobody: &str| {
        let agents = format!(
            "[[agent]]\naddress = \"{}\"\nat = [\"{}\"]\n[[agent]]\naddress = \"{}\"\nat = [\"{}\"]\n{nobody}",
            first.said("listen"),
            points[0],
            second.said("listen"),
            points[1]
        );
        std::fs::write(&file, agents).unwrap();
    };
    write("");

    // As they have it in their configurations.
    let (answers, status) = trace(&file, &[]);
    assert_eq!((status, &answers[0]["agent"]["filter"]), (0, &"udp port 5002".into()));
    assert_eq!(answers[0]["agent"]["points"][0]["at"], "tp:kfree_skb");
    assert_eq!(
        (&answers[0]["agent"]["configured"], &answers[1]["agent"]["points"]),
        (&true.into(), &json!([]))
    );
    assert_eq!(hosts.attached(), 0);

    // Set on both; hops go on from the first to the second.
    let (answers, status) = trace(&file, &["--set", "--filter", "udp port 5001"]);
    assert_eq!(status, 0, "{answers:#}");
    let hops: Vec<_> = (0..4).map(|n| answers[n / 2]["agent"]["points"][n % 2]["hop"].clone()).collect();
    assert_eq!(hops, [0, 1, 2, 3]);
    assert_eq!(hosts.attached(), 4);
    let receiver = hosts.socket(1, "10.98.0.2:5001");
    let sender = hosts.socket(0, "10.98.0.1:6001");
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut number = 0;
    let mut pass = || {
        for _ in 0..SENT {
            number += 1;
            sender.send_to(format!("packet {number}").as_bytes(), "10.98.0.2:5001").unwrap();
            assert!(receiver.recv(&mut [0; 64]).unwrap() > 0);
        }
    };
    pass();
    let counts = |answers: &Value, agent: usize, point: usize| -> [u64; 2] {
        let point = &answers[agent]["agent"]["points"][point];
        [&point["reported"], &point["filtered"]].map(|count| count.as_u64().unwrap())
    };
    let (answers, _) = trace(&file, &[]);
    // Out of the one host and into the other.
    let before = [counts(&answers, 0, 1), counts(&answers, 1, 0)];
    assert_eq!(before.map(|[reported, _]| reported), [SENT, SENT], "{answers:#}");

    // Another filter, and nothing is reattached: the points go on counting.
    let (answers, status) = trace(&file, &["--filter", "tcp"]);
    assert_eq!((status, counts(&answers, 0, 1)[0]), (0, SENT));
    pass();
    let (answers, _) = trace(&file, &[]);
    for (now, before) in [counts(&answers, 0, 1), counts(&answers, 1, 0)].into_iter().zip(before) {
        assert_eq!(now[0], SENT);
        assert!(now[1] >= before[1] + SENT, "{answers:#}");
    }

    // The first packets are in the collector, with both hosts.
    let flow = "10.98.0.1:6001->10.98.0.2:5001/udp";
    until("the collector answers", || {
        let output = manager(&["__collector", "trace", flow, "-o", "json", "--collector", bed.address()]);
        let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
        answers[0]["ways"] == json!([{ "hops": [1, 2], "packets": SENT }])
    });

    // An invalid filter changes nothing; a missing point is reported, and comes with its interface.
    let output = manager(&["trace", "--agents", file.to_str().unwrap(), "--filter", "tcp prt 80"]);
    assert_eq!(output.status.code(), Some(2));
    let later = format!("netns:{}/iface:later/ingress", hosts.0[0]);
    let (answers, status) = trace(&file, &["--at", &later, "--filter", "udp"]);
    let why = &answers[0]["agent"]["points"][2]["why_not"];
    assert!(status == 4 && why.as_str().unwrap().contains("there is no interface \"later\""), "{answers:#}");
    run(&format!("ip -n {} link add later type veth peer name retal", hosts.0[0]));
    until("the point is attached", || {
        let (answers, status) = trace(&file, &[]);
        status == 0 && answers[0]["agent"]["points"][2]["attached"] == true
    });

    // One without an answer is reported, and the others are changed anyway.
    write("[[agent]]\naddress = \"127.0.0.1:1\"\n");
    let (answers, status) = trace(&file, &["--back"]);
    assert!(answers[2]["error"].as_str().unwrap().contains("no agent answers at 127.0.0.1:1"), "{answers:#}");
    assert_eq!((status, &answers[0]["agent"]["configured"]), (1, &true.into()));
    assert_eq!(
        (&answers[0]["agent"]["filter"], &answers[1]["agent"]["points"]),
        (&"udp port 5002".into(), &json!([]))
    );
    assert_eq!(hosts.attached(), 0);

    // Each thread of an agent has given its other rights up.
    let pid = first.ready["pid"].to_string();
    let threads = capabilities_left(&pid, MAY);
    assert!(threads.len() > 1 && threads.iter().all(|(_, may)| may & !MAY == 0), "{threads:x?}");
}

#[test]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
fn an_agent_reads_its_file_again_and_one_that_was_killed_leaves_nothing() {
    let _turn = TURN.blocking_lock();
    let hosts = Namespaces::make();
    let folder = tempfile::tempdir().unwrap();
    let at =
        |point: &str| format!("clsact = true\n[trace]\nat = [\"netns:{}/iface:va{point}\"]\n", hosts.0[0]);
    let first = agent(folder.path(), 5, "127.0.0.1:9", &at(""));
    assert_eq!(hosts.attached(), 2);
    let file = folder.path().join("agents.toml");
    std::fs::write(&file, format!("[[agent]]\naddress = \"{}\"\n", first.said("listen"))).unwrap();
    let config = folder.path().join("agent5.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let hangup = || {
        let pid = rustix::process::Pid::from_raw(first.ready["pid"].as_i64().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    };
    std::fs::write(&config, text.replace("iface:va", "iface:va/ingress")).unwrap();
    hangup();
    until("the file is read again", || {
        let (answers, _) = trace(&file, &[]);
        let points = answers[0]["agent"]["points"].as_array().unwrap().clone();
        points.len() == 1 && points[0]["at"].as_str().unwrap().ends_with("/iface:va/ingress")
    });
    assert_eq!(hosts.attached(), 1);

    // Killed under load, its filter of clsact stays, and stops no traffic, until the next agent starts; that one may enter no
    // namespace afterwards.
    let config = folder.path().join("next.toml");
    std::fs::write(&config, "[agent]\nlisten = \"127.0.0.1:0\"\ntranslator = \"127.0.0.1:9\"\n").unwrap();
    let next = hosts.under_load(|passes| {
        passes();
        drop(first);
        passes();
        assert_eq!(hosts.attached(), 1);
        let next = Daemon::start(&["__reporter", "agent", "--config", config.to_str().unwrap()]);
        assert_eq!(hosts.attached(), 0);
        passes();
        next
    });
    let threads = capabilities_left(&next.ready["pid"].to_string(), MAY_NOT_ENTER);
    assert!(threads.iter().all(|(_, may)| may & !MAY_NOT_ENTER == 0), "{threads:x?}");
    let agents = format!(
        "[[agent]]\naddress = \"{}\"\nat = [\"netns:{}/iface:va\"]\n",
        next.said("listen"),
        hosts.0[0]
    );
    std::fs::write(&file, agents).unwrap();
    let (answers, status) = trace(&file, &["--set"]);
    assert_eq!(status, 4);
    assert!(
        answers[0]["agent"]["points"][0]["why_not"].as_str().unwrap().contains("namespaces = true"),
        "{answers:#}"
    );
}

#[test]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
fn points_and_packets_are_printed_for_programs() {
    let _turn = TURN.blocking_lock();
    let hosts = Namespaces::make();
    let output = manager(&["__reporter", "points", "-o", "json"]);
    let points: Value = serde_json::from_slice(&output.stdout).unwrap();
    hold("dta-reporter-points", &points);
    let of = |at: &str| points.as_array().unwrap().iter().find(|point| point["at"] == at).unwrap().clone();
    assert_eq!((&of("tp:kfree_skb")["can"], &of("iface:lo")["can"]), (&true.into(), &true.into()));
    assert_eq!(of(&format!("netns:{}/iface:va", hosts.0[0]))["why_not"], Value::Null);

    let at =
        ["va", "vb"].into_iter().zip(&hosts.0).map(|(device, host)| format!("netns:{host}/iface:{device}"));
    let at: Vec<String> = at.collect();
    let tracing = Command::new(common::MANAGER)
        .args([
            "__reporter",
            "trace",
            "--clsact",
            "--print",
            "-o",
            "json",
            "--count",
            "3",
            "--filter",
            "udp dst port 5001",
        ])
        .args(["--at", &at[0], "--at", &at[1]])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("it attaches", || hosts.attached() == 4);
    let receiver = hosts.socket(1, "10.98.0.2:5001");
    let sender = hosts.socket(0, "10.98.0.1:6002");
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    for n in 0..3 {
        sender.send_to(format!("packet {n}").as_bytes(), "10.98.0.2:5001").unwrap();
        assert!(receiver.recv(&mut [0; 64]).unwrap() > 0);
    }
    let output = tracing.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        hold("dta-reporter-trace", line);
        assert_eq!(line["flow"], "10.98.0.1:6002->10.98.0.2:5001/udp");
        let steps: Vec<_> = line["steps"].as_array().unwrap().iter().map(|step| step["at"].clone()).collect();
        assert_eq!(steps, [format!("{}/egress", at[0]), format!("{}/ingress", at[1])]);
        assert_eq!(line["steps"][1]["since"], line["total"]);
    }
}

/// The least time from one interface to the other and back, by the one clock that the machine has.
fn truth(records: &[TraceRecord], points: [u16; 2]) -> i64 {
    let at = |point: u16| -> HashMap<u64, u64> {
        let there = records.iter().filter(|record| record.point == point);
        there.map(|record| (record.digest, record.time)).collect()
    };
    let [from, to] = points.map(at);
    let both = from.iter().filter_map(|(digest, time)| Some(*to.get(digest)? as i64 - *time as i64));
    both.min().expect("packets passed")
}

/// Both agents have the machine's clock, but one of them reports times that are 7.3 ms ahead and gain 40 ppm.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
async fn a_clock_that_is_ahead_and_gains_is_taken_out() {
    /// Packets of one turn, in each direction.
    const TURN_PACKETS: usize = 1000;
    /// Programs of one point run one after the other, and the clocks of programs are some nanoseconds apart.
    const PROGRAMS: i64 = 2_000;
    let _turn = TURN.lock().await;
    let bed = IntBed::start(&Setup { dialects: &["auto"], ..Setup::default() }).await;
    let hosts = Namespaces::make();
    let point = |device: &str, host: usize| format!("netns:{}/iface:{device}", hosts.0[host]);
    let points = [point("va", 0), point("vb", 1)];
    let traced = |n: usize, hop: u16| {
        let at = format!("[\"{0}/egress\", \"{0}/ingress\"]\nfilter = \"udp port 5003\"\n", points[n]);
        format!("first_hop = {hop}\n[trace]\nat = {at}")
    };
    let to = bed.translator.said("listen");
    let _first = agent(bed.folder.path(), 3, to, &traced(0, 0));
    let wrong = ["--test-clock", "7300000,40"];
    let _second = agent_with(bed.folder.path(), 4, to, &traced(1, 2), &wrong);
    let table = dta_reporter::packet_trace::filter::compile_filter("udp port 5003").unwrap();
    let mut own = Tracer::start(&TracerOptions { table, ..TracerOptions::default() }).unwrap();
    for at in points.iter().flat_map(|point| [format!("{point}/egress"), format!("{point}/ingress")]) {
        own.attach(&at.parse().unwrap()).unwrap();
    }

    let near = hosts.socket(0, "10.98.0.1:6003");
    let far = hosts.socket(1, "10.98.0.2:5003");
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut records = Vec::new();
    let begun = Instant::now();
    for turn in 0.. {
        for number in 0..TURN_PACKETS {
            let text = format!("packet {turn} {number}");
            near.send_to(text.as_bytes(), "10.98.0.2:5003").unwrap();
            far.recv(&mut [0; 64]).unwrap();
            far.send_to(text.as_bytes(), "10.98.0.1:6003").unwrap();
            near.recv(&mut [0; 64]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        own.read(|record| records.push(record));
        // There and back: the point where a packet leaves a host, and the one where it comes into the other.
        let truths = [truth(&records, [0, 3]), truth(&records, [2, 1])];
        let flow = "10.98.0.1:6003->10.98.0.2:5003/udp";
        let output = manager(&["__collector", "trace", flow, "-o", "json", "--collector", bed.address()]);
        let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answer = &answers[0];
        let segments = answer["segments"].as_array().unwrap();
        let between = segments.iter().find(|segment| segment["clock"] == "fitted");
        let late = || assert!(begun.elapsed() < PATIENCE, "{answer:#} {truths:?}");
        let Some(between) = between else {
            late();
            continue;
        };
        let least = between["times"]["least"].as_i64().unwrap();
        let bound = between["bound"].as_i64().unwrap();
        let error = least - truths[0];
        eprintln!("after {turn}: {least} ns reported, {truths:?} ns there and back, within {bound}");
        assert!(error.abs() <= bound + PROGRAMS, "{error} ns off, bound {bound}: {answer:#}");
        // Nothing is known better than half of the quickest way there and back.
        assert!(bound + PROGRAMS >= (truths[0] + truths[1]) / 2, "{bound} {truths:?}");
        if turn >= 2 && error.abs() <= 10_000 {
            break;
        }
        late();
    }
}

#[test]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
fn trace_gives_up_what_it_does_not_need() {
    let _turn = TURN.blocking_lock();
    let hosts = Namespaces::make();
    let elsewhere = format!("netns:{}/iface:va", hosts.0[0]);
    for (at, may_have) in [("iface:lo", MAY_NOT_ENTER), (elsewhere.as_str(), MAY)] {
        let tracing = Tracing::start(&["tp:kfree_skb", at], &["--print"]);
        let threads = capabilities_left(&tracing.id().to_string(), may_have);
        drop(tracing);
        assert!(threads.len() > 1 && threads.iter().all(|(_, may)| may & !may_have == 0), "{threads:x?}");
        // What it works with, it has.
        let main = threads.iter().map(|(_, may)| may).fold(0, |all, may| all | may);
        assert_eq!(main, may_have, "{threads:x?}");
    }
}

/// Two containers on two hosts, with names of this process.
struct Overlay(String);

impl Overlay {
    fn make() -> Self {
        let overlay = Self(format!("dto{}", std::process::id()));
        overlay.script("");
        overlay
    }

    fn script(&self, what: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/tracing/overlay");
        run(&format!("OVERLAY_PREFIX={} {script} {what}", self.0));
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        self.script("end");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
async fn every_packet_of_an_overlay_is_shown_with_its_twelve_points() {
    const SENT: u64 = 1000;
    let _turn = TURN.lock().await;
    let bed = IntBed::start(&Setup { dialects: &["auto"], ..Setup::default() }).await;
    let overlay = Overlay::make();
    let way = [
        "pod1/iface:e0/queue",
        "pod1/iface:e0/driver",
        "host1/iface:pod/receive",
        "host1/iface:vx0/queue",
        "host1/iface:vx0/driver",
        "host1/iface:wire/queue",
        "host1/iface:wire/driver",
        "host2/iface:wire/receive",
        "host2/iface:vx0/receive",
        "host2/iface:pod/queue",
        "host2/iface:pod/driver",
        "pod2/iface:e0/receive",
    ];
    let points = way.map(|point| format!("netns:{}{point}", overlay.0));
    let at = points.each_ref().map(String::as_str);
    let translator = bed.translator.said("listen");
    let more = ["--translator", translator, "--collector", bed.address(), "--filter", "udp dst port 7072"];
    let tracing = Tracing::start(&at, &more);
    let ends = Namespaces(["pod1", "pod2"].map(|pod| format!("{}{pod}", overlay.0)));
    let sender = ends.socket(0, "10.7.0.1:7071");
    let receiver = ends.socket(1, "10.7.0.2:7072");
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    for n in 0..SENT {
        sender.send_to(format!("packet {n}").as_bytes(), "10.7.0.2:7072").unwrap();
        receiver.recv(&mut [0; 64]).unwrap();
    }
    // It has nothing that the overlay does not take away.
    std::mem::forget(ends);
    let flow = "10.7.0.1:7071->10.7.0.2:7072/udp";
    let mut answer = Value::Null;
    until("all packets are shown with their ways", || {
        let output = manager(&["__collector", "trace", flow, "-o", "json", "--collector", bed.address()]);
        answer = serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone();
        answer["ways"][0]["packets"] == SENT
    });
    assert_eq!(
        (&answer["sampled"], answer["ways"].as_array().unwrap().len()),
        (&SENT.into(), 1),
        "{answer:#}"
    );
    drop(tracing);
    let all: Vec<usize> = (0..way.len()).collect();
    assert_eq!(answer["ways"][0]["hops"], json!(all), "{answer:#}");
    for (point, name) in answer["points"].as_array().unwrap().iter().zip(&points) {
        assert_eq!(point["name"], json!(name));
    }
    let segments = answer["segments"].as_array().unwrap();
    assert_eq!(segments.len(), way.len() - 1);
    // The parts of each packet's way are its whole.
    let sum = |of: &str| -> i64 { segments.iter().map(|part| part["times"][of].as_i64().unwrap()).sum() };
    let whole = |of: &str| answer["total"][of].as_i64().unwrap();
    assert!(sum("least") <= whole("least") && whole("most") <= sum("most"), "{answer:#}");
    assert!(segments.iter().all(|part| part["clock"] == "same" && part["times"]["least"].as_i64() > Some(0)));
}
