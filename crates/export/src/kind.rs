//! What events are about, by name.

use dta_proto::telemetry::{Metric, TelemetryEntry, Why, list};
use serde::Serialize;

dta_proto::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum EventKind {
        /// The switches that a flow passes.
        FlowPath: "flow-path",
        /// The latency of a flow through all hops.
        FlowLatency: "flow-latency",
        /// The latency of a flow through one switch.
        HopLatency: "hop-latency",
        QueueOccupancy: "queue-occupancy",
        QueueCongestion: "queue-congestion",
        LinkUtilization: "link-utilization",
        /// A path passes a switch twice.
        Loop: "loop",
        /// A packet was dropped.
        Drop: "drop",
        /// A packet waited in a congested queue.
        CongestedPacket: "congested-packet",
        /// The key directory received a key.
        Key: "key",
    }
}

impl EventKind {
    /// Those shown by default: all but keys.
    pub const SHOWN: [EventKind; 9] = [
        EventKind::Drop,
        EventKind::CongestedPacket,
        EventKind::Loop,
        EventKind::FlowPath,
        EventKind::FlowLatency,
        EventKind::HopLatency,
        EventKind::QueueOccupancy,
        EventKind::QueueCongestion,
        EventKind::LinkUtilization,
    ];

    pub fn list_number(self) -> u32 {
        match self {
            EventKind::Drop => list::DROPS,
            EventKind::CongestedPacket => list::CONGESTION,
            EventKind::Key => list::KEYS,
            _ => list::CHANGES,
        }
    }

    pub fn from_entry(entry: &TelemetryEntry) -> EventKind {
        match entry {
            TelemetryEntry::Change { why: Why::Loop, .. } => EventKind::Loop,
            TelemetryEntry::Change { metric, .. } => match metric {
                Metric::FlowPath => EventKind::FlowPath,
                Metric::FlowLatency => EventKind::FlowLatency,
                Metric::HopLatency => EventKind::HopLatency,
                Metric::QueueOccupancy => EventKind::QueueOccupancy,
                Metric::QueueCongestion => EventKind::QueueCongestion,
                Metric::LinkUtilization => EventKind::LinkUtilization,
            },
            TelemetryEntry::Drop { .. } => EventKind::Drop,
            TelemetryEntry::Congestion { .. } => EventKind::CongestedPacket,
            TelemetryEntry::Key { .. } => EventKind::Key,
        }
    }
}

dta_proto::parse_by_name!(EventKind);
