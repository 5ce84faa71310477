//! Keys that do not overwrite each other.

use std::collections::HashSet;

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::store::MAX_REDUNDANCY;

/// Keys of which no two share a slot of a store with so many slots, however many copies it has.
pub(crate) fn keys(count: usize, slots: u64) -> Vec<Key> {
    let (mut taken, mut keys) = (HashSet::new(), Vec::new());
    for n in 0u32.. {
        let mut key = Key::default();
        key.0[12..].copy_from_slice(&n.to_be_bytes());
        let slots = hash::slots(&key, MAX_REDUNDANCY, slots);
        if slots.iter().all(|slot| !taken.contains(slot)) {
            taken.extend(slots.iter().copied());
            keys.push(key);
        }
        if keys.len() == count {
            break;
        }
    }
    keys
}
