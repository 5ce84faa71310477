//! The common JSON shape of counters.

use std::collections::BTreeMap;

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeCountersDocument {
    /// Its name: `reporter/ID`, `translator/NAME`, `nic/DEVICE`, `collector`, …
    pub node: String,
    /// Its stage: `reporter`, `translator`, `nic`, `collector` or `other`.
    pub stage: String,
    /// The session that handed in the counters; `null` if the node itself was queried.
    pub session: Option<String>,
    pub age_seconds: f64,
    /// Each counter by its name (docs/counters.md).
    pub counters: BTreeMap<String, u64>,
}

impl NodeCountersDocument {
    /// A node that was queried just now.
    pub fn now(
        node: impl Into<String>,
        stage: impl Into<String>,
        counters: impl IntoIterator<Item = (String, u64)>,
    ) -> Self {
        let counters = counters.into_iter().collect();
        NodeCountersDocument {
            node: node.into(),
            stage: stage.into(),
            session: None,
            age_seconds: 0.0,
            counters,
        }
    }
}
