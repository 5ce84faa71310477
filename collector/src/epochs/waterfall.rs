//! What happened to the reports of an epoch: how much the counters of all nodes rose between the sealing of the previous epoch and its own.
//!
//! Counters are those of the store's primitive or, where a primitive has none, of all reports. Those of
//! translators are as old as their last renewal, about a second. So some reports count in the neighbouring
//! epoch, and the NIC may have received frames that no translator has yet reported as sent: these are carried
//! over ([`Totals`]). Nothing is counted twice or left out, and what was not lost counts as lost in no epoch.

use std::collections::BTreeMap;

use dta_history::KeptEpoch;
use dta_proto::control::{Counter, Waterfall};
use dta_proto::counter::{self, Definition, Fault, Stage, between, nic, reporter, translator};
use dta_proto::store::StoreSpec;
use serde_json::{Value, json};

use super::Counted;

/// The counters of all nodes at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// Sums over all nodes, by what they count.
    of: BTreeMap<&'static str, u64>,
    /// Reports or frames that did not arrive, by reason.
    lost: BTreeMap<String, u64>,
    /// By link: how many more arrived than were reported as sent. The sender's counters are older and will catch up.
    ahead: BTreeMap<String, u64>,
}

const SENT: &str = "sent";
const EMITTED: &str = "emitted";
const LOST: &str = "lost";
const FRAMES: &str = "frames";
const GAPS: &str = "gaps";
const FILLED: &str = "filled";
const LINK: &str = "link";
const ALL_FRAMES: &str = "all frames";
const RECEIVED: &str = "received";

impl Totals {
    pub(super) fn from_nodes(spec: &StoreSpec, nodes: &[Counted]) -> Totals {
        let of = [spec.primitive()];
        let ours = |definition: &Definition, of: &[&str]| definition.format_name(of);
        let translator = [
            (ours(&translator::OF_RECEIVED, &of), SENT),
            (ours(&translator::OF_EMITTED, &of), EMITTED),
            (ours(&translator::OF_LOST, &of), LOST),
            (ours(&translator::STORE_FRAMES, &[&spec.name]), FRAMES),
            (ours(&translator::LINK_SENT, &[translator::ROCE]), LINK),
            // Injected faults take effect before the link counts.
            (ours(&translator::FAULTS, &[translator::ROCE, Fault::Dropped.name()]), LINK),
            (ours(&translator::FRAMES, &[]), ALL_FRAMES),
        ];
        let reporter = [(ours(&reporter::GAPS, &[]), GAPS), (ours(&reporter::GAPS_FILLED, &[]), FILLED)];
        let nic = [(ours(&nic::RECEIVED, &[]), RECEIVED)];
        let mut totals = Totals::default();
        for (node, counters) in nodes {
            let (names, hop) = match Stage::from_node_name(node) {
                Stage::Translator => (&translator[..], "translator"),
                Stage::Reporter => (&reporter[..], ""),
                Stage::Nic => (&nic[..], "nic"),
                Stage::Agent | Stage::Collector | Stage::Other => continue,
            };
            for (name, value) in counters {
                if let Some((_, what)) = names.iter().find(|(counted, _)| counted == name) {
                    *totals.of.entry(what).or_default() += value;
                }
                if let Some(reason) = loss_reason(node, hop, name) {
                    *totals.lost.entry(reason).or_default() += value;
                }
            }
        }
        totals
    }

    pub(super) fn increase_since(&mut self, before: &Totals) -> Value {
        let all = |what: &str| {
            let of = |totals: &Totals| totals.of.get(what).copied().unwrap_or_default();
            of(self).saturating_sub(of(before))
        };
        let mut lost: BTreeMap<String, u64> = BTreeMap::new();
        for (reason, total) in &self.lost {
            let rose = total.saturating_sub(before.lost.get(reason).copied().unwrap_or_default());
            lost.insert(reason.clone(), rose);
        }
        // A translator without link counters has only its count of frames.
        let frames = if self.of.contains_key(LINK) { all(LINK) } else { all(ALL_FRAMES) };
        let links = [
            (&between::REPORTER_TRANSLATOR, all(GAPS), all(FILLED)),
            (&between::TRANSLATOR_NIC, frames, all(RECEIVED)),
        ];
        let mut ahead = BTreeMap::new();
        for (link, sent, came) in links {
            let link = link.format_name(&[]);
            // What arrived before its sender reported it was not a loss then, and is none now.
            let came = came + before.ahead.get(&link).copied().unwrap_or_default();
            ahead.insert(link.clone(), came.saturating_sub(sent));
            lost.insert(link, sent.saturating_sub(came));
        }
        lost.retain(|_, lost| *lost > 0);
        let increase = json!({
            "sent": all(SENT),
            "landed": all(EMITTED).saturating_sub(all(LOST)),
            "frames": all(FRAMES),
            "lost": lost,
        });
        self.ahead = ahead;
        increase
    }
}

