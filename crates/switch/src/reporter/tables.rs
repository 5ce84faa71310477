//! The tables of `reporter-p4` that the control plane uses. `reporter-p4/README.md` explains them. At the
//! start, and in a test, this is checked against the compiled program's description.

use std::borrow::Cow;
use std::net::Ipv4Addr;

use dta_proto::prefix::Prefix;
use dta_proto::program::Mac;

use crate::matches::{Masked, PortRange, Protocol};
use crate::row::{actions, tables};
use crate::schema::Used;

actions! {
    Forward = "forward" { port: u16 = 9 }
    Flood = "flood" { group: u32 = 16 }
    Route = "route" {}
    NextHop = "next_hop" { port: u16 = 9, source: Mac = 48, destination: Mac = 48 }
    /// Packets are dropped, and reported with this reason.
    Drop = "drop" { reason: u8 = 8 }
    Admit = "admit" { hop: u8 = 4 }
    Permit = "permit" {}
    Deny = "deny" { reason: u8 = 8 }
    UseQueue = "use_queue" { queue: u8 = 3 }
    Exclude = "exclude" {}
    Watch = "watch" { flows: bool = 1, queues: bool = 1, drops: bool = 1 }
    Ignore = "ignore" {}
    Limit = "limit" { trigger_ns: u32 = 32, reset_ns: u32 = 32, reports: u16 = 16 }
    KeyWrite = "key_write" {
        destination: u8 = 8,
        store: u16 = 16,
        redundancy: u8 = 8,
        key_kind: u8 = 8,
        value_kind: u8 = 8,
        with_time: bool = 1,
    }
    Append = "append" {
        destination: u8 = 8,
        store: u16 = 16,
        list_number: u32 = 32,
        entry_kind: u8 = 8,
        immediate: bool = 1,
    }
    KeyIncrement = "key_increment" {
        destination: u8 = 8,
        store: u16 = 16,
        redundancy: u8 = 8,
        key_kind: u8 = 8,
        value_kind: u8 = 8,
    }
    Postcard = "postcard" { destination: u8 = 8, store: u16 = 16, value_kind: u8 = 8 }
    TelemetryReport = "telemetry_report" { destination: u8 = 8 }
    Translator = "translator" {
        reporter: u16 = 16,
        source_mac: Mac = 48,
        destination_mac: Mac = 48,
        source_ip: Ipv4Addr = 32,
        destination_ip: Ipv4Addr = 32,
        source_port: u16 = 16,
        destination_port: u16 = 16,
        tos: u8 = 8,
    }
    IntCollector = "int_collector" {
        hardware: u8 = 6,
        packet_bytes: u16 = 16,
        source_mac: Mac = 48,
        destination_mac: Mac = 48,
        source_ip: Ipv4Addr = 32,
        destination_ip: Ipv4Addr = 32,
        source_port: u16 = 16,
        destination_port: u16 = 16,
        tos: u8 = 8,
    }
    Allow = "allow" { is_last_hop: bool = 1 }
    Set = "set" {
        switch_id: u32 = 32,
        time_offset: u64 = 64,
        interval_mask: u64 = 64,
        latency_mask: u32 = 32,
        every_packet: bool = 1,
    }
}

tables! {
    TABLES:
    L2 = "l2" { destination: Mac = 48 } => [Forward, Flood, Route, Drop]
    L3 = "l3" { destination: Prefix = 32 } => [NextHop, Drop]
    IngressPort = "ingress_port" { ingress_port: u16 = 9 } => [Admit]
    Acl = "acl" {
        ingress_port: Option<u16> = 9,
        source: Masked = 32,
        destination: Masked = 32,
        protocol: Option<Protocol> = 8,
        source_port: PortRange = 16,
        destination_port: PortRange = 16,
    } => [Permit, Deny]
    QueueOf = "queue_of" { dscp: u8 = 6 } => [UseQueue]
    Excluded = "excluded" {
        destination: Masked = 32,
        protocol: Protocol = 8,
        destination_port: Option<u16> = 16,
    } => [Exclude]
    Watchlist = "watchlist" {
        source: Masked = 32,
        destination: Masked = 32,
        protocol: Option<Protocol> = 8,
        source_port: PortRange = 16,
        destination_port: PortRange = 16,
    } => [Watch, Ignore]
    QueueLimits = "queue_limits" { egress_port: Option<u16> = 9, queue: u8 = 32 } => [Limit]
    /// The output for a copy of a packet, by its replication id.
    Report = "report" { replica: u32 = 16 } => [KeyWrite, Append, KeyIncrement, Postcard, TelemetryReport]
    /// Destinations of reports, from number 1.
    Destination = "destination" { number: u8 = 8 } => [Translator, IntCollector]
    EgressPort = "egress_port" { egress_port: u16 = 9 } => [Allow]
    Settings = "settings" {} => [Set]
}

pub static USED: Used =
    Used { tables: Cow::Borrowed(TABLES), counters: Cow::Borrowed(&COUNTERS), packet_out: &[] };

/// Counters, with the size of each.
pub static COUNTERS: [(&str, u64); 14] = [
    ("received", 512),
    ("no_flow", 2),
    ("excluded_packets", 1),
    ("watched", 1),
    ("dropped", 256),
    ("ingress_mirrored", 16),
    ("forwarded", 512),
    ("egress_dropped", 256),
    ("mirrored", 16),
    ("unchanged", 1),
    ("over_quota", 1),
    ("sent", 256),
    ("no_report", 1),
    ("no_destination", 1),
];

/// The multicast group for broadcast frames.
pub const FLOOD_GROUP: u32 = 1;
/// Clone sessions: for reports of flows, of queues, of both, and of drops.
pub const SESSIONS: [u32; 4] = [1, 2, 3, 4];
