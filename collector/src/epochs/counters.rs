//! Epochs of counters, which are read at the end of each epoch and go on counting.

use std::convert::Infallible;

use dta_history::HistoryEpoch;
use serde_json::Value;

use super::due::{Began, Due};
use super::elements;
use super::keeper::{AGAIN, EpochArchiver, Stopped, add_to_counter};
use super::write::{WriteError, write_epoch};

pub(super) fn run(keeper: &EpochArchiver) -> Result<Infallible, Stopped> {
    let of = &keeper.of;
    let (store, began) = of.in_memory().open.clone();
    let mut due = Due::with_found(began, of.every, store.region.is_preexisting());
    let mut before = (!store.region.is_preexisting()).then(|| keeper.counter_totals());
    loop {
        let mut again = AGAIN;
        keeper.wait_until_over(&due)?;
        add_to_counter(&of.counters.put_off, due.missed_ends());
        let begins = loop {
            let mut totals = keeper.counter_totals();
            let epoch = HistoryEpoch {
                generation: store.generation,
                opened: of.in_memory().open.1.moment,
                confirmed: true,
                waterfall: before.as_ref().map_or(Value::Null, |before| totals.increase_since(before)),
                ..HistoryEpoch::default()
            };
            let begins = Began::now();
            let closed = due.closing_moment(begins);
            let written = write_epoch(&of.history, epoch, |flush, epoch| {
                epoch.flipped_from = closed;
                epoch.restarted = of.restart_within(epoch.opened, closed);
                elements::read(&store, |first, bytes| {
                    flush.write_slots(first, bytes).map_err(WriteError::from)
                })?;
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
                // Nothing is lost: later counts include it.
                Err(error) => keeper.wait_after_failure(
                    "cannot write counters; their epoch continues",
                    &error,
                    &mut again,
                )?,
            }
        };
        due = Due::new(begins, of.every);
    }
}
