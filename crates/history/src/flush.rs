//! An epoch on its way into the table.

use dta_files::moment::now;
use serde_json::json;

use crate::data::{NewFile, RowMoments};
use crate::epoch::{HistoryEpoch, KeptEpoch};
use crate::layout::{ENTRY, Order};
use crate::log::action::{Add, LogAction};
use crate::table::HistoryEntry;
use crate::temporary::random_number;
use crate::{EpochTable, HistoryError};

/// An epoch that is being written. Dropped before [`EpochFlush::finish`], it leaves nothing.
pub struct EpochFlush<'a> {
    table: &'a EpochTable,
    epoch: u64,
    file: NewFile,
    /// The slot behind the last that was handed over.
    next: u64,
    /// A row of a list on its way into the file.
    row: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenEpoch {
    /// Its rows: used slots or columns, or entries.
    pub rows: u64,
    /// Bytes of its file.
    pub bytes: u64,
}

impl EpochTable {
    /// Begins the file of an epoch. It is written beside others that are being written or read.
    ///
    /// # Errors
    /// The epoch is in the table; the system refuses.
    pub fn begin_epoch(&self, epoch: u64) -> Result<EpochFlush<'_>, HistoryError> {
        if epoch > i64::MAX as u64 {
            return Err(HistoryError::Rows { epoch, problem: "its number must be below 2^63".to_owned() });
        }
        if self.refreshed()?.epochs.contains_key(&epoch) {
            return Err(HistoryError::AlreadyKept(epoch));
        }
        let file = NewFile::new(&self.path, &self.spec, &self.layout, RowMoments::Later)?;
        Ok(EpochFlush { table: self, epoch, file, next: 0, row: Vec::new() })
    }
}

impl EpochFlush<'_> {
    /// Takes the elements of slots that follow one another, from slot number `first` on. Those that are all zeros are not used, and not
    /// written. Whole regions can be handed over in pieces of any number of elements; runs that are known to be unused may be left out.
    /// The slots of a sketch are the columns of one of its epochs.
    ///
    /// # Errors
    /// `elements` are no whole elements, lie beyond the store or before others that were handed over; the store is one of lists; the file
    /// cannot be written.
    pub fn write_slots(&mut self, first: u64, elements: &[u8]) -> Result<(), HistoryError> {
        let layout = &self.table.layout;
        if layout.order != Order::BySlot {
            return Err(self.table.unfit_error("have no slots that could be written: push their entries"));
        }
        let count = (elements.len() / layout.element_len) as u64;
        let bad = |problem: String| Err(HistoryError::Rows { epoch: self.epoch, problem });
        if !elements.len().is_multiple_of(layout.element_len) {
            return bad(format!("{} bytes are no whole elements of {}", elements.len(), layout.element_len));
        }
        if first < self.next {
            return bad(format!("slot {first} comes after slot {}", self.next - 1));
        }
        if first.checked_add(count).is_none_or(|end| end > layout.elements) {
            return bad(format!("{count} elements from slot {first} on, in a store of {}", layout.elements));
        }
        for (slot, element) in (first..).zip(elements.chunks_exact(layout.element_len)) {
            if has_nonzero_bytes(element) {
                self.file.append_row(self.epoch, slot, element)?;
            }
        }
        self.next = first + count;
        Ok(())
    }

    /// Takes an entry of a list. Those of one list come in their order.
    ///
    /// # Errors
    /// The store has no such list, or no lists, or entries of another length; the file cannot be written.
    pub fn push(&mut self, entry: HistoryEntry<'_>) -> Result<(), HistoryError> {
        let layout = &self.table.layout;
        if layout.order != Order::AsTheyCame {
            return Err(self.table.unfit_error("have no entries that could be written: put their slots"));
        }
        let HistoryEntry { list, sequence, number, bytes } = entry;
        if u64::from(list) >= layout.elements || ENTRY + bytes.len() != layout.element_len {
            let problem = format!(
                "an entry of {} bytes for list {list}, in a store of {} lists with entries of {} bytes",
                bytes.len(),
                layout.elements,
                layout.element_len - ENTRY
            );
            return Err(HistoryError::Rows { epoch: self.epoch, problem });
        }
        self.row.clear();
        self.row.extend_from_slice(&sequence.to_be_bytes());
        self.row.extend_from_slice(&number.to_be_bytes());
        self.row.extend_from_slice(&[0; 2]);
        self.row.extend_from_slice(bytes);
        self.file.append_row(self.epoch, list.into(), &self.row)
    }

    /// Has the file on disk, and commits it: from here on the epoch is kept.
    ///
    /// # Errors
    /// The epoch is not the one that was begun, or has been written by somebody else; the system refuses. Nothing is left then.
    pub fn finish(self, epoch: &HistoryEpoch) -> Result<WrittenEpoch, HistoryError> {
        if epoch.number != self.epoch {
            let problem = format!("it ends as epoch {}", epoch.number);
            return Err(HistoryError::Rows { epoch: self.epoch, problem });
        }
        let name = format!("{FILE}{:012}-{:016x}.parquet", epoch.number, random_number());
        let (file, made) = self.file.finish(&name, [epoch.opened, epoch.flipped_to])?;
        let kept = KeptEpoch { epoch: epoch.clone(), rows: made.rows };
        let now = now();
        let add = Add::new(name, &made, &[kept], &self.table.layout, now);
        self.table.commit_actions(|state| {
            if state.epochs.contains_key(&epoch.number) {
                return Err(HistoryError::AlreadyKept(epoch.number));
            }
            let info = LogAction::commit_info(
                "WRITE",
                json!({ "mode": "Append", "epoch": epoch.number.to_string() }),
                now,
            );
            Ok(Some(vec![info, LogAction::Add(add.clone())]))
        })?;
        file.persist_file();
        Ok(WrittenEpoch { rows: made.rows, bytes: made.bytes })
    }
}

/// How the names of data files begin.
pub(crate) const FILE: &str = "epoch-";

/// Whether any byte of an element, whose length is a multiple of eight, is set.
#[inline]
fn has_nonzero_bytes(element: &[u8]) -> bool {
    let words = element.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    words.fold(0, |all, word| all | word) != 0
}
