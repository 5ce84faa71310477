//! Counters of all nodes, as the `Statistics` calls return them.

use std::collections::BTreeMap;

use dta_cli::counters;
use dta_proto::control::NodeStatistics;
use dta_proto::counter::{self, CounterKind, CounterStep, Definition, ParsedCounter, Stage, translator};
use serde::{Serialize, Serializer};

/// Counters by node and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestbedStatistics(BTreeMap<Who, BTreeMap<String, u64>>);

/// A node: its name and, of the nodes of several collectors, the address of its collector.
type Who = (String, Option<String>);

/// A collector with its NIC: the NIC's address, and what the collector says of all nodes.
pub type OfCollector = (String, Vec<NodeStatistics>);

/// As a list of nodes, which is how all programs print counters.
impl Serialize for TestbedStatistics {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let node = |((node, address), all): (&Who, &BTreeMap<String, u64>)| {
            let now = counters::NodeCountersDocument::now(
                node.clone(),
                Stage::from_node_name(node).name(),
                all.clone(),
            );
            counters::NodeCountersDocument { session: address.clone(), ..now }
        };
        to.collect_seq(self.0.iter().map(node))
    }
}

impl TestbedStatistics {
    /// Adds or replaces a node.
    pub fn add(&mut self, nodes: Vec<NodeStatistics>) {
        nodes.into_iter().for_each(|node| self.insert(node, None));
    }

    fn insert(&mut self, node: NodeStatistics, address: Option<String>) {
        let counters = node.counters.into_iter().map(|counter| (counter.name, counter.value)).collect();
        self.0.insert((node.node, address), counters);
    }

    /// Takes over what collectors say about themselves and their NICs, and leaves out what other nodes reported to
    /// them.
    pub fn add_collectors(&mut self, collectors: Vec<OfCollector>) {
        let several = collectors.len() > 1;
        for (address, nodes) in collectors {
            for node in nodes {
                if matches!(Stage::from_node_name(&node.node), Stage::Nic | Stage::Collector) {
                    self.insert(node, several.then(|| address.clone()));
                }
            }
        }
    }

    /// Adds the nodes of `newer`, replacing those that exist.
    pub fn replace_nodes(&mut self, newer: TestbedStatistics) {
        self.0.extend(newer.0);
    }

    /// Adds to the nodes of a stage what they counted in an earlier life. What they held then counts as discarded.
    pub fn add_earlier(&mut self, stage: Stage, earlier: &TestbedStatistics) {
        for (who, counters) in earlier.0.iter().filter(|(who, _)| Stage::from_node_name(&who.0) == stage) {
            let now = self.0.entry(who.clone()).or_default();
            let node = &who.0;
            for (name, value) in counters {
                let name = match counter::find_counter(node, name).map(|found| (found, found.definition.kind))
                {
                    Some((_, CounterKind::Counter)) | None => name.clone(),
                    Some((found, CounterKind::Held { becomes })) if *value > 0 => found.sibling_name(becomes),
                    Some((_, CounterKind::Held { .. } | CounterKind::Now | CounterKind::Position)) => {
                        continue;
                    }
                };
                *now.entry(name).or_default() += value;
            }
        }
    }

    /// Frames that left the translator.
    pub fn link_sent(&self) -> u64 {
        self.stage_total(Stage::Translator).get_with_parts(&translator::LINK_SENT, &[translator::ROCE])
    }

    /// All nodes of a stage as one, whose counters are the sums of theirs.
    pub fn stage_total(&self, stage: Stage) -> NodeCounters<'_> {
        NodeCounters(self.stage_nodes(stage).flat_map(|node| node.0).collect())
    }

    pub fn stage_nodes(&self, stage: Stage) -> impl Iterator<Item = NodeCounters<'_>> {
        let of_it = self.0.iter().filter(move |((name, _), _)| Stage::from_node_name(name) == stage);
        of_it.map(|((name, _), counters)| NodeCounters(vec![(name, counters)]))
    }
}

/// One node and its counters, or several whose counters are added up. A counter that is not there is 0: nodes leave out
/// what never happened.
#[derive(Clone, Debug)]
pub struct NodeCounters<'a>(Vec<(&'a String, &'a BTreeMap<String, u64>)>);

impl<'a> NodeCounters<'a> {
    /// One counter, whose name has no variable parts.
    pub fn get(&self, counter: &Definition) -> u64 {
        self.get_by_name(counter.name)
    }

    pub fn get_with_parts(&self, counter: &Definition, values: &[&str]) -> u64 {
        self.get_by_name(&counter.format_name(values))
    }

