//! A collector's configuration: one TOML file, with `DTA_*` variables and flags over it.
//!
//! [`Config::load`] gives a checked configuration or an error that names the file, the line and the
//! key. The caller ([`crate::cli`]) applies flags to the fields, then [`Config::validate`] checks the whole again.

mod cluster;
mod file;
mod history;
mod limits;
mod metrics;
mod replicas;
mod web;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use dta_link::Wire;
use dta_link::fault::Faults;
pub use dta_link::shared_ring::RingUse;
use dta_memory::nic::ROCE_PORT;
use dta_memory::nic::soft::MAX_THREADS;
pub use dta_memory::store::MemoryBacking;
use dta_proto::name;
pub use dta_proto::queue_pair::Transport;
use dta_proto::store::StoreSpec;
use dta_proto::wire::ethernet::Mac;
use serde::{Deserialize, Serialize};

pub use crate::alerts::AlertsConfig;
pub use cluster::CollectorClusterConfig;
pub use dta_files::config_file::ConfigError;
pub use file::default_stores;
pub use history::{ClickHouse, HistoryConfig};
pub use limits::CollectorLimits;
pub use metrics::{CollectorMetricsConfig, Telemetry};
pub use web::CollectorWebConfig;

/// The commented file of defaults that `dta-collector config --example` prints. Lines beginning with `#!` are
/// settings without a default.
pub const EXAMPLE: &str = include_str!("example.toml");

/// Where gRPC listens by default.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40050);

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of this collector, part of its memory directory's name.
    pub name: String,
    /// Address of the gRPC service; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether to serve gRPC without TLS on an address that is not loopback.
    pub insecure: bool,
    pub memory: MemoryBacking,
    /// `soft`, or the name of an RDMA device.
    pub device: String,
    /// Transport of writes; atomics are always on RC.
    pub transport: Transport,
    /// The software NIC; used if `device` is `soft`.
    pub soft: Soft,
    /// RDMA devices; used if `device` is not `soft`.
    pub verbs: Verbs,
    /// TLS of the gRPC service.
    pub tls: Option<CollectorTlsConfig>,
    pub limits: CollectorLimits,
    /// File with names of switches, ports and drop reasons, read by [`dta_export::names::Names::find_and_load`].
    pub names: Option<PathBuf>,
    /// What is exported to Prometheus, and where.
    pub metrics: CollectorMetricsConfig,
    /// The page in the browser, and where.
    pub web: CollectorWebConfig,
    /// What is exported to databases.
    pub export: dta_export::config::Config,
    /// What is kept of stores with epochs.
    pub history: HistoryConfig,
    /// Rules to evaluate on incoming telemetry.
    pub alerts: AlertsConfig,
    /// The cluster to join.
    pub cluster: Option<CollectorClusterConfig>,
    /// Stores, in the order of the file; ids and names are unique.
    pub stores: Vec<StoreSpec>,
    /// Epoch length by store name, for stores that have epochs.
    pub epochs: BTreeMap<String, Duration>,
    /// How many collectors hold each key, by store name, for stores where that is more than one. The copies
    /// in a key-write store are spread over them: over at most as many collectors as there are copies.
    pub replicas: BTreeMap<String, u8>,
}

dta_files::config_table! {
    pub struct Soft {
        /// Address that RoCEv2 frames are sent to.
        #[serde(deserialize_with = "dta_files::host::serde::deserialize_ip")]
        pub address: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        /// UDP port of RoCEv2; 0 takes a free one (UDP link only).
        pub port: u16 = ROCE_PORT;
        pub link: SoftLink = SoftLink::Udp;
        /// Ethernet address on raw frames; if unset, the interface's.
        pub mac: Option<Mac> = None;
        /// Faults on the frames that the NIC sends (ACK and NAK), for testbeds.
        pub faults: Faults = Faults::NONE;
        pub fault_seed: u64 = 0;
        /// Whether translators on this host are offered a ring of frames in shared memory.
        pub ring: RingUse = RingUse::Auto;
        /// Whether frames come in, and answers go out, in runs; frames may then have any IPv4 id of a run (UDP link only).
        pub runs: bool = true;
        /// Threads that execute frames; each queue pair belongs to one (UDP link only).
        pub threads: usize = 1;
    }
}

/// How frames reach the software NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoftLink {
    /// A UDP socket; needs no privilege.
    Udp,
    /// Whole Ethernet frames of an interface; needs privileges.
    Wire(Wire),
}

impl FromStr for SoftLink {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "udp" => Ok(Self::Udp),
            // The prefix names the kind of socket, so that a typo is not taken for an interface.
            wire if wire.contains(':') => wire.parse().map(Self::Wire),
            _ => Err("must be \"udp\", \"packet:INTERFACE\", \"xdp:INTERFACE\" or \"auto:INTERFACE\"".into()),
        }
    }
}

impl fmt::Display for SoftLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp => f.write_str("udp"),
            Self::Wire(wire) => wire.fmt(f),
        }
    }
}

dta_proto::serde_as_text!(SoftLink);

/// Which port and GID of an RDMA device to use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Verbs {
    /// Port, from 1; by default the first that is up and has a usable GID.
    pub port: Option<u8>,
    /// Address that translators send to, which selects the GID. By default the NIC chooses, and logs its choice.
    #[serde(deserialize_with = "dta_files::host::serde::deserialize_some_ip")]
    pub address: Option<IpAddr>,
    /// Index of the GID; no other is tried.
    pub gid_index: Option<u32>,
}

