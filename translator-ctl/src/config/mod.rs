//! Configuration: one TOML file, overridden by flags and `DTA_*` variables.

mod flows;
mod int;
mod listener;
pub mod reporter;
pub mod settings;
mod switch;

pub use flows::{FlowListener, FlowListenerError, FlowTable};
pub use int::{
    IntListener, IntListenerError, IntStores, IntTable, MetricTable, MetricWritePolicy, Timestamps,
};
pub use listener::{ListenAddress, XdpAddress};

/// The commented configuration that `dta-translator config --example` prints. Lines that begin with
/// `#!` are settings that have no default.
pub const EXAMPLE: &str = include_str!("example.toml");

pub use switch::{P4, SWITCH_TYPES, SessionOverrides, Software, Switch, SwitchRole};

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::SystemTime;

pub use dta_files::config_file::ConfigError;
use dta_files::config_file::{self, KeyPositions, strip_indices};
use serde::{Deserialize, Serialize};

use crate::collectors::{BucketsMisfit, Collectors};
use crate::control_address::ControlAddress;
use crate::program::{FrameSource, TargetProgramSettings};
use dta_dataplane::EngineLimits;
use dta_dataplane::requester::Timing;
use dta_dataplane::workers::MAX_WORKERS;
use dta_link::shared_ring::RingUse;
use dta_link::{SocketKind, Wire};
use dta_proto::list_range::ListRange;
use dta_proto::name;
use dta_proto::program::{Endpoint, MAX_COLLECTORS, Mac, Primitive, ReportService};
use dta_proto::queue_pair::has_24_bits;
use dta_rpc::transport::tls;
use dta_rpc::{ClientOptions, ClientTls, ServerKind};
use dta_telemetry::reports::Rules;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub translator: TranslatorConfig,
    /// Switches that `setup` and `plan` program, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub switch: BTreeMap<String, Switch>,
}

dta_files::config_table! {
    /// Table `[translator]`.
    pub struct TranslatorConfig {
        /// Name of the session in the collector.
        pub name: String = "translator".into();
        /// UDP address and port for reports, or an interface and a port.
        pub listen: ListenAddress = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), dta_proto::wire::dta::PORT).into();
        /// Threads that receive reports and send frames, each with its own session, queue pairs and store state:
        /// `docs/decisions/workers.md`.
        pub workers: usize = 1;
        /// The collectors. Each has its own session, all under the same name. The first has index 0.
        pub collector: Collectors = Collectors::from_addresses(["http://127.0.0.1:40050"]);
        /// The cluster whose collectors to use, instead of [`TranslatorConfig::collector`]: etcd says which collectors
        /// there are and what each of them has.
        pub cluster: Option<dta_cluster::Config> = None;
        /// Where this translator's own gRPC service (statistics, flush, program) listens: a loopback port, or
        /// `unix:PATH`. With [`TranslatorConfig::tls`], programs, which contain rkeys, are accepted only on a `unix:`
        /// socket.
        pub control: ControlAddress = ControlAddress::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 40051));
        /// Where to serve metrics over HTTP: `auto` is 127.0.0.1:40053 if that port is free.
        pub metrics: dta_export::metrics::Address = dta_export::metrics::Address::Auto;
        /// Source address of RoCEv2 frames, to which answers go.
        #[serde(deserialize_with = "dta_files::host::serde::deserialize_ip")]
        pub source: IpAddr = Ipv4Addr::new(127, 0, 0, 2).into();
        pub source_port: u16 = dta_proto::wire::roce::PORT;
        /// Network interface for whole frames, by packet socket (CAP_NET_RAW) or AF_XDP (CAP_BPF and
        /// CAP_NET_ADMIN too); without it, a UDP socket. `source` is then the program's own address, for which it
        /// answers ARP or neighbour discovery: the interface should not have it.
        pub link: Option<Wire> = None;
        /// RDMA device that sends: operations are posted to it, and it makes the frames, of its own address. `source` is
        /// then the one of its addresses to use, and loopback means any of its family. Not with `link` or in reference mode.
        pub device: Option<String> = None;
        /// Whether frames to a collector on this host use a shared-memory ring if the collector offers one. Not
        /// with `link`.
        pub ring: RingUse = RingUse::Auto;
        /// Whether frames leave, and answers are taken, in runs. Not with `link` or in reference mode.
        pub runs: bool = true;
        /// Ethernet address of this side, for switches; with `link`, that of the interface.
        pub mac: Option<String> = None;
        /// IPv4 TOS byte of frames.
        pub tos: u8 = 0;
        /// Queue pair numbers at this side, for writes and for atomics; 24 bits. For the collector with index n,
        /// both are 2 n higher.
        pub queue_pairs: [u32; 2] = [0x11, 0x12];
        /// Seconds until a session expires without renewal.
        pub lease_seconds: u32 = 30;
        /// Stores to use at the only collector, by name; empty = all. Each of several has its own setting.
        pub stores: Vec<String> = Vec::new();
        /// Append lists to use at the only collector; empty = all lists of these stores.
        pub lists: Vec<ListRange> = Vec::new();
        /// Restricts it to what a switch can do, so that all targets emit the same bytes:
        /// `docs/reference-mode.md`.
        pub reference: bool = false;
        /// How long reports may be held.
        pub flush: FlushTimes = FlushTimes::default();
        /// Stores of version-0 reports, by primitive. The default is the only store of its kind at the first
        /// collector.
        pub version0: BTreeMap<Primitive, String> = BTreeMap::new();
        /// Bits of reporters in sketch-merge stores; others get free bits as they appear.
        pub sketch_reporters: Vec<SketchReporter> = Vec::new();
        /// Reporters to accept, each from its own address. Empty = accept everybody.
        pub reporters: Vec<ListedReporter> = Vec::new();
        /// NACKs per second to one version-0 source, 0 = none. Anyone who can forge an address can direct NACKs
        /// to it.
        pub version0_nacks: u32 = 0;
        pub limits: LimitsTable = LimitsTable::default();
        pub rc: Rc = Rc::default();
        pub int: IntTable = IntTable::default();
        /// Flow exports: NetFlow, IPFIX and sFlow.
        pub flows: FlowTable = FlowTable::default();
        /// Files for collectors at `https://`.
        pub tls: Option<ClientTls> = None;
    }
}

