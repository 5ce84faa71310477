//! The negative test: frames that a firewall drops, where nothing of ours counts, are unexplained,
//! exactly as many as they are.

mod common;

use std::process::Command;

use common::{MANAGER, number};
use serde_json::Value;

/// A network namespace that is gone with the test.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let namespace = Self(format!("dta-{name}-{}", std::process::id()));
        namespace.must(&["ip", "netns", "add", &namespace.0]);
        namespace.must(&["ip", "-n", &namespace.0, "link", "set", "lo", "up"]);
        namespace
    }

    fn must(&self, command: &[&str]) -> String {
        let output = Command::new(command[0]).args(&command[1..]).output().expect("the command is installed");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn inside(&self, command: &[&str]) -> String {
        self.must(&[&["ip", "netns", "exec", &self.0], command].concat())
    }

    /// Drops, on input, the datagrams number 500 to 599 that `matching` selects.
    fn drop_hundred(&self, matching: &str) {
        let rules = format!(
            "table inet firewall {{\n\
               counter hits {{\n}}\n\
               chain in {{\n\
                 type filter hook input priority 0\n\
                 {matching} numgen inc mod 16777216 500-599 counter name hits drop\n\
               }}\n\
             }}\n"
        );
        self.inside(&["nft", &rules]);
    }

    fn dropped(&self) -> u64 {
        let text = self.inside(&["nft", "-j", "list", "counters"]);
        let json: Value = serde_json::from_str(&text).unwrap();
        let counters = json["nftables"].as_array().unwrap();
        counters.iter().filter_map(|c| c["counter"]["packets"].as_u64()).sum()
    }

    fn testbed(&self, arguments: &[&str]) -> (i32, Value) {
        let arguments = [
            &["netns", "exec", &self.0, MANAGER, "run-testbed", "-o", "json", "--ring", "off", "--no-runs"],
            arguments,
        ]
        .concat();
        let output = Command::new("ip").args(&arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let outcome = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
        (output.status.code().unwrap_or(-1), outcome)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// DTA reports have a primitive's number in their first byte and are longer than NACKs; RoCEv2
/// frames have opcodes above.
const REPORTS: &str = "udp length 25-200 @th,64,8 1-5";
/// UC and RC WRITE ONLY.
const FRAMES: &str = "udp length 25-200 @th,64,8 { 0x0a, 0x2a }";

#[test]
#[ignore = "needs root, ip and nft: make test runs it"]
fn hundred_reports_dropped_by_a_firewall_are_unexplained_and_the_status_says_so() {
    let namespace = Namespace::new("reports");
    namespace.drop_hundred(REPORTS);
    let (status, outcome) = namespace.testbed(&["--reports", "20000"]);
    assert_eq!(namespace.dropped(), 100);
    assert_eq!(outcome["unexplained"], 100, "{outcome:#}");
    assert_eq!(outcome["links"][0]["unexplained"], 100, "{outcome:#}");
    assert_eq!(status, 4);
}

#[test]
#[ignore = "needs root, ip and nft: make test runs it"]
fn hundred_frames_dropped_by_a_firewall_are_unexplained_and_the_status_says_so() {
    let namespace = Namespace::new("frames");
    namespace.drop_hundred(FRAMES);
    let (status, outcome) = namespace.testbed(&["--reports", "20000"]);
    assert_eq!(namespace.dropped(), 100);
    assert_eq!(outcome["unexplained"], 100, "{outcome:#}");
    assert_eq!(outcome["links"][2]["unexplained"], 100, "{outcome:#}");
    assert_eq!(status, 4);
}

#[test]
#[ignore = "needs root, ip and nft: make test runs it"]
fn the_same_rule_that_matches_nothing_changes_nothing() {
    let namespace = Namespace::new("nothing");
    namespace.drop_hundred("udp length 25-200 @th,64,8 99");
    let (status, outcome) = namespace.testbed(&["--reports", "20000"]);
    assert_eq!((namespace.dropped(), status), (0, 0));
    assert_eq!(number(&outcome["unexplained"]), 0);
}
