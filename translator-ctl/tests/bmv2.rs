//! The suite against `simple_switch_grpc`, programmed over P4Runtime by the control plane's own code: it must
//! do with the generated reports what the software engine does in reference mode.
//!
//! It runs in its own network namespace, where the test starts itself once more. If something is not on PATH,
//! it is skipped with a message. `DTA_WRITE_FRAMES=1` writes the frames that `tests/frames.rs` reads.

#[path = "../../testbed/tests/shared/captures.rs"]
mod beside;
#[path = "../../testbed/tests/shared/p4_suite/mod.rs"]
mod p4_suite;
#[path = "common/simple_switch.rs"]
mod simple_switch;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dta_link::Link;
use dta_link::packet::{PacketConfig, PacketLink};
use dta_proto::batch::PacketBatch;
use dta_proto::program::{DataPlaneEntry, Program};
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::DtaBody;
use dta_switch::P4Switch;
use dta_switch::tables::Tables;
use dta_switch::translator::{Command as SwitchCommand, FLUSH_COLUMN, FLUSH_LIST, FLUSH_ROW, FORGET_LIST};
use dta_switch::{After, Target as _};
use dta_translator::config::Config;
use dta_translator::targets::p4_switch;
use p4_suite::generate::{self, collector_mac};
use p4_suite::{DataPlaneOutcome, Software, capture, captured, run_software};
use simple_switch::SimpleSwitch;

/// Set in the namespace.
const INSIDE: &str = "DTA_P4_NAMESPACE";
/// After this time, a frame that has not arrived will not come.
const PATIENCE: Duration = Duration::from_secs(120);
/// Reports, and what they become, on their way at once: bmv2's queues drop what finds them full (64 packets), in
/// silence.
const IN_FLIGHT: usize = 16;
const FRAMES_IN_FLIGHT: usize = 24;
/// The Ethernet address that reports come from.
const REPORTER_MAC: [u8; 6] = [2, 0, 0, 9, 3, 1];

/// Counters of which only the sum is the same.
const EITHER: [&str; 2] = ["dropped.checksum", "dropped.length"];

/// Runs a test in a namespace; returns whether this is there.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !simple_switch::is_there(test) {
        return false;
    }
    let namespace = format!("dta-p4-{}-{}", std::process::id(), test.len());
    let ip = |arguments: &[&str]| Command::new("ip").args(arguments).status().expect("iproute2").success();
    assert!(ip(&["netns", "add", &namespace]));
    let status = Command::new("ip")
        .args(["netns", "exec", &namespace])
        .arg(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "--nocapture", test])
        .env(INSIDE, &namespace)
        .status();
    assert!(ip(&["netns", "delete", &namespace]));
    assert!(status.expect("ip netns exec").success(), "{test} failed in its namespace");
    false
}

/// A switch with port 1 to the reporters, ports 2 and 3 to the collectors.
struct Bed {
    switch: SimpleSwitch,
    reporters: PacketLink,
    collectors: Vec<PacketLink>,
    /// Whole Ethernet frames, as they came from the switch.
    captured: Vec<Vec<u8>>,
    made: DataPlaneOutcome,
}

fn ip(arguments: &str) {
    assert!(
        Command::new("ip").args(arguments.split(' ')).status().expect("iproute2").success(),
        "ip {arguments}"
    );
}

impl Bed {
    fn start() -> Bed {
        ip("link set lo up");
        for port in 1..=3 {
            // An earlier test of this namespace may have made them.
            let there = Path::new(&format!("/sys/class/net/host{port}")).exists();
            if !there {
                ip(&format!("link add switch{port} mtu 9000 type veth peer name host{port} mtu 9000"));
                for end in ["switch", "host"] {
                    // The kernel's own packets would be reports to nobody.
                    let path = format!("/proc/sys/net/ipv6/conf/{end}{port}/disable_ipv6");
                    if Path::new(&path).exists() {
                        std::fs::write(&path, "1").expect("IPv6 is switched off");
                    }
                    ip(&format!("link set {end}{port} up"));
                }
            }
        }
        let switch = SimpleSwitch::start(&["1@switch1", "2@switch2", "3@switch3"], "127.0.0.1:9559");
        let link = |port: u8, ports: Vec<u16>| {
            PacketLink::open(&PacketConfig::new(format!("host{port}"), ports)).expect("a packet link")
        };
        Bed {
            switch,
            reporters: link(1, generate::reporter_ports()),
            collectors: vec![link(2, vec![4791]), link(3, vec![4791])],
            captured: Vec::new(),
            made: DataPlaneOutcome::default(),
        }
    }

