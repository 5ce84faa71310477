//! Follows the lists of a store in this process, like any other reader.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_memory::reader::append::{AppendReader, ListError, Lists, ReadPosition, ReadProgress, ReadStart};
use dta_memory::store::{ServedStores, Store};
use dta_proto::layout::append::is_sequence_after;

#[derive(Debug)]
pub(super) struct ListFollower {
    stores: Arc<ServedStores>,
    store: Arc<Store>,
    /// Where to begin in a list. With `Next`, all of the memory that later replaces it is read.
    start: fn(u32) -> ReadStart,
    /// By list; empty until they are known.
    positions: Vec<ReadPosition>,
    /// What it reads for, for the log.
    purpose: &'static str,
    is_warned: bool,
}

impl ListFollower {
    pub(super) fn new(
        stores: Arc<ServedStores>,
        store: Arc<Store>,
        start: fn(u32) -> ReadStart,
        purpose: &'static str,
    ) -> ListFollower {
        ListFollower { stores, store, start, positions: Vec::new(), purpose, is_warned: false }
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Reads what is new in all lists, at most a ring of each, some batches per call of `read`. The last list comes
    /// first: for events, it says what keys mean. Returns whether a list brought more than a quarter of its ring.
    pub(super) fn read_new_batches(
        &mut self,
        most: u64,
        read: impl FnMut(u32, &mut AppendReader<'_>) -> Result<ReadProgress, ListError>,
    ) -> bool {
        let outcome = self.try_read(most, read);
        // If its memory was replaced, everything written to the former one has been read.
        if let Ok(current) = self.stores.get(&self.store.spec.name)
            && !Arc::ptr_eq(&current.region, &self.store.region)
        {
            (self.store, self.positions) = (current, Vec::new());
        }
        match outcome {
            Ok(is_busy) => {
                self.is_warned = false;
                is_busy
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_warned, true) {
                    let store = &self.store.spec.name;
                    tracing::warn!(%error, store, "cannot read a store for {}; trying again", self.purpose);
                }
                false
            }
        }
    }

    /// Reads again, up to `most` batches at a time, what has been read of all lists and is still in memory.
    /// `None` if it was stopped.
    pub(super) fn read_again(
        &self,
        most: u64,
        is_stopped: impl Fn() -> bool,
        mut read: impl FnMut(&[u8]),
    ) -> Result<Option<ReadProgress>, ListError> {
        let mut all = ReadProgress::default();
        let Some(lists) = Lists::new(&self.store) else { return Ok(Some(all)) };
        for (list, position) in (0..lists.list_count()).zip(&self.positions) {
            let end = position.next_sequence();
            let mut reader = lists.open_reader(list, ReadStart::Oldest)?;
            let (mut now, mut idle) = (Instant::now(), 0);
            while is_sequence_after(end, reader.next_sequence()) && idle < 3 {
                if is_stopped() {
                    return Ok(None);
                }
                let before = reader.next_sequence();
                all.add(reader.read(most, now, |sequence, entries| {
                    if is_sequence_after(end, sequence) {
                        read(entries);
                    }
                })?);
                idle = if reader.next_sequence() == before { idle + 1 } else { 0 };
                // The first reading already waited for what is missing here.
                now += Duration::from_secs(1);
            }
        }
        Ok(Some(all))
    }

    fn try_read(
        &mut self,
        most: u64,
        mut read: impl FnMut(u32, &mut AppendReader<'_>) -> Result<ReadProgress, ListError>,
    ) -> Result<bool, ListError> {
        let Some(lists) = Lists::new(&self.store) else { return Ok(false) };
        if self.positions.is_empty() {
            let start = |list| match (self.start)(list) {
                ReadStart::Next if !self.store.region.is_preexisting() => ReadStart::At(1),
                start => start,
            };
            let open = |list| Ok(lists.open_reader(list, start(list))?.read_position());
            self.positions = (0..lists.list_count()).map(open).collect::<Result<_, ListError>>()?;
        }
        let mut is_busy = false;
        for (list, position) in (0..lists.list_count()).zip(&mut self.positions).rev() {
            let mut reader = lists.resume_reader(*position);
            let mut batches = 0;
            loop {
                let progress = read(list, &mut reader)?;
                batches += progress.batches;
                if progress.batches < most || batches >= lists.ring_batches() {
                    break;
                }
            }
            *position = reader.read_position();
            is_busy |= batches > lists.ring_batches() / 4;
        }
        Ok(is_busy)
    }
}
