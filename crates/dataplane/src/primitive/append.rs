//! Append: entries gather in one batch per list. A batch is sent when it is full or flushed, or at once to
//! wake a reader.

use std::collections::BTreeMap;

use dta_proto::layout::append as layout;

use crate::age::AgeList;
use crate::context::Context;
use crate::counters::{Discard, EngineCounters, Reason};
use crate::egress::StoreWrite;
use crate::losses::Origin;
use crate::primitive::Gathers;
use crate::regions::Regions;
use crate::requester::OperationEffect;
use crate::sent::{SentBatch, SentBatches};
use dta_proto::program::{Lists, Primitive};

/// The lists of one store that this translator owns.
pub(crate) struct AppendState {
    lists: u32,
    ring: u64,
    batch_len: u16,
    entry_len: u8,
    entries: u8,
    notify: bool,
    ranges: Vec<Range>,
    /// By collector and list, the sequence at which a list that was owned there before continues. The
    /// collector's own record of its ring may be older.
    left: BTreeMap<(u8, u32), u32>,
    sent: SentBatches,
}

/// Owned lists `first ..`, one state each.
struct Range {
    first: u32,
    /// Index of the collector with their region.
    collector: u8,
    /// Sequence of the current batch.
    sequence: Vec<u32>,
    count: Vec<u8>,
    /// The batch of each list, `batch_len` bytes: entries, zeros, and room for the trailer.
    bytes: Vec<u8>,
    /// Origins of the gathered reports, `entries` per list; empty unless origins are kept.
    names: Vec<Origin>,
    ages: AgeList,
}

impl Range {
    /// Collector and number of each list, with the sequence of its current batch.
    fn sequences(&self) -> impl Iterator<Item = ((u8, u32), u32)> {
        let at = |list| (self.collector, list);
        (self.first..).map(at).zip(self.sequence.iter().copied())
    }

    fn discard_held(&self, counters: &mut EngineCounters) {
        let held: u64 = self.count.iter().map(|c| u64::from(*c)).sum();
        counters.primitive_counters_mut(Primitive::Append).held -= held;
        counters.count_discarded(Discard::StoreRemoved, held);
    }
}

impl AppendState {
    pub(crate) fn new(lists: u32, ring: u64, batch_len: u16, entry_len: u8, notify: bool) -> Self {
        let entries = layout::entries_per_batch(batch_len, entry_len);
        AppendState {
            lists,
            ring,
            batch_len,
            entry_len,
            entries,
            notify,
            ranges: Vec::new(),
            left: BTreeMap::new(),
            sent: SentBatches::default(),
        }
    }

    /// Takes ownership of lists; each continues after its newest batch in the ring. One already owned keeps
    /// what it holds. One that is or was owned at this collector continues after its own newest batch, unless the
    /// ring's is later: then another writer has been there since.
    pub(crate) fn own_lists(&mut self, lists: &Lists, keep_names: bool, counters: &mut EngineCounters) {
        let count = lists.count.min(self.lists) as usize;
        self.left.extend(self.ranges.iter().flat_map(Range::sequences));
        let owned = self.ranges.iter().find(|r| r.first == lists.first);
        if owned.is_none_or(|range| range.sequence.len() != count) {
            self.disown_lists(lists.first, counters);
            self.ranges.push(self.new_owned_lists(lists, count, keep_names));
        }
        let Some(range) = self.ranges.iter_mut().find(|r| r.first == lists.first) else { return };
        range.collector = lists.collector;
        let left = (lists.first..).map(|list| self.left.get(&(lists.collector, list)).copied());
        for (mine, left) in range.sequence.iter_mut().zip(left) {
            *mine = left.unwrap_or(1);
        }
        // It has arrived, or another writer has replaced it.
        let newest: BTreeMap<u32, u32> = lists.positions.iter().copied().collect();
        self.sent.forget_batches(|batch| {
            newest.get(&batch.list).is_some_and(|newest| !layout::is_sequence_after(batch.sequence, *newest))
        });
        for (list, newest) in &lists.positions {
            let at = list.wrapping_sub(lists.first) as usize;
            if let Some(mine) = range.sequence.get_mut(at) {
                let given = layout::next(*newest);
                if !self.left.contains_key(&(lists.collector, *list))
                    || layout::is_sequence_after(given, *mine)
                {
                    *mine = given;
                }
            }
        }
    }

    /// Forgets where lists continue at a collector whose region is gone or was replaced.
    pub(crate) fn forget_collector(&mut self, collector: u8) {
        self.left.retain(|(of, _), _| *of != collector);
    }

    fn new_owned_lists(&self, lists: &Lists, count: usize, keep_names: bool) -> Range {
        Range {
            first: lists.first,
            collector: lists.collector,
            sequence: vec![1; count],
            count: vec![0; count],
            bytes: vec![0; count * usize::from(self.batch_len)],
            names: if keep_names {
                vec![Origin::default(); count * usize::from(self.entries)]
            } else {
                Vec::new()
            },
            ages: AgeList::new(count),
        }
    }

    /// Releases lists; what they hold is discarded.
    pub(crate) fn disown_lists(&mut self, first: u32, counters: &mut EngineCounters) {
        for range in self.ranges.extract_if(.., |range| range.first == first) {
            self.left.extend(range.sequences());
            range.discard_held(counters);
        }
    }

    /// Sends what is held for the lists from `first` on.
    pub(crate) fn flush_lists(&mut self, first: u32, context: &mut Context<'_>) {
        let Some(range) = self.ranges.iter().position(|range| range.first == first) else { return };
        self.flush_range(range, context);
    }

