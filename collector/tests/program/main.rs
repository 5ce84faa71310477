//! The program `dta-collector`: what it prints, how it ends, and what is there after a kill.

mod epochs;
mod inserts;
#[path = "../../../testbed/tests/shared/loopback.rs"]
mod loopback;
mod reliability;
#[cfg(feature = "s3")]
mod upload;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dta_collector::config::{MemoryBacking, default_stores};
use dta_link::{Link, UdpConfig, UdpLink};
use dta_memory::region::RegionOptions;
use dta_memory::store::ServedStores;
use dta_proto::batch::PacketBatch;
use dta_proto::control;
use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{Bth, Opcode, Psn, Reth, RoceRepr};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions};
use serde_json::Value;

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:5000/udp";

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dta-collector"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DTA_")) {
        command.env_remove(name);
    }
    command.env("COLUMNS", "120");
    command
}

/// A collector that serves on free ports, with its ready line.
fn serve(memory: &Path, stderr: Stdio) -> (Child, Value) {
    serve_with(memory, "0", &[], stderr)
}

/// The same, with the port of its NIC and with flags.
fn serve_with(memory: &Path, soft_port: &str, flags: &[&str], stderr: Stdio) -> (Child, Value) {
    let mut child = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", soft_port, "--memory"])
        .arg(memory)
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).expect("a ready line"))
}

