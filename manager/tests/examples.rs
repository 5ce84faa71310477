//! The examples that people copy first: each is run as it stands in the help of `dta-reporter send`
//! and in the README, against a collector and a translator with their defaults, and the collector
//! is asked for what it reported.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};

use common::MANAGER;
use serde_json::Value;

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:5000/udp";

/// What of an example is unlike all others, what to ask, and what the answer has to hold.
const TRUTH: [(&str, &str, &str); 9] = [
    ("--store flows --value 1500", "query key-write FLOW", "000005dc0000000000000000"),
    ("--vary key", "query key-write 0a0003e7", "000000070000000000000000"),
    ("--store 3 --list 3", "tail --list 3 --from-start --once", "000000010000000200000003deadbeef"),
    ("--delta 1500", "query counter FLOW", "\"counted\":1500"),
    ("--hop 2 --path-length 5", "query path FLOW", "[null,null,103,null,null"),
    // One reporter of two: that the column went out is what can be asked of it alone.
    ("--column 17", "stats", "[\"sketch-merge.emitted\",1]"),
    ("send --file -", "tail --list 2 --from-start --once", "00000001000000020000000300000004"),
    ("--version 0", "query key-write 0a0b0c0d", "000000070000000000000000"),
    ("--value 0x000000010000000200000003", "query key-write FLOW", "000000010000000200000003"),
];

/// Collector and translator with their default stores, on ports of their own.
struct Bed {
    daemons: Vec<Child>,
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Bed {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut bed = Self { daemons: Vec::new(), folder, environment: Vec::new() };
        for program in ["reporter", "collector"] {
            let path = bed.folder.path().join(format!("dta-{program}"));
            std::fs::write(&path, format!("#!/bin/sh\nexec {MANAGER} __{program} \"$@\"\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        }
        let memory = bed.folder.path().join("memory").display().to_string();
        let ready = bed.daemon(&[
            "__collector",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--soft-port",
            "0",
            "--memory",
            &memory,
        ]);
        let collector = ready["listen"].as_str().unwrap().to_owned();
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let source = format!("127.{}.{b}.{c}", 192 + (a & 31));
        let ready = bed.daemon(&[
            "__translator",
            "run",
            "--ready",
            "--collector",
            &collector,
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
            "--source",
            &source,
            "--source-port",
            "0",
        ]);
        let listen = ready["listen"].as_str().unwrap().to_owned();
        bed.environment = vec![
            ("DTA_COLLECTOR_COLLECTOR", collector.clone()),
            ("DTA_REPORTER_COLLECTOR", collector),
            ("DTA_REPORTER_TO", listen),
        ];
        bed
    }

    fn daemon(&mut self, arguments: &[&str]) -> Value {
        let mut child = Command::new(MANAGER)
            .args(arguments)
            .envs(["DTA_COLLECTOR_LOG", "DTA_TRANSLATOR_LOG"].map(|name| (name, "warn")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.daemons.push(child);
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{arguments:?} said {line:?}: {e}"))
    }

    /// Runs a line as a person at a shell would.
    fn shell(&self, line: &str) -> Output {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        Command::new("sh")
            .args(["-c", line])
            .env("PATH", path)
            .envs(self.environment.clone())
            .output()
            .unwrap()
    }

    /// Asks until the answer holds what it has to.
    fn ask(&self, question: &str, expected: &str) {
        let line = format!("dta-collector {} --output json", question.replace("FLOW", &format!("'{FLOW}'")));
        let mut told = String::new();
        for _ in 0..100 {
            let output = self.shell(&line);
            told = String::from_utf8_lossy(&output.stdout).split_whitespace().collect();
            if told.contains(expected) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{line} gave {told}, and not {expected}");
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in self.daemons.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Commands that send, wherever they stand in a text. A line that ends with `\\` or `|` goes on in the next.
fn examples(text: &str) -> Vec<String> {
    let (mut found, mut command) = (Vec::new(), String::new());
    for line in text.lines().map(str::trim) {
        command += line.trim_end_matches('\\');
        command.push(' ');
        if line.ends_with(['\\', '|']) && !line.starts_with('|') {
            continue;
        }
        let whole = std::mem::take(&mut command);
        if whole.contains("dta-reporter send ") {
            found.push(whole.trim().replace("target/release/", ""));
        }
    }
    found
}

#[test]
fn every_example_that_sends_lands() {
    let bed = Bed::start();
    let help = bed.shell("dta-reporter send --help");
    let mut lines = examples(&String::from_utf8(help.stdout).unwrap());
    assert_eq!(lines.len(), 8, "{lines:#?}");
    lines.extend(examples(include_str!("../../README.md")));
    for line in lines {
        let known: Vec<_> = TRUTH.iter().filter(|(part, ..)| line.contains(part)).collect();
        let [(_, question, answer)] = known[..] else { panic!("{line}: known {known:?}") };
        let output = bed.shell(&line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        bed.ask(question, answer);
    }
    let output = bed.shell("dta-collector stats --output json");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = told["nodes"].as_array().unwrap();
    let translator = nodes.iter().find(|node| node["stage"] == "translator").unwrap();
    let counter = |name: &str| {
        let counters = translator["counters"].as_array().unwrap();
        counters.iter().find(|counter| counter[0] == name).map(|counter| &counter[1])
    };
    assert!(counter("received").is_some());
    assert_eq!(counter("accepted"), counter("received"), "{translator}");
}

#[test]
fn what_cannot_land_is_refused_before_it_is_sent() {
    let bed = Bed::start();
    for (line, told) in [
        ("dta-reporter send key-write --store 0 --key 01 --value 1", "no store 0, but 1 `flows` (key-write)"),
        ("dta-reporter send key-write --store bytes --key 01 --value 1", "takes no key-write reports"),
        (
            "dta-reporter send append --list 16 --value 1,2,3,4",
            "list is 16, but store `events` takes 0 to 15",
        ),
        ("dta-reporter send append --list 1 --value 1,2,3", "length of the value is 12"),
        ("dta-reporter send sketch-merge --epoch 1 --column 1 --cells 1,2", "number of cells is 2"),
        ("dta-reporter send key-write --key 01 --value 1 --to 127.0.0.1:9", "nobody listens at 127.0.0.1:9"),
        (
            "echo '{\"primitive\":\"append\",\"list\":99,\"value\":[1,2,3,4]}' | dta-reporter send --file -",
            "line 1: it cannot land",
        ),
        ("dta-reporter send key-write --key 01 --value 1 --collector 127.0.0.1:9", "--unchecked"),
    ] {
        let output = bed.shell(line);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(told), "{line}: {error}");
    }
    let output = bed.shell("dta-reporter send key-write --store 0 --key 01 --value 1 --unchecked");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
