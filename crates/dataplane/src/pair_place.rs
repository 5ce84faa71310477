//! The place of a queue pair among those of all collectors: a small number that serves as an array index.

use dta_proto::program::{MAX_COLLECTORS, Purpose, Store};

/// The place of a collector's queue pair.
#[inline]
pub fn place_for_pair(collector: u8, purpose: Purpose) -> u8 {
    collector * Purpose::ALL.len() as u8 + purpose as u8
}

/// The place of the queue pair for operations on a store.
#[inline]
pub(crate) fn place_for_store(store: &Store) -> u8 {
    place_for_pair(store.collector, store.queue_pair)
}

/// A place that never has a queue pair: beyond the last collector's last.
pub(crate) const NONE: u8 = u8::MAX;

const _: () = assert!(MAX_COLLECTORS as usize * Purpose::ALL.len() <= NONE as usize);
