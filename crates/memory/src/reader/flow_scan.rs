//! Flow records: answers a question from the rings of all lists of a store, at the speed of memory.
//!
//! Threads share the rings by stretches of batches, the newest first. Each batch is copied, and its records count if its
//! check is right. A list is read back until a stretch lies wholly before the time in question.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dta_proto::flow_query::{FlowQuestion, FlowTally, ScanCounts};
use dta_proto::flow_record::ENTRY_LEN;
use dta_proto::layout::append::{
    MAX_BATCH_LEN, RingBatch, advance_sequence, batches_between, decode_batch, is_sequence_after,
    place_offset, ring_place,
};
use dta_proto::store::StoreKind;

use super::append::Lists;
use crate::region::AccessError;
use crate::store::Store;

/// Batches that a thread takes at a time.
const STRETCH: u64 = 256;
/// Batches copied before their records are counted: they stay in the first-level cache.
const TOGETHER: usize = 16;
/// Most threads of a scan.
const MAX_THREADS: usize = 8;

/// Whether a store holds flow records.
pub fn holds_flow_records(store: &Store) -> bool {
    matches!(store.spec.kind, StoreKind::Append { entry_len, .. } if usize::from(entry_len) == ENTRY_LEN)
}

/// Number of threads that a scan uses on this machine.
pub fn scan_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS)
}

/// Sums over all lists of a store of [flow records](holds_flow_records), as [`FlowRings::tally_flows`].
///
/// # Errors
/// The lists lie outside the region: the region does not match the store's description.
pub fn tally_flows(
    store: &Store,
    question: &FlowQuestion,
    per_flow: bool,
    threads: usize,
) -> Result<(FlowTally, ScanCounts), AccessError> {
    FlowRings::open(store, threads)?.tally_flows(question, per_flow)
}

/// A snapshot of the rings of a store of [flow records](holds_flow_records); other stores have none.
pub struct FlowRings<'a> {
    store: &'a Store,
    /// The sequence of each list's newest batch; 0 = none.
    newest: Vec<u32>,
    threads: usize,
}

/// A list's ring, which threads share.
struct SharedRing {
    list: u32,
    newest: u32,
    /// Batches that may be there, from the newest back.
    batches: u64,
    /// How many of them threads have taken.
    taken: AtomicU64,
}

