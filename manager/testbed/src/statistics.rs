//! Counters of all nodes, as the `Statistics` calls return them.

use std::collections::BTreeMap;

use dta_cli::counters;
use dta_proto::control::NodeStatistics;
use dta_proto::counter::{self, Definition, Found, Kind, Stage, Step};
use serde::{Serialize, Serializer};

/// Counters by node and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics(BTreeMap<String, BTreeMap<String, u64>>);

/// As a list of nodes, which is how all programs print counters.
impl Serialize for Statistics {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let node = |(node, all): (&String, &BTreeMap<String, u64>)| {
            counters::Node::now(node.clone(), Stage::of(node).name(), all.clone())
        };
        to.collect_seq(self.0.iter().map(node))
    }
}

impl Statistics {
    /// Adds or replaces a node.
    pub fn add(&mut self, nodes: Vec<NodeStatistics>) {
        for node in nodes {
            self.0.insert(node.node, node.counters.into_iter().map(|c| (c.name, c.value)).collect());
        }
    }

    /// Adds or replaces all nodes of `newer`.
    pub fn replace(&mut self, newer: Statistics) {
        self.0.extend(newer.0);
    }

    /// Adds to the nodes of a stage what they counted in an earlier life. What they held then counts as discarded.
    pub fn add_earlier(&mut self, stage: Stage, earlier: &Statistics) {
        for (node, counters) in earlier.0.iter().filter(|(node, _)| Stage::of(node) == stage) {
            let now = self.0.entry(node.clone()).or_default();
            for (name, value) in counters {
                let name = match counter::find(node, name).map(|found| (found, found.definition.kind)) {
                    Some((_, Kind::Counter)) | None => name.clone(),
                    Some((found, Kind::Held { becomes })) if *value > 0 => found.name_of(becomes),
                    Some((_, Kind::Held { .. } | Kind::Now | Kind::Position)) => continue,
                };
                *now.entry(name).or_default() += value;
            }
        }
    }

    /// The node of a stage; empty if there is none.
    pub fn node(&self, stage: Stage) -> Node<'_> {
        Node(self.0.iter().find(|(name, _)| Stage::of(name) == stage))
    }

    /// All nodes of a stage.
    pub fn nodes(&self, stage: Stage) -> impl Iterator<Item = Node<'_>> {
        self.0.iter().filter(move |(name, _)| Stage::of(name) == stage).map(|node| Node(Some(node)))
    }
}

/// One node and its counters. A counter that is not there is 0: nodes leave out what never happened.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a>(Option<(&'a String, &'a BTreeMap<String, u64>)>);

impl<'a> Node<'a> {
    /// One counter, whose name has no variable parts.
    pub fn get(&self, counter: &Definition) -> u64 {
        self.named(counter.name)
    }

    /// One counter, with its variable parts.
    pub fn of(&self, counter: &Definition, values: &[&str]) -> u64 {
        self.named(&counter.of(values))
    }

    /// One counter by its name.
    pub fn named(&self, name: &str) -> u64 {
        self.0.and_then(|(_, counters)| counters.get(name)).copied().unwrap_or(0)
    }

    /// Known counters that are not 0, with their names.
    fn all(&self) -> impl Iterator<Item = (&'a str, Found<'a>, u64)> + use<'a> {
        self.0.into_iter().flat_map(|(node, counters)| {
            let more = counters.iter().filter(|(_, value)| **value > 0);
            more.filter_map(move |(name, value)| Some((name.as_str(), counter::find(node, name)?, *value)))
        })
    }

    /// Counters of one definition that are not 0, with their variable parts.
    pub fn each(&self, counter: &'static Definition) -> impl Iterator<Item = (Found<'a>, u64)> + use<'a> {
        self.all()
            .filter(move |(_, found, _)| found.definition == counter)
            .map(|(_, found, value)| (found, value))
    }

    /// Counters of one step that are not 0, with their names; without those that only detail others.
    pub fn at(&self, step: Step) -> impl Iterator<Item = (&'a str, Found<'a>, u64)> + use<'a> {
        self.all().filter(move |(_, found, _)| found.definition.step == step && !found.definition.detail)
    }

    /// Their sum.
    pub fn sum(&self, step: Step) -> u64 {
        self.at(step).map(|(_, _, value)| value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::counter::{nic, reporter, translator};

    fn statistics(nodes: &[(&str, &[(&str, u64)])]) -> Statistics {
        let counters =
            |all: &[(&str, u64)]| all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Statistics(nodes.iter().map(|(node, all)| ((*node).to_owned(), counters(all))).collect())
    }

    #[test]
    fn an_earlier_life_leaves_what_it_counted_and_not_where_it_stood() {
        let mut now = statistics(&[
            ("translator/t", &[("accepted", 1), ("held", 1)]),
            ("reporter/7", &[("received", 1), ("newest", 9)]),
        ]);
        let earlier = statistics(&[
            (
                "translator/t",
                &[("accepted", 8), ("held", 3), ("queue_pair.write.outstanding", 5), ("new", 2)],
            ),
            ("reporter/7", &[("received", 4), ("newest", 5)]),
            ("nic/soft", &[("received", 4)]),
        ]);
        now.add_earlier(Stage::Translator, &earlier);
        now.add_earlier(Stage::Reporter, &earlier);
        let translator = now.node(Stage::Translator);
        assert_eq!((translator.get(&translator::ACCEPTED), translator.get(&translator::HELD)), (9, 1));
        assert_eq!(translator.get(&translator::HELD_AT_RESTART), 3);
        assert_eq!((translator.named("new"), translator.named("queue_pair.write.outstanding")), (2, 0));
        let reporter = now.node(Stage::Reporter);
        assert_eq!((reporter.get(&reporter::RECEIVED), reporter.get(&reporter::NEWEST)), (5, 9));
        assert_eq!(now.node(Stage::Nic).get(&nic::RECEIVED), 0);
    }

    #[test]
    fn sums_take_what_newer_programs_count_and_no_details() {
        let all = statistics(&[(
            "translator/t",
            &[
                ("dropped.hop", 1),
                ("dropped.new", 2),
                ("discarded.held_at_restart", 4),
                ("append.discarded.held_at_restart", 4),
            ],
        )]);
        let node = all.node(Stage::Translator);
        assert_eq!((node.sum(Step::Dropped), node.sum(Step::Discarded)), (3, 4));
        let reasons: Vec<_> = node.each(&translator::DROPPED).map(|(found, _)| found.last()).collect();
        assert_eq!(reasons, ["hop", "new"]);
        assert_eq!(node.each(&translator::DISCARDED).count(), 0);
    }
}
