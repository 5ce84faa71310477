//! What a switch of the role `reporter` does: `[switch.NAME.reporter]`. Names and meanings are those of SD-Fabric.
//!
//! [`Reporter`] is what the file says; what results is in [`settings`](super::settings).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use dta_proto::prefix::Prefix;
use dta_proto::program::Mac;
use serde::{Deserialize, Serialize};

use super::matches::{Masked, PortRange, Protocol};
use super::switch::prefix;

/// The UDP port of reports, which the programs know: it is never watched.
pub(super) const REPORTS_PORT: u16 = 40_040;

/// Table `[switch.NAME.reporter]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reporter {
    /// The switch's number in reports; left out, the node SID of its netcfg.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch_id: Option<u32>,
    /// Whether each packet of a watched flow is reported.
    pub every_packet: bool,
    /// Nanoseconds, a power of two, after which a flow is reported again; 0 = never by time. Left out, 2^30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_ns: Option<u64>,
    /// Nanoseconds, a power of two to 2^32, by which the hop latency has to change for a report; 0 or 1 = each change, 2^32 =
    /// no change. Left out, as the netcfg says, or 2^14.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_flow_hop_latency_change_ns: Option<u64>,
    /// Nanoseconds that are added to the switch's clock: with them, times are since 1970.
    #[serde(skip_serializing_if = "is_zero")]
    pub time_offset_ns: u64,
    /// Prefixes whose flows, from and to them, are watched, behind `watch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch_subnets: Option<Vec<Masked>>,
    /// Flows that are watched. The first one that fits counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<Watch>,
    /// Traffic that is never watched, beside that of DTA, of RoCEv2 and to the destinations of reports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Excluded>,
    /// When queues are reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_report_latency_thresholds: Option<Vec<Threshold>>,
    /// Queues by DSCP; left out, all packets pass queue 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueOf>,
    /// Where the traffic manager sends what it would drop, one port of each pipe; left out, it drops in silence. Of a
    /// Tofino alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deflect: Vec<Deflect>,
    /// Ports that take part.
    pub ports: Vec<Port>,
    /// Access list. The first entry that fits counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acl: Vec<Acl>,
    /// Ethernet addresses whose frames go to all ports of `flood`; left out, ff:ff:ff:ff:ff:ff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flood_macs: Option<Vec<Mac>>,
    /// Ethernet addresses whose frames are dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_macs: Vec<DropMac>,
    /// Prefixes that are not routed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_routes: Vec<DropRoute>,
    /// Ids of stores by their names in the collector; those of its default stores for INT are known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stores: BTreeMap<String, u16>,
    /// Where reports go; left out, to the collector of the netcfg.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destination: Vec<Destination>,
    /// What becomes of each kind of report; left out, what the collector's default stores for INT want.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub report: Vec<Report>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A kind of report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Of packets that are forwarded.
    Flow,
    /// Of packets in congested queues.
    Queue,
    /// Of packets that are dropped.
    Drop,
}

impl What {
    /// All kinds.
    pub const ALL: [What; 3] = [What::Flow, What::Queue, What::Drop];
}

fn all_kinds() -> Vec<What> {
    What::ALL.to_vec()
}

/// Flows that are watched. What is left out fits all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// Source addresses.
    #[serde(default)]
    pub source: Masked,
    /// Destination addresses.
    #[serde(default)]
    pub destination: Masked,
    /// IP protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Source ports.
    #[serde(default = "all_ports")]
    pub source_ports: PortRange,
    /// Destination ports.
    #[serde(default = "all_ports")]
    pub destination_ports: PortRange,
    /// What is reported of them; empty = nothing.
    #[serde(default = "all_kinds")]
    pub report: Vec<What>,
}

fn all_ports() -> PortRange {
    PortRange::ALL
}

/// Traffic that is never watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Excluded {
    /// Its destination.
    pub destination: Masked,
    /// Its IP protocol.
    #[serde(default = "udp")]
    pub protocol: Protocol,
    /// Its destination port; left out, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

fn udp() -> Protocol {
    Protocol::UDP
}

/// When packets of a queue are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// The queue.
    pub queue: u8,
    /// The port that it is of; left out, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Packets that were in the switch for so many nanoseconds are reported.
    pub trigger_ns: u32,
    /// The quota begins anew when a packet was in the switch for fewer nanoseconds; left out, half of the trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_ns: Option<u32>,
    /// Reports until then, at most; left out, 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u16>,
}

/// The queue of packets of a DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueOf {
    /// The DSCP.
    pub dscp: u8,
    /// The queue.
    pub queue: u8,
}

