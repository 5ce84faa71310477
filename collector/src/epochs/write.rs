//! Writing an epoch to a store's history, and keeping that small.

use std::time::Duration;

use dta_history::{Epoch, HistoryError, Retention, Table};

use super::{Former, elements, now};
use crate::region::AccessError;

/// Epochs that a full disk does not take: the newest ones.
const FLOOR: usize = 2;
/// What is compacted into one file, in milliseconds: the epochs that were opened in one hour.
const COMPACTED: u64 = Duration::from_secs(3600).as_millis() as u64;

/// Why an epoch was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    Memory(#[from] AccessError),
}

/// Writes an epoch whose memory is sealed, under the number that is next. One that an earlier life wrote, and did not
/// get to remove from memory, is left as it is. On a full disk the oldest epochs make room. Gives its number.
pub(super) fn write(table: &Table, former: &Former, flipped_to: u64) -> Result<u64, WriteError> {
    let generation = former.store.generation;
    let kept = table.epochs()?;
    // Generations begin anew where memory was lost; a moment is that of one epoch.
    let is_it = |epoch: &Epoch| (epoch.generation, epoch.opened) == (generation, former.opened);
    if let Some(there) = kept.iter().find(|kept| is_it(&kept.epoch)) {
        return Ok(there.epoch.number);
    }
    let epoch = Epoch {
        number: kept.last().map_or(1, |last| last.epoch.number + 1),
        generation,
        opened: former.opened,
        flipped_from: former.closed,
        flipped_to,
        confirmed: !former.found,
        ..Epoch::default()
    };
    loop {
        match try_to_write(table, former, &epoch) {
            Err(WriteError::History(error)) if error.is_full() => {
                // At least one epoch goes, or there is none to go.
                let removed = table.make_room(1, FLOOR)?;
                if removed.epochs.is_empty() {
                    return Err(error.into());
                }
                let (first, last) = (removed.epochs.first(), removed.epochs.last());
                tracing::warn!(table = %table.path().display(), ?first, ?last, "the disk is full: the oldest epochs are removed");
            }
            written => return written.map(|()| epoch.number),
        }
    }
}

fn try_to_write(table: &Table, former: &Former, epoch: &Epoch) -> Result<(), WriteError> {
    let mut flush = table.begin(epoch.number)?;
    elements::read(&former.store, |first, bytes| flush.put(first, bytes).map_err(WriteError::from))?;
    let written = flush.finish(epoch)?;
    tracing::debug!(
        table = %table.path().display(), epoch = epoch.number, rows = written.rows, bytes = written.bytes,
        "epoch written"
    );
    Ok(())
}

/// Removes what is too old or too much and, once an hour is over, makes one file of its epochs. `opened` is when the
/// newest epoch was opened.
pub(super) fn thin_out(table: &Table, retention: &Retention, opened: u64) -> Result<(), HistoryError> {
    table.retain(retention, now())?;
    let hour = opened / COMPACTED * COMPACTED;
    let before = hour.saturating_sub(COMPACTED)..hour;
    let mut epochs = table.epochs()?.into_iter().rev().map(|kept| kept.epoch.opened);
    // The newest is the first of its hour.
    let is_first =
        epochs.next().is_some_and(|newest| newest >= hour) && epochs.next().is_some_and(|then| then < hour);
    if is_first {
        table.compact(before)?;
        table.vacuum()?;
    }
    Ok(())
}
