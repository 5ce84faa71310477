//! "Where did my reports go?": the counters of all nodes in the order in which reports pass them.
//!
//! Pure: from what [`Ask::statistics`](dta_client::Ask::statistics) answers to rows, for the
//! command line and the dashboard.

use dta_proto::control::NodeStatistics;
use dta_proto::counter::{
    self, Definition, Found, Kind, Stage, Step, Unit, between, nic, reporter, translator,
};
use serde::Serialize;

/// Reporters are shown one by one up to this many; more are added up, unless everything is asked for.
const FEW_REPORTERS: usize = 4;

/// One node and what it counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Where it stands.
    pub stage: Stage,
    /// `translator/NAME`, `nic/DEVICE`, …
    pub name: String,
    /// The session that handed it in; empty for the collector's own.
    pub session: String,
    /// Seconds since it gave these numbers.
    pub age: f64,
    /// By name, in the order of the waterfall.
    pub counters: Vec<(String, u64)>,
}

/// What was sent to the next stage and did not arrive there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkLoss {
    /// `lost.reporter-translator`, `lost.translator-nic`
    pub name: &'static str,
    /// How many; 0 where more arrived than the sender has told of, whose numbers are as old as its
    /// last renewal.
    pub lost: u64,
    /// How it is known, in words.
    pub how: String,
}

/// One line of the waterfall.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// A node begins.
    Node {
        /// Its name.
        name: String,
        /// Seconds since it gave its numbers; `None` for what is of now.
        age: Option<f64>,
    },
    /// One of its counters.
    Counter {
        /// The node.
        node: String,
        /// The counter.
        name: String,
        /// Its value.
        value: u64,
        /// Of what the node received, where both count the same unit.
        share: Option<f64>,
    },
    /// What was lost on the way to the next stage.
    Link(LinkLoss),
}

/// Nodes in order, with their counters in order.
pub fn nodes(statistics: Vec<NodeStatistics>) -> Vec<Node> {
    let mut nodes: Vec<Node> = statistics
        .into_iter()
        .map(|n| {
            let stage = Stage::of(&n.node);
            let mut counters: Vec<(String, u64)> =
                n.counters.into_iter().map(|c| (c.name, c.value)).collect();
            counters.sort_by_cached_key(|(name, _)| (rank(counter::find(&n.node, name)), name.clone()));
            Node { stage, name: n.node, session: n.session, age: n.age_seconds, counters }
        })
        .collect();
    nodes.sort_by(|a, b| (a.stage, &a.name, &a.session).cmp(&(b.stage, &b.name, &b.session)));
    nodes
}

/// What the links between stages lost, where that is known: nothing is guessed.
pub fn link_losses(nodes: &[Node]) -> Vec<LinkLoss> {
    let sum = |stage, counter: &Definition, of: &[&str]| {
        let name = counter.of(of);
        let mut of_stage = nodes.iter().filter(|n| n.stage == stage).filter_map(|n| n.get(&name)).peekable();
        of_stage.peek()?;
        Some(of_stage.sum::<u64>())
    };
    let mut losses = Vec::new();
    // A reporter's own count stays with it; its sequence numbers tell the translator what is
    // missing. What its socket dropped is part of that, but for reports without sequence numbers.
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
    // Faults act before the link counts; a translator that hands in no link counts has frames alone.
    let sent = sum(Stage::Translator, &translator::LINK_SENT, &[translator::ROCE])
        .or_else(|| sum(Stage::Translator, &translator::FRAMES, &[]));
    if let (Some(sent), Some(received)) = (sent, sum(Stage::Nic, &nic::RECEIVED, &[])) {
        losses.push(LinkLoss {
            name: between::TRANSLATOR_NIC.name,
            lost: sent.saturating_sub(received),
            how: if received > sent {
                format!("{sent} frames sent when it was last told, {received} received by now")
            } else {
                format!("{sent} frames sent, {received} received")
            },
        });
    }
    losses
}

