//! Append: a reader that follows one list with a cursor of its own.

use std::ops::Range;
use std::time::{Duration, Instant};

use dta_proto::layout::append::{
    Cursor, CursorStep, MAX_BATCH_LEN, RingPlaceState, TRAILER_LEN, advance_sequence, batches_between,
    decode_batch, is_sequence_after, place_offset, ring_place,
};
use dta_proto::store::StoreKind;

use crate::region::{AccessError, Region};
use crate::store::Store;

const MAX_BATCH: usize = MAX_BATCH_LEN as usize;

/// A missing batch is given up at once if there is one that is this much later: no link delays a frame that far.
const REORDERED: u32 = 64;

/// Otherwise it is given up after this time: a frame that was merely overtaken has arrived by then.
const PATIENCE: Duration = Duration::from_millis(50);

/// Most batches waited for together. Checking this many takes well below [`PATIENCE`].
const TOGETHER: u64 = 1 << 16;

/// The outcome of a call of [`AppendReader::read`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadProgress {
    pub batches: u64,
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

impl ReadProgress {
    pub fn add(&mut self, other: ReadProgress) {
        self.batches += other.batches;
        self.entries += other.entries;
        self.overwritten += other.overwritten;
        self.missing += other.missing;
        self.damaged += other.damaged;
        self.torn += other.torn;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// From the oldest batch in the ring.
    Oldest,
    Next,
    /// From this sequence (from 1).
    At(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The store has fewer lists.
    #[error("there is no list {list}: there are lists 0 to {last}")]
    NoSuchList {
        list: u32,
        /// The last list.
        last: u32,
    },
    /// The list lies outside the region: the region does not match the store's description.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Reads one list of one append store. Keep it and call [`AppendReader::read`] again for newer batches.
#[derive(Clone, Debug)]
pub struct AppendReader<'a> {
    lists: Lists<'a>,
    at: ReadPosition,
}

/// A reader's position, without the store: [`Lists::resume_reader`] continues from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPosition {
    list: u32,
    cursor: Cursor,
    /// Batches overwritten before this reader began, and not yet reported.
    gone: u64,
    stuck: Option<Stuck>,
}

/// A run of batches that are missing or torn, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stuck {
    since: Instant,
    /// The first batch of the run.
    from: u32,
    /// The last batch of the run: a later batch that was seen then, or the first one if none was.
    to: u32,
    /// Whether a later batch was seen.
    later: bool,
    /// Whether they have been waited for long enough.
    over: bool,
}

impl Stuck {
    fn covers_sequence(&self, sequence: u32, later: bool) -> bool {
        self.later == later && batches_between(self.from, sequence) <= batches_between(self.from, self.to)
    }
}

