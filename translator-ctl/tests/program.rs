//! The program from a user's perspective: started, fed, queried, programmed and stopped, with the test's own
//! collector.

mod common;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Fake, Nic};
use dta_proto::key::Key;
use dta_proto::layout::{append, hash, key_write};
use dta_proto::wire::dta::{DtaBody, DtaReport, Nack};
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{Aeth, Bth, Opcode, Psn, RocePacket, RoceRepr, Syndrome};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dta-translator");

struct Running {
    child: Child,
    ready: Value,
    reporter: UdpSocket,
}

impl Running {
    fn start(fake: &Fake, source: &str, extra: &[&str]) -> Running {
        Running::start_at(&fake.url(), source, extra)
    }

    fn start_at(collectors: &str, source: &str, extra: &[&str]) -> Running {
        let mut child = Command::new(PROGRAM)
            .args(["--collector", collectors, "--name", "t", "--log", "warn", "run", "--ready"])
            .args([
                "--listen",
                "127.0.0.1:0",
                "--control",
                "127.0.0.1:0",
                "--source",
                source,
                "--source-port",
                "0",
            ])
            .args(extra)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let reporter = UdpSocket::bind("127.0.0.1:0").unwrap();
        reporter.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        reporter.connect(ready["listen"].as_str().unwrap().parse::<SocketAddr>().unwrap()).unwrap();
        Running { child, ready, reporter }
    }

    fn control(&self) -> String {
        format!("http://{}", self.ready["control"].as_str().unwrap())
    }

    fn report(&self, sequence: u32, store: u16, body: DtaBody<'_>) {
        let report =
            DtaReport { retransmittable: true, sequence, reporter: 7, ..DtaReport::new(store, body) };
        let mut bytes = [0; 128];
        let len = report.encode_into(&mut bytes).unwrap();
        self.reporter.send(&bytes[..len]).unwrap();
    }

    fn counter(&self, node: &str, name: &str) -> u64 {
        let out = run(&["stats", "--output", "json", "--translator", &self.control()]);
        let nodes: Value = serde_json::from_slice(&out.stdout).unwrap();
        let node = nodes["nodes"].as_array().unwrap().iter().find(|n| n["node"] == node);
        node.map_or(0, |n| n["counters"][name].as_u64().unwrap_or(0))
    }

