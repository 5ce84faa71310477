//! A collector and a translator that takes Telemetry Reports of INT or flow exports, as processes of a test.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dta_link::netstat;
use dta_proto::control::{NodeStatistics, TailRequest};
use dta_proto::flow_record::FlowRecord;
use dta_proto::telemetry::TelemetryEntry;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions, translator};

use super::daemon::{Daemon, counter};
use super::loopback::own_address;
use super::{captures, manager};

/// How long anything may take on a machine that has much to do.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits while much is in the socket at this address: it would overflow while the translator is not scheduled.
pub fn until_room(to: SocketAddrV4) {
    // The kernel lists sockets in pieces: one may be left out while others come and go.
    let mut unlisted = 0;
    loop {
        match netstat::socket_backlog(to).unwrap() {
            Some(waiting) if waiting <= 1 << 16 => return,
            Some(_) => unlisted = 0,
            None => unlisted += 1,
        }
        assert!(unlisted < 100, "nothing listens at {to}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is set for both.
#[derive(Default)]
pub struct Setup<'a> {
    /// A listener for each of these dialects.
    pub dialects: &'a [&'a str],
    /// Whether there is a listener for flow exports.
    pub flows: bool,
    /// The collector's file of names; empty: the usual one.
    pub names: &'a str,
    /// More tables of the collector's configuration.
    pub collector: &'a str,
    /// Whether a collector that is started again, and its NIC, have the ports that they had.
    pub same_ports: bool,
    /// Where the translator takes reports; `None`: at a port of loopback.
    pub listen: Option<&'a str>,
    /// More keys of `[translator]`, and tables below it.
    pub translator: &'a str,
    /// More arguments of the translator.
    pub arguments: &'a [&'a str],
}

/// Both, on ports of their own.
pub struct IntBed {
    /// `None` while it is stopped.
    pub collector: Option<Daemon>,
    pub translator: Daemon,
    pub client: RemoteCollector,
    pub control: translator::RemoteTranslator,
    /// Of the configurations, the memory, and what a test puts there.
    pub folder: tempfile::TempDir,
}

impl IntBed {
    pub async fn start(setup: &Setup<'_>) -> IntBed {
        Self::start_in(tempfile::tempdir().unwrap(), setup).await
    }

    /// As [`IntBed::start`], for configurations that name files of the folder.
    pub async fn start_in(folder: tempfile::TempDir, setup: &Setup<'_>) -> IntBed {
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (host, [listen, nic]) = if setup.same_ports {
            let host = own_address();
            let listen = TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port();
            let nic = UdpSocket::bind((host, 0)).unwrap().local_addr().unwrap().port();
            (host, [listen, nic])
        } else {
            (Ipv4Addr::LOCALHOST, [0; 2])
        };
        let names =
            if setup.names.is_empty() { String::new() } else { format!("names = \"{}\"\n", setup.names) };
        let file = format!(
            "[collector]\nname = \"int\"\nlisten = \"{host}:{listen}\"\nmemory = \"{}\"\n{names}\
             [soft]\naddress = \"{host}\"\nport = {nic}\n{}\n",
            path("memory"),
            setup.collector
        );
        std::fs::write(path("collector.toml"), file).unwrap();
        let collector = start_collector(folder.path());
        let file = format!(
            "[translator]\nname = \"int\"\nlisten = \"{}\"\ncontrol = \"127.0.0.1:0\"\n\
             collector = \"http://{}\"\nsource = \"{}\"\nsource_port = 0\n{}\n",
            setup.listen.unwrap_or("127.0.0.1:0"),
            collector.said("listen"),
            source(),
            setup.translator
        );
        std::fs::write(path("translator.toml"), file).unwrap();
        let listener = |dialect: &&str| format!("udp://127.0.0.1:0?dialect={dialect}");
        let int = setup.dialects.iter().map(listener).collect::<Vec<_>>().join(",");
        let config = path("translator.toml");
        let mut arguments = vec!["__translator", "run", "--ready", "--config", &config];
        if !setup.dialects.is_empty() {
            arguments.extend(["--int", &int]);
        }
        if setup.flows {
            arguments.extend(["--flows", "udp://127.0.0.1:0"]);
        }
        arguments.extend(setup.arguments);
        let translator = Daemon::start(&arguments);
        let client = client_of(&collector);
        let control = translator::RemoteTranslator::connect_lazy(translator.said("control")).unwrap();
        IntBed { collector: Some(collector), translator, client, control, folder }
    }

    /// The gRPC address of the collector that runs.
    pub fn address(&self) -> &str {
        self.collector.as_ref().expect("it runs").said("listen")
    }

    /// Ends the collector by force, and starts it again.
    pub fn restart_collector(&mut self) {
        self.collector = None;
        let collector = start_collector(self.folder.path());
        self.client = client_of(&collector);
        self.collector = Some(collector);
    }

