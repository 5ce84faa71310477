//! The state of alerts (inactive, pending, firing, resolved), kept across restarts.
//!
//! Transitions are numbered. Whoever delivers them remembers the number of the last one delivered, waits on
//! [`AlertBoard::subscribe`] and reads [`AlertBoard::transitions_after`]. A transition becomes readable only
//! once it is on disk, or could not be written, so that no restart gives its number to another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use dta_cluster::ClusterAlerts;
use dta_files::own_file;
use dta_proto::control::{Alert, AlertState, AlertTransition, AlertsRequest, AlertsResponse};
use dta_proto::counter::collector as names;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::alert::{Finding, fingerprint, new_alert, update_alert};
use super::engine::MAX_FINDINGS;
use super::rule::{Quantity, Rule};

/// Most pending or firing alerts of a rule.
const MAX_ALERTS: usize = 100;
/// Most transitions that are remembered.
const MAX_TRANSITIONS: usize = 1000;
/// Most resolved alerts that are remembered, and for how many milliseconds.
const MAX_RESOLVED: usize = 1000;
const KEEP_RESOLVED: u64 = 3_600_000;

dta_proto::shared_counters! {
    pub struct AlertCounters {
        pub(crate) entries = names::ALERTS_ENTRIES,
        pub(crate) skipped = names::ALERTS_SKIPPED,
        pub(crate) late = names::ALERTS_LATE,
        pub(crate) no_room = names::ALERTS_NO_ROOM,
        pub(crate) overwritten = names::ALERTS_OVERWRITTEN,
        pub(crate) missing = names::ALERTS_MISSING,
        pub(crate) damaged = names::ALERTS_DAMAGED,
        pub(crate) fired = names::ALERTS_FIRED,
        pub(crate) resolved = names::ALERTS_RESOLVED,
        pub(crate) left_out = names::ALERTS_LEFT_OUT,
        pub(crate) delivered = names::ALERTS_DELIVERED,
        pub(crate) retried = names::ALERTS_RETRIED,
        pub(crate) rejected = names::ALERTS_REJECTED,
        pub(crate) forgotten = names::ALERTS_FORGOTTEN,
    }
}