    /// Waits until a counter of the translator stands at a number.
    fn wait_for(&self, name: &str, value: u64) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.counter("translator/t", name) != value {
            assert!(Instant::now() < until, "{name} is never {value}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn stop(mut self) {
        self.signal(Signal::TERM);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                break;
            }
            assert!(Instant::now() < until, "still running long after SIGTERM");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(["--log", "warn"]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn payload(nic: &Nic) -> (u32, u64, Vec<u8>) {
    let bytes = (0..60).find_map(|_| nic.recv()).expect("a frame within a minute");
    let packet = RocePacket::new_checked(&bytes).unwrap();
    (packet.base_header().dest_qp, packet.rdma_header().unwrap().va, packet.payload().to_vec())
}

/// A configuration with which entries of a list wait this long for others; 0: until they are flushed.
fn append_waits(ms: u32) -> tempfile::NamedTempFile {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&config, format!("[translator.flush]\nappend_ms = {ms}\n")).unwrap();
    config
}

#[test]
fn reports_become_writes_nacks_and_counters() {
    let (fake, nic) = Fake::start();
    let config = append_waits(3000);
    let t = Running::start(&fake, "127.0.0.31", &["--config", config.path().to_str().unwrap()]);
    let key = Key([5; 16]);
    t.report(0, 1, DtaBody::KeyWrite { redundancy: 0, key, value: &[9; 12] });
    let slots = hash::key_slots(&key, 2, 1 << 10);
    let mut element = [0; 16];
    key_write::encode_slot(&mut element, &key, &[9; 12]);
    for slot in slots.iter() {
        assert_eq!(payload(&nic), (17, 1 << 32 | key_write::slot_offset(*slot, 12), element.to_vec()));
    }
    // A gap of two is requested.
    t.report(3, 1, DtaBody::KeyWrite { redundancy: 1, key, value: &[9; 12] });
    let mut bytes = [0; 64];
    let n = t.reporter.recv(&mut bytes).unwrap();
    assert_eq!(Nack::parse_payload(&bytes[..n]), Ok(Nack::V1 { reporter: 7, first: 1, count: 2 }));
    payload(&nic);
    // Two entries wait for a third, then are flushed by time: list 1 stood at 5. They come together, however long this
    // test is held up between them.
    t.signal(Signal::STOP);
    t.report(4, 2, DtaBody::Append { list: 1, value: &[1; 8] });
    t.report(5, 2, DtaBody::Append { list: 1, value: &[2; 8] });
    t.signal(Signal::CONT);
    let mut batch = [0; 32];
    append::encode_batch(&mut batch, 1, 6, 2, &[[1; 8], [2; 8]].concat());
    assert_eq!(payload(&nic), (17, 2 << 32 | append::batch_offset(1, 6, 4, 32), batch.to_vec()));

    t.wait_for("accepted", 4);
    assert_eq!(t.counter("translator/t", "received"), 4);
    assert_eq!(t.counter("translator/t", "append.operations"), 1);
    assert_eq!(t.counter("reporter/7", "gaps"), 2);
    let table = text(&run(&["stats", "--translator", &t.control()]).stdout);
    assert!(table.contains("key-write.accepted"), "{table}");

    // What is held is sent when the program is stopped, and the collector gets the final numbers.
    t.report(6, 2, DtaBody::Append { list: 0, value: &[3; 8] });
    t.stop();
    append::encode_batch(&mut batch, 0, 1, 1, &[3; 8]);
    assert_eq!(payload(&nic).2, batch);
    let state = fake.state.lock().unwrap();
    let last = state.renewed.last().unwrap();
    let own = last.statistics.iter().find(|n| n.node == "translator/t").unwrap();
    assert!(own.counters.iter().any(|c| (c.name.as_str(), c.value) == ("accepted", 5)));
    // Of the numbers that may decrease it takes what is held, which is now nothing.
    assert!(own.counters.iter().any(|c| (c.name.as_str(), c.value) == ("append.held", 0)));
    assert!(own.counters.iter().all(|c| !c.name.ends_with(".outstanding") && !c.name.ends_with(".waiting")));
    assert!(own.life != 0 && state.ended.is_empty());
}

#[test]
fn flush_sends_what_is_held() {
    let (fake, nic) = Fake::start();
    let config = append_waits(0);
    let t = Running::start(&fake, "127.0.0.32", &["--config", config.path().to_str().unwrap()]);
    t.report(0, 2, DtaBody::Append { list: 0, value: &[1; 8] });
    t.wait_for("held", 1);
    let out = run(&["flush", "--translator", &t.control()]);
    assert_eq!(text(&out.stdout), "1 report was waiting and is on its way\n");
    assert_eq!(payload(&nic).0, 17);
    t.wait_for("held", 0);
}

#[test]
fn a_new_queue_pair_is_followed_and_an_absent_collector_survived() {
    let (fake, nic) = Fake::start();
    let t = Running::start(&fake, "127.0.0.33", &[]);
    let key = Key([5; 16]);
    fake.state.lock().unwrap().away = true;
    std::thread::sleep(Duration::from_millis(1500));
    t.report(0, 1, DtaBody::KeyWrite { redundancy: 1, key, value: &[1; 12] });
    assert_eq!(payload(&nic).0, 17);
    {
        let mut state = fake.state.lock().unwrap();
        state.away = false;
        state.generation = 2;
    }
    let until = Instant::now() + Duration::from_secs(60);
    for sequence in 1.. {
        t.report(sequence, 1, DtaBody::KeyWrite { redundancy: 1, key, value: &[1; 12] });
        if payload(&nic).0 == 33 {
            break;
        }
        assert!(Instant::now() < until, "still on the old queue pair");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fake.state.lock().unwrap().opened.len(), 1);
}

/// PSN and key of the next frame, waiting up to a second.
fn departure(nic: &Nic) -> Option<(u32, u32)> {
    let bytes = nic.recv()?;
    let packet = RocePacket::new_checked(&bytes).unwrap();
    Some((packet.base_header().psn.get(), packet.rdma_header().unwrap().rkey))
}

/// Acknowledges everything up to a PSN on the queue pair for writes.
fn acknowledge(nic: &Nic, to: SocketAddrV4, psn: u32) {
    const QPN: u32 = 0x11;
    let repr = RoceRepr {
        bth: Bth::new(Opcode::RcAck, QPN, Psn::new(psn), false),
        reth: None,
        atomic: None,
        aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 0 }),
        atomic_ack: None,
        imm: None,
        payload: &[],
    };
    let route = FrameRoute {
        src_port: nic.0.local_addr().unwrap().port(),
        dst_port: to.port(),
        ..FrameRoute::new(Ipv4Addr::LOCALHOST, *to.ip(), QPN)
    };
    let mut bytes = [0; 100];
    let len = route.write_frame(&repr, &mut bytes).unwrap();
    nic.0.send_to(&bytes[28..len], to).unwrap();
}

