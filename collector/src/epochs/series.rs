//! A store, epoch after epoch.

use std::num::NonZeroU64;
use std::sync::Arc;

use dta_history::HistoryError;
use dta_memory::store::Store;
use dta_proto::control::Epoch;
use dta_proto::key::Key;
use dta_rpc::Span;

use super::known_epochs::{EpochStorage, KnownEpoch, epochs_in_span};
use super::{Epochs, MomentError, StoreEpochs, elements};

/// How often to look up the epochs again: old ones may be removed between looking and reading.
const LOOKS: u32 = 4;

impl Epochs {
    /// Calls `each` with a store as it was in each epoch of a span, oldest first, for at most `most` epochs.
    /// The store is whole if it is in memory; otherwise it has only the slots of `keys`. Returns when the
    /// next epoch begins, if any is left.
    ///
    /// # Errors
    /// A [`MomentError`], or an error of `each`.
    pub fn visit_series<E: From<MomentError>>(
        &self,
        store: &str,
        keys: &[Key],
        span: Span,
        most: usize,
        mut each: impl FnMut(&Store, Epoch) -> Result<(), E>,
    ) -> Result<Option<NonZeroU64>, E> {
        let of = self.store_epochs(store)?;
        let open = Arc::clone(&of.in_memory().open.0);
        let wanted = elements::slots_of_keys(&open.spec, keys);
        let EpochPage { epochs, next, elements } = of.read(&open, &wanted, span, most)?;
        let then = elements::sparse_store(&open, 0, &[], &[]).map_err(MomentError::from)?;
        // If the keys have no slots in the store, nothing was read.
        let mut kept = elements.chunks_exact((wanted.len() * open.spec.element_len() as usize).max(1));
        for KnownEpoch { epoch, held } in epochs {
            match held {
                EpochStorage::InMemory(store) => each(&store, epoch)?,
                EpochStorage::Kept(_) => {
                    let bytes = kept.next().unwrap_or_default();
                    elements::write_slots(&then, &wanted, bytes);
                    each(&Store { generation: epoch.generation, ..then.clone() }, epoch)?;
                    elements::clear_slots(&then, &wanted, bytes);
                }
            }
        }
        Ok(next)
    }
}

struct EpochPage {
    epochs: Vec<KnownEpoch>,
    /// When the next epoch was opened.
    next: Option<NonZeroU64>,
    /// For kept epochs, the elements of the slots, epoch after epoch.
    elements: Vec<u8>,
}

impl StoreEpochs {
    /// Reads the first epochs of a span.
    fn read(&self, open: &Store, slots: &[u64], span: Span, most: usize) -> Result<EpochPage, MomentError> {
        let mut looks = 0;
        loop {
            let mut epochs = epochs_in_span(self.known_epochs(span)?, span);
            let next = epochs.get(most).and_then(|known| NonZeroU64::new(known.epoch.opened));
            epochs.truncate(most);
            let kept = epochs.iter().filter(|known| matches!(known.held, EpochStorage::Kept(_)));
            let numbers: Vec<u64> = kept.map(|known| known.epoch.number).collect();
            let mut elements = vec![0; numbers.len() * slots.len() * open.spec.element_len() as usize];
            looks += 1;
            match self.history.read_slot_series(&numbers, slots, &mut elements) {
                Err(HistoryError::NotKept(_)) if looks < LOOKS => {}
                read => return Ok(read.map(|()| EpochPage { epochs, next, elements })?),
            }
        }
    }
}
