//! Key-writes that come one after the other, and become frames together.
//!
//! Most reports are key-writes of 12 bytes, and those of a batch are for one store. What they share is looked
//! up once for all of them: the store, its queue pair and frames, what is counted.

use dta_proto::key::Key;

/// Most reports of a run. With four copies of each they are 128 operations, a number of 8 bits.
pub(crate) const MOST: usize = 32;
/// Bytes of their values.
pub(crate) const VALUE_LEN: usize = 12;

/// What is shown of a report if it is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shown<'a> {
    /// The packet that it came in.
    Packet(&'a [u8]),
    /// Its reporter, where another worker has read the packet.
    Reporter(u16),
}

/// Key-writes for one store that were admitted one after the other.
pub(crate) struct Run<'a> {
    /// Id of the store, and copies that reports ask for; whatever it was last where there are no reports.
    of: (u16, u8),
    len: usize,
    keys: [Key; MOST],
    values: [[u8; VALUE_LEN]; MOST],
    shown: [Shown<'a>; MOST],
}

impl<'a> Run<'a> {
    /// No reports.
    pub(crate) fn new() -> Run<'a> {
        Run {
            of: (0, 0),
            len: 0,
            keys: [Key([0; 16]); MOST],
            values: [[0; VALUE_LEN]; MOST],
            shown: [Shown::Reporter(0); MOST],
        }
    }

    /// How many reports.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The store that they are for, and the copies that they ask for.
    #[inline]
    pub(crate) fn of(&self) -> (u16, u8) {
        self.of
    }

    /// Whether a report for this store that asks for so many copies can go on with it.
    #[inline]
    pub(crate) fn goes_on(&self, of: (u16, u8)) -> bool {
        self.of == of && (1..MOST).contains(&self.len)
    }

    /// Begins anew, for this store and so many copies.
    pub(crate) fn begin(&mut self, of: (u16, u8)) {
        (self.of, self.len) = (of, 0);
    }

    /// Adds a report, where there is [room](MOST).
    #[inline(always)]
    pub(crate) fn push(&mut self, key: Key, value: [u8; VALUE_LEN], shown: Shown<'a>) {
        let at = self.len;
        if let (Some(keys), Some(values), Some(place)) =
            (self.keys.get_mut(at), self.values.get_mut(at), self.shown.get_mut(at))
        {
            (*keys, *values, *place) = (key, value, shown);
            self.len = at + 1;
        }
    }

    /// Their keys.
    #[inline]
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys[..self.len]
    }

    /// Their values.
    #[inline]
    pub(crate) fn values(&self) -> &[[u8; VALUE_LEN]] {
        &self.values[..self.len]
    }

    /// What is shown of those that are dropped.
    #[inline]
    pub(crate) fn shown(&self) -> &[Shown<'a>] {
        &self.shown[..self.len]
    }
}
