//! "Where did my reports go?": the counters of all nodes in the order in which reports pass them.
//!
//! Pure: turns the answer of [`Ask::statistics`](dta_rpc::Ask::statistics) into rows for the command line and the
//! dashboard.

mod node;
mod past;
mod rates;
mod stages;
pub(crate) mod stored;

use dta_cli::counters::NodeCountersDocument;
use dta_cli::number::{format_count, format_grouped};
use dta_proto::counter::{
    self, CounterKind, Definition, Fault, ParsedCounter, Stage, Unit, between, nic, reporter, translator,
};
use serde::Serialize;

pub use node::{WaterfallNode, ordered_nodes};
pub use past::{OfStore, PastWaterfall, past_waterfall};
pub use rates::Rates;
pub use stages::{StageLoss, WaterfallStage, waterfall_stages};

/// Up to this many reporters and agents are shown individually; more are summed, unless all are requested.
const FEW: usize = 4;

/// What was sent to the next stage but did not arrive there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkLoss {
    /// `lost.reporter-translator`, `lost.translator-nic`
    pub name: &'static str,
    /// How many; 0 if more arrived than the sender, whose counters are as old as its last renewal, has reported.
    pub lost: u64,
    /// The counts it is computed from, in words.
    pub how: String,
}

/// One line of the waterfall.
#[derive(Clone, Debug, PartialEq)]
pub enum WaterfallRow {
    Node {
        name: String,
        /// Age of its counters in seconds; `None` if they are current.
        age: Option<f64>,
    },
    Counter {
        node: String,
        name: String,
        value: u64,
        /// Share of what the node received, if both have the same unit.
        share: Option<f64>,
        /// Rate per second, if known.
        rate: Option<f64>,
    },
    /// What was lost on the way to the next stage.
    Link(LinkLoss),
}

/// What the links between stages lost, as far as it is known: nothing is guessed.
pub fn link_losses(nodes: &[WaterfallNode]) -> Vec<LinkLoss> {
    let sum = |stage, counter: &Definition, of: &[&str]| {
        let name = counter.format_name(of);
        let mut of_stage = nodes.iter().filter(|n| n.stage == stage).filter_map(|n| n.get(&name)).peekable();
        of_stage.peek()?;
        Some(of_stage.sum::<u64>())
    };
    let mut losses = Vec::new();
    // A reporter's own count stays with it; its sequence numbers show the translator what is missing. Drops at the
    // socket are included, except of reports without sequence numbers.
    let socket = sum(
        Stage::Translator,
        &translator::LINK_DROPPED,
        &[translator::REPORTS, counter::LinkLoss::ReceiveQueue.name()],
    )
    .unwrap_or(0);
    let at_socket = match socket {
        0 => String::new(),
        _ => format!(
            "{socket} dropped at the translator's socket (receive queue full, or wrong checksum; a run of reports counts as one)"
        ),
    };
    match (sum(Stage::Reporter, &reporter::GAPS, &[]), sum(Stage::Reporter, &reporter::GAPS_FILLED, &[])) {
        (Some(gaps), Some(filled)) => {
            let sequences = format!("{gaps} sequences skipped, {filled} came later");
            losses.push(LinkLoss {
                name: between::REPORTER_TRANSLATOR.name,
                lost: gaps.saturating_sub(filled),
                how: if socket == 0 { sequences } else { format!("{sequences}; {at_socket}") },
            });
        }
        // No reporter has sequence numbers.
        _ if socket != 0 => {
            losses.push(LinkLoss { name: between::REPORTER_TRANSLATOR.name, lost: socket, how: at_socket })
        }
        _ => {}
    }
    // A translator without link counts reports only frames.
    let sent = sum(Stage::Translator, &translator::LINK_SENT, &[translator::ROCE])
        .or_else(|| sum(Stage::Translator, &translator::FRAMES, &[]));
    if let (Some(sent), Some(received)) = (sent, sum(Stage::Nic, &nic::RECEIVED, &[])) {
        // Injected faults act before the link counts, and stand for what a network does.
        let dropped = sum(Stage::Translator, &translator::FAULTS, &[translator::ROCE, Fault::Dropped.name()])
            .unwrap_or(0);
        let when = if received > sent { [" when last reported", " by now"] } else { [""; 2] };
        let injected = match dropped {
            0 => String::new(),
            _ => format!("; {} dropped by the fault injector", format_grouped(dropped)),
        };
        losses.push(LinkLoss {
            name: between::TRANSLATOR_NIC.name,
            lost: sent.saturating_sub(received) + dropped,
            how: format!(
                "{} sent{}, {} received{}{injected}",
                format_count(sent, "frame", "frames"),
                when[0],
                format_grouped(received),
                when[1]
            ),
        });
    }
    losses
}

