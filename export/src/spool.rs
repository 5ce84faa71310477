//! A bounded queue on disk between what is read and a database. Everything goes through it, so that a database that is
//! away is nothing special, and what a killed process had taken is there after its next start.
//!
//! A directory holds segments (`N.spool`, from 1), each a row of records, and `position`: what has been delivered. A
//! record is one line of JSON ([`Head`]) and as many bytes as that says. It is written to disk (`fdatasync`) before
//! [`Spool::append`] returns. When the bound is reached, the oldest segment goes, and what was in it is counted as dropped.
//! A record that was half written when the machine stopped is cut off, and its events are read again.
//!
//! Records know how far the lists were read ([`Kept`]): what is in the spool was read, what is not was not. So each event
//! is in one record, and a record is sent again, byte for byte, until the database has taken it.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use dta_cli::own_file;

use crate::events::Positions;
use crate::unique::Last;

/// Segments that the bound is divided into: so much goes at a time when it is reached.
const SEGMENTS: u64 = 16;
/// The longest head that is believed, in bytes.
const HEAD: u64 = 64 << 10;

/// Why a spool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// A file or the directory.
    #[error("cannot {action} {} ({source}); name a directory for the spool that this program may write (`spool`)", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Somebody else has it.
    #[error("another exporter uses the spool {}; stop it, or give this one another (`spool`)", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
}

/// What is to be known at the next start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// How far each list was read.
    pub(crate) read: Positions,
    /// The last times of series.
    pub(crate) recent: Vec<Last>,
}

/// What stands in front of a record.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Bytes of the record.
    bytes: u64,
    /// CRC-32 of these.
    crc: u32,
    /// Points in it.
    points: u64,
    #[serde(flatten)]
    kept: Kept,
}

/// What `position` says.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Position {
    segment: u64,
    /// Bytes of the segment that are delivered.
    offset: u64,
    #[serde(flatten)]
    kept: Kept,
}

/// The oldest record that is not delivered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Its bytes.
    pub(crate) body: Vec<u8>,
    /// Points in it.
    pub(crate) points: u64,
    kept: Kept,
    segment: u64,
    /// Where it ends in its segment.
    end: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    /// Points in it that are not delivered.
    points: u64,
}

#[derive(Debug)]
struct State {
    /// Oldest first; the last one is written to.
    segments: VecDeque<Segment>,
    file: Option<File>,
    /// How far the first segment is delivered.
    offset: u64,
    /// Of what was written last.
    kept: Kept,
    /// Of what was delivered last.
    delivered: Kept,
    dropped: u64,
    closed: bool,
}

/// A spool. Shared between who writes and who delivers.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    most: u64,
    state: Mutex<State>,
    news: Condvar,
    /// Locked as long as this is used.
    _lock: File,
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SpoolError + 'a {
    move |source| SpoolError::File { action, path: path.to_owned(), source }
}

impl Spool {
    /// Opens the spool in a directory, which is made if it is not there; `most` bytes are kept at most.
    ///
    /// # Errors
    /// The directory cannot be used, or somebody else does.
    pub fn open(directory: &Path, most: u64) -> Result<Self, SpoolError> {
        fs::create_dir_all(directory).map_err(failed("make", directory))?;
        let lock_path = directory.join("lock");
        let lock = own_file::open(&lock_path, OpenOptions::new().write(true).create(true))
            .map_err(failed("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(SpoolError::Locked { path: directory.to_owned() });
            }
            Err(fs::TryLockError::Error(source)) => return Err(failed("lock", &lock_path)(source)),
        }
        let position_path = directory.join("position");
        let position: Position = match fs::read(&position_path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %position_path.display(), %error, "the position of the spool cannot be read: all that is in it is sent again");
                Position::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Position::default(),
            Err(error) => return Err(failed("read", &position_path)(error)),
        };
        let mut state = State {
            segments: VecDeque::new(),
            file: None,
            offset: 0,
            kept: position.kept.clone(),
            delivered: position.kept,
            dropped: 0,
            closed: false,
        };
        for number in numbers(directory)? {
            let path = segment_path(directory, number);
            if number < position.segment {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
                continue;
            }
            let from = if number == position.segment { position.offset } else { 0 };
            let (bytes, points, kept) = look_through(&path, from)?;
            if state.segments.is_empty() {
                state.offset = from.min(bytes);
            }
            state.kept = kept.unwrap_or(state.kept);
            state.segments.push_back(Segment { number, bytes, points });
        }
        // What was delivered may be ahead of what is there, but numbers are not used again.
        if state.segments.is_empty() && position.segment != 0 {
            state.segments.push_back(Segment { number: position.segment + 1, bytes: 0, points: 0 });
        }
        let spool = Self {
            directory: directory.to_owned(),
            most,
            state: Mutex::new(state),
            news: Condvar::new(),
            _lock: lock,
        };
        Ok(spool)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is made at once, so what a panicking thread left is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was kept with the last record.
    pub(crate) fn kept(&self) -> Kept {
        self.state().kept.clone()
    }

