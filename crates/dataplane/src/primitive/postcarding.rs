//! Postcarding: a cache of paths in the making, keyed by the whole key. A row leaves when all hops
//! of its length are there, when another key needs its place, or when it is flushed. Postcards that arrive
//! after their row was sent are told from those of a new path where possible (see [`crate::paths_left`]).

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::postcarding::{self as layout, MAX_HOPS, PostcardPath};

use crate::age::AgeList;
use crate::context::Context;
use crate::counters::{Discard, EngineCounters, Reason};
use crate::egress::StoreWrite;
use crate::losses::Origin;
use crate::paths_left::{Mark, PathsLeft, Postcard};
use crate::primitive::Gathers;
use crate::regions::Regions;
use crate::requester::OperationEffect;
use dta_proto::program::Primitive;

/// Rows that share a place, so that one other key does not evict a key in use at once.
const WAYS: usize = 4;

pub(crate) struct PostcardState {
    slots: u64,
    hops: u8,
    copies: u8,
    rows: Vec<PostcardRow>,
    /// Origins of the postcards in `rows`, [`MAX_HOPS`] per row; empty unless names are kept.
    names: Vec<Origin>,
    /// Senders of the postcards in `rows`, [`MAX_HOPS`] per row.
    marks: Vec<Mark>,
    left: PathsLeft,
    ages: AgeList,
    /// Whether the rules of a switch apply.
    reference: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct PostcardArrival<'a> {
    pub(crate) key: &'a Key,
    pub(crate) hop: u8,
    /// Hops of the path; 0 = unknown.
    pub(crate) length: u8,
    pub(crate) value: u32,
    pub(crate) origin: Origin,
    /// Number of reporter restarts, if the postcard's sequence is meaningful and sent paths are remembered.
    pub(crate) restarts: Option<u32>,
}

#[derive(Clone, Copy, Default)]
struct PostcardRow {
    key: Key,
    path: PostcardPath,
    /// Number of postcards: one per hop present. 0 = free.
    reports: u16,
    /// The [`PostcardArrival::restarts`] of all its postcards; `None` if one had none.
    restarts: Option<u32>,
}

impl PostcardState {
    /// `rows` is rounded up to a power of two of at least 4.
    pub(crate) fn new(slots: u64, hops: u8, copies: u8, rows: usize, keep_names: bool) -> Self {
        let rows = rows.max(WAYS).next_power_of_two();
        PostcardState {
            slots,
            hops,
            copies,
            rows: vec![PostcardRow::default(); rows],
            names: if keep_names { vec![Origin::default(); rows * MAX_HOPS] } else { Vec::new() },
            marks: vec![Mark::default(); rows * MAX_HOPS],
            // As many as a full cache sends in some hundred milliseconds; later postcards are very late.
            left: PathsLeft::new(rows / 4),
            ages: AgeList::new(rows),
            reference: false,
        }
    }

    /// Adds a postcard to the row of its key.
    #[inline]
    pub(crate) fn ingest_postcard(
        &mut self,
        arrival: &PostcardArrival<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), Reason> {
        let &PostcardArrival { key, hop, length, value, origin, restarts } = arrival;
        if length > self.hops {
            return Err(Reason::PathLength);
        }
        if hop >= self.hops || (length != 0 && hop >= length) {
            return Err(Reason::Hop);
        }
        let h = hash::key_hash(key);
        context.check_reachable(h)?;
        let mark = Mark { reporter: origin.reporter, sequence: origin.sequence };
        if let Some(restarts) = restarts {
            match self.left.classify_postcard(key, hop, length, mark, restarts) {
                Postcard::New => {}
                Postcard::Old => return Err(Reason::LatePostcard),
                Postcard::Missing => {
                    if let Some(path) = self.left.add_late_hop(key, hop, value, mark, restarts) {
                        context.egress.counters.joined_postcards += 1;
                        self.write_path(key, &path, 1, std::iter::once(origin), context);
                        return Ok(());
                    }
                }
            }
        }
        let at = self.row_for_key(key, h, length, context);
        // A path of another length is another path: the old row is sent first.
        let row = &self.rows[at];
        let known = row.path.length;
        let conflict = row.reports != 0
            && ((length != 0 && known != 0 && length != known)
                || (known != 0 && hop >= known)
                || (length != 0 && row.path.bitmap >> length != 0));
        if conflict {
            self.send(at, context);
        }
        let row = &mut self.rows[at];
        if row.reports == 0 {
            *row = PostcardRow { key: *key, restarts, ..PostcardRow::default() };
            self.ages.push(at, context.now);
        }
        let counters = context.egress.counters.primitive_counters_mut(Primitive::Postcarding);
        if row.path.bitmap >> hop & 1 == 1 {
            counters.superseded += 1;
        } else {
            row.reports += 1;
            counters.held += 1;
        }
        row.path.set(hop, value);
        row.path.length = row.path.length.max(length);
        if row.restarts != restarts {
            row.restarts = None;
        }
        self.marks[at * MAX_HOPS + usize::from(hop)] = mark;
        if let Some(name) = self.names.get_mut(at * MAX_HOPS + usize::from(hop)) {
            *name = origin;
        }
        if row.path.is_complete() {
            self.send(at, context);
        }
        Ok(())
    }

