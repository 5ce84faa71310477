//! The table of one store.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dta_files::moment::now;
use dta_files::own_file;
use dta_proto::store::StoreSpec;

use crate::HistoryError;
use crate::cache::Cache;
use crate::data::read::WantedSlot;
use crate::data::{DataFile, Scan};
use crate::epoch::KeptEpoch;
use crate::layout::{Cell, ENTRY, Layout, Order};
use crate::log::FOLDER;
use crate::log::PreparedCommit;
use crate::log::action::{LogAction, MetaData, PROTOCOL, commit_text};
use crate::log::checkpoint;
use crate::log::replay::{self, LogState};
use crate::log::unchanged::unchanged_path;
use crate::temporary::random_number;

/// The history of one store. Several threads can call all its methods, and several processes can open the same table.
pub struct EpochTable {
    pub(crate) path: PathBuf,
    pub(crate) spec: StoreSpec,
    pub(crate) layout: Arc<Layout>,
    state: Mutex<LogState>,
    pub(crate) cache: Cache,
    /// The length of the spans (milliseconds) within which an unchanged epoch joins an earlier epoch's file.
    pub(crate) unchanged_span: Option<u64>,
}

impl EpochTable {
    /// Opens the table of a store in its folder in `dir`, or creates it, and cleans up after writers that were killed.
    ///
    /// # Errors
    /// What is there is not a table of this store, or has another layout; the system refuses.
    pub fn open(dir: &Path, spec: &StoreSpec) -> Result<EpochTable, HistoryError> {
        EpochTable::open_with(dir.join(&spec.name), spec, Layout::from_spec(spec))
    }

    /// Opens or creates a table with named columns for what a store held, in the folder `name` of `dir`. Its columns are the epoch, a long `id`
    /// below 2^63, unique within an epoch, and `cells`. Its methods take ids as slots and rows as elements: the bytes of all cells, padded with
    /// zeros to a multiple of eight.
    pub fn open_rows(
        dir: &Path,
        name: &str,
        spec: &StoreSpec,
        id: &str,
        cells: &[(&str, Cell)],
    ) -> Result<EpochTable, HistoryError> {
        EpochTable::open_with(dir.join(name), spec, Layout::from_cells(id, cells))
    }

    /// Opens or creates a table with named columns for what the entries of a store of lists say, in the folder `name` of `dir`. It has the
    /// columns of the store's own table, with `cells` in place of the entry. Its methods take the bytes of all cells as entries.
    ///
    /// # Panics
    /// If the store is not one of lists.
    pub fn open_entries(
        dir: &Path,
        name: &str,
        spec: &StoreSpec,
        cells: &[(&str, Cell)],
    ) -> Result<EpochTable, HistoryError> {
        EpochTable::open_with(dir.join(name), spec, Layout::of_entries(spec, cells))
    }

    fn open_with(path: PathBuf, spec: &StoreSpec, layout: Layout) -> Result<EpochTable, HistoryError> {
        let log = path.join(FOLDER);
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(&log)
            .map_err(HistoryError::io_error("make", &log))?;
        for folder in [&log, &path] {
            own_file::sync_directory(folder).map_err(HistoryError::io_error("sync", folder))?;
        }
        let mut state = LogState::read(&path)?;
        if state.next == 0 {
            let now = now();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let meta = MetaData::new(&name, spec, &layout, random_guid(), now);
            let create = [
                LogAction::commit_info("CREATE TABLE", serde_json::json!({}), now),
                LogAction::Protocol(PROTOCOL),
                LogAction::MetaData(meta),
            ];
            // Somebody else may have created it at the same moment.
            PreparedCommit::new(&path, &commit_text(&create))?.take(&path, 0)?;
            state.read_new_commits(&path)?;
        }
        if let Some(kept) = described(&path, &state)?
            && kept.kind != spec.kind
        {
            return Err(HistoryError::OtherLayout {
                store: spec.name.clone(),
                path,
                kept: format!(
                    "{} with {} elements, {}",
                    kept.primitive(),
                    kept.element_count(),
                    kept.kind.describe_layout()
                ),
                asked: format!(
                    "{} with {} elements, {}",
                    spec.primitive(),
                    spec.element_count(),
                    spec.kind.describe_layout()
                ),
            });
        }
        if state.meta.as_ref().is_some_and(|meta| meta.schema_string != layout.delta_schema()) {
            let problem = "it has other columns than this version writes: move the folder away".to_owned();
            return Err(HistoryError::NotATable { path, problem });
        }
        let table = EpochTable::new(path, spec.clone(), layout, state);
        if !table.lock_state().unchanged.is_empty() {
            // Commits what an earlier run left uncommitted, for copies of the table and for readers that know only commits.
            let info = LogAction::commit_info("WRITE", serde_json::json!({ "mode": "Append" }), now());
            table.commit_actions(|_| Ok(Some(vec![info.clone()])))?;
        }
        table.vacuum_files()?;
        Ok(table)
    }