    /// Points in it that are not delivered.
    pub fn points(&self) -> u64 {
        self.state().segments.iter().map(|segment| segment.points).sum()
    }

    /// Points that it had no place for.
    pub fn dropped(&self) -> u64 {
        self.state().dropped
    }

    /// Adds a record; it is on disk when this returns.
    pub(crate) fn append(&self, body: &[u8], points: u64, kept: Kept) -> Result<(), SpoolError> {
        let head = Head { bytes: body.len() as u64, crc: crc32fast::hash(body), points, kept };
        let mut record = serde_json::to_vec(&head).map_err(|error| {
            failed("write", &self.directory)(io::Error::new(io::ErrorKind::InvalidData, error))
        })?;
        record.push(b'\n');
        record.extend_from_slice(body);
        let mut state = self.state();
        self.make_room(&mut state, record.len() as u64)?;
        let size = (self.most / SEGMENTS).max(1);
        if state.segments.back().is_none_or(|last| last.bytes >= size) {
            let number = state.segments.back().map_or(1, |last| last.number + 1);
            state.segments.push_back(Segment { number, bytes: 0, points: 0 });
            state.file = None;
        }
        let (number, start) = state.segments.back().map_or((1, 0), |last| (last.number, last.bytes));
        let path = segment_path(&self.directory, number);
        let file = match &mut state.file {
            Some(file) => file,
            empty => {
                let options = &mut OpenOptions::new();
                let file = own_file::open(&path, options.write(true).create(true))
                    .and_then(|file| own_file::sync_directory(&path).map(|()| file))
                    .map_err(failed("open", &path))?;
                empty.insert(file)
            }
        };
        // At the end of what is known to be whole: what failed half-way before is written over.
        let written = file.seek(SeekFrom::Start(start)).and_then(|_| file.write_all(&record));
        if let Err(error) = written.and_then(|()| file.sync_data()) {
            let _ = file.set_len(start);
            return Err(failed("write", &path)(error));
        }
        if let Some(last) = state.segments.back_mut() {
            last.bytes += record.len() as u64;
            last.points += points;
        }
        state.kept = head.kept;
        drop(state);
        self.news.notify_all();
        Ok(())
    }

