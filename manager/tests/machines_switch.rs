//! `run-testbed` on other machines with a P4 switch as the translator. Needs root, ip, ethtool, unshare and sshd.
//!
//! ```text
//! load (reporters) eth1 -- p1 edge (the switch) p2 -- eth1 store (collector on the software NIC)
//! ```

mod common;
mod machine_bed;
#[allow(dead_code, reason = "the tests of dta-translator need more of it")]
#[path = "../../translator-ctl/tests/p4/tofino.rs"]
mod tofino;

use std::time::Instant;

use common::{assert_each_epoch, assert_good, captures, counter, has_bmv2, number};
use machine_bed::{Bed, MACHINES, bed_of, executed, must, outcome, stderr_of};
use rustix::process::{Pid, Signal, kill_process};
use tofino::{FakeTofino, program};

/// Addresses in the network of reports and frames.
const STORE: &str = "198.18.10.1";
const EDGE: &str = "198.18.10.2";
const LOAD: &str = "198.18.10.3";
const STORE_MAC: &str = "02:00:00:00:00:01";
const STORE2: &str = "198.18.10.4";
const STORE2_MAC: &str = "02:00:00:00:00:04";
const EDGE_MAC: &str = "02:00:00:00:00:88";
const LOAD_MAC: &str = "02:00:00:00:00:03";

/// Machines with the wires of a switch between them.
fn with_wires(test: &str) -> Option<Bed> {
    with_wires_of(test, &MACHINES)
}

