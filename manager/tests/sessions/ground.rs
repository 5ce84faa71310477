//! A collector and translators of the test's own, each a process, on loopback.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dta_proto::wire::dta::{DtaBody, DtaReport};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::loopback::own_address;

/// The program under test.
const MANAGER: &str = env!("CARGO_BIN_EXE_dta-manager");

/// How long anything may take: a loaded machine is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Lists of store `events`, each batch three entries of 8 bytes.
pub(crate) const STORES: &str = "
[[store]]
id = 1
name = 'flows'
kind = 'key-write'
slots = 1024
value_len = 12
redundancy = 2

[[store]]
id = 2
name = 'events'
kind = 'append'
lists = 4
ring = 64
batch_len = 32
entry_len = 8

[[store]]
id = 3
name = 'paths'
kind = 'postcarding'
slots = 1024
hops = 6
redundancy = 2

[[store]]
id = 4
name = 'sketch'
kind = 'sketch-merge'
columns = 1
rows = 2
epochs = 4
merge = 'sum'
expected = 2
";

/// A daemon that has said that it is ready.
pub(crate) struct Daemon {
    child: Child,
    /// What it said.
    pub(crate) ready: Value,
    errors: std::path::PathBuf,
}

impl Daemon {
    fn start(role: &str, arguments: &[&str], errors: &Path) -> Daemon {
        let log = std::fs::File::options().create(true).append(true).open(errors).unwrap();
        let mut child = program(role).args(arguments).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (line_sender, ready_line) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = line_sender.send(line);
        });
        let line = ready_line.recv_timeout(PATIENCE).unwrap_or_default();
        let mut daemon = Daemon { child, ready: Value::Null, errors: errors.to_owned() };
        daemon.ready =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("{role} is not ready: {}", daemon.log()));
        daemon
    }

    /// What it said on its standard error.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit status, once it exits.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|s| s.code())
    }

    /// Whether it runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until it is so.
pub(crate) fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Settings that the user has for daemons of his own are not the test's.
fn program(role: &str) -> Command {
    let mut command = Command::new(MANAGER);
    let own = |(name, _): &(std::ffi::OsString, _)| !name.to_string_lossy().starts_with("DTA_");
    command.arg(role).env_clear().envs(std::env::vars_os().filter(own));
    command
}

fn run(role: &str, arguments: &[&str]) -> Output {
    program(role).args(arguments).output().unwrap()
}