    /// The row of a key, evicting another if needed.
    #[inline]
    fn row_for_key(&mut self, key: &Key, h: u32, length: u8, context: &mut Context<'_>) -> usize {
        if self.reference {
            return self.place_in_reference(key, h, length, context);
        }
        // The high bits, so that keys sharing a slot of the store need not share a place here.
        let sets = self.rows.len() / WAYS;
        let set = (h.rotate_left(16) as usize & (sets - 1)) * WAYS;
        let mut free = None;
        for at in set..set + WAYS {
            let row = &self.rows[at];
            if row.reports == 0 {
                free.get_or_insert(at);
            } else if row.key == *key {
                return at;
            }
        }
        free.unwrap_or_else(|| {
            let oldest = (set..set + WAYS).min_by_key(|at| self.ages.insertion_time(*at)).unwrap_or(set);
            self.send(oldest, context);
            oldest
        })
    }

    /// The row of a path by the rules of a switch: one per place. Another key or length is another path, and
    /// the present row is sent as it is.
    fn place_in_reference(&mut self, key: &Key, h: u32, length: u8, context: &mut Context<'_>) -> usize {
        let at = h as usize & (self.rows.len() - 1);
        let row = &self.rows[at];
        if row.reports != 0 && (row.key != *key || row.path.length != length) {
            self.send(at, context);
        }
        at
    }

    /// Sets whether the rules of a switch apply: `docs/reference-mode.md`.
    pub(crate) fn set_reference(&mut self, reference: bool) {
        self.reference = reference;
        self.left.clear_paths();
    }

    fn send(&mut self, at: usize, context: &mut Context<'_>) {
        let row = self.rows[at];
        let began = self.ages.insertion_time(at);
        self.rows[at].reports = 0;
        self.ages.remove(at);
        let mut path = row.path;
        if let Some(restarts) = row.restarts.filter(|_| row.path.length != 0) {
            let marks = &self.marks[at * MAX_HOPS..(at + 1) * MAX_HOPS];
            path = self.left.record_sent_path(context.now, began, &row.key, &row.path, marks, restarts);
            if path.bitmap != row.path.bitmap {
                context.egress.counters.joined_postcards += u64::from(row.reports);
            }
        }
        let counters = &mut context.egress.counters;
        counters.primitive_counters_mut(Primitive::Postcarding).held -= u64::from(row.reports);
        counters.partial_rows += u64::from(path.length != 0 && !path.is_complete());
        let names = self.names.get(at * MAX_HOPS..(at + 1) * MAX_HOPS).unwrap_or(&[]);
        let present = names.iter().enumerate().filter(|(hop, _)| row.path.bitmap >> hop & 1 == 1);
        self.write_path(&row.key, &path, row.reports, present.map(|(_, origin)| *origin), context);
    }

    /// Writes a path with `reports` new postcards, from `origins`.
    fn write_path(
        &self,
        key: &Key,
        path: &PostcardPath,
        reports: u16,
        origins: impl Iterator<Item = Origin>,
        context: &mut Context<'_>,
    ) {
        let mut bytes = [0; layout::row_length(MAX_HOPS as u8) as usize];
        let bytes = &mut bytes[..layout::row_length(self.hops) as usize];
        layout::encode_row(bytes, key, path);
        let h = hash::key_hash(key);
        // All copies go to each collector that has the key.
        let copies = self.copies;
        let write = StoreWrite {
            action: OperationEffect::WRITE,
            copies: copies * context.regions.replica_count() as u8,
            payload: bytes,
            primitive: Primitive::Postcarding,
            reports,
        };
        let offset =
            |n| layout::row_offset(hash::slot_index(h, usize::from(n % copies), self.slots), self.hops);
        context.write_replicas(h, &write, |n| usize::from(n / copies), offset, origins);
    }
}

impl Gathers for PostcardState {
    /// Sends rows whose first postcard arrived at or before `born_by`.
    fn flush_started_by(&mut self, born_by: u64, context: &mut Context<'_>) {
        while let Some((at, born)) = self.ages.oldest_element()
            && born <= born_by
        {
            self.send(at, context);
        }
    }

    fn flush_all(&mut self, context: &mut Context<'_>) {
        for at in 0..self.rows.len() {
            if self.rows[at].reports != 0 {
                self.send(at, context);
            }
        }
    }

    fn oldest_start_time(&self) -> Option<u64> {
        self.ages.oldest_element().map(|(_, born)| born)
    }

    /// Discards what is held for this region and no other.
    fn discard_region(&mut self, regions: &Regions, place: usize, counters: &mut EngineCounters) {
        let mut held = 0;
        for (at, row) in self.rows.iter_mut().enumerate() {
            if row.reports != 0 && regions.are_only_at(hash::key_hash(&row.key), place) {
                held += u64::from(row.reports);
                *row = PostcardRow::default();
                self.ages.remove(at);
            }
        }
        counters.primitive_counters_mut(Primitive::Postcarding).held -= held;
        counters.count_discarded(Discard::StoreRemoved, held);
        self.left.clear_paths();
    }
}