    /// Opens an existing table for reading. Nothing is created or removed.
    pub fn open_existing(dir: &Path, store: &str) -> Result<EpochTable, HistoryError> {
        let path = dir.join(store);
        let state = LogState::read(&path)?;
        let unknown = || HistoryError::NotATable {
            path: path.clone(),
            problem: format!("nothing in its log says which store it is of: {}", state.damage.join("; ")),
        };
        let spec = described(&path, &state)?.ok_or_else(unknown)?;
        let layout = Layout::from_spec(&spec);
        Ok(EpochTable::new(path, spec, layout, state))
    }

    fn new(path: PathBuf, spec: StoreSpec, layout: Layout, state: LogState) -> EpochTable {
        let (layout, state, cache) = (Arc::new(layout), Mutex::new(state), Cache::default());
        EpochTable { path, spec, layout, state, cache, unchanged_span: None }
    }

    /// Keeps epochs without a file if nothing has changed: those without rows, and those with the rows of the epoch before. They join that
    /// epoch's file if both were opened in the same span of this length; spans start at multiples of it since 1970. No other process may write to
    /// the table.
    #[must_use]
    pub fn with_unchanged_epochs(mut self, span: Duration) -> EpochTable {
        self.unchanged_span = Some((span.as_millis() as u64).max(1));
        self
    }

    pub fn table_path(&self) -> &Path {
        &self.path
    }

    pub fn table_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn store_spec(&self) -> &StoreSpec {
        &self.spec
    }

    /// The table's identity, which another table of the same name does not have; empty if the log's record of it is damaged.
    #[cfg(feature = "clickhouse")]
    pub(crate) fn id(&self) -> String {
        self.lock_state().meta.as_ref().map_or(String::new(), |meta| meta.id.clone())
    }

    pub fn kept_epochs(&self) -> Result<Vec<Arc<KeptEpoch>>, HistoryError> {
        Ok(self.refreshed()?.epochs.values().map(|(kept, _)| kept.clone()).collect())
    }

    /// The epoch that reports of a moment (milliseconds since 1970) went into; if several match because a clock was set back, the newest. `None`:
    /// it is not kept, or not written yet.
    pub fn epoch_at_moment(&self, moment: u64) -> Result<Option<Arc<KeptEpoch>>, HistoryError> {
        let state = self.refreshed()?;
        let mut holding =
            state.epochs.values().map(|(kept, _)| kept).filter(|kept| kept.epoch.contains_moment(moment));
        let found = holding.next_back();
        // Once the next epoch has begun, even if it is over by now, reports no longer go to the previous one. Later epochs matter only for a
        // moment from `flipped_from` on.
        let has_next = |found: &&Arc<KeptEpoch>| {
            let mut later = state.epochs.range(found.epoch.number + 1..);
            moment >= found.epoch.flipped_from
                && later.any(|(_, (next, _))| found.epoch.is_before(next.epoch.opened, moment))
        };
        Ok(found.filter(|found| !has_next(found)).cloned())
    }

    pub fn data_bytes(&self) -> u64 {
        self.lock_state().data_bytes()
    }

    /// What is wrong with the log: one sentence for each place, with the name of the file. The rest of the log is used as it is.
    pub fn log_damage(&self) -> Vec<String> {
        self.lock_state().damage.clone()
    }

    /// Writes the elements of slots (for a sketch, its columns) as they were at the end of an epoch into `out`, back to back; zeros for unused
    /// slots.
    ///
    /// # Errors
    /// The epoch is not kept; its file cannot be read, or is damaged; lists have no slots.
    ///
    /// # Panics
    /// If `out` does not have exactly one element per slot.
    pub fn read_slots(&self, epoch: u64, slots: &[u64], out: &mut [u8]) -> Result<(), HistoryError> {
        self.read_slot_series(&[epoch], slots, out)
    }

