//! One node and its counters, in order.

use dta_proto::control::NodeStatistics;
use dta_proto::counter::{self, CounterStep, ParsedCounter, Stage, Unit};
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaterfallNode {
    pub stage: Stage,
    /// `translator/NAME`, `nic/DEVICE`, …
    pub name: String,
    /// The session that reported it; empty for the collector's own.
    pub session: String,
    /// Age of these counters in seconds.
    pub age: f64,
    /// When it read its counters, in microseconds since 1970 by its own clock; 0 = unknown.
    pub time_us: u64,
    /// By name, in the order of the waterfall.
    pub counters: Vec<(String, u64)>,
}

/// Nodes in order, with their counters in order.
pub fn ordered_nodes(statistics: Vec<NodeStatistics>) -> Vec<WaterfallNode> {
    let mut nodes: Vec<WaterfallNode> = statistics
        .into_iter()
        .map(|n| {
            let stage = Stage::from_node_name(&n.node);
            let mut counters: Vec<(String, u64)> =
                n.counters.into_iter().map(|c| (c.name, c.value)).collect();
            counters.sort_by_cached_key(|(name, _)| {
                (counter_rank(counter::find_counter(&n.node, name)), name.clone())
            });
            WaterfallNode {
                stage,
                name: n.node,
                session: n.session,
                age: n.age_seconds,
                time_us: n.time_us,
                counters,
            }
        })
        .collect();
    nodes.sort_by(|a, b| (a.stage, &a.name, &a.session).cmp(&(b.stage, &b.name, &b.session)));
    nodes
}

impl WaterfallNode {
    /// Its name, and the session if that adds information.
    pub fn title(&self) -> String {
        if self.session.is_empty()
            || !self.name.contains('/') && self.stage != Stage::Collector
            || self.name.split_once('/').is_some_and(|(_, name)| name == self.session)
        {
            self.name.clone()
        } else {
            format!("{} ({})", self.name, self.session)
        }
    }

    /// What came in, if anything: its unit and count.
    pub(super) fn counted_arrivals(&self) -> Option<(Unit, u64)> {
        let of_all =
            |found: &ParsedCounter<'_>| found.definition.step == CounterStep::In && !found.definition.detail;
        let came_in = self.counters.iter().find_map(|(name, value)| {
            let found = counter::find_counter(&self.name, name).filter(of_all)?;
            Some((found.definition.unit, *value))
        });
        came_in.filter(|(_, value)| *value != 0)
    }

    pub fn get(&self, counter: &str) -> Option<u64> {
        self.counters.iter().find(|(name, _)| name == counter).map(|(_, value)| *value)
    }
}

/// Arrivals first, then what was accepted and what became of it, with the drops beside it; details and unknown
/// counters come last.
fn counter_rank(found: Option<ParsedCounter<'_>>) -> u8 {
    match found.map(|found| found.definition) {
        Some(definition) if !definition.detail => match definition.step {
            CounterStep::In => 0,
            CounterStep::Dropped => 1,
            CounterStep::Accepted => 2,
            CounterStep::Superseded | CounterStep::Held | CounterStep::Discarded => 3,
            CounterStep::Emitted => 4,
            CounterStep::Operations => 5,
            CounterStep::Frames => 6,
            CounterStep::Lost => 7,
            CounterStep::Executed => 8,
            CounterStep::Duplicate => 9,
            CounterStep::Answered | CounterStep::Beside => 10,
        },
        _ => 10,
    }
}
