//! The waterfall as stages: how much reached each one, what went on, and what ended there, by reason.

use std::collections::BTreeMap;

use dta_proto::counter::{self, CounterStep, Definition, Reason, Stage, Unit, between, nic, translator};
use serde::Serialize;

use super::stored::stored_stages;
use super::{Rates, WaterfallNode, link_losses};
use crate::stores::StoreRow;

/// A stage on the way from reporters into memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaterfallStage {
    pub name: &'static str,
    pub title: &'static str,
    /// What is counted: reports up to the translator's exit, then frames and operations, then answers in memory.
    pub unit: &'static str,
    pub count: u64,
    /// Per second; `null` = still unknown.
    pub rate: Option<f64>,
    /// How many are waiting in this stage.
    pub waiting: u64,
    /// What ended here, the largest count first.
    pub losses: Vec<StageLoss>,
    /// How `count` was estimated; `null` = it was counted.
    pub estimated_by: Option<String>,
}

/// What ended in a stage for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageLoss {
    /// The counter, or the link.
    pub name: String,
    pub count: u64,
    pub rate: Option<f64>,
    /// The reason in words.
    pub meaning: String,
    /// Whether it is really lost; otherwise something newer replaced it, or it came twice.
    pub lost: bool,
    /// Whether `count` is an estimate; `meaning` says how it was made.
    pub estimated: bool,
}

/// The stages in the order in which reports pass them, up to what can be queried. Stages about which nothing is known
/// are left out.
pub fn waterfall_stages(nodes: &[WaterfallNode], stores: &[StoreRow], rates: &Rates) -> Vec<WaterfallStage> {
    let links = link_losses(nodes);
    let link_loss = |name: &str| {
        let found = links.iter().find(|link| link.name == name && link.lost > 0)?;
        let meaning = found.how.clone();
        Some(StageLoss {
            name: found.name.to_owned(),
            count: found.lost,
            rate: None,
            meaning,
            lost: true,
            estimated: false,
        })
    };
    let translators = StageCounters::collect(nodes, rates, Stage::Translator);
    let nics = StageCounters::collect(nodes, rates, Stage::Nic);
    let mut stages = Vec::new();
    if let Some((received, rate)) = translators.total_of(&translator::RECEIVED) {
        let on_the_way = link_loss(between::REPORTER_TRANSLATOR.name);
        let sent = received + on_the_way.as_ref().map_or(0, |loss| loss.count);
        let stage = |name, title, count, rate, losses| WaterfallStage {
            name,
            title,
            unit: Unit::Reports.name(),
            count,
            rate,
            waiting: 0,
            losses,
            estimated_by: None,
        };
        stages.push(stage("sent", "sent by reporters", sent, rate, on_the_way.into_iter().collect()));
        let dropped = translators.losses(Unit::Reports, &[CounterStep::Dropped]);
        stages.push(stage("received", "received by translators", received, rate, dropped));
        let (accepted, rate) = translators.total_of(&translator::ACCEPTED).unwrap_or_default();
        let ended = translators.losses(Unit::Reports, &[CounterStep::Superseded, CounterStep::Discarded]);
        let waiting = translators.total_of(&translator::HELD).unwrap_or_default().0;
        stages.push(WaterfallStage {
            waiting,
            ..stage("accepted", "accepted by translators", accepted, rate, ended)
        });
        let (emitted, rate) = translators.total_of(&translator::EMITTED).unwrap_or_default();
        let mut lost = translators.losses(Unit::Reports, &[CounterStep::Lost]);
        // Left out because it is the sum of the causes.
        lost.retain(|loss| loss.name != translator::LOST.name);
        stages.push(stage("emitted", "made into operations", emitted, rate, lost));
    }
    let stage = |name, title, unit: Unit, (count, rate): (u64, Option<f64>), losses| WaterfallStage {
        name,
        title,
        unit: unit.name(),
        count,
        rate,
        waiting: 0,
        losses,
        estimated_by: None,
    };
    let sent = [translator::ROCE].into_iter().find_map(|link| {
        let name = translator::LINK_SENT.format_name(&[link]);
        translators.total(&name)
    });
    if let Some(sent) = sent.or_else(|| translators.total_of(&translator::FRAMES)) {
        let lost = link_loss(between::TRANSLATOR_NIC.name).into_iter().collect();
        stages.push(stage("frames", "sent to the NIC", Unit::Frames, sent, lost));
    }
    if let Some(received) = nics.total_of(&nic::RECEIVED) {
        let steps = [CounterStep::Dropped, CounterStep::Duplicate];
        let ended = nics.losses(Unit::Packets, &steps);
        stages.push(stage("arrived", "received by the NIC", Unit::Packets, received, ended));
        stages.push(stage(
            "executed",
            "written into memory",
            Unit::Operations,
            nics.total_of_step(CounterStep::Executed),
            Vec::new(),
        ));
    }
    stages.extend(stored_stages(stores));
    stages
}

/// The counters of all nodes of a stage, summed.
struct StageCounters<'a> {
    by_name: BTreeMap<&'a str, SummedCounter>,
}

