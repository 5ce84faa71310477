//! The counters of all nodes for programs, as `dta-collector stats -o json` prints them.

use dta_cli::counters::NodeCountersDocument;
use serde::Serialize;

use super::{LinkLoss, WaterfallNode, link_losses};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatisticsDocument {
    pub nodes: Vec<NodeCountersDocument>,
    pub links: Vec<LinkLoss>,
}

impl StatisticsDocument {
    pub fn from_nodes(nodes: &[WaterfallNode]) -> Self {
        let document = |node: &WaterfallNode| NodeCountersDocument {
            node: node.name.clone(),
            stage: node.stage.name().to_owned(),
            session: (!node.session.is_empty()).then(|| node.session.clone()),
            age_seconds: node.age,
            counters: node.counters.iter().cloned().collect(),
        };
        Self { nodes: nodes.iter().map(document).collect(), links: link_losses(nodes) }
    }
}