/// TLS files of the gRPC service, all PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectorTlsConfig {
    /// Certificate chain of this collector.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// CAs whose client certificates are accepted: anyone who opens a session gets keys to memory.
    pub client_ca: PathBuf,
    /// Client certificates that may end sessions opened with another certificate, by name: `DNS:NAME` or
    /// `URI:NAME`. A bare name with a colon is a URI.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<String>,
}

impl Default for Config {
    /// Loopback, the software NIC, and the stores of [`default_stores`].
    fn default() -> Self {
        let name = "collector".to_owned();
        Self {
            memory: MemoryBacking::Directory(default_directory(&name)),
            name,
            listen: DEFAULT_LISTEN,
            insecure: false,
            device: "soft".into(),
            transport: Transport::default(),
            soft: Soft::default(),
            verbs: Verbs::default(),
            tls: None,
            limits: CollectorLimits::default(),
            names: None,
            metrics: CollectorMetricsConfig::default(),
            web: CollectorWebConfig::default(),
            export: dta_export::config::Config::default(),
            history: HistoryConfig::default(),
            alerts: AlertsConfig::default(),
            cluster: None,
            stores: default_stores(),
            epochs: BTreeMap::new(),
            replicas: BTreeMap::new(),
        }
    }
}

/// The default memory directory: in shared memory, so that a restart finds it and no disk wears out.
pub fn default_directory(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/dta-{name}"))
}

impl Config {
    /// Checks what can be checked without touching the machine: names, store descriptions, ids, and that not
    /// just anyone who can reach a port is given keys to memory.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !name::is_valid_name(&self.name) {
            return Err(ConfigError::invalid_quoted("collector.name", &self.name, name::PLAIN));
        }
        if self.stores.is_empty() {
            let none =
                "no store: add a [[store]] table (`dta-collector config --example` shows one of each kind)";
            return Err(ConfigError::new("store", none));
        }
        let mut taken = UsedStoreNames::default();
        self.stores.iter().try_for_each(|store| taken.add(store))?;
        if self.device.is_empty() {
            return Err(ConfigError::invalid_quoted(
                "collector.device",
                "",
                "\"soft\" or the name of an RDMA device",
            ));
        }
        if let (Some(mac), SoftLink::Udp) = (self.soft.mac, &self.soft.link) {
            let must = "left out with link = \"udp\", where the kernel's address is used";
            return Err(ConfigError::invalid_quoted("soft.mac", mac, must));
        }
        let threads = self.soft.threads;
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(ConfigError::invalid_quoted("soft.threads", threads, "1 to 16"));
        }
        if threads > 1 && self.soft.link != SoftLink::Udp {
            let must = "1 unless link = \"udp\": an interface's raw frames go to one thread";
            return Err(ConfigError::invalid_quoted("soft.threads", threads, must));
        }
        for operator in self.tls.iter().flat_map(|tls| &tls.operators) {
            operator
                .parse::<dta_rpc::transport::CertificateName>()
                .map_err(|must| ConfigError::invalid_quoted("tls.operators", operator, must))?;
        }
        self.limits.validate()?;
        self.metrics.validate()?;
        self.web.validate(self.tls.is_some())?;
        self.export.validate()?;
        self.history.validate()?;
        self.alerts.validate()?;
        self.cluster.as_ref().map_or(Ok(()), CollectorClusterConfig::validate)?;
        if !self.listen.ip().is_loopback() && self.tls.is_none() && !self.insecure {
            let exposed = format!(
                "refusing to listen on {} without TLS: anyone who opens a session gets keys to this machine's memory. \
                 Give [tls] cert, key and client_ca (--tls-cert, --tls-key, --tls-client-ca), listen on loopback, \
                 or pass --insecure if the network itself keeps others out",
                self.listen
            );
            return Err(ConfigError::new("collector.listen", exposed));
        }
        Ok(())
    }
}

#[derive(Default)]
struct UsedStoreNames<'a> {
    ids: BTreeMap<u16, &'a str>,
    names: BTreeSet<&'a str>,
}

impl<'a> UsedStoreNames<'a> {
    /// Checks one store by itself and against those added before it.
    fn add(&mut self, store: &'a StoreSpec) -> Result<(), ConfigError> {
        let (id, name) = (store.id, &store.name);
        store
            .validate()
            .map_err(|error| ConfigError::new(format!("store.{}", error.field), error.to_string()))?;
        if let Some(first) = self.ids.insert(id, name) {
            let twice = format!(
                "stores {first:?} and {name:?} have the same id {id}: reports name a store by its id, so give each its own"
            );
            return Err(ConfigError::new("store.id", twice));
        }
        if !self.names.insert(name) {
            let twice = format!(
                "two stores are called {name:?}: queries name a store by its name, so give each its own"
            );
            return Err(ConfigError::new("store.name", twice));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dta_proto::store::StoreKind;

    use super::*;

    #[test]
    fn the_work_grows_as_the_stores() {
        let time = |of: u16| {
            let kind = StoreKind::KeyIncrement { slots: 8, redundancy: 1, replicas: 1 };
            let store = |id| StoreSpec { id, name: format!("store{id}"), kind: kind.clone() };
            let config = Config { stores: (1..=of).map(store).collect(), ..Config::default() };
            let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            config.validate().unwrap();
            let ended = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            (ended.tv_sec - begun.tv_sec) as f64 + (ended.tv_nsec - begun.tv_nsec) as f64 / 1e9
        };
        // CPU time of this thread, independent of other load; the fastest of three runs.
        let best = |stores| (0..3).map(|_| time(stores)).fold(f64::MAX, f64::min);
        let (few, many) = (best(6_000), best(60_000));
        assert!(many < 40.0 * few, "{few} s for a tenth of the stores, {many} s for all");
    }
}
