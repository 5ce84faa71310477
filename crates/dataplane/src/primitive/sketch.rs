//! Sketch-merge: columns merged over reporters, kept while their epoch is in the ring.
//!
//! A column is sent when all expected reporters are in it, or as it is when flushed. A reporter that comes
//! later is merged too, and the column is sent again.

use dta_proto::buckets::column_hash;
use dta_proto::layout::sketch_merge::{self as layout, MAX_ROWS, SketchColumn};
use dta_proto::store::Merge;

use crate::age::AgeList;
use crate::context::Context;
use crate::counters::{Discard, EngineCounters, Reason};
use crate::egress::StoreWrite;
use crate::epochs::EpochWindow;
use crate::losses::Origin;
use crate::primitive::Gathers;
use crate::regions::Regions;
use crate::requester::OperationEffect;
use crate::window::HALF;
use dta_proto::program::Primitive;

/// Most reporters of one sketch.
const REPORTERS: usize = 32;

pub(crate) struct SketchState {
    columns: u32,
    rows: u8,
    epochs: u32,
    merge: Merge,
    expected: u8,
    window: EpochWindow,
    /// Whether the rules of a switch apply.
    reference: bool,
    /// Per ring place and column: epoch, the merged reporters and their number (0 = none yet), unsent
    /// reports, and the cells.
    epoch: Vec<u32>,
    count: Vec<u16>,
    merged: Vec<u32>,
    unsent: Vec<u8>,
    cells: Vec<u32>,
    ages: AgeList,
    bits: [Option<u16>; REPORTERS],
    uses: [Use; REPORTERS],
    reserved: [Option<u16>; REPORTERS],
    /// Origins of unsent reports, `expected` per column; empty unless origins are kept.
    names: Vec<Origin>,
}

/// What a bit's current reporter used it for.
#[derive(Clone, Copy, Default)]
struct Use {
    /// The newest epoch, and the position of the last column.
    epoch: u32,
    at: usize,
    columns: u64,
}

impl SketchState {
    pub(crate) fn new(
        columns: u32,
        rows: u8,
        epochs: u32,
        merge: Merge,
        expected: u8,
        keep_names: bool,
    ) -> Self {
        let all = columns as usize * epochs as usize;
        SketchState {
            columns,
            rows,
            epochs,
            merge,
            expected,
            window: EpochWindow::new(epochs),
            reference: false,
            epoch: vec![0; all],
            count: vec![0; all],
            merged: vec![0; all],
            unsent: vec![0; all],
            cells: vec![0; all * usize::from(rows)],
            ages: AgeList::new(all),
            bits: [None; REPORTERS],
            uses: [Use::default(); REPORTERS],
            reserved: [None; REPORTERS],
            names: if keep_names { vec![Origin::default(); all * usize::from(expected)] } else { Vec::new() },
        }
    }

    /// Assigns a bit to a reporter permanently, or revokes it.
    pub(crate) fn reserve_bit(&mut self, bit: u8, reporter: Option<u16>) {
        let bit = usize::from(bit);
        if bit < REPORTERS {
            if reporter.is_some() {
                // It may have had another bit.
                self.reserved.iter_mut().filter(|r| **r == reporter).for_each(|r| *r = None);
            }
            self.reserved[bit] = reporter;
            if self.bits[bit].is_none() {
                self.bits[bit] = reporter;
            }
        }
    }

    /// The bit of a reporter. A new reporter gets a free bit, or that of a reporter whose columns have all
    /// left the ring or that was heard only once, so that forged reporters cannot keep the bits.
    fn bit_of_reporter(&mut self, reporter: u16) -> Option<usize> {
        if let Some(bit) = self.bits.iter().position(|b| *b == Some(reporter)) {
            return Some(bit);
        }
        let newest = self.window.newest_epoch();
        let left = |bit: &usize| newest.saturating_sub(self.uses[*bit].epoch) >= self.epochs;
        let open = || (0..REPORTERS).filter(|bit| self.reserved[*bit].is_none());
        let bit =
            open().find(|bit| self.bits[*bit].is_none()).or_else(|| open().find(left)).or_else(|| {
                open().filter(|bit| self.uses[*bit].columns == 1).min_by_key(|bit| self.uses[*bit].epoch)
            })?;
        let Use { epoch, at, columns } = self.uses[bit];
        if columns == 1 && self.epoch[at] == epoch {
            // Its data stays in the column; its bit is cleared.
            self.merged[at] &= !(1 << bit);
        }
        self.bits[bit] = Some(reporter);
        self.uses[bit] = Use::default();
        Some(bit)
    }

    /// The bit of a reporter by the rules of a switch: the configured one. Each place has its own epoch, and
    /// one report advances it.
    fn bit_in_reference(&self, epoch: u32, at: usize, reporter: u16) -> Result<usize, Reason> {
        let bit = self.reserved.iter().position(|r| *r == Some(reporter)).ok_or(Reason::SketchReporters)?;
        let is_later = epoch.wrapping_sub(self.epoch[at]) < HALF;
        if self.count[at] != 0 && !is_later { Err(Reason::EpochOld) } else { Ok(bit) }
    }

    /// Sets whether the rules of a switch apply: `docs/reference-mode.md`. Nothing may be held.
    pub(crate) fn set_reference(&mut self, reference: bool) {
        self.reference = reference;
        self.forget_columns();
    }

    /// Forgets all columns and all bits not assigned by configuration.
    fn forget_columns(&mut self) {
        self.count.fill(0);
        self.merged.fill(0);
        self.unsent.fill(0);
        self.ages = AgeList::new(self.merged.len());
        self.window = EpochWindow::new(self.epochs);
        self.bits = self.reserved;
        self.uses = [Use::default(); REPORTERS];
    }

