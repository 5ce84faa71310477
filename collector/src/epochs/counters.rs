//! Epochs of counters: they are read at the end of each, and go on counting.

use std::convert::Infallible;

use dta_history::Epoch;
use serde_json::Value;

use super::due::{Began, Due};
use super::elements;
use super::keeper::{AGAIN, Keeper, Stopped, count};
use super::write::{WriteError, write};

/// Until the collector stops.
pub(super) fn run(keeper: &Keeper) -> Result<Infallible, Stopped> {
    let of = &keeper.of;
    let (store, began) = of.in_memory().open.clone();
    let mut due = Due::of(began, of.every, store.region.found());
    let mut before = (!store.region.found()).then(|| keeper.totals());
    loop {
        let mut again = AGAIN;
        keeper.until(&due)?;
        count(&of.counters.put_off, due.put_off());
        let begins = loop {
            let totals = keeper.totals();
            let epoch = Epoch {
                generation: store.generation,
                opened: of.in_memory().open.1.moment,
                confirmed: true,
                waterfall: before.as_ref().map_or(Value::Null, |before| totals.since(before)),
                ..Epoch::default()
            };
            let begins = Began::now();
            let closed = due.closed(begins);
            let written = write(&of.history, epoch, |flush, epoch| {
                epoch.flipped_from = closed;
                elements::read(&store, |first, bytes| flush.put(first, bytes).map_err(WriteError::from))?;
                epoch.flipped_to = closed + begins.at.elapsed().as_millis() as u64;
                Ok(())
            });
            match written {
                Ok(epoch) => {
                    of.in_memory().open.1 = begins;
                    keeper.written_of(&store, &epoch);
                    before = Some(totals);
                    break begins;
                }
                // Nothing is lost: what is counted later has it, too.
                Err(error) => {
                    keeper.failed("counters could not be written; their epoch goes on", &error, &mut again)?
                }
            }
        };
        due = Due::new(begins, of.every);
    }
}
