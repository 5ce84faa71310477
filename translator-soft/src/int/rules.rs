//! What is made of reports: where it is written, what counts as a change, which flows are looked at.

use dta_proto::telemetry::{KEEP_ALIVE_SECONDS, Metric};

use super::seen::Detect;
use super::watch::Watch;

/// Ids of the stores that primitives are for. What has no store is not made.
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
    /// Postcarding: paths of flows whose switches each report for themselves.
    pub postcards: Option<u16>,
}

/// How one metric is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricRule {
    /// Whether it is looked at.
    pub on: bool,
    /// When it counts as changed.
    pub detect: Detect,
    /// Nanoseconds after which a value that did not change is told again; 0 = never.
    pub keep_alive: u64,
    /// Whether each report writes the value, and not only what makes an event.
    pub always: bool,
}

/// Which moment is written beside a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeMode {
    /// When the report arrived, nanoseconds since 1970.
    #[default]
    Arrival,
    /// What the switch sent: of 32 bits, the moment nearest to the arrival that ends in them. Its clock must be
    /// that of this host, to a second or two.
    Switch,
    /// The number that the switch sent.
    Raw,
}

/// All rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// By metric, in the order of [`Metric::ALL`].
    pub metrics: [MetricRule; Metric::ALL.len()],
    /// Whether a report stands for each packet of its flow, so that packets and bytes can be counted.
    pub per_packet: bool,
    /// Whether the reports of each flow are counted.
    pub count_reports: bool,
    /// Nanoseconds that counts of a flow's reports, packets and bytes are added up before they are written; 0 = each
    /// report writes them.
    pub count_wait: u64,
    /// Which moment is written.
    pub time: TimeMode,
    /// Flows that are looked at; empty = all. Reports whose packet cannot be read are always looked at.
    pub watch: Vec<Watch>,
    /// Keys of values that are remembered.
    pub keys: usize,
    /// Flows whose switches each report for themselves that are remembered.
    pub trails: usize,
    /// Nanoseconds for which a path to which a switch came is still being learned: the next one that comes in that time
    /// is no change of the path.
    pub learning: u64,
    /// Switches whose sequences are followed.
    pub sources: usize,
}

impl Default for Rules {
    /// Everything is looked at; values change from one power of two to the next, paths when a switch is another;
    /// what does not change is told again after a minute.
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
    /// Whether counts of flows are added up before they are written.
    pub(crate) fn gathers(&self) -> bool {
        self.count_wait != 0 && (self.count_reports || self.per_packet)
    }
}