    /// Merges a reporter's column into the one of its epoch.
    #[inline]
    pub(crate) fn ingest_column(
        &mut self,
        epoch: u32,
        column: u32,
        cells: &[u8],
        origin: Origin,
        context: &mut Context<'_>,
    ) -> Result<(), Reason> {
        if column >= self.columns {
            return Err(Reason::Column);
        }
        if cells.len() != 4 * usize::from(self.rows) {
            return Err(Reason::ValueLength);
        }
        context.place_of_hash(column_hash(column))?;
        let at = (epoch & (self.epochs - 1)) as usize * self.columns as usize + column as usize;
        let bit = match self.reference {
            true => self.bit_in_reference(epoch, at, origin.reporter)?,
            false => {
                self.window.admit_epoch(epoch, origin.reporter)?;
                if self.count[at] != 0 && self.epoch[at] > epoch && self.window.is_accepted(self.epoch[at]) {
                    // A later epoch has taken this column's place, though perhaps not yet that of all others.
                    return Err(Reason::EpochOld);
                }
                self.bit_of_reporter(origin.reporter).ok_or(Reason::SketchReporters)?
            }
        };
        let rows = usize::from(self.rows);
        if self.count[at] != 0 && self.epoch[at] != epoch {
            // The ring has moved on: the rest of this place's former epoch becomes invisible.
            let counters = context.egress.counters.primitive_counters_mut(Primitive::SketchMerge);
            counters.held -= u64::from(self.unsent[at]);
            counters.superseded += u64::from(self.unsent[at]);
            self.ages.remove(at);
            self.count[at] = 0;
            self.merged[at] = 0;
            self.unsent[at] = 0;
        }
        if self.merged[at] >> bit & 1 == 1 {
            return Err(Reason::DuplicateColumn);
        }
        let mine = &mut self.cells[at * rows..(at + 1) * rows];
        for (cell, bytes) in mine.iter_mut().zip(cells.as_chunks::<4>().0) {
            let theirs = u32::from_be_bytes(*bytes);
            *cell = if self.count[at] == 0 { theirs } else { layout::merge_cells(self.merge, *cell, theirs) };
        }
        self.epoch[at] = epoch;
        self.merged[at] |= 1 << bit;
        self.count[at] = self.count[at].saturating_add(1);
        let used = &mut self.uses[bit];
        *used = Use { epoch: used.epoch.max(epoch), at, columns: used.columns + 1 };
        if let Some(name) = self.names.get_mut(at * usize::from(self.expected) + usize::from(self.unsent[at]))
        {
            *name = origin;
        }
        self.unsent[at] += 1;
        context.egress.counters.primitive_counters_mut(Primitive::SketchMerge).held += 1;
        if self.count[at] >= u16::from(self.expected) {
            self.send(at, context);
        } else if !self.ages.contains(at) {
            self.ages.push(at, context.now);
        }
        Ok(())
    }

    fn send(&mut self, at: usize, context: &mut Context<'_>) {
        let rows = usize::from(self.rows);
        let mut cells = [0; MAX_ROWS];
        cells[..rows].copy_from_slice(&self.cells[at * rows..(at + 1) * rows]);
        let column = SketchColumn {
            epoch: self.epoch[at],
            merged: self.count[at],
            expected: u16::from(self.expected),
            cells,
        };
        let mut bytes = [0; layout::column_len(MAX_ROWS as u8) as usize];
        let bytes = &mut bytes[..layout::column_len(self.rows) as usize];
        layout::encode_column(bytes, self.rows, &column);
        let reports = std::mem::take(&mut self.unsent[at]);
        self.ages.remove(at);
        context.egress.counters.primitive_counters_mut(Primitive::SketchMerge).held -= u64::from(reports);
        let index = at as u32 & (self.columns - 1);
        let offset = layout::column_offset(self.epoch[at], index, self.epochs, self.columns, self.rows);
        let first = at * usize::from(self.expected);
        let names = self.names.get(first..first + usize::from(reports)).unwrap_or(&[]);
        let write = StoreWrite {
            action: OperationEffect::WRITE,
            copies: 1,
            payload: bytes,
            primitive: Primitive::SketchMerge,
            reports: u16::from(reports),
        };
        let place = context.regions.place_of_hash(column_hash(index));
        context.write_copies(place, &write, |_| offset, names.iter().copied());
    }
}

impl Gathers for SketchState {
    /// Sends columns whose first unsent report arrived at or before `born_by`.
    fn flush_started_by(&mut self, born_by: u64, context: &mut Context<'_>) {
        while let Some((at, born)) = self.ages.oldest_element()
            && born <= born_by
        {
            self.send(at, context);
        }
    }

    fn flush_all(&mut self, context: &mut Context<'_>) {
        for at in 0..self.unsent.len() {
            if self.unsent[at] != 0 {
                self.send(at, context);
            }
        }
    }

    /// Start time of the oldest unsent column.
    fn oldest_start_time(&self) -> Option<u64> {
        self.ages.oldest_element().map(|(_, born)| born)
    }

    fn discard_region(&mut self, regions: &Regions, place: usize, counters: &mut EngineCounters) {
        let mut held = 0;
        for column in 0..self.columns {
            if regions.place_of_hash(column_hash(column)) != Some(place) {
                continue;
            }
            for at in (column as usize..self.count.len()).step_by(self.columns as usize) {
                held += u64::from(self.unsent[at]);
                (self.count[at], self.merged[at], self.unsent[at]) = (0, 0, 0);
                self.ages.remove(at);
            }
        }
        counters.primitive_counters_mut(Primitive::SketchMerge).held -= held;
        counters.count_discarded(Discard::StoreRemoved, held);
        if regions.region_count() == 1 {
            self.forget_columns();
        }
    }
}
