//! The thread of one store's epochs: what all kinds of stores have in common.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dta_history::{Epoch, HistoryError, Table};
use dta_proto::backoff::Backoff;
use dta_proto::wire::dta::EpochEnd;
use tokio::sync::watch;

use super::due::Due;
use super::key_directory::KeyDirectory;
use super::waterfall::Totals;
use super::write::make_room;
use super::{StoreEpochs, Traffic, counters, lists, now, sketches, turn};
use crate::store::{Store, Stores};

/// How often it is looked whether an epoch is over or sealed, and whether a list has something new.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long a failure waits before it is tried again.
pub(super) const AGAIN: Backoff = Backoff::within(Duration::from_millis(500), Duration::from_secs(30));

pub(super) struct Keeper {
    pub(super) of: Arc<StoreEpochs>,
    pub(super) stores: Arc<Stores>,
    pub(super) known: Arc<Mutex<KeyDirectory>>,
    pub(super) traffic: Arc<dyn Traffic>,
    pub(super) patience: Duration,
    pub(super) stop: watch::Receiver<bool>,
}

/// The collector stops.
pub(super) struct Stopped;

/// When what is in no history yet begins, of a store whose memory stays: where the history ends.
pub(super) fn goes_on(history: &Table) -> Result<u64, HistoryError> {
    let now = now();
    let end = history.epochs()?.last().map(|last| last.epoch.flipped_to);
    Ok(end.filter(|end| *end < now).unwrap_or(now))
}

impl Keeper {
    /// Until the collector stops.
    pub(super) fn run(self) {
        let end = self.of.history.spec().kind.primitive().epoch_end();
        let Err(Stopped): Result<Infallible, Stopped> = match end {
            EpochEnd::Replaces => turn::run(&self),
            EpochEnd::Reads => counters::run(&self),
            EpochEnd::Closes => sketches::run(&self),
            EpochEnd::Collects => lists::run(&self),
        };
    }

    /// What the counters of all nodes say.
    pub(super) fn totals(&self) -> Totals {
        Totals::of(self.of.history.spec(), &self.traffic.counted())
    }

    /// An epoch is in the history, and memory has what it held. That is written in columns with names, too.
    pub(super) fn written_of(&self, store: &Store, epoch: &Epoch) {
        self.write_typed(store, epoch);
        self.written();
    }

    /// Has what a store held in an epoch that its history has in columns with names. What of that cannot be written is missing.
    pub(super) fn write_typed(&self, store: &Store, epoch: &Epoch) {
        let mut known = None;
        for typed in &self.of.typed {
            let directory = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let known = known.get_or_insert_with(|| directory().read(&self.stores));
            while let Err(error) = typed.write(&self.of.history, store, epoch, known) {
                if let Err(error) = make_room(&typed.table, error) {
                    count(&self.of.counters.failed, 1);
                    let table = typed.table.path().display();
                    self.warn(&format!("an epoch could not be written to {table}"), &error);
                    break;
                }
            }
        }
    }

    /// An epoch is in the history.
    pub(super) fn written(&self) {
        count(&self.of.counters.written, 1);
        self.of.grown.store(true, Ordering::Relaxed);
    }

    /// Waits until an epoch is over.
    pub(super) fn until(&self, due: &Due) -> Result<(), Stopped> {
        // Where each epoch is over before the last one is written, nobody waits for anything else.
        self.wait(Duration::ZERO)?;
        while !due.is_over() {
            self.wait(LOOK.min(self.of.every))?;
        }
        Ok(())
    }

    /// Counts a failure, and waits before it is tried again.
    pub(super) fn failed(
        &self,
        what: &str,
        error: &dyn std::error::Error,
        again: &mut Backoff,
    ) -> Result<(), Stopped> {
        count(&self.of.counters.failed, 1);
        self.warn(what, error);
        self.wait(again.pause())
    }

    pub(super) fn warn(&self, what: &str, error: &dyn std::error::Error) {
        tracing::warn!(store = %self.of.name, %error, "{what}");
    }

    pub(super) fn wait(&self, time: Duration) -> Result<(), Stopped> {
        wait(&self.stop, time)
    }
}

/// Waits, unless the collector stops.
pub(super) fn wait(stop: &watch::Receiver<bool>, time: Duration) -> Result<(), Stopped> {
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

pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