/// A running collector; killed when dropped.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(memory: &Path) -> Self {
        let (child, ready) = serve(memory, Stdio::null());
        assert_eq!(ready["pid"], child.id());
        Running { child, address: ready["listen"].as_str().unwrap().to_owned() }
    }

    fn ask(&self, args: &[&str]) -> Output {
        program().args(args).args(["--collector", &self.address]).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.ask(&[args, &["-o", "json"]].concat());
        assert!(answers(&output), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn text(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        assert!(answers(&output), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a question was answered, be it that a key is absent (3).
fn answers(output: &Output) -> bool {
    matches!(output.status.code(), Some(0 | 3))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What NICs wrote before the program came: two values, a path, a counter, three batches.
fn fill(memory: &Path) {
    std::fs::create_dir(memory).unwrap();
    let memory = MemoryBacking::Directory(memory.to_owned());
    let stores = ServedStores::open(&default_stores(), &memory, RegionOptions::default()).unwrap();
    let key: Key = FLOW.parse().unwrap();
    let region = |name| stores.get(name).unwrap().region.clone();
    let mut slot = [0; 16];
    layout::key_write::encode_slot(&mut slot, &key, &[0xab; 12]);
    for at in hash::key_slots(&key, 2, 1 << 20).iter() {
        region("flows").write(layout::key_write::slot_offset(*at, 12), &slot).unwrap();
        region("bytes").fetch_add(layout::key_increment::counter_offset(*at), 1234567).unwrap();
    }
    let mut path = layout::postcarding::PostcardPath { length: 3, ..Default::default() };
    path.set(0, 7);
    path.set(2, 9);
    let mut row = [0; 32];
    layout::postcarding::encode_row(&mut row, &key, &path);
    for at in hash::key_slots(&key, 2, 1 << 18).iter() {
        region("paths").write(layout::postcarding::row_offset(*at, 6), &row).unwrap();
    }
    let mut batch = [0; 64];
    for sequence in [1u32, 2, 4] {
        layout::append::encode_batch(&mut batch, 0, sequence, 1, &[sequence as u8; 16]);
        region("events").write(layout::append::batch_offset(0, sequence, 1 << 12, 64), &batch).unwrap();
    }
}

#[test]
fn commands_answer_for_people_and_for_programs() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    fill(&memory);
    let collector = Running::start(&memory);

    let answer = collector.json(&["query", "key-write", FLOW, "abcd"]);
    assert_eq!(answer[0]["key"], FLOW);
    assert_eq!(answer[0]["value"], "ab".repeat(12));
    assert_eq!(answer[1]["key"], format!("abcd{}", "0".repeat(28)));
    assert_eq!(answer[1]["value"], Value::Null);
    let counter = collector.json(&["query", "counter", FLOW]);
    assert_eq!(counter[0]["counted"], 1234567);
    assert_eq!(counter[0]["lacks"]["not_applied"], 0);
    let text = collector.text(&["query", "counter", FLOW]);
    assert!(text.contains("counted") && text.contains("1,234,567"), "{text}");
    assert!(text.contains("whether anything was lost on the way is unknown"), "{text}");
    let path = collector.json(&["query", "path", FLOW]);
    assert_eq!(path[0]["hops"], serde_json::json!([7, null, 9]));
    assert_eq!(path[0]["complete"], false);
    assert_eq!(collector.json(&["query", "sketch", FLOW, "--epoch", "3"])[0]["estimate"], Value::Null);
    insta::assert_snapshot!("query_key_write", collector.text(&["query", "key-write", FLOW, "abcd"]));
    insta::assert_snapshot!("query_path", collector.text(&["query", "path", FLOW, "abcd"]));
    insta::assert_snapshot!("query_counter", collector.text(&["query", "counter", FLOW, "abcd"]));
    insta::assert_snapshot!("query_sketch", collector.text(&["query", "sketch", "--epoch", "3", FLOW]));
    insta::assert_snapshot!("tail", collector.text(&["tail", "--once"]));
    assert_eq!(collector.text(&["tail", "--once"]), collector.text(&["tail", "--once", "--from-start"]));
    let stores = collector.json(&["stores"]);
    assert_eq!(stores.as_array().unwrap().len(), default_stores().len());
    assert_eq!(stores[2]["used"], 3);
    assert!(collector.text(&["stores"]).contains("key-increment"));
    assert!(collector.text(&["sessions"]).contains("no session"));
    let stats = collector.json(&["stats"]);
    assert!(stats["nodes"].as_array().unwrap().iter().any(|n| n["node"] == "nic/soft"));
    for node in stats["nodes"].as_array().unwrap() {
        let name = node["node"].as_str().unwrap();
        for (counter, _) in node["counters"].as_object().unwrap() {
            let found = dta_proto::counter::find_counter(name, counter);
            assert!(found.is_some_and(|found| found.known), "{name}: {counter} is in no document");
        }
    }
    assert!(collector.text(&["stats"]).contains("nic/soft"));

    for (args, status, wanted) in [
        (&["query", "key-write", "not a key"][..], 2, "is not a key"),
        (&["query", "key-write", "--store", "nowhere", "ab"], 1, "there is no store \"nowhere\""),
        (&["query", "key-write", "--policy", "at-least=9", "ab"], 1, "ask for 1 to 2"),
        (&["tail", "--list", "99"], 1, "there is no list 99"),
        (&["sessions", "end", "nobody"], 1, "there is no session \"nobody\""),
    ] {
        let output = collector.ask(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn an_absent_key_is_a_status_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    fill(&memory);
    let collector = Running::start(&memory);
    for primitive in ["key-write", "postcarding", "path", "key-increment", "counter"] {
        let status = |keys: &[&str]| collector.ask(&[&["query", primitive], keys].concat()).status.code();
        assert_eq!(status(&[FLOW]), Some(0), "{primitive}");
        assert_eq!(status(&["abcd"]), Some(3), "{primitive}");
        assert_eq!(status(&[FLOW, "abcd"]), Some(3), "{primitive}");
    }
    for name in ["sketch-merge", "sketch"] {
        assert_eq!(collector.ask(&["query", name, "--epoch", "3", FLOW]).status.code(), Some(3));
    }
}

#[test]
fn a_store_is_asked_by_name_or_id() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    fill(&memory);
    let collector = Running::start(&memory);
    for store in ["flows", "1"] {
        let answer = collector.json(&["query", "key-write", "--store", store, FLOW]);
        assert_eq!(answer[0]["value"], "ab".repeat(12), "{store}");
    }
    for store in ["events", "3"] {
        let text = collector.text(&["tail", "--store", store, "--from-start", "--once"]);
        assert!(text.starts_with("0101"), "{store}: {text}");
    }
    let output = collector.ask(&["query", "key-write", "--store", "3", "ab"]);
    assert!(stderr(&output).contains("\"events\" is for append"), "{}", stderr(&output));
    let output = collector.ask(&["query", "key-write", "--store", "9", "ab"]);
    assert!(stderr(&output).contains("there is no store \"9\""), "{}", stderr(&output));
}

#[test]
fn looks_one_after_another_send_no_screen_codes_into_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Running::start(&dir.path().join("m"));
    let mut command = program();
    command.args(["stats", "--watch", "--collector", &collector.address]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (mut text, mut looks) = (String::new(), 0);
    while looks < 2 {
        let from = text.len();
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
        looks += usize::from(text[from..].starts_with("node"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.contains("\n\nnode"), "a line between two looks: {text}");
}

#[test]
fn a_signal_ends_it_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    fill(&memory);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let (child, ready) = serve(&memory, Stdio::piped());
        // A tail under way must not hold it up.
        let mut tail = program()
            .args(["tail", "--from-start", "--collector", ready["listen"].as_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(tail.stdout.take().unwrap());
        assert_ne!(lines.read_line(&mut String::new()).unwrap(), 0, "the tail ended");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(!stderr(&output).contains("cutting off calls"), "{}", stderr(&output));
        assert_eq!(tail.wait().unwrap().code(), Some(1));
    }
}

#[test]
fn a_signal_ends_a_start_that_is_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("many.toml");
    let mut text = String::from("[collector]\nmemory = \"anonymous\"\n");
    for id in 1..=3000 {
        text += &format!(
            "[[store]]\nid = {id}\nname = \"s{id}\"\nkind = \"key-write\"\nslots = 256\nvalue_len = 12\nredundancy = 2\n"
        );
    }
    std::fs::write(&file, text).unwrap();
    // An address at which nobody else listens, and from which nobody connects (to a free port of its own address,
    // a socket may connect to itself).
    let listen = std::net::TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap();
    let mut child = program()
        .args(["serve", "--soft-port", "0", "--listen", &listen.to_string(), "--config"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It listens first, and makes memory then.
    let began = Instant::now();
    while std::net::TcpStream::connect(listen).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let signalled = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if signalled.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it goes on starting");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(ended.code(), Some(0), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_guesses_is_named_in_the_log_and_no_key_is() {
    let (child, ready) = serve(Path::new("anonymous"), Stdio::piped());
    let roce: std::net::SocketAddrV4 = ready["roce"].as_str().unwrap().parse().unwrap();
    let mut client = RemoteCollector::connect(&ClientOptions::without_tls(ready["listen"].as_str().unwrap()))
        .await
        .unwrap();
    let open = open_leaf1();
    let session = client.open_session(open).await.unwrap();
    let (qpn, region) = (session.queue_pairs[0].qpn, session.regions[0].clone());

    // The translator's address, and another one.
    let [mut peer, mut stranger] = [2, 3].map(|n| {
        let ip = std::net::Ipv4Addr::new(127, 0, 0, n);
        UdpLink::open(&UdpConfig::for_roce_frames((ip, 0).into())).unwrap()
    });
    let send = |link: &mut UdpLink, qpn: u32, rkey: u32| {
        let from = link.local_addr();
        let mut batch = PacketBatch::default();
        for n in 0..50 {
            let route = FrameRoute {
                src_port: from.port(),
                dst_port: roce.port(),
                ..FrameRoute::new(*from.ip(), *roce.ip(), qpn)
            };
            let (va, length) = (region.address, 4);
            let repr = RoceRepr {
                bth: Bth::new(Opcode::UcWriteOnly, qpn, Psn::new(n), false),
                reth: Some(Reth { va, rkey: rkey.wrapping_add(n), length }),
                atomic: None,
                aeth: None,
                atomic_ack: None,
                imm: None,
                payload: b"mine",
            };
            let mut packet = [0; 256];
            let len = route.write_frame(&repr, &mut packet).unwrap();
            batch.push(&packet[..len], 0).unwrap();
        }
        link.send(&mut batch).unwrap();
    };
    let begun = Instant::now();
    for _ in 0..4 {
        send(&mut peer, qpn, region.rkey.wrapping_add(1));
        send(&mut peer, qpn ^ 1, region.rkey);
        send(&mut stranger, qpn, region.rkey);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let since = Instant::now();
    loop {
        let nodes = client.statistics().await.unwrap();
        let nic = nodes.iter().find(|n| n.node == "nic/soft").unwrap();
        let counted = |name: &str| nic.counters.iter().find(|c| c.name == name).map_or(0, |c| c.value);
        let all = ["dropped.rkey", "dropped.unknown_queue_pair", "dropped.peer"].map(counted);
        if all == [200; 3] {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{all:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let log = stderr(&child.wait_with_output().unwrap());
    // One each ten seconds.
    let most = 2 + begun.elapsed().as_secs() as usize / 10;
    for (reason, sender, qpn) in [
        ("dropped.rkey", "127.0.0.2", qpn),
        ("dropped.unknown_queue_pair", "127.0.0.2", qpn ^ 1),
        ("dropped.peer", "127.0.0.3", qpn),
    ] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(reason)).collect();
        // The first frames may be counted while the first line is written; the rest is named when the collector stops.
        assert!((1..=most).contains(&lines.len()), "{reason}: {log}");
        let says = [format!("sender={sender}"), format!("queue_pair={qpn:#08x}"), "WARN".into()];
        assert!(lines.iter().all(|line| says.iter().all(|s| line.contains(s))), "{lines:?}");
        let frames = |line: &&str| line.rsplit("frames=").next().unwrap().trim().parse::<u32>().unwrap();
        assert_eq!(lines.iter().map(frames).sum::<u32>(), 200, "{lines:?}");
    }
    // As a whole number: the digits of a small key may be within others.
    let is_key = |word: &str| {
        let hexadecimal = u32::from_str_radix(word.trim_start_matches("0x"), 16);
        [word.parse::<u32>(), hexadecimal].contains(&Ok(region.rkey))
    };
    assert!(!log.split(|c: char| !c.is_ascii_alphanumeric()).any(is_key), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_everything_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    fill(&memory);
    let mut first = Running::start(&memory);
    let mut client = RemoteCollector::connect(&ClientOptions::without_tls(&first.address)).await.unwrap();
    let pair = |purpose: control::Purpose, qpn| control::RequesterQueuePair {
        purpose: purpose.into(),
        qpn,
        start_psn: 1,
    };
    let open = control::OpenSessionRequest {
        name: "leaf1".into(),
        translator: Some(control::Endpoint { ip: "127.0.0.2".into(), ..Default::default() }),
        queue_pairs: vec![pair(control::Purpose::Write, 50), pair(control::Purpose::Atomic, 51)],
        ..Default::default()
    };
    let session = client.open_session(open).await.unwrap();
    assert_eq!(session.positions[0].sequence, 4);
    let statistics = vec![control::NodeStatistics {
        node: "translator/leaf1".into(),
        life: 1,
        counters: vec![control::Counter { name: "received".into(), value: 5 }],
        ..Default::default()
    }];
    let renew = |statistics| control::RenewSessionRequest {
        name: "leaf1".into(),
        generation: session.generation,
        statistics,
        ..Default::default()
    };
    client.renew_session(renew(statistics)).await.unwrap();
    let (file, name) = (memory.join("statistics.bin"), b"translator/leaf1");
    epochs::until("statistics are written", || {
        std::fs::read(&file).is_ok_and(|bytes| bytes.windows(name.len()).any(|part| part == name))
    });
    first.child.kill().unwrap();
    first.child.wait().unwrap();

    let second = Running::start(&memory);
    assert_eq!(second.json(&["query", "key-write", FLOW])[0]["value"], "ab".repeat(12));
    let sessions = second.json(&["sessions"]);
    assert_eq!(sessions[0]["name"], "leaf1");
    assert_eq!(sessions[0]["queue_pairs"], serde_json::json!([]));
    assert!(second.text(&["sessions"]).contains("none until it renews"));
    assert!(second.text(&["stats"]).contains("translator/leaf1"));
    let mut client = RemoteCollector::connect(&ClientOptions::without_tls(&second.address)).await.unwrap();
    let resumed = client.renew_session(renew(Vec::new())).await.unwrap();
    assert!(resumed.generation > session.generation);
    assert_eq!(second.json(&["sessions"])[0]["queue_pairs"][0]["state"], "rtr");
    let ended = second.text(&["sessions", "end", "leaf1"]);
    assert!(ended.contains("leaf1"));
    assert_eq!(second.json(&["sessions"]), serde_json::json!([]));
}

#[test]
fn a_wrong_start_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let serve = |args: &[&str]| {
        let output = program().arg("serve").args(args).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (code, error) = serve(&["--listen", "0.0.0.0:0"]);
    assert!(code == Some(2) && error.contains("--insecure") && error.contains("--tls-cert"), "{error}");
    std::fs::write(&file, "[collector]\ncolour = 1\n").unwrap();
    let (code, error) = serve(&["--config", file.to_str().unwrap()]);
    assert!(code == Some(2) && error.contains("colour") && error.contains("line 2"), "{error}");
    let (code, error) = serve(&["--config", "/nonexistent.toml"]);
    assert!(code == Some(2) && error.contains("/nonexistent.toml"), "{error}");
    let (code, error) = serve(&["--listen", "nowhere"]);
    assert!(code == Some(2) && error.contains("--listen"), "{error}");

    // What only a start would show is looked at too.
    std::fs::write(
        &file,
        "[collector]\nmemory = \"anonymous\"\n[[store]]\nid = 1\nname = \"big\"\nkind = \"key-increment\"\nslots = 4294967296\nredundancy = 2\n",
    )
    .unwrap();
    // 32 GiB may be there; 128 of them are not.
    let big = std::fs::read_to_string(&file).unwrap();
    let table = big.split_once("[[store]]").unwrap().1;
    let many: String = (2..130)
        .map(|id| {
            format!(
                "[[store]]{}",
                table.replace("id = 1", &format!("id = {id}")).replace("big", &format!("big{id}"))
            )
        })
        .collect();
    std::fs::write(&file, big + &many).unwrap();
    let check = |flags: &[&str]| {
        let output = program().arg("check-config").args(flags).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (code, error) = check(&["--config", file.to_str().unwrap()]);
    assert!(code == Some(2) && error.contains("this machine's memory"), "{error}");
    let missing = ["--tls-cert", "/no/c", "--tls-key", "/no/k", "--tls-client-ca", "/no/ca"];
    let (code, error) = check(&missing);
    assert!(code == Some(2) && error.contains("/no/c"), "{error}");

    // A region of another version, as another collector leaves it: named, and left as it is.
    let old = dir.path().join("old");
    drop(Running::start(&old));
    let region = old.join("flows.region");
    let mut bytes = std::fs::read(&region).unwrap();
    bytes[8] = 9;
    std::fs::write(&region, &bytes).unwrap();
    let (code, error) =
        serve(&["--listen", "127.0.0.1:0", "--soft-port", "0", "--memory", old.to_str().unwrap()]);
    assert!(
        code == Some(1) && error.contains("flows.region") && error.contains("header version 9"),
        "{error}"
    );
    assert_eq!(std::fs::read(&region).unwrap()[..4096], bytes[..4096]);

    let memory = dir.path().join("m");
    let running = Running::start(&memory);
    let memory = memory.to_str().unwrap();
    let (code, error) = serve(&["--listen", "127.0.0.1:0", "--soft-port", "0", "--memory", memory]);
    assert!(
        code == Some(1) && error.contains("collector collector uses") && error.contains(memory),
        "{error}"
    );
    let (code, error) = serve(&["--listen", &running.address, "--soft-port", "0", "--memory", "anonymous"]);
    assert!(code == Some(1) && error.contains(&running.address) && error.contains("--listen"), "{error}");
    assert_eq!(error.matches("in use").count(), 1, "reported once: {error}");
    let (code, error) = serve(&["--listen", "127.0.0.1:0", "--device", "mlx5_9", "--memory", "anonymous"]);
    // Built with verbs it reports that there is no such device, without it how to get it.
    assert!(code == Some(1) && (error.contains("verbs") || error.contains("mlx5_9")), "{error}");
}

#[test]
fn a_collector_logs_what_it_does_unless_asked_not_to() {
    let log = |level: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        let mut command = program();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory"])
            .arg(dir.path().join("m"));
        match level {
            Some(level) => command.env("DTA_COLLECTOR_LOG", level),
            None => command.env_remove("DTA_COLLECTOR_LOG"),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        child.kill().unwrap();
        stderr(&child.wait_with_output().unwrap())
    };
    assert!(log(None).contains("INFO"), "{}", log(None));
    assert!(log(Some("")).contains("INFO"));
    assert!(!log(Some("error")).contains("INFO"));
}

#[test]
fn a_file_that_is_found_empty_or_blank_is_named_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    let log = || {
        let (mut child, ready) = serve(&memory, Stdio::piped());
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(ready["listen"].is_string(), "{}", stderr(&output));
        stderr(&output)
    };
    let is_logged = |log: &str, file: &Path, what: &str| {
        log.lines()
            .any(|line| line.contains("WARN") && line.contains(what) && line.contains(file.to_str().unwrap()))
    };
    assert!(!log().contains("created again"), "what it makes itself is no surprise");
    let cut = ["flows.region", "nic.counters"].map(|name| memory.join(name));
    for file in &cut {
        std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
    }
    let found = log();
    assert!(cut.iter().all(|file| is_logged(&found, file, "the file is empty")), "{found}");
    assert_eq!(found.matches("the file is empty").count(), 2, "{found}");
    // As long as it was, and nothing but zeros.
    for file in &cut {
        let blank = std::fs::OpenOptions::new().write(true).open(file).unwrap();
        let len = blank.metadata().unwrap().len();
        blank.set_len(0).and_then(|()| blank.set_len(len)).unwrap();
    }
    let found = log();
    assert!(cut.iter().all(|file| is_logged(&found, file, "its header is zeros")), "{found}");
    assert_eq!(found.matches("created again").count(), 2, "{found}");
    assert!(!log().contains("created again"), "they are whole again");
}

#[test]
fn a_ready_line_that_nobody_reads_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = program();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory"])
        .arg(dir.path().join("m"));
    let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.code() == Some(1) && stderr(&output).contains("ready line"), "{}", stderr(&output));
}

#[test]
fn flags_and_variables_go_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, "[collector]\nname = \"a\"\nlisten = \"127.0.0.1:1\"\ndevice = \"mlx5_0\"\n")
        .unwrap();
    let check = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = program();
        command.args(["check-config", "--config"]).arg(&file).args(flags).envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = check(&[], &[]);
    assert!(
        shown.contains("\"127.0.0.1:1\"\n") && shown.contains("mlx5_0") && shown.contains("/dev/shm/dta-a"),
        "{shown}"
    );
    // A switch can be said in any of the usual words, and taken back.
    for (word, open) in [("1", true), ("yes", true), ("0", false), ("no", false)] {
        let mut command = program();
        command.args(["check-config", "--listen", "0.0.0.0:1", "--memory", "anonymous"]);
        let output = command.env("DTA_COLLECTOR_INSECURE", word).output().unwrap();
        assert_eq!(output.status.success(), open, "{word}: {}", stderr(&output));
        assert_eq!(stderr(&output).contains("WARNING: gRPC on 0.0.0.0:1 WITHOUT TLS"), open, "{word}");
    }
    let shown = check(&[], &[("DTA_COLLECTOR_LISTEN", "127.0.0.1:2"), ("DTA_COLLECTOR_NAME", "b")]);
    assert!(shown.contains("\"127.0.0.1:2\"\n") && shown.contains("/dev/shm/dta-b"), "{shown}");
    let shown =
        check(&["--listen", "127.0.0.1:3", "--device", "soft"], &[("DTA_COLLECTOR_LISTEN", "127.0.0.1:2")]);
    assert!(shown.contains("\"127.0.0.1:3\"\n") && shown.contains("device = \"soft\""), "{shown}");
}

#[test]
fn the_example_configuration_is_good_and_completions_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let example = program().args(["config", "--example"]).output().unwrap();
    std::fs::write(&file, &example.stdout).unwrap();
    let output = program().args(["check-config", "--config"]).arg(&file).output().unwrap();
    insta::assert_snapshot!("check_config", String::from_utf8(output.stdout).unwrap());
    let bash = program().args(["completions", "bash"]).output().unwrap();
    assert!(String::from_utf8(bash.stdout).unwrap().contains("dta-collector"));
}

#[test]
fn devices_are_listed_or_it_says_how_to_get_them() {
    let output = program().arg("devices").output().unwrap();
    let error = stderr(&output);
    let text = format!("{}{error}", String::from_utf8_lossy(&output.stdout));
    if !cfg!(feature = "verbs") {
        assert_eq!(output.status.code(), Some(1));
        assert!(
            error.contains("--features dta-collector/verbs") && error.contains("--device soft"),
            "{error}"
        );
        assert!(error.contains("The kernel shows ") && error.lines().count() == 1, "{error}");
    } else if Path::new("/sys/class/infiniband_verbs").exists() {
        assert!(output.status.success(), "{text}");
    } else {
        // Some versions of libibverbs call a kernel without RDMA an error, others one without devices.
        assert!(text.contains("modprobe ib_uverbs") || text.contains("rdma link add"), "{text}");
    }
}

/// A directory with the files of TLS: `c.crt` and `c.key` are for both sides, and of `ca.crt`. They
/// end in so many days, of 100.
fn tls_files(dir: &Path, days_left: i64) {
    let day = |n: i64| Duration::from_secs(n.unsigned_abs() * 86_400);
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let (ca_key, key) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
    std::fs::write(dir.join("ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let mut params = rcgen::CertificateParams::new(vec!["c.example".to_owned()]).unwrap();
    // An hour more, so that whole days are left when the program looks.
    let now = std::time::SystemTime::now() + Duration::from_secs(3600);
    params.not_before = (now - day(100 - days_left)).into();
    params.not_after = if days_left < 0 { now - day(days_left) } else { now + day(days_left) }.into();
    std::fs::write(dir.join("c.crt"), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    std::fs::write(dir.join("c.key"), key.serialize_pem()).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(dir.join("c.key"), private).unwrap();
}

fn server_flags(dir: &Path) -> Vec<String> {
    [("--tls-cert", "c.crt"), ("--tls-key", "c.key"), ("--tls-client-ca", "ca.crt")]
        .into_iter()
        .flat_map(|(flag, file)| [flag.to_owned(), dir.join(file).display().to_string()])
        .collect()
}

#[test]
fn a_certificate_that_ends_is_warned_of_before_and_one_that_has_ended_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let check = || {
        let mut command = program();
        command.args(["check-config", "--memory", "anonymous"]).args(server_flags(dir.path()));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output))
    };
    tls_files(dir.path(), 60);
    let (code, text) = check();
    assert!(code == Some(0) && !text.contains("WARNING"), "{text}");
    tls_files(dir.path(), 5);
    let (code, text) = check();
    assert!(
        code == Some(0) && text.contains("WARNING") && text.contains("c.crt expires in 5 days"),
        "{text}"
    );
    tls_files(dir.path(), -3);
    let (code, text) = check();
    assert!(code == Some(2) && text.contains("c.crt expired 2 days ago"), "{text}");
    let mut command = program();
    command.args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory", "anonymous"]);
    let output = command.args(server_flags(dir.path())).output().unwrap();
    assert!(output.status.code() == Some(1) && stderr(&output).contains("expired"), "{}", stderr(&output));
}

/// Time of the processor that a process has had, in ticks of 10 ms (fields 14 and 15 of proc_pid_stat(5)).
fn processor_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn silent_connections_do_not_stop_a_collector() {
    dta_rpc::transport::raise_file_limit();
    let dir = tempfile::tempdir().unwrap();
    tls_files(dir.path(), 60);
    // Few files, and fewer at first: what the program may have it takes.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -Sn 200; ulimit -Hn 400; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_dta-collector"),
    ]);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory"])
        .arg(dir.path().join("m"))
        .args(server_flags(dir.path()))
        .env("DTA_COLLECTOR_LOG", "warn");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).expect("a ready line");
    let collector = Running { child, address: ready["listen"].as_str().unwrap().to_owned() };
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", collector.child.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().filter(|word| *word == "400").count(), 2, "{files}");

    let silent: Vec<_> =
        (0..600).map(|_| std::net::TcpStream::connect(&collector.address).unwrap()).collect();
    let before = processor_time(collector.child.id());
    std::thread::sleep(Duration::from_secs(1));
    let used = processor_time(collector.child.id()) - before;
    assert!(used < 50, "{used} % of a processor");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let stores = collector.json(&[
        "stores",
        "--ca",
        &file("ca.crt"),
        "--client-cert",
        &file("c.crt"),
        "--client-key",
        &file("c.key"),
        "--tls-domain",
        "c.example",
    ]);
    assert_eq!(stores.as_array().unwrap().len(), default_stores().len());
    drop(silent);
}

/// A file that is cut short while it is in use ends the process: no check can come before each access of a NIC.
#[test]
fn a_region_that_is_cut_short_under_a_collector_is_named_before_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m");
    let (child, ready) = serve(&memory, Stdio::piped());
    let file = memory.join("flows.region");
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(4096).unwrap();
    let asked = program()
        .args(["query", "key-write", FLOW, "--collector", ready["listen"].as_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(asked.status.code(), Some(1), "{}", stderr(&asked));
    let ended = child.wait_with_output().unwrap();
    let log = stderr(&ended);
    let words = format!("{}: the file was cut short while it was in use", file.display());
    assert_eq!(ended.status.code(), Some(1), "{log}");
    assert!(log.lines().any(|line| line.starts_with(&words)), "{log}");
}

#[test]
fn several_collectors_are_shown_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Running::start(&dir.path().join("a")), Running::start(&dir.path().join("b")));
    let both = format!("{},{}", a.address, b.address);
    let ask = |what: &str, more: &[&str]| {
        let output = program().args([what, "--collector", &both]).args(more).output().unwrap();
        assert!(output.status.success(), "{what}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let json = |what| serde_json::from_str::<Value>(&ask(what, &["-o", "json"])).unwrap();
    let of = |stores: Value| stores[0]["capacity"].as_u64().unwrap();
    assert_eq!(of(json("stores")), 2 * of(a.json(&["stores"])));
    assert_eq!(json("sessions"), serde_json::json!([]));
    let stats = json("stats");
    let nodes: Vec<_> = stats["nodes"].as_array().unwrap().iter().collect();
    for address in [&a.address, &b.address] {
        assert!(nodes.iter().any(|n| n["node"] == "collector" && n["session"] == **address), "{stats}");
    }
    let text = ask("stats", &["--all"]);
    assert!(text.contains(&format!("collector ({})", a.address)), "{text}");
    // One that is down is not waited for.
    let away = b.address.clone();
    drop(b);
    let output = program().args(["sessions", "--collector", &both]).output().unwrap();
    assert!(output.status.success() && stderr(&output).contains(&away), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_is_printed_beside_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Running::start(&dir.path().join("a")), Running::start(&dir.path().join("b")));
    let share = |(of, buckets): (&Running, &str)| control::CollectorShare {
        address: of.address.clone(),
        buckets: control::bucket_ranges(&buckets.parse().unwrap()),
        ..Default::default()
    };
    let shares = [(&a, "0-127"), (&b, "128-255")].map(share).to_vec();
    for (own_share, of) in [(0, &a), (1, &b)] {
        let options = ClientOptions::without_tls(&of.address);
        let mut client = RemoteCollector::connect(&options).await.unwrap();
        let request = control::OpenSessionRequest { shares: shares.clone(), own_share, ..open_leaf1() };
        client.open_session(request).await.unwrap();
    }
    let both = format!("{},{}", a.address, b.address);
    let keys: Vec<String> = (1..=16).map(|n| format!("{n:02x}")).collect();
    let query = |more: &[&str]| {
        let mut command = program();
        command.args(["query", "key-write", "--store", "flows", "--collector", &both]);
        command.args(&keys).args(more).output().unwrap()
    };
    let output = query(&["-o", "json"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let away = b.address.clone();
    drop(b);
    let output = query(&["-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let known: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    for of_key in &known {
        let key: Key = of_key["key"].as_str().unwrap().parse().unwrap();
        assert!(dta_proto::buckets::bucket_of_key(&key) < 128, "{of_key}");
    }
    let missing = format!("{} of 16 keys have no answer (", 16 - known.len());
    assert!((1..16).contains(&known.len()), "{known:?}");
    let said = stderr(&output);
    assert!(said.contains(&missing) && said.contains(&format!("{away} does not answer")), "{said}");
    // People see the same.
    let output = query(&[]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), table.lines().count()), (Some(1), 1 + known.len()), "{table}");
    assert!(stderr(&output).contains(&missing), "{}", stderr(&output));
}

#[test]
fn a_port_that_is_open_to_all_is_announced_at_the_start() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = program();
    command.args([
        "serve",
        "--listen",
        "0.0.0.0:0",
        "--insecure",
        "--soft-port",
        "0",
        "--memory",
        "anonymous",
    ]);
    let mut child = command.stdout(Stdio::piped()).stderr(log.reopen().unwrap()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let _running = Running { child, address: String::new() };
    BufReader::new(stdout).read_line(&mut String::new()).unwrap();
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("WITHOUT TLS: anyone who reaches it can get keys to memory"), "{log}");
}

/// A translator of this name opens a session to write to "flows".
fn open_leaf1() -> control::OpenSessionRequest {
    control::OpenSessionRequest {
        name: "leaf1".into(),
        translator: Some(control::Endpoint { ip: "127.0.0.2".into(), ..Default::default() }),
        queue_pairs: vec![control::RequesterQueuePair {
            purpose: control::Purpose::Write.into(),
            qpn: 50,
            start_psn: 1,
        }],
        stores: vec!["flows".into()],
        ..Default::default()
    }
}
