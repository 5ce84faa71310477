//! Append: lists, each a ring of batches.
//!
//! ```text
//!  0                                        len-8        len-4   len-3      len
//! | entry 0 | entry 1 | … | zeros            | sequence u32 | count | check u24 |
//! ```
//!
//! All big-endian. `check` is the low 24 bits of CRC-32/ISO-HDLC over
//! `list u32 ‖ bytes 0 to len-8 ‖ sequence ‖ count`: the whole entries area, zeros included. A trailing
//! sequence number alone does not reveal a tear: a reader's copy can hold old entries and the new trailer.
//!
//! Batches of a list are numbered from 1 ([`next`]); 0 means never written. Batch s lies at ring place
//! (s - 1) mod ring. After 2^32 - 1 comes 1 again; since 2^32 - 1 is odd and a ring a power of two, the
//! ring's last place then keeps its batch of the turn before.
//!
//! [`Cursor`] is a reader's state for one list: it detects new, overwritten (and how many), missing and torn
//! batches.

use super::read_be_u32;
use crate::crc;

/// Length of the trailer: sequence, count and check.
pub const TRAILER_LEN: usize = 8;

/// Longest batch: the payload of a RoCEv2 packet at the largest path MTU.
pub const MAX_BATCH_LEN: u16 = 4096;

/// Entries of `entry_len` bytes in a batch of `batch_len` bytes: at most 255, as their count takes a byte.
///
/// # Panics
/// If `entry_len` is 0 or `batch_len` below 8.
#[inline]
pub fn entries_per_batch(batch_len: u16, entry_len: u8) -> u8 {
    ((batch_len - TRAILER_LEN as u16) / u16::from(entry_len)).min(u8::MAX.into()) as u8
}

/// Ring place of batch `sequence` (from 1) in a ring of `ring` batches, a power of two.
#[inline]
pub fn ring_place(sequence: u32, ring: u64) -> u64 {
    u64::from(sequence.wrapping_sub(1)) & (ring - 1)
}

/// Byte offset of ring place `place` of `list`.
#[inline]
pub fn place_offset(list: u32, place: u64, ring: u64, batch_len: u16) -> u64 {
    (u64::from(list) * ring + place) * u64::from(batch_len)
}

/// Byte offset of batch `sequence` (from 1) of `list`.
#[inline]
pub fn batch_offset(list: u32, sequence: u32, ring: u64, batch_len: u16) -> u64 {
    place_offset(list, ring_place(sequence, ring), ring, batch_len)
}

/// The sequence after `sequence`: 1 after 0 (never written) and after 2^32 - 1.
#[inline]
pub fn next(sequence: u32) -> u32 {
    sequence.wrapping_add(1).max(1)
}

/// Number of sequences in a cycle: 1 to 2^32 - 1.
const CYCLE: u64 = u32::MAX as u64;

/// How many batches `to` comes after `from`, both from 1: 0 to 2^32 - 2, across the wrap.
#[inline]
pub fn batches_between(from: u32, to: u32) -> u32 {
    ((u64::from(to) + CYCLE - u64::from(from)) % CYCLE) as u32
}

/// The sequence `n` batches after `sequence` (from 1), across the wrap.
#[inline]
pub fn advance_sequence(sequence: u32, n: u32) -> u32 {
    ((u64::from(sequence) - 1 + u64::from(n)) % CYCLE + 1) as u32
}

/// Whether `a` is later in serial number arithmetic (RFC 1982): less than half a cycle (2^31 batches) after
/// `b`.
#[inline]
pub fn is_sequence_after(a: u32, b: u32) -> bool {
    a != b && u64::from(batches_between(b, a)) < CYCLE / 2
}

/// Writes a batch: the entries (whole ones, back to back), zeros, and the trailer.
///
/// # Panics
/// If `entries` does not fit in `batch.len() - 8`.
#[inline]
pub fn encode_batch(batch: &mut [u8], list: u32, sequence: u32, count: u8, entries: &[u8]) {
    let area = batch.len() - TRAILER_LEN;
    batch[..entries.len()].copy_from_slice(entries);
    batch[entries.len()..area].fill(0);
    write_trailer(batch, list, sequence, count);
}