/// The name `run-testbed` gives the loss that a counter counts; `None` if it does not count losses.
fn loss_reason(node: &str, hop: &str, name: &str) -> Option<String> {
    let found = counter::find_counter(node, name)?;
    let is = |definition: &Definition| std::ptr::eq(found.definition, definition);
    if is(&translator::DROPPED) || is(&nic::DROPPED) {
        return Some(format!("dropped.{hop}.{}", found.last_value()));
    }
    let lost = [&translator::DISCARDED, &translator::HELD_AT_RESTART, &translator::LOST_BY];
    lost.into_iter().any(is).then(|| name.to_owned())
}

/// A waterfall as a message for clients.
pub(super) fn waterfall_message(waterfall: &Value) -> Option<Waterfall> {
    let of = waterfall.as_object()?;
    let count = |name: &str| of.get(name).and_then(Value::as_u64);
    let lost = of.get(LOST).and_then(Value::as_object);
    let reason =
        |(name, value): (&String, &Value)| Some(Counter { name: name.clone(), value: value.as_u64()? });
    Some(Waterfall {
        sent: count(SENT),
        landed: count("landed"),
        frames: count(FRAMES),
        lost: lost.into_iter().flatten().filter_map(reason).collect(),
        overwritten_batches: count("overwritten").unwrap_or_default(),
        missing_batches: count("missing").unwrap_or_default(),
        damaged_batches: count("damaged").unwrap_or_default(),
    })
}

/// The waterfall of several epochs together, with only those counts that all of them have: a sum over some
/// epochs would stand beside the rows of all.
pub(super) fn sum(epochs: &[KeptEpoch]) -> Value {
    let mut all = epochs.iter().map(|kept| &kept.epoch.waterfall);
    let mut summed = all.clone().fold(Value::Null, add_values);
    if let Some(names) = summed.as_object_mut() {
        names.retain(|name, _| all.clone().all(|waterfall| waterfall.get(name).is_some()));
    }
    if all.any(Value::is_null) { Value::Null } else { summed }
}

fn add_values(a: Value, b: &Value) -> Value {
    match (a, b) {
        (Value::Object(mut a), Value::Object(b)) => {
            for (name, b) in b {
                let a = a.entry(name.clone()).or_insert(Value::Null);
                *a = add_values(a.take(), b);
            }
            Value::Object(a)
        }
        (Value::Number(a), Value::Number(b)) => {
            a.as_u64().unwrap_or_default().saturating_add(b.as_u64().unwrap_or_default()).into()
        }
        (a, Value::Null) => a,
        (_, b) => b.clone(),
    }
}

#[cfg(test)]
mod tests {
    use dta_history::HistoryEpoch;
    use dta_proto::store::StoreKind;

    use super::*;

    fn nodes(all: &[(&str, &[(&str, u64)])]) -> Vec<Counted> {
        let counters =
            |of: &[(&str, u64)]| of.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        all.iter().map(|(node, of)| ((*node).to_owned(), counters(of))).collect()
    }