/// The lists of an append store.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    region: &'a Region,
    lists: u32,
    ring: u64,
    batch_len: u16,
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

    /// Number of lists; they are numbered from 0.
    pub fn list_count(&self) -> u32 {
        self.lists
    }

    pub fn ring_batches(&self) -> u64 {
        self.ring
    }

    /// Bytes per entry.
    pub fn entry_len(&self) -> usize {
        usize::from(self.entry_len)
    }

    /// Sequence of the newest batch in a list's ring; 0 if it is empty. Reads the trailers of the whole ring, and reads
    /// them again if the batch that claims to be the newest is torn.
    ///
    /// # Errors
    /// The ring lies outside the region.
    pub fn newest_sequence(&self, list: u32) -> Result<u32, AccessError> {
        let claimed = self.newest_claim(list, 0..self.ring)?;
        self.newest_valid_sequence(list, claimed)
    }

    /// The newest sequence that a trailer in these places claims, torn or not; 0 if there is none.
    pub(super) fn newest_claim(&self, list: u32, places: Range<u64>) -> Result<u32, AccessError> {
        self.newer_sequence(list, places, |_, _| true)
    }

    /// Sequence of the newest batch of a list, given the result of [`Lists::newest_claim`] for the whole ring.
    pub(super) fn newest_valid_sequence(&self, list: u32, claimed: u32) -> Result<u32, AccessError> {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.batch_len)];
        let mut is_there =
            |sequence, at| self.read_batch_at(list, at, batch) == RingPlaceState::Valid(sequence);
        // If the batch that claims to be the newest is torn, looks for the newest valid one.
        match is_there(claimed, ring_place(claimed, self.ring)) {
            true => Ok(claimed),
            false => self.newer_sequence(list, 0..self.ring, is_there),
        }
    }

    /// The newest sequence that a trailer in these places claims and for which `holds(sequence, place)`; 0 if there is
    /// none. Checks only claims newer than the newest found so far.
    fn newer_sequence(
        &self,
        list: u32,
        places: Range<u64>,
        mut holds: impl FnMut(u32, u64) -> bool,
    ) -> Result<u32, AccessError> {
        let trailer = u64::from(self.batch_len) - TRAILER_LEN as u64;
        let mut newest = 0;
        for at in places {
            let offset = place_offset(list, at, self.ring, self.batch_len) + trailer;
            // Big-endian, the sequence first.
            let claims = (u64::from_be(self.region.load_u64(offset)?) >> 32) as u32;
            if claims != 0
                && ring_place(claims, self.ring) == at
                && (newest == 0 || is_sequence_after(claims, newest))
                && holds(claims, at)
            {
                newest = claims;
            }
        }
        Ok(newest)
    }

    /// The reader of a list. Reads the whole ring, or only its trailers if it starts at a sequence.
    ///
    /// # Errors
    /// There is no such list, or it lies outside the region.
    pub fn open_reader(&self, list: u32, start: ReadStart) -> Result<AppendReader<'a>, ListError> {
        if list >= self.lists {
            return Err(ListError::NoSuchList { list, last: self.lists - 1 });
        }
        self.check_list_bounds(list)?;
        let mut found = Vec::new();
        if !matches!(start, ReadStart::At(_)) {
            self.scan_batches(list, |sequence| found.push(sequence));
        }
        let mut gone = 0;
        let cursor = match start {
            ReadStart::Oldest => Cursor::at_oldest_batch(self.ring, found),
            ReadStart::Next => Cursor::after_latest_batch(self.ring, found),
            ReadStart::At(sequence) if self.is_a_ring_before(self.newest_sequence(list)?, sequence) => {
                // All up to the oldest are gone. A sequence far ahead of a list is treated the same, because sequences
                // wrap.
                self.scan_batches(list, |sequence| found.push(sequence));
                let oldest = Cursor::at_oldest_batch(self.ring, found);
                gone = batches_between(sequence.max(1), oldest.next_sequence()).into();
                oldest
            }
            ReadStart::At(sequence) => Cursor::new(self.ring, sequence),
        };
        Ok(self.resume_reader(ReadPosition { list, cursor, gone, stuck: None }))
    }

    /// The reader with this position in this store.
    pub fn resume_reader(&self, at: ReadPosition) -> AppendReader<'a> {
        AppendReader { lists: *self, at }
    }

    /// Whether no batch of `sequence` can be in a ring whose newest is `newest` (0 = none).
    fn is_a_ring_before(&self, newest: u32, sequence: u32) -> bool {
        let sequence = sequence.max(1);
        newest != 0
            && is_sequence_after(newest, sequence)
            && u64::from(batches_between(sequence, newest)) >= self.ring
    }

    /// Calls `with` for the sequence of every valid batch in a ring.
    fn scan_batches(&self, list: u32, mut with: impl FnMut(u32)) {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.batch_len)];
        for at in 0..self.ring {
            if let RingPlaceState::Valid(sequence) = self.read_batch_at(list, at, batch)
                && ring_place(sequence, self.ring) == at
            {
                with(sequence);
            }
        }
    }

    /// The state of a place of a list that lies [within](Lists::check_list_bounds) the region.
    #[inline]
    fn read_batch_at(&self, list: u32, at: u64, batch: &mut [u8]) -> RingPlaceState {
        match self.region.read(place_offset(list, at, self.ring, self.batch_len), batch) {
            Ok(()) => decode_batch(batch, list, self.entry_len).place_state(),
            Err(_) => RingPlaceState::Empty,
        }
    }

    /// Whether the whole ring of a list lies in the region, which is so if its last word does.
    fn check_list_bounds(&self, list: u32) -> Result<(), AccessError> {
        let end = place_offset(list, self.ring - 1, self.ring, self.batch_len) + u64::from(self.batch_len);
        self.region.load_u64(end - 8).map(drop)
    }
}

impl ReadPosition {
    pub fn next_sequence(&self) -> u32 {
        self.cursor.next_sequence()
    }
}

