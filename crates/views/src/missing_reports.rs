//! What a count may be missing: reports that never reached a store, according to the counters of the sessions that write it.
//!
//! A key-increment store counts what reached it. Keys that share counters make an answer too high; losses on the way
//! make it too low, and nothing says which keys lost them. Pure, like [`waterfall`](crate::waterfall): computed from
//! answers of [`Ask`](dta_rpc::Ask).

use dta_proto::control::{NodeStatistics, SessionInfo};
use dta_proto::counter::{Definition, Stage, reporter, translator};
use dta_proto::wire::dta::Primitive;
use serde::Serialize;

/// Reports missing from a store, over all sessions that write or wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MissingReports {
    pub sessions: Vec<String>,
    /// Sequences of reporters that never reached the translator, whatever their store.
    pub not_received: u64,
    /// Reports of this primitive that the translator received but did not accept, including repeats, which are no
    /// loss.
    pub not_applied: u64,
    /// Reports of this primitive that were lost after the translator.
    pub lost: u64,
    /// Reports of this primitive waiting in the translator.
    pub held: u64,
}

/// What a store of a primitive is missing. Translators' counters are as old as their last renewal.
pub fn missing_from_store(
    store: &str,
    primitive: Primitive,
    sessions: &[SessionInfo],
    nodes: &[NodeStatistics],
) -> MissingReports {
    let mut missing = MissingReports::default();
    let elsewhere = |name: &str| {
        sessions.iter().any(|session| session.name == name && !session.stores.iter().any(|s| s == store))
    };
    for node in nodes.iter().filter(|node| !node.session.is_empty() && !elsewhere(&node.session)) {
        let count = |counter: &Definition, of: &[&str]| {
            let name = counter.format_name(of);
            node.counters.iter().find(|counter| counter.name == name).map_or(0, |counter| counter.value)
        };
        let of = &[primitive.canonical_name()];
        match Stage::from_node_name(&node.node) {
            Stage::Translator => {
                missing.sessions.push(node.session.clone());
                let accepted = count(&translator::OF_ACCEPTED, of);
                missing.not_applied += count(&translator::OF_RECEIVED, of).saturating_sub(accepted);
                missing.lost += count(&translator::OF_LOST, of);
                missing.held += count(&translator::OF_HELD, of);
            }
            Stage::Reporter => {
                let filled = count(&reporter::GAPS_FILLED, &[]);
                missing.not_received += count(&reporter::GAPS, &[]).saturating_sub(filled);
            }
            Stage::Agent | Stage::Nic | Stage::Collector | Stage::Other => {}
        }
    }
    missing.sessions.sort();
    missing.sessions.dedup();
    missing
}

impl MissingReports {
    pub fn describe(&self, store: &str) -> String {
        let over = format!(
            "A count covers what reached store {store}. It is too high where other keys share its counters"
        );
        if self.sessions.is_empty() {
            return format!(
                "{over}; whether anything was lost on the way is unknown: no session has handed in counters."
            );
        }
        let missing = [
            (self.not_received, "never reached the translator (reports of all stores)"),
            (self.not_applied, "received and not applied (repeats among them)"),
            (self.lost, "lost after the translator"),
            (self.held, "waiting in the translator"),
        ];
        let sentences: Vec<String> =
            missing.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        let sessions = match &self.sessions[..] {
            [one] => format!("session {one} reports"),
            all => format!("sessions {} report", all.join(", ")),
        };
        match sentences.is_empty() {
            true => format!("{over}, and not known to be too low: {sessions} no loss."),
            false => format!("{over}, and too low by what was lost: {sessions} {}.", sentences.join(", ")),
        }
    }
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

    fn session(name: &str, stores: &[&str]) -> SessionInfo {
        let stores = stores.iter().map(|store| (*store).to_owned()).collect();
        SessionInfo { name: name.into(), stores, ..SessionInfo::default() }
    }

    #[test]
    fn losses_of_the_sessions_that_write_the_store_are_added_up() {
        let sessions = [session("a", &["bytes", "flows"]), session("b", &["flows"])];
        let translated = [
            ("key-increment.received", 100),
            ("key-increment.accepted", 97),
            ("key-increment.lost", 2),
            ("key-increment.held", 1),
            ("key-write.received", 50),
        ];
        let nodes = [
            node("nic/soft", "", &[("received", 1)]),
            node("translator/a", "a", &translated),
            node("reporter/7", "a", &[("gaps", 12), ("gaps_filled", 2)]),
            // It does not write the store.
            node("translator/b", "b", &translated),
            node("reporter/8", "b", &[("gaps", 500)]),
            // It has ended, but may have written the store.
            node("translator/gone", "gone", &[("key-increment.received", 10), ("key-increment.accepted", 9)]),
        ];
        let lacks = missing_from_store("bytes", Primitive::KeyIncrement, &sessions, &nodes);
        let sessions = vec!["a".to_owned(), "gone".to_owned()];
        assert_eq!(lacks, MissingReports { sessions, not_received: 10, not_applied: 4, lost: 2, held: 1 });
        assert_eq!(
            lacks.describe("bytes"),
            "A count covers what reached store bytes. It is too high where other keys share its counters, and too low by what was \
             lost: sessions a, gone report 10 never reached the translator (reports of all stores), 4 received and not applied \
             (repeats among them), 2 lost after the translator, 1 waiting in the translator."
        );
        let nothing =
            missing_from_store("bytes", Primitive::KeyIncrement, &[], &[node("translator/a", "a", &[])]);
        assert!(
            nothing.describe("bytes").ends_with("session a reports no loss."),
            "{}",
            nothing.describe("bytes")
        );
        let unknown = missing_from_store("bytes", Primitive::KeyIncrement, &[], &[]);
        assert!(unknown.describe("bytes").contains("is unknown"));
    }
}
