//! Alerts of a cluster. Each collector announces what it finds; one of them, the keeper, writes a [log](AlertLog) of what
//! fires and is resolved anywhere, and delivers it. When the keeper is gone, another takes over from what etcd has.

#![cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "nothing can be in a cluster"))]

mod log;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use dta_proto::control::Alert;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub use log::AlertLog;
#[cfg(feature = "etcd")]
pub(crate) use log::LogKeeper;

/// A collector's part in the alerts of its cluster. Clones share that part. When the last one is dropped, it
/// is as if the collector had died: others notice when its lease expires.
#[derive(Clone, Debug)]
pub struct ClusterAlerts {
    found: Arc<watch::Sender<FoundAlerts>>,
    log: watch::Receiver<Arc<AlertLog>>,
    /// Until when its lease holds, by its own clock.
    lease: watch::Receiver<Option<Instant>>,
    is_keeper: watch::Receiver<bool>,
    notes: mpsc::Sender<DeliveryNote>,
    leaving: Arc<watch::Sender<bool>>,
    _task: Arc<EndedTask>,
}

/// The alerts that a collector finds, by fingerprint.
pub(crate) type FoundAlerts = BTreeMap<String, Alert>;

/// Says that a receiver has all transitions up to a number. The reply tells whether that has been noted.
#[derive(Debug)]
pub(crate) struct DeliveryNote {
    pub(crate) receiver: String,
    pub(crate) number: u64,
    pub(crate) noted: oneshot::Sender<bool>,
}

#[derive(Debug)]
struct EndedTask(JoinHandle<()>);

impl Drop for EndedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The channels that the task of a [`ClusterAlerts`] uses.
#[cfg(feature = "etcd")]
pub(crate) struct AlertChannels {
    pub(crate) found: watch::Receiver<FoundAlerts>,
    pub(crate) log: watch::Sender<Arc<AlertLog>>,
    pub(crate) lease: watch::Sender<Option<Instant>>,
    pub(crate) is_keeper: watch::Sender<bool>,
    pub(crate) notes: mpsc::Receiver<DeliveryNote>,
    pub(crate) leaving: watch::Receiver<bool>,
}

impl ClusterAlerts {
    #[cfg(feature = "etcd")]
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(
        run: impl FnOnce(AlertChannels) -> F,
    ) -> ClusterAlerts {
        let (found, found_receiver) = watch::channel(BTreeMap::new());
        let (log_sender, log) = watch::channel(Arc::default());
        let (lease_sender, lease) = watch::channel(None);
        let (keeper_sender, is_keeper) = watch::channel(false);
        let (notes, notes_receiver) = mpsc::channel(16);
        let (leaving, leaving_receiver) = watch::channel(false);
        let channels = AlertChannels {
            found: found_receiver,
            log: log_sender,
            lease: lease_sender,
            is_keeper: keeper_sender,
            notes: notes_receiver,
            leaving: leaving_receiver,
        };
        let task = Arc::new(EndedTask(tokio::spawn(run(channels))));
        let (found, leaving) = (Arc::new(found), Arc::new(leaving));
        ClusterAlerts { found, log, lease, is_keeper, notes, leaving, _task: task }
    }

    /// Announces what this collector finds: firing alerts, and those resolved lately.
    pub fn set_found(&self, alerts: impl IntoIterator<Item = Alert>) {
        let by_fingerprint = alerts.into_iter().map(|alert| (alert.fingerprint.clone(), alert));
        self.found.send_replace(by_fingerprint.collect());
    }

    /// The log, as far as it is known here.
    pub fn log(&self) -> Arc<AlertLog> {
        self.log.borrow().clone()
    }

    /// Whether this collector is certainly in the cluster, so that its findings get into the log.
    pub fn is_in_cluster(&self) -> bool {
        self.lease.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Whether this collector currently delivers.
    pub fn is_keeper(&self) -> bool {
        *self.is_keeper.borrow() && self.is_in_cluster()
    }

    /// Ends this collector's part and lets another one keep the log at once. Its findings stay until its lease expires, so
    /// that nothing is resolved if it starts again by then. Waits for etcd without a time limit.
    pub async fn leave_cluster(&self) {
        self.leaving.send_replace(true);
        let mut is_keeper = self.is_keeper.clone();
        // The task ends with its channels.
        while is_keeper.changed().await.is_ok() {}
    }

    /// Waits until the log, the keeper or the lease has changed since this clone's last call.
    pub async fn next_change(&mut self) {
        let (log, is_keeper, lease) = (&mut self.log, &mut self.is_keeper, &mut self.lease);
        let is_over = tokio::select! {
            changed = log.changed() => changed.is_err(),
            changed = is_keeper.changed() => changed.is_err(),
            // It may have lapsed and hold again while the keeper stayed the same.
            changed = lease.changed() => changed.is_err(),
        };
        if is_over {
            std::future::pending::<()>().await;
        }
    }

    /// Notes that a receiver has all transitions up to a number, if this collector is still the keeper.
    /// Returns whether that worked; otherwise the next keeper sends them again.
    pub async fn note_delivered(&self, receiver: &str, number: u64) -> bool {
        let (noted, answer) = oneshot::channel();
        let note = DeliveryNote { receiver: receiver.to_owned(), number, noted };
        self.notes.send(note).await.is_ok() && answer.await.unwrap_or(false)
    }
}
