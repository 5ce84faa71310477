//! Finds which element of a store was written: it cycles through the store's memory, a page at a time, and compares
//! digests of small blocks with those of the previous round.
//!
//! A NIC writes memory without notice, so comparing is the only method that works with every NIC. It shows that an
//! element changed between two scans; not when, and not that the same bytes were written again.

use std::time::{Duration, Instant};

use dta_proto::control::MAX_READ;
use dta_proto::store::StoreSpec;

use super::app::MemoryWindow;

/// Bytes read by one request.
const PAGE: u64 = MAX_READ as u64;

/// A store with more elements than this has a digest for every two, four, … of them, so that digests take at most 16
/// MiB as long as a page has more than one.
const MAX_DIGESTS: u64 = 4 << 20;

/// What is known about a store's memory.
#[derive(Debug)]
pub(super) struct Follow {
    spec: StoreSpec,
    /// Bytes under one digest: one element or more.
    block: u64,
    digests: Vec<u32>,
    /// When each page was last read.
    looked: Vec<Option<Instant>>,
    next: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scan {
    /// The last element that changed.
    pub(super) change: Option<ElementChange>,
    /// Elements read in this scan.
    pub(super) elements: u64,
    /// Share of the store that has been read before; changes in the rest are unknown.
    pub(super) known: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ElementChange {
    /// The element, or the first one under the changed digest.
    pub(super) element: u64,
    /// The number of elements under one digest: at least one of them changed.
    pub(super) of: u64,
    /// The number of other digests that changed.
    pub(super) others: u64,
    /// They changed at most this long before the scan.
    pub(super) within: Duration,
    pub(super) at: Instant,
}

impl Follow {
    /// Starts without knowing anything about this store.
    pub(super) fn new(spec: &StoreSpec) -> Self {
        // Elements, regions and pages are powers of two, so blocks fill pages and pages fill the region.
        let mut block = spec.element_len();
        while spec.region_len() / block > MAX_DIGESTS && block < PAGE {
            block *= 2;
        }
        let digests = vec![0; (spec.region_len() / block) as usize];
        let looked = vec![None; spec.region_len().div_ceil(PAGE) as usize];
        Self { spec: spec.clone(), block, digests, looked, next: 0 }
    }

    pub(super) fn is_following(&self, spec: &StoreSpec) -> bool {
        self.spec == *spec
    }

    pub(super) fn page_count(&self) -> usize {
        self.looked.len()
    }

    /// The range to read next, for [`Follow::compare_window`].
    pub(super) fn next_window(&self) -> MemoryWindow {
        let offset = self.next as u64 * PAGE;
        let length = PAGE.min(self.spec.region_len() - offset) as u32;
        MemoryWindow { store: self.spec.name.clone(), offset, length }
    }

    /// Compares the bytes of that range, read at `at`, and adds the result to `seen`.
    pub(super) fn compare_window(&mut self, bytes: &[u8], at: Instant, seen: &mut Scan) {
        let page = self.next;
        self.next = (self.next + 1) % self.page_count();
        let first = page as u64 * PAGE / self.block;
        let before = self.looked[page].replace(at);
        let (mut changed, mut last) = (0, 0);
        for (index, block) in (first..).zip(bytes.chunks_exact(self.block as usize)) {
            let digest = dta_proto::crc::crc32(block);
            if std::mem::replace(&mut self.digests[index as usize], digest) != digest {
                (changed, last) = (changed + 1, index);
            }
        }
        seen.elements += bytes.len() as u64 / self.spec.element_len();
        seen.known = self.looked.iter().flatten().count() as f64 / self.page_count() as f64;
        let (Some(before), true) = (before, changed > 0) else { return };
        let of = self.block / self.spec.element_len();
        let others = seen.change.map_or(0, |change| change.others + 1) + changed - 1;
        let within = at.saturating_duration_since(before);
        seen.change = Some(ElementChange { element: last * of, of, others, within, at });
    }
}

impl Scan {
    pub(super) fn new() -> Self {
        Self { change: None, elements: 0, known: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use dta_proto::store::StoreKind;

    use super::*;

    fn store(slots: u64) -> StoreSpec {
        StoreSpec {
            id: 1,
            name: "s".into(),
            kind: StoreKind::KeyWrite { slots, value_len: 12, redundancy: 2, keys: Default::default() },
        }
    }

    /// Scans all pages of `memory` at one time.
    fn round(follow: &mut Follow, memory: &[u8], at: Instant) -> Scan {
        let mut seen = Scan::new();
        for _ in 0..follow.page_count() {
            let window = follow.next_window();
            let start = window.offset as usize;
            follow.compare_window(&memory[start..start + window.length as usize], at, &mut seen);
        }
        seen
    }

    #[test]
    fn the_element_that_changed_is_found_wherever_it_is() {
        for slots in [16, 1 << 12, 1 << 14, 1 << 16] {
            let spec = store(slots);
            let mut memory = vec![0; spec.region_len() as usize];
            let mut follow = Follow::new(&spec);
            let start = Instant::now();
            assert_eq!(round(&mut follow, &memory, start).change, None, "the first round only learns");
            for (n, element) in [0, 1, slots / 2 + 1, slots - 2, slots - 1, 3].into_iter().enumerate() {
                memory[element as usize * 16 + 7] ^= 1;
                let at = start + Duration::from_secs(2 * (n as u64 + 1));
                let seen = round(&mut follow, &memory, at);
                let change = ElementChange { element, of: 1, others: 0, within: Duration::from_secs(2), at };
                assert_eq!(seen, Scan { change: Some(change), elements: slots, known: 1.0 });
                assert_eq!(round(&mut follow, &memory, at).change, None, "once");
            }
        }
    }

    #[test]
    fn of_many_the_last_is_shown_and_the_others_are_counted() {
        let spec = store(1 << 14);
        let mut memory = vec![0; spec.region_len() as usize];
        let mut follow = Follow::new(&spec);
        let start = Instant::now();
        round(&mut follow, &memory, start);
        for element in [5, 6, 4096, 9000, 16000] {
            memory[element * 16] = 9;
        }
        let change = round(&mut follow, &memory, start).change.unwrap();
        assert_eq!((change.element, change.others), (16000, 4));
    }

    #[test]
    fn a_change_is_found_in_the_next_round_and_not_before() {
        let spec = store(1 << 14);
        let mut memory = vec![0; spec.region_len() as usize];
        let mut follow = Follow::new(&spec);
        let (start, mut seen) = (Instant::now(), Scan::new());
        follow.compare_window(&memory[..PAGE as usize], start, &mut seen);
        assert_eq!((seen.known, seen.elements), (0.25, 4096));
        memory[0] = 1;
        let seen = round(&mut follow, &memory, start + Duration::from_secs(1));
        assert_eq!(
            seen.change.map(|change| (change.element, change.within)),
            Some((0, Duration::from_secs(1)))
        );
    }

    #[test]
    fn a_large_store_has_a_digest_for_several_elements_and_says_so() {
        let follow = Follow::new(&store(1 << 26));
        assert_eq!((follow.digests.len(), follow.block), (4 << 20, 16 * 16));
        let mut follow = Follow::new(&store(1 << 24));
        assert_eq!(follow.block, 4 * 16);
        let mut memory = vec![0; PAGE as usize];
        follow.compare_window(&memory, Instant::now(), &mut Scan::new());
        follow.next = 0;
        memory[16 * 1001] = 1;
        let mut seen = Scan::new();
        follow.compare_window(&memory, Instant::now(), &mut seen);
        assert_eq!(seen.change.map(|change| (change.element, change.of)), Some((1000, 4)));
        // In the largest store, a digest covers at most a page.
        assert_eq!(Follow::new(&store(1 << 32)).block, 16 * 1024);
    }
}