/// Writes the trailer of a batch whose entries (and the zeros after them) are already in place.
///
/// # Panics
/// If `batch` is shorter than a trailer.
#[inline]
pub fn write_trailer(batch: &mut [u8], list: u32, sequence: u32, count: u8) {
    let area = batch.len() - TRAILER_LEN;
    batch[area..area + 4].copy_from_slice(&sequence.to_be_bytes());
    batch[area + 4] = count;
    let check = batch_check(list, &batch[..area + 5]);
    batch[area + 5..].copy_from_slice(&check.to_be_bytes()[1..]);
}

/// Low 24 bits of the CRC-32 over `list ‖ covered`; `covered` is a batch without its last three bytes.
#[inline]
fn batch_check(list: u32, covered: &[u8]) -> u32 {
    let list = crc::crc32(&list.to_be_bytes());
    // The usual batch has 64 bytes; a length known to the compiler doubles the speed of the check.
    let check = match <&[u8; 61]>::try_from(covered) {
        Ok(covered) => crc::crc32_update_of(list, covered),
        Err(_) => crc::crc32_update(list, covered),
    };
    check & 0x00ff_ffff
}

/// Contents of one ring place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingBatch<'a> {
    /// Never written: all zeros.
    Empty,
    /// A whole batch.
    Valid {
        /// Its number, from 1.
        sequence: u32,
        /// Entries in it, from 1.
        count: u8,
        /// The entries back to back, `count` times `entry_len` bytes.
        entries: &'a [u8],
    },
    /// Bytes with a wrong check: read while being written, or damaged. A damaged batch passes once in 2^24.
    Torn,
}

impl RingBatch<'_> {
    /// The state without the entries: what [`Cursor`] needs.
    #[inline]
    pub fn place_state(&self) -> RingPlaceState {
        match self {
            RingBatch::Empty => RingPlaceState::Empty,
            RingBatch::Valid { sequence, .. } => RingPlaceState::Valid(*sequence),
            RingBatch::Torn => RingPlaceState::Torn,
        }
    }
}

/// Checks and splits a batch of `list` with entries of `entry_len` bytes. Bytes too short for a trailer are
/// torn.
#[inline]
pub fn decode_batch(batch: &[u8], list: u32, entry_len: u8) -> RingBatch<'_> {
    let Some(area) = batch.len().checked_sub(TRAILER_LEN) else {
        return RingBatch::Torn;
    };
    let sequence = read_be_u32(batch, area);
    let count = batch[area + 4];
    let used = usize::from(count) * usize::from(entry_len);
    let stored = read_be_u32(batch, area + 4) & 0x00ff_ffff;
    if sequence != 0 && used != 0 && used <= area && stored == batch_check(list, &batch[..area + 5]) {
        RingBatch::Valid { sequence, count, entries: &batch[..used] }
    } else if batch.iter().all(|b| *b == 0) {
        RingBatch::Empty
    } else {
        RingBatch::Torn
    }
}

/// [`RingBatch`] without its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPlaceState {
    /// Never written.
    Empty,
    /// A whole batch with this sequence.
    Valid(u32),
    /// Being written, or damaged.
    Torn,
}

/// Result of one look at a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorStep {
    /// The batch last read is the next one; the cursor has moved past it.
    New {
        /// Its sequence.
        sequence: u32,
    },
    /// The writer has lapped the reader: `count` batches from `sequence` on are gone. The cursor moves to the
    /// oldest that can still be there.
    Overwritten {
        /// First batch that is gone.
        sequence: u32,
        /// How many are gone.
        count: u32,
    },
    /// The next batch is missing although a later one is there: lost, or overtaken on its way. The cursor has
    /// not moved: look again for as long as frames may be reordered, then [`Cursor::skip_batch`] and count it
    /// missing.
    Missing {
        /// The missing batch.
        sequence: u32,
    },
    /// The next batch's place holds no valid batch. If there is a later batch, the next one is being written (look
    /// again) or damaged ([`Cursor::skip_batch`] and count it). If not, the next one may be unwritten and its place
    /// damaged since the previous turn: look again later, and do not skip what may still come.
    Torn {
        /// The expected batch.
        sequence: u32,
        /// Whether there is a later batch.
        later: bool,
    },
    /// Nothing is known to have been written after the last batch. Look again later.
    Pending,
}

