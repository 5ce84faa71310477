//! Adds the accounting counters to a page.

use dta_proto::control::NodeStatistics;
use dta_proto::counter::{self, CounterNode, Definition, ParsedCounter, Stage, Values};

use crate::metrics::name::{label_name, metric_name};
use crate::metrics::page::{Labels, MetricKind, MetricsPage};

/// Most series of all counters: nodes that report choose their own names and values.
const MAX_SERIES: usize = 50_000;
/// Most series of one node, so that it does not crowd out others.
const MAX_OF_NODE: usize = 2_000;

/// Adds counters of nodes to a page, as [`docs/counters.md`] defines them.
///
/// The counters that a session reported are a copy of its translator's: they have the label `session`, and names that
/// begin with `dta_session_`, so that a sum over both does not count twice. A reporter has no series of its own, as
/// clients choose how many there are: those that one node hears are summed. Numbers that are neither counts nor
/// amounts are left out. There are at most 50,000 series, 2,000 of one node; what is beyond, and unknown counters,
/// are left out and counted.
///
/// [`docs/counters.md`]: https://github.com/dta-telemetry/dta/blob/main/docs/counters.md
pub fn add_node_metrics(page: &mut MetricsPage, nodes: &[NodeStatistics]) {
    let room = page.series_count() + MAX_SERIES;
    // The node that hears the reporters whose counters no session reported.
    let own = nodes
        .iter()
        .find(|node| node.session.is_empty() && Stage::from_node_name(&node.node) == Stage::Translator);
    let own = own.and_then(|node| Stage::Translator.strip_stage(&node.node)).unwrap_or_default();
    for node in nodes {
        let labels = labels_of(node, own);
        if Stage::from_node_name(&node.node) == Stage::Reporter {
            let help = "reporters whose counters are in the sums dta_reporter_*";
            page.add(
                own_or_copy("dta_reporter_nodes".into(), node),
                MetricKind::Gauge,
                help,
                labels.clone(),
                1,
            );
        } else if !node.session.is_empty() {
            let help = "seconds since a session handed in the counters of this translator";
            page.add_real_gauge("dta_session_counters_age_seconds", help, labels.clone(), node.age_seconds);
        }
        let full = room.min(page.series_count() + MAX_OF_NODE);
        if Stage::from_node_name(&node.node) == Stage::Translator && page.series_count() < room {
            add_zero_counters(page, node, &labels);
        }
        for counter in &node.counters {
            let of = CounterNode::from_node_name(&node.node);
            let found = of.find_counter(&counter.name);
            let name = found.and_then(|found| Some((found, metric_name(of, found.definition)?)));
            match name {
                Some((found, _)) if found.definition.kind == counter::CounterKind::Position => {}
                Some((found, name)) if page.series_count() < full => {
                    let kind = match found.definition.kind {
                        counter::CounterKind::Counter => MetricKind::Counter,
                        _ => MetricKind::Gauge,
                    };
                    let name = own_or_copy(name, node);
                    page.add(name, kind, metric_help(&found), with_values(&labels, &found), counter.value);
                }
                _ => page.leave_out(1),
            }
        }
    }
}

/// Adds zeros for what a translator has not counted yet, if the variable parts are listed, so that a rate includes
/// the first drop.
fn add_zero_counters(page: &mut MetricsPage, node: &NodeStatistics, labels: &Labels) {
    let definitions = CounterNode::Translator.counter_tables().iter().flat_map(|table| table.definitions);
    for definition in definitions.filter(|definition| definition.kind == counter::CounterKind::Counter) {
        for name in counter_names(definition) {
            let Some(found) = CounterNode::Translator.find_counter(&name) else { continue };
            let Some(metric) = metric_name(CounterNode::Translator, definition) else { continue };
            let metric = own_or_copy(metric, node);
            page.add(metric, MetricKind::Counter, metric_help(&found), with_values(labels, &found), 0);
        }
    }
}

/// The counter names of a definition, if its variable parts are listed; none if one can be anything.
fn counter_names(definition: &Definition) -> Vec<String> {
    let mut all = vec![Vec::new()];
    for variable in definition.variables {
        let Values::Of(values) = variable.values else { return Vec::new() };
        let longer =
            |known: Vec<&'static str>| values.iter().map(move |value| [&known[..], &[value.name]].concat());
        all = all.into_iter().flat_map(longer).collect();
    }
    all.into_iter().map(|values| definition.format_name(&values)).collect()
}

/// The name of a metric, or of the copy that a session reported.
fn own_or_copy(name: String, node: &NodeStatistics) -> String {
    match name.strip_prefix("dta_") {
        Some(rest) if !node.session.is_empty() => format!("dta_session_{rest}"),
        _ => name,
    }
}

fn labels_of(node: &NodeStatistics, own: &str) -> Labels {
    let mut labels = Labels::new();
    let stage = Stage::from_node_name(&node.node);
    let of = stage.strip_stage(&node.node);
    match stage {
        Stage::Translator | Stage::Other => {
            labels.push(("translator".into(), of.unwrap_or(&node.node).to_owned()));
        }
        Stage::Reporter if node.session.is_empty() => labels.push(("translator".into(), own.to_owned())),
        Stage::Reporter => labels.push(("translator".into(), node.session.clone())),
        Stage::Agent => labels.push(("host".into(), of.unwrap_or_default().to_owned())),
        Stage::Nic => labels.push(("device".into(), of.unwrap_or_default().to_owned())),
        Stage::Collector => {}
    }
    if !node.session.is_empty() {
        labels.push(("session".into(), node.session.clone()));
    }
    labels
}