#[test]
fn a_replaced_region_is_confirmed_when_nothing_is_on_its_way_to_the_one_before() {
    const OLD: u32 = 0xdead_0001;
    const NEW: u32 = 0xdead_0101;
    let (fake, nic) = Fake::start();
    fake.state.lock().unwrap().rc = true;
    let t = Running::start(&fake, "127.0.0.37", &[]);
    let source: SocketAddrV4 = t.ready["source"].as_str().unwrap().parse().unwrap();
    let report = |n: u32| {
        t.report(n, 1, DtaBody::KeyWrite { redundancy: 1, key: Key([n as u8; 16]), value: &[1; 12] })
    };
    let renewals = || fake.state.lock().unwrap().renewed.iter().map(|r| r.generation).collect::<Vec<_>>();
    // Nobody acknowledges it.
    report(0);
    assert_eq!((0..60).find_map(|_| departure(&nic)), Some((100, OLD)));
    let earlier = {
        let mut state = fake.state.lock().unwrap();
        state.moved = 1;
        state.renewed.len()
    };
    // For some renewals the new region is not confirmed, and the frame of before goes out as it
    // was. What comes goes to the new one.
    let (mut repeats, mut news) = (0, 0);
    while news == 0 || renewals().len() < earlier + 4 {
        if renewals().len() >= earlier + 2 && news == 0 {
            report(1);
        }
        match departure(&nic) {
            Some((100, rkey)) => {
                assert_eq!(rkey, OLD);
                repeats += 1;
            }
            Some((_, rkey)) => {
                assert_eq!(rkey, NEW);
                news += 1;
            }
            None => {}
        }
    }
    assert!(repeats > 0);
    assert!(renewals().iter().all(|generation| *generation == 1), "{:?}", renewals());
    let until = Instant::now() + Duration::from_secs(60);
    while renewals().last() != Some(&2) {
        assert!(Instant::now() < until, "not confirmed: {:?}", renewals());
        acknowledge(&nic, source, 100);
        std::thread::sleep(Duration::from_millis(50));
    }
    // What left for the new one is still not acknowledged, and does not matter.
    assert_eq!(t.counter("translator/t", "queue_pair.write.replaced"), 0);
    assert_eq!(fake.state.lock().unwrap().opened.len(), 1);
}

#[test]
fn a_translator_that_starts_before_its_collector_can_open_sessions_waits_for_it() {
    let (fake, _nic) = Fake::start();
    fake.state.lock().unwrap().away = true;
    let collector = fake.clone();
    let comes_back = std::thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(60);
        while collector.state.lock().unwrap().turned_away < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut state = collector.state.lock().unwrap();
        state.away = false;
        state.turned_away
    });
    let t = Running::start(&fake, "127.0.0.47", &[]);
    assert!(comes_back.join().unwrap() >= 2, "it was not asked again");
    let until = Instant::now() + Duration::from_secs(60);
    while fake.state.lock().unwrap().opened.is_empty() {
        assert!(Instant::now() < until, "no session was opened");
        std::thread::sleep(Duration::from_millis(20));
    }
    t.stop();
}

