//! What events are about, by name.

use dta_proto::telemetry::{Entry, Metric, Why, list};
use serde::Serialize;

dta_proto::named! {
    /// What an event is about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Kind {
        /// The switches that a flow passes.
        FlowPath: "flow-path",
        /// The latency of a flow through all hops.
        FlowLatency: "flow-latency",
        /// The latency of a flow through one switch.
        HopLatency: "hop-latency",
        /// Occupancy of a queue.
        QueueOccupancy: "queue-occupancy",
        /// Congestion status of a queue.
        QueueCongestion: "queue-congestion",
        /// Utilisation of a link.
        LinkUtilization: "link-utilization",
        /// A path passes a switch twice.
        Loop: "loop",
        /// A packet was dropped.
        Drop: "drop",
        /// A packet waited in a congested queue.
        CongestedPacket: "congested-packet",
        /// The key directory got a key.
        Key: "key",
    }
}

impl Kind {
    /// Those shown by default: all but keys.
    pub const SHOWN: [Kind; 9] = [
        Kind::Drop,
        Kind::CongestedPacket,
        Kind::Loop,
        Kind::FlowPath,
        Kind::FlowLatency,
        Kind::HopLatency,
        Kind::QueueOccupancy,
        Kind::QueueCongestion,
        Kind::LinkUtilization,
    ];

    /// The list that has it.
    pub fn list(self) -> u32 {
        match self {
            Kind::Drop => list::DROPS,
            Kind::CongestedPacket => list::CONGESTION,
            Kind::Key => list::KEYS,
            _ => list::CHANGES,
        }
    }

    /// What an entry is about.
    pub fn of(entry: &Entry) -> Kind {
        match entry {
            Entry::Change { why: Why::Loop, .. } => Kind::Loop,
            Entry::Change { metric, .. } => match metric {
                Metric::FlowPath => Kind::FlowPath,
                Metric::FlowLatency => Kind::FlowLatency,
                Metric::HopLatency => Kind::HopLatency,
                Metric::QueueOccupancy => Kind::QueueOccupancy,
                Metric::QueueCongestion => Kind::QueueCongestion,
                Metric::LinkUtilization => Kind::LinkUtilization,
            },
            Entry::Drop { .. } => Kind::Drop,
            Entry::Congestion { .. } => Kind::CongestedPacket,
            Entry::Key { .. } => Kind::Key,
        }
    }
}

dta_proto::parse_by_name!(Kind);
