//! `dta-manager bench --nic`: compares the NICs on a veth pair.

mod common;
mod nics;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::MANAGER;
use nics::{bench, complete};
use serde_json::Value;

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
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && stderr.contains("another dta-manager"),
        "{:?}: {stderr}",
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
