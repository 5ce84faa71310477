//! etcd, collectors, a translator and a reporter that never pauses for longer than the translator.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_cluster::{View, read, set_drained};
use dta_files::moment;
use dta_link::netstat;
use dta_proto::to_hex_digits;
use dta_reporter::{Config, DtaBody, Reporter};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys, ClientOptions, Key, Policy, Spread, SpreadMember};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::lists;
use super::nodes::Nodes;
use super::relay::Relay;
use super::schema::hold;
use super::switched::Switched;
use super::truth::{Truth, value};

pub(crate) const MANAGER: &str = env!("CARGO_BIN_EXE_dta-manager");
/// How long anything may take: a loaded machine is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How long a collector has what it has after it died.
pub(crate) const LEASE: Duration = Duration::from_secs(8);
/// Between two reports of all keys.
const PAUSE: Duration = Duration::from_millis(50);

/// Store ids.
pub(crate) const FLOWS: u16 = 1;
pub(crate) const TIMED: u16 = 2;
pub(crate) const BYTES: u16 = 3;
pub(crate) const SPREAD: u16 = 4;
pub(crate) const ROUNDS: u16 = 5;
pub(crate) const KEYS: u16 = 6;
pub(crate) const PACKETS: u16 = 7;
pub(crate) const LONG: u16 = 8;

/// Slots of `spread`.
pub(crate) const SLOTS: u64 = 1 << 17;

const STORES: &str = "
[[store]]
id = 1
name = 'flows'
kind = 'key-write'
slots = 65536
value_len = 12
redundancy = 2

[[store]]
id = 2
name = 'timed'
kind = 'key-write'
slots = 65536
value_len = 12
redundancy = 2
epoch = '3s'

[[store]]
id = 3
name = 'bytes'
kind = 'key-increment'
slots = 65536
redundancy = 2

[[store]]
id = 4
name = 'spread'
kind = 'key-write'
slots = 131072
value_len = 12
redundancy = 2
spread_copies = true
";

/// Lists with a round number in each entry. Behind a switch, three of these are a batch: it holds them.
const ROUND_LISTS: &str = "
[[store]]
id = 5
name = 'rounds'
kind = 'append'
lists = 4
ring = 4096
entry_len = 8
epoch = '3s'
";

/// Behind a software translator also a list of keys, counters at two collectors, and epochs that a test does not see end.
const SOFTWARE_STORES: &str = "
[[store]]
id = 6
name = 'keys'
kind = 'append'
lists = 1
ring = 4096
batch_len = 32
entry_len = 16

[[store]]
id = 7
name = 'packets'
kind = 'key-increment'
slots = 131072
redundancy = 2
replicas = 2

[[store]]
id = 8
name = 'long'
kind = 'key-write'
slots = 65536
value_len = 12
redundancy = 2
epoch = '600s'
";

/// What a collector's NIC is wired to.
pub(crate) enum Wiring {
    /// A UDP socket on loopback.
    Socket,
    /// An interface.
    Link { address: Ipv4Addr, link: &'static str },
}

pub(crate) struct Ground {
    pub(crate) nodes: Nodes,
    /// Between the translator and the nodes.
    pub(crate) relays: Vec<Relay>,
    collectors: BTreeMap<String, Child>,
    translator: Child,
    /// Where it takes reports.
    reports: SocketAddrV4,
    reporter: Reporter,
    pub(crate) truth: Truth,
    /// What etcd said last.
    last: View,
    pub(crate) folder: tempfile::TempDir,
    runtime: Runtime,
    /// Reports before each short pause.
    burst: u32,
    /// In place of the software translator.
    switched: Option<Switched>,
}

impl Ground {
    /// A cluster with a software translator.
    pub(crate) fn start(ids: &[&str]) -> Ground {
        let nodes = Nodes::start();
        let folder = tempfile::tempdir().unwrap();
        let relay = |node: &String| Relay::to(node.replace("http://", ""));
        let relays: Vec<Relay> = nodes.config().endpoints.iter().map(relay).collect();
        let collectors = first(&nodes, &folder, ids, |_| Wiring::Socket);
        let started = translator(&relays, &folder.path().join("translator.log"), "127.0.0.1:0");
        Ground::with(nodes, relays, folder, runtime(), collectors, started, None)
    }

