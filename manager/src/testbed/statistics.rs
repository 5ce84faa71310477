//! Counters of all nodes, as the `Statistics` calls give them.

use std::collections::BTreeMap;

use dta_proto::control::NodeStatistics;
use serde::Serialize;

/// Counters by node and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics(BTreeMap<String, BTreeMap<String, u64>>);

impl Statistics {
    /// Takes over what a node says; a node that is there already is replaced.
    pub fn add(&mut self, nodes: Vec<NodeStatistics>) {
        for node in nodes {
            self.0.insert(node.node, node.counters.into_iter().map(|c| (c.name, c.value)).collect());
        }
    }

    /// Takes over all that `newer` has; a node that is there already is replaced.
    pub fn replace(&mut self, newer: Statistics) {
        self.0.extend(newer.0);
    }

    /// Adds to the nodes whose name begins with `kind` what they counted in an earlier life.
    pub fn add_earlier(&mut self, kind: &str, earlier: &Statistics) {
        for (node, counters) in earlier.0.iter().filter(|(node, _)| node.starts_with(kind)) {
            let now = self.0.entry(node.clone()).or_default();
            // How many operations a queue pair has out and waiting is no count, and an earlier life
            // has none.
            let gauge = |name: &str| name.ends_with(".outstanding") || name.ends_with(".waiting");
            for (name, value) in counters.iter().filter(|(name, _)| !gauge(name)) {
                *now.entry(name.clone()).or_default() += value;
            }
        }
    }

    /// The node whose name begins with `kind`, such as `nic/` or `translator/`; empty if there is none.
    pub fn node(&self, kind: &str) -> Node<'_> {
        Node(self.0.iter().find(|(name, _)| name.starts_with(kind)).map(|(_, counters)| counters))
    }

    /// All nodes whose name begins with `kind`, with what follows it.
    pub fn nodes<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        self.0
            .iter()
            .filter_map(move |(name, counters)| Some((name.strip_prefix(kind)?, Node(Some(counters)))))
    }
}

/// The counters of one node. A counter that is not there is 0: nodes leave out what never happened.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a>(Option<&'a BTreeMap<String, u64>>);

impl<'a> Node<'a> {
    /// One counter.
    pub fn get(&self, name: &str) -> u64 {
        self.0.and_then(|counters| counters.get(name)).copied().unwrap_or(0)
    }

    /// Counters whose name begins with `prefix`, with what follows it, if they are not 0.
    pub fn with_prefix(&self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> + use<'a> {
        let all = self.0.into_iter().flatten();
        all.filter(|(_, value)| **value > 0)
            .filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, *value)))
    }

    /// Their sum.
    pub fn sum(&self, prefix: &'a str) -> u64 {
        self.with_prefix(prefix).map(|(_, value)| value).sum()
    }
}
