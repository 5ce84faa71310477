//! Readings of counters and values, taken by the collector at the end of each bucket: their kinds and their entries.

use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::telemetry::{InterfaceCounter, Location, Metric};

use super::source::{Entry, place_entry};

/// The counters and values that rules can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadingKind {
    /// A counter of an interface, from sFlow's interface counters.
    Interface(InterfaceCounter),
    /// Packets that a switch or an exporter dropped for a reason.
    Drops,
    /// Packets of a flow that were dropped for a reason.
    FlowDrops,
    /// Packets of a flow, where they are counted; [`ReadingKind::FlowBytes`] are its bytes.
    FlowPackets,
    FlowBytes,
    /// The latest value of a metric.
    Value(Metric),
}

const OTHER_COUNTERS: [ReadingKind; 4] =
    [ReadingKind::Drops, ReadingKind::FlowDrops, ReadingKind::FlowPackets, ReadingKind::FlowBytes];

impl ReadingKind {
    pub(super) fn counters() -> impl Iterator<Item = ReadingKind> {
        InterfaceCounter::ALL.into_iter().map(ReadingKind::Interface).chain(OTHER_COUNTERS)
    }

    /// All values except the path, which is not a number.
    pub(super) fn values() -> impl Iterator<Item = ReadingKind> {
        Metric::ALL.into_iter().filter(|metric| *metric != Metric::FlowPath).map(ReadingKind::Value)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            ReadingKind::Interface(counter) => counter.name(),
            ReadingKind::Drops => "drops",
            ReadingKind::FlowDrops => "flow-drops",
            ReadingKind::FlowPackets => "flow-packets",
            ReadingKind::FlowBytes => "flow-bytes",
            ReadingKind::Value(metric) => metric.name(),
        }
    }

    /// Whether it counts bytes rather than packets.
    pub(super) fn counts_bytes(self) -> bool {
        matches!(
            self,
            ReadingKind::Interface(InterfaceCounter::InOctets | InterfaceCounter::OutOctets)
                | ReadingKind::FlowBytes
        )
    }

    /// Whether its readings have a value in this column.
    pub(super) fn has_column(self, name: &str) -> bool {
        let is_of_flow = matches!(name, "src" | "dst" | "src-port" | "dst-port" | "protocol");
        match self {
            ReadingKind::Interface(_) => matches!(name, "switch" | "port"),
            ReadingKind::Drops => matches!(name, "switch" | "reason"),
            ReadingKind::FlowDrops => is_of_flow || name == "reason",
            ReadingKind::FlowPackets | ReadingKind::FlowBytes => is_of_flow,
            ReadingKind::Value(metric) => {
                let is_of_place = match metric {
                    Metric::FlowPath | Metric::FlowLatency => is_of_flow,
                    Metric::HopLatency => is_of_flow || name == "switch",
                    Metric::QueueOccupancy | Metric::QueueCongestion => {
                        matches!(name, "switch" | "port" | "queue")
                    }
                    Metric::LinkUtilization => matches!(name, "switch" | "port"),
                };
                is_of_place || matches!(name, "value" | "age")
            }
        }
    }
}

/// One reading of a counter or value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub kind: ReadingKind,
    pub place: Location,
    pub flow: Option<Flow>,
    pub reason: Option<DropReason>,
    /// What was counted since the previous reading, or the value.
    pub number: u64,
    /// Seconds since the value was written; 0 for counters, and where a switch uses its own time.
    pub age: u32,
    /// Whether something was counted or written since the previous reading.
    pub is_news: bool,
}

impl Reading {
    pub(super) fn to_entry(self) -> Entry {
        let mut entry = place_entry(self.place, self.flow, self.reason);
        entry[48..56].copy_from_slice(&self.number.to_be_bytes());
        entry[96..100].copy_from_slice(&self.age.to_be_bytes());
        entry
    }
}