/// The waterfall, line by line. Without `all`, zeros and details of single primitives are left out.
pub fn waterfall_rows(nodes: &[WaterfallNode], rates: &Rates, all: bool) -> Vec<WaterfallRow> {
    let losses = link_losses(nodes);
    let mut rows = Vec::new();
    if nodes.iter().all(|node| node.stage != Stage::Reporter) {
        rows.extend(
            losses
                .iter()
                .filter(|l| l.name == between::REPORTER_TRANSLATOR.name)
                .cloned()
                .map(WaterfallRow::Link),
        );
    }
    let sums =
        [Stage::Agent, Stage::Reporter].map(|stage| if all { None } else { sum_of_many(nodes, stage) });
    let has_sum = |stage| sums.iter().flatten().any(|sum| sum.stage == stage);
    let rest = nodes.iter().filter(|node| !has_sum(node.stage));
    // Each with the nodes that it stands for.
    let of_sum = |sum: &WaterfallNode| nodes.iter().filter(|node| node.stage == sum.stage).collect();
    let sums_first = sums.iter().flatten().map(|sum| (sum, of_sum(sum)));
    let mut nodes: Vec<(&WaterfallNode, Vec<&WaterfallNode>)> =
        sums_first.chain(rest.map(|node| (node, vec![node]))).collect();
    nodes.sort_by_key(|(node, _)| node.stage);
    for (i, (node, stands_for)) in nodes.iter().enumerate() {
        let is_of_now = node.session.is_empty() && node.stage != Stage::Agent;
        rows.push(WaterfallRow::Node { name: node.title(), age: (!is_of_now).then_some(node.age) });
        let came_in = node.counted_arrivals();
        for (name, value) in &node.counters {
            let found = counter::find_counter(&node.name, name);
            if !all && (*value == 0 || found.is_some_and(|found| found.definition.detail)) {
                continue;
            }
            let share = came_in
                .filter(|(unit, _)| found.is_some_and(|found| is_arrival_share(&found, *unit)))
                .map(|(_, came_in)| *value as f64 / came_in as f64);
            let rate = rates.sum(stands_for.iter().copied(), name);
            rows.push(WaterfallRow::Counter {
                node: node.title(),
                name: name.clone(),
                value: *value,
                share,
                rate,
            });
        }
        // After the last node of a stage: the link to the next.
        if nodes.get(i + 1).is_none_or(|(next, _)| next.stage != node.stage) {
            let from = match node.stage {
                Stage::Reporter => between::REPORTER_TRANSLATOR.name,
                Stage::Translator => between::TRANSLATOR_NIC.name,
                Stage::Agent | Stage::Nic | Stage::Collector | Stage::Other => continue,
            };
            rows.extend(losses.iter().filter(|l| l.name == from).cloned().map(WaterfallRow::Link));
        }
    }
    rows
}

/// The sum of a stage's nodes; `None` if there are few.
fn sum_of_many(nodes: &[WaterfallNode], stage: Stage) -> Option<WaterfallNode> {
    let many: Vec<&WaterfallNode> = nodes.iter().filter(|node| node.stage == stage).collect();
    if many.len() <= FEW {
        return None;
    }
    let mut sums = WaterfallNode {
        stage,
        name: format!("{} {}s", many.len(), stage.name()),
        // As with a single node: these are not the collector's own counters.
        session: "all".into(),
        age: 0.0,
        time_us: 0,
        counters: Vec::new(),
    };
    for node in many {
        sums.age = sums.age.max(node.age);
        let has_sum = |name: &str| {
            counter::find_counter(&node.name, name)
                .is_none_or(|found| found.definition.kind != CounterKind::Position)
        };
        for (name, value) in node.counters.iter().filter(|(name, _)| has_sum(name)) {
            match sums.counters.iter_mut().find(|(n, _)| n == name) {
                Some((_, sum)) => *sum += value,
                None => sums.counters.push((name.clone(), *value)),
            }
        }
    }
    Some(sums)
}

