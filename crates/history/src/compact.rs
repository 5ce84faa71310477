//! Merges the files of many epochs into one, sorted by the layout, so that a slot over time is read from a few pages; or merges many epochs into one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

use dta_files::moment::now;
use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::EpochEnd;
use serde_json::json;

use crate::data::{DataFile, NewFile, RowMoments, Scan};
use crate::epoch::{HistoryEpoch, KeptEpoch};
use crate::flush::{FILE, is_merged};
use crate::layout::Order;
use crate::log::action::{Add, LogAction};
use crate::log::replay::LoggedFile;
use crate::retention::remove_action;
use crate::temporary::random_number;
use crate::{EpochTable, HistoryError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactedFile {
    /// The files that were merged.
    pub files: usize,
    pub rows: u64,
    pub bytes: u64,
}

/// The files and epochs that were opened in one span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanFiles {
    /// Files that have epochs of this span only.
    pub files: usize,
    pub epochs: usize,
    /// Whether rows in them are valid for longer than they say: until the end of the last epoch that has them.
    pub has_longer_rows: bool,
}

/// Whether rows of a file are valid for longer than they say.
fn has_longer_rows(file: &LoggedFile) -> bool {
    !is_merged(&file.add.path) && file.epochs.iter().any(|kept| kept.rows_of.is_some())
}

/// When rows are valid, by their epoch number: until the end of the last epoch that has them.
fn row_moments(epochs: &[KeptEpoch]) -> BTreeMap<i64, [u64; 2]> {
    let mut moments = BTreeMap::new();
    for kept in epochs {
        let HistoryEpoch { opened, flipped_to, .. } = kept.epoch;
        let of_rows = moments.entry(kept.row_number().cast_signed()).or_insert([opened, flipped_to]);
        of_rows[0] = of_rows[0].min(opened);
        of_rows[1] = of_rows[1].max(flipped_to);
    }
    moments
}

/// Whether a slot of a later epoch of a store replaces that of an earlier one.
pub fn replaces_slots(spec: &StoreSpec) -> bool {
    match spec.kind.primitive().epoch_end() {
        EpochEnd::Replaces | EpochEnd::Reads => true,
        EpochEnd::Closes | EpochEnd::Collects => false,
    }
}

impl EpochTable {
    /// What [`EpochTable::compact_span`] and [`EpochTable::coarsen_span`] would find in spans of `length` milliseconds, by the start of each span, a
    /// multiple of `length` since 1970.
    pub fn compaction_spans(&self, length: u64) -> Result<BTreeMap<u64, SpanFiles>, HistoryError> {
        let mut spans: BTreeMap<u64, SpanFiles> = BTreeMap::new();
        for entry in self.refreshed()?.files.values() {
            let mut begins = entry.epochs.iter().map(|kept| kept.epoch.opened / length * length);
            if let Some(begin) = begins.next()
                && begins.all(|other| other == begin)
            {
                let of = spans.entry(begin).or_default();
                of.files += 1;
                of.epochs += entry.epochs.len();
                of.has_longer_rows |= has_longer_rows(entry);
            }
        }
        Ok(spans)
    }

    /// Merges the files whose epochs were all opened in a span (milliseconds since 1970) into one whose rows say how long they are valid. `None` if
    /// that file already exists, or one was removed meanwhile. The old files stay for ten minutes for their readers, until [`EpochTable::vacuum_files`].
    ///
    /// # Errors
    /// A file cannot be read, or the new one cannot be written: nothing has changed.
    pub fn compact_span(&self, opened: Range<u64>) -> Result<Option<CompactedFile>, HistoryError> {
        let (files, epochs) = self.opened_in(opened)?;
        if files.len() < 2 && !files.iter().any(|file| has_longer_rows(file)) {
            return Ok(None);
        }
        let moments = row_moments(&epochs);
        let merged = self.merge_files(&files, moments, None)?;
        self.replace_files(&files, merged, &epochs, false)
    }

    /// Merges all epochs opened in a span, where their files have no others, into one with the newest element of each slot. It has the number and
    /// generation of the last epoch and the opening of the first; `waterfall` merges their waterfalls. `None` as for [`EpochTable::compact_span`], or
    /// if there are fewer than two epochs.
    ///
    /// # Errors
    /// As [`EpochTable::compact_span`]; also for lists and sketches, whose epochs do not replace one another.
    pub fn coarsen_span(
        &self,
        opened: Range<u64>,
        waterfall: impl FnOnce(&[KeptEpoch]) -> serde_json::Value,
    ) -> Result<Option<CompactedFile>, HistoryError> {
        if !self.can_be_coarse() {
            return Err(
                self.unfit_error("cannot be made coarser: nothing in them replaces what was there before")
            );
        }
        let (files, epochs) = self.opened_in(opened)?;
        let [first, .., last] = &epochs[..] else { return Ok(None) };
        let epoch = HistoryEpoch {
            opened: first.epoch.opened,
            confirmed: epochs.iter().all(|kept| kept.epoch.confirmed),
            restarted: epochs.iter().rev().find_map(|kept| kept.epoch.restarted),
            waterfall: waterfall(&epochs),
            ..last.epoch.clone()
        };
        let moments = BTreeMap::from([(epoch.number.cast_signed(), [epoch.opened, epoch.flipped_to])]);
        let merged = self.merge_files(&files, moments, Some(epoch.number))?;
        let rows = merged.row_count();
        self.replace_files(&files, merged, &[KeptEpoch { epoch, rows, rows_of: None }], true)
    }