/// The waterfall, line by line. Without `all`, only what is not 0, and no details of single primitives.
pub fn rows(nodes: &[Node], all: bool) -> Vec<Row> {
    let losses = link_losses(nodes);
    let added_up;
    let nodes = if all {
        nodes
    } else {
        added_up = few_reporters(nodes);
        &added_up
    };
    let mut rows = Vec::new();
    if nodes.iter().all(|node| node.stage != Stage::Reporter) {
        rows.extend(
            losses.iter().filter(|l| l.name == between::REPORTER_TRANSLATOR.name).cloned().map(Row::Link),
        );
    }
    for (i, node) in nodes.iter().enumerate() {
        let own = node.session.is_empty();
        rows.push(Row::Node { name: node.title(), age: (!own).then_some(node.age) });
        let came_in = node.came_in();
        for (name, value) in &node.counters {
            let found = counter::find(&node.name, name);
            if !all && (*value == 0 || found.is_some_and(|found| found.definition.detail)) {
                continue;
            }
            let share = came_in
                .filter(|(unit, _)| found.is_some_and(|found| is_share(&found, *unit)))
                .map(|(_, came_in)| *value as f64 / came_in as f64);
            rows.push(Row::Counter { node: node.title(), name: name.clone(), value: *value, share });
        }
        // After the last node of a stage: the link to the next.
        if nodes.get(i + 1).is_none_or(|next| next.stage != node.stage) {
            let from = match node.stage {
                Stage::Reporter => between::REPORTER_TRANSLATOR.name,
                Stage::Translator => between::TRANSLATOR_NIC.name,
                Stage::Nic | Stage::Collector | Stage::Other => continue,
            };
            rows.extend(losses.iter().filter(|l| l.name == from).cloned().map(Row::Link));
        }
    }
    rows
}

/// Puts many reporters together as one node.
fn few_reporters(nodes: &[Node]) -> Vec<Node> {
    let (reporters, mut rest): (Vec<Node>, Vec<Node>) =
        nodes.iter().cloned().partition(|n| n.stage == Stage::Reporter);
    if reporters.len() <= FEW_REPORTERS {
        return nodes.to_vec();
    }
    let mut sums = Node {
        stage: Stage::Reporter,
        name: format!("{} reporters", reporters.len()),
        // As with a single one: these are not the collector's own numbers.
        session: "all".into(),
        age: 0.0,
        counters: Vec::new(),
    };
    for reporter in reporters {
        sums.age = sums.age.max(reporter.age);
        let has_sum = |name: &str| {
            counter::find(&reporter.name, name).is_none_or(|found| found.definition.kind != Kind::Position)
        };
        for (name, value) in reporter.counters.into_iter().filter(|(name, _)| has_sum(name)) {
            match sums.counters.iter_mut().find(|(n, _)| *n == name) {
                Some((_, sum)) => *sum += value,
                None => sums.counters.push((name, value)),
            }
        }
    }
    rest.insert(0, sums);
    rest
}

impl Node {
    /// Its name, and the session where that says more.
    pub fn title(&self) -> String {
        if self.session.is_empty()
            || !self.name.contains('/')
            || self.name.split_once('/').is_some_and(|(_, name)| name == self.session)
        {
            self.name.clone()
        } else {
            format!("{} ({})", self.name, self.session)
        }
    }

    /// What came in, unless it was nothing: its unit and how many.
    fn came_in(&self) -> Option<(Unit, u64)> {
        let of_all = |found: &Found<'_>| found.definition.step == Step::In && !found.definition.detail;
        let came_in = self.counters.iter().find_map(|(name, value)| {
            let found = counter::find(&self.name, name).filter(of_all)?;
            Some((found.definition.unit, *value))
        });
        came_in.filter(|(_, value)| *value != 0)
    }

    /// The value of a counter.
    pub fn get(&self, counter: &str) -> Option<u64> {
        self.counters.iter().find(|(name, _)| name == counter).map(|(_, value)| *value)
    }
}

/// The value that a counter of a node (by its title) had in an earlier answer.
pub fn find(nodes: &[Node], title: &str, counter: &str) -> Option<u64> {
    nodes.iter().find(|n| n.title() == title)?.get(counter)
}

/// In comes first, then what was taken and what became of it, drops beside; details of these, and
/// what nobody here knows, come last.
fn rank(found: Option<Found<'_>>) -> u8 {
    match found.map(|found| found.definition) {
        Some(definition) if !definition.detail => match definition.step {
            Step::In => 0,
            Step::Dropped => 1,
            Step::Accepted => 2,
            Step::Superseded | Step::Held | Step::Discarded => 3,
            Step::Emitted => 4,
            Step::Operations => 5,
            Step::Frames => 6,
            Step::Lost => 7,
            Step::Executed => 8,
            Step::Duplicate => 9,
            Step::Answered | Step::Beside => 10,
        },
        _ => 10,
    }
}

