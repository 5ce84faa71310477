//! The nodes that count.

use serde::Serialize;

use super::{CounterTable, ParsedCounter, between, collector, nic, reporter, translator};

crate::named! {
    /// The stages of the waterfall, in the order in which reports pass them. A node's name begins with its
    /// stage's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Stage {
        /// Traces packets on its host.
        Agent: "agent",
        /// Sends reports.
        Reporter: "reporter",
        /// Turns reports into operations.
        Translator: "translator",
        /// Executes operations.
        Nic: "nic",
        /// Answers queries.
        Collector: "collector",
        /// Anything else whose counters were handed in.
        Other: "other",
    }
}

impl Stage {
    /// The name of one of its nodes.
    pub fn node_name(self, of: &str) -> String {
        format!("{}/{of}", self.name())
    }

    /// The stage of a node.
    pub fn from_node_name(node: &str) -> Stage {
        let first = node.split('/').next().unwrap_or(node);
        let all = [Stage::Agent, Stage::Reporter, Stage::Translator, Stage::Nic, Stage::Collector];
        all.into_iter().find(|stage| stage.name() == first).unwrap_or(Stage::Other)
    }

    /// The rest of the name of a node of this stage: `7` of `reporter/7`.
    pub fn strip_stage(self, node: &str) -> Option<&str> {
        node.strip_prefix(self.name())?.strip_prefix('/')
    }
}

/// A translator's sum over the reporters it evicted. It is not sent to the collector, which keeps the last
/// counters of each.
pub const EVICTED: &str = "reporter/evicted";

/// The kinds of nodes that have tables of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterNode {
    /// A reporter, by its own count.
    Reporter,
    /// A reporter, as its translator counts it.
    HeardReporter,
    /// A tracing agent, as the collector reads it from the agent's stores.
    HeardAgent,
    /// A translator.
    Translator,
    /// The software NIC.
    SoftNic,
    /// An RDMA device.
    RdmaDevice,
    /// The collector.
    Collector,
    /// Values computed from the counters of two nodes.
    Between,
}

impl CounterNode {
    /// All kinds.
    pub const ALL: [CounterNode; 8] = [
        CounterNode::Reporter,
        CounterNode::HeardReporter,
        CounterNode::HeardAgent,
        CounterNode::Translator,
        CounterNode::SoftNic,
        CounterNode::RdmaDevice,
        CounterNode::Collector,
        CounterNode::Between,
    ];

    /// The kind of a node in a collector's or translator's statistics, by its name. A node of an unknown
    /// stage was handed in along with a translator's, and is treated as a translator.
    pub fn from_node_name(node: &str) -> CounterNode {
        match Stage::from_node_name(node) {
            Stage::Agent => CounterNode::HeardAgent,
            Stage::Reporter => CounterNode::HeardReporter,
            Stage::Translator | Stage::Other => CounterNode::Translator,
            Stage::Nic if Stage::Nic.strip_stage(node) == Some(nic::SOFT) => CounterNode::SoftNic,
            Stage::Nic => CounterNode::RdmaDevice,
            Stage::Collector => CounterNode::Collector,
        }
    }

    /// Its tables of counters.
    pub fn counter_tables(self) -> &'static [&'static CounterTable] {
        match self {
            CounterNode::Reporter => reporter::OWN_TABLES,
            CounterNode::HeardReporter => reporter::HEARD_TABLES,
            CounterNode::HeardAgent => reporter::AGENT_TABLES,
            CounterNode::Translator => translator::TABLES,
            CounterNode::SoftNic => nic::SOFT_TABLES,
            CounterNode::RdmaDevice => nic::DEVICE_TABLES,
            CounterNode::Collector => collector::TABLES,
            CounterNode::Between => between::TABLES,
        }
    }

    /// The definition of a counter of such a node; `None` if none has this name. If several match, the one
    /// whose values are all known wins.
    pub fn find_counter(self, counter: &str) -> Option<ParsedCounter<'_>> {
        let definitions = self.counter_tables().iter().flat_map(|table| table.definitions);
        let mut newer = None;
        for definition in definitions {
            match definition.parse_name(counter) {
                Some(found) if found.known => return Some(found),
                Some(found) => newer = newer.or(Some(found)),
                None => {}
            }
        }
        newer
    }
}