impl<'a> FlowRings<'a> {
    /// Reads the trailers of all rings.
    ///
    /// # Errors
    /// As [`tally_flows`].
    pub fn open(store: &'a Store, threads: usize) -> Result<FlowRings<'a>, AccessError> {
        let newest = match Lists::new(store).filter(|_| holds_flow_records(store)) {
            None => Vec::new(),
            Some(lists) => {
                let newest = |list| lists.newest_valid_sequence(list, newest_claim(lists, list, threads)?);
                (0..lists.list_count()).map(newest).collect::<Result<_, _>>()?
            }
        };
        Ok(FlowRings { store, newest, threads })
    }

    /// Whether memory holds all records since a moment, in nanoseconds since 1970, of the lists that have any.
    ///
    /// # Errors
    /// As [`tally_flows`].
    pub fn reaches_back_to(&self, since: u64) -> Result<bool, AccessError> {
        let StoreKind::Append { ring, batch_len, entry_len, .. } = self.store.spec.kind else {
            return Ok(false);
        };
        let mut batch = [0; MAX_BATCH_LEN as usize];
        let batch = &mut batch[..usize::from(batch_len)];
        let mut has_records = false;
        for (list, newest) in (0..).zip(&self.newest).filter(|(_, newest)| **newest != 0) {
            has_records = true;
            // The oldest place with a batch: the one after the newest, unless it was never written or is torn.
            for place in 1..=ring {
                let place = (ring_place(*newest, ring) + place) % ring;
                self.store.region.read(place_offset(list, place, ring, batch_len), batch)?;
                if let RingBatch::Valid { entries, .. } = decode_batch(batch, list, entry_len) {
                    if last_received(entries) > since {
                        return Ok(false);
                    }
                    break;
                }
            }
        }
        Ok(has_records)
    }

    /// The sums over all records. Tallies per flow only if `per_flow` asks for it or the question [needs
    /// it](FlowTally::needs_flows).
    ///
    /// # Errors
    /// As [`tally_flows`].
    pub fn tally_flows(
        &self,
        question: &FlowQuestion,
        per_flow: bool,
    ) -> Result<(FlowTally, ScanCounts), AccessError> {
        let behind = BTreeMap::new();
        let found = self.scan_lists(question, per_flow, &behind)?;
        if found.0.needs_flows() { self.scan_lists(question, true, &behind) } else { Ok(found) }
    }

    /// As [`FlowRings::tally_flows`], but per flow only if asked; lists in `behind` start after that sequence.
    ///
    /// # Errors
    /// As [`tally_flows`].
    pub fn scan_lists(
        &self,
        question: &FlowQuestion,
        per_flow: bool,
        behind: &BTreeMap<u32, u32>,
    ) -> Result<(FlowTally, ScanCounts), AccessError> {
        let StoreKind::Append { ring, .. } = self.store.spec.kind else {
            return Ok((FlowTally::new(question.clone(), per_flow), ScanCounts::default()));
        };
        let shared = |(list, newest): (u32, &u32)| {
            // In other memory, sequences start at 1 again.
            let goes_on = |last: &&u32| newest == *last || is_sequence_after(*newest, **last);
            let most = behind
                .get(&list)
                .filter(goes_on)
                .map_or(u64::MAX, |last| batches_between(*last, *newest).into());
            let batches = if *newest == 0 { 0 } else { ring.min(most) };
            SharedRing { list, newest: *newest, batches, taken: AtomicU64::new(0) }
        };
        let rings: Vec<SharedRing> = (0..).zip(&self.newest).map(shared).collect();
        let next = AtomicU32::new(0);
        let tallied = on_threads(self.threads, |_| {
            let mut tally = FlowTally::new(question.clone(), per_flow);
            let mut counts = ScanCounts::default();
            // Each thread begins with a different list.
            let first = next.fetch_add(1, Ordering::Relaxed) as usize;
            for turn in 0..rings.len() {
                scan_ring(self.store, &rings[(first + turn) % rings.len()], &mut tally, &mut counts)?;
            }
            Ok((tally, counts))
        })?;
        let (mut tallies, mut counts) = (Vec::new(), ScanCounts::default());
        for (tally, passed) in tallied {
            tallies.push(tally);
            counts.add(passed);
        }
        let mut tally = tallies.swap_remove(0);
        tally.merge(&tallies);
        Ok((tally, counts))
    }
}

/// The newest sequence that a trailer of a list claims, read by several threads if the ring is long.
fn newest_claim(lists: Lists<'_>, list: u32, threads: usize) -> Result<u32, AccessError> {
    let ring = lists.ring_batches();
    // Starting a thread takes as long as reading a thousand trailers.
    let threads = if ring < 1 << 14 { 1 } else { threads.max(1) as u64 };
    let part = |number: usize| {
        let number = number as u64;
        lists.newest_claim(list, ring * number / threads..ring * (number + 1) / threads)
    };
    let claims = on_threads(threads as usize, part)?.into_iter().filter(|claim| *claim != 0);
    Ok(claims.reduce(|a, b| if is_sequence_after(b, a) { b } else { a }).unwrap_or(0))
}

/// Runs `work` on this many threads, at least one and this one among them, each with its number. Returns the results.
fn on_threads<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> Result<T, AccessError> + Sync,
) -> Result<Vec<T>, AccessError> {
    let work = &work;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || work(number))).collect();
        let own = work(0);
        let others = others.into_iter().map(|other| other.join().expect("a scan does not panic"));
        std::iter::once(own).chain(others).collect()
    })
}

