//! Derives metric names from definitions of counters.

use dta_proto::counter::{CounterNode, Definition, Stage, Unit};

/// The name of a counter's metric, without the `_total` that Prometheus wants after a counter's name; `None` for
/// counters that no daemon reports about another node.
///
/// It is `dta_`, the stage, the fixed parts of the counter's name, and its unit unless these contain it. Variable
/// parts become labels. One at the beginning leaves its word (`PRIMITIVE.lost` is `primitive_lost`), so that the more
/// detailed counter has a name of its own; one at the end becomes `by_` and its word if it alone makes the difference
/// (`lost.CAUSE` is `lost_by_cause`).
///
/// ```
/// use dta_proto::counter::{CounterNode, translator};
///
/// let name = |definition| dta_export::metrics::metric_name(CounterNode::Translator, definition).unwrap();
/// assert_eq!(name(&translator::RECEIVED), "dta_translator_received_reports");
/// assert_eq!(name(&translator::DROPPED), "dta_translator_dropped_reports");
/// assert_eq!(name(&translator::LOST_BY), "dta_translator_lost_by_cause_reports");
/// assert_eq!(name(&translator::OF_LOST), "dta_translator_primitive_lost_reports");
/// ```
pub fn metric_name(node: CounterNode, definition: &Definition) -> Option<String> {
    let mut name = format!("dta_{}", stage_in_name(node)?.name());
    let own = name.len();
    let parts: Vec<&str> = definition.name.split(['.', '[', ']']).filter(|part| !part.is_empty()).collect();
    for (place, part) in parts.iter().enumerate() {
        let word = label_name(part);
        if !is_variable(part) || place == 0 {
            name = format!("{name}_{word}");
        } else if place + 1 == parts.len() && is_counted_in_sum(node, &parts[..place]) {
            name = format!("{name}_by_{word}");
        }
    }
    if let Some(unit) = unit_in_name(definition.unit)
        && !has_unit(&name[own..], &unit)
    {
        name = format!("{name}_{unit}");
    }
    Some(name)
}

/// The label of a variable part.
pub(crate) fn label_name(word: &str) -> String {
    word.to_ascii_lowercase().replace('-', "_")
}

fn is_variable(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn stage_in_name(node: CounterNode) -> Option<Stage> {
    match node {
        CounterNode::HeardAgent => Some(Stage::Agent),
        CounterNode::HeardReporter => Some(Stage::Reporter),
        CounterNode::Translator => Some(Stage::Translator),
        CounterNode::SoftNic | CounterNode::RdmaDevice => Some(Stage::Nic),
        CounterNode::Collector => Some(Stage::Collector),
        CounterNode::Reporter | CounterNode::Between => None,
    }
}

/// Whether there is a counter of this name without the variable part.
fn is_counted_in_sum(node: CounterNode, parts: &[&str]) -> bool {
    let name = parts.join(".");
    node.counter_tables().iter().flat_map(|table| table.definitions).any(|other| other.name == name)
}

/// The unit as part of a name. Numbers of events have none, nor do a driver's counters.
fn unit_in_name(unit: Unit) -> Option<String> {
    match unit {
        Unit::Times | Unit::Kernel => None,
        _ => Some(unit.name().to_ascii_lowercase().replace(' ', "_")),
    }
}

/// Whether a name contains a unit as a word, plural or singular.
fn has_unit(name: &str, unit: &str) -> bool {
    let name = format!("{name}_");
    let singular = match unit.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => unit.trim_end_matches('s').to_owned(),
    };
    [unit, &singular].iter().any(|word| name.contains(&format!("_{word}_")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dta_proto::counter::{collector, nic, translator};

    use super::*;

    #[test]
    fn no_two_counters_of_a_node_have_one_name() {
        for node in CounterNode::ALL {
            let mut names = BTreeMap::new();
            for definition in node.counter_tables().iter().flat_map(|table| table.definitions) {
                let Some(name) = metric_name(node, definition) else { continue };
                let of_prometheus =
                    |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
                assert!(name.bytes().all(of_prometheus) && !name.contains("__"), "{name}");
                assert!(!name.ends_with("_total"), "{name}");
                if let Some(other) = names.insert(name.clone(), definition.name) {
                    panic!("{} and {other} are both {name}", definition.name);
                }
            }
        }
    }

    #[test]
    fn units_are_said_once() {
        for (node, definition, name) in [
            (CounterNode::Translator, &translator::NACKS, "dta_translator_nacks"),
            (CounterNode::Translator, &translator::PAIR_SENT, "dta_translator_queue_pair_sent_operations"),
            (CounterNode::Translator, &translator::STORE_FRAMES, "dta_translator_store_frames"),
            (CounterNode::Translator, &translator::LINK_DROPPED, "dta_translator_link_dropped_packets"),
            (CounterNode::Translator, &translator::INT_GAPS_OF, "dta_translator_int_gaps_of_sequences"),
            (CounterNode::Collector, &collector::SESSION_OPENED, "dta_collector_session_opened"),
            (CounterNode::Collector, &collector::TAIL_ENTRIES, "dta_collector_tail_entries"),
            (CounterNode::SoftNic, &nic::LINK_RECEIVED_BYTES, "dta_nic_link_received_bytes"),
            (CounterNode::SoftNic, &nic::DROPPED, "dta_nic_dropped_packets"),
        ] {
            assert_eq!(metric_name(node, definition).unwrap(), name);
        }
    }
}