/// The definition of a counter of a node in statistics; `None` if none has this name.
pub fn find_counter<'a>(node: &str, counter: &'a str) -> Option<ParsedCounter<'a>> {
    CounterNode::from_node_name(node).find_counter(counter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::{CounterKind, Definition, Reason, Values, Variable};

    #[test]
    fn no_name_has_two_definitions() {
        let any = |variable: &Variable| match variable.values {
            Values::Of(values) => values.iter().map(|value| value.name).collect(),
            Values::Any => vec!["any"],
            Values::Number => vec!["", "1"],
        };
        for node in CounterNode::ALL {
            let all: Vec<_> = node.counter_tables().iter().flat_map(|table| table.definitions).collect();
            for definition in &all {
                let mut names = vec![Vec::new()];
                for variable in definition.variables {
                    let longer = |name: Vec<_>| {
                        any(variable).into_iter().map(move |value| [&name[..], &[value]].concat())
                    };
                    names = names.into_iter().flat_map(longer).collect();
                }
                for name in names.iter().map(|values| definition.format_name(values)) {
                    let fit =
                        all.iter().filter(|other| other.parse_name(&name).is_some_and(|found| found.known));
                    assert_eq!(fit.count(), 1, "{name}");
                    assert_eq!(node.find_counter(&name).unwrap().definition, **definition);
                }
            }
        }
    }

    #[test]
    fn patterns_and_variables_agree() {
        for definition in
            CounterNode::ALL.iter().flat_map(|node| node.counter_tables()).flat_map(|table| table.definitions)
        {
            let capitals = definition
                .name
                .split(['.', '[', ']'])
                .filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_uppercase()));
            let words = definition.variables.iter().map(|variable| variable.word);
            assert!(capitals.eq(words), "{}", definition.name);
            if let CounterKind::Held { becomes } = definition.kind {
                assert_eq!(becomes.variables, definition.variables, "{}", definition.name);
                assert_eq!((becomes.kind, becomes.unit), (CounterKind::Counter, definition.unit));
            }
        }
    }

    #[test]
    fn what_a_counter_means_needs_no_other_one_above_it() {
        for definition in
            CounterNode::ALL.iter().flat_map(|node| node.counter_tables()).flat_map(|table| table.definitions)
        {
            // An agent's table is only read as a table.
            if definition.name.starts_with("trace.") {
                continue;
            }
            let leans = ["of them", "of these", "of the ", "the same", "what "];
            let Definition { name, meaning, .. } = definition;
            assert!(!meaning.is_empty() && meaning.contains(' '), "{name}: {meaning}");
            assert!(!leans.iter().any(|words| meaning.starts_with(words)), "{name}: {meaning}");
        }
    }

    #[test]
    fn counters_of_newer_and_foreign_programs_are_read_as_far_as_they_can_be() {
        let found = find_counter("translator/t", "dropped.something_new").unwrap();
        assert_eq!(
            (found.definition, found.last_value(), found.known),
            (&translator::DROPPED, "something_new", false)
        );
        assert_eq!(
            find_counter("translator/t", "dropped.hop").unwrap().specific_meaning(),
            Reason::VALUES[Reason::Hop as usize].meaning
        );
        assert_eq!(find_counter("switch/7", "new-primitive.held").unwrap().definition, &translator::OF_HELD);
        assert_eq!(find_counter("nic/soft", "dropped.malformed.new").unwrap().definition, &nic::DROPPED);
        for (node, counter) in
            [("translator/t", "withheld"), ("nic/rxe0", "dropped.icrc"), ("", ""), ("collector", "held")]
        {
            assert_eq!(find_counter(node, counter), None, "{counter}");
        }
    }
}