    /// A cluster with a bmv2 switch.
    pub(crate) fn start_switched(ids: &[&str]) -> Ground {
        let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
        let switched = Switched::start(folder.path(), &runtime);
        let nodes = Nodes::start();
        let collectors = first(&nodes, &folder, ids, |id| switched.wiring(id));
        let started = switched.watch(&nodes, folder.path());
        Ground::with(nodes, Vec::new(), folder, runtime, collectors, started, Some(switched))
    }

    fn with(
        nodes: Nodes,
        relays: Vec<Relay>,
        folder: tempfile::TempDir,
        runtime: Runtime,
        collectors: BTreeMap<String, Child>,
        (translator, reports): (Child, SocketAddrV4),
        switched: Option<Switched>,
    ) -> Ground {
        let ids: Vec<String> = collectors.keys().cloned().collect();
        let mut ground = Ground {
            nodes,
            relays,
            collectors,
            translator,
            reports,
            reporter: Reporter::open(Config::new(reports)).unwrap(),
            truth: Truth::of(if switched.is_some() { 50 } else { 500 }),
            last: View::default(),
            folder,
            runtime,
            burst: if switched.is_some() { 1 } else { u32::MAX },
            switched,
        };
        ground.until_at(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        ground
    }

    /// Kills the translator with -9, and starts it again. What it had taken last may be lost.
    pub(crate) fn kill_translator(&mut self) {
        self.translator.kill().unwrap();
        self.translator.wait().unwrap();
        self.truth.doubt_last();
        let log = self.folder.path().join("translator.log");
        self.translator = translator(&self.relays, &log, &self.reports.to_string()).0;
    }

    /// Kills the switch, and starts it again without a program.
    pub(crate) fn restart_switch(&mut self) {
        let switched = self.switched.as_mut().expect("a switch");
        switched.restart(self.folder.path(), &self.runtime);
    }

    /// Starts a collector, which joins.
    pub(crate) fn join(&mut self, id: &str) {
        let wiring = self.switched.as_ref().map_or(Wiring::Socket, |switched| switched.wiring(id));
        let child = collector(&self.nodes, self.folder.path().into(), id, &wiring);
        self.collectors.insert(id.to_owned(), child);
    }

    /// Has a collector lose all that it has.
    pub(crate) fn drain(&mut self, id: &str) {
        let config = self.nodes.config();
        self.runtime.block_on(set_drained(&config, id, true)).unwrap();
    }

    /// What `dta-collector placement` prints, which is as its schema says.
    pub(crate) fn placement(&self, command: &str, arguments: &[&str]) -> Value {
        let schema = format!("dta-collector-placement-{command}");
        self.printed(&[&["placement", command], arguments].concat(), &schema)
    }

    /// Waits until `stores`, `sessions`, `stats` and `top` are about so many collectors: a command leaves out one that is
    /// slow to answer.
    pub(crate) fn check_commands(&self, collectors: usize) {
        let begin = Instant::now();
        while let Err(lack) = self.compare_commands(collectors) {
            assert!(begin.elapsed() < PATIENCE, "{lack}");
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// What is not yet as [`Ground::check_commands`] expects it.
    fn compare_commands(&self, collectors: usize) -> Result<(), String> {
        let stores = self.printed(&["stores"], "dta-collector-stores");
        let flows = stores.as_array().unwrap().iter().find(|store| store["name"] == "flows").unwrap();
        let used = flows["used"].as_u64().unwrap() as usize;
        // Of two of them, this would be less.
        if used <= self.truth.keys().count() * 9 / 10 {
            return Err(format!("not nearly all keys: {used}"));
        }
        let sessions = self.printed(&["sessions", "list"], "dta-collector-sessions");
        if sessions.as_array().unwrap().len() != collectors {
            return Err(format!("not {collectors} sessions: {sessions:#}"));
        }
        let stats = self.printed(&["stats"], "dta-collector-stats");
        let nics = stats["nodes"].as_array().unwrap().iter().filter(|node| node["stage"] == "nic").count();
        if nics != collectors {
            return Err(format!("not {collectors} NICs: {stats:#}"));
        }
        let top = self.printed(&["top", "--keys", "keys", "--store", "bytes"], "dta-collector-top");
        let flows = top["flows"].as_array().unwrap();
        // Each round counted each key once, wherever it was counted.
        let is_whole = |flow: &Value| flow["value"] == self.truth.rounds();
        match !flows.is_empty() && flows.iter().all(is_whole) {
            true => Ok(()),
            false => Err(format!("not {} for each key: {top:#}", self.truth.rounds())),
        }
    }

    /// What a command of `dta-collector` prints about the cluster, which is as its schema says.
    fn printed(&self, command: &[&str], schema: &str) -> Value {
        let output = Command::new(MANAGER)
            .arg("__collector")
            .args(command)
            .args(["-o", "json", "--cluster", &url(&self.nodes)])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let document =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{command:?}: {e}: {stderr}"));
        hold(schema, &document);
        document
    }

    /// Ends a collector in order.
    pub(crate) fn terminate(&mut self, id: &str) {
        let mut child = self.collectors.remove(id).unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Kills a collector, with -9. What it had is at `left` then; prints how long that took.
    pub(crate) fn kill(&mut self, id: &str, left: &[&str]) {
        self.until_all_go_by_the_newest();
        let buckets = self.view().expect("etcd answers").placement.buckets_of_copy(0, id);
        let begin = Instant::now();
        self.kill_alone(id);
        self.until_at(left);
        let placed = begin.elapsed();
        self.until_served();
        println!(
            "{id} was killed: its part was placed after {placed:.1?}, and served after {:.1?}",
            begin.elapsed()
        );
        self.truth.lost(buckets);
    }

    /// Reports until stores with epochs have had time to take the newest placement, too: until then, a collector may
    /// have keys of theirs that the placement gives to others.
    pub(crate) fn until_all_go_by_the_newest(&mut self) {
        let since = self.view().expect("etcd answers").placement.since;
        while moment::now() < since + 8000 {
            self.load(Duration::from_millis(500));
        }
    }

    /// The same without waiting for anything.
    pub(crate) fn kill_alone(&mut self, id: &str) {
        let mut child = self.collectors.remove(id).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops a collector where it is.
    pub(crate) fn freeze(&mut self, id: &str) {
        kill_process(Pid::from_child(&self.collectors[id]), Signal::STOP).unwrap();
    }

    /// Lets it go on.
    pub(crate) fn thaw(&mut self, id: &str) {
        kill_process(Pid::from_child(&self.collectors[id]), Signal::CONT).unwrap();
    }

    /// A collector, and the keys that it has.
    pub(crate) fn all_of(&mut self, id: &str) -> (RemoteCollector, Vec<Key>) {
        let view = self.view().expect("etcd answers");
        let buckets = view.placement.buckets_of_copy(0, id);
        let keys = self.truth.keys().filter(|key| buckets.contains(dta_proto::buckets::bucket_of_key(key)));
        let _context = self.runtime.enter();
        let client =
            RemoteCollector::connect_lazy(&ClientOptions::without_tls(view.grpc_address(id).unwrap()))
                .unwrap();
        (client, keys.collect())
    }

    /// Asserts that a collector gives no value of these keys.
    pub(crate) fn refuses(&mut self, collector: &RemoteCollector, keys: &[Key]) {
        let asked = async {
            tokio::time::timeout(PATIENCE, collector.key_write("flows", keys, Policy::First, 0)).await
        };
        let answer = self.runtime.block_on(asked).expect("it answers");
        assert!(answer.is_err(), "it answers for what moved: {answer:?}");
    }

    /// Reports values of a turn for these keys of `spread`, until all are there.
    pub(crate) fn write(&mut self, keys: &[Key], turn: u8) {
        let begin = Instant::now();
        loop {
            for some in keys.chunks(150) {
                for key in some {
                    let value = value_of(key, turn);
                    self.reporter
                        .report(SPREAD, DtaBody::KeyWrite { redundancy: 0, key: *key, value: &value })
                        .unwrap();
                }
                self.reporter.flush().unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            // Both copies: of a collector that had no session yet, one may be missing.
            let lack = match self.answers(keys, turn) {
                Ok(answers) => {
                    let are_there = answers.filter(|answer| answer["agreeing"] == 2).count();
                    if are_there == keys.len() {
                        return;
                    }
                    format!("{are_there} of {} values are there", keys.len())
                }
                Err(lack) => lack,
            };
            assert!(begin.elapsed() < PATIENCE, "{lack}");
        }
    }

    /// How many of these keys of `spread` have the value of a turn.
    pub(crate) fn right(&self, keys: &[Key], turn: u8) -> usize {
        self.answers(keys, turn).unwrap_or_else(|lack| panic!("{lack}")).count()
    }

    /// Asks until all of these keys of `spread` have the value of a turn: what a collector has that takes 2 s longer than
    /// another one is missing, or is of an earlier turn.
    pub(crate) fn until_right(&self, keys: &[Key], turn: u8) {
        let begin = Instant::now();
        loop {
            let right = self.answers(keys, turn).map(Iterator::count);
            if right == Ok(keys.len()) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "of {} keys, these are right: {right:?}", keys.len());
        }
    }

    /// The answers with the value of a turn, by `dta-collector query --cluster`; if keys have none, why.
    fn answers<'a>(
        &self,
        keys: &'a [Key],
        turn: u8,
    ) -> Result<impl Iterator<Item = Value> + use<'a>, String> {
        let own = [
            "__collector",
            "query",
            "key-write",
            "--store",
            "spread",
            "-o",
            "json",
            "--cluster",
            &url(&self.nodes),
        ];
        let keys_in_hex = keys.iter().map(|key| to_hex_digits(&key.0));
        let output = Command::new(MANAGER).args(own).args(keys_in_hex).output().unwrap();
        let answers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if answers.len() != keys.len() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let is_right =
            move |(key, answer): &(&Key, Value)| answer["value"] == to_hex_digits(&value_of(key, turn));
        Ok(keys.iter().zip(answers).filter(is_right).map(|(_, answer)| answer))
    }

    /// The cluster as etcd has it.
    pub(crate) fn view(&mut self) -> Option<View> {
        let config = self.nodes.config();
        let view = self.runtime.block_on(read(&config)).ok()?;
        self.last = view.clone();
        Some(view)
    }

    /// Reports, until everything is placed at these collectors.
    pub(crate) fn until_at(&mut self, ids: &[&str]) {
        self.until_placed(ids, Ground::round);
    }

    /// The same without reports.
    pub(crate) fn wait_until_at(&mut self, ids: &[&str]) {
        self.until_placed(ids, |_| std::thread::sleep(PAUSE));
    }

    fn until_placed(&mut self, ids: &[&str], meanwhile: impl Fn(&mut Ground)) {
        let begin = Instant::now();
        loop {
            meanwhile(self);
            let view = self.view();
            let copies = view.as_ref().map_or(&[][..], |view| &view.placement.keys);
            if copies.len() == ids.len().min(2) && copies.iter().all(|copy| copy.keys().eq(ids)) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "not at {ids:?}: {view:#?}");
        }
    }

    /// Reports all keys, again and again, and asks meanwhile.
    pub(crate) fn load(&mut self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.round();
        }
    }

    /// Reports each key once.
    fn round(&mut self) {
        let round = self.truth.begin_round();
        let (stores, counters) = match self.switched {
            Some(_) => (&[FLOWS, TIMED][..], &[BYTES][..]),
            None => (&[FLOWS, TIMED, SPREAD, LONG][..], &[BYTES, PACKETS][..]),
        };
        for (n, key) in (0..).zip(self.truth.keys()) {
            let value = value(n, round);
            for store in stores.iter().copied() {
                self.reporter.report(store, DtaBody::KeyWrite { redundancy: 0, key, value: &value }).unwrap();
            }
            for store in counters.iter().copied() {
                self.reporter.report(store, DtaBody::KeyIncrement { redundancy: 0, key, delta: 1 }).unwrap();
            }
            if n % self.burst == self.burst - 1 {
                self.reporter.flush().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        for list in 0..lists::COUNT {
            let entry = lists::entry(round);
            self.reporter.report(ROUNDS, DtaBody::Append { list, value: &entry }).unwrap();
        }
        if self.switched.is_none() {
            let key = self.truth.key_of(round);
            self.reporter.report(KEYS, DtaBody::Append { list: 0, value: &key.0 }).unwrap();
        }
        self.reporter.flush().unwrap();
        self.until_taken();
        self.truth.end_round();
        std::thread::sleep(PAUSE);
    }

    /// Waits until the software translator has taken all from its socket: while it is not scheduled, rounds would
    /// overflow it.
    fn until_taken(&self) {
        let begin = Instant::now();
        while netstat::socket_backlog(self.reports).unwrap().is_some_and(|bytes| bytes > 0) {
            assert!(begin.elapsed() < PATIENCE, "the translator takes no reports");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reports, until all keys have what was reported last.
    pub(crate) fn until_served(&mut self) {
        let begin = Instant::now();
        loop {
            self.round();
            let spread = self.spread();
            let lacks = self.runtime.block_on(self.truth.lacks(&spread, self.stores()));
            if lacks.is_empty() {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{lacks:#?}");
        }
    }

    /// The stores whose keys have what was reported last. A switch does not write those with copies at several
    /// collectors.
    fn stores(&self) -> &'static [&'static str] {
        if self.switched.is_some() { &["flows"] } else { &["flows", "spread"] }
    }

    /// Compares what all keys have now, and what counters say, once nothing is under way.
    pub(crate) fn check_now(&mut self, when: &str) {
        let counters = if self.switched.is_some() { &["bytes"][..] } else { &["bytes", "packets"] };
        self.check(when, self.stores(), counters);
    }

    /// Only what counters say that two collectors count.
    pub(crate) fn check_counted_twice(&mut self, when: &str) {
        self.check(when, &[], &["packets"]);
    }

    /// Only what keys have now of a store whose epoch began with another placement.
    pub(crate) fn check_long(&mut self, when: &str) {
        self.check(when, &["long"], &[]);
    }

    /// Only what all keys have now: what a counter has dies with a collector.
    pub(crate) fn check_values(&mut self, when: &str) {
        self.check(when, self.stores(), &[]);
    }

    fn check(&mut self, when: &str, stores: &[&str], counters: &[&str]) {
        let begin = Instant::now();
        loop {
            // On a loaded machine, collectors may have lost their leases and come back.
            let spread = self.spread();
            let truth = &self.truth;
            let lacks = self.runtime.block_on(async {
                let mut lacks = truth.lacks(&spread, stores).await;
                for store in counters {
                    lacks.extend(truth.lacks_counts(&spread, store).await);
                }
                lacks
            });
            if lacks.is_empty() {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{when}: {lacks:#?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Compares what all keys had in each epoch.
    pub(crate) fn check_epochs(&mut self) {
        let spread = self.spread();
        let truth = &self.truth;
        let (compared, lost) = self.runtime.block_on(truth.compare_epochs(&spread));
        assert!(compared > self.truth.keys().count(), "{compared} answers were compared");
        println!("{compared} answers about epochs: 0 wrong, 0 unexplained, {lost} died with a collector");
    }

    /// The collectors that there are, as etcd said last.
    fn spread(&mut self) -> Spread {
        let view = self.view().unwrap_or_else(|| self.last.clone());
        let _context = self.runtime.enter();
        let member = |address: String| {
            let client = RemoteCollector::connect_lazy(&ClientOptions::without_tls(&address)).unwrap();
            SpreadMember { address, ask: Arc::new(client) as Arc<dyn Ask> }
        };
        Spread::new(view.collectors.into_values().map(|collector| member(collector.address)).collect())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for child in self.collectors.values_mut().chain([&mut self.translator]) {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for file in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
                if file.file_name().to_string_lossy().ends_with(".log") {
                    let log = std::fs::read_to_string(file.path()).unwrap_or_default();
                    eprintln!("{}:\n{log}", file.file_name().display());
                }
            }
        }
    }
}

/// The URL of the cluster.
pub(crate) fn url(nodes: &Nodes) -> String {
    let nodes: Vec<String> =
        nodes.config().endpoints.iter().map(|node| node.replace("http://", "")).collect();
    format!("etcd://{}/dta", nodes.join(","))
}

/// A translator that reaches etcd through these, and where it takes reports.
fn translator(relays: &[Relay], log: &Path, listen: &str) -> (Child, SocketAddrV4) {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let source = format!("127.{}.{b}.{c}", 160 + (a & 31));
    let nodes: Vec<String> = relays.iter().map(|relay| relay.address().to_string()).collect();
    let cluster = format!("etcd://{}/dta", nodes.join(","));
    let arguments = ["run", "--ready", "--listen", listen, "--control", "127.0.0.1:0", "--metrics", "off"];
    let own = ["--source", &source, "--source-port", "0", "--cluster", &cluster];
    let (child, ready) = daemon("__translator", &[&arguments[..], &own].concat(), log.into());
    (child, ready["listen"].as_str().unwrap().parse().unwrap())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Starts the first collectors.
fn first(
    nodes: &Nodes,
    folder: &tempfile::TempDir,
    ids: &[&str],
    wiring: impl Fn(&str) -> Wiring,
) -> BTreeMap<String, Child> {
    let start = |id: &&str| ((*id).to_owned(), collector(nodes, folder.path().into(), id, &wiring(id)));
    ids.iter().map(start).collect()
}

fn collector(nodes: &Nodes, folder: PathBuf, id: &str, wiring: &Wiring) -> Child {
    let config = folder.join(format!("{id}.toml"));
    let endpoints = nodes.config().endpoints;
    let nic = match wiring {
        Wiring::Socket => "port = 0".to_owned(),
        Wiring::Link { address, link } => format!("address = '{address}'\nlink = '{link}'"),
    };
    let lists = match wiring {
        Wiring::Socket => format!("{ROUND_LISTS}batch_len = 16\n{SOFTWARE_STORES}"),
        Wiring::Link { .. } => format!("{ROUND_LISTS}batch_len = 32\n"),
    };
    let text = format!(
        "[history]\ndirectory = {:?}\n[soft]\n{nic}\n[cluster.etcd]\nendpoints = {endpoints:?}\nlease_seconds = {}\n{STORES}{lists}",
        folder.join(format!("history-{id}")),
        LEASE.as_secs()
    );
    std::fs::write(&config, text).unwrap();
    let memory = folder.join(id).display().to_string();
    let config = config.display().to_string();
    let arguments = ["serve", "--config", &config, "--listen", "127.0.0.1:0"];
    let own = ["--memory", &memory, "--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0", "--id", id];
    let (child, ready) =
        daemon("__collector", &[&arguments[..], &own].concat(), folder.join(format!("{id}.log")));
    std::fs::write(folder.join(format!("{id}.page")), ready["web"].as_str().unwrap()).unwrap();
    child
}

/// Starts a program, and waits until it is ready.
pub(crate) fn daemon(role: &str, arguments: &[&str], log: PathBuf) -> (Child, Value) {
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new("setpriv");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DTA_")) {
        command.env_remove(name);
    }
    let command = command.args(["--pdeathsig", "KILL", MANAGER, role]).args(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{role} said {line:?}: {e}"));
    (child, ready)
}

fn value_of(key: &Key, turn: u8) -> [u8; 12] {
    let mut value = [turn; 12];
    value[..4].copy_from_slice(&key.0[12..]);
    value
}
