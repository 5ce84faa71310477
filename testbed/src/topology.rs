//! The topology file: network, traffic, stores and settings of one testbed.

use std::path::Path;

use dta_files::config_file::{self, FileError, KeyPositions, strip_indices};
pub use dta_proto::queue_pair::Transport;
use dta_proto::store::{SpecError, StoreKind, StoreSpec};
pub use dta_proto::wire::dta::Primitive;
use serde::Deserialize;

use crate::far::config::{self as machines, Machine, MachineRole, Ssh};
use crate::share::Share;

/// The default topology: no NIC, no privilege.
pub const EMBEDDED: &str = include_str!("../topologies/embedded.toml");

/// The default topology of soft-RoCE.
pub const RXE: &str = include_str!("../topologies/rxe.toml");

/// A testbed, as the file describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    pub name: String,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub traffic: TrafficSettings,
    #[serde(default)]
    pub run: RunSettings,
    #[serde(default)]
    pub collector: CollectorSettings,
    #[serde(default)]
    pub translator: TranslatorSettings,
    /// One store per primitive; a missing one is taken from the embedded topology. With a reporter switch, these four tables
    /// are left out.
    #[serde(default, rename = "store")]
    pub stores: Vec<StoreSpec>,
    /// Machines that the testbed runs on; `None` = this one.
    #[serde(default, rename = "machine")]
    pub machines: Vec<Machine>,
    #[serde(default)]
    pub ssh: Ssh,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Switches per tier, in the order in which packets cross them; a path takes one of each tier.
    pub tiers: Vec<u16>,
}

/// Synthetic traffic, see [`crate::traffic::TrafficShape`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficSettings {
    pub flows: u32,
    /// Exponent of Zipf's law.
    pub exponent: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// Reports made of synthetic traffic, including the columns of all epochs.
    pub reports: u64,
    pub epoch_packets: u64,
    #[serde(default)]
    pub retransmit: Vec<Primitive>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CollectorSettings {
    /// `soft`, or an RDMA device.
    pub device: String,
    pub transport: Transport,
}

