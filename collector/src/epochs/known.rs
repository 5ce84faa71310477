//! Which epochs a store has.

use std::sync::Arc;

use dta_history::{HistoryError, Kept};
use dta_proto::control::{Epoch, EpochState, EpochsRequest, EpochsResponse, MAX_EPOCHS};

use super::{Epochs, Former, MomentError, StoreEpochs, now};
use crate::store::Store;

impl Epochs {
    /// The open epoch of a store, with its memory; `None` if the store has no epochs.
    pub fn open(&self, store: &str) -> Option<(Arc<Store>, Epoch)> {
        let in_memory = self.of.get(store)?.in_memory();
        let (store, opened) = &in_memory.open;
        Some((Arc::clone(store), of_open(store, *opened)))
    }

    /// The epochs that a request is about, of a store by this name, the newest first.
    ///
    /// # Errors
    /// A [`MomentError`].
    pub fn list(&self, store: &str, request: &EpochsRequest) -> Result<EpochsResponse, MomentError> {
        let of = self.of(store)?;
        let known = of.between(request.since, request.until)?;
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

    pub(super) fn of(&self, store: &str) -> Result<&StoreEpochs, MomentError> {
        let none = || MomentError::NoHistory(store.to_owned());
        Ok(self.of.get(store).ok_or_else(none)?)
    }
}

/// An epoch, with its memory unless it is kept.
pub(super) struct Known {
    pub(super) epoch: Epoch,
    pub(super) memory: Option<Arc<Store>>,
}

impl StoreEpochs {
    /// The epochs of the moments from `since` to before `until`, in milliseconds since 1970, the oldest first; 0 =
    /// without this limit.
    pub(super) fn between(&self, since: u64, until: u64) -> Result<Vec<Known>, MomentError> {
        let present = now();
        if since > present {
            return Err(MomentError::Future { at: since, now: present });
        }
        if until != 0 && until <= since {
            return Err(MomentError::Empty { since, until });
        }
        let mut all = self.all()?;
        // The one of the moment `since` is the last that was opened by then, unless it had ended.
        let by_then = all.partition_point(|known| known.epoch.opened <= since);
        let holds = |known: &Known| known.memory.is_some() || known.epoch.flipped_to >= since;
        let first = if by_then > 0 && holds(&all[by_then - 1]) { by_then - 1 } else { by_then };
        if until != 0 {
            all.truncate(all.partition_point(|known| known.epoch.opened < until));
        }
        all.drain(..first.min(all.len()));
        Ok(all)
    }

    /// All epochs, the oldest first.
    fn all(&self) -> Result<Vec<Known>, HistoryError> {
        // What is written after memory was looked at is in both; what was written before is in the history.
        let in_memory: Vec<Known> = {
            let in_memory = self.in_memory();
            let known = |store: &Arc<Store>, epoch| Known { epoch, memory: Some(Arc::clone(store)) };
            let former = in_memory.former.iter().map(|former| known(&former.store, of_former(former)));
            let (open, opened) = &in_memory.open;
            former.chain([known(open, of_open(open, *opened))]).collect()
        };
        let kept = self.history.epochs()?;
        let known = |kept: &Arc<Kept>| Known { epoch: of_kept(kept), memory: None };
        let mut all: Vec<Known> = kept.iter().map(known).collect();
        let is_kept = |of: &Epoch| {
            let same =
                |kept: &Arc<Kept>| (kept.epoch.generation, kept.epoch.opened) == (of.generation, of.opened);
            kept.iter().rev().any(same)
        };
        all.extend(in_memory.into_iter().filter(|known| !is_kept(&known.epoch)));
        all.sort_by_key(|known| known.epoch.opened);
        Ok(all)
    }
}

pub(super) fn of_open(store: &Store, opened: u64) -> Epoch {
    Epoch { generation: store.generation, opened, ..Epoch::default() }
}

pub(super) fn of_former(former: &Former) -> Epoch {
    Epoch {
        generation: former.store.generation,
        opened: former.opened,
        flipped_from: former.closed,
        state: EpochState::Closed.into(),
        ..Epoch::default()
    }
}

pub(super) fn of_kept(kept: &Kept) -> Epoch {
    let dta_history::Epoch { number, generation, opened, flipped_from, flipped_to, confirmed, .. } =
        kept.epoch;
    Epoch {
        number,
        generation,
        opened,
        flipped_from,
        flipped_to,
        confirmed,
        state: EpochState::Kept.into(),
        rows: kept.rows,
        ..Epoch::default()
    }
}