    /// As [`EpochTable::read_slots`] for several epochs: all elements of the first one, then those of the next. Pages shared by epochs in one
    /// file are read once.
    ///
    /// # Errors
    /// As [`EpochTable::read_slots`]; `out` is partly written then.
    ///
    /// # Panics
    /// If `out` does not have exactly one element per epoch and slot.
    pub fn read_slot_series(
        &self,
        epochs: &[u64],
        slots: &[u64],
        out: &mut [u8],
    ) -> Result<(), HistoryError> {
        if self.layout.order != Order::BySlot {
            return Err(self.unfit_error("have no slots that could be looked up: read an epoch's entries"));
        }
        let len = self.layout.element_len;
        let size = slots.len() * len;
        assert_eq!(out.len(), epochs.len() * size, "{} slots of {len} bytes", slots.len());
        let wanted =
            slots.iter().enumerate().map(|(answer, slot)| WantedSlot { slot: slot.cast_signed(), answer });
        let mut wanted: Vec<WantedSlot> = wanted.collect();
        wanted.sort_unstable();
        let all = wanted.clone();
        wanted.dedup_by_key(|wanted| wanted.slot);
        out.fill(0);
        let mut left: Vec<usize> = (0..epochs.len()).collect();
        while let Some(first) = left.first() {
            self.with_file(epochs[*first], |file, entry| {
                // The epochs in this file, by the number of their rows, with the place of their elements.
                let mut of_file = BTreeMap::new();
                // Epochs asked for twice, or sharing another's rows, have the same elements.
                let mut copies = Vec::new();
                left.retain(|place| {
                    let of_place = |kept: &&Arc<KeptEpoch>| kept.epoch.number == epochs[*place];
                    let Some(kept) = entry.epochs.iter().find(of_place) else { return true };
                    let first =
                        *of_file.entry(kept.row_number().cast_signed()).or_insert(place * slots.len());
                    if first != place * slots.len() {
                        copies.push((first, place * slots.len()));
                    }
                    false
                });
                file.look_up_slots(&of_file, entry.epochs.len() > 1, &wanted, out)?;
                for (from, to) in copies {
                    out.copy_within(from * len..from * len + size, to * len);
                }
                Ok(())
            })?;
        }
        // Slots asked for twice.
        for pair in all.windows(2).filter(|pair| pair[0].slot == pair[1].slot && size > 0) {
            for of_epoch in out.chunks_exact_mut(size) {
                of_epoch.copy_within(pair[0].answer * len..(pair[0].answer + 1) * len, pair[1].answer * len);
            }
        }
        Ok(())
    }

    /// Passes all used slots of an epoch to `each`, ascending, each with its element. For lists: each entry's list and row.
    ///
    /// # Errors
    /// The epoch is not kept; its file cannot be read, or is damaged. Some slots may have been passed by then.
    pub fn scan_epoch(&self, epoch: u64, mut each: impl FnMut(u64, &[u8])) -> Result<(), HistoryError> {
        self.scan_rows(epoch, |slot, element| {
            each(slot, element);
            ControlFlow::Continue(())
        })
    }

    /// Passes the entries of all lists in an epoch to `each`, in order within each list, until it breaks.
    ///
    /// # Errors
    /// As [`EpochTable::scan_epoch`]; the table is not one of lists.
    pub fn scan_entries(
        &self,
        epoch: u64,
        mut each: impl FnMut(HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), HistoryError> {
        if self.layout.order != Order::AsTheyCame {
            return Err(self.unfit_error("have no entries: scan an epoch's slots"));
        }
        self.scan_rows(epoch, |list, row| {
            let [a, b, c, d, high, low, ..] = *row else {
                unreachable!("a row has {ENTRY} bytes and an entry")
            };
            let (sequence, number) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([high, low]));
            each(HistoryEntry { list: list as u32, sequence, number, bytes: &row[ENTRY..] })
        })
    }

