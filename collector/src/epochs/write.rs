//! Writing an epoch to a store's history.

use dta_history::{EpochFlush, EpochTable, HistoryEpoch, HistoryError};
use dta_memory::region::AccessError;

/// Epochs that a full disk does not take: the newest ones.
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

/// Writes an epoch under the number that is next. `fill` gives its rows, and what of it is known only then. On a full
/// disk the oldest epochs make room, and it is asked again.
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

/// Where the disk is full, removes the oldest epochs. Gives back an error that this does not help against.
pub(super) fn make_room(table: &EpochTable, error: WriteError) -> Result<(), WriteError> {
    match &error {
        WriteError::History(full) if full.is_disk_full() => {}
        _ => return Err(error),
    }
    // At least one epoch goes, or there is none to go.
    let removed = table.make_room(1, FLOOR)?;
    if removed.epochs.is_empty() {
        return Err(error);
    }
    let (first, last) = (removed.epochs.first(), removed.epochs.last());
    tracing::warn!(table = %table.table_path().display(), ?first, ?last, "the disk is full: the oldest epochs are removed");
    Ok(())
}
