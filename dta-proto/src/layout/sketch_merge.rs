//! Sketch-merge: a ring of epochs, each a table of columns merged over reporters.
//!
//! ```text
//!  0            4        6          8                                16 or 32
//! | epoch u32  | merged | expected | cells[rows] u32 …   | zeros … |
//! ```
//!
//! All big-endian; a column is 16 bytes with 1 or 2 rows, 32 bytes with 3 or 4. `merged` of
//! `expected` reporters are in it; 0 means that the column was never written. Row n's cell for a
//! key lies in column slot_n(key). After Sketch-Merge in "Direct Telemetry Access" (SIGCOMM 2023);
//! the estimate is the count-min one of Cormode and Muthukrishnan (2005).

use super::{ElementField, hash, numbered_fields, read_be_u16, read_be_u32};
use crate::key::Key;
use crate::store::Merge;

/// Length of a column before its cells.
pub const HEADER_LEN: usize = 8;

/// Most rows.
pub const MAX_ROWS: usize = 4;

/// Length of a column of `rows` rows (1 to 4).
#[inline]
pub const fn column_len(rows: u8) -> u64 {
    if rows <= 2 { 16 } else { 32 }
}

pub(super) fn column_fields(rows: u8) -> Vec<(String, ElementField)> {
    let fixed = [
        ("sketch_epoch", ElementField::Be32),
        ("merged", ElementField::Be16),
        ("expected", ElementField::Be16),
    ];
    fixed
        .map(|(name, field)| (name.to_owned(), field))
        .into_iter()
        .chain(numbered_fields("cell", rows))
        .collect()
}

/// Byte offset of `column` of `epoch`, in a store that keeps `epochs` epochs (a power of two) of
/// `columns` columns of `rows` rows. Epoch e lies at ring place e mod `epochs`.
#[inline]
pub fn column_offset(epoch: u32, column: u32, epochs: u32, columns: u32, rows: u8) -> u64 {
    (u64::from(epoch & (epochs - 1)) * u64::from(columns) + u64::from(column)) * column_len(rows)
}

/// The columns of `key`'s cells in rows 0 to `rows - 1`; `columns` is a power of two.
#[inline]
pub fn columns_of(key: &Key, rows: u8, columns: u32) -> hash::Slots {
    hash::key_slots(key, rows, u64::from(columns))
}

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchColumn {
    /// Epoch of the cells.
    pub epoch: u32,
    /// Reporters merged into it.
    pub merged: u16,
    /// Reporters that make it complete.
    pub expected: u16,
    /// Cells by row; 0 beyond the store's rows.
    pub cells: [u32; MAX_ROWS],
}

/// Contents of a column for the requested epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnContents {
    /// Never written, or a column of another epoch, earlier or later.
    Unknown,
    /// Merged from some of the reporters.
    Partial,
    /// Merged from all.
    Complete,
}

impl SketchColumn {
    /// The column's contents for `epoch`.
    #[inline]
    pub fn contents_for(&self, epoch: u32) -> ColumnContents {
        if self.merged == 0 || self.epoch != epoch {
            ColumnContents::Unknown
        } else if self.merged < self.expected {
            ColumnContents::Partial
        } else {
            ColumnContents::Complete
        }
    }
}

/// Writes a column of `bytes.len()` bytes (16 or 32), zeros after the first `rows` cells.
///
/// # Panics
/// If `bytes` has no room for `rows` cells, or `rows` is above 4.
#[inline]
pub fn encode_column(bytes: &mut [u8], rows: u8, column: &SketchColumn) {
    bytes[..4].copy_from_slice(&column.epoch.to_be_bytes());
    bytes[4..6].copy_from_slice(&column.merged.to_be_bytes());
    bytes[6..8].copy_from_slice(&column.expected.to_be_bytes());
    let (cells, rest) = bytes[HEADER_LEN..].split_at_mut(4 * usize::from(rows));
    for (bytes, cell) in cells.chunks_exact_mut(4).zip(&column.cells[..usize::from(rows)]) {
        bytes.copy_from_slice(&cell.to_be_bytes());
    }
    rest.fill(0);
}

