//! What needs attention, in sentences that say what to do about it.

use dta_cli::number::format_percent;
use dta_proto::counter::Stage;
use serde::Serialize;

use crate::sessions::SessionRow;
use crate::stores::StoreRow;
use crate::waterfall::WaterfallNode;

/// If a smaller share of keys survives, a store is too small.
const LEAST_SURVIVAL: f64 = 0.9;
/// Seconds after which a node that reports its counters every second counts as silent.
const SILENT: f64 = 10.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Notice {
    pub severity: Severity,
    /// The store, session or node.
    pub about: String,
    pub text: String,
    pub advice: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Answers are wrong or missing.
    Problem,
    /// Answers will be wrong or missing if nothing changes.
    Warning,
    /// Nothing is wrong, but something is to be done first.
    Hint,
}

/// What these rows reveal, worst first.
pub fn find_notices(stores: &[StoreRow], sessions: &[SessionRow], nodes: &[WaterfallNode]) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut add = |severity, about: &str, text: String, advice: String| {
        notices.push(Notice { severity, about: about.to_owned(), text, advice });
    };
    for store in stores {
        if let Some(survival) = store.survival.filter(|survival| *survival < LEAST_SURVIVAL) {
            let text = format!(
                "only {} of the keys survive at a load of {:.2}",
                format_percent(survival),
                store.load
            );
            let advice = "give it more slots, or epochs: docs/sizing.md".to_owned();
            add(Severity::Warning, &store.spec.name, text, advice);
        }
        for ring in store.rings.iter().filter(|ring| ring.is_short()) {
            let (text, advice) = ring.describe_with_advice();
            add(Severity::Warning, &store.spec.name, text, advice);
        }
    }
    for session in sessions {
        for pair in session.queue_pairs.iter().filter(|pair| pair.state == "error") {
            let text = format!("its queue pair for {} is in error: its frames are refused", pair.purpose);
            let advice =
                "its translator replaces it when it renews its session; see its log if it stays".to_owned();
            add(Severity::Problem, &session.name, text, advice);
        }
    }
    for node in nodes.iter().filter(|node| node.stage == Stage::Translator && node.age > SILENT) {
        let text = format!("has not handed in counters for {:.0} s", node.age);
        add(
            Severity::Problem,
            &node.title(),
            text,
            "is it running, and does it reach the collector?".to_owned(),
        );
    }
    if sessions.is_empty() {
        let text = "no translator has a session, so nothing can be written".to_owned();
        add(Severity::Hint, "sessions", text, "start one: dta-translator run".to_owned());
    }
    notices.sort_by_key(|notice| notice.severity);
    notices
}

#[cfg(test)]
mod tests {
    use dta_proto::control::{QueuePairStatus, SessionInfo};
    use dta_proto::store::{StoreKind, StoreSpec};

    use super::*;

    #[test]
    fn a_store_that_is_too_small_and_a_broken_queue_pair_are_named() {
        let spec = StoreSpec {
            id: 1,
            name: "flows".into(),
            kind: StoreKind::KeyIncrement { slots: 8, redundancy: 1, replicas: 1 },
        };
        let store = StoreRow {
            spec,
            generation: 1,
            bytes: 64,
            memory: String::new(),
            file: None,
            used: 12,
            capacity: 8,
            load: 1.5,
            survival: Some(0.4),
            advised_redundancy: None,
            overwritten: None,
            here: None,
            rings: Vec::new(),
        };
        let pair = QueuePairStatus { state: "error".into(), ..QueuePairStatus::default() };
        let session = SessionInfo { name: "leaf1".into(), queue_pairs: vec![pair], ..SessionInfo::default() };
        let session = SessionRow::from_session(session, None);
        let notices = find_notices(std::slice::from_ref(&store), &[session], &[]);
        let found: Vec<_> = notices.iter().map(|n| (n.severity, n.about.as_str())).collect();
        assert_eq!(found, [(Severity::Problem, "leaf1"), (Severity::Warning, "flows")]);
        let healthy = StoreRow { survival: Some(0.99), ..store };
        let only = find_notices(&[healthy], &[], &[]);
        assert_eq!(only.iter().map(|n| n.severity).collect::<Vec<_>>(), [Severity::Hint]);
    }
}