    /// The switch with this program.
    async fn program(&mut self, program: &Program) -> P4Switch {
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut text = format!(
            "[translator]\ncollector = '127.0.0.1:1'\nlisten = '{0}:40040'\nsource = '{0}'\nmac = '{1}'\n\
             [switch.b1]\ntype = 'bmv2'\ncontrol = '127.0.0.1:9559'\nstate = '{2}'\npostcard_rows = {3}\n\
             collector_ports = [2, 3]\ncollector_macs = ['{4}', '{5}']\n",
            generate::SERVICE,
            mac(generate::TRANSLATOR_MAC),
            self.switch.folder.path().join("kept.json").display(),
            generate::POSTCARD_ROWS,
            mac(collector_mac(0)),
            mac(collector_mac(1)),
        );
        writeln!(text, "stations = [{{ mac = '{}', port = 1 }}]", mac(REPORTER_MAC)).expect("text");
        let (config, _) = Config::parse(&text, Path::new("suite.toml")).expect("a configuration");
        let mut target = p4_switch(&config, "b1").expect("a target").expect("a P4 switch");
        if let Err(error) = target.apply_program(program, After::Open).await {
            panic!("{error}\n{}", self.switch.log());
        }
        target
    }

    /// Takes what has arrived; returns how many packets.
    fn take(&mut self) -> usize {
        let mut batch = PacketBatch::new(256);
        let mut count = 0;
        let Bed { reporters, collectors, captured, made, .. } = self;
        for (port, link) in std::iter::once(reporters).chain(collectors).enumerate() {
            while link.recv(&mut batch, Some(Duration::ZERO)).expect("the link") > 0 {
                count += batch.len();
                for at in 0..batch.len() {
                    captured.push(batch.ethernet_frame(at).expect("an Ethernet frame").to_vec());
                    match port {
                        0 => made.nacks.push(batch.packet(at).to_vec()),
                        _ => made.add_frame(batch.packet(at)).expect("a frame"),
                    }
                }
            }
        }
        count
    }