/// A reader's position in one list. Plain state without I/O: [`Cursor::poll`] is passed a function that reads
/// a place.
///
/// A reader that falls 2^31 batches or more behind its writer mistakes newer batches for older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    ring: u64,
    next: u32,
    /// The latest batch seen anywhere, while it is not before `next`.
    seen: Option<u32>,
    /// How far ahead of `next` the last search ended.
    ahead: u64,
}

impl Cursor {
    /// Places beyond the next batch's that one [`Cursor::poll`] examines when that batch is missing.
    pub const LOOK_AHEAD: u64 = 8;

    /// This many of them are always the nearest, where a gap of a batch or two shows at once; the others move
    /// on from poll to poll, so that every place is examined after `ring / (LOOK_AHEAD - NEAR)` polls.
    pub const NEAR: u64 = 4;

    /// A cursor that reads `sequence` next (from 1; 0 is taken as 1), in a ring of `ring` batches,
    /// a power of two.
    pub fn new(ring: u64, sequence: u32) -> Self {
        Cursor { ring, next: sequence.max(1), seen: None, ahead: 0 }
    }

    /// A cursor on the oldest batch of a ring, from the sequences of all valid batches found in it;
    /// on batch 1 if there are none.
    pub fn at_oldest_batch(ring: u64, sequences: impl IntoIterator<Item = u32>) -> Self {
        let oldest = sequences.into_iter().reduce(|a, b| if is_sequence_after(a, b) { b } else { a });
        Cursor::new(ring, oldest.unwrap_or(1))
    }

    /// A cursor after the latest batch of a ring, from the sequences of all valid batches found in
    /// it; on batch 1 if there are none.
    pub fn after_latest_batch(ring: u64, sequences: impl IntoIterator<Item = u32>) -> Self {
        let latest = sequences.into_iter().reduce(|a, b| if is_sequence_after(a, b) { a } else { b });
        Cursor::new(ring, next(latest.unwrap_or(0)))
    }

    /// The sequence of the next batch to read.
    pub fn next_sequence(&self) -> u32 {
        self.next
    }

    /// The ring place of the next batch to read.
    pub fn next_place(&self) -> u64 {
        ring_place(self.next, self.ring)
    }

    /// Looks once: `read` copies the given ring place into the reader's own buffer and returns what it found.
    /// After [`CursorStep::New`] the last place read is that batch. Costs one read when there is a new batch, and
    /// up to [`Cursor::LOOK_AHEAD`] more when there is none.
    #[inline]
    pub fn poll(&mut self, mut read: impl FnMut(u64) -> RingPlaceState) -> CursorStep {
        let here = self.next_place();
        let torn = match read(here) {
            RingPlaceState::Valid(sequence) if sequence == self.next => {
                self.advance_by(1);
                return CursorStep::New { sequence };
            }
            RingPlaceState::Valid(sequence) if ring_place(sequence, self.ring) != here => true,
            RingPlaceState::Valid(sequence) if is_sequence_after(sequence, self.next) => {
                return self.overwritten(sequence);
            }
            RingPlaceState::Valid(_) | RingPlaceState::Empty => false,
            RingPlaceState::Torn => true,
        };
        if self.seen.is_none() {
            self.look_ahead(read);
        }
        let (sequence, later) = (self.next, self.seen.is_some());
        match (torn, later) {
            (true, later) => CursorStep::Torn { sequence, later },
            (false, true) => CursorStep::Missing { sequence },
            (false, false) => CursorStep::Pending,
        }
    }

