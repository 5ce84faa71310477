//! What receivers are to get: what this collector finds or, in a cluster, what any collector finds, sent by
//! the one that keeps the cluster's log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dta_cluster::{AlertLog, ClusterAlerts};
use dta_export::alert::AlertMessage;
use dta_files::moment::now;
use dta_files::own_file;
use dta_proto::control::{Alert, AlertTransition};
use tokio::sync::watch;

use super::DeliveryOptions;
use super::alertmanager::RESOLVED_RESENT;
use crate::alerts::board::AlertBoard;

/// Most alerts that a collector shares with its cluster.
const MAX_SHARED: usize = 500;
/// How often to check whether a resolved alert can be forgotten.
const SHARE_EVERY: Duration = Duration::from_secs(60);

/// Shares a board's alerts with its cluster for as long as this runs.
pub(super) async fn share_findings(board: Arc<AlertBoard>, cluster: ClusterAlerts) {
    let mut newest = board.subscribe();
    loop {
        newest.mark_unchanged();
        let is_recent = |at: u64| now() <= at.saturating_add(RESOLVED_RESENT);
        // Firing alerts come first.
        let found = board.alerts().into_iter();
        let found = found.filter(|alert| alert.is_firing() || alert.resolved_at.is_some_and(is_recent));
        cluster.set_found(found.take(MAX_SHARED));
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(SHARE_EVERY) => {}
        }
    }
}

/// The present alerts, for receivers that get them repeatedly.
pub(super) struct PresentAlerts {
    board: Arc<AlertBoard>,
    newest: watch::Receiver<u64>,
    cluster: Option<ClusterAlerts>,
    /// The last number in the cluster's log, and whether this collector keeps that log.
    seen: (u64, bool),
}

impl PresentAlerts {
    pub(super) fn new(board: Arc<AlertBoard>) -> PresentAlerts {
        let (newest, cluster) = (board.subscribe(), board.cluster().cloned());
        PresentAlerts { board, newest, cluster, seen: Default::default() }
    }

    /// Firing and resolved alerts. Until the next call, [`PresentAlerts::next_change`] waits for these to change.
    pub(super) fn list_alerts(&mut self) -> Vec<Alert> {
        self.newest.mark_unchanged();
        let Some(cluster) = &self.cluster else { return self.board.alerts() };
        self.seen = log_position(cluster);
        if cluster.is_keeper() {
            let log = cluster.log();
            let newest = log.newest_transitions();
            return newest.into_values().filter_map(|transition| transition.alert.clone()).collect();
        }
        if cluster.is_in_cluster() {
            return Vec::new();
        }
        // Others may be cut off, too. Receivers merge what several report; what is resolved here may fire elsewhere.
        self.board.alerts().into_iter().filter(Alert::is_firing).collect()
    }

    pub(super) async fn next_change(&mut self) {
        let is_over = match &mut self.cluster {
            None => self.newest.changed().await.is_err(),
            Some(cluster) => loop {
                tokio::select! {
                    changed = self.newest.changed() => break changed.is_err(),
                    () = cluster.next_change() => if log_position(cluster) != self.seen { break false },
                }
            },
        };
        if is_over {
            std::future::pending::<()>().await;
        }
    }
}

fn log_position(cluster: &ClusterAlerts) -> (u64, bool) {
    (cluster.log().last_number(), cluster.is_keeper())
}

/// The transitions for one receiver, in order, each repeated until it is noted as delivered.
pub(super) struct TransitionFeed {
    board: Arc<AlertBoard>,
    options: DeliveryOptions,
    receiver: String,
    /// The number of the last transition that this collector has delivered or need not deliver.
    delivered: u64,
    place: NotePlace,
}

/// Where the note of what a receiver has is kept.
enum NotePlace {
    /// In a file, if there is a folder for it.
    File(Option<PathBuf>),
    /// In the cluster. A receiver without a note starts with what comes after this moment.
    Cluster { cluster: ClusterAlerts, opened: u64 },
}

