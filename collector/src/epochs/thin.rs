//! The thread that keeps histories small: old epochs go or become fewer, and small files one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dta_history::{HistoryError, Retention, Spanned, Table};
use tokio::sync::watch;

use super::due::Ageing;
use super::keeper::{LOOK, Stopped, wait};
use super::{Keep, StoreEpochs, now, waterfall};

/// Files of epochs that were opened in one hour become one.
const COMPACTED: Duration = Duration::from_secs(3600);

pub(super) struct Thinner {
    all: Vec<Arc<StoreEpochs>>,
    keep: Keep,
    ageing: Ageing,
    stop: watch::Receiver<bool>,
    /// Places of damage that were logged, by table.
    logged: BTreeMap<PathBuf, usize>,
}

impl Thinner {
    pub(super) fn new(
        all: Vec<Arc<StoreEpochs>>,
        keep: Keep,
        stop: watch::Receiver<bool>,
    ) -> Result<Thinner, HistoryError> {
        let mut newest = None;
        for of in &all {
            newest = newest.max(of.history.epochs()?.last().map(|last| last.epoch.flipped_to));
        }
        let ageing = Ageing::new(newest.unwrap_or_else(now), Instant::now());
        Ok(Thinner { all, keep, ageing, stop, logged: BTreeMap::new() })
    }

    /// Until the collector stops.
    pub(super) fn run(mut self) {
        while let Ok(()) = self.look() {}
    }

    /// Thins out all histories if any has grown.
    pub(super) fn look(&mut self) -> Result<(), Stopped> {
        let grown = self.all.iter().filter(|of| of.grown.swap(false, Ordering::Relaxed)).count();
        if grown > 0 {
            let moment = self.ageing.moment(now(), Instant::now());
            for of in self.all.clone() {
                self.tell_damage(&of);
                for table in of.tables() {
                    let retention = Retention { keep: self.keep.keep, keep_bytes: self.room(table) };
                    let thinned = table.retain(&retention, moment).and_then(|_| self.fewer(table, moment));
                    if let Err(error) = thinned {
                        tracing::warn!(
                            store = %of.name, %error,
                            "the history could not be compacted, or old epochs not removed"
                        );
                    }
                }
            }
        }
        wait(&self.stop, LOOK)
    }

    /// How many bytes a history may have: the largest one what the others leave.
    fn room(&self, history: &Table) -> Option<u64> {
        let all = || self.all.iter().flat_map(|of| of.tables()).map(Table::bytes);
        let own = history.bytes();
        let room = self.keep.keep_bytes?.saturating_sub(all().sum::<u64>() - own);
        (all().max() == Some(own)).then_some(room)
    }

    /// Makes one epoch of old ones, and one file of small ones.
    pub(super) fn fewer(&self, history: &Table, moment: u64) -> Result<(), HistoryError> {
        let mut compacted = COMPACTED;
        if let Some(coarse) = self.keep.coarse.as_ref().filter(|_| history.can_be_coarse()) {
            let (after, every) = (coarse.after.as_millis() as u64, coarse.every.as_millis() as u64);
            let is_old = |begin: u64| begin.saturating_add(every).saturating_add(after) <= moment;
            for (begin, Spanned { epochs, .. }) in history.spans(every)? {
                if epochs > 1 && is_old(begin) && !self.stops() {
                    history.coarsen(begin..begin + every, waterfall::sum)?;
                }
            }
            // A file of several spans could not be made part of one epoch.
            compacted = compacted.min(coarse.every);
        }
        let every = compacted.as_millis() as u64;
        let newest = history.epochs()?.last().map_or(0, |last| last.epoch.opened);
        for (begin, Spanned { files, .. }) in history.spans(every)? {
            if files > 1 && begin + every <= newest && !self.stops() {
                history.compact(begin..begin + every)?;
            }
        }
        history.vacuum()?;
        Ok(())
    }

    fn stops(&self) -> bool {
        *self.stop.borrow()
    }

    /// Logs and counts what is damaged in a log, each place once.
    fn tell_damage(&mut self, of: &StoreEpochs) {
        let mut places = 0;
        for table in of.tables() {
            let damage = table.damage();
            let logged = self.logged.entry(table.path().to_owned()).or_default();
            for place in damage.iter().skip(*logged) {
                tracing::warn!(store = %of.name, "damage in the history: {place}");
            }
            *logged = damage.len();
            places += damage.len() as u64;
        }
        of.counters.damaged.store(places, Ordering::Relaxed);
    }
}
