//! A collector and a translator as processes, on ports of their own.

#![allow(dead_code)] // each test file uses its part

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const MANAGER: &str = env!("CARGO_BIN_EXE_dta-manager");

/// A collector and a translator with their default stores, on ports of their own.
pub(crate) struct Bed {
    daemons: Vec<Child>,
    _folder: tempfile::TempDir,
    /// The lines that said that they are ready.
    pub(crate) ready: [Value; 2],
    /// gRPC address of the collector.
    pub(crate) collector: String,
    /// Where the translator takes reports.
    pub(crate) reports: String,
    /// gRPC address of the translator.
    pub(crate) control: String,
}

impl Bed {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("memory").display().to_string();
        let mut daemons = Vec::new();
        let mut daemon = |arguments: &[&str]| {
            let mut child = program(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            daemons.push(child);
            serde_json::from_str::<Value>(&line)
                .unwrap_or_else(|e| panic!("{arguments:?} said {line:?}: {e}"))
        };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let of_collector = daemon(&[
            "__collector",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--soft-port",
            "0",
            "--memory",
            &memory,
        ]);
        let collector = text(&of_collector["listen"]);
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let source = format!("127.{}.{b}.{c}", 160 + (a & 31));
        let at = [
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
            "--source",
            &source,
            "--source-port",
            "0",
        ];
        let ready =
            daemon(&[&["__translator", "run", "--ready", "--collector", &collector], &at[..]].concat());
        let (reports, control) = (text(&ready["listen"]), text(&ready["control"]));
        let bed = Bed { daemons, _folder: folder, ready: [of_collector, ready], collector, reports, control };
        bed.wait_for_counters();
        bed
    }

    /// Waits until the translator has handed in its counters: before, `stats` shows fewer than later.
    fn wait_for_counters(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let stats = ["__collector", "stats", "-o", "json", "--collector", &self.collector];
            let stats = String::from_utf8(program(&stats).output().unwrap().stdout).unwrap();
            if stats.contains("\"translator/") {
                return;
            }
            assert!(Instant::now() < end, "the translator hands in no counters: {stats}");
            std::thread::sleep(Duration::from_millis(50));
        }
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

/// A program without settings.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(MANAGER);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DTA_") || name == "NO_COLOR") {
        command.env_remove(name);
    }
    command.args(arguments).env("TERM", "xterm").env_remove("COLUMNS");
    command
}