    /// Removes the oldest segments until `bytes` more fit.
    fn make_room(&self, state: &mut State, bytes: u64) -> Result<(), SpoolError> {
        while state.segments.iter().map(|segment| segment.bytes).sum::<u64>() + bytes > self.most {
            let Some(oldest) = state.segments.pop_front() else { return Ok(()) };
            if state.segments.is_empty() {
                state.file = None;
                state.segments.push_back(Segment { number: oldest.number + 1, bytes: 0, points: 0 });
            }
            state.offset = 0;
            state.dropped += oldest.points;
            if oldest.points > 0 {
                tracing::warn!(
                    points = oldest.points,
                    "the spool is full: its oldest points are dropped (`spool_mib`)"
                );
            }
            remove(&segment_path(&self.directory, oldest.number))?;
            if oldest.bytes == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits for the oldest record that is not delivered; `None` if none came in this time, or it is closed.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn oldest(&self, wait: Duration) -> Result<Option<Record>, SpoolError> {
        let until = Instant::now() + wait;
        let mut state = self.state();
        loop {
            if state.closed {
                return Ok(None);
            }
            // Segments that are delivered are of no use, but the last one is still written to.
            while state.segments.len() > 1 && state.offset >= state.segments[0].bytes {
                if let Some(done) = state.segments.pop_front() {
                    state.offset = 0;
                    remove(&segment_path(&self.directory, done.number))?;
                }
            }
            if let Some(first) = state.segments.front()
                && state.offset < first.bytes
            {
                let (number, offset) = (first.number, state.offset);
                return self.read(number, offset).map(Some);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, number: u64, offset: u64) -> Result<Record, SpoolError> {
        let path = segment_path(&self.directory, number);
        let read = || {
            let mut file = BufReader::new(File::open(&path)?);
            file.seek(SeekFrom::Start(offset))?;
            let (head, body, length) = read_record(&mut file)?
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a record is damaged"))?;
            let Head { points, kept, .. } = head;
            Ok(Record { body, points, kept, segment: number, end: offset + length })
        };
        read().map_err(failed("read", &path))
    }

    /// The record is done with. Gives whether it still was in the spool: it may have been dropped meanwhile.
    pub(crate) fn done(&self, record: &Record) -> Result<bool, SpoolError> {
        let mut state = self.state();
        let Some(first) = state.segments.front_mut().filter(|first| first.number == record.segment) else {
            return Ok(false);
        };
        first.points = first.points.saturating_sub(record.points);
        state.offset = record.end;
        state.delivered = record.kept.clone();
        let position =
            Position { segment: record.segment, offset: record.end, kept: state.delivered.clone() };
        // With the state in hand, so that an older position never takes the place of a newer one.
        let path = self.directory.join("position");
        let write = || own_file::replace(&path, &serde_json::to_vec(&position)?);
        write().map_err(failed("write", &path))?;
        Ok(true)
    }

    /// Gives up the oldest segment, which cannot be read; what was in it counts as dropped.
    pub(crate) fn give_up_oldest(&self) {
        let mut state = self.state();
        let Some(oldest) = state.segments.pop_front() else { return };
        if state.segments.is_empty() {
            state.file = None;
            state.segments.push_back(Segment { number: oldest.number + 1, bytes: 0, points: 0 });
        }
        state.offset = 0;
        state.dropped += oldest.points;
        if let Err(error) = remove(&segment_path(&self.directory, oldest.number)) {
            tracing::warn!(%error, "what was given up is still there");
        }
    }

    /// Ends waiting in [`Spool::oldest`], for good.
    pub fn close(&self) {
        self.state().closed = true;
        self.news.notify_all();
    }

    /// Waits for so long, or until it is closed; gives whether it is.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state();
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

fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.spool"))
}

fn remove(path: &Path) -> Result<(), SpoolError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The segments that there are, in order.
fn numbers(directory: &Path) -> Result<Vec<u64>, SpoolError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed("read", directory))? {
        let name = entry.map_err(failed("read", directory))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_suffix(".spool")?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A record, and its bytes with its head; `None` where there is no whole one.
fn read_record(file: &mut impl BufRead) -> io::Result<Option<(Head, Vec<u8>, u64)>> {
    let mut line = Vec::new();
    file.by_ref().take(HEAD).read_until(b'\n', &mut line)?;
    let Ok(head) = serde_json::from_slice::<Head>(&line) else { return Ok(None) };
    let mut body = Vec::new();
    file.by_ref().take(head.bytes).read_to_end(&mut body)?;
    if body.len() as u64 != head.bytes || crc32fast::hash(&body) != head.crc {
        return Ok(None);
    }
    let length = line.len() as u64 + head.bytes;
    Ok(Some((head, body, length)))
}

/// Bytes of whole records in a segment, points in those from `from` on, and what was kept with the last of them. What
/// is behind them is cut off.
fn look_through(path: &Path, from: u64) -> Result<(u64, u64, Option<Kept>), SpoolError> {
    let look = || {
        let mut file = BufReader::new(OpenOptions::new().read(true).write(true).open(path)?);
        let (mut bytes, mut points, mut kept) = (0, 0, None);
        while let Some((head, _, length)) = read_record(&mut file)? {
            points += if bytes >= from { head.points } else { 0 };
            bytes += length;
            kept = Some(head.kept);
        }
        if file.get_ref().metadata()?.len() > bytes {
            tracing::warn!(path = %path.display(), "the last record of the spool is not whole: it is cut off and read again");
            file.get_ref().set_len(bytes)?;
        }
        Ok((bytes, points, kept))
    };
    look().map_err(failed("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(n: u32) -> Kept {
        Kept { read: [n, 0, 0, 0], recent: Vec::new() }
    }

    fn oldest(spool: &Spool) -> Option<Record> {
        spool.oldest(Duration::ZERO).unwrap()
    }

    #[test]
    fn what_was_not_delivered_is_there_after_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Spool::open(folder.path(), 1 << 20).unwrap();
        let spool = open();
        assert!(oldest(&spool).is_none());
        for n in 1..=3 {
            spool.append(&[b'0' + n as u8; 10], 2, kept(n)).unwrap();
        }
        let first = oldest(&spool).unwrap();
        assert_eq!((first.body.as_slice(), first.points), (&[b'1'; 10][..], 2));
        assert!(spool.done(&first).unwrap());
        assert!(matches!(Spool::open(folder.path(), 1 << 20), Err(SpoolError::Locked { .. })));
        drop(spool);
        let spool = open();
        assert_eq!((spool.points(), spool.kept()), (4, kept(3)));
        for n in 2..=3 {
            let record = oldest(&spool).unwrap();
            assert_eq!(record.body, [b'0' + n; 10]);
            spool.done(&record).unwrap();
        }
        assert!(oldest(&spool).is_none());
        spool.append(b"4", 1, kept(4)).unwrap();
        drop(spool);
        let spool = open();
        assert_eq!((oldest(&spool).unwrap().body.as_slice(), spool.kept()), (&b"4"[..], kept(4)));
    }

    #[test]
    fn what_was_half_written_is_cut_off_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), 1 << 20).unwrap();
        (1..=2).for_each(|n| spool.append(&[7; 100], 1, kept(n)).unwrap());
        drop(spool);
        let path = segment_path(folder.path(), 1);
        let length = fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
        let spool = Spool::open(folder.path(), 1 << 20).unwrap();
        assert_eq!((spool.points(), spool.kept()), (1, kept(1)));
        spool.append(&[8; 100], 1, kept(2)).unwrap();
        let record = oldest(&spool).unwrap();
        spool.done(&record).unwrap();
        assert_eq!(oldest(&spool).unwrap().body, [8; 100]);
    }

    #[test]
    fn beyond_its_bound_the_oldest_is_dropped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), 16 << 10).unwrap();
        for n in 1..=100 {
            spool.append(&[n as u8; 1000], 1, kept(n)).unwrap();
            let on_disk: u64 = fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().metadata().unwrap().len())
                .sum();
            assert!(on_disk <= 16 << 10, "{on_disk}");
        }
        assert!(spool.dropped() > 80);
        assert_eq!(spool.dropped() + spool.points(), 100);
        let mut next = spool.dropped() + 1;
        while let Some(record) = oldest(&spool) {
            assert_eq!(record.body[0], next as u8);
            next += 1;
            spool.done(&record).unwrap();
        }
        assert_eq!((next, spool.points()), (101, 0));
    }

    #[test]
    fn a_lock_that_is_no_regular_file_is_neither_waited_for_nor_followed() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock");
        let refused = || Spool::open(folder.path(), 1 << 20).unwrap_err().to_string();
        std::os::unix::fs::symlink(folder.path().join("other"), &lock).unwrap();
        assert!(refused().contains("regular file"), "{}", refused());
        assert!(!folder.path().join("other").exists());
        fs::remove_file(&lock).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
        assert!(refused().contains("regular file"), "{}", refused());
    }

    #[test]
    fn a_record_that_was_dropped_while_it_was_sent_moves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), 4 << 10).unwrap();
        spool.append(&[1; 1000], 1, kept(1)).unwrap();
        let sent = oldest(&spool).unwrap();
        (2..=10).for_each(|n| spool.append(&[n as u8; 1000], 1, kept(n)).unwrap());
        assert!(!spool.done(&sent).unwrap());
        assert_eq!(spool.dropped() + spool.points(), 10);
    }
}