/// Reads stretches of a ring that no other thread has taken, until none is left.
fn scan_ring(
    store: &Store,
    shared: &SharedRing,
    tally: &mut FlowTally,
    counts: &mut ScanCounts,
) -> Result<(), AccessError> {
    let StoreKind::Append { ring, batch_len, entry_len, .. } = store.spec.kind else { return Ok(()) };
    let mut copies = vec![0; TOGETHER * usize::from(batch_len)];
    let since = tally.question().since;
    loop {
        let from = shared.taken.fetch_add(STRETCH, Ordering::Relaxed);
        if from >= shared.batches {
            return Ok(());
        }
        // Whether the stretch has batches received since the time in question, and before it.
        let (mut has_recent, mut has_older) = (false, false);
        let mut is_before_first = false;
        // In the order of addresses, because the processor reads ahead.
        let mut stretch = (from..(from + STRETCH).min(shared.batches)).rev().peekable();
        while stretch.peek().is_some() {
            let mut runs: [&[u8]; TOGETHER] = [&[]; TOGETHER];
            let batches = copies.chunks_exact_mut(usize::from(batch_len)).zip(&mut runs);
            for ((batch, run), back) in batches.zip(stretch.by_ref()) {
                let wanted = sequence_before(shared.newest, back as u32);
                let place = ring_place(wanted, ring);
                store.region.read(place_offset(shared.list, place, ring, batch_len), batch)?;
                match decode_batch(batch, shared.list, entry_len) {
                    RingBatch::Valid { sequence, entries, .. } if sequence == wanted => {
                        counts.batches += 1;
                        *run = entries;
                        let is_recent = last_received(entries) >= since;
                        has_recent |= is_recent;
                        has_older |= !is_recent;
                    }
                    RingBatch::Valid { sequence, .. } if is_sequence_after(sequence, shared.newest) => {
                        counts.overwritten += 1;
                    }
                    // Sequences skip 0: a batch before the wrap shares its place with one after it, which counts there.
                    RingBatch::Valid { sequence, .. }
                        if wanted > shared.newest && sequence <= shared.newest => {}
                    RingBatch::Valid { .. } => counts.missing += 1,
                    RingBatch::Torn => counts.torn += 1,
                    // Nothing was ever written here or before: the list has not filled its ring yet.
                    RingBatch::Empty if wanted > shared.newest => is_before_first = true,
                    RingBatch::Empty => counts.missing += 1,
                }
            }
            tally.add_entries(runs);
        }
        if is_before_first || (has_older && !has_recent) {
            shared.taken.store(shared.batches, Ordering::Relaxed);
            return Ok(());
        }
    }
}

/// The sequence `batches` batches before another.
fn sequence_before(sequence: u32, batches: u32) -> u32 {
    advance_sequence(sequence, u32::MAX - batches)
}

