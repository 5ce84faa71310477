//! Agents of two hosts and `dta-manager trace`: points and filters are set on both at once, change while packets pass, and are taken
//! back. All of it in network namespaces on one machine; the agents' gRPC is on loopback.

mod common;
mod schema;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::daemon::Daemon;
use common::int_bed::{IntBed, PATIENCE, Setup};
use common::manager;
use serde_json::{Value, json};

/// One test at a time: an agent that starts takes filters of clsact away, in all namespaces.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Two namespaces with a veth pair between them, taken away at the end.
struct Hosts([String; 2]);

fn run(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

impl Hosts {
    fn make() -> Self {
        let hosts = Self(["a", "b"].map(|end| format!("dtag{}{end}", std::process::id())));
        let [a, b] = &hosts.0;
        run(&format!(
            "ip netns add {a} && ip netns add {b} && ip -n {a} link set lo up && ip -n {b} link set lo up"
        ));
        hosts.connect();
        hosts
    }

    fn connect(&self) {
        let [a, b] = &self.0;
        run(&format!(
            "ip -n {a} link add va type veth peer name vb netns {b} \
             && ip -n {a} addr add 10.98.0.1/24 dev va && ip -n {b} addr add 10.98.0.2/24 dev vb \
             && ip -n {a} link set va up && ip -n {b} link set vb up"
        ));
    }

    fn socket(&self, host: usize, address: &str) -> UdpSocket {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0[host])).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let network = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(file.as_fd(), Some(network)).unwrap();
                UdpSocket::bind(address).unwrap()
            });
            inside.join().unwrap()
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

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", host]).output();
        }
    }
}

/// An agent on a free port.
fn agent(folder: &Path, id: u16, translator: &str, more: &str) -> Daemon {
    let path = folder.join(format!("agent{id}.toml"));
    let file = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\nname = \"node{id}\"\nreporter_id = {id}\ntranslator = \"{translator}\"\nnamespaces = true\n{more}"
    );
    std::fs::write(&path, file).unwrap();
    let agent = Daemon::start(&["__reporter", "agent", "--config", path.to_str().unwrap()]);
    hold("dta-reporter-agent", &agent.ready);
    agent
}

