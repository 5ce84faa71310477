//! The end of the waterfall: what was stored, and how much of it can still be queried.
//!
//! Operations overwrite each other, so memory holds fewer answers than operations: copies of a key, its newer reports,
//! and increments of one counter are one answer. Nothing counts what later keys overwrote: that is estimated from how
//! full the stores are.

use dta_proto::store::StoreKind;

use super::stages::{StageLoss, WaterfallStage};
use crate::stores::StoreRow;

/// The unit of what can be queried: a key, a batch of a list, a column of a sketch.
const ANSWERS: &str = "answers";

/// What one store was given, and how much of it is gone.
struct StoreContent {
    stored: u64,
    overwritten: u64,
    /// Why it is gone, and how that was estimated.
    meaning: String,
}

impl StoreContent {
    fn measure(store: &StoreRow) -> Self {
        let name = &store.spec.name;
        match store.spec.kind {
            StoreKind::KeyWrite { .. } | StoreKind::Postcarding { .. } => {
                let share = 1.0 - store.survival.unwrap_or(1.0);
                Self {
                    stored: store.used,
                    overwritten: ((store.used as f64 * share).round() as u64).min(store.used),
                    meaning: format!(
                        "keys of store {name} all of whose slots later keys took, estimated from how full it is"
                    ),
                }
            }
            // Counts of keys that share counters are too high, but none is gone; earlier epochs of a sketch ended as planned.
            StoreKind::KeyIncrement { .. } | StoreKind::SketchMerge { .. } => {
                Self { stored: store.used, overwritten: 0, meaning: String::new() }
            }
            StoreKind::Append { .. } => {
                let overwritten = store.overwritten.unwrap_or(0);
                Self {
                    stored: store.used + overwritten,
                    overwritten,
                    meaning: format!(
                        "batches of store {name} whose places in the rings later ones took, by the numbers of batches"
                    ),
                }
            }
        }
    }
}

/// What stores were given and, last, what can be queried now; empty without stores.
pub(crate) fn stored_stages(stores: &[StoreRow]) -> Vec<WaterfallStage> {
    if stores.is_empty() {
        return Vec::new();
    }
    let (mut stored, mut losses) = (0, Vec::new());
    for store in stores {
        let content = StoreContent::measure(store);
        stored += content.stored;
        if content.overwritten > 0 {
            losses.push(StageLoss {
                name: format!("overwritten.{}", store.spec.name),
                count: content.overwritten,
                rate: None,
                meaning: content.meaning,
                lost: false,
                estimated: true,
            });
        }
    }
    losses.sort_by(|a, b| b.count.cmp(&a.count).then(a.name.cmp(&b.name)));
    let queryable = stored - losses.iter().map(|loss| loss.count).sum::<u64>();
    let stage = |name, title, count, losses, estimated_by: &str| WaterfallStage {
        name,
        title,
        unit: ANSWERS,
        count,
        rate: None,
        waiting: 0,
        losses,
        estimated_by: Some(estimated_by.to_owned()),
    };
    vec![
        stage(
            "stored",
            "keys, batches and columns stored",
            stored,
            losses,
            "keys by the slots that are in use, batches by their numbers",
        ),
        stage(
            "queryable",
            "queryable now",
            queryable,
            Vec::new(),
            "what was stored less what was overwritten since; of stores with epochs, in the present one",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use dta_proto::store::{SlotKeys, StoreSpec};

    use super::*;

    fn row(name: &str, kind: StoreKind, used: u64, survival: Option<f64>) -> StoreRow {
        StoreRow {
            spec: StoreSpec { id: 1, name: name.into(), kind },
            generation: 1,
            bytes: 0,
            memory: String::new(),
            file: None,
            used,
            capacity: 1024,
            load: 0.0,
            survival,
            advised_redundancy: None,
            overwritten: None,
            here: None,
            rings: Vec::new(),
        }
    }

    #[test]
    fn what_was_stored_is_queryable_or_overwritten() {
        let keys = SlotKeys::default();
        let values = StoreKind::KeyWrite { slots: 1024, value_len: 12, redundancy: 2, keys };
        let events = StoreKind::Append { lists: 1, ring: 1024, batch_len: 64, entry_len: 16, notify: false };
        let counts = StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 1 };
        let stages = stored_stages(&[
            row("values", values, 500, Some(0.9)),
            StoreRow { overwritten: Some(1976), ..row("events", events, 1024, None) },
            // Where keys share counters, counts are too high, but all of them are there.
            row("counts", counts, 70, Some(0.2)),
        ]);
        let counted: Vec<_> = stages.iter().map(|stage| (stage.name, stage.count)).collect();
        assert_eq!(counted, [("stored", 3570), ("queryable", 450 + 1024 + 70)]);
        let losses: Vec<_> = stages[0].losses.iter().map(|loss| (loss.name.as_str(), loss.count)).collect();
        assert_eq!(losses, [("overwritten.events", 1976), ("overwritten.values", 50)]);
        assert!(stages.iter().all(|stage| stage.estimated_by.is_some()));
    }

    #[test]
    fn without_stores_there_is_no_end() {
        assert_eq!(stored_stages(&[]), []);
    }
}