/// When the last of a batch's records was received.
fn last_received(entries: &[u8]) -> u64 {
    entries
        .rchunks_exact(ENTRY_LEN)
        .next()
        .and_then(|entry| entry.first_chunk())
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use dta_proto::flow_query::FlowSum;
    use dta_proto::flow_record::FlowRecord;
    use dta_proto::layout::append::{batch_offset, encode_batch};

    use super::*;
    use crate::store::tests::store;

    const RING: u64 = 1024;
    const LISTS: u32 = 2;

    fn flows() -> Store {
        let entry_len = ENTRY_LEN as u8;
        store(StoreKind::Append { lists: LISTS, ring: RING, batch_len: 1024, entry_len, notify: false })
    }

    /// Batch `sequence` of a list: five records, with `sequence` as their bytes and time of receipt.
    fn write_batch(store: &Store, list: u32, sequence: u32) {
        let record = FlowRecord {
            received: u64::from(sequence),
            bytes: u64::from(sequence),
            exporter: std::net::Ipv6Addr::from_bits(u128::from(list)),
            src_port: list as u16,
            ..FlowRecord::EMPTY
        };
        let mut batch = [0; 1024];
        encode_batch(&mut batch, list, sequence, 5, &record.to_entry().repeat(5));
        store.region.write(batch_offset(list, sequence, RING, 1024), &batch).unwrap();
    }

    fn sum(store: &Store, question: &FlowQuestion, threads: usize) -> (u64, ScanCounts) {
        let (tally, counts) = tally_flows(store, question, false, threads).unwrap();
        (tally.rank_groups(FlowSum::Bytes, 1).total.bytes, counts)
    }

    fn total(sequences: std::ops::RangeInclusive<u64>) -> u64 {
        sequences.map(|sequence| 5 * sequence).sum()
    }

    #[test]
    fn all_records_of_all_lists_count_once_with_any_number_of_threads() {
        let store = flows();
        let all = FlowQuestion::default();
        assert_eq!(sum(&store, &all, 2), (0, ScanCounts::default()));
        for list in 0..LISTS {
            (1..=700).for_each(|sequence| write_batch(&store, list, sequence));
        }
        for threads in [1, 2, 5] {
            let (bytes, counts) = sum(&store, &all, threads);
            assert_eq!((bytes, counts), (2 * total(1..=700), ScanCounts { batches: 1400, ..counts }));
            assert_eq!((counts.overwritten, counts.missing, counts.torn), (0, 0, 0));
        }
        // The ring has turned.
        (701..=2000).for_each(|sequence| write_batch(&store, 1, sequence));
        assert_eq!(sum(&store, &all, 2).0, total(1..=700) + total(977..=2000));
    }

    #[test]
    fn it_ends_before_the_time_in_question() {
        let store = flows();
        (1..=1000).for_each(|sequence| write_batch(&store, 0, sequence));
        let recent = FlowQuestion { since: 900, until: 950, ..FlowQuestion::default() };
        let (bytes, counts) = sum(&store, &recent, 1);
        assert_eq!(bytes, total(900..=949));
        assert_eq!(counts.batches, 2 * STRETCH, "the first stretch without any ends it");
    }

    #[test]
    fn a_hole_longer_than_a_stretch_does_not_end_it() {
        let store = flows();
        let is_lost = |sequence: &u32| (400..=900).contains(sequence);
        (1..=1000)
            .filter(|sequence| !is_lost(sequence))
            .for_each(|sequence| write_batch(&store, 0, sequence));
        let since = FlowQuestion { since: 300, ..FlowQuestion::default() };
        let (bytes, counts) = sum(&store, &since, 1);
        assert_eq!((bytes, counts.missing), (total(300..=399) + total(901..=1000), 501));
    }

    #[test]
    fn what_is_torn_or_missing_is_counted() {
        let store = flows();
        (1..=20).filter(|sequence| *sequence != 7).for_each(|sequence| write_batch(&store, 0, sequence));
        store.region.write(batch_offset(0, 9, RING, 1024) + 100, &[0xff; 8]).unwrap();
        let (bytes, counts) = sum(&store, &FlowQuestion::default(), 2);
        assert_eq!(bytes, total(1..=20) - 5 * (7 + 9));
        assert_eq!(counts, ScanCounts { batches: 18, overwritten: 0, missing: 1, torn: 1 });
    }

    #[test]
    fn what_history_has_is_left_out_and_how_far_memory_reaches_is_known() {
        let store = flows();
        let reaches_back_to = |since| FlowRings::open(&store, 1).unwrap().reaches_back_to(since).unwrap();
        assert!(!reaches_back_to(u64::MAX), "there are no records");
        (1..=1500).for_each(|sequence| write_batch(&store, 0, sequence));
        (1..=10).for_each(|sequence| write_batch(&store, 1, sequence));
        let kept = BTreeMap::from([(0, 1400), (1, 9999)]);
        let (tally, counts) =
            FlowRings::open(&store, 2).unwrap().scan_lists(&FlowQuestion::default(), false, &kept).unwrap();
        assert_eq!(tally.rank_groups(FlowSum::Bytes, 1).total.bytes, total(1401..=1500) + total(1..=10));
        assert_eq!(counts.batches, 110);
        // The ring still has 477 to 1500.
        assert_eq!([476, 477].map(reaches_back_to), [false, true]);
    }

    #[test]
    fn a_flow_in_two_lists_counts_once() {
        let store = flows();
        let mut records = [FlowRecord { bytes: 10, ..FlowRecord::EMPTY }; 2];
        records[1] = FlowRecord { bytes: 7, exporter: std::net::Ipv6Addr::LOCALHOST, ..records[1] };
        for (list, record) in (0..).zip(&records) {
            let mut batch = [0; 1024];
            encode_batch(&mut batch, list, 1, 1, &record.to_entry());
            store.region.write(batch_offset(list, 1, RING, 1024), &batch).unwrap();
        }
        assert_eq!(sum(&store, &FlowQuestion::default(), 2).0, 10);
        let group = FlowQuestion::parse_group("exporter").unwrap();
        assert_eq!(sum(&store, &FlowQuestion { group, ..FlowQuestion::default() }, 2).0, 17);
    }

    #[test]
    fn sequences_go_back_over_the_wrap() {
        assert_eq!([0, 1, 2, 3].map(|back| sequence_before(2, back)), [2, 1, u32::MAX, u32::MAX - 1]);
    }
}
