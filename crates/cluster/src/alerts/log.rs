//! What the collectors of a cluster find, and the log of alerts derived from it. No I/O, and no clock.

use std::collections::BTreeMap;
#[cfg(feature = "etcd")]
use std::collections::BTreeSet;
use std::sync::Arc;
#[cfg(feature = "etcd")]
use std::time::{Duration, Instant};

#[cfg(feature = "etcd")]
use dta_proto::control::AlertState;
use dta_proto::control::{Alert, AlertTransition};

/// How long an alert stays open after all its finders have left: collectors that take over their lists find it again.
#[cfg(feature = "etcd")]
const ORPHAN_GRACE: Duration = Duration::from_secs(300);
/// Transitions that are kept. The last one of a firing alert is kept beyond that.
#[cfg(feature = "etcd")]
const MAX_TRANSITIONS: usize = 1000;

/// The log as it is in etcd.
#[derive(Clone, Debug, Default)]
pub struct AlertLog {
    /// What each collector finds, by fingerprint and then by the collector's id.
    found: BTreeMap<String, BTreeMap<String, Arc<Alert>>>,
    /// By number.
    transitions: BTreeMap<u64, Arc<AlertTransition>>,
    /// The last transition that each receiver has, by receiver name.
    delivered: BTreeMap<String, u64>,
}

fn fingerprint(transition: &AlertTransition) -> &str {
    transition.alert.as_ref().map_or("", |alert| &alert.fingerprint)
}

#[cfg(feature = "etcd")]
fn opens(transition: &AlertTransition) -> bool {
    transition.alert.as_ref().is_some_and(Alert::is_firing)
}

impl AlertLog {
    /// The number of the last transition; 0 = none.
    pub fn last_number(&self) -> u64 {
        self.transitions.keys().next_back().copied().unwrap_or(0)
    }

    /// Transitions with numbers above this, in order.
    pub fn transitions_after(&self, number: u64) -> impl Iterator<Item = &AlertTransition> {
        self.transitions.range(number.saturating_add(1)..).map(|(_, transition)| &**transition)
    }

    /// The last transition of each alert.
    pub fn newest_transitions(&self) -> BTreeMap<&str, &AlertTransition> {
        self.transitions.values().map(|transition| (fingerprint(transition), &**transition)).collect()
    }

    /// The last transition that a receiver has, if that is noted.
    pub fn delivered_number(&self, receiver: &str) -> Option<u64> {
        self.delivered.get(receiver).copied()
    }
}

#[cfg(feature = "etcd")]
impl AlertLog {
    pub(crate) fn set_found(&mut self, fingerprint: &str, id: &str, alert: Option<Alert>) {
        match alert {
            Some(alert) => {
                self.found.entry(fingerprint.to_owned()).or_default().insert(id.to_owned(), Arc::new(alert));
            }
            None => {
                if let Some(by_id) = self.found.get_mut(fingerprint) {
                    by_id.remove(id);
                    if by_id.is_empty() {
                        self.found.remove(fingerprint);
                    }
                }
            }
        }
    }

    pub(crate) fn set_transition(&mut self, number: u64, transition: Option<AlertTransition>) {
        match transition {
            Some(transition) => drop(self.transitions.insert(number, Arc::new(transition))),
            None => drop(self.transitions.remove(&number)),
        }
    }

    pub(crate) fn set_delivered(&mut self, receiver: &str, number: Option<u64>) {
        match number {
            Some(number) => drop(self.delivered.insert(receiver.to_owned(), number)),
            None => drop(self.delivered.remove(receiver)),
        }
    }

    /// The fingerprints of the alerts that a collector finds.
    pub(crate) fn found_by(&self, id: &str) -> impl Iterator<Item = &str> {
        let is_found = move |(_, by_id): &(&String, &BTreeMap<_, _>)| by_id.contains_key(id);
        self.found.iter().filter(is_found).map(|(fingerprint, _)| fingerprint.as_str())
    }

    /// The numbers of the oldest transitions beyond those to keep. The last one of a firing alert stays.
    pub(crate) fn surplus_transitions(&self) -> Vec<u64> {
        let surplus = self.transitions.len().saturating_sub(MAX_TRANSITIONS);
        let newest = self.newest_transitions();
        let is_open = |transition: &AlertTransition| {
            opens(transition)
                && newest.get(fingerprint(transition)).is_some_and(|last| last.number == transition.number)
        };
        // The last one stays, too, as numbers continue from it.
        let last = self.last_number();
        let closed =
            self.transitions.iter().filter(|(number, transition)| **number != last && !is_open(transition));
        closed.map(|(number, _)| *number).take(surplus).collect()
    }
}

