//! What to do with reports: where to write, what counts as a change, which flows to watch.

use dta_proto::telemetry::{KEEP_ALIVE_SECONDS, Metric};

use super::seen::Detect;
use super::watch::WatchRule;

/// Ids of the stores for primitives. Nothing is made for a missing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreIds {
    /// Key-write, values of 60 bytes: paths of flows.
    pub paths: Option<u16>,
    /// Key-write, values of 12 bytes: latencies, queues, links.
    pub values: Option<u16>,
    /// Append, entries of 60 bytes, 4 lists: changes, drops, congestion, keys.
    pub events: Option<u16>,
    /// Key-increment: reports, packets, bytes, drops.
    pub counters: Option<u16>,
    /// Postcarding: paths of flows whose switches each report separately.
    pub postcards: Option<u16>,
}

/// How to follow one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricRule {
    pub on: bool,
    /// When it counts as changed.
    pub detect: Detect,
    /// Nanoseconds after which an unchanged value is reported again; 0 = never.
    pub keep_alive: u64,
    /// Whether every report writes the value, not only those that make an event.
    pub always: bool,
}

/// Which time to write beside a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeMode {
    /// Arrival of the report, nanoseconds since 1970.
    #[default]
    Arrival,
    /// The switch's time: for 32 bits, the time nearest to the arrival that ends in them. Its clock must
    /// agree with this host's to within a second or two.
    Switch,
    /// The number as the switch sent it.
    Raw,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// By metric, in the order of [`Metric::ALL`].
    pub metrics: [MetricRule; Metric::ALL.len()],
    /// Whether every packet of a flow is reported, so that packets and bytes can be counted.
    pub per_packet: bool,
    /// Whether to count the reports of each flow.
    pub count_reports: bool,
    /// Nanoseconds for which a flow's reports, packets and bytes are summed before they are written; 0 = each report
    /// writes them.
    pub count_wait: u64,
    pub time: TimeMode,
    /// Flows to watch; empty = all. Reports whose packet cannot be parsed are always processed.
    pub watch: Vec<WatchRule>,
    /// Size of the table of values.
    pub keys: usize,
    /// Size of the table of flows whose switches each report separately.
    pub trails: usize,
    /// Nanoseconds after a switch joined a path during which the path is still being learned: another switch
    /// in that time is not a change of path.
    pub learning: u64,
    /// Switches whose sequences are tracked.
    pub sources: usize,
}

impl Default for Rules {
    /// Everything is watched; values change from one power of two to the next, paths when a switch changes;
    /// unchanged values are reported again after a minute.
    fn default() -> Self {
        let keep_alive = KEEP_ALIVE_SECONDS * 1_000_000_000;
        let rule = MetricRule { on: true, detect: Detect::Powers, keep_alive, always: false };
        let mut metrics = [rule; Metric::ALL.len()];
        metrics[Metric::FlowPath.index()].detect = Detect::Any;
        Rules {
            metrics,
            per_packet: false,
            count_reports: true,
            count_wait: 1_000_000_000,
            time: TimeMode::Arrival,
            watch: Vec::new(),
            keys: 1 << 18,
            trails: 1 << 14,
            learning: 5_000_000_000,
            sources: 4096,
        }
    }
}

impl Rules {
    /// How many values are remembered.
    pub fn value_capacity(&self) -> usize {
        self.keys.next_power_of_two().max(4)
    }

    /// Whether flow counts are summed before they are written.
    pub(crate) fn gathers_counts(&self) -> bool {
        self.count_wait != 0 && (self.count_reports || self.per_packet)
    }
}
