//! What a reporter switch should do.

use std::net::Ipv4Addr;

use dta_proto::prefix::Prefix;
use dta_proto::program::Mac;
use serde::{Deserialize, Serialize};

use crate::matches::{Masked, PortRange, Protocol};

/// What a reporter switch should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchReporterSettings {
    /// The switch's number in reports.
    pub switch_id: u32,
    /// Whether to report each packet of a watched flow.
    pub every_packet: bool,
    /// The bits of time whose change causes a report.
    pub interval_mask: u64,
    /// The bits of hop latency whose change causes a report.
    pub latency_mask: u32,
    /// Nanoseconds to add to the switch's clock.
    pub time_offset_ns: u64,
    /// Flows to watch, those of prefixes last.
    pub watch: Vec<ReporterWatchRule>,
    /// What never to watch, destinations included.
    pub excluded: Vec<Excluded>,
    /// When to report queues: quota and reset are set.
    pub thresholds: Vec<Threshold>,
    pub queues: Vec<QueueOf>,
    /// Per pipe, where the traffic manager sends what it would drop; empty if such drops are not reported.
    pub deflect: Vec<Deflect>,
    pub ports: Vec<SwitchPort>,
    pub acl: Vec<Acl>,
    /// Ethernet addresses whose frames go to all ports of the flood.
    pub flood_macs: Vec<Mac>,
    /// Ethernet addresses whose frames are dropped.
    pub drop_macs: Vec<DropMac>,
    pub drop_routes: Vec<DropRoute>,
    /// Source Ethernet and IP address of reports.
    pub source: (Mac, Ipv4Addr),
    /// Destinations; the first has number 1.
    pub destinations: Vec<ReportReceiver>,
    /// Outputs; the first has number 1.
    pub reports: Vec<ResolvedReportOutput>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportReceiver {
    pub name: String,
    pub kind: ReceiverKind,
    /// Its address and UDP port.
    pub to: (Ipv4Addr, u16),
    /// The switch's port to it, and the Ethernet address there.
    pub by: (u16, Mac),
    /// UDP source port of reports.
    pub source_port: u16,
    /// IPv4 TOS byte of reports.
    pub tos: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverKind {
    Translator {
        /// The switch's number there.
        reporter: u16,
    },
    IntCollector {
        hardware: u8,
        /// Bytes to send of the packet.
        packet_bytes: u16,
    },
}

/// What to make of reports, fully resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedReportOutput {
    pub of: Vec<SwitchReportKind>,
    pub to: u8,
    pub becomes: Becomes,
}

/// What a report becomes, with its store's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Becomes {
    KeyWrite {
        store: u16,
        redundancy: u8,
        key: KeyKind,
        value: ValueKind,
        time: bool,
    },
    /// A postcard of the flow.
    Postcard {
        store: u16,
        value: ValueKind,
    },
    Append {
        store: u16,
        list: u32,
        entry: EntryKind,
        immediate: bool,
    },
    /// A counter of a key.
    KeyIncrement {
        store: u16,
        redundancy: u8,
        key: KeyKind,
        value: ValueKind,
    },
    /// A Telemetry Report v0.5.
    TelemetryReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchReportKind {
    /// Of packets that are forwarded.
    Flow,
    /// Of packets in congested queues.
    Queue,
    /// Of packets that are dropped.
    Drop,
}

impl SwitchReportKind {
    pub const ALL: [SwitchReportKind; 3] =
        [SwitchReportKind::Flow, SwitchReportKind::Queue, SwitchReportKind::Drop];
}

fn all_kinds() -> Vec<SwitchReportKind> {
    SwitchReportKind::ALL.to_vec()
}

/// Flows to watch. An absent field matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReporterWatchRule {
    #[serde(default)]
    pub source: Masked,
    #[serde(default)]
    pub destination: Masked,
    pub protocol: Option<Protocol>,
    #[serde(default = "all_ports")]
    pub source_ports: PortRange,
    #[serde(default = "all_ports")]
    pub destination_ports: PortRange,
    /// What to report about them; empty = nothing.
    #[serde(default = "all_kinds")]
    pub report: Vec<SwitchReportKind>,
}

fn all_ports() -> PortRange {
    PortRange::ALL
}

/// Traffic never to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Excluded {
    pub destination: Masked,
    #[serde(default = "default_protocol")]
    pub protocol: Protocol,
    /// Its destination port; default: all.
    pub port: Option<u16>,
}

fn default_protocol() -> Protocol {
    Protocol::UDP
}

/// When to report packets of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    pub queue: u8,
    pub port: Option<u16>,
    /// Packets that spent at least this many nanoseconds in the switch are reported.
    pub trigger_ns: u32,
    /// The quota is refilled when a packet spent fewer nanoseconds than this in the switch; default: half the
    /// trigger.
    pub reset_ns: Option<u32>,
    /// Most reports until then; default: 1024.
    pub quota: Option<u16>,
}

/// The queue for a DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueOf {
    pub dscp: u8,
    pub queue: u8,
}

/// Where the traffic manager of a pipe sends what it would drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deflect {
    /// A port of the pipe.
    pub port: u16,
    #[serde(default)]
    pub queue: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchPort {
    pub port: u16,
    /// The position of this switch, from 0, on paths that enter there.
    #[serde(default)]
    pub hop: u8,
    /// Whether paths that leave there end at this switch.
    #[serde(default)]
    pub is_last_hop: bool,
    /// Whether packets may enter there.
    #[serde(default = "default_true")]
    pub ingress: bool,
    /// Whether packets may leave there.
    #[serde(default = "default_true")]
    pub egress: bool,
}

fn default_true() -> bool {
    true
}

/// An entry of the access list. An absent field matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acl {
    pub ingress_port: Option<u16>,
    #[serde(default)]
    pub source: Masked,
    #[serde(default)]
    pub destination: Masked,
    pub protocol: Option<Protocol>,
    #[serde(default = "all_ports")]
    pub source_ports: PortRange,
    #[serde(default = "all_ports")]
    pub destination_ports: PortRange,
    /// Whether they pass; otherwise they are dropped.
    #[serde(default)]
    pub permit: bool,
    #[serde(default = "acl_deny_reason")]
    pub reason: u8,
}

/// SD-Fabric's reason for drops by the access list.
fn acl_deny_reason() -> u8 {
    80
}

/// An Ethernet address whose frames are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropMac {
    pub mac: Mac,
    pub reason: u8,
}

/// A prefix that is not routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropRoute {
    /// IPv4 address or prefix.
    pub prefix: Prefix,
    pub reason: u8,
}

/// The subject of a value or counter. The number is the P4 program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    Flow = 0,
    /// The latency of the flow in this switch.
    HopLatency = 1,
    /// The queue of this switch.
    QueueOccupancy = 2,
    /// Drops of this switch, by reason.
    Drops = 3,
    /// Drops of the flow, by reason.
    FlowDrops = 4,
    Packets = 5,
    /// Bytes of the flow.
    Bytes = 6,
}

/// The value to report or add. The number is the P4 program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueKind {
    /// Nanoseconds in the switch.
    HopLatency = 0,
    QueueOccupancy = 1,
    Switch = 2,
    One = 3,
    /// Bytes of the frame.
    Bytes = 4,
}

/// An entry of a list. The number is the P4 program's.
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
