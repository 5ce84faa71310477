//! A bounded queue on disk between reading and a database. Everything passes through it, so a database that is down is nothing
//! special, and what a killed process had read is still there after its next start.
//!
//! A directory holds segments (`N.spool`, from 1), each a sequence of records (`record`), and `position`: what has been
//! delivered. A record is on disk (`fdatasync`) when `Spool::append_record` returns. At the limit, the oldest segment is
//! removed, and its contents count as dropped.
//!
//! Records carry the positions in the lists (`Checkpoint`): what is in the spool counts as read, nothing else does. So each
//! event is in one record, and a record is sent again, byte for byte, until the database has accepted it.
//!
//! They also carry how many points were added before them. A damaged record followed by a valid one is skipped, and its contents
//! are counted. Damage after the last valid one, as after a crash, is cut off at the next start, and its events are read again.

mod record;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use dta_files::lock::Lock;
use dta_files::own_file;
use dta_files::owned_folder::OwnedFolder;

use self::record::{ALIGN, RecordHead, SegmentRecord};
use crate::error::ExportError;
use crate::events::Positions;
use crate::unique::AssignedTime;

/// Segments that fit within the limit; one of them is removed when it is reached.
const SEGMENTS: u64 = 16;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The position in each list.
    pub(crate) read: Positions,
    /// The last times of series.
    pub(crate) recent: Vec<AssignedTime>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Position {
    segment: u64,
    /// Delivered bytes of the segment.
    offset: u64,
    /// Points added up to there.
    passed: u64,
    #[serde(flatten)]
    kept: Checkpoint,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpoolRecord {
    /// Its bytes.
    pub(crate) body: Vec<u8>,
    pub(crate) points: u64,
    kept: Checkpoint,
    segment: u64,
    /// Where it ends in its segment.
    end: u64,
    /// Points added up to its end.
    passed: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    /// Points added before its first valid record.
    before: u64,
}

#[derive(Debug)]
struct SpoolState {
    /// Oldest first; the last one is written to.
    segments: VecDeque<Segment>,
    /// The highest segment number so far.
    newest: u64,
    /// The last segment, once this process has written to it.
    file: Option<File>,
    /// How far the first segment is delivered, or skipped.
    offset: u64,
    /// Damaged bytes skipped since the last valid record, and where they begin.
    unreadable: Option<(PathBuf, u64, u64)>,
    /// The last checkpoint written.
    kept: Checkpoint,
    /// The last one delivered.
    delivered: Checkpoint,
    /// Points added since the spool was made.
    written: u64,
    /// Those that are delivered or lost.
    passed: u64,
    dropped: u64,
    damaged: u64,
    closed: bool,
}

/// A spool, shared between writer and deliverer.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    most: u64,
    state: Mutex<SpoolState>,
    news: Condvar,
    /// Held as long as this exists.
    _lock: Lock,
}

fn spool_io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> ExportError + 'a {
    move |source| {
        let path = path.display();
        ExportError(format!(
            "cannot {action} {path} ({source}); name a directory for the spool that this program may write to (`spool`)"
        ))
    }
}

