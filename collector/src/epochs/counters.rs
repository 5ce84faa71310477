//! Epochs of counters: they are read at the end of each, and go on counting.

use std::convert::Infallible;

use dta_history::Epoch;
use serde_json::Value;

use super::due::Due;
use super::keeper::{Again, Keeper, Stopped};
use super::write::{WriteError, write};
use super::{elements, now};

/// Until the collector stops.
pub(super) fn run(keeper: &Keeper) -> Result<Infallible, Stopped> {
    let of = &keeper.of;
    let (store, opened) = of.in_memory().open.clone();
    let mut due = Due::new(opened, of.every);
    let mut before = (!store.region.found()).then(|| keeper.totals());
    loop {
        let mut again = Again::default();
        keeper.until(&due)?;
        let epoch = loop {
            let totals = keeper.totals();
            let epoch = Epoch {
                generation: store.generation,
                opened: of.in_memory().open.1,
                confirmed: true,
                waterfall: before.as_ref().map_or(Value::Null, |before| totals.since(before)),
                ..Epoch::default()
            };
            let written = write(&of.history, epoch, |flush, epoch| {
                epoch.flipped_from = now().max(epoch.opened + 1);
                elements::read(&store, |first, bytes| flush.put(first, bytes).map_err(WriteError::from))?;
                epoch.flipped_to = now().max(epoch.flipped_from);
                Ok(())
            });
            match written {
                Ok(epoch) => {
                    before = Some(totals);
                    break epoch;
                }
                // Nothing is lost: what is counted later has it, too.
                Err(error) => {
                    keeper.failed("counters could not be written; their epoch goes on", &error, &mut again)?
                }
            }
        };
        // A clock that was set back shows moments again.
        let begins = now().min(epoch.flipped_from);
        of.in_memory().open.1 = begins;
        keeper.written();
        due = Due::new(begins, of.every);
    }
}