    /// Waits for as many packets from the switch.
    fn wait_for(&mut self, wanted: usize, why: &str) {
        let until = Instant::now() + PATIENCE;
        while self.captured.len() < wanted {
            if self.take() == 0 {
                self.switch.is_at_work();
                assert!(
                    Instant::now() < until,
                    "{} packets of {wanted} came: {why}\n{}",
                    self.captured.len(),
                    self.switch.log()
                );
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Sends a report.
    fn send(&mut self, packet: &[u8]) {
        let header = [&generate::TRANSLATOR_MAC[..], &REPORTER_MAC, &[8, 0]].concat();
        let mut frame = [&header, packet].concat();
        // Shorter ones are padded, as by a network card.
        frame.resize(frame.len().max(60), 0xee);
        let mut batch = PacketBatch::new(1);
        batch.push_frame(&frame, 0).expect("a frame");
        assert_eq!(self.reporters.send(&mut batch).expect("the link"), 1);
    }

    /// Sends all reports, and returns what the switch made of them. Each waits for the results of those some
    /// places before it, so that no queue is full.
    fn run(&mut self, program: &Program, packets: &[Vec<u8>]) -> DataPlaneOutcome {
        let mut engine = dta_dataplane::reference::Reference::new(program, generate::POSTCARD_ROWS as usize)
            .expect("a program");
        let mut wanted = Vec::with_capacity(packets.len() + 1);
        wanted.push(self.captured.len());
        for packet in packets {
            let made = engine.process_packet(packet);
            wanted.push(wanted[wanted.len() - 1] + made.frames.len() + made.nacks.len());
        }
        for (at, packet) in packets.iter().enumerate() {
            let least = wanted[at.saturating_sub(IN_FLIGHT)].max(wanted[at].saturating_sub(FRAMES_IN_FLIGHT));
            self.wait_for(least, "before a report");
            self.send(packet);
        }
        self.wait_for(wanted[packets.len()], "after all reports");
        std::mem::take(&mut self.made)
    }
}

/// Commands that make the switch send everything it holds: store after store, by places.
fn flush_all(program: &Program) -> Vec<SwitchCommand> {
    let mut all = Vec::new();
    for entry in program.entries() {
        let DataPlaneEntry::Store(store) = entry else { continue };
        let (id, kind) = (store.spec.id, &store.spec.kind);
        let mut add = |command, index, value| {
            all.push(SwitchCommand { command, pair: 0, store: id, index, value, state: 0 })
        };
        match *kind {
            StoreKind::Append { lists, .. } => (0..lists).for_each(|list| add(FLUSH_LIST, list, 0)),
            StoreKind::Postcarding { .. } => {
                (0..generate::POSTCARD_ROWS).for_each(|row| add(FLUSH_ROW, row, 0))
            }
            StoreKind::SketchMerge { columns, epochs, .. } => {
                for epoch in 0..epochs {
                    (0..columns).for_each(|column| add(FLUSH_COLUMN, column, epoch));
                }
            }
            StoreKind::KeyWrite { .. } | StoreKind::KeyIncrement { .. } => {}
        }
    }
    all
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn bmv2_makes_the_frames_of_the_software() {
    if !inside("bmv2_makes_the_frames_of_the_software") {
        return;
    }
    let (program, packets) = (generate::generate_program(), generate::generate_packets());
    let Software { made: software, flushed, counters } =
        run_software(&program, &packets).expect("the software");
    // Calls to the switch are made by this runtime, which has threads of its own.
    let runtime = runtime();
    let mut bed = Bed::start();
    let mut target = runtime.block_on(bed.program(&program));
    let made = bed.run(&program, &packets);
    let write = std::env::var_os("DTA_WRITE_FRAMES").is_some();
    assert_eq!(software.difference(&made, ["software", "bmv2"]), None);
    println!(
        "{} reports, {} frames, {} NACKs are equal",
        packets.len(),
        made.frame_count(),
        made.nacks.len()
    );

    // Both sides' counters, under the same names. The last reports may have produced nothing to wait for.
    let until = Instant::now() + PATIENCE;
    let compared = loop {
        let nodes = runtime.block_on(target.statistics()).expect("its counters");
        let of_bmv2 = |name: &str| {
            nodes.iter().flat_map(|node| &node.counters).find(|n| n.name == name).map(|counter| counter.value)
        };
        let both: Vec<_> =
            counters.iter().filter_map(|(name, value)| Some((name, *value, of_bmv2(name)?))).collect();
        // For a report with a wrong length and a wrong checksum, bmv2 counts the length.
        let sum_of = |of: fn(&(&String, u64, u64)) -> u64| {
            both.iter().filter(|(name, ..)| EITHER.contains(&name.as_str())).map(of).sum::<u64>()
        };
        let either = sum_of(|(_, software, _)| *software) == sum_of(|(_, _, bmv2)| *bmv2);
        let differ: Vec<_> = both
            .iter()
            .filter(|(name, software, bmv2)| software != bmv2 && !(either && EITHER.contains(&name.as_str())))
            .collect();
        if differ.is_empty() {
            break both.len();
        }
        assert!(Instant::now() < until, "name, software, bmv2: {differ:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    println!("{compared} counters of {} are equal", counters.len());
    assert!(compared > 100, "{compared}");

    // What was held.
    let before = bed.captured.len();
    for commands in flush_all(&program).chunks(IN_FLIGHT) {
        runtime.block_on(target.runtime_mut().run_commands(commands, &Tables::default())).expect("commands");
        bed.take();
    }
    bed.wait_for(before + flushed.frame_count(), "flushed");
    assert_eq!(flushed.difference(&bed.made, ["software", "bmv2"]), None);
    println!("{} flushed frames are equal", flushed.frame_count());

    // The addresses of Ethernet.
    for frame in &bed.captured {
        let (to, from) = (&frame[..6], &frame[6..12]);
        assert_eq!(from, generate::TRANSLATOR_MAC);
        assert!([REPORTER_MAC, collector_mac(0), collector_mac(1)].iter().any(|mac| to == mac), "{to:x?}");
    }
    if write {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../translator-p4");
        let file = std::fs::File::create(folder.join("frames/bmv2.pcap.gz")).expect("a file");
        // NACKs as they came, then queue pair by queue pair, so that the same frames make the same file.
        let mut frames = bed.captured.clone();
        frames.sort_by_key(|frame| {
            let is_nack = frame[36..38] != [0x12, 0xb7];
            (!is_nack).then(|| (frame[30..34].to_vec(), frame[47..50].to_vec()))
        });
        capture::write_capture(file, frames.iter().map(Vec::as_slice)).expect("it is written");
        let digest = include_str!("../../translator-p4/compiled/v1model/sources.sha256");
        std::fs::write(folder.join("frames/sources.sha256"), digest).expect("it is written");
    }
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn bmv2_makes_the_frames_of_the_software_of_captures() {
    if !inside("bmv2_makes_the_frames_of_the_software_of_captures") {
        return;
    }
    let Some(folder) = beside::captures("captures on bmv2", "dta") else { return };
    let runtime = runtime();
    let mut bed = Bed::start();
    let program = captured::capture_program();
    let mut target = runtime.block_on(bed.program(&program));
    let mut packets = Vec::new();
    for name in ["keywrite", "append", "keyincrement"] {
        let of_it =
            captured::read_packets(&folder.join(format!("dta-upstream-{name}.pcap"))).expect("a capture");
        println!("{name}: {} reports", of_it.len());
        packets.extend(of_it);
    }
    let Software { made: software, flushed, counters } =
        run_software(&program, &packets).expect("the software");
    let count = |name: &str| counters.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
    assert_eq!(count("dropped"), 0, "{counters:?}");
    assert!(packets.len() > 2_000 && software.frame_count() > packets.len(), "{}", software.frame_count());
    let made = bed.run(&program, &packets);
    assert_eq!(software.difference(&made, ["software", "bmv2"]), None);
    runtime.block_on(target.flush_all()).expect("it is flushed");
    bed.wait_for(made.frame_count() + flushed.frame_count(), "flushed");
    assert_eq!(flushed.difference(&bed.made, ["software", "bmv2"]), None);
    println!(
        "{} reports of captures, {} frames and {} flushed ones are equal",
        packets.len(),
        made.frame_count(),
        flushed.frame_count()
    );
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn what_a_list_holds_is_discarded_before_another_one_has_its_place() {
    /// Its batches have three entries.
    const STORE: u16 = 44;
    if !inside("what_a_list_holds_is_discarded_before_another_one_has_its_place") {
        return;
    }
    let runtime = runtime();
    let mut bed = Bed::start();
    let mut target = runtime.block_on(bed.program(&generate::generate_program()));
    let send = |bed: &mut Bed, number: u8| {
        let body = DtaBody::Append { list: 1, value: &[number; 8] };
        bed.send(&generate::report_packet(number.into(), STORE, body));
    };
    let wait_for = |target: &mut P4Switch, name: &str| {
        let until = Instant::now() + PATIENCE;
        loop {
            let nodes = runtime.block_on(target.statistics()).expect("its counters");
            let mut counters = nodes.iter().flat_map(|node| &node.counters);
            match counters.find(|counter| counter.name == name).map_or(0, |counter| counter.value) {
                2 => return,
                other => assert!(other < 2 && Instant::now() < until, "{name}: {other}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    send(&mut bed, 0);
    send(&mut bed, 1);
    wait_for(&mut target, "accepted");
    let forget = SwitchCommand { command: FORGET_LIST, pair: 0, store: STORE, index: 1, value: 0, state: 0 };
    runtime.block_on(target.runtime_mut().run_commands(&[forget], &Tables::default())).expect("a command");
    wait_for(&mut target, "discarded.store_removed");
    (2..5).for_each(|number| send(&mut bed, number));
    bed.wait_for(1, "a batch");
    // After the headers of Ethernet, IPv4, UDP, BTH and RETH.
    assert_eq!(bed.captured[0][70..94], [[2; 8], [3; 8], [4; 8]].concat());
}
