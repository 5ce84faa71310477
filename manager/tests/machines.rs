//! `run-testbed` on other machines, started over ssh. Needs root, ip, unshare and sshd.

mod common;
mod machine_bed;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{assert_each_epoch, assert_good, captures, counter, number};
use machine_bed::{MACHINES, bed, bed_of, executed, must, outcome, stderr_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What runs on each machine.
const ROLES: [&str; 3] = ["__collector", "__translator", "__machine"];

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_capture_played_on_three_machines_is_exact_and_nothing_is_left() {
    let test = "a_capture_played_on_three_machines_is_exact_and_nothing_is_left";
    let (Some(bed), Some(captures)) = (bed(test), captures(test)) else { return };
    let capture = captures.join("traffic/real-1kxun.pcap").display().to_string();
    let logs = bed.path("logs");
    let topology = bed.topology(|_| String::new());
    for transport in ["uc", "rc"] {
        let output = bed.run(&topology, &["--pcap", &capture, "--transport", transport, "--logs", &logs]);
        let result = outcome(&output);
        assert_good(transport, &result);
        assert_eq!(result.1["run"]["packets"], 1723);
        assert!(number(&result.1["sent"]) > 14_000, "{:#}", result.1);
        bed.is_clean();
    }
    for (name, last) in [("store-collector.log", "store open"), ("edge-translator.log", "stopped accepted=")]
    {
        let log = std::fs::read_to_string(Path::new(&logs).join(name)).unwrap();
        assert!(log.contains(last), "{name}: {log}");
        assert!(!log.contains("did not reach the collector"), "{name}: {log}");
    }
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn reporters_on_several_machines_are_exact_and_each_sends() {
    let test = "reporters_on_several_machines_are_exact_and_each_sends";
    let more: [(&str, u8); 2] = [("load2", 4), ("load3", 5)];
    let Some(bed) = bed_of(test, &[&MACHINES[..], &more].concat()) else { return };
    let topology = bed.topology(|_| String::new());
    bed.add(&topology, "host", &more.map(|(name, last)| (name, last, "")));
    let output = bed.run(&topology, &["--reports", "10000"]);
    assert_good("several hosts", &outcome(&output));
    for (name, _) in [MACHINES[2], more[0], more[1]] {
        // Of the namespace: datagrams that left, in the fourth column.
        let counted = bed.inside(name, || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let line = counted.lines().filter(|line| line.starts_with("Udp:")).nth(1).expect("two lines of UDP");
        let left: u64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
        assert!(left > 1000, "{name}: {counted}");
    }
    bed.is_clean();
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn collectors_on_several_machines_share_the_stores_and_nothing_is_left() {
    let test = "collectors_on_several_machines_share_the_stores_and_nothing_is_left";
    let more: [(&str, u8); 2] = [("store2", 4), ("store3", 5)];
    let (Some(mut bed), Some(captures)) = (bed_of(test, &[&MACHINES[..], &more].concat()), captures(test))
    else {
        return;
    };
    let capture = captures.join("traffic/real-1kxun.pcap").display().to_string();
    let topology = bed.topology(|_| String::new());
    for (count, arguments) in [
        (2, &["--pcap", &*capture, "--transport", "uc"][..]),
        (2, &["--pcap", &*capture, "--transport", "rc"]),
        // The lists are at two of these.
        (3, &["--reports", "10000"]),
    ] {
        let (name, last) = more[count - 2];
        if count == 3 || arguments.contains(&"uc") {
            bed.add(&topology, "collector", &[(name, last, "")]);
        }
        let result = outcome(&bed.run(&topology, arguments));
        assert_exact_but_for_sketches(&format!("{count} collectors"), &result);
        let executed = executed(&result.1);
        let addresses: Vec<&str> = executed.iter().map(|(address, _)| &**address).collect();
        assert_eq!(addresses, ["198.18.9.1", "198.18.9.4", "198.18.9.5"][..count]);
        assert!(executed.iter().all(|(_, frames)| *frames > 500), "{executed:?}");
        let all: u64 = executed.iter().map(|(_, frames)| frames).sum();
        println!("{} reports, {executed:?}", result.1["sent"]);
        // Frames on RC that are answered late are sent again, and executed once.
        let frames = counter(&result.1, "translator/testbed", "frames");
        let again = sent_again(&result.1);
        assert!((frames - again..=frames).contains(&all), "{executed:?} of {frames}, {again} sent again");
        bed.is_clean();
    }

    let words = [&ROLES[..], &["__collector"; 2]].concat();
    let reports = ["--reports", "100000000"];
    let mut child = bed.started(&topology, &reports, &words);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    bed.is_clean();

    let child = bed.started(&topology, &reports, &words);
    let at = bed.machines.iter().position(|machine| machine.name == "store2").unwrap();
    bed.machines[at].dies();
    let output = child.wait_with_output().unwrap();
    let stderr = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("store2 (ssh 198.18.9.4)"), "{stderr}");
    bed.is_clean();
}

/// Frames that the translator sent again, on all queue pairs.
fn sent_again(outcome: &Value) -> u64 {
    let nodes = outcome["nodes"].as_array().unwrap().iter();
    let counters =
        nodes.filter(|node| node["stage"] == "translator").filter_map(|n| n["counters"].as_object());
    let again = counters
        .flatten()
        .filter(|(name, _)| name.starts_with("queue_pair.") && name.ends_with(".retransmitted"));
    again.map(|(_, count)| number(count)).sum()
}

/// Asserts that each answer is the truth; sketches and counters may say more, where keys share cells.
fn assert_exact_but_for_sketches(what: &str, result: &(i32, Value)) {
    assert_good(what, result);
    for primitive in result.1["primitives"].as_array().unwrap() {
        let [queried, right, over] = ["queried", "right", "over"].map(|field| number(&primitive[field]));
        assert!(queried > 0 && right + over == queried, "{what}: {primitive:#}");
    }
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_tenth_of_all_frames_lost_repeated_moved_and_damaged_between_machines_is_accounted_for() {
    let test = "a_tenth_of_all_frames_lost_repeated_moved_and_damaged_between_machines_is_accounted_for";
    let more: [(&str, u8); 2] = [("store2", 4), ("load2", 5)];
    let (Some(bed), Some(captures)) = (bed_of(test, &[&MACHINES[..], &more].concat()), captures(test)) else {
        return;
    };
    let capture = captures.join("traffic/real-1kxun.pcap").display().to_string();
    let topology = bed.topology(|_| String::new());
    bed.add(&topology, "collector", &[("store2", 4, "")]);
    bed.add(&topology, "host", &[("load2", 5, "")]);
    let faults = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1";
    for transport in ["uc", "rc"] {
        let arguments = ["--pcap", &capture, "--epochs", "2", "--transport", transport, "--faults", faults];
        let result = outcome(&bed.run(&topology, &arguments));
        assert_good(transport, &result);
        assert_each_epoch(transport, &result.1, 2);
        let links = result.1["links"].as_array().unwrap();
        let [reports, nacks, frames, answers] = links.as_slice() else { panic!("four links: {links:?}") };
        for (link, least) in [(reports, 1000), (nacks, 10), (frames, 200), (answers, 20)] {
            for fault in ["dropped", "duplicated", "reordered", "corrupted"] {
                assert!(number(&link[fault]) > least, "{transport}, {fault}: {link:#}");
            }
        }
        println!("{transport}: {} reports, {:?}", result.1["sent"], result.1["losses"]);
        let executed = executed(&result.1);
        assert!(executed.len() == 2 && executed.iter().all(|(_, frames)| *frames > 500), "{executed:?}");
        bed.is_clean();
    }
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn keys_at_two_collectors_are_exact_and_with_a_tenth_of_all_frames_lost_accounted_for() {
    let test = "keys_at_two_collectors_are_exact_and_with_a_tenth_of_all_frames_lost_accounted_for";
    let (Some(bed), Some(captures)) =
        (bed_of(test, &[&MACHINES[..], &[("store2", 4)]].concat()), captures(test))
    else {
        return;
    };
    let capture = captures.join("traffic/real-1kxun.pcap").display().to_string();
    let topology = bed.topology(|_| String::new());
    bed.add(&topology, "collector", &[("store2", 4, "")]);
    let text = std::fs::read_to_string(&topology).unwrap();
    let spread = text.replacen("[translator]\n", "[translator]\nspread_copies = true\n", 1);
    assert_ne!(text, spread);
    std::fs::write(&topology, spread).unwrap();
    for (transport, faults) in ["uc", "rc"]
        .into_iter()
        .flat_map(|of| [(of, "none"), (of, "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1")])
    {
        let what = format!("{transport}, {faults}");
        let arguments = ["--pcap", &capture, "--transport", transport, "--faults", faults];
        let result = outcome(&bed.run(&topology, &arguments));
        assert_good(&what, &result);
        if faults == "none" {
            assert_exact_but_for_sketches(&what, &result);
        }
        println!("{what}: {} reports, {:?}, {:?}", result.1["sent"], result.1["losses"], executed(&result.1));
        let executed = executed(&result.1);
        assert!(executed.len() == 2 && executed.iter().all(|(_, frames)| *frames > 2000), "{executed:?}");
        bed.is_clean();
    }
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_program_that_is_copied_is_exact_and_is_gone_afterwards() {
    let Some(bed) = bed("a_program_that_is_copied_is_exact_and_is_gone_afterwards") else { return };
    let topology = bed.topology(|_| "deploy = true".into());
    let output = bed.run(&topology, &["--reports", "20000"]);
    assert_good("copied", &outcome(&output));
    bed.is_clean();
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn what_keeps_a_machine_from_working_is_explained_with_what_to_do() {
    let Some(bed) = bed("what_keeps_a_machine_from_working_is_explained_with_what_to_do") else { return };
    let other = bed.path("other");
    let script = "#!/bin/sh\necho '{\"version\":\"0.0.1 (commit x)\",\"folder\":\"/x\"}'\ncat >/dev/null\n";
    std::fs::write(&other, script).unwrap();
    must(&["chmod", "755", &other]);
    let silent = bed.path("silent");
    std::fs::write(&silent, "no program").unwrap();
    for (of, change, expect) in [
        ("edge", "port = 2222".to_owned(), "edge (ssh 198.18.9.2): it cannot be reached"),
        ("load", "ssh = \"198.18.9.77\"".to_owned(), "load (ssh 198.18.9.77): it cannot be reached"),
        ("store", "ssh = \"nobody@198.18.9.1\"".to_owned(), "it denies access"),
        (
            "store",
            "program = \"/nowhere/dta-manager\"".to_owned(),
            "there is no program /nowhere/dta-manager there",
        ),
        ("edge", format!("program = \"{silent}\""), "cannot run there"),
        ("edge", format!("program = \"{other}\""), "dta-manager 0.0.1 (commit x), and this one is"),
        ("edge", "program = \"/bin/true\"".to_owned(), "another version, or no dta-manager"),
        ("load", "address = \"198.18.9.99\"".to_owned(), "load: "),
    ] {
        let topology = bed.topology(|name| if name == of { change.clone() } else { String::new() });
        let output = bed.run(&topology, &["--reports", "2000"]);
        let stderr = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{change}: {stderr}");
        assert!(stderr.contains(expect), "{change}: {stderr}");
        assert!(!stderr.contains("PRIVATE") && stderr.lines().count() < 20, "{stderr}");
        bed.is_clean();
    }
    // Wrong in the file itself: its line and key.
    for (change, expect) in [
        ("adress = 1", "machine.adress"),
        ("switch = { type = \"abacus\" }", "switch.type"),
        ("simple_switch = [\"1@eth0\"]", "simple_switch"),
    ] {
        let topology = bed.topology(|name| if name == "edge" { change.to_owned() } else { String::new() });
        let output = bed.run(&topology, &[]);
        let stderr = stderr_of(&output);
        assert!(
            output.status.code() == Some(2) && stderr.contains(expect) && stderr.contains(", line "),
            "{stderr}"
        );
    }
    // A port that another program has.
    let bind = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
                s.bind(('198.18.9.1',4791))\nprint(1,flush=True)\ntime.sleep(600)";
    let mut other = Command::new("ip")
        .args(["netns", "exec", &bed.network("store"), "python3", "-c", bind])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut one = [0];
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut one).unwrap();
    let output = bed.run(&bed.topology(|_| String::new()), &["--reports", "2000"]);
    let stderr_of_port = stderr_of(&output);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(
        stderr_of_port.contains("store: the collector") && stderr_of_port.contains("4791"),
        "{stderr_of_port}"
    );
    // A host key that nobody has seen.
    std::fs::write(bed.path("known_hosts"), "").unwrap();
    let output = bed.run(&bed.topology(|_| String::new()), &["--reports", "2000"]);
    assert!(stderr_of(&output).contains("its host key is unknown"), "{}", stderr_of(&output));
    bed.is_clean();
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_machine_that_dies_is_named_and_the_others_are_left_clean() {
    for (index, (name, _)) in MACHINES.into_iter().enumerate() {
        let Some(mut bed) = bed("a_machine_that_dies_is_named_and_the_others_are_left_clean") else { return };
        let topology = bed.topology(|_| String::new());
        let child = bed.long_run(&topology, ROLES);
        bed.machines[index].dies();
        let died = Instant::now();
        let output = child.wait_with_output().unwrap();
        let stderr = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(&format!("{name} (ssh 198.18.9.")), "{name}: {stderr}");
        assert!(died.elapsed() < Duration::from_secs(90), "{:?}", died.elapsed());
        bed.is_clean();
    }
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn however_the_manager_ends_nothing_is_left() {
    let Some(bed) = bed("however_the_manager_ends_nothing_is_left") else { return };
    for copied in [false, true] {
        let topology = bed.topology(|_| if copied { "deploy = true".into() } else { String::new() });
        for (signal, status) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
            let mut child = bed.long_run(&topology, ROLES);
            kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
            let ended = child.wait().unwrap();
            assert!(ended.code() == status && ended.signal().is_some() == status.is_none(), "{ended}");
            bed.is_clean();
        }
    }
}
