//! A store as it was at a moment.

use std::sync::Arc;

use dta_files::moment::format_utc;
use dta_history::{HistoryError, KeptEpoch};
use dta_memory::region::RegionError;
use dta_memory::store::{MemoryError, Store};
use dta_proto::control::Epoch;
use dta_proto::key::Key;

use super::known_epochs::kept_epoch;
use super::{Epochs, now};

/// Why a question about a moment cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum MomentError {
    /// The store has no epochs.
    #[error(
        "store {0:?} keeps no history: ask without a moment, or give it epochs (`epoch = \"60s\"` in its \
         table of the collector's configuration)"
    )]
    NoHistory(String),
    /// It is in the future.
    #[error("{} is in the future: this collector's clock shows {}", format_utc(*at), format_utc(*now))]
    Future {
        /// The moment, in milliseconds since 1970, as everywhere here.
        at: u64,
        now: u64,
    },
    /// The span is empty.
    #[error("--since must be earlier than --until: {} is not before {}", format_utc(*since), format_utc(*until))]
    Empty {
        /// The beginning of the span.
        since: u64,
        /// The end of the span, which is not part of it.
        until: u64,
    },
    /// No epoch at that moment is kept.
    #[error(
        "store {store:?}: nothing is kept of {}; the oldest epoch kept began at {}",
        format_utc(*at), format_utc(*oldest)
    )]
    NotKept {
        store: String,
        at: u64,
        /// When the oldest epoch began that is kept or in memory.
        oldest: u64,
    },
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The store does not match its description.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// There is no memory for what was read.
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl Epochs {
    /// The store as it was at `at`, in milliseconds since 1970, with the epoch of that moment. The store is
    /// whole if it is in memory; otherwise it has only the slots of `keys`.
    pub fn store_at_moment(
        &self,
        store: &str,
        keys: &[Key],
        at: u64,
    ) -> Result<(Arc<Store>, Epoch), MomentError> {
        let of = self.store_epochs(store)?;
        let present = now();
        if at > present {
            return Err(MomentError::Future { at, now: present });
        }
        let (in_memory, began) = {
            let in_memory = of.in_memory();
            let (open, opened) = (&in_memory.open.0, in_memory.open.1.moment);
            if at >= opened {
                return Ok((Arc::clone(open), of.open_epoch(open, opened)));
            }
            if let Some(former) =
                in_memory.former.iter().find(|former| (former.opened..former.closed).contains(&at))
            {
                return Ok((Arc::clone(&former.store), of.former_epoch(former)));
            }
            let oldest = in_memory.former.first().map_or(opened, |former| former.opened);
            let began: Vec<u64> = in_memory.former.iter().map(|former| former.opened).collect();
            (oldest, began)
        };
        let history = &of.history;
        let has_next = |kept: &KeptEpoch| began.iter().any(|opened| kept.epoch.is_before(*opened, at));
        let Some(kept) = history.epoch_at_moment(at)?.filter(|kept| !has_next(kept)) else {
            let kept = history.kept_epochs()?.iter().map(|kept| kept.epoch.opened).min();
            let oldest = kept.map_or(in_memory, |kept| kept.min(in_memory));
            return Err(MomentError::NotKept { store: store.to_owned(), at, oldest });
        };
        Ok((of.read_kept(&kept.epoch, keys)?, kept_epoch(&kept)))
    }
}
