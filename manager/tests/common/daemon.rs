//! A daemon as a process, and what it counts.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

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
        let mut child = Command::new(MANAGER)
            .args(arguments)
            .stdout(Stdio::piped())
            .envs(["DTA_COLLECTOR_LOG", "DTA_TRANSLATOR_LOG", "DTA_REPORTER_LOG"].map(|name| (name, "warn")))
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
