//! The thread of one store's epochs: opens the next one, waits until the former is sealed, and writes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use dta_history::Retention;
use tokio::sync::watch;

use super::write::{thin_out, write};
use super::{Former, IsWritten, StoreEpochs, journal, now};
use crate::config::MemoryConfig;
use crate::store::{ReplaceError, Stores, Successor, former_path};

/// How often it is looked whether an epoch is over or sealed.
const LOOK: Duration = Duration::from_millis(100);
/// How long a failure waits before it is tried again: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How often an epoch is tried to be written before it is given up.
const TRIES: u32 = 8;

pub(super) struct Turns {
    pub(super) of: Arc<StoreEpochs>,
    pub(super) stores: Arc<Stores>,
    pub(super) retention: Retention,
    pub(super) is_written: Arc<IsWritten>,
    pub(super) stop: watch::Receiver<bool>,
}

/// The collector stops.
struct Stopped;

impl Turns {
    /// Until the collector stops.
    pub(super) fn run(self) {
        let Stopped = self.turns().unwrap_or_else(|stopped| stopped);
    }

    fn turns(&self) -> Result<Stopped, Stopped> {
        loop {
            while let Some(former) = self.oldest() {
                self.seal(&former)?;
                self.keep(&former)?;
            }
            let successor = self.successor()?;
            self.until_over()?;
            self.open_next(successor);
        }
    }

    /// The oldest epoch that is not written.
    fn oldest(&self) -> Option<Former> {
        self.of.in_memory().former.first().cloned()
    }

    /// Makes the memory of the next epoch.
    fn successor(&self) -> Result<Successor, Stopped> {
        let mut wait = AGAIN.0;
        loop {
            match self.stores.successor(&self.of.name) {
                Ok(successor) => return Ok(successor),
                Err(error) => {
                    self.failed("no memory for the next epoch: this one goes on", &error, &mut wait)?
                }
            }
        }
    }

    /// Waits until the open epoch is over: at the next multiple of its length since 1970. A clock that jumps back ends
    /// it after its length.
    fn until_over(&self) -> Result<(), Stopped> {
        let every = self.of.every.as_millis() as u64;
        let opened = self.of.in_memory().open.1;
        let (end, since) = ((opened / every + 1) * every, Instant::now());
        while now() < end && since.elapsed() < self.of.every {
            self.wait(LOOK.min(self.of.every))?;
        }
        if now() >= end + every {
            self.of.counters.put_off.fetch_add((now() - end) / every, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives the store the memory of the next epoch.
    fn open_next(&self, successor: Successor) {
        let of = &self.of;
        let (store, opened) = of.in_memory().open.clone();
        let closed = now().max(opened + 1);
        let next = successor.generation();
        let file = match self.stores.memory() {
            MemoryConfig::Anonymous => None,
            MemoryConfig::Directory(dir) => {
                // Before the files change places: a start that finds them knows both moments.
                let began = BTreeMap::from([(store.generation, opened), (next, closed)]);
                if let Err(error) = journal::write(dir, &of.name, &began) {
                    self.warn("the next epoch is put off", &error);
                    return;
                }
                Some(former_path(dir, &of.name, store.generation))
            }
        };
        // Who asks meanwhile waits, and then finds both.
        let mut in_memory = of.in_memory();
        let keep = file.is_some();
        let replaced: Result<_, ReplaceError> = self.stores.replace(successor, keep);
        match replaced {
            Ok(open) => {
                in_memory.open = (open, closed);
                in_memory.former.push(Former { store, opened, closed, file, found: false });
            }
            Err(error) => {
                drop(in_memory);
                self.warn("the next epoch is put off", &error);
            }
        }
    }

    /// Waits until nobody can write to the memory any more.
    fn seal(&self, former: &Former) -> Result<(), Stopped> {
        // After a restart no translator has a key to what was over before.
        while !former.found && (self.is_written)(&self.of.name, former.store.generation) {
            self.wait(LOOK)?;
        }
        self.of.counters.sealed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes an epoch to the history and gives its memory back.
    fn keep(&self, former: &Former) -> Result<(), Stopped> {
        let flipped_to = if former.found { former.closed } else { now().max(former.closed) };
        let mut wait = AGAIN.0;
        for tries in 1.. {
            match write(&self.of.history, former, flipped_to) {
                Ok(_) => {
                    self.of.counters.written.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(error) if tries < TRIES => {
                    self.failed("an epoch could not be written; it stays in memory", &error, &mut wait)?;
                }
                Err(error) => {
                    self.of.counters.lost.fetch_add(1, Ordering::Relaxed);
                    self.warn("an epoch could not be written and is lost", &error);
                    break;
                }
            }
        }
        if let Some(file) = &former.file
            && let Err(error) = std::fs::remove_file(file)
        {
            tracing::warn!(%error, file = %file.display(), "memory of an epoch that was written could not be removed");
        }
        self.of.in_memory().former.remove(0);
        if let Err(error) = thin_out(&self.of.history, &self.retention, former.opened) {
            self.warn("the history could not be compacted, or old epochs not removed", &error);
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: &dyn std::error::Error, wait: &mut Duration) -> Result<(), Stopped> {
        self.of.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.warn(what, error);
        self.wait(*wait)?;
        *wait = (*wait * 2).min(AGAIN.1);
        Ok(())
    }

    fn warn(&self, what: &str, error: &dyn std::error::Error) {
        tracing::warn!(store = %self.of.name, %error, "{what}");
    }

    fn wait(&self, time: Duration) -> Result<(), Stopped> {
        let until = Instant::now() + time;
        loop {
            // A sender that is gone cannot stop anything any more.
            if *self.stop.borrow() || self.stop.has_changed().is_err() {
                return Err(Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK));
        }
    }
}
