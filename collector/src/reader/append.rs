//! Append: a reader that follows one list with a cursor of its own.

use std::time::{Duration, Instant};

use dta_proto::layout::append::{
    Cursor, Found, Step, TRAILER_LEN, decode, distance, forward, is_after, place, place_offset,
};
use dta_proto::store::StoreKind;

use crate::region::{AccessError, Region};
use crate::store::Store;

const MAX_BATCH: usize = 128;

/// A missing batch is given up at once when one this much later is there: no link delays a frame that far.
const REORDERED: u32 = 64;

/// Otherwise it is given up after this time: a frame that was merely overtaken is here by then.
const PATIENCE: Duration = Duration::from_millis(50);

/// Most batches waited for together. Checking that many takes well below [`PATIENCE`].
const TOGETHER: u64 = 1 << 16;

/// The outcome of a call of [`Reader::read`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Batches handed over.
    pub batches: u64,
    /// Entries in them.
    pub entries: u64,
    /// Batches that the writer overwrote before they could be read.
    pub overwritten: u64,
    /// Batches that never came, although later ones did.
    pub missing: u64,
    /// Places whose bytes never became a valid batch, and were given up.
    pub damaged: u64,
    /// Times that a batch was seen half-written and retried later.
    pub torn: u64,
}

impl Progress {
    /// Adds two outcomes.
    pub fn add(&mut self, other: Progress) {
        self.batches += other.batches;
        self.entries += other.entries;
        self.overwritten += other.overwritten;
        self.missing += other.missing;
        self.damaged += other.damaged;
        self.torn += other.torn;
    }
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest batch in the ring.
    Oldest,
    /// With what comes next.
    Next,
    /// With this sequence (from 1).
    At(u32),
}

/// Why a list cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The store has fewer lists.
    #[error("there is no list {list}: there are lists 0 to {last}")]
    NoSuchList {
        /// The requested list.
        list: u32,
        /// The last list.
        last: u32,
    },
    /// The list lies outside the region: the region does not match the store's description.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Reads one list of one append store. Keep it and call [`Reader::read`] again for newer batches.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    lists: Lists<'a>,
    at: ReadPosition,
}

/// A reader's position, without the store: [`Lists::resume`] continues from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPosition {
    list: u32,
    cursor: Cursor,
    /// Batches that were overwritten before this reader began, and are not reported yet.
    gone: u64,
    /// What it waits for.
    stuck: Option<Stuck>,
}

/// Batches that are missing or torn, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stuck {
    since: Instant,
    /// The first one.
    from: u32,
    /// The last one: a later batch that was there then, or the first if there was none.
    to: u32,
    /// Whether there was a later one.
    later: bool,
    /// Whether they have been waited for long enough.
    over: bool,
}

impl Stuck {
    fn is_of(&self, sequence: u32, later: bool) -> bool {
        self.later == later && distance(self.from, sequence) <= distance(self.from, self.to)
    }
}

/// The lists of an append store.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    region: &'a Region,
    lists: u32,
    ring: u64,
    batch_len: u8,
    entry_len: u8,
}

impl<'a> Lists<'a> {
    /// The lists of a store; `None` if it is of another kind.
    pub fn new(store: &'a Store) -> Option<Self> {
        match store.spec.kind {
            StoreKind::Append { lists, ring, batch_len, entry_len, .. } => {
                Some(Self { region: &store.region, lists, ring, batch_len, entry_len })
            }
            _ => None,
        }
    }

    /// How many lists there are, from 0.
    pub fn count(&self) -> u32 {
        self.lists
    }

    /// Batches of each.
    pub fn ring(&self) -> u64 {
        self.ring
    }

    /// Bytes per entry.
    pub fn entry_len(&self) -> usize {
        usize::from(self.entry_len)
    }