#[test]
fn a_refusal_ends_the_program_in_the_collectors_words() {
    let (fake, _nic) = Fake::start();
    fake.state.lock().unwrap().refuse = Some("list 3 of store events belongs to session other".into());
    let out = run(&[
        "--collector",
        &fake.url(),
        "run",
        "--listen",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--source",
        "127.0.0.34",
        "--source-port",
        "0",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).contains("list 3 of store events belongs to session other"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn a_collector_that_refuses_stops_no_other_and_is_asked_again() {
    let ((first, first_nic), (second, second_nic)) = (Fake::start(), Fake::start_beyond(10));
    first.state.lock().unwrap().refuse = Some("not now".into());
    let both = format!("{},{}", first.url(), second.url());
    let t = Running::start_at(&both, "127.0.0.38", &[]);
    let key = Key([5; 16]);
    let report = |n, store| t.report(n, store, DtaBody::KeyWrite { redundancy: 1, key, value: &[1; 12] });
    report(0, 11);
    assert_eq!(payload(&second_nic).1 >> 32, 11);
    report(1, 1);
    t.wait_for("dropped.unknown_store", 1);
    // Each has queue pair numbers of its own at this side.
    let numbers = |fake: &Fake| -> Vec<u32> {
        fake.state.lock().unwrap().opened[0].queue_pairs.iter().map(|pair| pair.qpn).collect()
    };
    assert_eq!(numbers(&second), [0x13, 0x14]);

    first.state.lock().unwrap().refuse = None;
    let until = Instant::now() + Duration::from_secs(60);
    while first.state.lock().unwrap().opened.is_empty() {
        assert!(Instant::now() < until, "it was not asked again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(numbers(&first), [0x11, 0x12]);
    // Applied a moment after it was opened.
    let mut sent = 0;
    let frame = (2..).find_map(|n| {
        assert!(Instant::now() < until, "no frame");
        report(n, 1);
        sent += 1;
        first_nic.recv()
    });
    assert_eq!(RocePacket::new_checked(&frame.unwrap()).unwrap().rdma_header().unwrap().va >> 32, 1);
    t.wait_for("received", 2 + sent);
    t.stop();
    // More than one report may have become a frame by the time the first was seen.
    let mut at_first = 1;
    while first_nic.recv().is_some() {
        at_first += 1;
    }
    // Both hear of all reports, and each of the frames that were for it.
    for (fake, frames) in [(&first, at_first), (&second, 1)] {
        let state = fake.state.lock().unwrap();
        let own = state.renewed.last().unwrap().statistics.iter().find(|n| n.node == "translator/t").unwrap();
        let counter = |name: &str| own.counters.iter().find(|c| c.name == name).map(|c| c.value);
        assert_eq!(counter("received"), Some(2 + sent));
        assert_eq!(counter("frames"), Some(frames));
        assert_eq!(counter("link.roce.sent"), None);
    }
}

#[test]
fn the_program_ends_if_every_collector_refuses() {
    let ((first, _first_nic), (second, _second_nic)) = (Fake::start(), Fake::start_beyond(10));
    for fake in [&first, &second] {
        fake.state.lock().unwrap().refuse = Some("not now".into());
    }
    let both = format!("{},{}", first.url(), second.url());
    let addresses = [
        "--listen",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--source",
        "127.0.0.39",
        "--source-port",
        "0",
    ];
    let out = run(&[&["--collector", &both, "run"], &addresses[..]].concat());
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("refuses the session: not now"), "{}", text(&out.stderr));
}

#[test]
fn several_collectors_are_planned_set_up_and_torn_down_together() {
    let ((first, first_nic), (second, second_nic)) = (Fake::start(), Fake::start_beyond(10));
    let both = format!("{},{}", first.url(), second.url());
    let t = Running::start_at(&both, "127.0.0.40", &["--blank"]);
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &config,
        format!(
            "[translator]\nsource = '127.0.0.40'\n[switch.tor]\ntype = 'software'\ncontrol = '{}'\n",
            t.control()
        ),
    )
    .unwrap();
    let flags = ["--collector", &both, "--name", "t", "--config", config.path().to_str().unwrap()];
    let json = |args: &[&str]| -> Vec<Value> {
        let out = run(&[&flags[..], args, &["--output", "json"]].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let plan = json(&["plan"]);
    let of = |table: &str, collector: u64| {
        plan.iter().filter(|e| e["table"] == table && e["collector"] == collector).count()
    };
    assert_eq!([of("queue-pair", 0), of("queue-pair", 1), of("store", 0), of("store", 1)], [2; 4]);
    let changes = json(&["setup", "--switch", "tor"]);
    assert_eq!(changes.len(), plan.len());
    assert_eq!(json(&["setup", "--switch", "tor"]), Vec::<Value>::new());
    let key = Key([5; 16]);
    for (n, store, nic) in [(0, 1, &first_nic), (1, 11, &second_nic)] {
        t.report(n, store, DtaBody::KeyWrite { redundancy: 1, key, value: &[1; 12] });
        assert_eq!(payload(nic).1 >> 32, u64::from(store));
    }
    let table = text(&run(&[&flags[..], &["plan"]].concat()).stdout);
    assert!(table.contains("write at collector 1") && table.contains("flows10"), "{table}");
    let out = run(&[&flags[..], &["teardown"]].concat());
    assert_eq!(text(&out.stdout).lines().count(), 2, "{}", text(&out.stderr));
    assert!([&first, &second].iter().all(|fake| fake.state.lock().unwrap().ended.len() == 1));
}

#[test]
fn setup_programs_a_blank_switch_once() {
    let (fake, nic) = Fake::start();
    let t = Running::start(&fake, "127.0.0.35", &["--blank"]);
    assert_eq!(t.ready["session"], false);
    t.report(0, 1, DtaBody::KeyWrite { redundancy: 1, key: Key([5; 16]), value: &[1; 12] });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(t.counter("translator/t", "received"), 0, "it waits in its socket until it can be taken");
    let config = tempfile::NamedTempFile::new().unwrap();
    let text_of_config = format!(
        "[translator]\nname = 't'\nsource = '127.0.0.35'\n[switch.s]\ntype = 'software'\ncontrol = '{}'\n\
         [switch.p]\ntype = 'unheard'\ncontrol = 'x'\n",
        t.control()
    );
    let path = config.path().to_str().unwrap().to_string();
    let collector = fake.url();
    let on = |args: &[&str]| run(&[&["--config", &path, "--collector", &collector], args].concat());

    // A type of switch that this build lacks is refused before anything is requested.
    std::fs::write(&path, &text_of_config).unwrap();
    let out = on(&["setup", "--switch", "p"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(
        text(&out.stderr).contains("\"unheard\", but this build programs: software"),
        "{}",
        text(&out.stderr)
    );
    std::fs::write(&path, text_of_config.split("[switch.p]").next().unwrap()).unwrap();

    // The plan shows no key unless asked, and opens no session.
    let plan = text(&on(&["plan", "--output", "json"]).stdout);
    let entries: Vec<Value> = serde_json::from_str(&plan).unwrap();
    assert!(entries.iter().any(|e| e["table"] == "store" && e["rkey"] == "redacted"), "{plan}");
    assert!(!text(&on(&["plan"]).stdout).contains("0xdead0001"));
    assert!(text(&on(&["plan", "--show-secrets"]).stdout).contains("0xdead0001"));
    assert!(fake.state.lock().unwrap().opened.is_empty());
    assert!(fake.state.lock().unwrap().ended.is_empty());

    let changes = |out: Output| -> Vec<Value> {
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let lacking = changes(on(&["plan", "--against", &t.control(), "--output", "json"]));
    assert_eq!(changes(on(&["plan", "--switch", "s", "--against", "--output", "json"])), lacking);
    assert!(lacking.iter().all(|c| c["change"] == "insert") && lacking.len() > 5);
    assert_eq!(changes(on(&["setup", "--switch", "s", "--output", "json"])).len(), lacking.len());
    assert_eq!(changes(on(&["setup", "--switch", "s", "--output", "json"])).len(), 0);
    assert!(text(&on(&["setup", "--switch", "s"]).stdout).starts_with("nothing to change"));
    {
        let state = fake.state.lock().unwrap();
        let opened = state.opened.last().unwrap();
        assert_eq!((opened.name.as_str(), opened.lease_seconds), ("s", 0), "the switch's own session");
    }

    assert_eq!(payload(&nic).0, 17);
    t.report(1, 1, DtaBody::KeyWrite { redundancy: 1, key: Key([5; 16]), value: &[1; 12] });
    assert_eq!(payload(&nic).0, 17);
    t.wait_for("accepted", 2);
    assert!(on(&["teardown", "--switch", "s"]).status.success());
    assert!(on(&["teardown"]).status.success());
    let ended: Vec<String> =
        fake.state.lock().unwrap().ended.iter().map(|ended| ended.name.clone()).collect();
    assert_eq!(ended, ["s", "t"]);
}

#[test]
fn a_wrong_program_by_grpc_is_refused_and_harms_nothing() {
    let (fake, nic) = Fake::start();
    let t = Running::start(&fake, "127.0.0.38", &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let apply = |program: &Value| {
        runtime.block_on(async {
            let mut client = dta_rpc::translator::RemoteTranslator::connect_lazy(&t.control()).unwrap();
            let program = serde_json::from_value(program.clone()).expect("entries");
            let result = client.apply_program(&program).await;
            result
                .map_err(|e| e.status().map(|s| (s.code(), s.message().to_string())).expect("its own words"))
        })
    };
    let plan =
        run(&["plan", "--collector", &fake.url(), "--name", "t", "--show-secrets", "--output", "json"]);
    let entries: Vec<Value> = serde_json::from_slice(&plan.stdout).unwrap();
    let mut wrong = entries.clone();
    let store = wrong.iter_mut().find(|e| e["table"] == "store" && e["spec"]["id"] == 1).unwrap();
    store["spec"]["value_len"] = 252.into();
    for program in [
        serde_json::json!(wrong),
        serde_json::json!([{ "table": "lists", "store": 9, "first": 0, "count": 1, "positions": [] }]),
    ] {
        let (code, message) = apply(&program).unwrap_err();
        assert_eq!(code, tonic::Code::InvalidArgument, "{message}");
        assert!(message.contains("value_len is 252") || message.contains("refers to store 9"), "{message}");
    }
    let changes = apply(&serde_json::json!(entries)).unwrap();
    let changes = serde_json::to_string(&changes).unwrap();
    assert!(!changes.contains("3735879681"), "a key (0xdead0001): {changes}");
    t.report(0, 1, DtaBody::KeyWrite { redundancy: 1, key: Key([5; 16]), value: &[1; 12] });
    assert_eq!(payload(&nic).0, 17);
    t.stop();
}

#[test]
fn faults_are_written_into_the_ledger_copy_by_copy() {
    let (fake, nic) = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    // The three entries are one batch, also if the test is stopped between two reports.
    let config = append_waits(60_000);
    let config = ["--config", config.path().to_str().unwrap()];
    let faults = ["--faults", "drop=1", "--nack-faults", "none", "--ledger", ledger.to_str().unwrap()];
    let t = Running::start(&fake, "127.0.0.36", &[&config[..], &faults].concat());
    t.report(0, 1, DtaBody::KeyWrite { redundancy: 2, key: Key([5; 16]), value: &[1; 12] });
    for n in 1..=3 {
        t.report(n, 2, DtaBody::Append { list: 0, value: &[n as u8; 8] });
    }
    t.wait_for("accepted", 4);
    assert_eq!(t.counter("translator/t", "lost.injected"), 4);
    assert_eq!(t.counter("translator/t", "lost_operations.injected"), 3);
    assert_eq!(t.counter("translator/t", "faults.roce.dropped"), 3);
    t.stop();
    nic.0.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(nic.recv(), None);
    let records: Vec<Vec<u8>> = std::fs::read(&ledger).unwrap().chunks(8).map(<[u8]>::to_vec).collect();
    let record = |sequence: u8, copy: u8| vec![0, 7, 0, 0, 0, sequence, copy, 1];
    assert_eq!(records, [record(0, 0), record(0, 1), record(1, 0), record(2, 0), record(3, 0)]);
}

#[test]
fn wrong_use_and_wrong_configuration_say_what_to_do() {
    for (args, code, words) in [
        (&["walk"][..], 2, "unrecognized subcommand"),
        (&["run", "--faults", "drop=2"], 2, "drop"),
        (&["check-config", "--listen", "[::1]:1"], 2, "translator.listen"),
        (&["check-config", "--config", "/nonexistent.toml"], 2, "/nonexistent.toml"),
        (&["stats", "--translator", "http://127.0.0.1:1"], 1, "no translator answers"),
        (&["setup", "--switch", "x"], 2, "no [switch.x]"),
        (&["plan", "--switch", "x"], 2, "no [switch.x]"),
        (&["plan", "--against"], 2, "--switch NAME"),
        (&["teardown", "--switch", "x"], 2, "no [switch.x]"),
    ] {
        let out = run(args);
        assert_eq!(out.status.code(), Some(code), "{args:?}");
        assert!(text(&out.stderr).contains(words), "{args:?}: {}", text(&out.stderr));
    }
    let out = run(&["check-config"]);
    assert!(out.status.success() && text(&out.stdout).contains("listen = \"127.0.0.1:40040\""));
}

#[test]
fn a_key_that_everybody_may_read_is_announced() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("t.key");
    std::fs::write(&key, "").unwrap();
    let config = dir.path().join("t.toml");
    let tls = format!(
        "[translator]\ntls = {{ ca = 'ca', cert = 'cert', key = {key:?} }}\ncollector = 'https://c:1'\n"
    );
    std::fs::write(&config, tls).unwrap();
    for (mode, is_announced) in [(0o600, false), (0o644, true)] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        let out = run(&["check-config", "--config", config.to_str().unwrap()]);
        let announced = text(&out.stderr).contains("can be read by everybody on this machine (mode 0644)");
        assert!(out.status.success() && announced == is_announced, "{mode:o}: {}", text(&out.stderr));
    }
}

#[test]
fn a_port_in_use_is_named() {
    let (fake, _nic) = Fake::start();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let out = run(&[
        "--collector",
        &fake.url(),
        "run",
        "--listen",
        &listen,
        "--source",
        "127.0.0.37",
        "--source-port",
        "0",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("in use"), "{}", text(&out.stderr));
}

#[test]
fn a_device_that_is_not_there_or_does_not_fit_is_refused() {
    let run = |more: &[&str]| {
        let output = Command::new(PROGRAM)
            .args(["run", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--device", "nope0"])
            .args(more)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, stderr) = run(&[]);
    let why = match cfg!(feature = "verbs") {
        // The library then says whether the kernel has no RDMA at all, or other devices.
        true => stderr.contains("modprobe ib_uverbs") || stderr.contains("there is no RDMA device `nope0`"),
        false => stderr.contains("dta-translator/verbs"),
    };
    assert!(status == Some(1) && why && stderr.contains("--device"), "{status:?} {stderr}");
    for other in ["--reference", "--link=eth0"] {
        let (status, stderr) = run(&[other]);
        assert!(status == Some(2) && stderr.contains("--device"), "{status:?} {stderr}");
    }
}
