//! `run-testbed` on other machines with a P4 switch as the reporter. Needs root, ip, ethtool, unshare and sshd.
//!
//! ```text
//! load (hosts) h1 -- p1 leaf (the reporter) p3 -- p1 edge (the translator) p2 -- eth1 store (collector)
//!              h2 -- p2
//! ```
//!
//! With two reporters and two collectors, load2 and leaf2 are wired in the same way to port p3 of edge, and store2 to its p4.

mod common;
mod machine_bed;
#[expect(dead_code, reason = "the tests of dta-translator use more of it")]
#[path = "../../translator-ctl/tests/p4/tofino.rs"]
mod tofino;

use std::process::Output;
use std::time::Instant;

use common::{captures, counter, ends, has_bmv2, number};
use machine_bed::{Bed, bed_of, executed, must, outcome, stderr_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tofino::FakeTofino;

/// Names of machines, and the last byte of their addresses.
const MACHINES: [(&str, u8); 4] = [("store", 1), ("edge", 2), ("load", 3), ("leaf", 4)];
/// Addresses in the network of reports and frames.
const STORE: &str = "198.18.10.1";
const EDGE: &str = "198.18.10.2";
const LEAF: &str = "198.18.10.7";
const STORE2: &str = "198.18.10.4";
const LEAF2: &str = "198.18.11.7";
const STORE_MAC: &str = "02:00:00:00:00:01";
const STORE2_MAC: &str = "02:00:00:00:00:04";
const LEAF2_MAC: &str = "02:00:00:00:00:78";
const EDGE_MAC: &str = "02:00:00:00:00:88";
const LEAF_MAC: &str = "02:00:00:00:00:77";

/// What runs on each machine.
const WITH_BMV2: [&str; 4] = ["__collector", "simple_switch_grpc", "__machine", "simple_switch_grpc"];

/// Machines with the wires of two switches between them; none where there is no bmv2.
fn with_bmv2(test: &str) -> Option<Bed> {
    if !has_bmv2(test) {
        return None;
    }
    with_wires(test)
}

/// Machines with the wires of two switches between them.
fn with_wires(test: &str) -> Option<Bed> {
    let bed = bed_of(test, &MACHINES)?;
    wire_reporter(&bed, "load", "leaf", "p1");
    bed.wire([("edge", "p2", "02:00:00:00:02:02"), ("store", "eth1", STORE_MAC)]);
    Some(bed)
}

/// Machines with the wires of a translator, and of two reporters and two collectors at it.
fn with_two_of_each(test: &str) -> Option<Bed> {
    let bed = bed_of(test, &[&MACHINES[..], &[("leaf2", 5), ("load2", 6), ("store2", 7)]].concat())?;
    wire_reporter(&bed, "load", "leaf", "p1");
    wire_reporter(&bed, "load2", "leaf2", "p3");
    bed.wire([("edge", "p2", "02:00:00:00:02:02"), ("store", "eth1", STORE_MAC)]);
    bed.wire([("edge", "p4", "02:00:00:00:02:04"), ("store2", "eth1", STORE2_MAC)]);
    Some(bed)
}

/// Wires the hosts of a reporter to it, and the reporter to a port of the translator.
fn wire_reporter(bed: &Bed, load: &str, leaf: &str, port_of_edge: &str) {
    for (host, port, mac) in [("h1", "p1", "02:00:00:00:01:01"), ("h2", "p2", "02:00:00:00:01:02")] {
        bed.wire([(load, host, "02:00:00:00:00:03"), (leaf, port, mac)]);
        // Captures hold packets that a network card had put together.
        for (machine, name) in [(load, host), (leaf, port)] {
            must(&["ip", "-n", &bed.network(machine), "link", "set", name, "mtu", "65535"]);
        }
    }
    bed.wire([(leaf, "p3", "02:00:00:00:01:03"), ("edge", port_of_edge, EDGE_MAC)]);
}

/// The table of the translator's machine.
fn edge(address: &str, more: &str) -> String {
    format!(
        "name = \"edge\"\nssh = \"198.18.9.2\"\nroles = [\"translator\"]\naddress = \"{address}\"\n{more}"
    )
}

fn bmv2_edge() -> String {
    let switch = format!(
        "simple_switch = [\"1@p1\", \"2@p2\"]\n[machine.switch]\ntype = \"bmv2\"\ncontrol = \"127.0.0.1:9559\"\nmac = \"{EDGE_MAC}\"\n\
         collector_ports = [2]\npostcard_rows = 256\nstations = [{{ mac = \"{LEAF_MAC}\", port = 1 }}]\n"
    );
    edge(EDGE, &switch)
}

/// The table of the reporter's machine.
fn leaf() -> String {
    format!(
        "name = \"leaf\"\nssh = \"198.18.9.4\"\nroles = [\"reporter\"]\naddress = \"{LEAF}\"\nsimple_switch = [\"1@p1\", \"2@p2\", \"3@p3\"]\n\
         host_ports = [1, 2]\ntranslator = {{ port = 3, mac = \"{EDGE_MAC}\" }}\n[machine.switch]\ntype = \"bmv2\"\n\
         control = \"127.0.0.1:9559\"\nmac = \"{LEAF_MAC}\"\n"
    )
}

/// What more of its table a second reporter has.
fn second_leaf() -> String {
    format!(
        "address = \"{LEAF2}\"\nsimple_switch = [\"1@p1\", \"2@p2\", \"3@p3\"]\nhost_ports = [1, 2]\n\
         translator = {{ port = 3, mac = \"{EDGE_MAC}\" }}\n[machine.switch]\ntype = \"bmv2\"\n\
         control = \"127.0.0.1:9559\"\nmac = \"{LEAF2_MAC}\"\n"
    )
}

/// Gives a topology file a second reporter with its hosts.
fn add_reporter(bed: &Bed, path: &str) {
    let interfaces = "interfaces = [\"h1\", \"h2\"]\n";
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(interfaces));
    std::fs::write(path, text.replace(interfaces, &format!("{interfaces}reporter = \"leaf\"\n"))).unwrap();
    bed.add(path, "reporter", &[("leaf2", 5, &second_leaf())]);
    bed.add(path, "traffic", &[("load2", 6, &format!("{interfaces}reporter = \"leaf2\""))]);
}

