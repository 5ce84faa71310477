//! The thread that keeps histories small: it removes or thins out old epochs, and merges small files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dta_history::{EpochTable, HistoryError, Retention, SpanFiles, replaces_slots};
use dta_proto::store::StoreSpec;
use tokio::sync::watch;

use super::due::Ageing;
use super::keeper::{LOOK, Stopped, wait_or_stop};
use super::{Keep, StoreEpochs, now, waterfall};

/// Files of epochs that were opened within one hour are merged.
const COMPACTED: Duration = Duration::from_secs(3600);

/// The length of spans whose files are merged. A file must not reach beyond a span that is to become one epoch.
pub(super) fn compaction_span(keep: &Keep, spec: &StoreSpec) -> Duration {
    let coarse = keep.coarse.as_ref().filter(|_| replaces_slots(spec));
    coarse.map_or(COMPACTED, |coarse| COMPACTED.min(coarse.every))
}

pub(super) struct Thinner {
    all: Vec<Arc<StoreEpochs>>,
    keep: Keep,
    ageing: Ageing,
    stop: watch::Receiver<bool>,
    /// How many places of damage were logged, by table.
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
            newest = newest.max(of.history.kept_epochs()?.last().map(|last| last.epoch.flipped_to));
        }
        let ageing = Ageing::new(newest.unwrap_or_else(now), Instant::now());
        Ok(Thinner { all, keep, ageing, stop, logged: BTreeMap::new() })
    }

    pub(super) fn run(mut self) {
        while let Ok(()) = self.thin_histories() {}
    }

    /// Thins out all histories if any has grown.
    pub(super) fn thin_histories(&mut self) -> Result<(), Stopped> {
        let grown = self.all.iter().filter(|of| of.grown.swap(false, Ordering::Relaxed)).count();
        if grown > 0 {
            let moment = self.ageing.moment_at(now(), Instant::now());
            for of in self.all.clone() {
                self.log_damage(&of);
                for table in of.history_tables() {
                    let retention =
                        Retention { keep: self.keep.keep, keep_bytes: self.byte_allowance(table) };
                    let thinned = table
                        .apply_retention(&retention, moment)
                        .and_then(|_| self.merge_old_epochs(table, moment));
                    if let Err(error) = thinned {
                        tracing::warn!(
                            store = %of.name, %error,
                            "cannot compact the history or remove old epochs"
                        );
                    }
                }
            }
        }
        wait_or_stop(&self.stop, LOOK)
    }

    /// How many bytes a history may have: for the largest one, what the others leave of the limit.
    fn byte_allowance(&self, history: &EpochTable) -> Option<u64> {
        let all = || self.all.iter().flat_map(|of| of.history_tables()).map(EpochTable::data_bytes);
        let own = history.data_bytes();
        let room = self.keep.keep_bytes?.saturating_sub(all().sum::<u64>() - own);
        (all().max() == Some(own)).then_some(room)
    }

    /// Merges old epochs into one, and small files into one.
    pub(super) fn merge_old_epochs(&self, history: &EpochTable, moment: u64) -> Result<(), HistoryError> {
        if let Some(coarse) = self.keep.coarse.as_ref().filter(|_| history.can_be_coarse()) {
            let (after, every) = (coarse.after.as_millis() as u64, coarse.every.as_millis() as u64);
            let is_old = |begin: u64| begin.saturating_add(every).saturating_add(after) <= moment;
            for (begin, SpanFiles { epochs, .. }) in history.compaction_spans(every)? {
                if epochs > 1 && is_old(begin) && !self.is_stopping() {
                    history.coarsen_span(begin..begin + every, waterfall::sum)?;
                }
            }
        }
        let every = compaction_span(&self.keep, history.store_spec()).as_millis() as u64;
        let newest = history.kept_epochs()?.last().map_or(0, |last| last.epoch.opened);
        for (begin, SpanFiles { files, has_longer_rows, .. }) in history.compaction_spans(every)? {
            if (files > 1 || has_longer_rows) && begin + every <= newest && !self.is_stopping() {
                history.compact_span(begin..begin + every)?;
            }
        }
        history.vacuum_files()?;
        Ok(())
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Counts all places of damage, and then logs each of them once.
    fn log_damage(&mut self, of: &StoreEpochs) {
        let damages: Vec<_> = of.history_tables().map(|table| (table, table.log_damage())).collect();
        let places: u64 = damages.iter().map(|(_, damage)| damage.len() as u64).sum();
        of.counters.damaged.store(places, Ordering::Relaxed);
        for (table, damage) in damages {
            let logged = self.logged.entry(table.table_path().to_owned()).or_default();
            for place in damage.iter().skip(*logged) {
                tracing::warn!(store = %of.name, "damage in the history: {place}");
            }
            *logged = damage.len();
        }
    }
}
