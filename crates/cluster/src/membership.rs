//! A collector's place in the cluster.

use std::time::Instant;

use tokio::sync::{oneshot, watch};

use crate::Views;

/// A collector's membership in the cluster. When this is dropped, it is as if the collector had died: the
/// others notice when its lease expires.
#[derive(Debug)]
pub struct Membership {
    /// The collector's own views of the cluster.
    pub views: Views,
    lease: Lease,
    leave: Option<oneshot::Sender<()>>,
    left: oneshot::Receiver<()>,
}

/// Until when a collector's lease holds, by its own clock. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lease(watch::Receiver<Option<Instant>>);

impl Lease {
    /// Whether the collector is certainly in the cluster: nobody can have taken it for dead and been given
    /// what it holds. A process that was stopped for longer than its lease sees at once that it is not.
    pub fn is_in_cluster(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }
}

impl Membership {
    #[cfg(feature = "etcd")]
    pub(crate) fn new(
        views: Views,
        until: watch::Receiver<Option<Instant>>,
        leave: oneshot::Sender<()>,
        left: oneshot::Receiver<()>,
    ) -> Membership {
        Membership { views, lease: Lease(until), leave: Some(leave), left }
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Waits until it is in the cluster.
    pub async fn is_joined(&mut self) {
        // An error means that the task has ended, which happens only when this value is dropped.
        let _ = self.lease.0.wait_for(|until| until.is_some_and(|until| Instant::now() < until)).await;
    }

    /// Leaves at once instead of when the lease expires. A collector that is not in a hurry should be drained first.
    pub async fn leave_cluster(mut self) {
        if let Some(leave) = self.leave.take() {
            let _ = leave.send(());
            let _ = (&mut self.left).await;
        }
    }
}
