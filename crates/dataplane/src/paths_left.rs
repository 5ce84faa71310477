//! The paths sent last, to tell a postcard that comes after its path from one of a new path.
//!
//! A version-1 postcard has its reporter's sequence. If it is not after what the same reporter contributed to
//! the path that was sent, it belongs to that path or an earlier one. A row sent with hops missing soon after
//! another of its key, and contradicting nothing in it, is the same path: it takes the missing hops from
//! there.

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::postcarding::{MAX_HOPS, PostcardPath};

use super::window::WINDOW;

/// Paths that share a place; the one sent first is dropped.
const WAYS: usize = 4;
/// Largest distance between one reporter's postcards of one path.
const NEIGHBOURS: u32 = MAX_HOPS as u32;
/// A row with hops missing takes them from the previous one if it began at most this long after that was sent
/// (nanoseconds).
const SOON: u64 = 1_000_000_000;

/// A reporter, and its sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) reporter: u16,
    pub(crate) sequence: u32,
}

#[derive(Clone, Copy, Default)]
struct SentPath {
    key: Key,
    path: PostcardPath,
    marks: [Mark; MAX_HOPS],
    /// When it was sent, or the start of the oldest row that contributed hops; and its serial number, 0 =
    /// free.
    at: u64,
    order: u64,
    /// Number of reporter restarts: sequences from before one mean nothing after it.
    restarts: u32,
}

/// How a postcard relates to the path that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Postcard {
    /// Of another, later path; or its key is unknown.
    New,
    /// Of the path, or an earlier one: this hop was already sent.
    Old,
    /// Of the path, which was sent without this hop.
    Missing,
}

/// The last paths sent of one store. Allocates once.
pub(crate) struct PathsLeft {
    places: Vec<SentPath>,
    order: u64,
}

impl PathsLeft {
    /// `paths` is rounded up to a power of two of at least 4.
    pub(crate) fn new(paths: usize) -> Self {
        PathsLeft { places: vec![SentPath::default(); paths.max(WAYS).next_power_of_two()], order: 0 }
    }

    fn set(&self, key: &Key) -> std::ops::Range<usize> {
        // Other bits than the cache uses, so that keys sharing a place there need not share one here.
        let set = (hash::key_hash(key).rotate_left(8) as usize & (self.places.len() / WAYS - 1)) * WAYS;
        set..set + WAYS
    }

    fn find_sent_path(&self, key: &Key, restarts: u32) -> Option<usize> {
        self.set(key).find(|at| {
            let left = &self.places[*at];
            left.order != 0 && left.key == *key && left.restarts == restarts
        })
    }

    /// Judges a postcard; `length` is 0 if it has none.
    #[inline]
    pub(crate) fn classify_postcard(
        &self,
        key: &Key,
        hop: u8,
        length: u8,
        mark: Mark,
        restarts: u32,
    ) -> Postcard {
        let Some(at) = self.find_sent_path(key, restarts) else { return Postcard::New };
        let left = &self.places[at];
        if (length != 0 && length != left.path.length) || hop >= left.path.length {
            return Postcard::New;
        }
        let said = |by: &(usize, &Mark)| left.path.bitmap >> by.0 & 1 == 1 && by.1.reporter == mark.reporter;
        let behind = |by: &Mark| by.sequence.wrapping_sub(mark.sequence);
        let mut same = left.marks.iter().enumerate().filter(said).map(|(_, by)| by);
        if !same.clone().any(|by| behind(by) < WINDOW) {
            return Postcard::New;
        }
        if left.path.bitmap >> hop & 1 == 1 {
            return Postcard::Old;
        }
        match same.any(|by| behind(by) < NEIGHBOURS) {
            true => Postcard::Missing,
            false => Postcard::Old,
        }
    }

    /// Adds a hop to the path that was sent without it, and returns the path.
    pub(crate) fn add_late_hop(
        &mut self,
        key: &Key,
        hop: u8,
        value: u32,
        mark: Mark,
        restarts: u32,
    ) -> Option<PostcardPath> {
        let at = self.find_sent_path(key, restarts)?;
        let left = &mut self.places[at];
        left.path.set(hop, value);
        left.marks[usize::from(hop)] = mark;
        Some(left.path)
    }

    /// Records a path that is sent now; `began` is when its first postcard arrived. If hops are missing, and
    /// it began soon after the previous path of its key and does not contradict it, the two are one path:
    /// returns the whole.
    pub(crate) fn record_sent_path(
        &mut self,
        now: u64,
        began: u64,
        key: &Key,
        path: &PostcardPath,
        marks: &[Mark],
        restarts: u32,
    ) -> PostcardPath {
        let mut new = SentPath { key: *key, path: *path, at: now, restarts, ..SentPath::default() };
        new.marks[..marks.len()].copy_from_slice(marks);
        let set = self.set(key);
        let known = set.clone().find(|at| self.places[*at].order != 0 && self.places[*at].key == *key);
        if let Some(at) = known {
            let left = &self.places[at];
            let agree = |hop| {
                let bit = 1u16 << hop;
                left.path.bitmap & path.bitmap & bit == 0 || left.path.hops[hop] == path.hops[hop]
            };
            let one = !path.is_complete()
                && left.restarts == restarts
                && left.path.length == path.length
                && began.saturating_sub(left.at) <= SOON
                && (0..MAX_HOPS).all(agree);
            let missing_hops = left.path.bitmap & !path.bitmap;
            if one && missing_hops != 0 {
                new.at = left.at;
                for hop in (0..MAX_HOPS).filter(|hop| missing_hops >> hop & 1 == 1) {
                    new.path.set(hop as u8, left.path.hops[hop]);
                    new.marks[hop] = left.marks[hop];
                }
            }
        }
        self.order += 1;
        new.order = self.order;
        let first = || set.clone().min_by_key(|at| self.places[*at].order);
        if let Some(at) = known.or_else(first) {
            self.places[at] = new;
        }
        new.path
    }

    pub(crate) fn clear_paths(&mut self) {
        self.places.fill(SentPath::default());
    }
}
