//! An epoch on its way into the table.

use std::sync::Arc;

use dta_files::moment::now;
use serde_json::json;

use crate::data::{ClosedFile, NewFile, RowMoments, have_same_rows};
use crate::epoch::{HistoryEpoch, KeptEpoch};
use crate::layout::{ENTRY, Order};
use crate::log::action::{Add, LogAction};
use crate::log::replay::LoggedFile;
use crate::log::unchanged::UnchangedEpoch;
use crate::table::HistoryEntry;
use crate::temporary::random_number;
use crate::{EpochTable, HistoryError};

/// An epoch that is being written. If dropped before [`EpochFlush::finish`], it leaves nothing behind.
pub struct EpochFlush<'a> {
    table: &'a EpochTable,
    epoch: u64,
    file: NewFile,
    /// The slot after the last one passed.
    next: u64,
    /// A row of a list, being put together for the file.
    row: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenEpoch {
    /// Used slots or columns, or entries.
    pub rows: u64,
    /// Size of its file; 0 if it has none of its own.
    pub bytes: u64,
}

impl EpochTable {
    /// Begins the file of an epoch. Other epochs can be written and read at the same time.
    ///
    /// # Errors
    /// The epoch is already in the table; the system refuses.
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

/// The last epoch, whose file may take in the next one.
struct ChangedEpoch {
    number: u64,
    /// The epoch whose rows the next one shares, if it has any.
    rows_of: Option<u64>,
    file: Arc<LoggedFile>,
}

/// Most epochs in a file that takes in others: the log names all of them in one line.
const EPOCHS: usize = 512;

impl EpochTable {
    /// Keeps an epoch without a file if it has nothing that the last one lacks. `false`: it needs a file.
    fn keep_as_unchanged(&self, epoch: &HistoryEpoch, file: &ClosedFile) -> Result<bool, HistoryError> {
        let Some(last) = self.unchanged_since(epoch, file.summary.rows)? else { return Ok(false) };
        if last.rows_of.is_some() {
            // A file that cannot be read counts as different.
            let is_same = self
                .open_file(&last.file)
                .and_then(|of_last| have_same_rows(&of_last, &file.open(&self.layout)?));
            if !is_same.unwrap_or(false) {
                return Ok(false);
            }
        }
        let mut state = self.refreshed()?;
        // The file may have been compacted into another meanwhile.
        let is_last = state
            .epochs
            .last_key_value()
            .is_some_and(|(number, (_, of))| *number == last.number && of.add.path == last.file.add.path);
        if !is_last {
            return Ok(false);
        }
        let kept = KeptEpoch { epoch: epoch.clone(), rows: file.summary.rows, rows_of: last.rows_of };
        state.append_unchanged_epoch(&self.path, &UnchangedEpoch { beside: last.number, kept })?;
        Ok(true)
    }

    /// The last epoch, if its file may take in one with `rows` rows.
    fn unchanged_since(&self, epoch: &HistoryEpoch, rows: u64) -> Result<Option<ChangedEpoch>, HistoryError> {
        let Some(span) = self.unchanged_span else { return Ok(None) };
        let state = self.refreshed()?;
        let Some((_, (kept, file))) =
            state.epochs.last_key_value().filter(|(number, _)| **number < epoch.number)
        else {
            return Ok(None);
        };
        let is_in_span = |kept: &Arc<KeptEpoch>| kept.epoch.opened / span == epoch.opened / span;
        let takes_more = file.epochs.len() < EPOCHS && file.epochs.iter().all(is_in_span);
        let rows_of = (rows > 0).then(|| kept.row_number());
        // The whole file is compared, so all its rows must belong to that epoch.
        let is_comparable = |of: u64| {
            self.layout.order == Order::BySlot
                && kept.rows == rows
                && file.epochs.iter().all(|kept| kept.rows == 0 || kept.row_number() == of)
        };
        let is_candidate =
            takes_more && kept.epoch.opened < epoch.opened && rows_of.is_none_or(is_comparable);
        Ok(is_candidate.then(|| ChangedEpoch { number: kept.epoch.number, rows_of, file: file.clone() }))
    }
}

impl EpochFlush<'_> {
    /// Takes the elements of consecutive slots, starting at slot `first`. Elements that are all zeros count as unused and are not
    /// written. Whole regions can be passed in pieces of any number of elements; runs known to be unused may be left out. The slots of a
    /// sketch are the columns of one of its epochs.
    ///
    /// # Errors
    /// `elements` are not whole elements, lie beyond the store or before others already passed; the store is one of lists; the file
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

    /// Takes an entry of a list. Entries of one list must come in order.
    ///
    /// # Errors
    /// The store has no lists, or not this one, or entries of another length; the file cannot be written.
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

    /// Syncs the file and commits it: from here on the epoch is kept. It gets no file of its own if it has nothing new
    /// ([`EpochTable::with_unchanged_epochs`]).
    ///
    /// # Errors
    /// The epoch is not the one that was begun, or somebody else has written it; the system refuses. Nothing is left behind then.
    pub fn finish(self, epoch: &HistoryEpoch) -> Result<WrittenEpoch, HistoryError> {
        if epoch.number != self.epoch {
            let problem = format!("it ends as epoch {}", epoch.number);
            return Err(HistoryError::Rows { epoch: self.epoch, problem });
        }
        let file = self.file.close([epoch.opened, epoch.flipped_to])?;
        if self.table.keep_as_unchanged(epoch, &file)? {
            return Ok(WrittenEpoch { rows: file.summary.rows, bytes: 0 });
        }
        let name = format!("{FILE}{:012}-{:016x}.parquet", epoch.number, random_number());
        let (file, made) = file.rename_to(&name)?;
        let kept = KeptEpoch { epoch: epoch.clone(), rows: made.rows, rows_of: None };
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

/// The prefix of data file names.
pub(crate) const FILE: &str = "epoch-";

/// Whether a data file was merged from others: its name has the numbers of its first and last epoch.
pub(crate) fn is_merged(name: &str) -> bool {
    name.matches('-').count() > 2
}

/// Whether an element, whose length is a multiple of eight, has a nonzero byte.
#[inline]
fn has_nonzero_bytes(element: &[u8]) -> bool {
    let words = element.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    words.fold(0, |all, word| all | word) != 0
}
