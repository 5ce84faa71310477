//! What the end-to-end tests share: the program itself, captures, JSON outcomes.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

#[path = "../../../testbed/tests/shared/captures.rs"]
mod beside;
pub mod daemon;
pub mod int_bed;
#[path = "../../../testbed/tests/shared/loopback.rs"]
pub mod loopback;
pub mod namespaces;
pub mod outcome_document;
pub mod tracing;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// The program under test.
pub const MANAGER: &str = env!("CARGO_BIN_EXE_dta-manager");

/// The folder of captures, or `None` where there is none; then says which test goes without.
pub fn captures(test: &str) -> Option<PathBuf> {
    beside::captures(test, "")
}

/// Whether there is a bmv2 on PATH; if not, says which test goes without.
pub fn has_bmv2(test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = std::env::split_paths(&path).any(|folder| folder.join("simple_switch_grpc").is_file());
    if !has {
        println!("SKIPPED: {test}: simple_switch_grpc is not on PATH");
    }
    has
}

/// A free TCP port on loopback.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs the program with `arguments`.
pub fn manager(arguments: &[&str]) -> Output {
    Command::new(MANAGER).args(arguments).output().expect("the program under test can be started")
}

/// Runs a testbed and returns exit status and outcome.
pub fn testbed(arguments: &[&str]) -> (i32, Value) {
    testbed_by(Command::new(MANAGER), arguments)
}

/// The same, and for root in a network namespace of its own: what comes to a port that nobody has open is counted by the
/// kernel for all processes of a namespace.
pub fn testbed_apart(arguments: &[&str]) -> (i32, Value) {
    let up = ["ip", "link", "set", "lo", "up"];
    let made = Command::new("unshare").arg("--net").args(up).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return testbed(arguments);
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh", MANAGER]);
    testbed_by(command, arguments)
}

fn testbed_by(mut manager: Command, arguments: &[&str]) -> (i32, Value) {
    manager.args(["run-testbed", "-o", "json"]).args(arguments);
    let output = manager.output().expect("the program under test can be started");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = output.status.code().unwrap_or(-1);
    assert!(status == 0 || status == 4, "run-testbed {arguments:?} ended with {status}: {stderr}");
    let outcome = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("run-testbed {arguments:?} printed no JSON ({e}): {stderr}"));
    (status, outcome)
}

/// Asserts that nothing is wrong or unexplained, and that each report ended once.
pub fn assert_good(what: &str, (status, outcome): &(i32, Value)) {
    assert_eq!(*status, 0, "{what}: {outcome:#}");
    assert_eq!(outcome["unexplained"], 0, "{what}: {outcome:#}");
    for primitive in outcome["primitives"].as_array().expect("a list of primitives") {
        assert_eq!(primitive["wrong"], 0, "{what}: {outcome:#}");
    }
    assert_eq!(ends(outcome), number(&outcome["sent"]), "{what}: {outcome:#}");
    assert_defined(what, outcome);
}

/// A counter of a node in an outcome; 0 where it is not there.
pub fn counter(outcome: &Value, node: &str, name: &str) -> u64 {
    let nodes = outcome["nodes"].as_array().expect("a list of nodes");
    let node = nodes.iter().find(|found| found["node"] == node);
    node.and_then(|node| node["counters"][name].as_u64()).unwrap_or(0)
}

/// Asserts that every counter of every node is one that `docs/counters.md` has.
fn assert_defined(what: &str, outcome: &Value) {
    let nodes = outcome["nodes"].as_array().expect("a list of nodes");
    let mut counters = 0;
    for node in nodes {
        let (node, all) = (node["node"].as_str().expect("a name"), &node["counters"]);
        for name in all.as_object().expect("counters by name").keys() {
            let found = dta_proto::counter::find_counter(node, name);
            assert!(
                found.is_some_and(|found| found.known),
                "{what}: {node} counts {name}, which has no definition"
            );
            counters += 1;
        }
    }
    assert!(counters > 100, "{what}: {nodes:#?}");
}

/// Asserts that every answer is exactly right, too.
pub fn assert_exact(what: &str, result: &(i32, Value)) {
    assert_good(what, result);
    for primitive in result.1["primitives"].as_array().expect("a list of primitives") {
        assert!(number(&primitive["queried"]) > 0, "{what}: {primitive:#}");
        assert_eq!(primitive["right"], primitive["queried"], "{what}: {primitive:#}");
    }
}

/// Asserts that at least so many epochs of each store that has them had traffic at each collector, that their answers are
/// those of the primitive, and that no write was refused where an epoch ended.
pub fn assert_each_epoch(what: &str, outcome: &Value, least: usize) {
    let all = outcome["epochs"].as_array().unwrap_or_else(|| panic!("{what}: no epochs in {outcome:#}"));
    let mut stores: Vec<&Value> = all.iter().map(|epoch| &epoch["store"]).collect();
    stores.dedup();
    assert_eq!(stores.len(), 2, "{what}: {stores:?}");
    for (store, name) in stores.into_iter().zip(["key-write", "postcarding"]) {
        let all: Vec<&Value> = all.iter().filter(|epoch| epoch["store"] == *store).collect();
        let mut primitives = outcome["primitives"].as_array().expect("a list").iter();
        let primitive = primitives.find(|primitive| primitive["name"] == name).expect("its primitive");
        for count in ["queried", "right", "absent", "stale", "partial", "wrong"] {
            let sum: u64 = all.iter().map(|epoch| number(&epoch[count])).sum();
            assert_eq!(sum, number(&primitive[count]), "{what}: {count} of {store}");
        }
        for of_one in all.chunk_by(|a, b| a["collector"] == b["collector"]) {
            let with_traffic = of_one.iter().filter(|epoch| number(&epoch["queried"]) > 0).count();
            assert!(with_traffic >= least, "{what}: {with_traffic} epochs of {store} had traffic: {all:#?}");
            for two in of_one.windows(2) {
                assert_eq!(two[0]["flipped_from"], two[1]["opened"], "{what}: {all:#?}");
            }
        }
        for epoch in all.iter().filter(|epoch| number(&epoch["queried"]) > 0) {
            assert!(number(&epoch["rows"]) >= number(&epoch["right"]), "{what}: {epoch:#}");
        }
    }
    assert_eq!(counter(outcome, "collector", "epochs.lost"), 0, "{what}");
    for purpose in ["write", "atomic"] {
        let name = format!("queue_pair.{purpose}.nak_error");
        assert_eq!(counter(outcome, "translator/testbed", &name), 0, "{what}: {name}");
    }
}

/// All ends of reports together, without the unexplained.
pub fn ends(outcome: &Value) -> u64 {
    let losses: u64 = outcome["losses"].as_object().expect("losses by name").values().map(number).sum();
    let direct: u64 =
        ["queryable", "superseded", "overwritten", "held"].iter().map(|k| number(&outcome[*k])).sum();
    losses + direct
}

/// A number of an outcome.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}