dta_files::config_table! {
    /// Table `[translator.flush]`: milliseconds, 0 = no limit.
    #[derive(Eq)]
    pub struct FlushTimes {
        /// Append batches that are not full.
        pub append_ms: u32 = 100;
        pub postcarding_ms: u32 = 100;
        pub sketch_merge_ms: u32 = 200;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SketchReporter {
    /// Name of the sketch-merge store.
    pub store: String,
    pub reporter: u16,
    /// Bit, 0 to 31.
    pub bit: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedReporter {
    pub id: u16,
    /// Address that its reports come from. Version-0 reports, which have no id, are accepted from all listed
    /// addresses.
    #[serde(deserialize_with = "dta_files::host::serde::deserialize_ipv4")]
    pub address: Ipv4Addr,
}

dta_files::config_table! {
    /// Table `[translator.limits]`.
    #[derive(Eq)]
    pub struct LimitsTable {
        pub reporters: usize = EngineLimits::default().reporters, in 1..=65_535;
        /// Rows of the cache of each postcarding store.
        pub postcard_rows: usize = EngineLimits::default().postcard_rows, in 4..=1 << 24;
        /// Columns over all epochs of a sketch-merge store.
        pub sketch_columns: u64 = EngineLimits::default().sketch_columns;
    }
}

dta_files::config_table! {
    /// Table `[translator.rc]`.
    #[derive(Eq)]
    pub struct Rc {
        /// Most unacknowledged frames, 64 to 4096, a power of two.
        pub window: u32 = Timing::default().window;
        /// Most operations kept until acknowledged, waiting ones included; any more are dropped. At least a
        /// window.
        pub queue: usize = Timing::default().queue, in 1..=1 << 20;
        /// Milliseconds until a retransmission, as long as no round trip has been measured.
        pub silence_ms: u64 = Timing::default().silence / 1_000_000, in 1..=10_000;
        /// Retransmissions without progress until the queue pair is given up.
        pub tries: u32 = Timing::default().tries, in 1..=64;
    }
}

impl Config {
    /// Reads a file and the positions of its keys. Values are checked by [`Config::check_values`], because flags may
    /// still change them.
    pub fn load(path: &Path) -> Result<(Config, KeyPositions), ConfigError> {
        Config::parse(&config_file::read(path, "the configuration")?, path)
    }

    /// As [`Config::load`], from text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<(Config, KeyPositions), ConfigError> {
        // First, because an unknown type has unknown fields too.
        let (table, places) = config_file::parse_config::<toml::Table>(text, path)?;
        for (name, switch) in table.get("switch").and_then(toml::Value::as_table).into_iter().flatten() {
            if let Some(kind) = switch.get("type").and_then(toml::Value::as_str)
                && !SWITCH_TYPES.contains(&kind)
            {
                let types = SWITCH_TYPES.join(", ");
                let unknown = format!("switch {name} is of type {kind:?}, but this build programs: {types}");
                return Err(places.locate_error(ConfigError::new(format!("switch.{name}.type"), unknown)));
            }
        }
        Ok(config_file::parse_config(text, path)?)
    }

    /// Checks every value; the error names the first invalid one.
    pub fn check_values(&self) -> Result<(), ConfigError> {
        self.translator.check_values()?;
        self.check_switches()
    }
}

/// Checks that ranges of lists are not empty and do not overlap; `table` has them.
fn check_lists(table: &str, lists: &[ListRange]) -> Result<(), ConfigError> {
    // Earlier ranges, which do not overlap each other: only the neighbours can collide.
    let mut before: BTreeMap<(&str, u32), &ListRange> = BTreeMap::new();
    for (index, b) in lists.iter().enumerate() {
        if b.count == 0 {
            let must = "at least 1; leave the range out to get all lists";
            return Err(ConfigError::invalid_value(format!("{table}.lists[{index}].count"), 0, must));
        }
        let at = (b.store.as_str(), b.first);
        let neighbours = [before.range(..=at).next_back(), before.range(at..).next()];
        if let Some((_, a)) = neighbours.into_iter().flatten().find(|(_, a)| a.overlaps(b)) {
            let (store, list, plain) = (&b.store, a.first.max(b.first), strip_indices(table));
            let twice =
                format!("{plain}.lists names list {list} of store {store:?} twice; ranges must not overlap");
            return Err(ConfigError::new(format!("{table}.lists[{index}]"), twice));
        }
        before.insert(at, b);
    }
    Ok(())
}

impl TranslatorConfig {
    /// The rules for Telemetry Reports and flow records.
    pub fn telemetry_rules(&self) -> Result<Rules, ConfigError> {
        self.int.telemetry_rules()
    }

    pub(crate) fn client_options(&self, collector: u8) -> ClientOptions {
        ClientOptions::new(self.collector.address_at(collector), self.tls.clone())
    }

    /// What is wrong with the TLS files for opening sessions, in sentences. None of it prevents the start.
    pub(crate) fn client_tls_warnings(&self) -> Vec<String> {
        let files = self.tls.as_ref();
        files.map_or_else(Vec::new, |files| tls::client_warnings(files, SystemTime::now()))
    }

    /// Stores and append lists to use at a collector; empty = all.
    pub(crate) fn wanted_of(&self, collector: u8) -> (&[String], &[ListRange]) {
        match self.collector.get(collector) {
            Some(c) if self.stores.is_empty() && self.lists.is_empty() => (&c.stores, &c.lists),
            _ => (&self.stores, &self.lists),
        }
    }

    /// All queue pair numbers at this side.
    fn all_queue_pairs(&self) -> impl Iterator<Item = u32> {
        self.collector.indices().flat_map(|index| self.queue_pairs_of(index))
    }

    /// The same translator as seen by worker `worker`: with its own session, queue pair numbers and answer
    /// port, which the kernel chooses for all but the first.
    pub fn of_worker(&self, worker: usize) -> TranslatorConfig {
        let own = TranslatorConfig { name: name::of_worker(&self.name, worker), ..self.clone() };
        let collectors = if self.cluster.is_some() { MAX_COLLECTORS.into() } else { self.collector.count() };
        let further = u32::try_from(2 * worker * collectors).unwrap_or(u32::MAX);
        match worker {
            0 => own,
            _ => TranslatorConfig {
                queue_pairs: self.queue_pairs.map(|qpn| qpn.saturating_add(further)),
                source_port: 0,
                ..own
            },
        }
    }

    /// Checks that several workers can do what is configured.
    fn check_workers(&self) -> Result<(), ConfigError> {
        let fail = |key: &str, value: String, must: &str| {
            Err(ConfigError::invalid_value(format!("translator.{key}"), value, must))
        };
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return fail("workers", self.workers.to_string(), "1 to 16");
        }
        if self.workers == 1 {
            return Ok(());
        }
        let workers = self.workers.to_string();
        if self.reference {
            return fail("workers", workers, "1 with `reference`: a switch has a single order of frames");
        }
        if self.link.is_some() {
            return fail(
                "workers",
                workers,
                "1 with `link`: one thread receives an interface's whole frames",
            );
        }
        if self.int.listen.iter().any(|listener| listener.listen.xdp_address().is_some()) {
            return fail(
                "workers",
                workers,
                "1 with listeners for INT at an interface (`xdp:`): one worker has all INT, and each would have a share of the queues",
            );
        }
        let last = self.of_worker(self.workers - 1);
        if !name::is_session_of_worker(&last.name) {
            return fail("name", format!("{:?}", self.name), "3 characters shorter than without workers");
        }
        if !last.all_queue_pairs().all(has_24_bits) {
            let must = "two numbers that stay within 24 bits for the last worker: each worker uses 2 more per collector";
            return fail("queue_pairs", format!("{:?}", self.queue_pairs), must);
        }
        Ok(())
    }

    /// Checks that listeners at an interface have ports of their own, and the interface for themselves.
    fn check_interfaces(&self) -> Result<(), ConfigError> {
        let of_int = self.int.listen.iter().map(|listener| ("int.listen", &listener.listen));
        let of_flows = self.flows.listen.iter().map(|listener| ("flows.listen", &listener.0));
        let all = std::iter::once(("listen", &self.listen)).chain(of_int).chain(of_flows);
        let of_events: Vec<_> = self.int.listen.iter().filter(|listener| listener.drops_unchanged).collect();
        if let Some(listener) = of_events.first() {
            let interface =
                |listener: &IntListener| listener.listen.xdp_address().map(|xdp| xdp.interface.clone());
            if of_events.iter().any(|other| interface(other) != interface(listener)) {
                let must = "such that listeners with events=kernel are at one interface";
                return Err(ConfigError::invalid_value("translator.int.listen", listener.to_string(), must));
            }
            if self.int.per_packet {
                let must =
                    "false with events=kernel: of dropped reports, the lengths of packets are not counted";
                return Err(ConfigError::invalid_value("translator.int.per_packet", "true", must));
            }
        }
        let mut before: Vec<&XdpAddress> = Vec::new();
        for (key, address) in all.filter_map(|(key, listen)| Some((key, listen.xdp_address()?))) {
            let fail = |must: &str| {
                Err(ConfigError::invalid_value(format!("translator.{key}"), address.to_string(), must))
            };
            if address.port != 0 && before.contains(&address) {
                return fail("an interface and a port that no other listener has");
            }
            if let Some(wire) = &self.link
                && wire.interface == address.interface
                && wire.kind != SocketKind::Packet
            {
                let must = format!(
                    "an interface other than that of `link`: two AF_XDP sockets cannot share one; send frames by packet:{}",
                    wire.interface
                );
                return fail(&must);
            }
            before.push(address);
        }
        Ok(())
    }

    /// Queue pair numbers at this side for a collector: for writes and for atomics.
    pub fn queue_pairs_of(&self, collector: u8) -> [u32; 2] {
        self.queue_pairs.map(|qpn| qpn.saturating_add(2 * u32::from(collector)))
    }

    fn check_collectors(&self) -> Result<(), ConfigError> {
        let fail = |key: &str, value: String, must: &str| Err(ConfigError::invalid_value(key, value, must));
        let count = self.collector.count();
        if !(1..=usize::from(MAX_COLLECTORS)).contains(&count) {
            let must = format!("a list of 1 to {MAX_COLLECTORS}");
            return fail("translator.collector", format!("a list of {count}"), &must);
        }
        for (index, collector) in self.collector.indices().zip(self.collector.iter()) {
            let address = &collector.address;
            if address.starts_with("https://") && self.tls.is_none() {
                return fail("translator.tls", "absent".into(), "given for a collector at https://");
            }
            if self.client_options(index).check_address(ServerKind::Collector).is_err() {
                return fail(
                    "translator.collector",
                    format!("{address:?}"),
                    "HOST:PORT, http://HOST:PORT or, with [translator.tls], https://HOST:PORT",
                );
            }
            if self.collector.iter().take(index.into()).any(|other| other.address == *address) {
                return fail("translator.collector", format!("{address:?} twice"), "each address once");
            }
            check_lists(&format!("translator.collector[{index}]"), &collector.lists)?;
        }
        let of = |index: u8| self.collector.get(index).and_then(|c| c.buckets).unwrap_or_default();
        let key = |index: u8| format!("translator.collector[{index}].buckets");
        let written = |index: u8| serde_json::json!(of(index));
        let of_copy = |copy: usize| if copy == 0 { String::new() } else { format!("copy {copy} of ") };
        match self.collector.check_buckets() {
            Ok(()) => Ok(()),
            Err(BucketsMisfit::Twice { index, copy, bucket, other }) => fail(
                &key(index),
                format!(
                    "{}, and the collector at {} has {}bucket {bucket}, too",
                    written(index),
                    self.collector.address_at(other),
                    of_copy(copy)
                ),
                "such that each bucket is at one collector",
            ),
            Err(BucketsMisfit::Together { index, bucket }) => fail(
                &key(index),
                format!("{}, which has bucket {bucket} twice", written(index)),
                "such that each copy of a bucket is at a collector of its own",
            ),
            Err(BucketsMisfit::Nowhere { copy, buckets }) => fail(
                "translator.collector",
                format!("without {}buckets {buckets}", of_copy(copy)),
                "such that each bucket is at one collector, where any has `buckets`",
            ),
        }
    }

    /// Checks that the other settings of a table (perhaps a switch's) fit its collectors.
    fn check_beside_collectors(&self, table: &str) -> Result<(), ConfigError> {
        let fail = |key: &str, value: String, must: &str| {
            Err(ConfigError::invalid_value(format!("{table}.{key}"), value, must))
        };
        let count = self.collector.count();
        let own = self.collector.iter().any(|c| !c.stores.is_empty() || !c.lists.is_empty());
        if (count > 1 || own) && !(self.stores.is_empty() && self.lists.is_empty()) {
            let (key, value) = match &self.stores[..] {
                [] => ("lists", "there".into()),
                stores => ("stores", format!("{stores:?}")),
            };
            return fail(
                key,
                value,
                "left out if each collector has its own table: name its stores and lists there ([[translator.collector]] with \
                 `address`, `stores` and `lists`)",
            );
        }
        let mut numbers = HashSet::new();
        let mut good = |qpn: u32| (2..).contains(&qpn) && has_24_bits(qpn) && numbers.insert(qpn);
        if !self.all_queue_pairs().all(&mut good) {
            let must = match count {
                1 => "two different numbers from 2 to 16777215",
                _ => {
                    "two numbers for the first collector such that all remain different and from 2 to \
                    16777215 when both increase by 2 for each further collector, such as [17, 18]"
                }
            };
            return fail("queue_pairs", format!("{:?}", self.queue_pairs), must);
        }
        Ok(())
    }

    fn check_values(&self) -> Result<(), ConfigError> {
        let fail = |key: &str, value: String, must: &str| Err(ConfigError::invalid_value(key, value, must));
        if !name::is_session(&self.name) {
            return fail("translator.name", format!("{:?}", self.name), name::SESSION);
        }
        self.check_session("translator")?;
        if self.link.is_some() && self.source.is_loopback() {
            return fail(
                "translator.source",
                self.source.to_string(),
                "with a link, an address of the collector's network that no host has (--source)",
            );
        }
        if self.link.is_some() && self.source_port == 0 {
            return fail(
                "translator.source_port",
                "0".into(),
                "a port if there is a link: no kernel chooses one there",
            );
        }
        if let Some(device) = &self.device {
            let must = if device.is_empty() {
                "the name of an RDMA device"
            } else if self.link.is_some() {
                "left out with `link`: an RDMA device sends without it"
            } else if self.reference {
                "left out with `reference`: an RDMA device makes its frames by itself, not byte for byte as a switch does"
            } else {
                ""
            };
            if !must.is_empty() {
                return fail("translator.device", format!("{device:?}"), must);
            }
        }
        if matches!(&self.control, ControlAddress::Tcp(address) if !address.ip().is_loopback()) {
            return fail(
                "translator.control",
                self.control.to_string(),
                "a loopback address or unix:PATH: anyone who reaches it can redirect frames with the collector's rkeys",
            );
        }
        self.check_collectors()?;
        self.check_workers()?;
        self.check_interfaces()?;
        if self.lease_seconds < 3 {
            return fail("translator.lease_seconds", self.lease_seconds.to_string(), "at least 3");
        }
        let (limits, rc) = (&self.limits, &self.rc);
        if !rc.window.is_power_of_two() || !(64..=4096).contains(&rc.window) {
            return fail("translator.rc.window", rc.window.to_string(), "a power of two from 64 to 4096");
        }
        ConfigError::check_numbers("translator.limits", limits.bounded_numbers())?;
        ConfigError::check_numbers("translator.rc", rc.bounded_numbers())?;
        ConfigError::check_range("translator.version0_nacks", self.version0_nacks, 0..=1_000_000)?;
        self.flows.check_ranges()?;
        self.telemetry_rules()?;
        let listeners = self.int.listen.len() + self.flows.listen.len();
        if listeners > crate::packets::MOST_LISTENERS {
            return fail(
                "translator.int.listen",
                format!("a list of {listeners} with those of `flows.listen`"),
                "at most 16 listeners",
            );
        }
        for (index, b) in self.sketch_reporters.iter().enumerate() {
            let SketchReporter { store, reporter, bit } = b;
            let key = |field| format!("translator.sketch_reporters[{index}].{field}");
            ConfigError::check_range(key("bit"), *bit, 0..=31)?;
            for a in self.sketch_reporters[..index].iter().filter(|a| a.store == *store) {
                if a.reporter == *reporter {
                    let twice = format!(
                        "translator.sketch_reporters names reporter {reporter} of store {store:?} twice; it can have one bit"
                    );
                    return Err(ConfigError::new(key("reporter"), twice));
                }
                // The second would count as a repeat of the first.
                if a.bit == *bit {
                    let twice = format!(
                        "translator.sketch_reporters gives bit {bit} of store {store:?} to reporters {} and {reporter}; \
                         each needs its own bit",
                        a.reporter
                    );
                    return Err(ConfigError::new(key("bit"), twice));
                }
            }
        }
        let mut listed = HashSet::new();
        if let Some((index, twice)) = self.reporters.iter().enumerate().find(|(_, r)| !listed.insert(r.id)) {
            let reason =
                format!("translator.reporters lists reporter {} twice; it can have one address", twice.id);
            return Err(ConfigError::new(format!("translator.reporters[{index}].id"), reason));
        }
        if self.version0.keys().any(|primitive| !primitive.in_version0()) {
            return fail(
                "translator.version0",
                "sketch-merge".into(),
                "another primitive: version 0 has no sketch-merge",
            );
        }
        Ok(())
    }

    /// Checks a switch's own settings; `table` is its table.
    fn check_session(&self, table: &str) -> Result<(), ConfigError> {
        let fail = |key: &str, value: String, must: &str| {
            Err(ConfigError::invalid_value(format!("{table}.{key}"), value, must))
        };
        if self.listen.is_ipv6() {
            return fail("listen", self.listen.to_string(), "an IPv4 address and port");
        }
        if table != "translator" && self.listen.xdp_address().is_some() {
            return fail(
                "listen",
                self.listen.to_string(),
                "an IPv4 address and port: a switch has no AF_XDP",
            );
        }
        if self.source.is_unspecified() {
            return fail("source", self.source.to_string(), "one address of this host");
        }
        if table != "translator" && self.source.is_ipv6() {
            return fail("source", self.source.to_string(), "an IPv4 address: a switch has no other");
        }
        if let Some(mac) = &self.mac
            && mac.parse::<Mac>().is_err()
        {
            return fail("mac", format!("{mac:?}"), "an Ethernet address such as 02:00:00:00:00:01");
        }
        self.check_beside_collectors(table)?;
        check_lists(table, &self.lists)
    }

    pub fn accepted_reporters(&self) -> Vec<(u16, Ipv4Addr)> {
        self.reporters.iter().map(|reporter| (reporter.id, reporter.address)).collect()
    }

    /// The translator's side of its frames.
    pub fn frame_endpoint(&self) -> Endpoint {
        Endpoint {
            mac: self.mac.as_deref().and_then(|mac| mac.parse().ok()).unwrap_or_default(),
            port: self.source_port,
            ..Endpoint::new(self.source)
        }
    }

    /// The translator's side of its frames to a collector. `endpoint` is their source.
    pub fn frame_source(&self, collector: u8, endpoint: Endpoint) -> FrameSource {
        let [write_qpn, atomic_qpn] = self.queue_pairs_of(collector);
        FrameSource { endpoint, tos: self.tos, write_qpn, atomic_qpn }
    }

    /// The configured part of a program.
    pub fn program_settings(&self) -> TargetProgramSettings {
        TargetProgramSettings {
            collectors: self
                .collector
                .indices()
                .zip(self.collector.iter().map(|c| c.address.clone()))
                .collect(),
            buckets: match self.cluster {
                None => self.collector.iter().map(|c| c.buckets.unwrap_or_default()).collect(),
                Some(_) => Vec::new(),
            },
            is_cluster: self.cluster.is_some(),
            service: ReportService { address: self.listen.ip(), port: self.listen.port() },
            reference: self.reference,
            flush_ms: [
                (Primitive::Append, self.flush.append_ms),
                (Primitive::Postcarding, self.flush.postcarding_ms),
                (Primitive::SketchMerge, self.flush.sketch_merge_ms),
            ],
            version0: self.version0.iter().map(|(p, s)| (*p, s.clone())).collect(),
            sketch_reporters: self
                .sketch_reporters
                .iter()
                .map(|r| (r.store.clone(), r.reporter, r.bit))
                .collect(),
        }
    }

    /// Limits of the data plane. `name_reports` is for the ledger.
    pub fn engine_limits(&self, name_reports: bool) -> EngineLimits {
        EngineLimits {
            reporters: self.limits.reporters,
            version0_nacks: self.version0_nacks,
            postcard_rows: self.limits.postcard_rows,
            sketch_columns: self.limits.sketch_columns,
            rc: Timing {
                window: self.rc.window,
                queue: self.rc.queue,
                silence: self.rc.silence_ms * 1_000_000,
                tries: self.rc.tries,
            },
            name_reports,
            posts: self.device.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        let (config, _) = Config::parse(text, Path::new("t.toml"))?;
        config.check_values()?;
        Ok(config)
    }

    #[test]
    fn nothing_is_needed() {
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn the_defaults_can_be_written_and_read_again() {
        let text = toml::to_string(&Config::default()).unwrap();
        assert_eq!(parse(&text).unwrap(), Config::default());
    }

    #[test]
    fn the_example_is_the_default() {
        assert_eq!(parse(EXAMPLE).unwrap(), Config::default());
    }

    #[test]
    fn every_commented_key_of_the_example_is_known_and_good() {
        let text: String =
            EXAMPLE.lines().map(|l| l.strip_prefix("#! ").unwrap_or(l).to_owned() + "\n").collect();
        // With its own link, the address must not be any host's.
        let text = text.replace("source = \"127.0.0.2\"", "source = \"10.0.1.9\"");
        // One or the other.
        let device = "device = \"mlx5_0\"\n";
        assert!(text.contains(device));
        let text = text.replace(device, "");
        // And with TLS, for the collector.
        let text = text.replace("http://127.0.0.1:40050", "https://127.0.0.1:40050");
        let config = parse(&text).unwrap();
        assert!(config.translator.tls.is_some() && config.translator.link.is_some());
        assert_eq!(config.translator_of("tor1").unwrap().lists.len(), 1);
        // It contains every key.
        let all = toml::Value::try_from(&config).unwrap();
        let keys = all["translator"].as_table().unwrap().keys();
        for key in keys {
            let line = |line: &str| {
                let line = line.trim_start_matches("#! ");
                line.starts_with(&format!("{key} =")) || line == format!("[translator.{key}]")
            };
            assert!(EXAMPLE.lines().any(line), "{key}");
        }
    }

    #[test]
    fn whatever_is_wrong_has_a_line() {
        let refusal = |text: &str| {
            let text = format!("[translator]\n{text}");
            let checked = Config::parse(&text, Path::new("t.toml")).and_then(|(config, places)| {
                config.check_values().map_err(|error| places.locate_error(error))
            });
            checked.unwrap_err().to_string()
        };
        let range = "{ store = 's', first = 0, count = 1 }";
        for (text, words) in [
            ("\nname = ''", "t.toml, line 3: translator.name is"),
            ("tos = 'x'", "t.toml, line 2, key `translator.tos`: invalid type"),
            ("[translator.rc]\n\nwindow = 100", "t.toml, line 4: translator.rc.window is 100"),
            ("collector = 'https://c:1'", "t.toml, line 1: translator.tls is absent"),
            ("collector = ['a:1', 'c']", "t.toml, line 2: translator.collector is \"c\""),
            (&*format!("lists = [{range},\n{range}]"), "t.toml, line 3: translator.lists names list"),
            (
                "[[translator.reporters]]\nid = 7\naddress = '10.0.0.1'\n[[translator.reporters]]\nid = 7\naddress = '10.0.0.2'",
                "t.toml, line 6: translator.reporters lists reporter 7 twice",
            ),
            (
                "[[translator.reporters]]\nid = 7\naddress = 'x y'",
                "t.toml, line 4, key `translator.reporters.address`",
            ),
            (
                "[switch.a]\ntype = 'software'\ncontrol = 'c:1'\nsource = 'x y'",
                "t.toml, line 5, key `switch.a.source`: \"x y\" is neither an address",
            ),
            ("[switch.a]\ntype = 'unheard'", "t.toml, line 3: switch a is of type"),
            ("[switch.a]\ntype = 'software'\ncontrol = 'c:1'\nmac = '02'", "t.toml, line 5: switch.a.mac is"),
            (
                "[switch.translator]\ntype = 'software'\ncontrol = 'c:1'",
                "t.toml, line 2: [translator] and [switch.translator]",
            ),
            ("[trans", "t.toml, line 2, "),
        ] {
            let error = refusal(text);
            assert!(error.starts_with(words), "{text}: {error}");
        }
    }

    #[test]
    fn frames_over_ipv6_come_from_a_socket_a_link_or_a_device() {
        for text in
            ["source = '::1'", "source = '2001:db8::2'\nlink = 'eth1'", "source = '::1'\ndevice = 'mlx5_0'"]
        {
            assert!(parse(&format!("[translator]\n{text}")).unwrap().translator.source.is_ipv6(), "{text}");
        }
    }

    #[test]
    fn unknown_keys_are_named() {
        for text in ["[translator]\nlisen = '127.0.0.1:1'", "[translater]", "[translator.flush]\nappend = 3"]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("unknown field") && error.contains("t.toml"), "{error}");
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, key) in [
            ("name = ''", "translator.name"),
            ("listen = '[::1]:40040'", "translator.listen"),
            ("workers = 2\n[translator.int]\nlisten = ['xdp:eth1']", "translator.workers"),
            ("source = '::1'\nlink = 'eth1'", "translator.source"),
            ("control = '0.0.0.0:40051'", "translator.control"),
            ("control = 'unix:'", "t.toml, line 2, key `translator.control`: "),
            ("collector = 'ftp://127.0.0.1:40050'", "translator.collector"),
            ("collector = ''", "translator.collector"),
            ("collector = 'https://c:1'", "translator.tls"),
            ("collector = 'c'", "translator.collector"),
            ("collector = 'http://c:1'\ntls = { ca = 'a', cert = 'c', key = 'k' }", "translator.collector"),
            ("mac = '02:00'", "translator.mac"),
            (
                "device = 'mlx5_0'\nreference = true",
                "translator.device is \"mlx5_0\", but must be left out with `reference`",
            ),
            ("device = 'mlx5_0'\nlink = 'eth1'\nsource = '10.0.0.9'", "translator.device is \"mlx5_0\""),
            ("device = ''", "translator.device"),
            ("queue_pairs = [5, 5]", "translator.queue_pairs"),
            ("collector = ['a:1', 'b:1']\nqueue_pairs = [16, 18]", "translator.queue_pairs"),
            ("collector = ['a:1', 'b:1']\nqueue_pairs = [16777214, 5]", "translator.queue_pairs"),
            ("collector = []", "translator.collector is a list of 0"),
            ("collector = ['a:1', 'c']", "translator.collector is \"c\""),
            ("collector = ['a:1', 'b:1', 'a:1']", "translator.collector is \"a:1\" twice"),
            ("collector = ['a:1', 'https://b:1']", "translator.tls"),
            ("collector = ['a:1', 'b:1']\nstores = ['s']", "translator.stores is [\"s\"]"),
            ("collector = [{ address = 'a:1', stores = ['s'] }]\nstores = ['t']", "translator.stores"),
            (
                "collector = ['a:1', 'b:1']\nlists = [{ store = 's', first = 0, count = 1 }]",
                "translator.lists is there",
            ),
            (
                "collector = [{ address = 'a:1', buckets = '0-127' }, { address = 'b:1', buckets = '127-255' }]",
                "translator.collector.buckets is \"127-255\", and the collector at a:1 has bucket 127, too",
            ),
            (
                "collector = [{ address = 'a:1', buckets = '1-127' }, { address = 'b:1', buckets = '128-254' }]",
                "translator.collector is without buckets 0,255",
            ),
            (
                "collector = [{ address = 'a:1', buckets = ['0-127', '128-255'] }, { address = 'b:1', buckets = ['128-255', '0-128'] }]",
                "translator.collector.buckets is [\"128-255\",\"0-128\"], which has bucket 128 twice",
            ),
            (
                "collector = [{ address = 'a:1', buckets = ['0-127', '128-255'] }, { address = 'b:1', buckets = ['128-255', '0-126'] }]",
                "translator.collector is without copy 1 of buckets 127",
            ),
            (
                "collector = [{ address = 'a:1', buckets = ['0-127', '128-255'] }, { address = 'b:1', buckets = ['128-254', '0-127,255'] }]",
                "translator.collector.buckets is [\"128-254\",\"0-127,255\"], and the collector at a:1 has copy 1 of bucket 255, too",
            ),
            (
                "collector = [{ address = 'a:1', buckets = ['0-255', 'none', 'none', 'none', 'none'] }]",
                "t.toml, line 2, key `translator.collector`: ",
            ),
            (
                "collector = [{ address = 'a:1', buckets = '0-256' }]",
                "t.toml, line 2, key `translator.collector`: ",
            ),
            ("collector = 7", "t.toml, line 2, key `translator.collector`: "),
            ("collector = [{ adress = 'a:1' }]", "t.toml, line 2, key `translator.collector`: "),
            ("rc.window = 100", "translator.rc.window"),
            ("version0.sketch-merge = 'x'", "translator.version0"),
            ("version0_nacks = 1000001", "translator.version0_nacks"),
            (
                "reporters = [{ id = 7, address = '10.0.0.1' }, { id = 7, address = '10.0.0.2' }]",
                "translator.reporters lists reporter 7 twice",
            ),
        ] {
            let error = parse(&format!("[translator]\n{text}")).unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }

    #[test]
    fn an_interface_serves_several_listeners_but_not_the_frames_too() {
        let of = |text: &str| parse(&format!("[translator]\n{text}"));
        let listeners =
            "int.listen = ['xdp:eth1?dialect=v1.0', 'xdp:eth1:1', 'xdp:eth2']\nflows.listen = ['xdp:eth1']";
        let config =
            of(&format!("listen = 'xdp:eth1'\nlink = 'packet:eth1'\nsource = '10.0.1.9'\n{listeners}"))
                .unwrap();
        assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
        let refusal = |text: &str| of(text).unwrap_err().to_string();
        for kind in ["xdp", "auto"] {
            let error = refusal(&format!("source = '10.0.1.9'\nlink = '{kind}:eth1'\nlisten = 'xdp:eth1'"));
            assert!(
                error.starts_with("translator.listen is xdp:eth1:40040") && error.contains("packet:eth1"),
                "{error}"
            );
        }
        let error = refusal("int.listen = ['xdp:eth1:2055']\nflows.listen = ['xdp:eth1']");
        assert!(error.starts_with("translator.flows.listen is xdp:eth1:2055"), "{error}");
        let error = refusal("int.listen = ['xdp:eth1?events=kernel', 'xdp:eth2?events=kernel']");
        assert!(error.contains("at one interface"), "{error}");
        let error = refusal("int.listen = ['xdp:eth1?events=kernel']\nint.per_packet = true");
        assert!(error.starts_with("translator.int.per_packet is true"), "{error}");
        let switch = "[translator]\nlisten = 'xdp:eth1'\n[switch.a]\ntype = 'software'\ncontrol = 'c:1'";
        let error = parse(switch).unwrap_err().to_string();
        assert!(error.starts_with("switch.a.listen is xdp:eth1:40040"), "{error}");
    }

    #[test]
    fn one_bit_or_list_given_twice_is_refused_by_name() {
        let reporters = |a: &str, b: &str| {
            let entry = |e: &str| format!("[[translator.sketch_reporters]]\nstore = 's'\n{e}\n");
            parse(&(entry(a) + &entry(b)))
        };
        assert!(reporters("reporter = 3\nbit = 0", "reporter = 4\nbit = 1").is_ok());
        let error = reporters("reporter = 3\nbit = 5", "reporter = 4\nbit = 5").unwrap_err().to_string();
        assert!(error.contains("bit 5 of store \"s\" to reporters 3 and 4"), "{error}");
        let error = reporters("reporter = 3\nbit = 5", "reporter = 3\nbit = 6").unwrap_err().to_string();
        assert!(error.contains("reporter 3 of store \"s\" twice"), "{error}");

        let lists = |a: (u32, u32), b: (&str, u32, u32)| {
            let entry = |store: &str, first: u32, count: u32| {
                format!("[[translator.lists]]\nstore = '{store}'\nfirst = {first}\ncount = {count}\n")
            };
            parse(&(entry("events", a.0, a.1) + &entry(b.0, b.1, b.2)))
        };
        assert!(lists((0, 4), ("events", 4, 4)).is_ok());
        assert!(lists((0, 4), ("alarms", 0, 4)).is_ok());
        for (a, b) in [((0, 4), (3, 2)), ((3, 2), (0, 4)), ((0, 8), (3, 1)), ((3, u32::MAX), (3, 1))] {
            let error = lists(a, ("events", b.0, b.1)).unwrap_err().to_string();
            assert!(error.contains("names list 3 of store \"events\" twice"), "{error}");
        }
        assert!(
            lists((0, 0), ("events", 4, 4)).unwrap_err().to_string().starts_with("translator.lists.count")
        );
    }

    #[test]
    fn the_work_grows_as_the_lists() {
        let time = |of: u32| {
            // Every other one, starting from the last.
            let range = |n| ListRange { store: "events".into(), first: 2 * n, count: 1 };
            let lists: Vec<_> = (0..of).rev().map(range).collect();
            let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            check_lists("translator", &lists).unwrap();
            let ended = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            (ended.tv_sec - begun.tv_sec) as f64 + (ended.tv_nsec - begun.tv_nsec) as f64 / 1e9
        };
        // CPU time of this thread, independent of other load; the fastest of three.
        let best = |lists| (0..3).map(|_| time(lists)).fold(f64::MAX, f64::min);
        let (few, many) = (best(6_000), best(60_000));
        assert!(many < 40.0 * few, "{few} s for a tenth of the ranges, {many} s for all");
    }

    #[test]
    fn collectors_are_an_address_or_a_list_or_tables() {
        let of = |text: &str| parse(&format!("[translator]\n{text}")).unwrap().translator;
        assert_eq!(of("collector = 'a:1'").collector, Collectors::from_addresses(["a:1"]));
        assert_eq!(of("collector = ['a:1', 'b:1']").collector, Collectors::from_addresses(["a:1", "b:1"]));
        let mixed = of("collector = ['a:1', { address = 'b:1', stores = ['s'] }]");
        let tables = of(
            "[[translator.collector]]\naddress = 'a:1'\n[[translator.collector]]\naddress = 'b:1'\nstores = ['s']",
        );
        assert_eq!(mixed, tables);
        assert_eq!(mixed.wanted_of(0).0, Vec::<String>::new());
        assert_eq!(mixed.wanted_of(1).0, ["s"]);
        assert_eq!(mixed.collector.address_at(1), "b:1");
        assert_eq!(mixed.queue_pairs_of(0), [0x11, 0x12]);
        assert_eq!(mixed.queue_pairs_of(1), [0x13, 0x14]);
        // A single collector's settings may be given beside it.
        let one = of("collector = 'a:1'\nstores = ['s']");
        assert_eq!(one.wanted_of(0).0, ["s"]);
        for translator in [mixed, one, of("collector = ['a:1', 'b:1']")] {
            let config = Config { translator, ..Config::default() };
            assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn sixty_four_collectors_are_the_most() {
        let list = |n: usize| {
            format!("[translator]\ncollector = {:?}", (0..n).map(|n| format!("c{n}:1")).collect::<Vec<_>>())
        };
        assert!(parse(&list(64)).is_ok());
        assert!(
            parse(&list(65)).unwrap_err().to_string().contains("a list of 65, but must be a list of 1 to 64")
        );
    }
}
