//! `dta-manager bench --nic`: compares the NICs on a veth pair.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::MANAGER;
use serde_json::Value;

/// A figure as JSON has it: name, unit, value and floor, ratio.
type Figure = (String, String, [f64; 2], Option<f64>);

/// Runs the benchmarks briefly, and returns their figures.
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
    // 4: one was slower than required, which such a short run does not prove.
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

/// A network namespace, which goes with this.
struct Network(String);

impl Network {
    fn new(name: &str) -> Network {
        let network = Network(format!("dta-{name}-{}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &network.0]).status().expect("iproute2");
        assert!(made.success());
        network
    }

    /// The benchmarks in it.
    fn bench(&self) -> [&str; 5] {
        ["ip", "netns", "exec", &self.0, MANAGER]
    }

    /// The number of the NIC's end of the pair, if it is there.
    fn pair(&self) -> Option<u64> {
        let command = ["-n", &self.0, "-j", "link", "show", "dta-bench-near"];
        let output = Command::new("ip").args(command).output().expect("iproute2");
        let links: Value = serde_json::from_slice(&output.stdout).ok()?;
        links[0]["ifindex"].as_u64()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn the_software_nic_executes_every_frame() {
    let network = Network::new("bench");
    complete(&bench(&network.bench(), "soft"), &["soft", "xdp", "xdp/soft"]);
    assert_eq!(network.pair(), None);
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_pair_that_a_killed_run_left_is_removed_and_that_of_a_living_one_is_not() {
    let network = Network::new("left");
    let quick = || {
        let words = network.bench();
        let arguments = ["bench", "uc-write-8", "--quick", "--nic", "soft"];
        Command::new(words[0]).args(&words[1..]).args(arguments).output().expect("it runs")
    };
    let words = network.bench();
    let mut living = Command::new(words[0])
        .args(&words[1..])
        .args(["bench", "--nic", "soft"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let until = Instant::now() + Duration::from_secs(120);
    while network.pair().is_none() {
        assert!(Instant::now() < until && living.try_wait().expect("a child").is_none(), "no pair");
        std::thread::sleep(Duration::from_millis(5));
    }
    // It stays where it is, with its pair.
    let pid = rustix::process::Pid::from_child(&living);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("a child");
    let pair = network.pair();
    let refused = quick();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && told.contains("another dta-manager"),
        "{:?}: {told}",
        refused.status
    );
    assert_eq!(network.pair(), pair);

    living.kill().expect("a child");
    living.wait().expect("a child");
    assert_eq!(network.pair(), pair, "nobody takes it down");
    let next = quick();
    assert!(
        matches!(next.status.code(), Some(0 | 4)),
        "{:?}: {}",
        next.status,
        String::from_utf8_lossy(&next.stderr)
    );
    assert_eq!(network.pair(), None);
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