impl AppendReader<'_> {
    pub fn next_sequence(&self) -> u32 {
        self.at.next_sequence()
    }

    pub fn read_position(&self) -> ReadPosition {
        self.at
    }

    /// Bytes per entry.
    pub fn entry_len(&self) -> usize {
        self.lists.entry_len()
    }

    /// Passes up to `most` batches to `with(sequence, entries)`, with the entries back to back. Gives up missing and
    /// damaged batches when their time is over; `now` must never go back.
    ///
    /// # Errors
    /// The list lies outside the region: the region does not match the store's description.
    pub fn read(
        &mut self,
        most: u64,
        now: Instant,
        mut with: impl FnMut(u32, &[u8]),
    ) -> Result<ReadProgress, AccessError> {
        self.lists.check_list_bounds(self.at.list)?;
        let mut progress =
            ReadProgress { overwritten: std::mem::take(&mut self.at.gone), ..ReadProgress::default() };
        // A constant length for the usual batch turns its copy and its check into straight-line code.
        if self.lists.batch_len == 64 {
            let mut batch = [0u8; 64];
            while progress.batches < most && self.read_next_batch(&mut batch, now, &mut progress, &mut with) {
            }
        } else {
            let mut batch = [0u8; MAX_BATCH];
            let batch = &mut batch[..usize::from(self.lists.batch_len)];
            while progress.batches < most && self.read_next_batch(batch, now, &mut progress, &mut with) {}
        }
        Ok(progress)
    }

    /// Whether the ring holds nothing that [`AppendReader::read`] could hand over or wait for. Looks at the whole ring.
    ///
    /// # Errors
    /// The list lies outside the region.
    pub fn caught_up(&mut self) -> Result<bool, AccessError> {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.lists.batch_len)];
        self.lists.check_list_bounds(self.at.list)?;
        let mut cursor = self.at.cursor;
        for _ in 0..=self.lists.ring / (Cursor::LOOK_AHEAD - Cursor::NEAR) {
            let step = cursor.poll(|at| self.lists.read_batch_at(self.at.list, at, batch));
            // `read` hands over or counts the batch found here; a later batch that was seen is worth remembering.
            if !matches!(step, CursorStep::New { .. } | CursorStep::Overwritten { .. }) {
                self.at.cursor = cursor;
            }
            let nothing_to_wait_for = match step {
                CursorStep::Pending => true,
                CursorStep::Torn { sequence, later: false } => {
                    self.at.stuck.is_some_and(|stuck| stuck.over && stuck.covers_sequence(sequence, false))
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
    /// up](AppendReader::caught_up) counts them as damaged, but does not pass them, because the batches that belong there
    /// may not have been written yet.
    ///
    /// # Errors
    /// The list lies outside the region.
    pub fn torn_behind(&self) -> Result<u64, AccessError> {
        let mut batch = [0u8; MAX_BATCH];
        let batch = &mut batch[..usize::from(self.lists.batch_len)];
        self.lists.check_list_bounds(self.at.list)?;
        let ring = self.lists.ring;
        let mut is_torn = |ahead: &u64| {
            let at = ring_place(advance_sequence(self.next_sequence(), *ahead as u32), ring);
            match self.lists.read_batch_at(self.at.list, at, batch) {
                RingPlaceState::Torn => true,
                RingPlaceState::Valid(found) => ring_place(found, ring) != at,
                RingPlaceState::Empty => false,
            }
        };
        Ok((0..ring).take_while(&mut is_torn).count() as u64)
    }

    /// One step; `false` if there is nothing more for now.
    #[inline(always)]
    fn read_next_batch(
        &mut self,
        batch: &mut [u8],
        now: Instant,
        progress: &mut ReadProgress,
        with: &mut impl FnMut(u32, &[u8]),
    ) -> bool {
        let (lists, list) = (self.lists, self.at.list);
        match self.at.cursor.poll(|at| lists.read_batch_at(list, at, batch)) {
            CursorStep::New { sequence } => {
                let count = batch[batch.len() - 4];
                let entries = &batch[..usize::from(count) * lists.entry_len()];
                progress.batches += 1;
                progress.entries += u64::from(count);
                with(sequence, entries);
                true
            }
            CursorStep::Overwritten { count, .. } => {
                progress.overwritten += u64::from(count);
                true
            }
            CursorStep::Missing { sequence } => {
                let give_up =
                    self.overtaken(sequence, batch) || self.has_waited_enough(sequence, true, now, batch);
                if give_up {
                    self.at.cursor.skip_batch();
                    progress.missing += 1;
                }
                give_up
            }
            CursorStep::Torn { sequence, later } => match self.has_waited_enough(sequence, later, now, batch)
            {
                true if later => {
                    self.at.cursor.skip_batch();
                    progress.damaged += 1;
                    true
                }
                true => false,
                false => {
                    progress.torn += 1;
                    false
                }
            },
            CursorStep::Pending => {
                self.at.stuck = None;
                false
            }
        }
    }

    /// Whether there is a much later batch than `sequence`.
    fn overtaken(&self, sequence: u32, batch: &mut [u8]) -> bool {
        let ring = self.lists.ring;
        let later = advance_sequence(sequence, REORDERED);
        u64::from(REORDERED) < ring
            && matches!(self.lists.read_batch_at(self.at.list, ring_place(later, ring), batch),
                RingPlaceState::Valid(found) if found == later || is_sequence_after(found, later))
    }

    /// Whether `sequence`, the next one, has been waited for long enough since it was first seen to be stuck, with or
    /// without a later batch after it.
    #[cold]
    fn has_waited_enough(&mut self, sequence: u32, later: bool, now: Instant, batch: &mut [u8]) -> bool {
        if let Some(stuck) = self.at.stuck.as_mut().filter(|stuck| stuck.covers_sequence(sequence, later)) {
            stuck.over = stuck.over || now.saturating_duration_since(stuck.since) >= PATIENCE;
            return stuck.over;
        }
        let (lists, list) = (self.lists, self.at.list);
        // The wait for all batches before the latest one starts now.
        self.at.cursor.scan_ahead(TOGETHER, REORDERED, |at| lists.read_batch_at(list, at, batch));
        let seen = self.at.cursor.latest_seen();
        let (to, later) = (seen.unwrap_or(sequence), seen.is_some());
        self.at.stuck = Some(Stuck { since: now, from: sequence, to, later, over: false });
        false
    }
}
