//! All rows of a file, in file order.

use parquet::column::reader::ColumnReader;
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::Int64Type;
use parquet::errors::Result;

use super::BATCH;
use super::read::{Cells, DataFile, next_rows};
use crate::HistoryError;
use crate::layout::{EPOCH, SLOT};

pub(crate) struct Scan<'a> {
    file: &'a DataFile,
    /// Row groups without rows of this epoch are skipped.
    of: Option<i64>,
    group: usize,
    /// Unread rows of the group.
    left: usize,
    readers: Option<Readers<'a>>,
    pub(crate) epochs: Vec<i64>,
    pub(crate) slots: Vec<i64>,
    pub(crate) elements: Vec<u8>,
}

struct Readers<'a> {
    epochs: ColumnReaderImpl<Int64Type>,
    slots: ColumnReaderImpl<Int64Type>,
    cells: Vec<Cells<'a>>,
}

/// Whether two files have the same rows in the same order, whatever their epochs.
pub(crate) fn have_same_rows(one: &DataFile, other: &DataFile) -> Result<bool, HistoryError> {
    let (mut one, mut other) = (Scan::new(one), Scan::new(other));
    loop {
        match (one.next()?, other.next()?) {
            (true, true) if one.slots == other.slots && one.elements == other.elements => {}
            (more, others) => return Ok(!more && !others),
        }
    }
}

impl<'a> Scan<'a> {
    pub(crate) fn new(file: &'a DataFile) -> Scan<'a> {
        let (epochs, slots, elements) = (Vec::new(), Vec::new(), Vec::new());
        Scan { file, of: None, group: 0, left: 0, readers: None, epochs, slots, elements }
    }

    /// Scans only the row groups that may have rows of this epoch; they may have rows of others, too.
    pub(crate) fn for_epoch(file: &'a DataFile, epoch: i64) -> Scan<'a> {
        Scan { of: Some(epoch), ..Scan::new(file) }
    }

    /// Reads the next batch into `epochs`, `slots` and `elements`; `false` when there is none.
    pub(crate) fn next(&mut self) -> Result<bool, HistoryError> {
        self.read().map_err(HistoryError::parquet_error(self.file.file_path()))
    }

    fn read(&mut self) -> Result<bool> {
        while self.left == 0 {
            if self.group == self.file.row_group_count() {
                return Ok(false);
            }
            if self.of.is_some_and(|epoch| !self.file.may_have_epoch(self.group, epoch)) {
                self.group += 1;
                continue;
            }
            let column =
                |number: usize| -> Result<ColumnReader> { self.file.column_reader(self.group, number) };
            let cells =
                self.file.layout.element_columns().map(|(number, of)| Ok(Cells::new(column(number)?, of)));
            self.readers = Some(Readers {
                epochs: get_typed_column_reader(column(EPOCH)?),
                slots: get_typed_column_reader(column(SLOT)?),
                cells: cells.collect::<Result<_>>()?,
            });
            self.left = self.file.row_group_len(self.group);
            self.group += 1;
        }
        let readers = self.readers.as_mut().expect("rows are left");
        let rows = self.left.min(BATCH);
        self.left -= rows;
        next_rows(&mut readers.epochs, rows, &mut self.epochs)?;
        next_rows(&mut readers.slots, rows, &mut self.slots)?;
        let len = self.file.layout.element_len;
        self.elements.resize(rows * len, 0);
        for cells in &mut readers.cells {
            cells.read(rows, |row| row, len, &mut self.elements)?;
        }
        Ok(true)
    }
}