struct SummedCounter {
    count: u64,
    rate: Option<f64>,
    /// What it counts; `None` if unknown, or if it is a part of another counter.
    whole: Option<(CounterStep, Unit, &'static str)>,
    /// Whether it counts what came before.
    is_repeat: bool,
}

impl<'a> StageCounters<'a> {
    fn collect(nodes: &'a [WaterfallNode], rates: &Rates, stage: Stage) -> Self {
        let mut by_name: BTreeMap<&str, SummedCounter> = BTreeMap::new();
        for node in nodes.iter().filter(|node| node.stage == stage) {
            for (name, value) in &node.counters {
                let summed = by_name.entry(name).or_insert_with(|| {
                    let found =
                        counter::find_counter(&node.name, name).filter(|found| !found.definition.detail);
                    let whole = found.map(|found| {
                        (found.definition.step, found.definition.unit, found.specific_meaning())
                    });
                    let is_repeat = found.is_some_and(|found| found.last_value() == Reason::Duplicate.name());
                    SummedCounter { count: 0, rate: None, whole, is_repeat }
                });
                summed.count = summed.count.saturating_add(*value);
                if let Some(rate) = rates.counter_rate(node, name) {
                    summed.rate = Some(summed.rate.unwrap_or(0.0) + rate);
                }
            }
        }
        Self { by_name }
    }

    fn total(&self, name: &str) -> Option<(u64, Option<f64>)> {
        self.by_name.get(name).map(|summed| (summed.count, summed.rate))
    }

    fn total_of(&self, counter: &Definition) -> Option<(u64, Option<f64>)> {
        self.total(counter.name)
    }

    fn total_of_step(&self, step: CounterStep) -> (u64, Option<f64>) {
        let of_step = self.by_name.values().filter(|summed| summed.whole.is_some_and(|of| of.0 == step));
        of_step.fold((0, None), |(count, rate), summed| {
            let rate = match (rate, summed.rate) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            };
            (count + summed.count, rate)
        })
    }

    /// What ended at these steps, the largest count first.
    fn losses(&self, unit: Unit, steps: &[CounterStep]) -> Vec<StageLoss> {
        let loss = |(name, summed): (&&str, &SummedCounter)| {
            let (step, of_unit, meaning) = summed.whole?;
            (steps.contains(&step) && of_unit == unit && summed.count > 0).then(|| StageLoss {
                name: (*name).to_owned(),
                count: summed.count,
                rate: summed.rate,
                meaning: meaning.to_owned(),
                lost: !summed.is_repeat && !matches!(step, CounterStep::Superseded | CounterStep::Duplicate),
                estimated: false,
            })
        };
        let mut losses: Vec<StageLoss> = self.by_name.iter().filter_map(loss).collect();
        losses.sort_by(|a, b| b.count.cmp(&a.count).then(a.name.cmp(&b.name)));
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::super::ordered_nodes;
    use super::super::tests::counted_node;
    use super::*;

    #[test]
    fn each_stage_has_what_came_what_ended_there_and_what_waits() {
        let translator = |received| {
            counted_node(
                "translator/t",
                "t",
                &[
                    ("received", received),
                    ("dropped.version", 3),
                    ("dropped.duplicate", 2),
                    ("accepted", received - 5),
                    ("superseded", 2),
                    ("held", 3),
                    ("emitted", received - 10),
                    ("key-write.emitted", 7),
                    ("operations", 180),
                    ("frames", 180),
                    ("lost", 1),
                    ("lost.link", 1),
                ],
            )
        };
        let nodes = ordered_nodes(vec![
            counted_node("reporter/7", "t", &[("received", 100), ("gaps", 5), ("gaps_filled", 2)]),
            translator(100),
            counted_node("nic/soft", "t", &[("received", 178), ("executed.write", 170), ("dropped.icrc", 8)]),
        ]);
        let stages = waterfall_stages(&nodes, &[], &Rates::default());
        let counted: Vec<(&str, u64, u64, u64)> = stages
            .iter()
            .map(|s| (s.name, s.count, s.waiting, s.losses.iter().map(|l| l.count).sum()))
            .collect();
        let expected = [
            ("sent", 103, 0, 3),
            ("received", 100, 0, 5),
            ("accepted", 95, 3, 2),
            ("emitted", 90, 0, 1),
            ("frames", 180, 0, 2),
            ("arrived", 178, 0, 8),
            ("executed", 170, 0, 0),
        ];
        assert_eq!(counted, expected);
        // What reaches a stage goes on, ends or waits.
        for two in stages[..4].windows(2) {
            let ended: u64 = two[0].losses.iter().map(|loss| loss.count).sum();
            assert_eq!(two[0].count, two[1].count + ended + two[0].waiting, "{}", two[0].name);
        }
        assert!(!stages[2].losses[0].lost, "a newer report is there instead");
        let lost: Vec<_> = stages[1].losses.iter().map(|loss| (loss.name.as_str(), loss.lost)).collect();
        assert_eq!(lost, [("dropped.version", true), ("dropped.duplicate", false)]);
        assert!(waterfall_stages(&[], &[], &Rates::default()).is_empty());
    }
}