/// Where the traffic manager of a pipe sends what it would drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deflect {
    /// A port of the pipe.
    pub port: u16,
    /// Its queue.
    #[serde(default)]
    pub queue: u8,
}

/// A port that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its number.
    pub port: u16,
    /// The place of this switch on paths that come in there, from 0.
    #[serde(default)]
    pub hop: u8,
    /// Whether paths that leave there end at this switch.
    #[serde(default)]
    pub is_last_hop: bool,
    /// Whether packets may come in there.
    #[serde(default = "yes")]
    pub ingress: bool,
    /// Whether packets may leave there.
    #[serde(default = "yes")]
    pub egress: bool,
}

fn yes() -> bool {
    true
}

/// An entry of the access list. What is left out fits all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acl {
    /// The port that packets come in at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_port: Option<u16>,
    /// Source addresses.
    #[serde(default)]
    pub source: Masked,
    /// Destination addresses.
    #[serde(default)]
    pub destination: Masked,
    /// IP protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Source ports.
    #[serde(default = "all_ports")]
    pub source_ports: PortRange,
    /// Destination ports.
    #[serde(default = "all_ports")]
    pub destination_ports: PortRange,
    /// Whether they pass; else they are dropped.
    #[serde(default)]
    pub permit: bool,
    /// Why they are dropped.
    #[serde(default = "acl_deny")]
    pub reason: u8,
}

/// SD-Fabric's reason for what the access list drops.
fn acl_deny() -> u8 {
    80
}

/// An Ethernet address whose frames are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropMac {
    /// The address.
    pub mac: Mac,
    /// Why.
    pub reason: u8,
}

/// A prefix that is not routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropRoute {
    /// IPv4 address or prefix.
    #[serde(with = "prefix")]
    pub prefix: Prefix,
    /// Why.
    pub reason: u8,
}

/// What reports are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A translator: reports of DTA.
    Translator,
    /// An INT collector: Telemetry Reports v0.5.
    IntCollector,
}

/// Where reports go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    /// Its name here.
    pub name: String,
    /// Its address.
    #[serde(deserialize_with = "dta_files::host::serde::ipv4")]
    pub collector_ip: Ipv4Addr,
    /// Its UDP port.
    #[serde(default = "reports_port")]
    pub collector_port: u16,
    /// What it is; left out, a translator at port 40040, and an INT collector at others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// This switch's number as a reporter there; left out, `switch_id`. Of a translator alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reporter: Option<u16>,
    /// The switch's port to it; left out, as `routes` say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Ethernet address of it, or of the next router; left out, as `routes` say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// UDP port that reports come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// IPv4 TOS byte of reports.
    #[serde(default)]
    pub tos: u8,
    /// Id of the hardware in Telemetry Reports. Of an INT collector alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<u8>,
    /// Bytes of the packet that is reported. Of an INT collector alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_bytes: Option<u16>,
}

fn reports_port() -> u16 {
    REPORTS_PORT
}

/// What a report becomes.
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

/// What a value or a counter is about. The number is that of the P4 program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// The flow.
    Flow = 0,
    /// The latency of the flow in this switch.
    HopLatency = 1,
    /// The queue of this switch.
    QueueOccupancy = 2,
    /// Drops of this switch, by reason.
    Drops = 3,
    /// Drops of the flow, by reason.
    FlowDrops = 4,
    /// Packets of the flow.
    Packets = 5,
    /// Bytes of the flow.
    Bytes = 6,
}

/// What is told, or added. The number is that of the P4 program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueKind {
    /// Nanoseconds in the switch.
    HopLatency = 0,
    /// Packets in the queue.
    QueueOccupancy = 1,
    /// The switch's number.
    Switch = 2,
    /// One.
    One = 3,
    /// Bytes of the frame.
    Bytes = 4,
}

/// An entry of a list. The number is that of the P4 program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A dropped packet; 60 bytes.
    Drop = 0,
    /// A packet in a congested queue; 60 bytes.
    Congestion = 1,
    /// The key of the flow; 16 bytes.
    Flow = 2,
}

/// What becomes of reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Which ones.
    pub of: Vec<What>,
    /// Name of the destination; left out, the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// What they become.
    #[serde(rename = "as")]
    pub becomes: As,
    /// Name of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Of a key-write or key-increment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyKind>,
    /// Of a key-write, a postcard or a key-increment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ValueKind>,
    /// Whether the time is written behind the value: 12 bytes, else 4. Of a key-write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<bool>,
    /// Copies; left out, as many as the store has. Of a key-write or key-increment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<u8>,
    /// The list. Of an append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<u32>,
    /// The entry. Of an append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryKind>,
    /// Whether the collector is told at once. Of an append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immediate: Option<bool>,
}
