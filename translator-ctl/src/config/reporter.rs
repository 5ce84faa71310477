//! Configuration of a switch with the role `reporter`: `[switch.NAME.reporter]`. Names and meanings are
//! SD-Fabric's.
//!
//! [`SwitchReporterTable`] is what the file contains; [`settings`](super::settings) resolves it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use dta_proto::program::Mac;
use serde::{Deserialize, Serialize};

use dta_switch::matches::Masked;
use dta_switch::reporter::settings::{
    Acl, Deflect, DropMac, DropRoute, EntryKind, Excluded, KeyKind, QueueOf, ReporterWatchRule, SwitchPort,
    SwitchReportKind, Threshold, ValueKind,
};

/// The UDP port of reports, known to the programs: it is never watched.
pub(super) const REPORTS_PORT: u16 = 40_040;

/// Table `[switch.NAME.reporter]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchReporterTable {
    /// The switch's number in reports.
    pub switch_id: Option<u32>,
    /// Whether to report each packet of a watched flow.
    pub every_packet: bool,
    /// Nanoseconds, a power of two, after which a flow is reported again; 0 = no limit. Default: 2^30.
    pub interval_ns: Option<u64>,
    /// Change of hop latency that causes a report, in nanoseconds, a power of two up to 2^32; 0 or 1 = each
    /// change, 2^32 = no change. Default: 2^14.
    pub min_flow_hop_latency_change_ns: Option<u64>,
    /// Nanoseconds to add to the switch's clock: with them, times count from 1970.
    #[serde(skip_serializing_if = "is_zero")]
    pub time_offset_ns: u64,
    /// Prefixes to watch, for flows from and to them, after `watch`.
    pub watch_subnets: Option<Vec<Masked>>,
    /// Flows to watch. The first match applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<ReporterWatchRule>,
    /// Traffic never to watch, besides DTA, RoCEv2 and traffic to report destinations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Excluded>,
    pub queue_report_latency_thresholds: Option<Vec<Threshold>>,
    /// Queues by DSCP; by default, all packets use queue 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueOf>,
    /// Where the traffic manager sends what it would drop, one port per pipe; by default, such drops are not
    /// reported. Tofino only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deflect: Vec<Deflect>,
    pub ports: Vec<SwitchPort>,
    /// Access list. The first match applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acl: Vec<Acl>,
    /// Ethernet addresses whose frames go to all ports of `flood`; default: ff:ff:ff:ff:ff:ff.
    pub flood_macs: Option<Vec<Mac>>,
    /// Ethernet addresses whose frames are dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_macs: Vec<DropMac>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_routes: Vec<DropRoute>,
    /// Store ids by name in the collector; those of its default INT stores are known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stores: BTreeMap<String, u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destination: Vec<Destination>,
    /// What to make of each kind of report; by default, what the collector's default INT stores need.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub report: Vec<SwitchReportOutput>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestinationKind {
    Translator,
    /// An INT collector: Telemetry Reports v0.5.
    IntCollector,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    pub name: String,
    #[serde(deserialize_with = "dta_files::host::serde::deserialize_ipv4")]
    pub collector_ip: Ipv4Addr,
    #[serde(default = "reports_port")]
    pub collector_port: u16,
    /// Its kind; default: a translator at port 40040, an INT collector at others.
    pub kind: Option<DestinationKind>,
    /// This switch's reporter id there; default: `switch_id`. Translators only.
    pub reporter: Option<u16>,
    /// The switch's port to it; default: from `routes`.
    pub port: Option<u16>,
    /// Its Ethernet address, or the next router's; default: from `routes`.
    pub mac: Option<Mac>,
    /// UDP source port of reports.
    pub source_port: Option<u16>,
    /// IPv4 TOS byte of reports.
    #[serde(default)]
    pub tos: u8,
    /// Hardware id in Telemetry Reports. INT collectors only.
    pub hardware: Option<u8>,
    /// Bytes to send of the reported packet. INT collectors only.
    pub packet_bytes: Option<u16>,
}

fn reports_port() -> u16 {
    REPORTS_PORT
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum As {
    /// A value of a key.
    KeyWrite,
    /// A postcard of the flow.
    Postcard,
    /// An entry of a list.
    Append,
    /// A counter of a key.
    KeyIncrement,
    /// A Telemetry Report v0.5.
    TelemetryReport,
}

/// What to make of reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchReportOutput {
    pub of: Vec<SwitchReportKind>,
    /// Name of the destination; default: the only one.
    pub to: Option<String>,
    #[serde(rename = "as")]
    pub becomes: As,
    pub store: Option<String>,
    /// Key-write and key-increment only.
    pub key: Option<KeyKind>,
    /// Key-write, postcard and key-increment only.
    pub value: Option<ValueKind>,
    /// Whether to append the time to the value: 12 bytes instead of 4. Key-write only.
    pub time: Option<bool>,
    /// Copies; default: as many as the store has. Key-write and key-increment only.
    pub redundancy: Option<u8>,
    /// The list. Append only.
    pub list: Option<u32>,
    /// The entry. Append only.
    pub entry: Option<EntryKind>,
    /// Whether to wake a reader at once. Append only.
    pub immediate: Option<bool>,
}