/// Reads a column of `rows` rows; `None` if `rows` is not 1 to 4 or `bytes` is not a column of that many.
#[inline]
pub fn decode_column(bytes: &[u8], rows: u8) -> Option<SketchColumn> {
    if !(1..=MAX_ROWS as u8).contains(&rows) || bytes.len() as u64 != column_len(rows) {
        return None;
    }
    let mut cells = [0; MAX_ROWS];
    for (cell, bytes) in cells.iter_mut().zip(bytes[HEADER_LEN..].chunks_exact(4)).take(usize::from(rows)) {
        *cell = read_be_u32(bytes, 0);
    }
    Some(SketchColumn {
        epoch: read_be_u32(bytes, 0),
        merged: read_be_u16(bytes, 4),
        expected: read_be_u16(bytes, 6),
        cells,
    })
}

/// Merges two reporters' cells: saturating sum, maximum, or bitwise or.
#[inline]
pub fn merge_cells(how: Merge, a: u32, b: u32) -> u32 {
    match how {
        Merge::Sum => a.saturating_add(b),
        Merge::Max => a.max(b),
        Merge::Or => a | b,
    }
}

/// A key's estimate from its cells, one per row: for sum and max the minimum, which is never below the truth;
/// for or the bits common to all rows. `None` without cells.
#[inline]
pub fn estimate_cells(how: Merge, cells: &[u32]) -> Option<u32> {
    match how {
        Merge::Sum | Merge::Max => cells.iter().copied().min(),
        Merge::Or => cells.iter().copied().reduce(|a, b| a & b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn merges() {
        assert_eq!(merge_cells(Merge::Sum, u32::MAX, 5), u32::MAX);
        assert_eq!(merge_cells(Merge::Sum, 7, 5), 12);
        assert_eq!(merge_cells(Merge::Max, 7, 5), 7);
        assert_eq!(merge_cells(Merge::Or, 6, 5), 7);
        assert_eq!(estimate_cells(Merge::Sum, &[9, 4, 6]), Some(4));
        assert_eq!(estimate_cells(Merge::Max, &[9, 4, 6]), Some(4));
        assert_eq!(estimate_cells(Merge::Or, &[0b110, 0b011]), Some(0b010));
        assert_eq!(estimate_cells(Merge::Sum, &[]), None);
    }

    #[test]
    fn held() {
        let column = SketchColumn { epoch: 9, merged: 2, expected: 3, cells: [0; 4] };
        assert_eq!(column.contents_for(9), ColumnContents::Partial);
        assert_eq!(column.contents_for(8), ColumnContents::Unknown);
        assert_eq!(column.contents_for(10), ColumnContents::Unknown);
        assert_eq!(SketchColumn { merged: 3, ..column }.contents_for(9), ColumnContents::Complete);
        assert_eq!(
            SketchColumn { merged: 0, epoch: 0, ..column }.contents_for(0),
            ColumnContents::Unknown,
            "an empty region is no epoch 0"
        );
    }

    #[test]
    fn epochs_form_a_ring() {
        assert_eq!(column_offset(0, 3, 4, 1024, 2), 48);
        assert_eq!(column_offset(5, 3, 4, 1024, 2), (1024 + 3) * 16);
        assert_eq!(column_offset(u32::MAX, 0, 4, 1024, 4), 3 * 1024 * 32);
        assert_eq!(column_offset(u32::MAX, (1 << 31) - 1, 1 << 16, 1 << 31, 4), (1u64 << (16 + 31 + 5)) - 32);
    }

    proptest! {
        #[test]
        fn a_column_comes_back(epoch: u32, merged: u16, expected: u16, rows in 1u8..=4, cells: [u32; 4]) {
            let mut column = SketchColumn { epoch, merged, expected, cells };
            let mut bytes = vec![0xaa; column_len(rows) as usize];
            encode_column(&mut bytes, rows, &column);
            column.cells[usize::from(rows)..].fill(0);
            prop_assert_eq!(decode_column(&bytes, rows), Some(column));
            prop_assert!(bytes[HEADER_LEN + 4 * usize::from(rows)..].iter().all(|b| *b == 0));
        }

        #[test]
        fn any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40), rows: u8) {
            let _ = decode_column(&bytes, rows);
        }

        #[test]
        fn merging_is_in_any_order(a: u32, b: u32, c: u32) {
            for how in [Merge::Sum, Merge::Max, Merge::Or] {
                prop_assert_eq!(merge_cells(how, a, b), merge_cells(how, b, a));
                prop_assert_eq!(merge_cells(how, merge_cells(how, a, b), c), merge_cells(how, a, merge_cells(how, b, c)));
            }
        }
    }
}
