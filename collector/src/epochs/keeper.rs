//! The thread that keeps one store's epochs: what all kinds of stores have in common.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dta_history::{EpochTable, HistoryEpoch, HistoryError};
use dta_memory::store::{ServedStores, Store};
use dta_proto::backoff::Backoff;
use dta_proto::wire::dta::EpochEnd;
use tokio::sync::watch;

use super::due::Due;
use super::key_directory::KeyDirectory;
use super::waterfall::Totals;
use super::write::make_room;
use super::{StoreEpochs, StoreTraffic, counters, lists, now, sketches, turn};

/// How often to check whether an epoch is over or sealed, and whether a list has new entries.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Delay before a failure is retried.
pub(super) const AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

pub(super) struct EpochArchiver {
    pub(super) of: Arc<StoreEpochs>,
    pub(super) stores: Arc<ServedStores>,
    pub(super) known: Arc<Mutex<KeyDirectory>>,
    pub(super) traffic: Arc<dyn StoreTraffic>,
    pub(super) patience: Duration,
    pub(super) stop: watch::Receiver<bool>,
}

pub(super) struct Stopped;

/// For a store whose memory stays: when its unwritten part begins, which is where the history ends.
pub(super) fn history_end(history: &EpochTable) -> Result<u64, HistoryError> {
    let now = now();
    let end = history.kept_epochs()?.last().map(|last| last.epoch.flipped_to);
    Ok(end.filter(|end| *end < now).unwrap_or(now))
}

impl EpochArchiver {
    pub(super) fn run(self) {
        let end = self.of.history.store_spec().kind.primitive().epoch_end();
        let Err(Stopped): Result<Infallible, Stopped> = match end {
            EpochEnd::Replaces => turn::run(&self),
            EpochEnd::Reads => counters::run(&self),
            EpochEnd::Closes => sketches::run(&self),
            EpochEnd::Collects => lists::run(&self),
        };
    }

    /// The counters of all nodes.
    pub(super) fn counter_totals(&self) -> Totals {
        Totals::from_nodes(self.of.history.store_spec(), &self.traffic.node_counters())
    }

    /// Called once an epoch is in the history and memory still has what it held: writes that in named columns, too.
    pub(super) fn written_of(&self, store: &Store, epoch: &HistoryEpoch) {
        self.write_typed(store, epoch);
        self.count_written();
    }

    /// Writes a store's contents in an epoch that is in the history into named columns. What cannot be written is left out.
    pub(super) fn write_typed(&self, store: &Store, epoch: &HistoryEpoch) {
        let mut known = None;
        for typed in &self.of.typed {
            let directory = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let known = known.get_or_insert_with(|| directory().read(&self.stores));
            while let Err(error) = typed.write_epoch(&self.of.history, store, epoch, known) {
                if let Err(error) = make_room(&typed.table, error) {
                    add_to_counter(&self.of.counters.failed, 1);
                    let table = typed.table.table_path().display();
                    self.log_warning(&format!("an epoch could not be written to {table}"), &error);
                    break;
                }
            }
        }
    }

    /// Counts an epoch that is now in the history.
    pub(super) fn count_written(&self) {
        add_to_counter(&self.of.counters.written, 1);
        self.of.grown.store(true, Ordering::Relaxed);
    }

    pub(super) fn wait_until_over(&self, due: &Due) -> Result<(), Stopped> {
        // If each epoch is over before the previous one is written, nothing else would notice a stop.
        self.wait_or_stop(Duration::ZERO)?;
        while !due.is_over() {
            self.wait_or_stop(LOOK.min(self.of.every))?;
        }
        Ok(())
    }

    /// Counts a failure, and waits before the next attempt.
    pub(super) fn wait_after_failure(
        &self,
        what: &str,
        error: &dyn std::error::Error,
        again: &mut Backoff,
    ) -> Result<(), Stopped> {
        add_to_counter(&self.of.counters.failed, 1);
        self.log_warning(what, error);
        self.wait_or_stop(again.next_pause())
    }

    pub(super) fn log_warning(&self, what: &str, error: &dyn std::error::Error) {
        tracing::warn!(store = %self.of.name, %error, "{what}");
    }

    pub(super) fn wait_or_stop(&self, time: Duration) -> Result<(), Stopped> {
        wait_or_stop(&self.stop, time)
    }
}

pub(super) fn wait_or_stop(stop: &watch::Receiver<bool>, time: Duration) -> Result<(), Stopped> {
    let until = Instant::now() + time;
    loop {
        // Once the sender is gone, nothing can signal a stop any more.
        if *stop.borrow() || stop.has_changed().is_err() {
            return Err(Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK));
    }
}

pub(super) fn add_to_counter(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
