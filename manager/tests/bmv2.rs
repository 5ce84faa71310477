//! The testbed of P4 switches, as a user runs it.

mod common;

use std::process::Command;

use common::{MANAGER, captures};

/// Runs it on a capture; gives status, output and what it complained of.
fn run(capture: &std::path::Path, path: Option<&str>) -> (Option<i32>, String, String) {
    let mut command = Command::new(MANAGER);
    command.args(["run-testbed", "--switch", "bmv2", "--pcap"]).arg(capture);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn what_is_missing_is_named() {
    let (status, _, told) = run("traffic.pcap".as_ref(), Some("/nowhere"));
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains("simple_switch_grpc is not on PATH") && told.contains("p4lang-bmv2"), "{told}");
}

#[test]
#[ignore = "needs root and simple_switch_grpc: run by make test-p4"]
fn real_traffic_through_both_switches_is_exact() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("simple_switch_grpc").is_file()) {
        println!("SKIPPED: run-testbed --switch bmv2: simple_switch_grpc is not on PATH");
        return;
    }
    let Some(folder) = captures("real_traffic_through_both_switches_is_exact") else { return };
    let (status, shown, told) = run(&folder.join("traffic/real-1kxun.pcap"), None);
    println!("{shown}");
    assert_eq!(status, Some(0), "{shown}{told}");
    assert!(shown.contains(" 0 wrong; unexplained: 0"), "{shown}");
    assert!(shown.contains("283 longer than 1,514 bytes"), "{shown}");
    let figure = |behind: &str| {
        let (before, _) = shown.split_once(behind).expect(&shown);
        let digits: String = before.chars().rev().take_while(char::is_ascii_digit).collect();
        digits.chars().rev().collect::<String>().parse::<u64>().expect(&shown)
    };
    assert!(figure(" packets received") == 1723 && figure(" executed") > 10_000 && figure(" right") > 1_000);
}
