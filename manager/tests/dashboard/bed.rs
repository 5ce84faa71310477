//! A collector and a translator with their defaults, on ports of their own.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::MANAGER;
use crate::common::daemon::Daemon;

/// Daemons that are killed when it is dropped.
pub(crate) struct Bed {
    // Before the folder, which they use.
    daemons: BTreeMap<&'static str, Daemon>,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) collector: String,
    pub(crate) translator: String,
    source: String,
}

impl Bed {
    pub(crate) fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    /// The same with the collector at an address.
    pub(crate) fn start_at(host: Ipv4Addr) -> Self {
        let folder = tempfile::Builder::new().prefix("dta-").tempdir().unwrap();
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let source = format!("127.{}.{b}.{c}", 128 + (a & 31));
        let (collector, translator) = (format!("{host}:0"), "127.0.0.1:0".to_owned());
        let mut bed = Self { daemons: BTreeMap::new(), folder, collector, translator, source };
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
        self.collector = self.daemon("collector", &arguments);
    }

    fn start_translator(&mut self) {
        let (collector, listen, source) =
            (self.collector.clone(), self.translator.clone(), self.source.clone());
        let arguments = ["__translator", "run", "--ready", "--collector", &collector, "--listen", &listen];
        let more = ["--control", "127.0.0.1:0", "--source", &source, "--source-port", "0"];
        self.translator = self.daemon("translator", &[&arguments[..], &more].concat());
    }

    /// Starts a daemon, and returns where it listens.
    fn daemon(&mut self, name: &'static str, arguments: &[&str]) -> String {
        let quiet = ["DTA_COLLECTOR_LOG", "DTA_TRANSLATOR_LOG"].map(|name| (name, "error"));
        let daemon = Daemon::start_with(arguments, &quiet);
        let listen = daemon.said("listen").to_owned();
        self.daemons.insert(name, daemon);
        listen
    }

    /// Kills a daemon without notice.
    pub(crate) fn kill(&mut self, name: &str) {
        drop(self.daemons.remove(name).expect("it runs"));
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