    /// Sends a capture to a listener, and returns the output.
    pub fn replay(&self, capture: &Path, listener: usize, more: &[&str]) -> String {
        let to = self.translator.ready["int"][listener].as_str().unwrap();
        // INTCollector's generator and SD-Fabric's switches.
        let arguments = ["replay", capture.to_str().unwrap(), "--to", to, "--port", "54321,32766"];
        let output = manager(&[&arguments[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits for these counters, and returns them. What the translator holds is sent at once.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Counted) -> bool) -> Counted {
        self.wait(true, what, done).await
    }

    /// As [`IntBed::until`]; what the translator holds leaves when its time has come.
    pub async fn until_unasked(&mut self, what: &str, done: impl Fn(&Counted) -> bool) -> Counted {
        self.wait(false, what, done).await
    }

    async fn wait(&mut self, flush: bool, what: &str, done: impl Fn(&Counted) -> bool) -> Counted {
        let begun = Instant::now();
        loop {
            if flush {
                self.control.flush_reports().await.unwrap();
            }
            let translator = self.control.statistics().await.unwrap();
            let counted = Counted { translator, collector: self.client.statistics().await.unwrap() };
            if done(&counted) {
                return counted;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{what}: {:#?}\n{:#?}",
                counted.translator,
                counted.collector
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// All entries of a list of events, and how many batches between them are missing or damaged.
    pub async fn entries(&self, list: u32) -> (Vec<TelemetryEntry>, u64) {
        let request = TailRequest {
            store: "int-events".into(),
            list,
            until_caught_up: true,
            from_sequence: 1,
            ..TailRequest::default()
        };
        let mut stream = self.client.tail_list(request).await.unwrap();
        let (mut entries, mut lost) = (Vec::new(), 0);
        while let Some(message) = stream.next_message().await.unwrap() {
            assert_eq!(message.overwritten_batches, 0, "the ring is too small for this test");
            lost += message.missing_batches + message.damaged_batches;
            entries.extend(message.entries.iter().map(|entry| TelemetryEntry::parse_bytes(entry).unwrap()));
        }
        (entries, lost)
    }

    /// All records of a list of flow records, in its order.
    pub async fn flow_records(&self, list: u32) -> Vec<FlowRecord> {
        let request = TailRequest {
            store: "flow-records".into(),
            list,
            until_caught_up: true,
            from_sequence: 1,
            ..TailRequest::default()
        };
        let mut stream = self.client.tail_list(request).await.unwrap();
        let mut records = Vec::new();
        while let Some(message) = stream.next_message().await.unwrap() {
            let lost = [message.overwritten_batches, message.missing_batches, message.damaged_batches];
            assert_eq!(lost, [0; 3]);
            let entries = message.entries.iter().map(|entry| entry.as_slice().try_into().unwrap());
            records.extend(entries.map(FlowRecord::from_entry));
        }
        // The rest of a batch that was not full is empty.
        records.retain(|record| *record != FlowRecord::EMPTY);
        records
    }
}

/// What translator and collector count.
pub struct Counted {
    translator: Vec<NodeStatistics>,
    collector: Vec<NodeStatistics>,
}

impl Counted {
    /// The translator's own.
    pub fn own(&self, name: &str) -> u64 {
        counter(&self.translator, "translator/", name)
    }

    /// All of the translator's own by their names.
    pub fn all_own(&self) -> BTreeMap<String, u64> {
        let node =
            self.translator.iter().find(|node| node.node.starts_with("translator/")).expect("it counts");
        node.counters.iter().map(|counter| (counter.name.clone(), counter.value)).collect()
    }

    /// Of the translator, as the collector has it.
    pub fn reported(&self, name: &str) -> u64 {
        counter(&self.collector, "translator/", name)
    }

    /// Of the collector itself.
    pub fn collector(&self, name: &str) -> u64 {
        counter(&self.collector, "collector", name)
    }

    /// Of the NIC.
    pub fn nic(&self, name: &str) -> u64 {
        counter(&self.collector, "nic/", name)
    }

    /// Whether this many Telemetry Reports became primitives, and nothing waits in the translator.
    pub fn is_taken(&self, reports: u64) -> bool {
        self.own("int.reports") == reports
            && self.own("int.counts_held") == 0
            && self.own("received") >= self.own("int.primitives")
            && self.own("held") == 0
    }

    /// Whether the NIC has executed what they became, too.
    pub fn is_in_memory(&self, reports: u64) -> bool {
        self.is_taken(reports) && self.is_executed()
    }

    /// Whether the collector has the counters of all that the translator has received and sent.
    pub fn is_reported(&self) -> bool {
        ["received", "emitted", "operations"].iter().all(|name| self.reported(name) == self.own(name))
    }

    /// Whether nothing is on its way from the translator into memory.
    pub fn is_executed(&self) -> bool {
        let executed = |what: &str| counter(&self.collector, "nic/", &format!("executed.{what}"));
        let sent = self.own("operations") + self.own("repeated_frames");
        executed("write") + executed("fetch_add") == sent
    }
}

/// A capture of Telemetry Reports; `None` where there is none.
pub fn int_capture(file: &str) -> Option<PathBuf> {
    Some(captures(file)?.join("int").join(file))
}

fn start_collector(folder: &Path) -> Daemon {
    let config = folder.join("collector.toml").display().to_string();
    Daemon::start(&["__collector", "serve", "--config", &config])
}

fn client_of(collector: &Daemon) -> RemoteCollector {
    let plain = ClientOptions::without_tls(collector.said("listen"));
    RemoteCollector::connect_lazy(&ClientOptions { call: Some(PATIENCE), ..plain }).unwrap()
}

/// An address of this bed's own, so that tests run side by side.
fn source() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = (std::process::id() & 0x3fff) << 6 | NEXT.fetch_add(1, Ordering::Relaxed) & 63;
    let [_, a, b, c] = number.to_be_bytes();
    format!("127.{}.{b}.{c}", 192 + a)
}
