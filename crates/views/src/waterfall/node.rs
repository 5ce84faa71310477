//! One node and its counters, in order.

use dta_proto::control::NodeStatistics;
use dta_proto::counter::{self, Found, Stage, Step, Unit};
use serde::Serialize;

/// One node and its counters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its stage.
    pub stage: Stage,
    /// `translator/NAME`, `nic/DEVICE`, …
    pub name: String,
    /// The session that handed it in; empty for the collector's own.
    pub session: String,
    /// Age of these counters in seconds.
    pub age: f64,
    /// When it read them, in microseconds since 1970 by its own clock; 0 = unknown.
    pub time_us: u64,
    /// By name, in the order of the waterfall.
    pub counters: Vec<(String, u64)>,
}

/// Nodes in order, with their counters in order.
pub fn nodes(statistics: Vec<NodeStatistics>) -> Vec<Node> {
    let mut nodes: Vec<Node> = statistics
        .into_iter()
        .map(|n| {
            let stage = Stage::of(&n.node);
            let mut counters: Vec<(String, u64)> =
                n.counters.into_iter().map(|c| (c.name, c.value)).collect();
            counters.sort_by_cached_key(|(name, _)| (rank(counter::find(&n.node, name)), name.clone()));
            Node { stage, name: n.node, session: n.session, age: n.age_seconds, time_us: n.time_us, counters }
        })
        .collect();
    nodes.sort_by(|a, b| (a.stage, &a.name, &a.session).cmp(&(b.stage, &b.name, &b.session)));
    nodes
}

impl Node {
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
    pub(super) fn came_in(&self) -> Option<(Unit, u64)> {
        let of_all = |found: &Found<'_>| found.definition.step == Step::In && !found.definition.detail;
        let came_in = self.counters.iter().find_map(|(name, value)| {
            let found = counter::find(&self.name, name).filter(of_all)?;
            Some((found.definition.unit, *value))
        });
        came_in.filter(|(_, value)| *value != 0)
    }

    /// The value of a counter.
    pub fn get(&self, counter: &str) -> Option<u64> {
        self.counters.iter().find(|(name, _)| name == counter).map(|(_, value)| *value)
    }
}

/// Arrivals first, then what was accepted and what became of it, with drops next to it; details and unknown counters
/// come last.
fn rank(found: Option<Found<'_>>) -> u8 {
    match found.map(|found| found.definition) {
        Some(definition) if !definition.detail => match definition.step {
            Step::In => 0,
            Step::Dropped => 1,
            Step::Accepted => 2,
            Step::Superseded | Step::Held | Step::Discarded => 3,
            Step::Emitted => 4,
            Step::Operations => 5,
            Step::Frames => 6,
            Step::Lost => 7,
            Step::Executed => 8,
            Step::Duplicate => 9,
            Step::Answered | Step::Beside => 10,
        },
        _ => 10,
    }
}
