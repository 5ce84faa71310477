//! A collector and a translator with their defaults, on ports of their own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::MANAGER;

/// Daemons that are killed when it is dropped.
pub(crate) struct Bed {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) collector: String,
    pub(crate) translator: String,
    source: String,
    daemons: Vec<(&'static str, Child)>,
}

impl Bed {
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("dta-").tempdir().unwrap();
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let source = format!("127.{}.{b}.{c}", 128 + (a & 31));
        let mut bed = Self {
            folder,
            collector: "127.0.0.1:0".into(),
            translator: "127.0.0.1:0".into(),
            source,
            daemons: vec![],
        };
        bed.start_collector();
        bed.start_translator();
        bed
    }

    pub(crate) fn memory(&self) -> String {
        self.folder.path().join("memory").display().to_string()
    }

    /// Starts a collector, where there was one at its place.
    pub(crate) fn start_collector(&mut self) {
        let (listen, memory) = (self.collector.clone(), self.memory());
        let arguments =
            ["__collector", "serve", "--listen", &listen, "--soft-port", "0", "--memory", &memory];
        let ready = self.daemon("collector", &arguments);
        self.collector = ready["listen"].as_str().unwrap().to_owned();
    }

    fn start_translator(&mut self) {
        let (collector, listen, source) =
            (self.collector.clone(), self.translator.clone(), self.source.clone());
        let arguments = ["__translator", "run", "--ready", "--collector", &collector, "--listen", &listen];
        let more = ["--control", "127.0.0.1:0", "--source", &source, "--source-port", "0"];
        let ready = self.daemon("translator", &[&arguments[..], &more].concat());
        self.translator = ready["listen"].as_str().unwrap().to_owned();
    }

    fn daemon(&mut self, name: &'static str, arguments: &[&str]) -> Value {
        let mut child = Command::new(MANAGER)
            .args(arguments)
            .envs(["DTA_COLLECTOR_LOG", "DTA_TRANSLATOR_LOG"].map(|name| (name, "error")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.daemons.push((name, child));
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{arguments:?} said {line:?}: {e}"))
    }

    /// Kills a daemon without notice.
    pub(crate) fn kill(&mut self, name: &str) {
        let at = self.daemons.iter().position(|(of, _)| *of == name).expect("it runs");
        let (_, mut child) = self.daemons.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A reporter that sends to the translator.
    pub(crate) fn reporter(&self, arguments: &[&str]) -> Child {
        Command::new(MANAGER)
            .args(["__reporter", "send"])
            .args(arguments)
            .args(["--to", &self.translator, "--collector", &self.collector])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Sends reports and waits until they have left.
    pub(crate) fn send(&self, arguments: &[&str]) {
        let status = self.reporter(arguments).wait().unwrap();
        assert!(status.success(), "{arguments:?}");
    }

    /// The command line of a dashboard.
    pub(crate) fn dashboard(&self) -> String {
        format!("{MANAGER} __collector dashboard --collector {}", self.collector)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for (_, child) in self.daemons.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