fn hold(name: &str, document: &Value) {
    let path = format!("{}/../docs/schemas/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let faults = schema::faults(&schema, document);
    assert!(faults.is_empty(), "{faults:#?} in {document:#}");
}

/// What `dta-manager trace` answers, and its exit status.
fn trace(file: &Path, arguments: &[&str]) -> (Value, i32) {
    let output: Output =
        manager(&[&["trace", "--agents", file.to_str().unwrap(), "-o", "json"], arguments].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
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
        .map(|thread| {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            let of = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                line.trim().to_owned()
            };
            (
                of("Name:"),
                u64::from_str_radix(&of("CapEff:"), 16).unwrap()
                    | u64::from_str_radix(&of("CapPrm:"), 16).unwrap(),
            )
        })
        .collect()
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
    let hosts = Hosts::make();
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
    let (told, status) = trace(&file, &[]);
    assert_eq!((status, &told[0]["agent"]["filter"]), (0, &"udp port 5002".into()));
    assert_eq!(told[0]["agent"]["points"][0]["at"], "tp:kfree_skb");
    assert_eq!((&told[0]["agent"]["configured"], &told[1]["agent"]["points"]), (&true.into(), &json!([])));
    assert_eq!(hosts.attached(), 0);

    // Set on both; hops go on from the first to the second.
    let (told, status) = trace(&file, &["--set", "--filter", "udp port 5001"]);
    assert_eq!(status, 0, "{told:#}");
    let hops: Vec<_> = (0..4).map(|n| told[n / 2]["agent"]["points"][n % 2]["hop"].clone()).collect();
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
    let counts = |told: &Value, agent: usize, point: usize| -> [u64; 2] {
        let point = &told[agent]["agent"]["points"][point];
        [&point["reported"], &point["filtered"]].map(|count| count.as_u64().unwrap())
    };
    let (told, _) = trace(&file, &[]);
    // Out of the one host and into the other.
    let before = [counts(&told, 0, 1), counts(&told, 1, 0)];
    assert_eq!(before.map(|[reported, _]| reported), [SENT, SENT], "{told:#}");

    // Another filter, and nothing is attached anew: the points go on counting.
    let (told, status) = trace(&file, &["--filter", "tcp"]);
    assert_eq!((status, counts(&told, 0, 1)[0]), (0, SENT));
    pass();
    let (told, _) = trace(&file, &[]);
    for (now, before) in [counts(&told, 0, 1), counts(&told, 1, 0)].into_iter().zip(before) {
        assert_eq!(now[0], SENT);
        assert!(now[1] >= before[1] + SENT, "{told:#}");
    }

    // The first packets are in the collector, with both hosts.
    let flow = "10.98.0.1:6001->10.98.0.2:5001/udp";
    until("the collector answers", || {
        let output = manager(&["__collector", "trace", flow, "-o", "json", "--collector", bed.address()]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        told[0]["ways"] == json!([{ "hops": [1, 2], "packets": SENT }])
    });

    // A filter that is none changes nothing; a point that is not there is told, and comes with its interface.
    let output = manager(&["trace", "--agents", file.to_str().unwrap(), "--filter", "tcp prt 80"]);
    assert_eq!(output.status.code(), Some(2));
    let later = format!("netns:{}/iface:later/ingress", hosts.0[0]);
    let (told, status) = trace(&file, &["--at", &later, "--filter", "udp"]);
    let why = &told[0]["agent"]["points"][2]["why_not"];
    assert!(status == 4 && why.as_str().unwrap().contains("there is no interface \"later\""), "{told:#}");
    run(&format!("ip -n {} link add later type veth peer name retal", hosts.0[0]));
    until("the point is attached", || {
        let (told, status) = trace(&file, &[]);
        status == 0 && told[0]["agent"]["points"][2]["attached"] == true
    });

    // One that nobody answers for is told, and the others do it all the same.
    write("[[agent]]\naddress = \"127.0.0.1:1\"\n");
    let (told, status) = trace(&file, &["--back"]);
    assert!(told[2]["error"].as_str().unwrap().contains("no agent answers at 127.0.0.1:1"), "{told:#}");
    assert_eq!((status, &told[0]["agent"]["configured"]), (1, &true.into()));
    assert_eq!(
        (&told[0]["agent"]["filter"], &told[1]["agent"]["points"]),
        (&"udp port 5002".into(), &json!([]))
    );
    assert_eq!(hosts.attached(), 0);

    // Each thread of an agent has given its other rights up.
    let pid = first.ready["pid"].to_string();
    let threads = capabilities(&pid);
    assert!(threads.len() > 1 && threads.iter().all(|(_, may)| may & !MAY == 0), "{threads:x?}");
}

#[test]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
fn an_agent_reads_its_file_again_and_one_that_was_killed_leaves_nothing() {
    let _turn = TURN.blocking_lock();
    let hosts = Hosts::make();
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
        let (told, _) = trace(&file, &[]);
        let points = told[0]["agent"]["points"].as_array().unwrap().clone();
        points.len() == 1 && points[0]["at"].as_str().unwrap().ends_with("/iface:va/ingress")
    });
    assert_eq!(hosts.attached(), 1);

    // Killed, its filter of clsact stays, until the next agent starts; that one may enter no namespace afterwards.
    drop(first);
    assert_eq!(hosts.attached(), 1);
    let config = folder.path().join("next.toml");
    std::fs::write(&config, "[agent]\nlisten = \"127.0.0.1:0\"\ntranslator = \"127.0.0.1:9\"\n").unwrap();
    let next = Daemon::start(&["__reporter", "agent", "--config", config.to_str().unwrap()]);
    assert_eq!(hosts.attached(), 0);
    let threads = capabilities(&next.ready["pid"].to_string());
    assert!(threads.iter().all(|(_, may)| may & !MAY_NOT_ENTER == 0), "{threads:x?}");
    let agents = format!(
        "[[agent]]\naddress = \"{}\"\nat = [\"netns:{}/iface:va\"]\n",
        next.said("listen"),
        hosts.0[0]
    );
    std::fs::write(&file, agents).unwrap();
    let (told, status) = trace(&file, &["--set"]);
    assert_eq!(status, 4);
    assert!(
        told[0]["agent"]["points"][0]["why_not"].as_str().unwrap().contains("namespaces = true"),
        "{told:#}"
    );
}

#[test]
#[ignore = "attaches programs to the kernel in network namespaces: needs root"]
fn points_and_packets_are_printed_for_programs() {
    let _turn = TURN.blocking_lock();
    let hosts = Hosts::make();
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
