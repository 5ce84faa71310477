//! Sketch-merge: the estimate of a key from the merged columns of one epoch.

use dta_proto::key::Key;
use dta_proto::layout::sketch_merge::{
    ColumnContents, MAX_ROWS, SketchColumn, column_len, column_offset, columns_of, decode_column,
    estimate_cells,
};
use dta_proto::store::{Merge, StoreKind};

use crate::region::{AccessError, Region};
use crate::store::Store;

/// A column has no checksum, so it is read until two readings agree; one WRITE of 32 bytes is over long before.
const READINGS: usize = 16;

/// What an epoch says about one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SketchMergeReading {
    /// The estimate; `None` (unknown) if one of its columns belongs to another epoch or was never written.
    pub estimate: Option<u32>,
    /// Fewest reporters merged into any of the columns.
    pub merged: u16,
    pub expected: u16,
}

#[derive(Clone, Copy, Debug)]
pub struct SketchMergeReader<'a> {
    region: &'a Region,
    columns: u32,
    rows: u8,
    epochs: u32,
    merge: Merge,
    expected: u8,
}

impl<'a> SketchMergeReader<'a> {
    /// The reader of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::SketchMerge { columns, rows, epochs, merge, expected } => {
                Some(Self { region: &store.region, columns, rows, epochs, merge, expected })
            }
            _ => None,
        }
    }

    /// Queries many keys of one epoch.
    ///
    /// # Errors
    /// A column lies outside the region: the region does not match the store's description. Then no answer is valid.
    ///
    /// # Panics
    /// If `answers` does not have one entry per key.
    pub fn query_keys(
        &self,
        keys: &[Key],
        epoch: u32,
        answers: &mut [SketchMergeReading],
    ) -> Result<(), AccessError> {
        assert_eq!(keys.len(), answers.len(), "one answer per key");
        for (keys, answers) in keys.chunks(32).zip(answers.chunks_mut(32)) {
            let mut columns = [None; 32];
            for (key, columns) in keys.iter().zip(&mut columns) {
                let at = columns_of(key, self.rows, self.columns);
                at.iter().for_each(|column| self.region.prefetch_line(self.column_offset(epoch, *column)));
                *columns = Some(at);
            }
            for (answer, columns) in answers.iter_mut().zip(columns.iter().flatten()) {
                *answer = self.read_estimate(columns, epoch)?;
            }
        }
        Ok(())
    }

    /// The column `column` at the ring place of `epoch`, whatever epoch it holds; `None` if it kept changing while it
    /// was read.
    ///
    /// # Errors
    /// The column lies outside the region.
    pub fn read_column(&self, epoch: u32, column: u32) -> Result<Option<SketchColumn>, AccessError> {
        let len = column_len(self.rows) as usize;
        let at = self.column_offset(epoch, u64::from(column));
        let (mut before, mut bytes) = ([0u8; 32], [0u8; 32]);
        self.region.read(at, &mut before[..len])?;
        for _ in 0..READINGS {
            self.region.read(at, &mut bytes[..len])?;
            if bytes == before {
                return Ok(decode_column(&bytes[..len], self.rows));
            }
            before = bytes;
        }
        Ok(None)
    }

    fn column_offset(&self, epoch: u32, column: u64) -> u64 {
        column_offset(epoch, column as u32, self.epochs, self.columns, self.rows)
    }

    fn read_estimate(&self, columns: &[u64], epoch: u32) -> Result<SketchMergeReading, AccessError> {
        let mut cells = [0u32; MAX_ROWS];
        let mut merged = u16::MAX;
        let mut known = true;
        for (row, at) in columns.iter().enumerate() {
            match self.read_column(epoch, *at as u32)? {
                Some(column) if column.contents_for(epoch) != ColumnContents::Unknown => {
                    cells[row] = column.cells[row];
                    merged = merged.min(column.merged);
                }
                _ => (known, merged) = (false, 0),
            }
        }
        Ok(SketchMergeReading {
            estimate: if known { estimate_cells(self.merge, &cells[..columns.len()]) } else { None },
            merged,
            expected: self.expected.into(),
        })
    }
}
