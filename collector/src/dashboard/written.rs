//! Finds where a store is being written: it goes round the store's memory, some at a time, and compares
//! digests.

use dta_proto::control::MAX_READ;
use dta_proto::store::StoreSpec;

use super::app::Window;

/// Bytes under one digest; also the most that one request may ask for.
const PAGE: u64 = MAX_READ as u64;

/// Pages looked at per refresh.
const PAGES_AT_ONCE: usize = 128;

/// What is known of a store's memory.
#[derive(Debug)]
pub(super) struct Writes {
    store: String,
    length: u64,
    digests: Vec<Option<u32>>,
    next: usize,
}

impl Writes {
    /// Knows nothing yet of this store.
    pub(super) fn new(spec: &StoreSpec) -> Self {
        let length = spec.region_len();
        let digests = vec![None; length.div_ceil(PAGE) as usize];
        Self { store: spec.name.clone(), length, digests, next: 0 }
    }

    pub(super) fn is_of(&self, spec: &StoreSpec) -> bool {
        self.store == spec.name && self.length == spec.region_len()
    }

    /// The stretches to be read next. Each is to be handed to [`Writes::changed`], in this order.
    pub(super) fn windows(&self) -> Vec<Window> {
        let pages = self.digests.len();
        let page = |i| {
            let offset = ((self.next + i) % pages) as u64 * PAGE;
            let length = PAGE.min(self.length - offset) as u32;
            Window { store: self.store.clone(), offset, length }
        };
        (0..PAGES_AT_ONCE.min(pages)).map(page).collect()
    }

    /// Takes the bytes of the next stretch: whether they are others than the last time.
    pub(super) fn changed(&mut self, bytes: &[u8]) -> bool {
        let digest = dta_proto::crc::crc32(bytes);
        let before = self.digests[self.next].replace(digest);
        self.next = (self.next + 1) % self.digests.len();
        before.is_some_and(|before| before != digest)
    }
}
