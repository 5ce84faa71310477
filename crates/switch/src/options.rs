//! What a switch's owner configures.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use dta_proto::prefix::Prefix;
use dta_proto::program::Mac;
use serde::{Deserialize, Serialize};

use crate::tofino::Profile;

/// A P4 switch, of either role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchOptions {
    /// Where its control plane listens: HOST:PORT.
    pub control: String,
    pub device: u64,
    /// Directory of the compiled program; default: the built-in one.
    pub program: Option<PathBuf>,
    /// The profile of a translator's program for Tofino.
    pub profile: Profile,
    /// The kernel's interface to a Tofino's CPU port, for flush and probe commands; without it, there are none.
    pub cpu_interface: Option<String>,
    /// The pipes of a Tofino whose traffic manager reports what it would drop.
    pub deflecting: Vec<u16>,
    /// Rows in the cache of each postcard store.
    pub postcard_rows: u32,
    /// Port to each collector, by its index; the last one applies to any further ones.
    pub collector_ports: Vec<u16>,
    /// Ethernet address of each collector, if the collector does not provide it.
    pub collector_macs: Vec<Mac>,
    /// Ports for broadcast frames. Empty = none.
    pub flood: Vec<u16>,
    /// The switch's own Ethernet addresses as a router: frames to them are routed.
    pub router_macs: Vec<Mac>,
    pub stations: Vec<Station>,
    /// Routes of IPv4 prefixes, for routed packets.
    pub routes: Vec<SwitchRoute>,
}

/// A P4 switch that translates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslatorOptions {
    pub switch: SwitchOptions,
    /// Its name, after which its state is named.
    pub name: String,
    /// Name of its session and its node.
    pub session: String,
    /// File for the state that cannot be read back from the switch; default: one in the user's state directory.
    pub state: Option<PathBuf>,
    /// Reporters to accept, each from its own address. Empty = accept everybody.
    pub reporters: Vec<(u16, Ipv4Addr)>,
}

/// What is reached by frames to an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Station {
    pub mac: Mac,
    /// The port that leads to it.
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRoute {
    /// IPv4 address or prefix of the destinations.
    pub prefix: Prefix,
    /// The port that leads there.
    pub port: u16,
    /// Source Ethernet address of routed frames.
    pub source: Mac,
    /// Ethernet address of the next hop.
    pub destination: Mac,
}
