//! The testbed of P4 switches, as a user runs it.

mod common;
mod schema;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::outcome_document::{contradictions, documented_fields};
use common::{MANAGER, assert_each_epoch, captures, ends, has_bmv2, number};
use serde_json::Value;

/// Runs it on a capture, with more arguments; returns status, output and standard error.
fn run(capture: &Path, more: &[&str], path: Option<&str>) -> (Option<i32>, String, String) {
    let mut command = Command::new(MANAGER);
    command.args(["run-testbed", "--switch", "bmv2", "--pcap"]).arg(capture).args(more);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn what_is_missing_is_named() {
    let (status, _, stderr) = run("traffic.pcap".as_ref(), &["--collectors", "2"], Some("/nowhere"));
    assert_eq!(status, Some(1), "{stderr}");
    assert!(
        stderr.contains("simple_switch_grpc is not on PATH") && stderr.contains("p4lang-bmv2"),
        "{stderr}"
    );
    let (status, _, stderr) = run("traffic.pcap".as_ref(), &["--collectors", "3"], Some("/nowhere"));
    assert!(status == Some(2) && stderr.contains("3 is not in 1..=2"), "{stderr}");
    let (status, _, stderr) =
        run("traffic.pcap".as_ref(), &["--collectors", "2", "--nic", "rxe"], Some("/nowhere"));
    assert!(status == Some(2) && stderr.contains("leave --collectors out"), "{stderr}");
    let chaos = |what| run("traffic.pcap".as_ref(), &["--chaos", what], Some("/nowhere"));
    let (status, _, stderr) = chaos("kill-collector");
    assert!(status == Some(2) && stderr.contains("needs --epochs"), "{stderr}");
    let (status, _, stderr) = chaos("remove-device");
    assert!(status == Some(2) && stderr.contains("leave --switch out"), "{stderr}");
}

/// A stand-in for a switch that was built without Thrift and nanomsg: it refuses what it does not know as bmv2 does,
/// and ends.
const WITHOUT_THRIFT: &str = r#"#!/bin/sh
help() {
    echo 'Usage: SWITCH_NAME [options] <path to JSON config file>'
    echo 'Options:'
    echo '  -h [ --help ]            Display this help message'
    echo '  -i [ --interface ] arg   <port-num>@<interface-name>: Attach network interface'
    echo '  --no-p4                  Enable the switch to start without an input configuration'
}
while [ $# -gt 0 ]; do
    case $1 in
    --help) help; exit 0 ;;
    --no-p4) shift ;;
    -i) shift 2 ;;
    --) echo "interfaces and control: understood"; exit 7 ;;
    *) echo "unrecognised option '$1'"; help; exit 1 ;;
    esac
done
"#;

#[test]
#[ignore = "needs root: make test runs it"]
fn a_switch_without_thrift_is_started_without_it() {
    use std::os::unix::fs::PermissionsExt;
    let test = "a_switch_without_thrift_is_started_without_it";
    let Some(captures) = captures(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("simple_switch_grpc");
    std::fs::write(&program, WITHOUT_THRIFT).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let (status, _, stderr) = run(&captures.join("traffic/real-1kxun.pcap"), &[], Some(&path));
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("exit status: 7") && stderr.contains("control: understood"), "{stderr}");
}

/// The capture, where there is a `simple_switch_grpc`, too.
fn capture(test: &str) -> Option<PathBuf> {
    if !has_bmv2(test) {
        return None;
    }
    Some(captures(test)?.join("traffic/real-1kxun.pcap"))
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn real_traffic_through_both_switches_is_exact() {
    let Some(capture) = capture("real_traffic_through_both_switches_is_exact") else { return };
    let (status, shown, stderr) = run(&capture, &[], None);
    println!("{shown}");
    assert_eq!(status, Some(0), "{shown}{stderr}");
    assert!(shown.contains(" 0 wrong; unexplained: 0"), "{shown}");
    assert!(shown.contains("283 longer than 1,514 bytes"), "{shown}");
    let figure = |behind: &str| {
        let (before, _) = shown.split_once(behind).expect(&shown);
        let digits: String = before.chars().rev().take_while(char::is_ascii_digit).collect();
        digits.chars().rev().collect::<String>().parse::<u64>().expect(&shown)
    };
    assert!(figure(" packets received") == 1723 && figure(" executed") > 10_000 && figure(" right") > 1_000);
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn two_collectors_share_the_keys_and_the_outcome_is_json() {
    let Some(capture) = capture("two_collectors_share_the_keys_and_the_outcome_is_json") else { return };
    let (status, shown, stderr) = run(&capture, &["--collectors", "2", "-o", "json"], None);
    assert_eq!(status, Some(0), "{shown}{stderr}");
    let outcome: Value = serde_json::from_str(&shown).expect(&shown);
    schema::hold("dta-manager-run-testbed", &outcome);
    assert_eq!(contradictions(&documented_fields(), &outcome), Vec::<String>::new());
    let of = |field: &str| outcome[field].as_u64().unwrap();
    assert_eq!((of("unexplained"), &outcome["contradictions"]), (0, &Value::Array(vec![])), "{outcome:#}");
    assert_eq!(of("sent"), of("queryable") + of("superseded") + of("overwritten"), "{outcome:#}");
    assert!(of("sent") > 5_000 && outcome["run"]["packets"] == 1723, "{outcome:#}");
    let primitives = outcome["primitives"].as_array().unwrap();
    let sum = |field: &str| primitives.iter().map(|p| p[field].as_u64().unwrap()).sum::<u64>();
    assert!(sum("wrong") == 0 && sum("right") > 1_000, "{outcome:#}");
    let nics = outcome["nodes"].as_array().unwrap().iter();
    let nics: Vec<&Value> = nics.filter(|node| node["stage"] == "nic").collect();
    assert_eq!(nics.len(), 2, "{outcome:#}");
    for nic in nics {
        assert!(nic["counters"]["executed.write"].as_u64().unwrap() > 1_000, "{nic:#}");
    }
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn each_epoch_has_what_switches_reported_in_it_whatever_is_killed() {
    let Some(capture) = capture("each_epoch_has_what_switches_reported_in_it_whatever_is_killed") else {
        return;
    };
    for more in [
        &[][..],
        &["--collectors", "2", "--chaos", "kill-translator"],
        &["--collectors", "2", "--chaos", "kill-collector"],
    ] {
        let (status, shown, stderr) = run(&capture, &[&["--epochs", "3", "-o", "json"], more].concat(), None);
        let outcome: Value = serde_json::from_str(&shown).unwrap_or_else(|_| panic!("{shown}{stderr}"));
        let what = format!("{more:?}");
        assert_eq!((status, &outcome["unexplained"]), (Some(0), &Value::from(0)), "{what}: {outcome:#}");
        assert_eq!(ends(&outcome), number(&outcome["sent"]), "{what}: {outcome:#}");
        assert_each_epoch(&what, &outcome, 3);
        let primitives = outcome["primitives"].as_array().unwrap();
        assert!(primitives.iter().all(|primitive| primitive["wrong"] == 0), "{what}: {outcome:#}");
        let nics = outcome["nodes"].as_array().unwrap().iter().filter(|node| node["stage"] == "nic");
        for nic in nics {
            assert_eq!(nic["counters"]["dropped.rkey"].as_u64().unwrap_or(0), 0, "{what}: {nic:#}");
        }
        let right: u64 = primitives.iter().map(|primitive| number(&primitive["right"])).sum();
        println!("{what}: {} epochs, {right} answers right", outcome["epochs"].as_array().unwrap().len());
    }
}