    pub fn get_by_name(&self, name: &str) -> u64 {
        self.0.iter().filter_map(|(_, counters)| counters.get(name)).sum()
    }

    /// Known counters that are not 0, with their names.
    fn nonzero_counters(&self) -> impl Iterator<Item = (&'a str, ParsedCounter<'a>, u64)> + use<'a> {
        self.0.clone().into_iter().flat_map(|(node, counters)| {
            let more = counters.iter().filter(|(_, value)| **value > 0);
            more.filter_map(move |(name, value)| {
                Some((name.as_str(), counter::find_counter(node, name)?, *value))
            })
        })
    }

    /// Counters of one definition that are not 0, with their variable parts.
    pub fn counters_of_definition(
        &self,
        counter: &'static Definition,
    ) -> impl Iterator<Item = (ParsedCounter<'a>, u64)> + use<'a> {
        self.nonzero_counters()
            .filter(move |(_, found, _)| found.definition == counter)
            .map(|(_, found, value)| (found, value))
    }

    /// Counters of one step that are not 0, with their names; without those that only detail others.
    pub fn counters_at_step(
        &self,
        step: CounterStep,
    ) -> impl Iterator<Item = (&'a str, ParsedCounter<'a>, u64)> + use<'a> {
        self.nonzero_counters()
            .filter(move |(_, found, _)| found.definition.step == step && !found.definition.detail)
    }

    pub fn sum(&self, step: CounterStep) -> u64 {
        self.counters_at_step(step).map(|(_, _, value)| value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::counter::{nic, reporter};

    fn statistics(nodes: &[(&str, &[(&str, u64)])]) -> TestbedStatistics {
        let counters =
            |all: &[(&str, u64)]| all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let who = |node: &str| (node.to_owned(), None);
        TestbedStatistics(nodes.iter().map(|(node, all)| (who(node), counters(all))).collect())
    }

    #[test]
    fn nodes_of_several_collectors_are_apart_and_are_added_up() {
        let node = |node: &str, value: u64| NodeStatistics {
            node: node.into(),
            counters: vec![dta_proto::control::Counter { name: "received".into(), value }],
            ..NodeStatistics::default()
        };
        let of = |value| vec![node("nic/soft", value), node("collector/testbed", 1), node("translator/t", 9)];
        let mut all = TestbedStatistics::default();
        all.add_collectors(vec![("192.0.2.1".into(), of(3)), ("192.0.2.4".into(), of(4))]);
        assert_eq!(all.stage_total(Stage::Nic).get(&nic::RECEIVED), 7);
        assert_eq!(
            all.stage_nodes(Stage::Nic).map(|nic| nic.get(&nic::RECEIVED)).collect::<Vec<_>>(),
            [3, 4]
        );
        assert_eq!(all.stage_total(Stage::Translator).get(&translator::RECEIVED), 0);
        let shown = serde_json::to_value(&all).unwrap();
        let of_field =
            |field: &str| shown.as_array().unwrap().iter().map(|n| n[field].clone()).collect::<Vec<_>>();
        assert_eq!(of_field("node"), ["collector/testbed", "collector/testbed", "nic/soft", "nic/soft"]);
        assert_eq!(of_field("session"), ["192.0.2.1", "192.0.2.4", "192.0.2.1", "192.0.2.4"]);
        let mut one = TestbedStatistics::default();
        one.add_collectors(vec![("192.0.2.1".into(), of(3))]);
        assert_eq!(serde_json::to_value(&one).unwrap()[0]["session"], serde_json::Value::Null);
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
        let translator = now.stage_total(Stage::Translator);
        assert_eq!((translator.get(&translator::ACCEPTED), translator.get(&translator::HELD)), (9, 1));
        assert_eq!(translator.get(&translator::HELD_AT_RESTART), 3);
        assert_eq!(
            (translator.get_by_name("new"), translator.get_by_name("queue_pair.write.outstanding")),
            (2, 0)
        );
        let reporter = now.stage_total(Stage::Reporter);
        assert_eq!((reporter.get(&reporter::RECEIVED), reporter.get(&reporter::NEWEST)), (5, 9));
        assert_eq!(now.stage_total(Stage::Nic).get(&nic::RECEIVED), 0);
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
        let node = all.stage_total(Stage::Translator);
        assert_eq!((node.sum(CounterStep::Dropped), node.sum(CounterStep::Discarded)), (3, 4));
        let reasons: Vec<_> =
            node.counters_of_definition(&translator::DROPPED).map(|(found, _)| found.last_value()).collect();
        assert_eq!(reasons, ["hop", "new"]);
        assert_eq!(node.counters_of_definition(&translator::DISCARDED).count(), 0);
    }
}