/// Whether a counter's share of the arrivals is meaningful: it has the same unit, and is a part of them.
fn is_arrival_share(found: &ParsedCounter<'_>, unit: Unit) -> bool {
    found.definition.step.is_input_share() && !found.definition.detail && found.definition.unit == unit
}

/// The counters of all nodes for programs, as `dta-collector stats -o json` prints them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::control::{Counter, NodeStatistics};

    /// A node of a session, with its counters.
    pub(super) fn counted_node(name: &str, session: &str, counters: &[(&str, u64)]) -> NodeStatistics {
        let counters =
            counters.iter().map(|(name, value)| Counter { name: (*name).into(), value: *value }).collect();
        NodeStatistics { node: name.into(), session: session.into(), counters, ..NodeStatistics::default() }
    }

    #[test]
    fn reports_are_followed_downstream() {
        let nodes = ordered_nodes(vec![
            counted_node("collector", "", &[("session.opened", 1)]),
            counted_node("nic/soft", "", &[("executed.write", 90), ("dropped.icrc", 2), ("received", 92)]),
            counted_node(
                "translator/t",
                "t",
                &[
                    ("frames", 95),
                    ("received", 100),
                    ("dropped.version", 5),
                    ("dropped.field", 0),
                    ("accepted", 95),
                    ("emitted", 95),
                    ("key-write.received", 95),
                ],
            ),
            counted_node("reporter/7", "t", &[("received", 100), ("gaps", 5), ("gaps_filled", 2)]),
        ]);
        let shown = |all| -> Vec<String> {
            waterfall_rows(&nodes, &Rates::default(), all)
                .into_iter()
                .map(|row| match row {
                    WaterfallRow::Node { name, .. } => name,
                    WaterfallRow::Counter { name, value, share, .. } => match share {
                        Some(share) => format!("  {name} {value} {share:.2}"),
                        None => format!("  {name} {value}"),
                    },
                    WaterfallRow::Link(l) => format!("  {} {}: {}", l.name, l.lost, l.how),
                })
                .collect()
        };
        insta::assert_snapshot!("waterfall", shown(false).join("\n"));
        let more: Vec<String> = shown(true).into_iter().filter(|row| !shown(false).contains(row)).collect();
        assert_eq!(more, ["  dropped.field 0 0.00", "  key-write.received 95"]);
    }

    #[test]
    fn what_faults_took_from_the_link_to_the_nic_is_lost_there() {
        let link = |sent, dropped| {
            let translator = [("frames", 1000), ("link.roce.sent", sent), ("faults.roce.dropped", dropped)];
            let nodes = vec![
                counted_node("translator/t", "t", &translator),
                counted_node("nic/soft", "", &[("received", 850)]),
            ];
            let losses = link_losses(&ordered_nodes(nodes));
            assert_eq!((losses.len(), losses[0].name), (1, "lost.translator-nic"));
            (losses[0].lost, losses[0].how.clone())
        };
        let injected = "; 150 dropped by the fault injector";
        assert_eq!(link(850, 150), (150, format!("850 frames sent, 850 received{injected}")));
        assert_eq!(link(857, 150), (157, format!("857 frames sent, 850 received{injected}")));
        assert_eq!(
            link(840, 150),
            (150, format!("840 frames sent when last reported, 850 received by now{injected}"))
        );
        assert_eq!(link(857, 0), (7, "857 frames sent, 850 received".into()));
    }

    #[test]
    fn many_reporters_are_added_up_unless_all_is_asked_for() {
        let many = (0..9)
            .map(|i| counted_node(&format!("reporter/{i}"), "t", &[("received", 10), ("gaps", i)]))
            .collect();
        let many = ordered_nodes(many);
        let titles = |all| {
            waterfall_rows(&many, &Rates::default(), all)
                .iter()
                .filter(|r| matches!(r, WaterfallRow::Node { .. }))
                .count()
        };
        assert_eq!((titles(false), titles(true)), (1, 9));
        let received =
            waterfall_rows(&many, &Rates::default(), false).into_iter().find_map(|row| match row {
                WaterfallRow::Counter { node, name, value, .. } if name == "received" => Some((node, value)),
                _ => None,
            });
        assert_eq!(received, Some(("9 reporters".to_owned(), 90)));
    }

    #[test]
    fn the_rate_of_many_reporters_is_the_sum_of_theirs() {
        let mut rates = Rates::default();
        let word = |seconds: u64| -> Vec<WaterfallNode> {
            let of = |i: u64| NodeStatistics {
                time_us: seconds * 1_000_000,
                ..counted_node(&format!("reporter/{i}"), "t", &[("received", 10 * i * seconds)])
            };
            ordered_nodes((0..9).map(of).collect())
        };
        rates.take(&word(1));
        rates.take(&word(2));
        let rate = |all| {
            waterfall_rows(&word(2), &rates, all).into_iter().filter_map(|row| match row {
                WaterfallRow::Counter { rate, .. } => rate,
                _ => None,
            })
        };
        assert_eq!(rate(false).collect::<Vec<_>>(), [360.0]);
        assert_eq!((rate(true).count(), rate(true).sum::<f64>()), (9, 360.0));
    }

    #[test]
    fn what_the_ring_of_a_host_lost_is_a_term_of_its_own() {
        let books = [
            ("seen", 100),
            ("reported", 60),
            ("left-out", 30),
            ("dropped.ring-full", 9),
            ("dropped.refused", 1),
        ];
        let mut all: Vec<_> = (0..2).map(|i| counted_node(&format!("agent/{i}"), "", &books)).collect();
        all.push(counted_node("reporter/0", "t", &[("received", 60)]));
        let shown = |all: Vec<NodeStatistics>| waterfall_rows(&ordered_nodes(all), &Rates::default(), false);
        let rows = shown(all.clone());
        // Its counters have an age, and it precedes the reporters.
        assert_eq!(rows[0], WaterfallRow::Node { name: "agent/0".into(), age: Some(0.0) });
        let is_lost = |row: &&WaterfallRow| {
            matches!(row, WaterfallRow::Counter { name, value: 9, share: Some(share), .. }
            if name == "dropped.ring-full" && *share == 0.09)
        };
        assert_eq!(rows.iter().filter(is_lost).count(), 2, "{rows:?}");
        all.extend((2..9).map(|i| counted_node(&format!("agent/{i}"), "", &books)));
        let rows = shown(all);
        assert_eq!(rows[0], WaterfallRow::Node { name: "9 agents".into(), age: Some(0.0) });
        assert!(rows.iter().any(|row| matches!(row, WaterfallRow::Counter { name, value: 81, .. }
            if name == "dropped.ring-full")));
    }

    #[test]
    fn a_loss_is_never_below_nothing() {
        // The translator's counters are from its last renewal, the NIC's are current.
        let losses = link_losses(&ordered_nodes(vec![
            counted_node("nic/soft", "", &[("received", 105)]),
            counted_node("translator/t", "t", &[("link.roce.sent", 100)]),
        ]));
        assert_eq!((losses[0].name, losses[0].lost), (between::TRANSLATOR_NIC.name, 0));
        assert_eq!(losses[0].how, "100 frames sent when last reported, 105 received by now");
        assert_eq!(serde_json::to_value(&losses).unwrap()[0]["lost"], 0);
    }

    #[test]
    fn a_full_receive_queue_shows_where_its_reports_are_missing() {
        let translator = ("translator/t", [("link.reports.dropped.receive-queue", 40)]);
        let of = |reporters: &[NodeStatistics]| {
            let mut all = vec![counted_node(translator.0, "t", &translator.1)];
            all.extend_from_slice(reporters);
            let nodes = ordered_nodes(all);
            let shown = waterfall_rows(&nodes, &Rates::default(), false);
            let links: Vec<_> = shown.iter().filter(|row| matches!(row, WaterfallRow::Link(_))).collect();
            assert_eq!(links.len(), 1, "{shown:?}");
            let loss = link_losses(&nodes).remove(0);
            (loss.lost, loss.how)
        };
        let (lost, how) = of(&[counted_node("reporter/7", "t", &[("gaps", 45), ("gaps_filled", 2)])]);
        assert_eq!(lost, 43);
        assert!(
            how.starts_with("45 sequences skipped, 2 came later; 40 dropped at the translator's socket"),
            "{how}"
        );
        assert_eq!(of(&[]).0, 40);
    }

    #[test]
    fn a_link_whose_ends_do_not_both_count_is_not_guessed() {
        assert!(
            link_losses(&ordered_nodes(vec![counted_node("translator/t", "t", &[("frames", 1)])])).is_empty()
        );
    }
}
