//! Epochs of stores whose memory is replaced: opens the next one, waits until the former is sealed, and writes it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_history::{Epoch, Table};
use dta_proto::backoff::Backoff;
use serde_json::Value;

use super::due::{Began, Due};
use super::keeper::{AGAIN, Keeper, LOOK, Stopped, count};
use super::pace::Pace;
use super::write::{WriteError, write};
use super::{Former, elements, journal};
use crate::config::MemoryConfig;
use crate::session::Writers;
use crate::store::{Successor, former_path};

/// How long writers may take to move before the log says so. They renew their sessions every second.
const LATE: Duration = Duration::from_secs(30);

/// Ends an epoch that was over before this collector started, before anybody can write to its memory again. If that fails, it
/// ends as others do.
pub(super) fn catch_up(keeper: &Keeper) {
    let (open, began) = keeper.of.in_memory().open.clone();
    let due = Due::of(began, keeper.of.every, true);
    if !open.region.found() || !due.is_over() {
        return;
    }
    let begins = Began::now();
    let moments = (due.known_until(due.closed(begins)), begins);
    let next = keeper.stores.successor(&keeper.of.name).map_err(Into::into);
    if let Err(error) = next.and_then(|successor| open_next(keeper, successor, moments, true)) {
        keeper.warn("an epoch that is over goes on for now", &*error);
    }
}

/// Until the collector stops.
pub(super) fn run(keeper: &Keeper) -> Result<Infallible, Stopped> {
    let (open, began) = keeper.of.in_memory().open.clone();
    let mut due = Due::of(began, keeper.of.every, open.region.found());
    // What counters said at the last sealing. An epoch that an earlier life began was not seen to begin.
    let mut before = (!open.region.found()).then(|| keeper.totals());
    drop(open);
    loop {
        while let Some(former) = oldest(keeper) {
            let writers = seal(keeper, &former)?;
            let mut waterfall = Value::Null;
            if !former.found {
                let totals = keeper.totals();
                waterfall = before.map_or(Value::Null, |before| totals.since(&before));
                before = Some(totals);
            }
            keep(keeper, &former, writers == Writers::Moved, waterfall)?;
        }
        let mut again = AGAIN;
        let successor = successor(keeper, &mut again)?;
        keeper.until(&due)?;
        let begins = Began::now();
        match open_next(keeper, successor, (due.closed(begins), begins), false) {
            Ok(()) => {
                count(&keeper.of.counters.put_off, due.put_off());
                due = Due::new(begins, keeper.of.every);
            }
            Err(error) => keeper.failed("the next epoch is put off", &*error, &mut again)?,
        }
    }
}

/// The oldest epoch that is not written.
fn oldest(keeper: &Keeper) -> Option<Former> {
    keeper.of.in_memory().former.first().cloned()
}

/// Makes the memory of the next epoch.
fn successor(keeper: &Keeper, again: &mut Backoff) -> Result<Successor, Stopped> {
    loop {
        match keeper.stores.successor(&keeper.of.name) {
            Ok(successor) => return Ok(successor),
            Err(error) => keeper.failed("no memory for the next epoch: this one goes on", &error, again)?,
        }
    }
}

/// Gives the store the memory of the next epoch. `closed` and `begins` are when the one before ended and this one begins;
/// `found`: that one was over before this collector started.
fn open_next(
    keeper: &Keeper,
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
    let file = match keeper.stores.memory() {
        MemoryConfig::Anonymous => None,
        MemoryConfig::Directory(dir) => {
            // Before the files change places: a start that finds them knows both moments.
            began.extend([(store.generation, opened), (next, begins.moment)]);
            journal::write(dir, &of.name, &began)?;
            Some(former_path(dir, &of.name, store.generation))
        }
    };
    keeper.traffic.begins(&of.name, next, begins.moment);
    // Who asks while files change places does not wait for the disk, and finds what was open until then.
    let open = keeper.stores.replace(successor, file.is_some())?;
    let mut in_memory = of.in_memory();
    in_memory.open = (open, begins);
    in_memory.former.push(Former { store, opened, closed, since: Instant::now(), file, found });
    Ok(())
}

/// Waits until nobody can write to the memory any more. Says whether all who did have moved.
fn seal(keeper: &Keeper, former: &Former) -> Result<Writers, Stopped> {
    // After a restart no translator has a key to what was over before; whether all had moved is not known.
    let writers = || match former.found {
        true => Writers::Gone,
        false => keeper.traffic.writers(&keeper.of.name, former.store.generation),
    };
    let (mut now, over, mut is_late) = (writers(), Instant::now(), false);
    while now == Writers::There {
        if !is_late && over.elapsed() >= LATE {
            is_late = true;
            tracing::warn!(
                store = %keeper.of.name,
                "an epoch is over, but a translator has not moved to the next one: it stays in memory, and the next one goes \
                 on (`dta-collector sessions list` names the translators; a switch needs `dta-translator watch`)"
            );
        }
        keeper.wait(LOOK)?;
        now = writers();
    }
    count(&keeper.of.counters.sealed, 1);
    Ok(now)
}

/// Writes an epoch to the history and gives its memory back.
fn keep(keeper: &Keeper, former: &Former, confirmed: bool, waterfall: Value) -> Result<(), Stopped> {
    let moving = if former.found { 0 } else { former.since.elapsed().as_millis() as u64 };
    let epoch = Epoch {
        generation: former.store.generation,
        opened: former.opened,
        flipped_from: former.closed,
        flipped_to: former.closed + moving,
        confirmed,
        waterfall,
        ..Epoch::default()
    };
    let (begun, mut again) = (Instant::now(), AGAIN);
    loop {
        // It is written well before the next one is over.
        let pace = Pace::new(keeper.of.every / 4, &keeper.stop);
        match write_former(&keeper.of.history, former, &epoch, pace) {
            Ok(epoch) => {
                keeper.written_of(&former.store, &epoch);
                break;
            }
            Err(error) if begun.elapsed() < keeper.patience => {
                keeper.failed("an epoch could not be written; it stays in memory", &error, &mut again)?;
            }
            Err(error) => {
                count(&keeper.of.counters.lost, 1);
                keeper.warn("an epoch could not be written and is lost", &error);
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

/// Writes an epoch whose memory is sealed. One that an earlier life wrote, and did not get to remove from memory, is
/// left as it is. Gives the epoch as it is in the history.
pub(super) fn write_former(
    table: &Table,
    former: &Former,
    epoch: &Epoch,
    mut pace: Pace,
) -> Result<Epoch, WriteError> {
    // Generations begin anew where memory was lost; a moment is that of one epoch.
    let is_it = |kept: &Epoch| (kept.generation, kept.opened) == (epoch.generation, epoch.opened);
    if let Some(kept) = table.epochs()?.iter().find(|kept| is_it(&kept.epoch)) {
        return Ok(kept.epoch.clone());
    }
    write(table, epoch.clone(), |flush, _| {
        elements::read(&former.store, |first, bytes| {
            pace.step();
            flush.put(first, bytes).map_err(WriteError::from)
        })
    })
}
