//! Epochs of sketches, which reporters number. They are written once they are closed.
//!
//! An epoch is closed when all of its columns have been merged from all reporters, or when the next new epoch
//! would take its place in the ring. What is merged later is not in the history.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use dta_history::{EpochFlush, HistoryEpoch};
use dta_memory::reader::sketch_merge;
use dta_memory::region::AccessError;
use dta_memory::store::Store;
use dta_proto::layout::sketch_merge::{ColumnContents, column_len, decode_column, encode_column};
use dta_proto::store::StoreKind;
use serde_json::Value;

use super::due::Began;
use super::keeper::{AGAIN, EpochArchiver, Stopped, add_to_counter};
use super::waterfall::Totals;
use super::write::{WriteError, write_epoch};
use super::{elements, now};

pub(super) fn run(keeper: &EpochArchiver) -> Result<Infallible, Stopped> {
    let (store, begun) = keeper.of.in_memory().open.clone();
    let StoreKind::SketchMerge { columns, rows, epochs, .. } = store.spec.kind else {
        unreachable!("a store of sketches")
    };
    let before = (!store.region.is_preexisting()).then(|| keeper.counter_totals());
    let (written, open) = (None, BTreeMap::new());
    let mut ring =
        SketchRing { store: &store, columns, rows, epochs, written, open, looked: begun.moment, before };
    let mut again = AGAIN;
    loop {
        match ring.write_closed_epochs(keeper) {
            Ok(()) => {
                again = AGAIN;
                keeper.wait_or_stop(keeper.of.every)?;
            }
            Err(error) => keeper.wait_after_failure("a sketch could not be written", &error, &mut again)?,
        }
    }
}

/// A store's ring of epochs, and what is known about it.
struct SketchRing<'a> {
    store: &'a Store,
    columns: u32,
    rows: u8,
    epochs: u32,
    /// Epochs in the ring that are already in the history; `None` before the first look.
    written: Option<BTreeSet<u32>>,
    /// The other epochs, and the earliest moment at which each can have begun.
    open: BTreeMap<u32, u64>,
    /// When the ring was last looked at.
    looked: u64,
    /// The counters when the last epoch was written.
    before: Option<Totals>,
}

/// Columns of an epoch: those in use, and those merged from all reporters.
#[derive(Clone, Copy, Debug, Default)]
struct ColumnUsage {
    used: u32,
    complete: u32,
}

impl SketchRing<'_> {
    fn write_closed_epochs(&mut self, keeper: &EpochArchiver) -> Result<(), WriteError> {
        let (history, present) = (&keeper.of.history, now());
        let seen = self.columns_by_epoch()?;
        if self.written.is_none() {
            let kept = history.kept_epochs()?;
            self.written = Some(kept.iter().filter_map(|kept| kept.epoch.sketch).collect());
        }
        let written = self.written.get_or_insert_default();
        // Reporters that start again reuse the same numbers.
        written.retain(|epoch| seen.contains_key(epoch));
        let open = self.open.len();
        self.open.retain(|epoch, _| seen.contains_key(epoch));
        let displaced = open - self.open.len();
        add_to_counter(&keeper.of.counters.lost, displaced as u64);
        for epoch in seen.keys().filter(|epoch| !written.contains(epoch)) {
            self.open.entry(*epoch).or_insert(self.looked);
        }
        self.looked = present;
        let newest = seen.keys().last().copied().unwrap_or_default();
        let closed =
            |epoch: u32, of: ColumnUsage| of.complete == self.columns || newest - epoch >= self.epochs - 1;
        for (epoch, of) in seen {
            let Some(opened) = self.open.get(&epoch).copied().filter(|_| closed(epoch, of)) else { continue };
            let mut totals = keeper.counter_totals();
            let kept = HistoryEpoch {
                generation: self.store.generation,
                opened,
                confirmed: of.complete == of.used,
                waterfall: self.before.as_ref().map_or(Value::Null, |before| totals.increase_since(before)),
                sketch: Some(epoch),
                ..HistoryEpoch::default()
            };
            write_epoch(history, kept, |flush, kept| self.write_columns(epoch, flush, kept))?;
            self.before = Some(totals);
            self.open.remove(&epoch);
            self.written.get_or_insert_default().insert(epoch);
            keeper.count_written();
        }
        let oldest = self.open.values().min().copied().unwrap_or(present);
        keeper.of.in_memory().open.1 = Began::from_moment(oldest);
        Ok(())
    }

    fn columns_by_epoch(&self) -> Result<BTreeMap<u32, ColumnUsage>, AccessError> {
        let mut seen: BTreeMap<u32, ColumnUsage> = BTreeMap::new();
        let len = column_len(self.rows) as usize;
        elements::read(self.store, |_, bytes| {
            for column in bytes.chunks_exact(len).filter_map(|bytes| decode_column(bytes, self.rows)) {
                let held = column.contents_for(column.epoch);
                if held != ColumnContents::Unknown {
                    let of = seen.entry(column.epoch).or_default();
                    of.used += 1;
                    of.complete += u32::from(held == ColumnContents::Complete);
                }
            }
            Ok::<_, AccessError>(())
        })?;
        Ok(seen)
    }

    /// Writes the columns of an epoch into its file.
    fn write_columns(
        &self,
        epoch: u32,
        flush: &mut EpochFlush<'_>,
        kept: &mut HistoryEpoch,
    ) -> Result<(), WriteError> {
        let reader = sketch_merge::SketchMergeReader::new(self.store).expect("a store of sketches");
        let mut bytes = [0; 32];
        let bytes = &mut bytes[..column_len(self.rows) as usize];
        kept.flipped_from = now().max(kept.opened + 1);
        for column in 0..self.columns {
            let of = reader.read_column(epoch, column)?;
            if let Some(of) = of.filter(|of| of.contents_for(epoch) != ColumnContents::Unknown) {
                encode_column(bytes, self.rows, &of);
                flush.write_slots(column.into(), bytes)?;
            }
        }
        kept.flipped_to = now().max(kept.flipped_from);
        Ok(())
    }
}
