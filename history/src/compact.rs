//! Making one file of the files of many epochs, sorted by slot and epoch, so that a slot over time is read from a few pages.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::json;

use crate::data::{DataFile, DataWriter, Scan};
use crate::epoch::Kept;
use crate::flush::FILE;
use crate::log::action::{Action, Add, STORE, describe};
use crate::log::replay::Entry;
use crate::retention::remove;
use crate::table::now;
use crate::temporary::{Temporary, random};
use crate::{HistoryError, Table};

/// What became one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The files that went into it.
    pub files: usize,
    /// Its rows.
    pub rows: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl Table {
    /// Makes one file of those whose epochs were all opened in a span (milliseconds since 1970). `None` if there are fewer than two, or one
    /// of them was removed meanwhile. The files stay for ten minutes, for whoever is reading them; [`Table::vacuum`] removes them.
    ///
    /// # Errors
    /// A file cannot be read, or the new one cannot be written: all stays as it was.
    pub fn compact(&self, opened: Range<u64>) -> Result<Option<Compacted>, HistoryError> {
        let inside = |entry: &&Arc<Entry>| {
            !entry.epochs.is_empty() && entry.epochs.iter().all(|kept| opened.contains(&kept.epoch.opened))
        };
        let files: Vec<Arc<Entry>> = self.refreshed()?.files.values().filter(inside).cloned().collect();
        if files.len() < 2 {
            return Ok(None);
        }
        let mut epochs: Vec<Kept> = files.iter().flat_map(|entry| &entry.epochs).map(|kept| Kept::clone(kept)).collect();
        epochs.sort_by_key(|kept| kept.epoch.number);
        let mut file = Temporary::new(&self.path)?;
        let (rows, bytes, span) = self.merge(&files, &file)?;
        let (first, last) = (epochs[0].epoch.number, epochs[epochs.len() - 1].epoch.number);
        let name = format!("{FILE}{first:012}-{last:012}-{:016x}.parquet", random());
        file.name(&name)?;
        let now = now();
        let mut add = Add::new(name, bytes, &epochs, span, &self.layout, now);
        add.data_change = false;
        let done = self.commit(|state| {
            if !files.iter().all(|entry| state.files.contains_key(&entry.add.path)) {
                return Ok(None);
            }
            let info = Action::info("OPTIMIZE", json!({ "files": files.len().to_string() }), now);
            let removes = files.iter().map(|entry| Action::Remove(remove(entry, false, now)));
            let actions = std::iter::once(info).chain(removes).chain([Action::Add(add.clone())]);
            Ok(Some(actions.collect()))
        })?;
        if !done {
            return Ok(None);
        }
        file.keep();
        for entry in &files {
            self.cache.forget(&entry.add.path);
        }
        Ok(Some(Compacted { files: files.len(), rows, bytes }))
    }

    /// Writes the rows of all files by slot, then epoch. Gives rows, bytes, and the first and last slot.
    fn merge(&self, files: &[Arc<Entry>], into: &Temporary) -> Result<(u64, u64, Option<(u64, u64)>), HistoryError> {
        let clone = into.file().try_clone().map_err(HistoryError::io("write", into.path()))?;
        let about = (STORE, describe(&self.spec));
        let mut writer = DataWriter::new(self.layout.clone(), clone, about).map_err(HistoryError::parquet(into.path()))?;
        // Not by way of the cache: what is in it has been asked for.
        let open = |entry: &Arc<Entry>| DataFile::open(&self.path.join(&entry.add.path), self.layout.clone());
        let opened: Vec<DataFile> = files.iter().map(open).collect::<Result<_, _>>()?;
        let mut scans: Vec<(Scan, usize)> = opened.iter().map(|file| (Scan::new(file), 0)).collect();
        let mut heads = BinaryHeap::new();
        for (number, (scan, _)) in scans.iter_mut().enumerate() {
            if scan.next()? {
                heads.push(Reverse((scan.slots[0], scan.epochs[0], number)));
            }
        }
        let (mut rows, mut span) = (0, None);
        let len = self.layout.element_len;
        while let Some(mut head) = heads.peek_mut() {
            let Reverse((slot, epoch, number)) = *head;
            let (scan, at) = &mut scans[number];
            let put = writer.put(epoch, slot, &scan.elements[*at * len..][..len]);
            put.map_err(HistoryError::parquet(into.path()))?;
            rows += 1;
            let slot = slot.cast_unsigned();
            span = Some((span.map_or(slot, |(first, _)| first), slot));
            *at += 1;
            if *at == scan.slots.len() {
                *at = 0;
                if !scan.next()? {
                    std::collections::binary_heap::PeekMut::pop(head);
                    continue;
                }
            }
            *head = Reverse((scan.slots[*at], scan.epochs[*at], number));
        }
        let file = writer.finish().map_err(HistoryError::parquet(into.path()))?;
        let bytes = file.metadata().map_err(HistoryError::io("read", into.path()))?.len();
        Ok((rows, bytes, span))
    }
}