    #[test]
    fn frames_that_come_before_their_translator_counts_them_are_no_loss() {
        let kind = StoreKind::KeyWrite { slots: 8, value_len: 4, redundancy: 1, keys: Default::default() };
        let spec = StoreSpec { id: 1, name: "flows".into(), kind };
        let totals = |sent, received| {
            let of_link =
                [("translator/t", &[("link.roce.sent", sent)][..]), ("nic/soft", &[("received", received)])];
            Totals::from_nodes(&spec, &nodes(&of_link))
        };
        // Translators' counters are up to a second older. In the last epoch, 7 frames are lost.
        let mut lost = Vec::new();
        let mut before = Totals::default();
        for (sent, received) in
            [(900, 1000), (1900, 2000), (2950, 3000), (3900, 4000), (5000, 5000), (6007, 6000)]
        {
            let mut now = totals(sent, received);
            lost.push(
                now.increase_since(&before)["lost"]["lost.translator-nic"].as_u64().unwrap_or_default(),
            );
            before = now;
        }
        assert_eq!(lost, [0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn an_epoch_has_what_counters_rose_by_and_several_have_the_sum() {
        let kind = StoreKind::KeyWrite { slots: 8, value_len: 4, redundancy: 1, keys: Default::default() };
        let spec = StoreSpec { id: 1, name: "flows".into(), kind };
        let before = nodes(&[("translator/t", &[("key-write.received", 100), ("lost.injected", 5)])]);
        let after = nodes(&[
            (
                "translator/t",
                &[
                    ("key-write.received", 150),
                    ("key-write.emitted", 45),
                    ("key-write.lost", 2),
                    ("postcarding.received", 7),
                    ("dropped.version", 4),
                    ("discarded.held_at_restart", 1),
                    ("lost.queue_full", 2),
                    ("lost.injected", 5),
                    ("store.flows.frames", 90),
                    ("store.paths.frames", 70),
                    ("link.roce.sent", 160),
                    ("faults.roce.dropped", 10),
                    ("frames", 171),
                ],
            ),
            ("translator/u", &[("key-write.received", 1000)]),
            ("reporter/7", &[("gaps", 9), ("gaps_filled", 3)]),
            ("nic/soft", &[("received", 160), ("dropped.icrc", 8)]),
            ("collector", &[("received", 1)]),
        ]);
        let mut totals = Totals::from_nodes(&spec, &after);
        let waterfall = totals.increase_since(&Totals::from_nodes(&spec, &before));
        let lost = json!({
            "dropped.translator.version": 4, "dropped.nic.icrc": 8, "discarded.held_at_restart": 1, "lost.queue_full": 2,
            "lost.reporter-translator": 6, "lost.translator-nic": 10,
        });
        assert_eq!(waterfall, json!({ "sent": 1050, "landed": 43, "frames": 90, "lost": &lost }));
        let message = waterfall_message(&waterfall).unwrap();
        assert_eq!((message.sent, message.landed, message.frames), (Some(1050), Some(43), Some(90)));
        let reason = |(name, value): (&String, &Value)| (name.clone(), value.as_u64().unwrap());
        let lost: Vec<_> = lost.as_object().unwrap().iter().map(reason).collect();
        assert_eq!(message.lost.into_iter().map(|of| (of.name, of.value)).collect::<Vec<_>>(), lost);
        assert_eq!(waterfall_message(&Value::Null), None);
        let of_lists = waterfall_message(&json!({ "overwritten": 1, "missing": 2, "damaged": 3 })).unwrap();
        let Waterfall { overwritten_batches, missing_batches, damaged_batches, sent, .. } = of_lists;
        assert_eq!((overwritten_batches, missing_batches, damaged_batches, sent), (1, 2, 3, None));
        let kept = |waterfall: &Value| {
            let epoch = HistoryEpoch { waterfall: waterfall.clone(), ..HistoryEpoch::default() };
            KeptEpoch { epoch, rows: 0, rows_of: None }
        };
        let other = json!({ "sent": 1, "landed": 1, "frames": 1, "lost": { "dropped.nic.range": 3, "dropped.nic.icrc": 1 } });
        let summed = sum(&[&waterfall, &other].map(kept));
        assert_eq!((&summed["sent"], &summed["lost"]["dropped.nic.icrc"]), (&json!(1051), &json!(9)));
        assert_eq!(
            (&summed["lost"]["dropped.nic.range"], &summed["lost"]["lost.queue_full"]),
            (&json!(3), &json!(2))
        );
        assert_eq!(sum(&[kept(&Value::Null)]), Value::Null);
    }

    #[test]
    fn what_is_not_known_of_an_epoch_is_not_known_of_several() {
        let kept = |waterfall: Value, rows| KeptEpoch {
            epoch: HistoryEpoch { waterfall, ..HistoryEpoch::default() },
            rows,
            rows_of: None,
        };
        // The collector was killed in the first epoch, which has all the rows.
        let nothing = json!({ "sent": 0, "landed": 0, "frames": 0, "lost": {} });
        assert_eq!(sum(&[kept(Value::Null, 1341), kept(nothing.clone(), 0)]), Value::Null);
        // For the first epoch of a list, only what was read is known.
        let of_list = json!({ "overwritten": 2 });
        let mut second = nothing;
        second["overwritten"] = 3.into();
        assert_eq!(sum(&[kept(of_list, 1341), kept(second, 0)]), json!({ "overwritten": 5 }));
    }
}
