//! Epochs of stores whose memory is replaced: opens the next one, waits until the former is sealed, and writes it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_history::{EpochTable, HistoryEpoch};
use dta_memory::store::{MemoryBacking, Successor, former_path};
use dta_proto::backoff::Backoff;
use serde_json::Value;

use super::due::{Began, Due};
use super::keeper::{AGAIN, EpochArchiver, LOOK, Stopped, add_to_counter};
use super::pace::Pace;
use super::write::{WriteError, write_epoch};
use super::{FormerEpoch, elements, journal};
use crate::session::Writers;

/// How long writers may take to move before the log says so. They renew their sessions every second.
const LATE: Duration = Duration::from_secs(30);

/// Ends an epoch that was due before this collector started, before anybody can write to its memory again. If
/// that fails, it ends as usual.
pub(super) fn end_overdue_epoch(keeper: &EpochArchiver) {
    let (open, began) = keeper.of.in_memory().open.clone();
    let due = Due::with_found(began, keeper.of.every, true);
    if !open.region.is_preexisting() || !due.is_over() {
        return;
    }
    let begins = Began::now();
    let moments = (due.known_until(due.closing_moment(begins)), begins);
    let next = keeper.stores.successor(&keeper.of.name).map_err(Into::into);
    if let Err(error) = next.and_then(|successor| open_next(keeper, successor, moments, true)) {
        keeper.log_warning("cannot end an overdue epoch: it continues for now", &*error);
    }
}

pub(super) fn run(keeper: &EpochArchiver) -> Result<Infallible, Stopped> {
    let (open, began) = keeper.of.in_memory().open.clone();
    let mut due = Due::with_found(began, keeper.of.every, open.region.is_preexisting());
    // The counters at the last sealing; unknown for an epoch that an earlier run began.
    let mut before = (!open.region.is_preexisting()).then(|| keeper.counter_totals());
    drop(open);
    loop {
        while let Some(former) = oldest_former(keeper) {
            let writers = await_writers(keeper, &former)?;
            let mut waterfall = Value::Null;
            if !former.found {
                let mut totals = keeper.counter_totals();
                waterfall = before.map_or(Value::Null, |before| totals.increase_since(&before));
                before = Some(totals);
            }
            archive_epoch(keeper, &former, writers == Writers::Moved, waterfall)?;
        }
        let mut again = AGAIN;
        let successor = successor(keeper, &mut again)?;
        keeper.wait_until_over(&due)?;
        let begins = Began::now();
        match open_next(keeper, successor, (due.closing_moment(begins), begins), false) {
            Ok(()) => {
                add_to_counter(&keeper.of.counters.put_off, due.missed_ends());
                due = Due::new(begins, keeper.of.every);
            }
            Err(error) => {
                keeper.wait_after_failure("cannot start the next epoch; retrying", &*error, &mut again)?
            }
        }
    }
}

/// The oldest epoch that has not been written.
fn oldest_former(keeper: &EpochArchiver) -> Option<FormerEpoch> {
    keeper.of.in_memory().former.first().cloned()
}

/// Makes the memory of the next epoch.
fn successor(keeper: &EpochArchiver, again: &mut Backoff) -> Result<Successor, Stopped> {
    loop {
        match keeper.stores.successor(&keeper.of.name) {
            Ok(successor) => return Ok(successor),
            Err(error) => keeper.wait_after_failure(
                "no memory for the next epoch: this one continues",
                &error,
                again,
            )?,
        }
    }
}

/// Gives the store the memory of the next epoch. `closed` and `begins` are when the former epoch ended and
/// this one begins; `found` means that the former one was over before this collector started.
fn open_next(
    keeper: &EpochArchiver,
    successor: Successor,
    (closed, begins): (u64, Began),
    found: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let of = &keeper.of;
    let ((store, opened), mut began) = {
        let in_memory = of.in_memory();
        let former = in_memory.former.iter().map(|former| (former.store.generation, former.opened));
        let (store, began) = &in_memory.open;
        ((Arc::clone(store), began.moment), former.collect::<BTreeMap<_, _>>())
    };
    let next = successor.generation();
    let file = match keeper.stores.memory_backing() {
        MemoryBacking::Anonymous => None,
        MemoryBacking::Directory(dir) => {
            // Before the files are exchanged, so that a start that finds them knows both moments.
            began.extend([(store.generation, opened), (next, begins.moment)]);
            journal::write_journal(dir, &of.name, &began)?;
            Some(former_path(dir, &of.name, store.generation))
        }
    };
    keeper.traffic.begin_generation(&of.name, next, begins.moment);
    // Queries during the exchange of files do not wait for the disk, and see the epoch that was open until then.
    let open = keeper.stores.replace_memory(successor, file.is_some())?;
    let mut in_memory = of.in_memory();
    in_memory.open = (open, begins);
    in_memory.former.push(FormerEpoch { store, opened, closed, since: Instant::now(), file, found });
    Ok(())
}