fn with_values(labels: &Labels, found: &ParsedCounter<'_>) -> Labels {
    let mut labels = labels.clone();
    let values = found.variables().filter(|(_, value)| !value.is_empty());
    labels.extend(values.map(|(variable, value)| (label_name(variable.word).into(), value.to_owned())));
    labels
}

/// What a metric counts, in words, with its name in `stats` and docs/counters.md.
fn metric_help(found: &ParsedCounter<'_>) -> String {
    let definition = found.definition;
    format!("{} (counter {})", definition.meaning, definition.name)
}

#[cfg(test)]
mod tests {
    use dta_proto::control::Counter;

    use super::*;

    fn node(name: &str, session: &str, counters: &[(&str, u64)]) -> NodeStatistics {
        let counters = counters.iter().map(|(name, value)| Counter { name: (*name).into(), value: *value });
        NodeStatistics {
            node: name.into(),
            session: session.into(),
            counters: counters.collect(),
            age_seconds: 2.0,
            ..NodeStatistics::default()
        }
    }

    /// The lines of a page that are neither comments nor zero.
    fn lines(all: &[NodeStatistics]) -> Vec<String> {
        let mut page = MetricsPage::default();
        add_node_metrics(&mut page, all);
        page.into_text()
            .lines()
            .filter(|line| !line.starts_with('#') && !line.ends_with(" 0"))
            .map(Into::into)
            .collect()
    }

    #[test]
    fn counters_have_labels_in_the_place_of_variable_parts() {
        let counters = [
            ("received", 7),
            ("dropped.hop", 2),
            ("append.held", 3),
            ("queue_pair.write.sent", 4),
            ("queue_pair.1.write.sent", 5),
            ("dropped.of_a_newer_program", 6),
            ("nobody knows", 1),
        ];
        let printed =
            lines(&[node("collector", "", &[("query.path.keys", 8)]), node("translator/t", "s", &counters)]);
        assert_eq!(
            printed,
            [
                "dta_collector_query_keys_total{kind=\"path\"} 8",
                "dta_metrics_left_out 1",
                "dta_session_counters_age_seconds{translator=\"t\",session=\"s\"} 2.0",
                "dta_session_translator_dropped_reports_total{translator=\"t\",session=\"s\",reason=\"hop\"} 2",
                "dta_session_translator_dropped_reports_total{translator=\"t\",session=\"s\",reason=\"of_a_newer_program\"} 6",
                "dta_session_translator_primitive_held_reports{translator=\"t\",session=\"s\",primitive=\"append\"} 3",
                "dta_session_translator_queue_pair_sent_operations_total{translator=\"t\",session=\"s\",collector=\"1\",purpose=\"write\"} 5",
                "dta_session_translator_queue_pair_sent_operations_total{translator=\"t\",session=\"s\",purpose=\"write\"} 4",
                "dta_session_translator_received_reports_total{translator=\"t\",session=\"s\"} 7",
            ]
        );
    }

    #[test]
    fn what_is_known_to_be_counted_begins_with_nothing() {
        let mut page = MetricsPage::default();
        add_node_metrics(&mut page, &[node("translator/t", "", &[("dropped.hop", 2)])]);
        let text = page.into_text();
        for line in [
            "dta_translator_dropped_reports_total{translator=\"t\",reason=\"hop\"} 2",
            "dta_translator_dropped_reports_total{translator=\"t\",reason=\"version\"} 0",
            "dta_translator_link_dropped_packets_total{translator=\"t\",link=\"roce\",reason=\"too-long\"} 0",
            "dta_translator_received_reports_total{translator=\"t\"} 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "no {line} in {text}");
        }
        assert!(!text.contains("dta_translator_queue_pair") && !text.contains("store_frames"), "{text}");
    }

    #[test]
    fn reporters_are_added_up() {
        let reporter = |id: u32| node(&format!("reporter/{id}"), "", &[("received", 2), ("newest", 9)]);
        let mut all: Vec<_> = (0..1000).map(reporter).collect();
        all.push(node("translator/t", "", &[]));
        assert_eq!(
            lines(&all),
            [
                "dta_reporter_nodes{translator=\"t\"} 1000",
                "dta_reporter_received_reports_total{translator=\"t\"} 2000",
            ]
        );
    }

    #[test]
    fn what_the_ring_of_a_host_lost_has_a_metric() {
        let printed = lines(&[node("agent/7", "", &[("seen", 9), ("dropped.ring-full", 3)])]);
        assert_eq!(
            printed,
            [
                "dta_agent_dropped_packets_total{host=\"7\",reason=\"ring-full\"} 3",
                "dta_agent_seen_packets_total{host=\"7\"} 9",
            ]
        );
    }

    #[test]
    fn however_much_is_handed_in_there_is_a_bound() {
        let many: Vec<_> = (0..1024).map(|i| (format!("store.{i}.frames"), 1)).collect();
        let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let all: Vec<_> = (0..200).map(|i| node(&format!("switch/{i}"), "s", &many)).collect();
        let mut page = MetricsPage::default();
        add_node_metrics(&mut page, &all);
        // Plus the age of each node.
        assert!((MAX_SERIES..=MAX_SERIES + 200).contains(&page.series_count()), "{}", page.series_count());
        let text = page.into_text();
        let left_out = text.lines().find_map(|line| line.strip_prefix("dta_metrics_left_out ")).unwrap();
        assert!(left_out.parse::<usize>().unwrap() >= 200 * 1024 - MAX_SERIES, "{left_out}");
    }
}