fn good(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A collector, which runs unless it was killed.
pub(crate) struct Ground {
    folder: tempfile::TempDir,
    collector: Option<Daemon>,
    /// Its gRPC address.
    listen: String,
}

impl Ground {
    /// Starts a collector with [`STORES`].
    pub(crate) fn start() -> Ground {
        Ground::start_with(STORES, "127.0.0.1")
    }

    /// Starts a collector with these stores, whose NIC has this address.
    pub(crate) fn start_with(stores: &str, nic: &str) -> Ground {
        Ground::start_at(stores, nic, &format!("{}:0", own_address()))
    }

    /// As [`Ground::start_with`], with `listen` as the gRPC address.
    pub(crate) fn start_at(stores: &str, nic: &str, listen: &str) -> Ground {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[collector]\nname = 'test'\nmemory = '{}'\ndevice = 'soft'\n[soft]\naddress = '{nic}'\nport = 0\n{stores}",
            folder.path().join("memory").display()
        );
        std::fs::write(folder.path().join("collector.toml"), text).unwrap();
        let mut ground = Ground { folder, collector: None, listen: listen.into() };
        ground.restart();
        ground
    }

    /// Starts it again with the memory that it had, at the gRPC address that it had.
    pub(crate) fn restart(&mut self) {
        let config = self.folder.path().join("collector.toml");
        let arguments = ["serve", "--config", config.to_str().unwrap(), "--listen", &self.listen];
        let collector = Daemon::start("__collector", &arguments, &self.folder.path().join("collector.log"));
        self.listen = collector.ready["listen"].as_str().unwrap().into();
        self.collector = Some(collector);
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.collector = None;
    }

    /// Its gRPC address.
    pub(crate) fn address(&self) -> &str {
        &self.listen
    }

    /// What a command of `dta-collector` prints as JSON.
    pub(crate) fn collector(&self, arguments: &[&str]) -> Value {
        let flags = ["--collector", self.address(), "--output", "json"];
        let output = run("__collector", &[arguments, &flags].concat());
        // A key that is absent is an answer, too.
        let absent = output.status.code() == Some(3);
        let out = if absent { String::from_utf8(output.stdout).unwrap() } else { good(&output) };
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{arguments:?} printed {out:?}: {e}"))
    }

    /// What a command of `dta-collector` prints as JSON, and logs, of the collectors at these addresses: exit
    /// status, output and errors.
    pub(crate) fn collector_at(&self, addresses: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let flags = ["--collector", addresses, "--output", "json"];
        let output = run("__collector", &[arguments, &flags].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Ends a session as an operator does.
    pub(crate) fn end_session(&self, name: &str) {
        good(&run("__collector", &["sessions", "end", name, "--collector", self.address()]));
    }

    /// The sessions there are.
    pub(crate) fn sessions(&self) -> Vec<Value> {
        self.collector(&["sessions"]).as_array().unwrap().clone()
    }

    /// The session of a name.
    pub(crate) fn session(&self, name: &str) -> Option<Value> {
        self.sessions().into_iter().find(|s| s["name"] == name)
    }

    /// Lines of `tail --from-start --once` of a list: entries as hex, and what is missing.
    pub(crate) fn tail(&self, list: &str) -> Vec<Value> {
        let arguments = ["tail", "--store", "events", "--list", list, "--from-start", "--once"];
        let flags = ["--collector", self.address(), "--output", "json"];
        let out = good(&run("__collector", &[&arguments[..], &flags].concat()));
        out.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// Runs a command of `dta-translator` on a configuration.
    pub(crate) fn translator(&self, config: &str, arguments: &[&str]) -> Output {
        let path = self.folder.path().join("command.toml");
        std::fs::write(&path, config).unwrap();
        let flags = ["--collector", self.address(), "--config", path.to_str().unwrap()];
        run("__translator", &[arguments, &flags].concat())
    }

    /// As [`Ground::translator`], of a command that succeeds and prints JSON.
    pub(crate) fn translator_json(&self, config: &str, arguments: &[&str]) -> Value {
        let out = good(&self.translator(config, &[arguments, &["--output", "json"]].concat()));
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{arguments:?} printed {out:?}: {e}"))
    }

    /// Starts a translator. `config` is its `[translator]` table; addresses and ports are its own.
    pub(crate) fn run_translator(&self, config: &str, flags: &[&str]) -> Translator {
        Translator::start(self.folder.path(), self.address(), config, flags)
    }

    /// Like [`Ground::run_translator`], without the collector's address.
    pub(crate) fn start_translator(&self, config: &str, flags: &[&str]) -> Translator {
        Translator::start_with(self.folder.path(), config, flags)
    }

    /// Like [`Ground::start_translator`], for one that exits at once. Returns its exit status and output.
    pub(crate) fn translator_ends(&self, config: &str, flags: &[&str]) -> (Option<i32>, String) {
        let path = new_config(self.folder.path(), config);
        let out = run("__translator", &[&run_flags(&path), flags].concat());
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// A file in the folder with this configuration of a translator.
fn new_config(folder: &Path, config: &str) -> std::path::PathBuf {
    let n = std::fs::read_dir(folder).unwrap().count();
    let path = folder.join(format!("translator{n}.toml"));
    std::fs::write(&path, config).unwrap();
    path
}

/// Arguments of a translator whose addresses and ports are its own.
fn run_flags(config: &Path) -> [&str; 10] {
    let config = config.to_str().unwrap();
    let ports = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--source-port", "0"];
    let [a, b, c, d, e, f] = ports;
    ["run", "--ready", a, b, c, d, e, f, "--config", config]
}

/// A running translator and a reporter that speaks to it.
pub(crate) struct Translator {
    /// The process.
    pub(crate) daemon: Daemon,
    config: std::path::PathBuf,
    reporter: UdpSocket,
    sequence: u32,
}

impl Translator {
    /// Starts one of the collector at an address. Its files go to the folder.
    pub(crate) fn start(folder: &Path, collector: &str, config: &str, flags: &[&str]) -> Translator {
        Translator::start_with(folder, config, &[&["--collector", collector], flags].concat())
    }

    /// Like [`Translator::start`], without the collector's address.
    fn start_with(folder: &Path, config: &str, flags: &[&str]) -> Translator {
        let path = new_config(folder, config);
        let log = path.with_extension("log");
        let daemon = Daemon::start("__translator", &[&run_flags(&path), flags].concat(), &log);
        let reporter = UdpSocket::bind("127.0.0.1:0").unwrap();
        let listen: SocketAddr = daemon.ready["listen"].as_str().unwrap().parse().unwrap();
        reporter.connect(listen).unwrap();
        Translator { daemon, config: path, reporter, sequence: 0 }
    }

    /// The file with its configuration.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Where its service is.
    pub(crate) fn control(&self) -> String {
        format!("http://{}", self.daemon.ready["control"].as_str().unwrap())
    }

    /// Sends a report to a store.
    pub(crate) fn report(&mut self, store: u16, body: DtaBody<'_>) {
        self.report_as(7, store, body);
    }

    /// As [`Translator::report`], as this reporter.
    pub(crate) fn report_as(&mut self, reporter: u16, store: u16, body: DtaBody<'_>) {
        let report = DtaReport { sequence: self.sequence, reporter, ..DtaReport::new(store, body) };
        self.sequence += 1;
        let mut bytes = [0; 128];
        let len = report.encode_into(&mut bytes).unwrap();
        self.reporter.send(&bytes[..len]).unwrap();
    }

    /// Sends an entry of eight equal bytes to a list of store `events`.
    pub(crate) fn entry(&mut self, list: u32, byte: u8) {
        self.report(2, DtaBody::Append { list, value: &[byte; 8] });
    }

    /// What it counts itself; `None` if it does not answer.
    pub(crate) fn counter(&self, name: &str) -> Option<u64> {
        let out = run("__translator", &["stats", "--output", "json", "--translator", &self.control()]);
        let nodes: Value = serde_json::from_slice(&out.stdout).ok()?;
        let own = nodes["nodes"]
            .as_array()?
            .iter()
            .find(|n| n["node"].as_str().is_some_and(|node| node.starts_with("translator/")))?;
        Some(own["counters"][name].as_u64().unwrap_or(0))
    }

    /// Waits until a counter stands at a number.
    pub(crate) fn wait_for(&self, name: &str, value: u64) {
        wait_until(&format!("{name} is {value}"), || self.counter(name) == Some(value));
    }
}
