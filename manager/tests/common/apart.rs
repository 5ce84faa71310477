//! Keys that do not overwrite each other.

use std::collections::HashSet;

use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_increment::MAX_SLOTS_PER_KEY;

/// Keys of which no two share a slot, nor one has a slot twice, of a store with so many slots, however many copies it has.
pub(crate) fn keys(count: usize, slots: u64) -> Vec<Key> {
    let (mut taken, mut keys) = (HashSet::new(), Vec::new());
    for n in 0u32.. {
        let mut key = Key::default();
        key.0[12..].copy_from_slice(&n.to_be_bytes());
        let slots: HashSet<u64> =
            hash::key_slots(&key, MAX_SLOTS_PER_KEY as u8, slots).iter().copied().collect();
        if slots.len() == MAX_SLOTS_PER_KEY && slots.iter().all(|slot| !taken.contains(slot)) {
            taken.extend(slots);
            keys.push(key);
        }
        if keys.len() == count {
            break;
        }
    }
    keys
}
