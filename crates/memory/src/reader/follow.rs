//! Follows one append list: how much to read at a time, how long to sleep when there is nothing new, and when
//! everything has been read.
//!
//! Nothing here sleeps or knows of a service: the caller reads, hands over what it got, and sleeps for
//! [`Follower::sleep_duration`] if there was nothing. A follower does not keep the store: each call gets the lists.

use std::time::{Duration, Instant};

use super::append::{ListError, Lists, ReadPosition, ReadProgress, ReadStart};
use crate::region::AccessError;

/// Most batches read at a time: about 3,000 entries, some tens of kilobytes.
pub const BATCHES: u64 = 256;

/// How long to sleep when there is nothing new: doubles each time, up to the longest pause.
const SHORTEST: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Sequence of the last batch read; 0 without one.
    pub sequence: u32,
    /// Entries in order.
    pub entries: Vec<Vec<u8>>,
    /// What was read and what was skipped.
    pub progress: ReadProgress,
}

impl News {
    /// Whether there is nothing to report: neither entries nor anything skipped.
    pub fn is_empty(&self) -> bool {
        self.progress == ReadProgress::default()
    }

    /// Whether it is time to sleep: no batch was read.
    pub fn is_idle(&self) -> bool {
        self.progress.batches == 0
    }
}

/// Follows a list in one memory of a store. All calls must pass the lists of that memory.
#[derive(Clone, Debug)]
pub struct Follower {
    at: ReadPosition,
    until_caught_up: bool,
    pause: Duration,
}

impl Follower {
    /// Starts at `start`; with `until_caught_up`, ends once everything has been read. Reads the whole ring, or its
    /// trailers.
    ///
    /// # Errors
    /// There is no such list, or it lies outside the region.
    pub fn new(
        lists: Lists<'_>,
        list: u32,
        start: ReadStart,
        until_caught_up: bool,
    ) -> Result<Self, ListError> {
        let at = lists.open_reader(list, start)?.read_position();
        Ok(Self { at, until_caught_up, pause: SHORTEST })
    }

    /// Reads what is there, at most [`BATCHES`] at a time. `now` must never go back.
    ///
    /// # Errors
    /// The list lies outside the region.
    pub fn read(&mut self, lists: Lists<'_>, now: Instant) -> Result<News, AccessError> {
        let mut news = News::default();
        let mut reader = lists.resume_reader(self.at);
        news.progress = reader.read(BATCHES, now, |sequence, entries| {
            news.sequence = sequence;
            news.entries.extend(entries.chunks_exact(lists.entry_len()).map(<[u8]>::to_vec));
        })?;
        self.at = reader.read_position();
        if !news.is_idle() {
            self.pause = SHORTEST;
        }
        Ok(news)
    }

    /// Whether it may end: then call [`Follower::finish_reading`] whenever nothing was read.
    pub fn can_end(&self) -> bool {
        self.until_caught_up
    }

    /// The last progress, once nothing is left to read or wait for: how many places after the last batch are damaged.
    /// Scans the whole ring.
    ///
    /// # Errors
    /// The list lies outside the region.
    pub fn finish_reading(&mut self, lists: Lists<'_>) -> Result<Option<ReadProgress>, AccessError> {
        let mut reader = lists.resume_reader(self.at);
        let caught_up = reader.caught_up()?;
        self.at = reader.read_position();
        let damaged = if caught_up { reader.torn_behind()? } else { 0 };
        Ok(caught_up.then_some(ReadProgress { damaged, ..ReadProgress::default() }))
    }

    /// How long to sleep before the next reading, after one that [is idle](News::is_idle).
    pub fn sleep_duration(&self) -> Duration {
        self.pause
    }

    /// Lengthens the next sleep, after one during which nobody woke it.
    pub fn lengthen_sleep(&mut self) {
        self.pause = (2 * self.pause).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use dta_proto::layout::append::{batch_offset, encode_batch};
    use dta_proto::store::StoreKind;

    use super::*;
    use crate::store::Store;
    use crate::store::tests::store;

    const RING: u64 = 1024;

    fn put(store: &Store, list: u32, sequence: u32) {
        let mut batch = [0; 64];
        encode_batch(&mut batch, list, sequence, 2, &[sequence as u8; 8]);
        store.region.write(batch_offset(list, sequence, RING, 64), &batch).unwrap();
    }

    fn lists() -> Store {
        store(StoreKind::Append { lists: 2, ring: RING, batch_len: 64, entry_len: 4, notify: false })
    }

    #[test]
    fn it_reads_some_at_a_time_and_reports_what_it_passed_over() {
        let store = lists();
        (1..=300).filter(|sequence| *sequence != 2).for_each(|sequence| put(&store, 1, sequence));
        let lists = Lists::new(&store).unwrap();
        let none = Follower::new(lists, 2, ReadStart::Oldest, true).unwrap_err();
        assert_eq!(none, ListError::NoSuchList { list: 2, last: 1 });
        let mut follower = Follower::new(lists, 1, ReadStart::Oldest, true).unwrap();
        let now = Instant::now();
        let first = follower.read(lists, now).unwrap();
        // 1, and 3 to 257.
        assert_eq!((first.progress.batches, first.progress.missing, first.sequence), (BATCHES, 1, 257));
        assert_eq!(first.entries.len(), 512);
        assert_eq!((&first.entries[1][..], &first.entries[2][..]), (&[1; 4][..], &[3; 4][..]));
        assert!(!first.is_idle() && follower.finish_reading(lists).unwrap().is_none());
        let rest = follower.read(lists, now).unwrap();
        assert_eq!((rest.progress.batches, rest.sequence, rest.entries.len()), (43, 300, 86));
        let nothing = follower.read(lists, now).unwrap();
        assert!(nothing.is_idle() && nothing.is_empty());
        assert_eq!(follower.finish_reading(lists), Ok(Some(ReadProgress::default())));
    }

    #[test]
    fn it_sleeps_longer_each_time_until_something_comes() {
        let store = lists();
        let lists = Lists::new(&store).unwrap();
        let mut follower = Follower::new(lists, 0, ReadStart::Next, false).unwrap();
        assert!(!follower.can_end());
        let mut slept = Vec::new();
        for _ in 0..9 {
            assert!(follower.read(lists, Instant::now()).unwrap().is_empty());
            slept.push(follower.sleep_duration().as_micros());
            follower.lengthen_sleep();
        }
        assert_eq!(slept, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 50_000, 50_000]);
        put(&store, 0, 1);
        assert_eq!(follower.read(lists, Instant::now()).unwrap().entries, [[1; 4]; 2]);
        assert_eq!(follower.sleep_duration(), SHORTEST);
    }
}
