//! Runs: consecutive key-writes that become frames together.
//!
//! Most reports are key-writes of 12 bytes, and those of a batch go to one store. What they share is looked
//! up once for all of them: the store, its queue pair and frames, the counters.

use dta_proto::key::Key;

/// Most reports in a run. With four copies of each they are 128 operations, a number of 8 bits.
pub(crate) const MOST: usize = 32;
pub(crate) const VALUE_LEN: usize = 12;

/// What to record of a report if it is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DropEvidence<'a> {
    Packet(&'a [u8]),
    /// Its reporter, if another worker parsed the packet.
    Reporter(u16),
}

pub(crate) struct KeyWriteRun<'a> {
    /// Id of the store, and requested copies; meaningless when there are no reports.
    of: (u16, u8),
    len: usize,
    keys: [Key; MOST],
    values: [[u8; VALUE_LEN]; MOST],
    shown: [DropEvidence<'a>; MOST],
}

impl<'a> KeyWriteRun<'a> {
    pub(crate) fn new() -> KeyWriteRun<'a> {
        KeyWriteRun {
            of: (0, 0),
            len: 0,
            keys: [Key([0; 16]); MOST],
            values: [[0; VALUE_LEN]; MOST],
            shown: [DropEvidence::Reporter(0); MOST],
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn store_and_copies(&self) -> (u16, u8) {
        self.of
    }

    /// Whether a report for this store and number of copies can join.
    #[inline]
    pub(crate) fn can_continue_with(&self, of: (u16, u8)) -> bool {
        self.of == of && (1..MOST).contains(&self.len)
    }

    /// Starts over, for this store and number of copies.
    pub(crate) fn restart_for(&mut self, of: (u16, u8)) {
        (self.of, self.len) = (of, 0);
    }

    /// Adds a report, if there is [room](MOST).
    #[inline(always)]
    pub(crate) fn push(&mut self, key: Key, value: [u8; VALUE_LEN], shown: DropEvidence<'a>) {
        let at = self.len;
        if let (Some(keys), Some(values), Some(place)) =
            (self.keys.get_mut(at), self.values.get_mut(at), self.shown.get_mut(at))
        {
            (*keys, *values, *place) = (key, value, shown);
            self.len = at + 1;
        }
    }

    #[inline]
    pub(crate) fn run_keys(&self) -> &[Key] {
        &self.keys[..self.len]
    }

    #[inline]
    pub(crate) fn run_values(&self) -> &[[u8; VALUE_LEN]] {
        &self.values[..self.len]
    }

    /// What to record of those that are dropped.
    #[inline]
    pub(crate) fn drop_evidence(&self) -> &[DropEvidence<'a>] {
        &self.shown[..self.len]
    }
}