impl Default for CollectorSettings {
    fn default() -> Self {
        Self { device: "soft".into(), transport: Transport::Uc }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TranslatorSettings {
    /// Milliseconds after which partial batches, rows and columns are sent.
    pub flush_ms: u64,
    /// Seconds that the lease lasts without renewal.
    pub lease_seconds: u32,
    /// Whether two collectors have each key: the copies of values are spread over them, paths and counters are at both.
    pub spread_copies: bool,
}

impl Default for TranslatorSettings {
    fn default() -> Self {
        Self { flush_ms: 200, lease_seconds: 30, spread_copies: false }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file cannot be parsed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A value outside its range.
    #[error("{name}{}: {} is {value}, but must be {must}", line_suffix(*line), strip_indices(key))]
    Value {
        name: String,
        /// Line of the key, from 1, if known.
        line: Option<usize>,
        /// The key with its table.
        key: String,
        value: String,
        must: &'static str,
    },
    /// A store's description is wrong.
    #[error("{name}{}: {source}", line_suffix(*line))]
    Store {
        name: String,
        /// Line of the key, from 1, if known.
        line: Option<usize>,
        source: SpecError,
    },
}

/// `, line N` in messages.
fn line_suffix(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

pub(crate) fn reject_value(
    places: &KeyPositions,
    key: &str,
    value: String,
    must: &'static str,
) -> Result<(), TopologyError> {
    let (name, line) = (places.file_path().display().to_string(), places.line_of_key(key));
    Err(TopologyError::Value { name, line, key: key.into(), value, must })
}

impl Topology {
    /// Reads a file, or gives the embedded topology for `None`.
    pub fn load(path: Option<&Path>) -> Result<Self, TopologyError> {
        match path {
            None => Self::parse_and_check(EMBEDDED, "embedded topology"),
            Some(path) => {
                let text = config_file::read(path, "the topology")?;
                let mut topology = Self::parse_and_check(&text, &path.display().to_string())?;
                machines::resolve_ssh_config(&mut topology.ssh, path);
                Ok(topology)
            }
        }
    }

    /// Parses and checks; `name` is used in messages.
    pub fn parse_and_check(text: &str, name: &str) -> Result<Self, TopologyError> {
        let (mut topology, places): (Self, _) = config_file::parse_config(text, Path::new(name))?;
        if !topology.has_reporter_switch() && topology.stores.len() < Primitive::ALL.len() {
            let (embedded, _): (Self, _) =
                config_file::parse_config(EMBEDDED, Path::new("embedded topology"))?;
            let stores = &mut topology.stores;
            for store in embedded.stores {
                if !stores.iter().any(|given| given.primitive() == store.primitive()) {
                    stores.push(store);
                }
            }
        }
        topology.check_topology(&places)?;
        Ok(topology)
    }

    /// The store of a primitive.
    ///
    /// # Panics
    /// Never after [`Topology::parse_and_check`], which ensures that there is one of each.
    pub fn store_of_primitive(&self, primitive: Primitive) -> &StoreSpec {
        self.stores
            .iter()
            .find(|store| store.primitive() == primitive.canonical_name())
            .expect("a checked topology has a store of each primitive")
    }

    /// Whether a reporter switch reports instead of simulated switches: the capture and the stores are then those of
    /// the testbed of switches.
    pub fn has_reporter_switch(&self) -> bool {
        self.machines.iter().any(|machine| machine.has_role(MachineRole::Reporter))
    }

    /// Which part of the stores each collector has.
    pub fn collector_share(&self) -> Share {
        self.share_among(
            self.machines.iter().filter(|machine| machine.has_role(MachineRole::Collector)).count(),
        )
    }

    /// The same for this many collectors.
    pub fn share_among(&self, collectors: usize) -> Share {
        Share::with_collectors(collectors).with_replicas(if self.translator.spread_copies { 2 } else { 1 })
    }

    fn check_topology(&self, places: &KeyPositions) -> Result<(), TopologyError> {
        let fail = |key: &str, value: String, must| reject_value(places, key, value, must);
        self.check_settings(places)?;
        machines::check_machines(&self.machines, places)?;
        if self.has_reporter_switch() {
            let given = [
                ("network", self.network != Network::default()),
                ("traffic", self.traffic != TrafficSettings::default()),
                ("run", self.run != RunSettings::default()),
                ("store", !self.stores.is_empty()),
            ];
            return match given.iter().find(|(_, given)| *given) {
                Some((key, _)) => {
                    fail(key, "a table".into(), "left out where a machine has the role reporter")
                }
                None => Ok(()),
            };
        }
        let tiers = &self.network.tiers;
        let switches: u32 = tiers.iter().map(|&n| u32::from(n)).sum();
        if tiers.is_empty() || tiers.contains(&0) || switches > 1000 {
            return fail(
                "network.tiers",
                format!("{tiers:?}"),
                "one or more tiers of at least one switch, 1000 in all",
            );
        }
        if !(1..=1 << 24).contains(&self.traffic.flows) {
            return fail("traffic.flows", self.traffic.flows.to_string(), "1 to 2^24");
        }
        if !(0.0..=4.0).contains(&self.traffic.exponent) {
            return fail("traffic.exponent", self.traffic.exponent.to_string(), "0 to 4");
        }
        if self.run.reports == 0 {
            return fail("run.reports", "0".into(), "at least 1");
        }
        if self.run.epoch_packets == 0 {
            return fail("run.epoch_packets", "0".into(), "at least 1");
        }
        for (index, store) in self.stores.iter().enumerate() {
            store.validate().map_err(|source| TopologyError::Store {
                name: places.file_path().display().to_string(),
                line: places.line_of_key(&format!("store[{index}].{}", source.field)),
                source,
            })?;
        }
        for primitive in Primitive::ALL {
            let of_it: Vec<_> =
                self.stores.iter().filter(|s| s.primitive() == primitive.canonical_name()).collect();
            if of_it.len() != 1 {
                let value = format!("a list with {} of kind {}", of_it.len(), primitive.canonical_name());
                return fail("store", value, "one store of each kind");
            }
        }
        for (n, store) in self.stores.iter().enumerate() {
            if self.stores[..n].iter().any(|other| other.id == store.id || other.name == store.name) {
                return fail(
                    &format!("store[{n}]"),
                    format!("{:?} with id {}", store.name, store.id),
                    "of its own name and id",
                );
            }
        }
        self.check_fit(places)
    }

    fn check_settings(&self, places: &KeyPositions) -> Result<(), TopologyError> {
        if self.translator.flush_ms == 0 || self.translator.flush_ms > 60_000 {
            let value = self.translator.flush_ms.to_string();
            return reject_value(places, "translator.flush_ms", value, "1 to 60000");
        }
        if self.translator.lease_seconds == 0 {
            return reject_value(places, "translator.lease_seconds", "0".into(), "at least 1");
        }
        if self.translator.spread_copies && self.collector_share().collectors() < 2 {
            let must = "false with fewer than two machines that have the role collector";
            return reject_value(places, "translator.spread_copies", "true".into(), must);
        }
        Ok(())
    }

    /// What the simulated switches report must fit the stores.
    fn check_fit(&self, places: &KeyPositions) -> Result<(), TopologyError> {
        let tiers = &self.network.tiers;
        for (index, store) in self.stores.iter().enumerate() {
            // A key of this store, or of another table.
            let fail = |key: &str, value: String, must| match key.strip_prefix("store.") {
                Some(field) => reject_value(places, &format!("store[{index}].{field}"), value, must),
                None => reject_value(places, key, value, must),
            };
            match store.kind {
                StoreKind::KeyWrite { value_len, .. } if value_len != 12 => {
                    return fail(
                        "store.value_len",
                        value_len.to_string(),
                        "12: a length and a time are reported",
                    );
                }
                StoreKind::Postcarding { hops, .. } if tiers.len() > usize::from(hops) => {
                    return fail(
                        "network.tiers",
                        format!("{} tiers", tiers.len()),
                        "at most the postcard store's hops",
                    );
                }
                StoreKind::Append { entry_len, .. } if entry_len != 16 => {
                    return fail("store.entry_len", entry_len.to_string(), "16: flow keys are appended");
                }
                StoreKind::Append { lists, .. } if lists < u32::from(tiers[0]) => {
                    return fail("store.lists", lists.to_string(), "at least the switches of the first tier");
                }
                StoreKind::SketchMerge { expected, .. } if u16::from(expected) != tiers[0] => {
                    return fail("store.expected", expected.to_string(), "the switches of the first tier");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topology_that_is_shipped_is_good() {
        Topology::load(None).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "toml") {
                Topology::load(Some(&path)).unwrap();
                seen += 1;
            }
        }
        assert!(seen >= 2);
    }

    #[test]
    fn a_store_that_is_left_out_is_the_embedded_one() {
        let whole = Topology::load(None).unwrap();
        let first = EMBEDDED.find("[[store]]").unwrap();
        let second = first + 1 + EMBEDDED[first + 1..].find("[[store]]").unwrap();
        let without = format!("{}{}", &EMBEDDED[..first], &EMBEDDED[second..]);
        let mut without = Topology::parse_and_check(&without, "file.toml").unwrap();
        without.stores.rotate_right(1);
        assert_eq!(without, whole);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, expect) in [
            ("tiers = [2, 2, 2, 2, 2]", "tiers = []", "network.tiers"),
            ("tiers = [2, 2, 2, 2, 2]", "tiers = [1, 2, 2, 2, 2]", "store.expected"),
            ("tiers = [2, 2, 2, 2, 2]", "tiers = [2, 2, 2, 2, 2, 2, 2]", "network.tiers"),
            ("flows = 2000", "flows = 0", "traffic.flows"),
            ("flows = 2000", "flowz = 1", "flowz"),
            ("slots = 1048576", "slots = 1000000", "a power of two"),
            ("value_len = 12", "value_len = 28", "store.value_len"),
            ("value_len = 12", "value_len = \"twelve\"", "key `store.value_len`: invalid type: string"),
            ("kind = \"append\"", "kind = \"apend\"", "apend"),
            ("id = 2", "id = 1", "of its own name and id"),
            (
                "[[store]]\nid = 1",
                "[[store]]\nid = 9\nname = \"twice\"\nkind = \"key-increment\"\nslots = 8\nredundancy = 1\n[[store]]\nid = 1",
                "one store of each kind",
            ),
        ] {
            assert!(EMBEDDED.contains(from));
            let text = EMBEDDED.replacen(from, to, 1);
            let error = Topology::parse_and_check(&text, "file.toml").expect_err(to).to_string();
            assert!(error.contains(expect) && error.contains("file.toml"), "{to}: {error}");
            assert!(error.contains(", line "), "{to}: {error}");
        }
        let missing = Topology::load(Some(Path::new("/nonexistent.toml"))).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent.toml"));
    }
}
