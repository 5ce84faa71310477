//! Writes an epoch to a store's history.

use dta_history::{EpochFlush, EpochTable, HistoryEpoch, HistoryError};
use dta_memory::region::AccessError;

/// How many of the newest epochs are kept even on a full disk.
pub(super) const FLOOR: usize = 2;

#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    Memory(#[from] AccessError),
}

pub(super) fn next_number(table: &EpochTable) -> Result<u64, HistoryError> {
    Ok(table.kept_epochs()?.last().map_or(1, |last| last.epoch.number + 1))
}

/// Writes an epoch under the next number. `fill` writes its rows, and fills in what is known only then. On a
/// full disk the oldest epochs make room, and `fill` is called again.
pub(super) fn write_epoch(
    table: &EpochTable,
    mut epoch: HistoryEpoch,
    mut fill: impl FnMut(&mut EpochFlush<'_>, &mut HistoryEpoch) -> Result<(), WriteError>,
) -> Result<HistoryEpoch, WriteError> {
    loop {
        epoch.number = next_number(table)?;
        match try_to_write(table, &mut epoch, &mut fill) {
            Ok(()) => return Ok(epoch),
            Err(error) => make_room(table, error)?,
        }
    }
}

fn try_to_write(
    table: &EpochTable,
    epoch: &mut HistoryEpoch,
    fill: &mut impl FnMut(&mut EpochFlush<'_>, &mut HistoryEpoch) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let mut flush = table.begin_epoch(epoch.number)?;
    fill(&mut flush, epoch)?;
    finish_epoch(table, flush, epoch)
}

pub(super) fn finish_epoch(
    table: &EpochTable,
    flush: EpochFlush<'_>,
    epoch: &HistoryEpoch,
) -> Result<(), WriteError> {
    let written = flush.finish(epoch)?;
    tracing::debug!(
        table = %table.table_path().display(), epoch = epoch.number, rows = written.rows, bytes = written.bytes,
        "epoch written"
    );
    Ok(())
}

/// If the disk is full, removes the oldest epochs. Returns the error if this does not help.
pub(super) fn make_room(table: &EpochTable, error: WriteError) -> Result<(), WriteError> {
    match &error {
        WriteError::History(full) if full.is_disk_full() => {}
        _ => return Err(error),
    }
    // Either at least one epoch is removed, or there is none to remove.
    let removed = table.make_room(1, FLOOR)?;
    if removed.epochs.is_empty() {
        return Err(error);
    }
    let (first, last) = (removed.epochs.first(), removed.epochs.last());
    tracing::warn!(table = %table.table_path().display(), ?first, ?last, "the disk is full: removing the oldest epochs");
    Ok(())
}