/// Decides what to add to the log. Only one keeper at a time does, and the next one continues from the log alone.
#[cfg(feature = "etcd")]
#[derive(Debug, Default)]
pub(crate) struct LogKeeper {
    /// Open alerts that no collector finds, and when that was first noticed.
    orphans: BTreeMap<String, Instant>,
}

#[cfg(feature = "etcd")]
impl LogKeeper {
    /// The transitions to add, numbered after the last one. `now_ms` is in milliseconds since 1970.
    pub(crate) fn next_transitions(
        &mut self,
        log: &AlertLog,
        now_ms: u64,
        now: Instant,
    ) -> Vec<AlertTransition> {
        let newest = log.newest_transitions();
        let open: BTreeMap<&str, &AlertTransition> =
            newest.into_iter().filter(|(_, transition)| opens(transition)).collect();
        self.orphans.retain(|orphan, _| open.contains_key(orphan.as_str()));
        let fingerprints: BTreeSet<&str> =
            log.found.keys().map(String::as_str).chain(open.keys().copied()).collect();
        let mut added = Vec::new();
        for fingerprint in fingerprints {
            let found: Vec<&Arc<Alert>> =
                log.found.get(fingerprint).into_iter().flat_map(BTreeMap::values).collect();
            let first = found.iter().filter(|alert| alert.is_firing()).min_by_key(|alert| alert.fired_at);
            let alert = match (first, open.get(fingerprint)) {
                (Some(first), None) => Some(Alert::clone(first)),
                (Some(_), Some(_)) => {
                    self.orphans.remove(fingerprint);
                    None
                }
                (None, Some(open)) => self.resolve_alert(fingerprint, &found, open, now_ms, now),
                (None, None) => None,
            };
            if let Some(alert) = alert {
                let number = log.last_number() + added.len() as u64 + 1;
                added.push(AlertTransition { number, at: now_ms, alert: Some(alert) });
            }
        }
        added
    }

    /// Resolves an open alert that nobody finds any more: at once if a collector reports it resolved,
    /// otherwise once nobody has found it again in time.
    fn resolve_alert(
        &mut self,
        fingerprint: &str,
        found: &[&Arc<Alert>],
        open: &AlertTransition,
        now_ms: u64,
        now: Instant,
    ) -> Option<Alert> {
        // An earlier resolution belongs to an earlier alert.
        let fired_at = open.alert.as_ref().and_then(|alert| alert.fired_at);
        let resolved = found.iter().filter(|alert| alert.resolved_at >= fired_at);
        if let Some(resolved) = resolved.max_by_key(|alert| alert.resolved_at) {
            self.orphans.remove(fingerprint);
            return Some(Alert::clone(resolved));
        }
        let since = *self.orphans.entry(fingerprint.to_owned()).or_insert(now);
        if now.saturating_duration_since(since) < ORPHAN_GRACE {
            return None;
        }
        self.orphans.remove(fingerprint);
        let mut alert = open.alert.clone()?;
        alert.state = AlertState::Resolved.name().into();
        alert.resolved_at = Some(now_ms);
        alert.notes.push("no collector reports it any more".into());
        Some(alert)
    }
}

#[cfg(all(test, feature = "etcd"))]
mod tests {
    use super::*;

    fn alert(fingerprint: &str, fired_at: u64, resolved_at: Option<u64>) -> Alert {
        Alert {
            fingerprint: fingerprint.into(),
            state: if resolved_at.is_some() { "resolved" } else { "firing" }.into(),
            fired_at: Some(fired_at),
            resolved_at,
            ..Alert::default()
        }
    }

    /// A log and its keeper, at a moment set by the test.
    struct KeptLog {
        log: AlertLog,
        keeper: LogKeeper,
        begun: Instant,
        seconds: u64,
    }

    impl KeptLog {
        fn new() -> Self {
            let (log, keeper) = (AlertLog::default(), LogKeeper::default());
            Self { log, keeper, begun: Instant::now(), seconds: 1000 }
        }