    /// Scans at most `most` places from the next batch on, and remembers the latest batch found. Stops after `gap`
    /// places in a row that hold neither a batch that belongs there nor a torn one: as a rule, nothing follows
    /// them.
    pub fn scan_ahead(&mut self, most: u64, gap: u32, mut read: impl FnMut(u64) -> RingPlaceState) {
        let mut without = 0;
        for ahead in 0..most.min(self.ring) {
            let wanted = advance_sequence(self.next, ahead as u32);
            let at = ring_place(wanted, self.ring);
            match read(at) {
                RingPlaceState::Valid(found)
                    if ring_place(found, self.ring) == at && !is_sequence_after(wanted, found) =>
                {
                    if self.seen.is_none_or(|seen| is_sequence_after(found, seen)) {
                        self.seen = Some(found);
                    }
                    without = 0;
                }
                RingPlaceState::Torn => without = 0,
                RingPlaceState::Valid(_) | RingPlaceState::Empty => without += 1,
            }
            if without >= gap {
                return;
            }
        }
    }

    /// The latest batch seen, unless it is before the next one.
    pub fn latest_seen(&self) -> Option<u32> {
        self.seen
    }

    /// Skips the next batch: it is missing or damaged. The caller counts it.
    pub fn skip_batch(&mut self) {
        self.advance_by(1);
    }

    fn advance_by(&mut self, n: u32) {
        self.next = advance_sequence(self.next, n);
        self.ahead = 0;
        self.seen = self.seen.filter(|seen| !is_sequence_after(self.next, *seen));
    }

    /// `later` lies where the next batch should be: everything up to a ring before it is gone.
    fn overwritten(&mut self, later: u32) -> CursorStep {
        let sequence = self.next;
        // When the sequence wraps, a ring holds one batch fewer, and the oldest can be the next one itself:
        // it is gone all the same.
        let count = (u64::from(batches_between(sequence, later)) + 1).saturating_sub(self.ring).max(1) as u32;
        self.seen = Some(later);
        self.advance_by(count);
        CursorStep::Overwritten { sequence, count }
    }

