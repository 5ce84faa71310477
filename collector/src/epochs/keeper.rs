//! The thread of one store's epochs: what all kinds of stores have in common.

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

/// How often it is looked whether an epoch is over or sealed, and whether a list has something new.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long a failure waits before it is tried again.
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

/// When what is in no history yet begins, of a store whose memory stays: where the history ends.
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

    /// What the counters of all nodes say.
    pub(super) fn counter_totals(&self) -> Totals {
        Totals::from_nodes(self.of.history.store_spec(), &self.traffic.node_counters())
    }

    /// An epoch is in the history, and memory has what it held. That is written in columns with names, too.
    pub(super) fn written_of(&self, store: &Store, epoch: &HistoryEpoch) {
        self.write_typed(store, epoch);
        self.count_written();
    }

    /// Has what a store held in an epoch that its history has in columns with names. What of that cannot be written is missing.
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

    /// An epoch is in the history.
    pub(super) fn count_written(&self) {
        add_to_counter(&self.of.counters.written, 1);
        self.of.grown.store(true, Ordering::Relaxed);
    }

    pub(super) fn wait_until_over(&self, due: &Due) -> Result<(), Stopped> {
        // Where each epoch is over before the last one is written, nobody waits for anything else.
        self.wait_or_stop(Duration::ZERO)?;
        while !due.is_over() {
            self.wait_or_stop(LOOK.min(self.of.every))?;
        }
        Ok(())
    }

    /// Counts a failure, and waits before it is tried again.
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
        // A sender that is gone cannot stop anything any more.
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