        /// Adds the next transitions, and returns their numbers, fingerprints and states.
        fn follow(&mut self) -> Vec<(u64, String, String)> {
            let now = self.begun + Duration::from_secs(self.seconds);
            let added = self.keeper.next_transitions(&self.log, self.seconds * 1000, now);
            let describe = |transition: AlertTransition| {
                let alert = transition.alert.clone().unwrap();
                self.log.set_transition(transition.number, Some(transition.clone()));
                (transition.number, alert.fingerprint, alert.state)
            };
            added.into_iter().map(describe).collect()
        }
    }

    fn logged(number: u64, fingerprint: &str, state: &str) -> (u64, String, String) {
        (number, fingerprint.into(), state.into())
    }

    #[test]
    fn an_alert_fires_once_and_is_resolved_when_the_last_collector_says_so() {
        let mut kept = KeptLog::new();
        kept.log.set_found("x", "a", Some(alert("x", 900, None)));
        kept.log.set_found("x", "b", Some(alert("x", 800, None)));
        kept.log.set_found("y", "b", Some(alert("y", 950, None)));
        assert_eq!(kept.follow(), [logged(1, "x", "firing"), logged(2, "y", "firing")]);
        assert_eq!(kept.log.newest_transitions()["x"].alert.as_ref().unwrap().fired_at, Some(800));
        assert_eq!(kept.follow(), []);
        kept.log.set_found("x", "b", Some(alert("x", 800, Some(1_100_000))));
        assert_eq!(kept.follow(), []);
        kept.log.set_found("x", "a", Some(alert("x", 900, Some(1_200_000))));
        assert_eq!(kept.follow(), [logged(3, "x", "resolved")]);
        assert_eq!(kept.log.newest_transitions()["x"].alert.as_ref().unwrap().resolved_at, Some(1_200_000));
        // It fires again, at a collector that then dies: the earlier resolution does not apply.
        kept.log.set_found("x", "c", Some(alert("x", 1_300_000, None)));
        assert_eq!(kept.follow(), [logged(4, "x", "firing")]);
        kept.log.set_found("x", "c", None);
        assert_eq!(kept.follow(), []);
    }

    #[test]
    fn an_alert_whose_finder_has_died_waits_until_another_one_may_have_found_it() {
        let mut kept = KeptLog::new();
        kept.log.set_found("x", "a", Some(alert("x", 900, None)));
        assert_eq!(kept.follow().len(), 1);
        kept.log.set_found("x", "a", None);
        assert_eq!(kept.follow(), []);
        kept.seconds += 299;
        assert_eq!(kept.follow(), []);
        kept.log.set_found("x", "b", Some(alert("x", 1_200_000, None)));
        kept.seconds += 299;
        assert_eq!(kept.follow(), []);
        // The next keeper knows only the log.
        kept.keeper = LogKeeper::default();
        kept.log.set_found("x", "b", None);
        assert_eq!(kept.follow(), []);
        kept.seconds += 300;
        assert_eq!(kept.follow(), [logged(2, "x", "resolved")]);
        let notes = kept.log.newest_transitions()["x"].alert.as_ref().unwrap().notes.clone();
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn the_log_is_bounded_and_keeps_what_fires() {
        let mut log = AlertLog::default();
        let mut add = |number: u64, alert: Alert| {
            let alert = Some(alert);
            log.set_transition(number, Some(AlertTransition { number, at: number, alert }));
        };
        add(1, alert("open", 1, None));
        for number in 2..=1 + MAX_TRANSITIONS as u64 {
            let resolved_at = (number % 2 == 1).then_some(number);
            add(number, alert(&format!("{}", number / 2), number, resolved_at));
        }
        assert_eq!(log.surplus_transitions(), [2]);
    }

    #[test]
    fn the_last_transition_is_never_surplus() {
        let mut log = AlertLog::default();
        let open = MAX_TRANSITIONS as u64 + 1;
        for number in 1..=open {
            let alert = Some(alert(&number.to_string(), number, None));
            log.set_transition(number, Some(AlertTransition { number, at: number, alert }));
        }
        let ended = Some(alert("1", 1, Some(open + 1)));
        log.set_transition(open + 1, Some(AlertTransition { number: open + 1, at: open + 1, alert: ended }));
        assert_eq!(log.surplus_transitions(), [1]);
    }
}
