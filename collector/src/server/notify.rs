//! Wakes readers when the NIC reports a write with immediate.

use std::sync::Arc;
use std::time::Duration;

use dta_memory::nic::Nic;
use dta_memory::store::ServedStores;
use dta_proto::store::StoreKind;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// How long to wait for immediates before checking whether to stop.
const WAIT: Duration = Duration::from_millis(200);

/// Whether the batches of any store come with immediate.
pub(super) fn is_wanted(stores: &ServedStores) -> bool {
    stores
        .current_stores()
        .iter()
        .any(|store| matches!(store.spec.kind, StoreKind::Append { notify: true, .. }))
}

/// Takes immediates and wakes all tails at each one; tails of other lists go back to sleep.
pub(super) fn spawn_notifier(
    nic: Arc<dyn Nic>,
    wake: Arc<Notify>,
    stopped: watch::Receiver<bool>,
) -> JoinHandle<()> {
    tokio::task::spawn_blocking(move || {
        let mut immediates = Vec::new();
        while !*stopped.borrow() {
            immediates.clear();
            if let Err(error) = nic.take_immediates(&mut immediates, WAIT) {
                tracing::warn!(%error, "the NIC no longer wakes readers; they poll");
                return;
            }
            if !immediates.is_empty() {
                wake.notify_waiters();
            }
        }
    })
}