    /// Sequence of the newest batch in a list's ring; 0 if it is empty. Reads the trailers of the whole ring twice:
    /// the one that claims to be the newest is checked first, so that few others must be.
    ///
    /// # Errors
    /// The ring lies outside the region.
    pub fn newest(&self, list: u32) -> Result<u32, AccessError> {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.batch_len)];
        let mut is_there = |sequence, at| self.look(list, at, batch) == Found::Valid(sequence);
        let claimed = self.newer(list, 0, |_, _| true)?;
        let known = if is_there(claimed, place(claimed, self.ring)) { claimed } else { 0 };
        self.newer(list, known, is_there)
    }

    /// The newest sequence that a trailer of a ring claims and for which `holds(sequence, place)`; `known` if none is
    /// newer (0 = none is known). Checks only sequences newer than the newest found so far.
    fn newer(
        &self,
        list: u32,
        known: u32,
        mut holds: impl FnMut(u32, u64) -> bool,
    ) -> Result<u32, AccessError> {
        let trailer = u64::from(self.batch_len) - TRAILER_LEN as u64;
        let mut newest = known;
        for at in 0..self.ring {
            let offset = place_offset(list, at, self.ring, self.batch_len) + trailer;
            // Big-endian, the sequence first.
            let claims = (u64::from_be(self.region.load_u64(offset)?) >> 32) as u32;
            if claims != 0
                && place(claims, self.ring) == at
                && (newest == 0 || is_after(claims, newest))
                && holds(claims, at)
            {
                newest = claims;
            }
        }
        Ok(newest)
    }

    /// The reader of a list. Reads the whole ring, or its trailers if it begins at a sequence.
    ///
    /// # Errors
    /// There is no such list, or it lies outside the region.
    pub fn reader(&self, list: u32, start: Start) -> Result<Reader<'a>, ListError> {
        if list >= self.lists {
            return Err(ListError::NoSuchList { list, last: self.lists - 1 });
        }
        self.within(list)?;
        let mut found = Vec::new();
        if !matches!(start, Start::At(_)) {
            self.scan(list, |sequence| found.push(sequence));
        }
        let mut gone = 0;
        let cursor = match start {
            Start::Oldest => Cursor::oldest(self.ring, found),
            Start::Next => Cursor::latest(self.ring, found),
            Start::At(sequence) if self.is_a_ring_before(self.newest(list)?, sequence) => {
                // All up to the oldest are gone. Sequences far ahead of a list are treated the same, as sequences
                // wrap.
                self.scan(list, |sequence| found.push(sequence));
                let oldest = Cursor::oldest(self.ring, found);
                gone = distance(sequence.max(1), oldest.sequence()).into();
                oldest
            }
            Start::At(sequence) => Cursor::new(self.ring, sequence),
        };
        Ok(self.resume(ReadPosition { list, cursor, gone, stuck: None }))
    }

    /// The reader with this position in this store.
    pub fn resume(&self, at: ReadPosition) -> Reader<'a> {
        Reader { lists: *self, at }
    }

    /// Whether no batch of `sequence` can be in a ring whose newest is `newest` (0 = none).
    fn is_a_ring_before(&self, newest: u32, sequence: u32) -> bool {
        let sequence = sequence.max(1);
        newest != 0 && is_after(newest, sequence) && u64::from(distance(sequence, newest)) >= self.ring
    }

    /// Calls `with` for the sequence of every valid batch in a ring.
    fn scan(&self, list: u32, mut with: impl FnMut(u32)) {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.batch_len)];
        for at in 0..self.ring {
            if let Found::Valid(sequence) = self.look(list, at, batch)
                && place(sequence, self.ring) == at
            {
                with(sequence);
            }
        }
    }

    /// What is at a place of a list that lies [within](Lists::within) the region.
    #[inline]
    fn look(&self, list: u32, at: u64, batch: &mut [u8]) -> Found {
        match self.region.read(place_offset(list, at, self.ring, self.batch_len), batch) {
            Ok(()) => decode(batch, list, self.entry_len).found(),
            Err(_) => Found::Empty,
        }
    }

    /// Whether the whole ring of a list lies in the region: true if its last word does.
    fn within(&self, list: u32) -> Result<(), AccessError> {
        let end = place_offset(list, self.ring - 1, self.ring, self.batch_len) + u64::from(self.batch_len);
        self.region.load_u64(end - 8).map(drop)
    }
}

impl ReadPosition {
    /// The sequence of the next batch to read.
    pub fn sequence(&self) -> u32 {
        self.cursor.sequence()
    }
}