impl TransitionFeed {
    /// Reads what was delivered before. A receiver without a note, such as a new one, starts with new transitions.
    pub(super) fn open(
        board: Arc<AlertBoard>,
        options: &DeliveryOptions,
        receiver: String,
    ) -> TransitionFeed {
        let (place, delivered) = match board.cluster().cloned() {
            Some(cluster) => (NotePlace::Cluster { cluster, opened: now() }, 0),
            None => {
                let name = format!("alerts-{receiver}.delivered");
                let path = options.folder.as_ref().map(|folder| folder.join(name));
                let newest = *board.subscribe().borrow();
                let noted = path.as_deref().and_then(|path| read_number(path, &receiver));
                let delivered = noted.map_or(newest, |noted| noted.min(newest));
                path.iter().for_each(|path| write_number(path, delivered, &receiver));
                (NotePlace::File(path), delivered)
            }
        };
        TransitionFeed { board, options: options.clone(), receiver, delivered, place }
    }

    /// Waits for the next transition. Returns the same one until it is noted as delivered.
    pub(super) async fn next_message(&mut self) -> AlertMessage {
        let (origin, transition) = match &mut self.place {
            NotePlace::File(_) => {
                let mut newest = self.board.subscribe();
                let transition = loop {
                    newest.mark_unchanged();
                    if let Some(transition) = self.board.next_transition(self.delivered) {
                        break transition;
                    }
                    if newest.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                (self.options.collector.clone(), transition)
            }
            NotePlace::Cluster { cluster, opened } => loop {
                if cluster.is_keeper() {
                    let log = cluster.log();
                    let noted = match log.delivered_number(&self.receiver) {
                        Some(noted) => noted,
                        None => {
                            let begin = last_number_before(&log, *opened);
                            // The next keeper must start there, too.
                            _ = cluster.note_delivered(&self.receiver, begin).await;
                            begin
                        }
                    };
                    self.delivered = self.delivered.max(noted);
                    if let Some(transition) = log.transitions_after(self.delivered).next() {
                        // The same origin, whichever collector sends it.
                        break ("cluster".to_owned(), transition.clone());
                    }
                }
                cluster.next_change().await;
            },
        };
        let missed = transition.number - self.delivered - 1;
        self.board.counters().forgotten.fetch_add(missed, Ordering::Relaxed);
        self.delivered = transition.number - 1;
        self.message(&origin, transition)
    }

    fn message(&self, origin: &str, transition: AlertTransition) -> AlertMessage {
        let page = &self.options.page;
        let alert = transition.alert.as_ref().filter(|_| !page.is_empty());
        AlertMessage {
            id: format!("{origin}-{}-{}", transition.at, transition.number),
            collector: self.options.collector.clone(),
            url: alert.map(|alert| format!("{page}{}", alert.page)),
            transition,
        }
    }

    /// Whether this collector is still the one that delivers.
    pub(super) fn is_due(&self) -> bool {
        match &self.place {
            NotePlace::File(_) => true,
            NotePlace::Cluster { cluster, .. } => cluster.is_keeper(),
        }
    }

    /// Notes that the receiver has everything up to this number. If that fails, a later run sends it again.
    pub(super) async fn note_delivered(&mut self, number: u64) {
        self.delivered = number;
        match &self.place {
            NotePlace::File(Some(path)) => {
                let (path, receiver) = (path.clone(), self.receiver.clone());
                let write = move || write_number(&path, number, &receiver);
                // Fails only if the whole program does.
                _ = tokio::task::spawn_blocking(write).await;
            }
            NotePlace::File(None) => {}
            NotePlace::Cluster { cluster, .. } => {
                if !cluster.note_delivered(&self.receiver, number).await {
                    tracing::info!(
                        receiver = self.receiver,
                        number,
                        "cannot record in the cluster that an alert was delivered: it may be sent again"
                    );
                }
            }
        }
    }
}

/// The number of the last transition before a moment.
fn last_number_before(log: &AlertLog, moment: u64) -> u64 {
    let earlier = log.transitions_after(0).filter(|transition| transition.at < moment);
    earlier.map(|transition| transition.number).last().unwrap_or(0)
}

/// The number in a receiver's note, if there is a readable one.
fn read_number(path: &Path, receiver: &str) -> Option<u64> {
    let read = own_file::read(path);
    if matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
        return None;
    }
    let number = read.ok().and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok());
    if number.is_none() {
        tracing::error!(receiver, path = %path.display(), "cannot read which alerts were delivered: earlier alerts will not be sent");
    }
    number
}

fn write_number(path: &Path, number: u64, receiver: &str) {
    if let Err(error) = own_file::replace_file(path, number.to_string().as_bytes()) {
        tracing::warn!(receiver, %error, "cannot record which alerts were delivered: a restart will send them again");
    }
}
