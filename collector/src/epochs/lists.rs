//! Epochs of lists: entries are read as they come, and belong to the epoch they were read in.
//!
//! What could not be written is read again from the ring, if it is still there. Each epoch records how far
//! each list was read, so that the next start continues from there.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Instant;

use dta_history::{EpochFlush, HistoryEntry, HistoryEpoch, HistoryError};
use dta_memory::reader::append::{ListError, Lists, ReadPosition, ReadProgress, ReadStart};
use dta_memory::region::AccessError;
use dta_proto::backoff::Backoff;
use dta_proto::layout::append::{is_sequence_after, next};
use serde_json::json;

use super::due::{Began, Due};
use super::keeper::{AGAIN, EpochArchiver, LOOK, Stopped, add_to_counter};
use super::waterfall::Totals;
use super::write::{WriteError, finish_epoch, make_room, next_number};

/// Batches to read from one list before the next one has its turn.
const BATCHES: u64 = 1024;
/// At most one part in this many of the time goes into looking at lists without news.
const SHARE: u32 = 5;

pub(super) fn run(keeper: &EpochArchiver) -> Result<Infallible, Stopped> {
    let of = &keeper.of;
    let (store, _) = of.in_memory().open.clone();
    let lists = Lists::new(&store).expect("a store of lists");
    let mut again = AGAIN;
    let mut is_last_try = false;
    // If the collector stops during the wait, try once more: its memory may end with it.
    let mut failed = |what: &str, error: &dyn std::error::Error, again: &mut Backoff| {
        let stops = keeper.wait_after_failure(what, error, again).is_err();
        if stops && std::mem::replace(&mut is_last_try, stops) { Err(Stopped) } else { Ok(()) }
    };
    let mut positions = loop {
        match start_positions(keeper, lists) {
            Ok(positions) => break positions,
            Err(error) => failed("lists could not be read", &error, &mut again)?,
        }
    };
    // The previous run may have been killed between the two writes.
    if let Some(last) = of.history.kept_epochs().ok().and_then(|epochs| Some(epochs.last()?.epoch.clone())) {
        keeper.write_typed(&store, &last);
    }
    let mut before = (!store.region.is_preexisting()).then(|| keeper.counter_totals());
    loop {
        let began = of.in_memory().open.1;
        let epoch = HistoryEpoch {
            generation: store.generation,
            opened: began.moment,
            confirmed: true,
            ..HistoryEpoch::default()
        };
        let mut read = positions.clone();
        match one_epoch(keeper, lists, (epoch, began), before.as_ref(), &mut read) {
            Ok(done) => {
                positions = read;
                before = Some(done.totals);
                add_to_counter(&of.counters.overwritten, done.overwritten);
                of.in_memory().open.1 = done.begins;
                keeper.written_of(&store, &done.epoch);
                again = AGAIN;
                if done.stops {
                    return Err(Stopped);
                }
            }
            Err(error) => {
                if let Err(error) = make_room(&of.history, error) {
                    failed("cannot write lists; their epoch continues", &error, &mut again)?;
                }
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum BeginError {
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    List(#[from] ListError),
}

/// Where to start reading each list: after what the history has.
fn start_positions(keeper: &EpochArchiver, lists: Lists<'_>) -> Result<Vec<ReadPosition>, BeginError> {
    let mut last: BTreeMap<u32, u32> = BTreeMap::new();
    for kept in keeper.of.history.kept_epochs()?.iter() {
        last.extend(kept.epoch.lists.iter().copied());
    }
    let position = |list| {
        let start = start_behind(lists, list, last.get(&list).copied()).map_err(ListError::from)?;
        Ok(lists.open_reader(list, start)?.read_position())
    };
    (0..lists.list_count()).map(position).collect()
}

/// Where to start reading a list: after the last sequence that the history has, if any.
pub(super) fn start_behind(lists: Lists<'_>, list: u32, last: Option<u32>) -> Result<ReadStart, AccessError> {
    let Some(last) = last else { return Ok(ReadStart::Oldest) };
    let newest = lists.newest_sequence(list)?;
    // In new memory, its sequences begin with 1 again.
    let goes_on = newest == last || newest != 0 && is_sequence_after(newest, last);
    Ok(if goes_on { ReadStart::At(next(last)) } else { ReadStart::Oldest })
}

struct Done {
    epoch: HistoryEpoch,
    /// The counters at its end.
    totals: Totals,
    /// Batches that had been overwritten before they were read.
    overwritten: u64,
    /// When the next epoch begins.
    begins: Began,
    stops: bool,
}

/// Reads lists until an epoch is over or the collector stops, then writes the epoch.
fn one_epoch(
    keeper: &EpochArchiver,
    lists: Lists<'_>,
    (mut epoch, began): (HistoryEpoch, Began),
    before: Option<&Totals>,
    positions: &mut [ReadPosition],
) -> Result<Done, WriteError> {
    let history = &keeper.of.history;
    epoch.number = next_number(history)?;
    let mut flush = history.begin_epoch(epoch.number)?;
    let due = Due::with_found(began, keeper.of.every, before.is_none());
    let (mut progress, mut last, mut stops) = (ReadProgress::default(), BTreeMap::new(), false);
    loop {
        // Checked before the lists are read, so that the epoch includes everything there at its end.
        let over = stops || due.is_over();
        let looked = Instant::now();
        for (list, position) in (0..).zip(positions.iter_mut()) {
            progress.add(read(lists, list, position, &mut flush, &mut last)?);
        }
        if over {
            break;
        }
        stops = keeper.wait_or_stop(LOOK.max(SHARE * looked.elapsed()).min(keeper.of.every)).is_err();
    }
    epoch.lists = last.into_iter().collect();
    let mut totals = keeper.counter_totals();
    let begins = Began::now();
    let closed = due.closing_moment(begins);
    (epoch.flipped_from, epoch.flipped_to) = (closed, closed);
    epoch.restarted = keeper.of.restart_within(epoch.opened, closed);
    epoch.waterfall = before.map_or_else(|| json!({}), |before| totals.increase_since(before));
    let ReadProgress { overwritten, missing, damaged, .. } = progress;
    for (name, batches) in [("overwritten", overwritten), ("missing", missing), ("damaged", damaged)] {
        epoch.waterfall[name] = batches.into();
    }
    finish_epoch(history, flush, &epoch)?;
    Ok(Done { epoch, totals, overwritten, begins, stops })
}

/// Reads what is new in a list, but no more than the ring holds.
fn read(
    lists: Lists<'_>,
    list: u32,
    position: &mut ReadPosition,
    flush: &mut EpochFlush<'_>,
    last: &mut BTreeMap<u32, u32>,
) -> Result<ReadProgress, WriteError> {
    let mut reader = lists.resume_reader(*position);
    let len = reader.entry_len();
    let mut all = ReadProgress::default();
    loop {
        let mut pushed = Ok(());
        let progress = reader.read(BATCHES, Instant::now(), |sequence, entries| {
            last.insert(list, sequence);
            for (number, bytes) in (0..).zip(entries.chunks_exact(len)) {
                if pushed.is_ok() {
                    pushed = flush.push(HistoryEntry { list, sequence, number, bytes });
                }
            }
        })?;
        pushed?;
        all.add(progress);
        if progress.batches < BATCHES || all.batches >= lists.ring_batches() {
            *position = reader.read_position();
            return Ok(all);
        }
    }
}