#[derive(Debug, Default)]
pub struct AlertBoard {
    state: Mutex<BoardState>,
    /// Where the state is kept, if anywhere.
    path: Option<PathBuf>,
    newest: watch::Sender<u64>,
    counters: AlertCounters,
    /// The alerts of the cluster, if the collector is in one.
    cluster: OnceLock<ClusterAlerts>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct BoardState {
    /// The number of the last transition.
    last: u64,
    /// By fingerprint.
    alerts: BTreeMap<String, Alert>,
    transitions: VecDeque<AlertTransition>,
    /// Whether this differs from what is on disk, apart from values.
    #[serde(skip)]
    is_changed: bool,
    #[serde(skip)]
    rules: usize,
}

impl AlertBoard {
    /// Opens the board whose state is in this file, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn open(path: Option<PathBuf>) -> Result<AlertBoard, String> {
        let text = match path.as_deref().map(own_file::read) {
            Some(Ok(bytes)) => Some(bytes),
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.to_string()),
            _ => None,
        };
        let state = text.map(|bytes| serde_json::from_slice::<BoardState>(&bytes));
        let state = state.transpose().map_err(|error| error.to_string())?.unwrap_or_default();
        let newest = watch::Sender::new(state.last);
        Ok(AlertBoard { state: Mutex::new(state), path, newest, ..AlertBoard::default() })
    }

    /// Safe even after a panic: each change leaves alerts and transitions in step.
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn counters(&self) -> &AlertCounters {
        &self.counters
    }

    /// Makes what this collector finds fire only once in its cluster. Only the first call counts.
    pub fn set_cluster(&self, cluster: ClusterAlerts) {
        _ = self.cluster.set(cluster);
    }

    pub fn cluster(&self) -> Option<&ClusterAlerts> {
        self.cluster.get()
    }

    /// Sets the rules that exist from now on. Alerts of all other rules are resolved.
    pub fn begin_rules(&self, rules: &[Rule], now: u64) {
        let rule_names: BTreeSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
        let mut state = self.lock();
        state.rules = rules.len();
        let gone = |alert: &&Alert| !rule_names.contains(alert.rule.as_str());
        let gone: Vec<String> =
            state.alerts.values().filter(gone).map(|alert| alert.fingerprint.clone()).collect();
        for fingerprint in gone {
            self.end_alert(&mut state, &fingerprint, now / 1_000_000);
        }
    }

    /// Applies what an evaluation of a rule found at `now`, in nanoseconds since 1970. An alert that is no
    /// longer found is resolved a window later, so that it does not flap, but not within a window after
    /// `started`, when windows may be incomplete.
    /// Returns the findings that fired, with the fingerprints of their alerts.
    pub fn apply<'a>(
        &self,
        rule: &Rule,
        findings: &'a [Finding],
        now: u64,
        started: u64,
    ) -> Vec<(String, &'a Finding)> {
        let now_ms = now / 1_000_000;
        let mut state = self.lock();
        let state = &mut *state;
        let (mut found, mut fired) = (BTreeSet::new(), Vec::new());
        let is_active = |alert: &Alert| alert.rule == rule.name && !alert.has_state(AlertState::Resolved);
        let mut active = 0;
        for alert in state.alerts.values_mut().filter(|alert| is_active(alert)) {
            active += 1;
            // If the clock was set back, do not wait longer because of it.
            alert.since = alert.since.min(now_ms);
            alert.last_seen = alert.last_seen.min(now_ms);
        }
        for finding in findings {
            let fingerprint = fingerprint(&rule.name, &finding.labels);
            let known = state.alerts.get_mut(&fingerprint).filter(|alert| is_active(alert));
            if let Some(alert) = known {
                update_alert(alert, rule, finding, now_ms);
            } else if active >= MAX_ALERTS {
                self.counters.left_out.fetch_add(1, Ordering::Relaxed);
                continue;
            } else {
                active += 1;
                state.alerts.insert(fingerprint.clone(), new_alert(rule, finding, now_ms));
                state.is_changed = true;
            }
            found.insert(fingerprint.clone());
            let Some(alert) = state.alerts.get_mut(&fingerprint) else { continue };
            let is_due = now_ms.saturating_sub(alert.since) >= rule.lasting / 1_000_000;
            if alert.has_state(AlertState::Pending) && is_due {
                alert.state = AlertState::Firing.name().into();
                alert.fired_at = Some(now_ms);
                let alert = alert.clone();
                state.add_transition(alert, now_ms);
                self.counters.fired.fetch_add(1, Ordering::Relaxed);
                fired.push((fingerprint, finding));
            }
        }
        let settled = (started + rule.first_complete_window()) / 1_000_000;
        // Groups that were cut off may still fulfil the condition.
        let is_cut = findings.len() >= MAX_FINDINGS;
        let is_over = |alert: &&Alert| {
            let is_held = alert.is_firing() && rule.measure.quantity != Quantity::Seen;
            let held_until = if is_held { alert.last_seen + rule.window / 1_000_000 } else { 0 };
            let is_missing = is_active(alert) && !found.contains(&alert.fingerprint) && !is_cut;
            is_missing && now_ms >= held_until.max(settled)
        };
        let over: Vec<String> =
            state.alerts.values().filter(is_over).map(|alert| alert.fingerprint.clone()).collect();
        for fingerprint in over {
            self.end_alert(state, &fingerprint, now_ms);
        }
        fired
    }

    /// Sets the largest rows of an alert that has just fired. Call it before [`AlertBoard::publish`].
    pub fn set_rows(&self, fingerprint: &str, rows: &[String]) {
        let mut state = self.lock();
        let state = &mut *state;
        let transitions =
            state.transitions.iter_mut().rev().filter_map(|transition| transition.alert.as_mut());
        let fired = transitions.filter(|alert| alert.fingerprint == fingerprint).take(1);
        fired.chain(state.alerts.get_mut(fingerprint)).for_each(|alert| alert.rows = rows.to_vec());
    }

    /// Resolves a firing alert; forgets a pending one.
    fn end_alert(&self, state: &mut BoardState, fingerprint: &str, now_ms: u64) {
        let Some(alert) = state.alerts.get_mut(fingerprint) else { return };
        if alert.is_firing() {
            alert.state = AlertState::Resolved.name().into();
            alert.resolved_at = Some(now_ms);
            let alert = alert.clone();
            state.add_transition(alert, now_ms);
            self.counters.resolved.fetch_add(1, Ordering::Relaxed);
        } else if alert.has_state(AlertState::Pending) {
            state.alerts.remove(fingerprint);
            state.is_changed = true;
        }
    }

    /// Writes the state if it has changed, and makes its transitions readable.
    ///
    /// # Errors
    /// The state cannot be written; transitions can be read all the same.
    pub fn publish(&self, now: u64) -> std::io::Result<()> {
        let mut state = self.lock();
        state.forget_resolved(now / 1_000_000);
        let written = match &self.path {
            Some(path) if state.is_changed => serde_json::to_vec(&*state)
                .map_err(Into::into)
                .and_then(|bytes| own_file::replace_file(path, &bytes)),
            _ => Ok(()),
        };
        state.is_changed &= written.is_err();
        let last = state.last;
        drop(state);
        self.newest.send_if_modified(|newest| std::mem::replace(newest, last) != last);
        written
    }

    /// The number of the last readable transition.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Alerts that are pending, firing, or were resolved in the last hour: firing ones first, the gravest first among them.
    pub fn alerts(&self) -> Vec<Alert> {
        let mut alerts: Vec<Alert> = self.lock().alerts.values().cloned().collect();
        let rank = |alert: &Alert| {
            let state = AlertState::from_name(&alert.state);
            let severity = super::rule::AlertSeverity::from_name(&alert.severity);
            (state != Some(AlertState::Firing), state, std::cmp::Reverse(severity), alert.since)
        };
        alerts.sort_by_key(rank);
        alerts
    }

    /// Transitions numbered above `after`, in order. The first number is greater than `after` + 1 if some in
    /// between are forgotten: 1,000 are remembered.
    pub fn transitions_after(&self, after: u64) -> Vec<AlertTransition> {
        let state = self.lock();
        let newest = *self.newest.borrow();
        let readable = state
            .transitions
            .iter()
            .filter(|transition| transition.number > after && transition.number <= newest);
        readable.cloned().collect()
    }

    /// The first transition numbered above `after`.
    pub fn next_transition(&self, after: u64) -> Option<AlertTransition> {
        let state = self.lock();
        let newest = *self.newest.borrow();
        let next = state.transitions.iter().find(|transition| transition.number > after);
        next.filter(|transition| transition.number <= newest).cloned()
    }

    /// In a cluster, has the transitions of the whole cluster, which every collector knows.
    pub fn answer(&self, request: AlertsRequest) -> AlertsResponse {
        let cluster = self.cluster().filter(|cluster| cluster.is_in_cluster());
        let mut transitions = match cluster {
            Some(cluster) => cluster.log().transitions_after(request.after).cloned().collect(),
            None => self.transitions_after(request.after),
        };
        transitions.drain(..transitions.len().saturating_sub(request.most as usize));
        let rules = u32::try_from(self.lock().rules).unwrap_or(u32::MAX);
        AlertsResponse { alerts: self.alerts(), transitions, rules }
    }
}

impl BoardState {
    fn add_transition(&mut self, alert: Alert, at: u64) {
        self.last += 1;
        self.transitions.push_back(AlertTransition { number: self.last, at, alert: Some(alert) });
        if self.transitions.len() > MAX_TRANSITIONS {
            self.transitions.pop_front();
        }
        self.is_changed = true;
    }

    fn forget_resolved(&mut self, now_ms: u64) {
        let mut resolved: Vec<u64> = self.alerts.values().filter_map(|alert| alert.resolved_at).collect();
        resolved.sort_unstable();
        let enough = resolved.len().checked_sub(MAX_RESOLVED).map_or(0, |place| resolved[place]);
        let oldest = enough.max(now_ms.saturating_sub(KEEP_RESOLVED));
        self.alerts.retain(|_, alert| alert.resolved_at.is_none_or(|at| at >= oldest));
    }
}