    /// Searches for a later batch beyond the next one: nearby, and each time a few places further, so that a
    /// gap of any length is found in the end. It searches a whole ring, not one place less: where the
    /// sequence wraps, two consecutive batches share a place, and the last place would be missed.
    fn look_ahead(&mut self, mut read: impl FnMut(u64) -> RingPlaceState) {
        for look in 0..Self::LOOK_AHEAD.min(self.ring) {
            let ahead = if look < Self::NEAR {
                look + 1
            } else {
                self.ahead = self.ahead % self.ring + 1;
                self.ahead
            };
            let sequence = advance_sequence(self.next, ahead as u32);
            let at = ring_place(sequence, self.ring);
            if let RingPlaceState::Valid(found) = read(at)
                && is_sequence_after(found, self.next)
                && ring_place(found, self.ring) == at
            {
                self.seen = Some(found);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_in_a_batch() {
        assert_eq!(entries_per_batch(64, 4), 14);
        assert_eq!(entries_per_batch(64, 12), 4);
        assert_eq!(entries_per_batch(16, 8), 1);
        assert_eq!(entries_per_batch(128, 60), 2);
        assert_eq!(entries_per_batch(1024, 192), 5);
        assert_eq!(entries_per_batch(4096, 192), 21);
        assert_eq!(entries_per_batch(4096, 4), 255);
    }

    #[test]
    fn sequences_skip_zero() {
        assert_eq!(next(0), 1);
        assert_eq!(next(1), 2);
        assert_eq!(next(u32::MAX), 1);
        assert_eq!(advance_sequence(u32::MAX, 1), 1);
        assert_eq!(advance_sequence(u32::MAX - 1, 3), 2);
        assert_eq!(batches_between(u32::MAX, 1), 1);
        assert_eq!(batches_between(1, u32::MAX), u32::MAX - 1);
        assert!(is_sequence_after(1, u32::MAX) && !is_sequence_after(u32::MAX, 1));
        assert_eq!(ring_place(1, 8), 0);
        assert_eq!(ring_place(9, 8), 0);
        assert_eq!(ring_place(0, 8), 7, "no batch has this sequence, but nothing breaks");
        assert_eq!(batch_offset(3, 10, 8, 64), (3 * 8 + 1) * 64);
    }

    /// A list in memory as a translator and a lossy network would leave it.
    struct Ring {
        places: Vec<RingPlaceState>,
    }

    impl Ring {
        fn new(ring: usize) -> Self {
            Ring { places: vec![RingPlaceState::Empty; ring] }
        }

        fn write(&mut self, sequence: u32) {
            let at = ring_place(sequence, self.places.len() as u64) as usize;
            self.places[at] = RingPlaceState::Valid(sequence);
        }

        fn poll(&self, cursor: &mut Cursor) -> CursorStep {
            cursor.poll(|at| self.places[at as usize])
        }
    }

    #[test]
    fn reads_in_order_then_waits() {
        let (mut ring, mut cursor) = (Ring::new(4), Cursor::new(4, 0));
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
        ring.write(1);
        ring.write(2);
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 1 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 2 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
    }

    #[test]
    fn a_lapped_reader_counts_what_is_gone() {
        let (mut ring, mut cursor) = (Ring::new(4), Cursor::new(4, 1));
        (1..=11).for_each(|s| ring.write(s));
        assert_eq!(
            ring.poll(&mut cursor),
            CursorStep::Overwritten { sequence: 1, count: 5 },
            "batch 9 lies there: 6 to 9 remain"
        );
        assert_eq!(
            ring.poll(&mut cursor),
            CursorStep::Overwritten { sequence: 6, count: 1 },
            "batch 10 lies there"
        );
        assert_eq!(ring.poll(&mut cursor), CursorStep::Overwritten { sequence: 7, count: 1 });
        for sequence in 8..=11 {
            assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence });
        }
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
    }

    #[test]
    fn a_lost_batch_is_missing_until_skipped() {
        let (mut ring, mut cursor) = (Ring::new(8), Cursor::new(8, 1));
        ring.write(1);
        ring.write(4);
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 1 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::Missing { sequence: 2 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::Missing { sequence: 2 });
        ring.write(2);
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 2 }, "it was late only");
        assert_eq!(ring.poll(&mut cursor), CursorStep::Missing { sequence: 3 });
        cursor.skip_batch();
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 4 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
    }

    #[test]
    fn a_near_gap_shows_at_once_however_long_the_reader_has_waited() {
        let (mut ring, mut cursor) = (Ring::new(1024), Cursor::new(1024, 1));
        (0..50).for_each(|_| assert_eq!(ring.poll(&mut cursor), CursorStep::Pending));
        ring.write(4);
        assert_eq!(ring.poll(&mut cursor), CursorStep::Missing { sequence: 1 });
    }

    #[test]
    fn a_gap_of_any_length_is_noticed() {
        let (mut ring, mut cursor) = (Ring::new(1024), Cursor::new(1024, 1));
        ring.write(1000);
        let looks = (1..).find(|_| ring.poll(&mut cursor) != CursorStep::Pending);
        assert_eq!(looks, Some(999usize.div_ceil(4)));
        for sequence in 1..1000 {
            assert_eq!(ring.poll(&mut cursor), CursorStep::Missing { sequence });
            cursor.skip_batch();
        }
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 1000 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
    }

    #[test]
    fn a_gap_at_the_turn_of_the_sequence_is_noticed() {
        // 2^32 - 1 and 1 share place 0, and both are lost.
        let (mut ring, mut cursor) = (Ring::new(2), Cursor::new(2, u32::MAX));
        ring.write(2);
        for sequence in [u32::MAX, 1] {
            assert_eq!(ring.poll(&mut cursor), CursorStep::Missing { sequence });
            cursor.skip_batch();
        }
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 2 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
    }

    #[test]
    fn torn_stays_until_whole_or_skipped() {
        let (mut ring, mut cursor) = (Ring::new(2), Cursor::new(2, 1));
        ring.places[0] = RingPlaceState::Torn;
        assert_eq!(ring.poll(&mut cursor), CursorStep::Torn { sequence: 1, later: false });
        ring.write(2);
        assert_eq!(ring.poll(&mut cursor), CursorStep::Torn { sequence: 1, later: true });
        ring.write(1);
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 1 });
        ring.places[1] = RingPlaceState::Valid(1);
        assert_eq!(
            ring.poll(&mut cursor),
            CursorStep::Torn { sequence: 2, later: true },
            "a batch that does not belong there is damage"
        );
        cursor.skip_batch();
        assert_eq!(cursor.next_sequence(), 3);
    }

    #[test]
    fn the_latest_batch_is_sighted_over_what_is_torn_or_lost() {
        let mut ring = Ring::new(16);
        let sighted = |ring: &Ring, gap| {
            let mut cursor = Cursor::new(16, 17);
            cursor.scan_ahead(16, gap, |at| ring.places[at as usize]);
            cursor.latest_seen()
        };
        assert_eq!(sighted(&ring, 4), None);
        // 17 torn, 18 there, 19 to 21 lost, 22 there, 23 lost, 24 torn, 25 of the turn before.
        (ring.places[0], ring.places[7]) = (RingPlaceState::Torn, RingPlaceState::Torn);
        [18, 22, 9].into_iter().for_each(|sequence| ring.write(sequence));
        assert_eq!((sighted(&ring, 3), sighted(&ring, 4)), (Some(18), Some(22)));
        ring.places.fill(RingPlaceState::Torn);
        assert_eq!(sighted(&ring, 1), None);
        ring.write(32);
        assert_eq!(sighted(&ring, 1), Some(32));
    }

    #[test]
    fn a_ring_of_one() {
        let (mut ring, mut cursor) = (Ring::new(1), Cursor::new(1, 1));
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
        ring.write(1);
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 1 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::Pending);
        ring.write(4);
        assert_eq!(ring.poll(&mut cursor), CursorStep::Overwritten { sequence: 2, count: 2 });
        assert_eq!(ring.poll(&mut cursor), CursorStep::New { sequence: 4 });
    }

    #[test]
    fn over_the_wrap() {
        let (mut ring, mut cursor) = (Ring::new(4), Cursor::new(4, u32::MAX - 2));
        let mut sequence = u32::MAX - 8;
        for _ in 0..12 {
            ring.write(sequence);
            sequence = next(sequence);
            while let CursorStep::New { .. } = ring.poll(&mut cursor) {}
        }
        assert_eq!((cursor.next_sequence(), sequence), (4, 4));
    }

    #[test]
    fn starts_at_either_end() {
        let held = [u32::MAX - 1, u32::MAX, 1, 2];
        assert_eq!(Cursor::at_oldest_batch(4, held).next_sequence(), u32::MAX - 1);
        assert_eq!(Cursor::after_latest_batch(4, held).next_sequence(), 3);
        assert_eq!(Cursor::at_oldest_batch(4, []).next_sequence(), 1);
        assert_eq!(Cursor::after_latest_batch(4, []).next_sequence(), 1);
    }

    /// Whether a batch ends with the check that the format gives its other bytes. CRC-32 distinguishes any two lists, and
    /// most tears; its low 24 bits fail once in 2^24.
    fn has_its_check(batch: &[u8], list: u32) -> bool {
        let (covered, check) = batch.split_at(batch.len() - 3);
        crc::crc32(&[&list.to_be_bytes()[..], covered].concat()).to_be_bytes()[1..] == *check
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(
            list: u32, sequence in 1u32.., shape in 4u32..=12, entry_words in 1u16..=63, count: u8, fill: u8, other: u32,
        ) {
            let batch_len = 1u16 << shape;
            let entry_len = (4 * entry_words).min(batch_len - 8) as u8;
            let count = (count % entries_per_batch(batch_len, entry_len)).saturating_add(1);
            let entries: Vec<u8> = (0..usize::from(count) * usize::from(entry_len)).map(|i| fill.wrapping_add(i as u8)).collect();
            let mut batch = vec![0xaa; usize::from(batch_len)];
            encode_batch(&mut batch, list, sequence, count, &entries);
            prop_assert_eq!(decode_batch(&batch, list, entry_len), RingBatch::Valid { sequence, count, entries: &entries });
            prop_assert!(batch[entries.len()..usize::from(batch_len) - 8].iter().all(|b| *b == 0));
            if !has_its_check(&batch, other) {
                prop_assert_eq!(decode_batch(&batch, other, entry_len), RingBatch::Torn);
            }
        }

        /// A reader's copy that has the new batch up to some byte and the old one after it, or vice versa.
        #[test]
        fn tears_are_noticed(list: u32, sequence in 1u32..1000, cut in 0usize..=64, old: [u8; 56], new: [u8; 56], ascending: bool) {
            let (mut a, mut b) = ([0; 64], [0; 64]);
            encode_batch(&mut a, list, sequence, 14, &old);
            encode_batch(&mut b, list, sequence + 8, 14, &new);
            let (head, tail) = if ascending { (&b, &a) } else { (&a, &b) };
            let torn = [&head[..cut], &tail[cut..]].concat();
            let expect = if has_its_check(&torn, list) { decode_batch(&torn, list, 4) } else { RingBatch::Torn };
            prop_assert_eq!(decode_batch(&torn, list, 4), expect);
        }

        #[test]
        fn any_bytes_do_not_panic(batch in prop::collection::vec(any::<u8>(), 0..140), list: u32, entry_len: u8) {
            let _ = decode_batch(&batch, list, entry_len);
        }

        #[test]
        fn distance_and_forward_agree(from in 1u32.., n in 0..u32::MAX - 1) {
            let to = advance_sequence(from, n);
            prop_assert!(to != 0);
            prop_assert_eq!(batches_between(from, to), n);
            prop_assert_eq!(is_sequence_after(to, from), n != 0 && n < u32::MAX / 2);
        }

        /// Any writer, losses, late batches, reader's pace and start in the sequence space: the reader gets
        /// batches in order, each at most once, and those it gets, reports overwritten and skips add up to
        /// all of them.
        #[test]
        fn every_batch_is_accounted_for(
            start in prop_oneof![Just(1u32), (u32::MAX - 40)..=u32::MAX], bits in 0u32..5,
            script in prop::collection::vec((0u8..10, 0u8..6), 1..120),
        ) {
            let mut ring = Ring::new(1 << bits);
            let mut cursor = Cursor::new(1 << bits, start);
            let (mut writing, mut written) = (start, std::collections::HashSet::new());
            let mut expected = start;
            let mut accounted = 0u32;
            let mut turn = |ring: &Ring, written: &std::collections::HashSet<u32>| {
                let step = ring.poll(&mut cursor);
                match step {
                    CursorStep::New { sequence } => {
                        assert_eq!(sequence, expected);
                        assert!(written.contains(&sequence));
                        accounted += 1;
                    }
                    CursorStep::Overwritten { sequence, count } => {
                        assert_eq!(sequence, expected);
                        accounted += count;
                    }
                    CursorStep::Missing { sequence } => {
                        assert_eq!(sequence, expected);
                        cursor.skip_batch();
                        accounted += 1;
                    }
                    CursorStep::Torn { .. } => panic!("nothing is torn here"),
                    CursorStep::Pending => {}
                }
                expected = cursor.next_sequence();
                (step, accounted)
            };
            for (fate, reads) in script {
                if fate != 0 {
                    ring.write(writing);
                    written.insert(writing);
                }
                writing = next(writing);
                for _ in 0..reads {
                    turn(&ring, &written);
                }
            }
            // One batch that does arrive, to reveal a gap before it.
            ring.write(writing);
            written.insert(writing);
            writing = next(writing);
            let mut pending = 0;
            let mut total = 0;
            while pending < 4 {
                let (step, accounted) = turn(&ring, &written);
                total = accounted;
                pending = if step == CursorStep::Pending { pending + 1 } else { 0 };
            }
            prop_assert_eq!(total, batches_between(start, writing));
        }
    }
}