/// Whether a counter's share of what came in says something: it is in that unit, and of what became of it.
fn is_share(found: &Found<'_>, unit: Unit) -> bool {
    found.definition.step.is_share() && !found.definition.detail && found.definition.unit == unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::control::Counter;

    fn node(name: &str, session: &str, counters: &[(&str, u64)]) -> NodeStatistics {
        let counters =
            counters.iter().map(|(name, value)| Counter { name: (*name).into(), value: *value }).collect();
        NodeStatistics { node: name.into(), session: session.into(), counters, ..NodeStatistics::default() }
    }

    #[test]
    fn reports_are_followed_downstream() {
        let nodes = nodes(vec![
            node("collector", "", &[("session.opened", 1)]),
            node("nic/soft", "", &[("executed.write", 90), ("dropped.icrc", 2), ("received", 92)]),
            node(
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
            node("reporter/7", "t", &[("received", 100), ("gaps", 5), ("gaps_filled", 2)]),
        ]);
        let shown = |all| -> Vec<String> {
            rows(&nodes, all)
                .into_iter()
                .map(|row| match row {
                    Row::Node { name, .. } => name,
                    Row::Counter { name, value, share, .. } => match share {
                        Some(share) => format!("  {name} {value} {share:.2}"),
                        None => format!("  {name} {value}"),
                    },
                    Row::Link(l) => format!("  {} {}: {}", l.name, l.lost, l.how),
                })
                .collect()
        };
        insta::assert_snapshot!("waterfall", shown(false).join("\n"));
        let more: Vec<String> = shown(true).into_iter().filter(|row| !shown(false).contains(row)).collect();
        assert_eq!(more, ["  dropped.field 0 0.00", "  key-write.received 95"]);
    }

    #[test]
    fn many_reporters_are_added_up_unless_all_is_asked_for() {
        let many =
            (0..9).map(|i| node(&format!("reporter/{i}"), "t", &[("received", 10), ("gaps", i)])).collect();
        let many = nodes(many);
        let titles = |all| rows(&many, all).iter().filter(|r| matches!(r, Row::Node { .. })).count();
        assert_eq!((titles(false), titles(true)), (1, 9));
        let received = rows(&many, false).into_iter().find_map(|row| match row {
            Row::Counter { node, name, value, .. } if name == "received" => Some((node, value)),
            _ => None,
        });
        assert_eq!(received, Some(("9 reporters".to_owned(), 90)));
    }

    #[test]
    fn a_loss_is_never_below_nothing() {
        // The translator's numbers are of its last renewal, the NIC's of now.
        let losses = link_losses(&nodes(vec![
            node("nic/soft", "", &[("received", 105)]),
            node("translator/t", "t", &[("link.roce.sent", 100)]),
        ]));
        assert_eq!((losses[0].name, losses[0].lost), (between::TRANSLATOR_NIC.name, 0));
        assert_eq!(losses[0].how, "100 frames sent when it was last told, 105 received by now");
        assert_eq!(serde_json::to_value(&losses).unwrap()[0]["lost"], 0);
    }

    #[test]
    fn a_full_receive_queue_shows_where_its_reports_are_missing() {
        let translator = ("translator/t", [("link.reports.dropped.receive-queue", 40)]);
        let of = |reporters: &[NodeStatistics]| {
            let mut all = vec![node(translator.0, "t", &translator.1)];
            all.extend_from_slice(reporters);
            let nodes = nodes(all);
            let shown = rows(&nodes, false);
            let links: Vec<_> = shown.iter().filter(|row| matches!(row, Row::Link(_))).collect();
            assert_eq!(links.len(), 1, "{shown:?}");
            let loss = link_losses(&nodes).remove(0);
            (loss.lost, loss.how)
        };
        let (lost, how) = of(&[node("reporter/7", "t", &[("gaps", 45), ("gaps_filled", 2)])]);
        assert_eq!(lost, 43);
        assert!(
            how.starts_with("45 sequences skipped, 2 came later; 40 dropped at the translator's socket"),
            "{how}"
        );
        assert_eq!(of(&[]).0, 40);
    }

    #[test]
    fn a_link_whose_ends_do_not_both_count_is_not_guessed() {
        assert!(link_losses(&nodes(vec![node("translator/t", "t", &[("frames", 1)])])).is_empty());
    }
}