/// Asserts that each of two reporters sent reports, as many as came together.
fn both_reported(outcome: &Value) {
    let sent = ["reporter/r1", "reporter/r2"].map(|node| sum(outcome, node, "sent"));
    println!("{sent:?} reports of two reporters");
    assert!(sent.iter().all(|sent| *sent > 50), "{sent:?}");
    assert_eq!(sent.iter().sum::<u64>(), number(&outcome["sent"]), "{outcome:#}");
}

/// All counters of a node whose names begin with a word.
fn sum(outcome: &Value, node: &str, word: &str) -> u64 {
    let nodes = outcome["nodes"].as_array().unwrap();
    let node =
        nodes.iter().find(|found| found["node"] == node).unwrap_or_else(|| panic!("{node}: {nodes:#?}"));
    let counters = node["counters"].as_object().unwrap().iter();
    counters.filter(|(name, _)| name.split('.').next() == Some(word)).map(|(_, value)| number(value)).sum()
}

/// A topology file of the four machines; `address` is more of the collector's.
fn topology(bed: &Bed, address: &str, edge: &str, leaf: &str) -> String {
    let store = format!("name = \"store\"\nssh = \"198.18.9.1\"\nroles = [\"collector\"]\n{address}\n");
    let load = "name = \"load\"\nssh = \"198.18.9.3\"\nroles = [\"traffic\"]\naddress = \"198.18.9.3\"\ninterfaces = [\"h1\", \"h2\"]\n";
    let program = format!("[[machine]]\nprogram = \"{}\"\n", common::MANAGER);
    let machines = [&store, edge, load, leaf].map(|machine| format!("{program}{machine}\n")).concat();
    let text = format!(
        "name = \"hardware\"\n[ssh]\nconfig = \"ssh_config\"\noptions = [\"ServerAliveInterval=1\", \"ConnectTimeout=5\"]\n{machines}"
    );
    let path = bed.path("hardware.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The first packets of a capture (pcap, its numbers in the order of this machine).
fn cut(bed: &Bed, capture: &std::path::Path, packets: usize) -> String {
    let bytes = std::fs::read(capture).unwrap();
    assert_eq!(bytes[..4], 0xa1b2_c3d4_u32.to_le_bytes());
    let mut end = 24;
    for _ in 0..packets {
        let length = u32::from_le_bytes(bytes[end + 8..end + 12].try_into().unwrap());
        end += 16 + length as usize;
    }
    let path = bed.path("cut.pcap");
    std::fs::write(&path, &bytes[..end]).unwrap();
    path
}

/// The outcome of a run in which nothing is wrong and nothing unexplained.
fn exact(output: &Output) -> Value {
    let (status, outcome) = outcome(output);
    assert_eq!(status, 0, "{outcome:#}{}", stderr_of(output));
    assert_eq!((&outcome["unexplained"], &outcome["contradictions"]), (&0.into(), &json!([])), "{outcome:#}");
    assert_eq!(ends(&outcome), number(&outcome["sent"]), "{outcome:#}");
    let primitives = outcome["primitives"].as_array().unwrap();
    let sum = |field: &str| primitives.iter().map(|primitive| number(&primitive[field])).sum::<u64>();
    assert!(sum("wrong") == 0 && sum("right") > 50, "{outcome:#}");
    println!("{} reports, {} answers right", outcome["sent"], sum("right"));
    outcome
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn a_capture_through_two_switches_on_other_machines_is_exact_and_nothing_is_left() {
    let test = "a_capture_through_two_switches_on_other_machines_is_exact_and_nothing_is_left";
    let (Some(bed), Some(captures)) = (with_bmv2(test), captures(test)) else { return };
    const PACKETS: usize = 400;
    let capture = cut(&bed, &captures.join("traffic/real-1kxun.pcap"), PACKETS);
    let logs = bed.path("logs");
    let store = format!("address = \"{STORE}\"\nlink = \"packet:eth1\"");
    let topology = topology(&bed, &store, &bmv2_edge(), &leaf());
    let began = Instant::now();
    let output = bed.run(&topology, &["--pcap", &capture, "--logs", &logs]);
    println!("{:?} for the run", began.elapsed());
    let outcome = exact(&output);
    assert_eq!(
        (&outcome["run"]["packets"], &outcome["run"]["topology"]),
        (&PACKETS.into(), &"hardware".into())
    );
    assert!(number(&outcome["sent"]) > 1_000, "{outcome:#}");
    assert_eq!(counter(&outcome, "translator/testbed-switch", "received"), number(&outcome["sent"]));
    assert_eq!(outcome["nodes"].as_array().unwrap().len(), 4, "{outcome:#}");
    for name in ["leaf-switch-bmv2.log", "edge-switch-bmv2.log", "store-collector.log"] {
        assert!(std::path::Path::new(&logs).join(name).exists(), "{name}");
    }
    bed.is_clean();

    // A manager that is killed takes both switches with it.
    let mut child = bed.started(&topology, &["--pcap", &capture], &WITH_BMV2);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    bed.is_clean();
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn a_switch_reports_to_the_software_translator_on_another_machine() {
    let test = "a_switch_reports_to_the_software_translator_on_another_machine";
    let (Some(bed), Some(captures)) = (with_bmv2(test), captures(test)) else { return };
    let capture = cut(&bed, &captures.join("traffic/real-1kxun.pcap"), 100);
    // Frames take the way that ssh takes, too.
    must(&["ip", "-n", &bed.network("edge"), "address", "add", "198.18.10.3/24", "dev", "p1"]);
    let edge = edge("198.18.9.2", "");
    let path = topology(&bed, "address = \"198.18.9.1\"", &edge, &leaf());
    let outcome = exact(&bed.run(&path, &["--pcap", &capture]));
    assert_eq!(outcome["run"]["packets"], 100);
    assert!(number(&outcome["sent"]) > 300, "{outcome:#}");
    bed.is_clean();

    // What is not possible is said.
    for (more, expect) in [
        (&["--pcap", &*capture, "--reports", "5"][..], "--reports is not possible"),
        (&[], "give one with --pcap"),
        (
            &["--pcap", &*capture, "--faults", "drop=0.1"],
            "--faults is for links between programs of software",
        ),
    ] {
        let output = bed.run(&path, more);
        assert!(
            output.status.code() == Some(2) && stderr_of(&output).contains(expect),
            "{}",
            stderr_of(&output)
        );
    }
    // Interfaces that are too small for the capture, and that are not there.
    must(&["ip", "-n", &bed.network("load"), "link", "set", "h1", "mtu", "1500"]);
    must(&["ip", "-n", &bed.network("load"), "link", "set", "h2", "mtu", "576"]);
    let output = bed.run(&path, &["--pcap", &capture]);
    let said = stderr_of(&output);
    assert!(output.status.code() == Some(1) && said.contains("is its MTU large enough?"), "{said}");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"h2\"", "\"h9\"");
    std::fs::write(&path, text).unwrap();
    let output = bed.run(&path, &["--pcap", &capture]);
    let said = stderr_of(&output);
    assert!(output.status.code() == Some(1) && said.contains("load: ") && said.contains("h9"), "{said}");
    bed.is_clean();
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn two_reporters_and_two_collectors_on_machines_of_their_own_are_exact_and_nothing_is_left() {
    let test = "two_reporters_and_two_collectors_on_machines_of_their_own_are_exact_and_nothing_is_left";
    if !has_bmv2(test) {
        return;
    }
    let (Some(mut bed), Some(captures)) = (with_two_of_each(test), captures(test)) else { return };
    let capture = cut(&bed, &captures.join("traffic/real-1kxun.pcap"), 400);
    let of_edge = bmv2_edge()
        .replace("[\"1@p1\", \"2@p2\"]", "[\"1@p1\", \"2@p2\", \"3@p3\", \"4@p4\"]")
        .replace("collector_ports = [2]", "collector_ports = [2, 4]")
        .replace("port = 1 }]", &format!("port = 1 }}, {{ mac = \"{LEAF2_MAC}\", port = 3 }}]"));
    let store = |address: &str| format!("address = \"{address}\"\nlink = \"packet:eth1\"");
    let path = topology(&bed, &store(STORE), &of_edge, &leaf());
    add_reporter(&bed, &path);
    bed.add(&path, "collector", &[("store2", 7, &store(STORE2))]);
    let outcome = exact(&bed.run(&path, &["--pcap", &capture]));
    assert_eq!(outcome["run"]["packets"], 400);
    both_reported(&outcome);
    let executed = executed(&outcome);
    println!("{executed:?} frames executed");
    assert!(executed.len() == 2 && executed.iter().all(|(_, frames)| *frames > 500), "{executed:?}");
    bed.is_clean();

    // A manager that is killed takes all switches with it; and a machine that dies is named.
    let words = ["simple_switch_grpc", "__collector"];
    let words = [&WITH_BMV2[..], &[words[0], "__machine", words[1]]].concat();
    let mut child = bed.started(&path, &["--pcap", &capture], &words);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    bed.is_clean();
    let child = bed.started(&path, &["--pcap", &capture], &words);
    let at = bed.machines.iter().position(|machine| machine.name == "leaf2").unwrap();
    bed.machines[at].dies();
    let output = child.wait_with_output().unwrap();
    let said = stderr_of(&output);
    assert!(output.status.code() == Some(1) && said.contains("leaf2 (ssh 198.18.9.5)"), "{said}");
    bed.is_clean();
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn two_switches_report_to_the_software_translator_on_another_machine() {
    let test = "two_switches_report_to_the_software_translator_on_another_machine";
    if !has_bmv2(test) {
        return;
    }
    let (Some(bed), Some(captures)) = (with_two_of_each(test), captures(test)) else { return };
    let capture = cut(&bed, &captures.join("traffic/real-1kxun.pcap"), 100);
    // Frames take the way that ssh takes, too.
    for (port, address) in [("p1", "198.18.10.3/24"), ("p3", "198.18.11.3/24")] {
        must(&["ip", "-n", &bed.network("edge"), "address", "add", address, "dev", port]);
    }
    let path = topology(&bed, "address = \"198.18.9.1\"", &edge("198.18.9.2", ""), &leaf());
    add_reporter(&bed, &path);
    bed.add(&path, "collector", &[("store2", 7, "")]);
    let outcome = exact(&bed.run(&path, &["--pcap", &capture]));
    assert_eq!(outcome["run"]["packets"], 100);
    both_reported(&outcome);
    let executed = executed(&outcome);
    assert!(executed.len() == 2 && executed.iter().all(|(_, frames)| *frames > 50), "{executed:?}");
    bed.is_clean();
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_tofino_that_reports_is_programmed_and_reports_no_more_however_the_run_ends() {
    let test = "a_tofino_that_reports_is_programmed_and_reports_no_more_however_the_run_ends";
    let (Some(bed), Some(captures)) = (with_wires(test), captures(test)) else { return };
    let capture = cut(&bed, &captures.join("traffic/real-1kxun.pcap"), 10);
    // The driver runs there already. No traffic passes: it only serves tables.
    let switch = bed.inside("leaf", || FakeTofino::start_as("reporter", &tofino::program_of("reporter")));
    let leaf = leaf()
        .replace("simple_switch = [\"1@p1\", \"2@p2\", \"3@p3\"]\n", "")
        .replace("type = \"bmv2\"", "type = \"tofino\"")
        .replace("127.0.0.1:9559", &switch.address.to_string());
    let path = topology(&bed, "address = \"198.18.9.1\"", &edge("198.18.9.2", ""), &leaf);
    for signal in [Signal::INT, Signal::KILL] {
        let child = bed.started_until(&path, &["--pcap", &capture], || {
            switch.rows("watchlist") != 0 && switch.rows("report") != 0
        });
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = stderr_of(&output);
        assert!(!said.contains("did not end within") && !said.contains("still holds"), "{said}");
        assert!(signal == Signal::KILL || output.status.code() == Some(130), "{:?}: {said}", output.status);
        bed.is_clean();
        assert_eq!((switch.rows("report"), switch.rows("watchlist")), (0, 0));
        assert!(switch.rows("l2") > 1, "it forwards");
    }
    // Counters of another run would be counted as this one's.
    switch.count("received", 1, 5);
    let output = bed.run(&path, &["--pcap", &capture]);
    let said = stderr_of(&output);
    assert!(said.contains("counted 5 packets before this run") && output.status.code() == Some(1), "{said}");
    bed.is_clean();
    assert_eq!(switch.rows("report"), 0);
}
