//! Counters as every program prints them for programs: one shape.

use std::collections::BTreeMap;

use serde::Serialize;

/// What one node counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its name: `reporter/ID`, `translator/NAME`, `nic/DEVICE`, `collector`, …
    pub node: String,
    /// Where it stands on a report's way: `reporter`, `translator`, `nic`, `collector` or `other`.
    pub stage: String,
    /// The session that handed the counters in; `null` where the node itself was asked.
    pub session: Option<String>,
    /// Seconds since it gave them.
    pub age_seconds: f64,
    /// Each counter by its name (docs/counters.md).
    pub counters: BTreeMap<String, u64>,
}

impl Node {
    /// A node that gave its counters just now.
    pub fn now(
        node: impl Into<String>,
        stage: impl Into<String>,
        counters: impl IntoIterator<Item = (String, u64)>,
    ) -> Self {
        let counters = counters.into_iter().collect();
        Node { node: node.into(), stage: stage.into(), session: None, age_seconds: 0.0, counters }
    }
}