impl Spool {
    /// Opens the spool of `owner` in a directory, which is created if missing; holds at most `most` bytes.
    ///
    /// # Errors
    /// The directory cannot be used, another process uses it, or it is another owner's.
    pub fn open(directory: &Path, owner: &str, most: u64) -> Result<Self, ExportError> {
        let folder = OwnedFolder {
            path: directory,
            kind: "spool",
            owner,
            advice: "give this one another directory (`spool`)",
        };
        let lock = folder.lock().map_err(|error| ExportError(error.to_string()))?;
        let state = recover_state(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            most,
            state: Mutex::new(state),
            news: Condvar::new(),
            _lock: lock,
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, SpoolState> {
        // Each change is made at once, so what a panicking thread left is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        self.lock_state().kept.clone()
    }

    /// Points in it that are neither delivered nor, as far as known, lost.
    pub fn pending_points(&self) -> u64 {
        let state = self.lock_state();
        state.written.saturating_sub(state.passed)
    }

    /// Points that it had no room for.
    pub fn dropped_points(&self) -> u64 {
        self.lock_state().dropped
    }

    /// Points lost because files of the spool were damaged.
    pub fn damaged_points(&self) -> u64 {
        self.lock_state().damaged
    }

    /// Adds a record; it is on disk when this returns.
    pub(crate) fn append_record(
        &self,
        body: &[u8],
        points: u64,
        kept: Checkpoint,
    ) -> Result<(), ExportError> {
        let mut state = self.lock_state();
        let before = state.written;
        let head = RecordHead { bytes: body.len() as u64, crc: crc32fast::hash(body), before, points, kept };
        let framed = record::encode_head(&head, 0, 0).map_err(spool_io_error("write", &self.directory))?;
        self.make_room(&mut state, (framed.len() + body.len()) as u64 + ALIGN)?;
        if let Err(error) = self.write_record(&mut state, &head, body) {
            // Make room on a full disk by removing what was delivered.
            if !self.free_delivered(&mut state, 0) {
                return Err(error);
            }
            self.write_record(&mut state, &head, body)?;
        }
        state.written += points;
        state.kept = head.kept;
        drop(state);
        self.news.notify_all();
        Ok(())
    }

    /// Writes a record at the end of the last segment, or in a new one.
    fn write_record(
        &self,
        state: &mut SpoolState,
        head: &RecordHead,
        body: &[u8],
    ) -> Result<(), ExportError> {
        let size = (self.most / SEGMENTS).max(1);
        // Segments from an earlier process are not touched.
        if state.file.is_none() || state.segments.back().is_none_or(|last| last.bytes >= size) {
            state.file = None;
            if state.segments.back().is_none_or(|last| last.bytes > 0) {
                state.newest += 1;
                let (number, before) = (state.newest, state.written);
                if state.segments.is_empty() {
                    state.offset = 0;
                }
                state.segments.push_back(Segment { number, bytes: 0, before });
            }
        }
        let Some(last) = state.segments.back_mut() else { return Ok(()) };
        let path = segment_path(&self.directory, last.number);
        let file = match &mut state.file {
            Some(file) => file,
            empty => {
                let options = &mut OpenOptions::new();
                let file = own_file::open(&path, options.write(true).create(true))
                    .and_then(|file| own_file::sync_directory(&path).map(|()| file))
                    .map_err(spool_io_error("open", &path))?;
                empty.insert(file)
            }
        };
        // After the last byte known to be valid, overwriting a write that failed.
        let start = last.bytes.next_multiple_of(ALIGN);
        let write = || {
            let mut bytes = record::encode_head(head, last.number, start)?;
            bytes.extend_from_slice(body);
            file.write_all_at(&bytes, start)?;
            file.sync_data()?;
            Ok(start + bytes.len() as u64)
        };
        match write() {
            Ok(end) => {
                last.bytes = end;
                Ok(())
            }
            Err(error) => {
                let _ = file.set_len(last.bytes);
                Err(spool_io_error("write", &path)(error))
            }
        }
    }

    /// Removes the oldest segments until `bytes` more fit.
    fn make_room(&self, state: &mut SpoolState, bytes: u64) -> Result<(), ExportError> {
        while state.segments.iter().map(|segment| segment.bytes).sum::<u64>() + bytes > self.most {
            let Some(oldest) = state.segments.pop_front() else { return Ok(()) };
            if state.segments.is_empty() {
                state.file = None;
            }
            state.offset = 0;
            let until = state.segments.front().map_or(state.written, |next| next.before);
            let points = until.saturating_sub(state.passed);
            state.passed += points;
            state.dropped += points;
            if points > 0 {
                tracing::warn!(points, "the spool is full: dropping its oldest points (`spool_mib`)");
            }
            // Removed first: until then, a full disk has no room for the position.
            remove_if_present(&segment_path(&self.directory, oldest.number))?;
            let segment = state.segments.front().map_or(oldest.number + 1, |next| next.number);
            self.write_position(state, segment)?;
        }
        Ok(())
    }

    /// Saves how far the spool is delivered or dropped, for the next start. Call it with the state locked, so that an older
    /// position never replaces a newer one.
    fn write_position(&self, state: &mut SpoolState, segment: u64) -> Result<(), ExportError> {
        let position =
            Position { segment, offset: state.offset, passed: state.passed, kept: state.delivered.clone() };
        let path = self.directory.join("position");
        let write = || own_file::replace_file(&path, &record::encode_head(&position, 0, 0)?);
        let written = match write() {
            // Make room on a full disk by removing what was delivered.
            Err(_) if self.free_delivered(state, 0) => write(),
            written => written,
        };
        written.map_err(spool_io_error("write", &path))
    }

    /// Removes segments that are completely delivered or skipped, but keeps the last `keep`; returns whether there
    /// were any.
    fn free_delivered(&self, state: &mut SpoolState, keep: usize) -> bool {
        let mut any = false;
        while state.segments.len() > keep
            && let Some(first) = state.segments.front()
            && state.offset >= first.bytes
        {
            let path = segment_path(&self.directory, first.number);
            state.segments.pop_front();
            any = true;
            state.offset = 0;
            if state.segments.is_empty() {
                state.file = None;
            }
            if let Err(error) = remove_if_present(&path) {
                tracing::warn!(%error, "cannot remove what was delivered: it is removed at the next start");
            }
        }
        any
    }

    /// Waits for the oldest undelivered record; `None` if none came in this time, or it is closed.
    pub(crate) fn wait_for_oldest(&self, wait: Duration) -> Result<Option<SpoolRecord>, ExportError> {
        let until = Instant::now() + wait;
        let mut state = self.lock_state();
        loop {
            if state.closed {
                return Ok(None);
            }
            if let Some(record) = self.find_oldest(&mut state)? {
                return Ok(Some(record));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The oldest valid undelivered record. Damage before it is skipped, and counted.
    fn find_oldest(&self, state: &mut SpoolState) -> Result<Option<SpoolRecord>, ExportError> {
        loop {
            self.free_delivered(state, 1);
            let Some(first) = state.segments.front() else { break };
            let (segment, bytes, from) = (first.number, first.bytes, state.offset);
            if from >= bytes {
                break;
            }
            let path = segment_path(&self.directory, segment);
            let found = match File::open(&path) {
                Ok(file) => {
                    record::next(&file, segment, from, bytes).map_err(spool_io_error("read", &path))?
                }
                // Another process removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(spool_io_error("read", &path)(error)),
            };
            let at = found.as_ref().map_or(bytes, |found| found.at);
            if at > from.next_multiple_of(ALIGN) || found.is_none() {
                let (_, _, unreadable) = state.unreadable.get_or_insert((path, from, 0));
                *unreadable += at - from;
            }
            state.offset = at;
            if let Some(SegmentRecord { head, body, end, .. }) = found {
                state.count_damage(head.before);
                let passed = head.before + head.points;
                let RecordHead { points, kept, .. } = head;
                return Ok(Some(SpoolRecord { body, points, kept, segment, end, passed }));
            }
            if state.segments.len() == 1 {
                // Start a new segment, where nothing is damaged.
                state.file = None;
            }
        }
        state.count_damage(state.written);
        Ok(None)
    }

    /// Marks a record as processed; `count` counts it before its points leave [`Spool::pending_points`]. Returns whether it was
    /// still in the spool: it may have been dropped meanwhile, and is not counted then.
    pub(crate) fn mark_delivered(
        &self,
        record: &SpoolRecord,
        count: impl FnOnce(),
    ) -> Result<bool, ExportError> {
        let mut state = self.lock_state();
        if state.segments.front().is_none_or(|first| first.number != record.segment) {
            return Ok(false);
        }
        count();
        (state.offset, state.passed) = (record.end, record.passed);
        state.delivered.clone_from(&record.kept);
        self.write_position(&mut state, record.segment)?;
        Ok(true)
    }

    /// Ends waiting in `Spool::wait_for_oldest`, for good.
    pub fn close(&self) {
        self.lock_state().closed = true;
        self.news.notify_all();
    }

    /// Waits this long, or until the spool is closed; returns whether it is.
    pub(crate) fn wait_for_close(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock_state();
        while !state.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl SpoolState {
    /// Counts what was skipped, all of it before a record with this many points before it.
    fn count_damage(&mut self, before: u64) {
        let points = before.saturating_sub(self.passed);
        self.passed += points;
        self.damaged += points;
        if points > 0 {
            let (path, at, bytes) = self.unreadable.take().unwrap_or_default();
            tracing::error!(
                points, bytes, at, path = %path.display(),
                "a part of the spool is damaged: its points are lost, later ones are delivered"
            );
        }
        self.unreadable = None;
    }
}

fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.spool"))
}

fn remove_if_present(path: &Path) -> Result<(), ExportError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(spool_io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

fn segment_numbers(directory: &Path) -> Result<Vec<u64>, ExportError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(spool_io_error("read", directory))? {
        let name = entry.map_err(spool_io_error("read", directory))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_suffix(".spool")?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The contents of `position`, if it exists and is valid.
fn read_position(directory: &Path) -> Result<Option<Position>, ExportError> {
    let path = directory.join("position");
    let file = match own_file::open(&path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(spool_io_error("read", &path)(error)),
    };
    let read = || record::read_head(&file, 0, 0, file.metadata()?.len());
    let position = read().map_err(spool_io_error("read", &path))?.map(|(position, _)| position);
    if position.is_none() {
        tracing::warn!(path = %path.display(), "the position of the spool is damaged: everything in the spool is \
            sent again");
    }
    Ok(position)
}

/// The contents of a directory. Removes delivered segments, and cuts off what follows the last valid record.
fn recover_state(directory: &Path) -> Result<SpoolState, ExportError> {
    let position = read_position(directory)?;
    let is_known = position.is_some();
    let position = position.unwrap_or_default();
    let numbers = segment_numbers(directory)?;
    let mut state = SpoolState {
        segments: VecDeque::new(),
        newest: numbers.last().copied().unwrap_or(0).max(position.segment),
        file: None,
        offset: 0,
        unreadable: None,
        kept: position.kept.clone(),
        delivered: position.kept,
        written: position.passed,
        passed: position.passed,
        dropped: 0,
        damaged: 0,
        closed: false,
    };
    let mut has_last = false;
    // Newest first: what follows the last valid record was never read, as far as lists are concerned.
    for &number in numbers.iter().rev() {
        let path = segment_path(directory, number);
        if number < position.segment {
            remove_if_present(&path)?;
            continue;
        }
        let from = if number == position.segment { position.offset } else { 0 };
        let file = own_file::open(&path, OpenOptions::new().read(true).write(true))
            .map_err(spool_io_error("open", &path))?;
        let mut look = || {
            let mut bytes = file.metadata()?.len();
            if !has_last {
                let last = record::last_record(&file, number, from, bytes)?;
                let end = last.as_ref().map_or(from.min(bytes), |last| last.end);
                if let Some(SegmentRecord { head, .. }) = last {
                    has_last = true;
                    state.written = head.before + head.points;
                    state.kept = head.kept;
                }
                if bytes > end {
                    tracing::warn!(
                        path = %path.display(), bytes = bytes - end,
                        "the end of the spool is incomplete, as after a crash: it is cut off, and its events are \
                         read again"
                    );
                    file.set_len(end)?;
                    bytes = end;
                }
            }
            let first = record::next(&file, number, from, bytes)?;
            let next = state.segments.front().map_or(state.written, |next| next.before);
            let before = first.map_or(next, |first| first.head.before);
            state.segments.push_front(Segment { number, bytes, before });
            state.offset = from.min(bytes);
            Ok(())
        };
        look().map_err(spool_io_error("read", &path))?;
    }
    // Without a position, nothing before the first segment was delivered or dropped, nor its first record, which may
    // be damaged.
    if !is_known && numbers.first().is_some_and(|first| *first > 1) {
        state.passed = state.segments.front().map_or(0, |first| first.before);
    }
    state.written = state.written.max(state.passed);
    Ok(state)
}