    /// Whether [`EpochTable::coarsen_span`] makes sense: a slot of a later epoch replaces that of an earlier one.
    pub fn can_be_coarse(&self) -> bool {
        replaces_slots(&self.spec)
    }

    /// The files whose epochs were all opened in a span, and their epochs by number.
    fn opened_in(&self, opened: Range<u64>) -> Result<(Vec<Arc<LoggedFile>>, Vec<KeptEpoch>), HistoryError> {
        let inside = |entry: &&Arc<LoggedFile>| {
            !entry.epochs.is_empty() && entry.epochs.iter().all(|kept| opened.contains(&kept.epoch.opened))
        };
        let files: Vec<Arc<LoggedFile>> = self.refreshed()?.files.values().filter(inside).cloned().collect();
        let epochs = files.iter().flat_map(|entry| &entry.epochs);
        let mut epochs: Vec<KeptEpoch> = epochs.map(|kept| KeptEpoch::clone(kept)).collect();
        epochs.sort_by_key(|kept| kept.epoch.number);
        Ok((files, epochs))
    }

    /// Commits a file in place of others. `data`: it does not hold everything they held.
    fn replace_files(
        &self,
        files: &[Arc<LoggedFile>],
        by: NewFile,
        epochs: &[KeptEpoch],
        data: bool,
    ) -> Result<Option<CompactedFile>, HistoryError> {
        let (first, last) = (epochs[0].epoch.number, epochs[epochs.len() - 1].epoch.number);
        let name = format!("{FILE}{first:012}-{last:012}-{:016x}.parquet", random_number());
        let (file, made) = by.close([0; 2])?.rename_to(&name)?;
        let now = now();
        let mut add = Add::new(name, &made, epochs, &self.layout, now);
        add.data_change = data;
        let done = self.commit_actions(|state| {
            // None was removed or has taken in another epoch.
            let is_same = |entry: &Arc<LoggedFile>| {
                state.files.get(&entry.add.path).is_some_and(|now| now.epochs.len() == entry.epochs.len())
            };
            if !files.iter().all(is_same) {
                return Ok(None);
            }
            let operation = if data { "MERGE" } else { "OPTIMIZE" };
            let info = LogAction::commit_info(operation, json!({ "files": files.len().to_string() }), now);
            let removes = files.iter().map(|entry| LogAction::Remove(remove_action(entry, data, now)));
            let actions = std::iter::once(info).chain(removes).chain([LogAction::Add(add.clone())]);
            Ok(Some(actions.collect()))
        })?;
        if !done {
            return Ok(None);
        }
        file.persist_file();
        for entry in files {
            self.cache.evict_file(&entry.add.path);
        }
        Ok(Some(CompactedFile { files: files.len(), rows: made.rows, bytes: made.bytes }))
    }

    /// The rows of all files in the order of the layout. If `one` is given, only the last row of each slot, as a row of that epoch.
    fn merge_files(
        &self,
        files: &[Arc<LoggedFile>],
        moments: BTreeMap<i64, [u64; 2]>,
        one: Option<u64>,
    ) -> Result<NewFile, HistoryError> {
        let mut merged = NewFile::new(&self.path, &self.spec, &self.layout, RowMoments::Known(moments))?;
        // Bypasses the cache, which is for files that were asked for.
        let open = |entry: &Arc<LoggedFile>| {
            DataFile::open(&self.path.join(&entry.add.path), self.layout.clone(), entry.add.expected_tail())
        };
        let opened: Vec<DataFile> = files.iter().map(open).collect::<Result<_, _>>()?;
        let mut scans: Vec<(Scan, usize)> = opened.iter().map(|file| (Scan::new(file), 0)).collect();
        let mut heads = BinaryHeap::new();
        let order = |slot| if self.layout.order == Order::BySlot { slot } else { 0 };
        for (number, (scan, _)) in scans.iter_mut().enumerate() {
            if scan.next()? {
                heads.push(Reverse((order(scan.slots[0]), scan.epochs[0], number)));
            }
        }
        let len = self.layout.element_len;
        // A slot and its newest element so far.
        let mut newest = (0, Vec::with_capacity(len));
        while let Some(mut head) = heads.peek_mut() {
            let Reverse((_, epoch, number)) = *head;
            let (scan, at) = &mut scans[number];
            let slot = scan.slots[*at];
            let element = &scan.elements[*at * len..][..len];
            match one {
                None => merged.append_row(epoch.cast_unsigned(), slot.cast_unsigned(), element)?,
                Some(one) => {
                    if newest.0 != slot && !newest.1.is_empty() {
                        merged.append_row(one, newest.0.cast_unsigned(), &newest.1)?;
                    }
                    newest.0 = slot;
                    newest.1.clear();
                    newest.1.extend_from_slice(element);
                }
            }
            *at += 1;
            if *at == scan.slots.len() {
                *at = 0;
                if !scan.next()? {
                    std::collections::binary_heap::PeekMut::pop(head);
                    continue;
                }
            }
            *head = Reverse((order(scan.slots[*at]), scan.epochs[*at], number));
        }
        if let Some(one) = one
            && !newest.1.is_empty()
        {
            merged.append_row(one, newest.0.cast_unsigned(), &newest.1)?;
        }
        Ok(merged)
    }
}
