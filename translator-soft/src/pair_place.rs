//! Where a queue pair stands among those of all collectors: a small number, so that it is found by
//! an array index.

use dta_proto::program::{MAX_COLLECTORS, Purpose, Store};

/// The place of a collector's queue pair.
#[inline]
pub(crate) fn of_pair(collector: u8, purpose: Purpose) -> u8 {
    collector * Purpose::ALL.len() as u8 + purpose as u8
}

/// The place of the queue pair that operations on a store go by.
#[inline]
pub(crate) fn of_store(store: &Store) -> u8 {
    of_pair(store.collector, store.queue_pair)
}

/// A place where no queue pair ever is: beyond the last of the last collector.
pub(crate) const NONE: u8 = u8::MAX;

const _: () = assert!(MAX_COLLECTORS as usize * Purpose::ALL.len() <= NONE as usize);