/// Waits until nobody can write to the memory any more. Returns whether all writers have moved.
fn await_writers(keeper: &EpochArchiver, former: &FormerEpoch) -> Result<Writers, Stopped> {
    // After a restart no translator has a key to an epoch that was over before; whether all had moved is unknown.
    let writers = || match former.found {
        true => Writers::Gone,
        false => keeper.traffic.store_writers(&keeper.of.name, former.store.generation),
    };
    let (mut now, over, mut is_late) = (writers(), Instant::now(), false);
    while now == Writers::There {
        if !is_late && over.elapsed() >= LATE {
            is_late = true;
            tracing::warn!(
                store = %keeper.of.name,
                "an epoch is over, but a translator has not moved to the next one: it stays in memory, and the next one \
                 continues (`dta-collector sessions list` names the translators; a switch needs `dta-translator watch`)"
            );
        }
        keeper.wait_or_stop(LOOK)?;
        now = writers();
    }
    add_to_counter(&keeper.of.counters.sealed, 1);
    Ok(now)
}

/// Writes an epoch to the history and frees its memory.
fn archive_epoch(
    keeper: &EpochArchiver,
    former: &FormerEpoch,
    confirmed: bool,
    waterfall: Value,
) -> Result<(), Stopped> {
    let moving = if former.found { 0 } else { former.since.elapsed().as_millis() as u64 };
    let epoch = HistoryEpoch {
        generation: former.store.generation,
        opened: former.opened,
        flipped_from: former.closed,
        flipped_to: former.closed + moving,
        confirmed,
        restarted: keeper.of.restart_within(former.opened, former.closed),
        waterfall,
        ..HistoryEpoch::default()
    };
    let (begun, mut again) = (Instant::now(), AGAIN);
    loop {
        // Writing takes much less time than the next epoch lasts.
        let pace = Pace::new(keeper.of.every / 4, &keeper.stop);
        match write_former(&keeper.of.history, former, &epoch, pace) {
            Ok(epoch) => {
                keeper.written_of(&former.store, &epoch);
                break;
            }
            Err(error) if begun.elapsed() < keeper.patience => {
                keeper.wait_after_failure(
                    "an epoch could not be written; it stays in memory",
                    &error,
                    &mut again,
                )?;
            }
            Err(error) => {
                add_to_counter(&keeper.of.counters.lost, 1);
                keeper.log_warning("an epoch could not be written and is lost", &error);
                break;
            }
        }
    }
    if let Some(file) = &former.file
        && let Err(error) = std::fs::remove_file(file)
    {
        tracing::warn!(%error, file = %file.display(), "memory of an epoch that was written could not be removed");
    }
    keeper.of.in_memory().former.remove(0);
    Ok(())
}

/// Writes an epoch whose memory is sealed. If an earlier run wrote it but did not get to free its memory, it
/// is left as it is. Returns the epoch as it is in the history.
pub(super) fn write_former(
    table: &EpochTable,
    former: &FormerEpoch,
    epoch: &HistoryEpoch,
    mut pace: Pace,
) -> Result<HistoryEpoch, WriteError> {
    // Generations start over when memory is lost, but a moment belongs to one epoch.
    let is_it = |kept: &HistoryEpoch| (kept.generation, kept.opened) == (epoch.generation, epoch.opened);
    if let Some(kept) = table.kept_epochs()?.iter().find(|kept| is_it(&kept.epoch)) {
        return Ok(kept.epoch.clone());
    }
    write_epoch(table, epoch.clone(), |flush, _| {
        elements::read(&former.store, |first, bytes| {
            pace.rest_if_due();
            flush.write_slots(first, bytes).map_err(WriteError::from)
        })
    })
}
