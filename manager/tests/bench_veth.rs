//! `dta-manager bench --nic`: the NICs beside each other on a veth pair.

mod common;

use std::process::Command;

use common::MANAGER;
use serde_json::Value;

/// A figure as JSON has it: name, unit, value and floor, ratio.
type Figure = (String, String, [f64; 2], Option<f64>);

/// Runs the benchmarks in short, and gives their figures.
fn bench(command: &[&str], nic: &str) -> Vec<Figure> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let json = folder.path().join("figures.json");
    let output = Command::new(command[0])
        .args(&command[1..])
        .args(["bench", "--quick", "--nic", nic, "--json"])
        .arg(&json)
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    print!("{}{told}", String::from_utf8_lossy(&output.stdout));
    // 4: one was slower than it should be, of which so short a run says nothing.
    assert!(matches!(output.status.code(), Some(0 | 4)), "{told}");
    let figures: Value = serde_json::from_slice(&std::fs::read(&json).expect("the figures")).expect("JSON");
    let figure = |row: &Value| {
        let text = |name: &str| row[name].as_str().expect("text").to_owned();
        let number = |name: &str| row[name].as_f64().expect("a number");
        (text("name"), text("unit"), ["value", "floor"].map(number), row["ratio"].as_f64())
    };
    figures.as_array().expect("a list").iter().map(figure).collect()
}

/// Rates are there for every case and each of `nics`. A frame that did not land is an error of the
/// program itself.
fn complete(figures: &[Figure], nics: &[&str]) {
    let mut names = Vec::new();
    for case in ["uc-write-8", "uc-write-64", "rc-write-8", "rc-write-64", "rc-fetch-add"] {
        for nic in nics {
            names.extend(["ops/s", "ns/op"].map(|unit| (format!("{case}.{nic}"), unit.to_owned())));
        }
    }
    assert_eq!(figures.iter().map(|(n, u, ..)| (n.clone(), u.clone())).collect::<Vec<_>>(), names);
    for (name, unit, [value, floor], ratio) in figures {
        if unit == "ops/s" {
            assert!(*value > 0.0 && *floor > 0.0, "{name}: {value} {floor}");
            assert!(ratio.is_some_and(|ratio| (ratio - value / floor).abs() < 1e-6), "{name}: {ratio:?}");
        }
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn the_software_nic_executes_every_frame() {
    let namespace = format!("dta-bench-{}", std::process::id());
    let ip = |arguments: &[&str]| {
        assert!(Command::new("ip").args(arguments).status().expect("iproute2").success(), "ip {arguments:?}");
    };
    ip(&["netns", "add", &namespace]);
    let figures = std::panic::catch_unwind(|| bench(&["ip", "netns", "exec", &namespace, MANAGER], "soft"));
    ip(&["netns", "delete", &namespace]);
    match figures {
        Ok(figures) => complete(&figures, &["soft", "xdp", "xdp/soft"]),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs soft-RoCE: run by testbed/rxe-guest/run-tests"]
fn both_nics_execute_every_frame() {
    complete(&bench(&[MANAGER], "rxe"), &["soft", "rxe", "soft/rxe"]);
    for left in ["net/dta-bench-near", "infiniband/dta-bench"] {
        assert!(!std::path::Path::new("/sys/class").join(left).exists(), "{left} is taken down");
    }
}
