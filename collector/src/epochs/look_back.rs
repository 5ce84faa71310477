//! What stores held in earlier epochs. A key without a value in an epoch was not reported then, but its earlier value may
//! still be true: the rules for INT, flow records and host tracing hold back what did not change.

use std::sync::Arc;

use dta_history::HistoryError;
use dta_memory::store::Store;
use dta_proto::control::EarlierEpoch;
use dta_proto::key::Key;
use dta_proto::wire::dta::EpochEnd;

use super::known_epochs::EpochStorage;
use super::{Epochs, MomentError, StoreEpochs, elements};

/// A store as it was in a past epoch.
pub struct EarlierStore {
    pub epoch: EarlierEpoch,
    of: Arc<StoreEpochs>,
    held: EpochStorage,
}

impl Epochs {
    /// A store as it was in the epochs before one that began at `opened`, newest first, as far as questions
    /// look back. Empty for a store whose memory carries on after an epoch.
    pub fn earlier_stores(&self, store: &str, opened: u64) -> Result<Vec<EarlierStore>, MomentError> {
        let of = self.store_epochs(store)?;
        if of.history.store_spec().kind.primitive().epoch_end() != EpochEnd::Replaces {
            return Ok(Vec::new());
        }
        let is_earlier = |from: u64, to: u64| from < opened && self.is_in_look_back(to, opened);
        // Taken before the history is read: what is written meanwhile is in both.
        let former = of.in_memory().former.clone();
        let former: Vec<_> = former.into_iter().filter(|of| is_earlier(of.opened, of.closed)).collect();
        let is_former = |generation, opened| {
            former.iter().any(|of| (of.store.generation, of.opened) == (generation, opened))
        };
        let mut kept = of.history.kept_epochs()?;
        kept.retain(|kept| {
            let epoch = &kept.epoch;
            is_earlier(epoch.opened, epoch.flipped_from) && !is_former(epoch.generation, epoch.opened)
        });
        let kept = kept.into_iter().map(|kept| EarlierStore {
            epoch: EarlierEpoch {
                opened: kept.epoch.opened,
                closed: kept.epoch.flipped_from,
                number: kept.epoch.number,
            },
            of: Arc::clone(of),
            held: EpochStorage::Kept(kept),
        });
        let former = former.into_iter().map(|former| EarlierStore {
            epoch: EarlierEpoch { opened: former.opened, closed: former.closed, number: 0 },
            of: Arc::clone(of),
            held: EpochStorage::InMemory(former.store),
        });
        let mut earlier: Vec<EarlierStore> = kept.chain(former).collect();
        earlier.sort_by_key(|earlier| std::cmp::Reverse(earlier.epoch.opened));
        Ok(earlier)
    }

    /// Whether a report from before `closed` still counts in an epoch that began at `opened`.
    pub fn is_in_look_back(&self, closed: u64, opened: u64) -> bool {
        let look_back = u64::try_from(self.look_back.as_millis()).unwrap_or(u64::MAX);
        closed.saturating_add(look_back) >= opened
    }
}

impl EarlierStore {
    /// The store, with only the slots of `keys` unless it is in memory. `None` if it has been removed since.
    pub fn read_slots_of(&self, keys: &[Key]) -> Result<Option<Arc<Store>>, MomentError> {
        let kept = match &self.held {
            EpochStorage::InMemory(store) => return Ok(Some(Arc::clone(store))),
            EpochStorage::Kept(kept) => &kept.epoch,
        };
        match self.of.read_kept(kept, keys) {
            Err(MomentError::History(HistoryError::NotKept(_))) => Ok(None),
            read => read.map(Some),
        }
    }
}

impl StoreEpochs {
    /// The store as it was in a kept epoch, only with the slots of `keys`.
    pub(super) fn read_kept(
        &self,
        epoch: &dta_history::HistoryEpoch,
        keys: &[Key],
    ) -> Result<Arc<Store>, MomentError> {
        let like = Arc::clone(&self.in_memory().open.0);
        let wanted = elements::slots_of_keys(&like.spec, keys);
        let mut bytes = vec![0; wanted.len() * like.spec.element_len() as usize];
        self.history.read_slots(epoch.number, &wanted, &mut bytes)?;
        Ok(Arc::new(elements::sparse_store(&like, epoch.generation, &wanted, &bytes)?))
    }
}