/// The same of these machines, and more.
fn with_wires_of(test: &str, machines: &[(&'static str, u8)]) -> Option<Bed> {
    let bed = bed_of(test, machines)?;
    bed.wire([("load", "eth1", LOAD_MAC), ("edge", "p1", "02:00:00:00:01:01")]);
    bed.wire([("store", "eth1", STORE_MAC), ("edge", "p2", "02:00:00:00:01:02")]);
    let load = bed.network("load");
    must(&["ip", "-n", &load, "address", "add", &format!("{LOAD}/24"), "dev", "eth1"]);
    // A program for a switch answers no ARP.
    must(&[
        "ip",
        "-n",
        &load,
        "neigh",
        "replace",
        EDGE,
        "lladdr",
        EDGE_MAC,
        "nud",
        "permanent",
        "dev",
        "eth1",
    ]);
    Some(bed)
}

/// A topology with a switch; `of_machine` and `switch` are more of their tables.
fn topology(bed: &Bed, of_machine: &str, switch: &str) -> String {
    let path = bed.topology(|name| match name {
        "store" => format!("address = \"{STORE}\"\nlink = \"packet:eth1\""),
        "edge" => format!(
            "address = \"{EDGE}\"\n{of_machine}\n[machine.switch]\nmac = \"{EDGE_MAC}\"\ncollector_ports = [2]\n\
             stations = [{{ mac = \"{LOAD_MAC}\", port = 1 }}]\n{switch}"
        ),
        _ => format!("address = \"{LOAD}\""),
    });
    let text = std::fs::read_to_string(&path).unwrap().replace("columns = 2048", "columns = 256");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn a_capture_through_bmv2_on_another_machine_is_exact_and_nothing_is_left() {
    let test = "a_capture_through_bmv2_on_another_machine_is_exact_and_nothing_is_left";
    if !has_bmv2(test) {
        return;
    }
    let (Some(bed), Some(captures)) = (with_wires(test), captures(test)) else { return };
    let capture = captures.join("traffic/real-1kxun.pcap").display().to_string();
    let logs = bed.path("logs");
    let bmv2 = "type = \"bmv2\"\ncontrol = \"127.0.0.1:9559\"\npostcard_rows = 1024\n";
    let topology = topology(&bed, "simple_switch = [\"1@p1\", \"2@p2\"]", bmv2);
    let began = Instant::now();
    let output = bed.run(&topology, &["--pcap", &capture, "--logs", &logs]);
    println!("{:?} for the run", began.elapsed());
    let result = outcome(&output);
    assert_good("bmv2", &result);
    let outcome = &result.1;
    assert_eq!(outcome["run"]["packets"], 1723);
    let right: u64 = outcome["primitives"].as_array().unwrap().iter().map(|p| number(&p["right"])).sum();
    println!("{} reports, {right} answers right", outcome["sent"]);
    assert!(number(&outcome["sent"]) > 12_000 && right > 1_000, "{outcome:#}");
    let received = counter(outcome, "translator/testbed-switch", "received");
    assert_eq!(received, number(&outcome["sent"]), "{outcome:#}");
    bed.is_clean();

    // A manager that is killed takes the switch with it.
    let mut child = bed.long_run(&topology, ["__collector", "simple_switch_grpc", "__machine"]);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    bed.is_clean();
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn bmv2_on_another_machine_spreads_stores_over_two_collectors() {
    let test = "bmv2_on_another_machine_spreads_stores_over_two_collectors";
    if !has_bmv2(test) {
        return;
    }
    let machines = [&MACHINES[..], &[("store2", 4)]].concat();
    let (Some(bed), Some(captures)) = (with_wires_of(test, &machines), captures(test)) else { return };
    bed.wire([("store2", "eth1", STORE2_MAC), ("edge", "p3", "02:00:00:00:01:03")]);
    let capture = captures.join("traffic/real-1kxun.pcap").display().to_string();
    let bmv2 = "type = \"bmv2\"\ncontrol = \"127.0.0.1:9559\"\npostcard_rows = 1024\n";
    let path = topology(&bed, "simple_switch = [\"1@p1\", \"2@p2\", \"3@p3\"]", bmv2);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("collector_ports = [2]", "collector_ports = [2, 3]")).unwrap();
    let more = format!("address = \"{STORE2}\"\nlink = \"packet:eth1\"");
    bed.add(&path, "collector", &[("store2", 4, &more)]);
    let result = outcome(&bed.run(&path, &["--pcap", &capture]));
    assert_good("two collectors behind bmv2", &result);
    let executed = executed(&result.1);
    println!("{} reports, {executed:?}", result.1["sent"]);
    assert_eq!(executed.len(), 2, "{executed:?}");
    assert!(executed.iter().all(|(_, frames)| *frames > 500), "{executed:?}");
    bed.is_clean();
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn each_epoch_behind_bmv2_has_what_was_reported_in_it_though_a_tenth_of_the_reports_is_lost() {
    let test = "each_epoch_behind_bmv2_has_what_was_reported_in_it_though_a_tenth_of_the_reports_is_lost";
    if !has_bmv2(test) {
        return;
    }
    let Some(bed) = with_wires(test) else { return };
    let bmv2 = "type = \"bmv2\"\ncontrol = \"127.0.0.1:9559\"\npostcard_rows = 1024\n";
    let topology = topology(&bed, "simple_switch = [\"1@p1\", \"2@p2\"]", bmv2);
    for transport in ["uc", "rc"] {
        let spread = ["--reports", "4000", "--epochs", "3", "--transport", transport];
        let result = outcome(&bed.run(&topology, &[&spread[..], &["--report-faults", "drop=0.1"]].concat()));
        assert_good(transport, &result);
        assert_each_epoch(transport, &result.1, 3);
        assert_eq!(counter(&result.1, "nic/soft", "dropped.rkey"), 0, "{transport}: {:#}", result.1);
        let lost = number(&result.1["links"][0]["dropped"]);
        println!("{transport}: {} reports, {lost} lost on their way", result.1["sent"]);
        assert!(lost > 200, "{transport}: {:#}", result.1);
        bed.is_clean();
    }
    let output = bed.run(&topology, &["--reports", "4000", "--report-faults", "dup=0.1"]);
    assert!(
        output.status.code() == Some(2) && stderr_of(&output).contains("can only drop"),
        "{}",
        stderr_of(&output)
    );
}

/// Rows that a control plane wrote into the tables of a switch.
fn rows(switch: &FakeTofino) -> usize {
    ["service", "store", "region", "queue_pair", "departure", "answer"]
        .map(|table| switch.rows(table))
        .iter()
        .sum()
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_tofino_on_another_machine_is_programmed_and_emptied_however_the_run_ends() {
    let test = "a_tofino_on_another_machine_is_programmed_and_emptied_however_the_run_ends";
    let Some(bed) = with_wires(test) else { return };
    // The driver runs there already. No traffic passes: it only serves tables.
    let switch = bed.inside("edge", || FakeTofino::start(&program()));
    let of_switch = format!(
        "type = \"tofino\"\ncontrol = \"{}\"\nstores = [\"flows\", \"paths\", \"bytes\"]\n",
        switch.address
    );
    let path = topology(&bed, "", &of_switch);
    for killed in [false, true] {
        let mut child = bed.started_until(&path, &["--reports", "20000"], || {
            switch.rows("queue_pair") == 2 && switch.rows("store") == 3 && switch.rows("service") == 1
        });
        if killed {
            kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
            child.wait().unwrap();
        } else {
            let output = child.wait_with_output().unwrap();
            let stderr = stderr_of(&output);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(stderr.contains(&format!("sent to {EDGE}:40040 reached the switch")), "{stderr}");
        }
        bed.is_clean();
        assert_eq!(rows(&switch), 0);
    }
}
