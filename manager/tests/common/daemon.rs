//! A daemon as a process, and what it counts.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dta_proto::control::NodeStatistics;
use serde_json::Value;

use super::MANAGER;

/// A daemon that ends with the test.
pub struct Daemon {
    child: Child,
    /// The line that said that it is ready.
    pub ready: Value,
}

impl Daemon {
    /// Starts the program with `arguments`, and waits until it is ready.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// The same with more variables of the environment.
    pub fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(MANAGER)
            .args(arguments)
            .stdout(Stdio::piped())
            .envs(["DTA_COLLECTOR_LOG", "DTA_TRANSLATOR_LOG", "DTA_REPORTER_LOG"].map(|name| (name, "warn")))
            .envs(variables.iter().copied())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("{arguments:?} said {line:?}: {e}"));
        Self { child, ready }
    }

    /// A text of the ready line.
    pub fn said(&self, field: &str) -> &str {
        self.ready[field].as_str().unwrap()
    }

    /// The most memory that it has had so far, in bytes.
    pub fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it runs");
        most.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// Sends it SIGHUP.
    pub fn hang_up(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Sends it SIGTERM, and waits until it has ended, for `patience` at most: how it did, and how long that took.
    pub fn terminate(mut self, patience: Duration) -> (ExitStatus, Duration) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let asked = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, asked.elapsed());
            }
            assert!(asked.elapsed() < patience, "it did not end at SIGTERM");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A counter of the first node whose name begins with `node`; 0 where there is none.
pub fn counter(nodes: &[NodeStatistics], node: &str, name: &str) -> u64 {
    let node = nodes.iter().find(|n| n.node.starts_with(node));
    node.and_then(|n| n.counters.iter().find(|c| c.name == name)).map_or(0, |c| c.value)
}