impl Reader<'_> {
    /// The sequence of the next batch to read.
    pub fn sequence(&self) -> u32 {
        self.at.sequence()
    }

    /// Its position.
    pub fn place(&self) -> ReadPosition {
        self.at
    }

    /// Bytes per entry.
    pub fn entry_len(&self) -> usize {
        self.lists.entry_len()
    }

    /// Passes up to `most` batches to `with(sequence, entries)`, with the entries back to back. Gives up missing and
    /// damaged batches when it is time; `now` must never go back.
    ///
    /// # Errors
    /// The list lies outside the region: the region does not match the store's description.
    pub fn read(
        &mut self,
        most: u64,
        now: Instant,
        mut with: impl FnMut(u32, &[u8]),
    ) -> Result<Progress, AccessError> {
        self.lists.within(self.at.list)?;
        let mut progress = Progress { overwritten: std::mem::take(&mut self.at.gone), ..Progress::default() };
        let mut batch = [0u8; MAX_BATCH];
        // A constant length for the usual batch makes its copy and its check straight-line code.
        if self.lists.batch_len == 64 {
            let batch: &mut [u8; 64] = batch.first_chunk_mut().expect("64 of 128 bytes");
            while progress.batches < most && self.step(batch, now, &mut progress, &mut with) {}
        } else {
            let batch = &mut batch[..usize::from(self.lists.batch_len)];
            while progress.batches < most && self.step(batch, now, &mut progress, &mut with) {}
        }
        Ok(progress)
    }

    /// Whether nothing that [`Reader::read`] could hand over or wait for is in the ring. Looks at the whole
    /// ring.
    ///
    /// # Errors
    /// The list lies outside the region.
    pub fn caught_up(&mut self) -> Result<bool, AccessError> {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.lists.batch_len)];
        self.lists.within(self.at.list)?;
        let mut cursor = self.at.cursor;
        for _ in 0..=self.lists.ring / (Cursor::LOOK_AHEAD - Cursor::NEAR) {
            let step = cursor.poll(|at| self.lists.look(self.at.list, at, batch));
            // `read` hands over or counts a batch that was found; a later one that was sighted is worth remembering.
            if !matches!(step, Step::New { .. } | Step::Overwritten { .. }) {
                self.at.cursor = cursor;
            }
            let nothing_to_wait_for = match step {
                Step::Pending => true,
                Step::Torn { sequence, later: false } => {
                    self.at.stuck.is_some_and(|stuck| stuck.over && stuck.is_of(sequence, false))
                }
                _ => false,
            };
            if !nothing_to_wait_for {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How many consecutive places after the last batch hold invalid bytes. A reader that has [caught
    /// up](Reader::caught_up) counts them as damaged, but stays before them, as the batches that belong there may not
    /// have been written yet.
    ///
    /// # Errors
    /// The list lies outside the region.
    pub fn torn_behind(&self) -> Result<u64, AccessError> {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.lists.batch_len)];
        self.lists.within(self.at.list)?;
        let ring = self.lists.ring;
        let mut is_torn = |ahead: &u64| {
            let at = place(forward(self.sequence(), *ahead as u32), ring);
            match self.lists.look(self.at.list, at, batch) {
                Found::Torn => true,
                Found::Valid(found) => place(found, ring) != at,
                Found::Empty => false,
            }
        };
        Ok((0..ring).take_while(&mut is_torn).count() as u64)
    }

    /// One step; `false` if there is nothing more for now.
    #[inline(always)]
    fn step(
        &mut self,
        batch: &mut [u8],
        now: Instant,
        progress: &mut Progress,
        with: &mut impl FnMut(u32, &[u8]),
    ) -> bool {
        let (lists, list) = (self.lists, self.at.list);
        match self.at.cursor.poll(|at| lists.look(list, at, batch)) {
            Step::New { sequence } => {
                let count = batch[batch.len() - 4];
                let entries = &batch[..usize::from(count) * lists.entry_len()];
                progress.batches += 1;
                progress.entries += u64::from(count);
                with(sequence, entries);
                true
            }
            Step::Overwritten { count, .. } => {
                progress.overwritten += u64::from(count);
                true
            }
            Step::Missing { sequence } => {
                let give_up = self.overtaken(sequence, batch) || self.waited(sequence, true, now, batch);
                if give_up {
                    self.at.cursor.skip();
                    progress.missing += 1;
                }
                give_up
            }
            Step::Torn { sequence, later } => match self.waited(sequence, later, now, batch) {
                true if later => {
                    self.at.cursor.skip();
                    progress.damaged += 1;
                    true
                }
                true => false,
                false => {
                    progress.torn += 1;
                    false
                }
            },
            Step::Pending => {
                self.at.stuck = None;
                false
            }
        }
    }

    /// Whether a much later batch than `sequence` is there.
    fn overtaken(&self, sequence: u32, batch: &mut [u8]) -> bool {
        let ring = self.lists.ring;
        let later = forward(sequence, REORDERED);
        u64::from(REORDERED) < ring
            && matches!(self.lists.look(self.at.list, place(later, ring), batch),
                Found::Valid(found) if found == later || is_after(found, later))
    }

    /// Whether `sequence`, the next one, has been waited for long enough since it was first seen to be stuck, with or
    /// without a later one behind it.
    #[cold]
    fn waited(&mut self, sequence: u32, later: bool, now: Instant, batch: &mut [u8]) -> bool {
        if let Some(stuck) = self.at.stuck.as_mut().filter(|stuck| stuck.is_of(sequence, later)) {
            stuck.over = stuck.over || now.saturating_duration_since(stuck.since) >= PATIENCE;
            return stuck.over;
        }
        let (lists, list) = (self.lists, self.at.list);
        // The wait for all before the latest one starts now.
        self.at.cursor.sight(TOGETHER, REORDERED, |at| lists.look(list, at, batch));
        let seen = self.at.cursor.seen();
        let (to, later) = (seen.unwrap_or(sequence), seen.is_some());
        self.at.stuck = Some(Stuck { since: now, from: sequence, to, later, over: false });
        false
    }
}
