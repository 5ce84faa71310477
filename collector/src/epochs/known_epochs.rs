//! Which epochs a store has.

use std::sync::Arc;

use dta_history::KeptEpoch;
use dta_memory::store::Store;
use dta_proto::control::{Epoch, EpochState, EpochsRequest, EpochsResponse, MAX_EPOCHS};
use dta_rpc::Span;

use super::{Epochs, FormerEpoch, MomentError, StoreEpochs, now, waterfall};

impl Epochs {
    /// The open epoch of a store with its memory; `None` if the store has no epochs.
    pub fn open(&self, store: &str) -> Option<(Arc<Store>, Epoch)> {
        let of = self.of.get(store)?;
        let in_memory = of.in_memory();
        let (store, began) = &in_memory.open;
        Some((Arc::clone(store), of.open_epoch(store, began.moment)))
    }

    /// The epochs of this store that a request asks for, newest first.
    pub fn list_epochs(&self, store: &str, request: &EpochsRequest) -> Result<EpochsResponse, MomentError> {
        let span = Span { since: request.since, until: request.until };
        let known = epochs_in_span(self.store_epochs(store)?.known_epochs(span)?, span);
        let mut epochs: Vec<Epoch> = known.into_iter().map(|known| known.epoch).collect();
        let most = match request.most as usize {
            0 => MAX_EPOCHS,
            most => most.min(MAX_EPOCHS),
        };
        let rest = epochs.len().saturating_sub(most);
        epochs.drain(..rest);
        epochs.reverse();
        let older = if rest > 0 { epochs.last().map_or(0, |oldest| oldest.opened) } else { 0 };
        Ok(EpochsResponse { epochs, older })
    }

    pub(super) fn store_epochs(&self, store: &str) -> Result<&Arc<StoreEpochs>, MomentError> {
        let none = || MomentError::NoHistory(store.to_owned());
        self.of.get(store).ok_or_else(none)
    }
}

pub(super) struct KnownEpoch {
    pub(super) epoch: Epoch,
    pub(super) held: EpochStorage,
}

pub(super) enum EpochStorage {
    InMemory(Arc<Store>),
    Kept(Arc<KeptEpoch>),
}

/// The epochs that overlap a span.
pub(super) fn epochs_in_span(mut all: Vec<KnownEpoch>, Span { since, until }: Span) -> Vec<KnownEpoch> {
    // The epoch of the moment `since` is the last one opened by then, unless it had already ended.
    let by_then = all.partition_point(|known| known.epoch.opened <= since);
    let holds = |known: &KnownEpoch| {
        matches!(known.held, EpochStorage::InMemory(_)) || known.epoch.flipped_to >= since
    };
    let first = if by_then > 0 && holds(&all[by_then - 1]) { by_then - 1 } else { by_then };
    if until != 0 {
        all.truncate(all.partition_point(|known| known.epoch.opened < until));
    }
    all.drain(..first.min(all.len()));
    all
}

impl StoreEpochs {
    /// All epochs, oldest first, for questions about a span.
    ///
    /// # Errors
    /// The span is empty or begins in the future, or the history cannot be read.
    pub(super) fn known_epochs(&self, Span { since, until }: Span) -> Result<Vec<KnownEpoch>, MomentError> {
        let present = now();
        if since > present {
            return Err(MomentError::Future { at: since, now: present });
        }
        if until != 0 && until <= since {
            return Err(MomentError::Empty { since, until });
        }
        // What is written after this look at memory is in both; what was written before is in the history.
        let (former, (open, began)) = {
            let in_memory = self.in_memory();
            (in_memory.former.clone(), in_memory.open.clone())
        };
        let kept = self.history.kept_epochs()?;
        let written = |generation: u64, opened: u64| {
            let is_it =
                |kept: &&Arc<KeptEpoch>| (kept.epoch.generation, kept.epoch.opened) == (generation, opened);
            kept.iter().rev().find(is_it)
        };
        let known = |kept: &Arc<KeptEpoch>| KnownEpoch {
            epoch: kept_epoch(kept),
            held: EpochStorage::Kept(Arc::clone(kept)),
        };
        let mut all: Vec<KnownEpoch> = kept.iter().map(known).collect();
        for former in former.into_iter().filter(|of| written(of.store.generation, of.opened).is_none()) {
            all.push(KnownEpoch {
                epoch: self.former_epoch(&former),
                held: EpochStorage::InMemory(former.store),
            });
        }
        // Memory that stays is open again from the end of the epoch that was written.
        let opened =
            written(open.generation, began.moment).map_or(began.moment, |kept| kept.epoch.flipped_to);
        all.push(KnownEpoch { epoch: self.open_epoch(&open, opened), held: EpochStorage::InMemory(open) });
        all.sort_by_key(|known| known.epoch.opened);
        Ok(all)
    }

    pub(super) fn open_epoch(&self, store: &Store, opened: u64) -> Epoch {
        Epoch {
            generation: store.generation,
            opened,
            restarted: self.restart_within(opened, u64::MAX).unwrap_or_default(),
            ..Epoch::default()
        }
    }

    pub(super) fn former_epoch(&self, former: &FormerEpoch) -> Epoch {
        Epoch {
            generation: former.store.generation,
            opened: former.opened,
            flipped_from: former.closed,
            state: EpochState::Closed.into(),
            restarted: self.restart_within(former.opened, former.closed).unwrap_or_default(),
            ..Epoch::default()
        }
    }

    /// When this collector started, if that was within an epoch begun by an earlier run.
    pub(super) fn restart_within(&self, opened: u64, closed: u64) -> Option<u64> {
        self.restarted.filter(|at| opened < *at && *at <= closed)
    }
}

pub(super) fn kept_epoch(kept: &KeptEpoch) -> Epoch {
    let dta_history::HistoryEpoch {
        number,
        generation,
        opened,
        flipped_from,
        flipped_to,
        confirmed,
        restarted,
        ..
    } = kept.epoch;
    Epoch {
        number,
        generation,
        opened,
        flipped_from,
        flipped_to,
        confirmed,
        restarted: restarted.unwrap_or_default(),
        state: EpochState::Kept.into(),
        rows: kept.rows,
        sketch: kept.epoch.sketch,
        waterfall: waterfall::waterfall_message(&kept.epoch.waterfall),
        ..Epoch::default()
    }
}