    fn flush_range(&mut self, range: usize, context: &mut Context<'_>) {
        for at in 0..self.ranges[range].count.len() {
            if self.ranges[range].count[at] != 0 {
                self.send(range, at, context);
            }
        }
    }

    /// Whether its batches wake a reader.
    pub(crate) fn wakes_reader(&self) -> bool {
        self.notify
    }

    /// Adds an entry to its list's batch. `immediate` asks to wake a reader now.
    #[inline]
    pub(crate) fn ingest_entry(
        &mut self,
        list: u32,
        value: &[u8],
        immediate: bool,
        origin: Origin,
        context: &mut Context<'_>,
    ) -> Result<(), Reason> {
        if list >= self.lists {
            return Err(Reason::ListRange);
        }
        if value.len() != usize::from(self.entry_len) {
            return Err(Reason::ValueLength);
        }
        let (range, at) = self
            .ranges
            .iter()
            .enumerate()
            .find_map(|(i, r)| {
                let at = list.wrapping_sub(r.first) as usize;
                (list >= r.first && at < r.sequence.len()).then_some((i, at))
            })
            .ok_or(Reason::ListNotOwned)?;
        let (entries, notify) = (self.entries, self.notify);
        context.place_of_collector(self.ranges[range].collector)?;
        let r = &mut self.ranges[range];
        let n = usize::from(r.count[at]);
        let start = at * usize::from(self.batch_len) + n * value.len();
        r.bytes[start..start + value.len()].copy_from_slice(value);
        if let Some(name) = r.names.get_mut(at * usize::from(entries) + n) {
            *name = origin;
        }
        r.count[at] += 1;
        context.egress.counters.primitive_counters_mut(Primitive::Append).held += 1;
        if r.count[at] == entries || (immediate && notify) {
            self.send(range, at, context);
        } else if n == 0 {
            r.ages.push(at, context.now);
        }
        Ok(())
    }

    /// Sends the batch of list `at` of a range.
    fn send(&mut self, range: usize, at: usize, context: &mut Context<'_>) {
        let r = &mut self.ranges[range];
        let (list, sequence, count) = (r.first + at as u32, r.sequence[at], r.count[at]);
        let len = usize::from(self.batch_len);
        let batch = &mut r.bytes[at * len..(at + 1) * len];
        if count < self.entries {
            // Entries of an earlier batch follow.
            batch[usize::from(count) * usize::from(self.entry_len)..].fill(0);
        }
        layout::write_trailer(batch, list, sequence, count);
        r.ages.remove(at);
        r.sequence[at] = layout::next(sequence);
        r.count[at] = 0;
        let offset = layout::batch_offset(list, sequence, self.ring, self.batch_len);
        let action = action_of(self.notify, list);
        context.egress.counters.primitive_counters_mut(Primitive::Append).held -= u64::from(count);
        let first_name = at * usize::from(self.entries);
        let names = r.names.get(first_name..first_name + usize::from(count)).unwrap_or(&[]);
        let write = StoreWrite {
            action,
            copies: 1,
            payload: batch,
            primitive: Primitive::Append,
            reports: u16::from(count),
        };
        let place = context.regions.of_collector(r.collector);
        if place.is_some_and(|place| context.egress.keeps_nothing(place)) {
            self.sent
                .keep_batch(SentBatch { collector: r.collector, list, sequence, at: context.now }, batch);
        }
        context.write_copies(place, &write, |_| offset, names.iter().copied());
    }

    /// Resends what a collector may not have received because it restarted or replaced its queue pair.
    pub(crate) fn send_again(&self, collector: u8, context: &mut Context<'_>) {
        let Some(place) = context.regions.of_collector(collector) else { return };
        for (SentBatch { list, sequence, .. }, bytes) in self.sent.recent_batches_to(collector, context.now) {
            let owned = self.ranges.iter().filter(|range| range.collector == collector);
            let mut next =
                owned.filter_map(|range| range.sequence.get(list.wrapping_sub(range.first) as usize));
            // Overwritten by a later batch.
            let turned = |next: &u32| u64::from(layout::batches_between(sequence, *next)) > self.ring;
            if next.next().is_none_or(turned) {
                continue;
            }
            let offset = layout::batch_offset(list, sequence, self.ring, self.batch_len);
            let action = action_of(self.notify, list);
            context.egress.resend_operation(context.now, (place, offset), action, bytes, context.out);
        }
    }
}

fn action_of(notify: bool, list: u32) -> OperationEffect {
    if notify { OperationEffect::write_immediate(list) } else { OperationEffect::WRITE }
}

impl Gathers for AppendState {
    /// Sends batches whose first entry arrived at or before `born_by`.
    fn flush_started_by(&mut self, born_by: u64, context: &mut Context<'_>) {
        for range in 0..self.ranges.len() {
            while let Some((at, born)) = self.ranges[range].ages.oldest_element()
                && born <= born_by
            {
                self.send(range, at, context);
            }
        }
    }

    fn flush_all(&mut self, context: &mut Context<'_>) {
        let mut ranges: Vec<usize> = (0..self.ranges.len()).collect();
        ranges.sort_unstable_by_key(|range| self.ranges[*range].first);
        ranges.into_iter().for_each(|range| self.flush_range(range, context));
    }

    /// Arrival time of the oldest batch's first entry.
    fn oldest_start_time(&self) -> Option<u64> {
        self.ranges.iter().filter_map(|r| r.ages.oldest_element().map(|(_, born)| born)).min()
    }

    /// Discards what is held for the lists in this region, and releases them.
    fn discard_region(&mut self, regions: &Regions, place: usize, counters: &mut EngineCounters) {
        let of = |range: &mut Range| regions.of_collector(range.collector) == Some(place);
        for range in self.ranges.extract_if(.., of) {
            range.discard_held(counters);
        }
    }
}