    /// Passes the rows of an epoch to `each` until it breaks, always in the same order, whichever files hold them.
    pub(crate) fn scan_rows(
        &self,
        epoch: u64,
        mut each: impl FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), HistoryError> {
        self.with_file(epoch, |file, entry| {
            let kept = entry.epochs.iter().find(|kept| kept.epoch.number == epoch);
            let epoch = kept.map_or(epoch, |kept| kept.row_number());
            let mut scan = Scan::for_epoch(file, epoch.cast_signed());
            while scan.next()? {
                let elements = scan.elements.chunks_exact(self.layout.element_len);
                for ((slot, of), element) in scan.slots.iter().zip(&scan.epochs).zip(elements) {
                    if of.cast_unsigned() == epoch && each(slot.cast_unsigned(), element).is_break() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    /// The error for a request that makes no sense for this kind of store.
    pub(crate) fn unfit_error(&self, problem: &'static str) -> HistoryError {
        HistoryError::Kind { store: self.spec.name.clone(), primitive: self.spec.primitive(), problem }
    }

    /// Calls `read` with the file of an epoch and its entry in the log.
    fn with_file(
        &self,
        epoch: u64,
        read: impl FnOnce(&DataFile, &replay::LoggedFile) -> Result<(), HistoryError>,
    ) -> Result<(), HistoryError> {
        let known = self.lock_state().epochs.get(&epoch).map(|(_, entry)| entry.clone());
        if let Some(entry) = known {
            // Another process may have compacted it into another file, or removed it.
            match self.open_file(&entry) {
                Err(error) if error.is_missing() => {}
                file => return read(&*file?, &entry),
            }
        }
        let entry = self.refreshed()?.epochs.get(&epoch).map(|(_, entry)| entry.clone());
        let entry = entry.ok_or(HistoryError::NotKept(epoch))?;
        read(&*self.open_file(&entry)?, &entry)
    }

    pub(crate) fn open_file(&self, entry: &replay::LoggedFile) -> Result<Arc<DataFile>, HistoryError> {
        let name = &entry.add.path;
        if let Some(file) = self.cache.get(name) {
            return Ok(file);
        }
        let file =
            Arc::new(DataFile::open(&self.path.join(name), self.layout.clone(), entry.add.expected_tail())?);
        self.cache.insert_file(name, file.clone());
        Ok(file)
    }

    pub(crate) fn lock_state(&self) -> MutexGuard<'_, LogState> {
        // A panic in the middle of a commit keeps what was read so far; the rest is read again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log's current state.
    pub(crate) fn refreshed(&self) -> Result<MutexGuard<'_, LogState>, HistoryError> {
        let mut state = self.lock_state();
        state.read_new_commits(&self.path)?;
        Ok(state)
    }

    /// Commits what `decide` makes of the log's newest state, again whenever somebody else took the version first. `None`: nothing to do.
    pub(crate) fn commit_actions(
        &self,
        decide: impl Fn(&LogState) -> Result<Option<Vec<LogAction>>, HistoryError>,
    ) -> Result<bool, HistoryError> {
        loop {
            let mut state = self.refreshed()?;
            let Some(mut actions) = decide(&state)? else { return Ok(false) };
            actions.extend(state.name_unchanged_epochs(&actions));
            let version = state.next;
            if PreparedCommit::new(&self.path, &commit_text(&actions))?.take(&self.path, version)? {
                state.read_new_commits(&self.path)?;
                if let Some(before) = version.checked_sub(1) {
                    // If it cannot be removed, nobody reads it, and cleaning up removes it later.
                    let _ = std::fs::remove_file(unchanged_path(&self.path, before));
                }
                // If the log is damaged, the commits are all there is. A failed checkpoint does no harm: the next one covers more.
                if version > 0 && version.is_multiple_of(checkpoint::EVERY) && state.damage.is_empty() {
                    let _ = checkpoint::write_checkpoint(&self.path, &state, now());
                }
                return Ok(true);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry<'a> {
    pub list: u32,
    /// The sequence of its batch.
    pub sequence: u32,
    /// Its place in the batch, from 0.
    pub number: u16,
    pub bytes: &'a [u8],
}

/// The store that the log says the table belongs to; `None` if that record is damaged.
fn described(path: &Path, state: &LogState) -> Result<Option<StoreSpec>, HistoryError> {
    let not = |problem: String| HistoryError::NotATable { path: path.to_owned(), problem };
    if let Some(protocol) = state.protocol
        && (protocol.min_reader_version > PROTOCOL.min_reader_version
            || protocol.min_writer_version > PROTOCOL.min_writer_version)
    {
        return Err(not(format!(
            "its protocol needs readers of version {} and writers of version {}, this program is of versions {} and {}",
            protocol.min_reader_version,
            protocol.min_writer_version,
            PROTOCOL.min_reader_version,
            PROTOCOL.min_writer_version
        )));
    }
    match &state.meta {
        Some(meta) => match meta.store_spec() {
            Some(store) => Ok(Some(store)),
            None => Err(not(
                "it is a Delta table of something else: its configuration has no dta.store".to_owned()
            )),
        },
        None if state.damage.is_empty() => Err(not("its log says nothing about what it is".to_owned())),
        None => Ok(None),
    }
}

/// A name that no other table has, in the form that Delta asks for (RFC 9562, version 4).
fn random_guid() -> String {
    let (high, low) = (random_number(), random_number());
    let high = high & !0xf000 | 0x4000;
    let low = low & (u64::MAX >> 2) | 1 << 63;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}
