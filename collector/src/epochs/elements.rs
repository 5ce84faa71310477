//! Reads a store's memory as slots, and makes a store out of slots.

use dta_memory::region::{AccessError, Region, RegionError};
use dta_memory::store::Store;
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::store::{StoreKind, StoreSpec};

/// Bytes to read at a time.
const CHUNK: usize = 1 << 16;

/// The slots (for a sketch, the columns) of keys, each once, in ascending order.
pub(super) fn slots_of_keys(spec: &StoreSpec, keys: &[Key]) -> Vec<u64> {
    let (count, of) = match spec.kind {
        StoreKind::SketchMerge { columns, rows, .. } => (rows, columns.into()),
        _ => (spec.slots_per_key().unwrap_or_default(), spec.element_count()),
    };
    let mut slots: Vec<u64> = keys.iter().flat_map(|key| hash::key_slots(key, count, of).to_vec()).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Passes on all slots of a store in ascending order, a chunk at a time: the number of the first slot, and their bytes.
///
/// # Errors
/// The region is shorter than the store's description says, or `take` failed.
pub fn read<E: From<AccessError>>(
    store: &Store,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (len, count) = (store.spec.element_len(), store.spec.element_count());
    let many = CHUNK / len as usize;
    let mut chunk = vec![0; many * len as usize];
    for first in (0..count).step_by(many) {
        let slots = (count - first).min(many as u64);
        let chunk = &mut chunk[..(slots * len) as usize];
        store.region.read(first * len, chunk)?;
        take(first, chunk)?;
    }
    Ok(())
}

/// A store like `like` with these slots, or these columns of one sketch epoch, and zeros everywhere else.
pub(super) fn sparse_store(
    like: &Store,
    generation: u64,
    slots: &[u64],
    bytes: &[u8],
) -> Result<Store, RegionError> {
    let store = like.of_elements(Region::new_sparse(like.region.len())?, generation);
    write_slots(&store, slots, bytes);
    Ok(store)
}

/// Writes these slots. All-zero slots are skipped, as writing them would take memory.
pub(super) fn write_slots(store: &Store, slots: &[u64], bytes: &[u8]) {
    each_used(store, slots, bytes, |at, bytes| store.region.write(at, bytes));
}

/// Zeroes again what [`write_slots`] wrote.
pub(super) fn clear_slots(store: &Store, slots: &[u64], bytes: &[u8]) {
    each_used(store, slots, bytes, |at, bytes| store.region.write(at, &vec![0; bytes.len()]));
}

fn each_used(
    store: &Store,
    slots: &[u64],
    bytes: &[u8],
    write: impl Fn(u64, &[u8]) -> Result<(), AccessError>,
) {
    let len = store.spec.element_len();
    for (slot, bytes) in slots.iter().zip(bytes.chunks_exact(len as usize)) {
        if bytes.iter().any(|byte| *byte != 0) {
            // Cannot fail: a slot of the store lies within memory of the store's length.
            let _ = write(element_number(&store.spec.kind, *slot, bytes) * len, bytes);
        }
    }
}

/// The number of the element that holds a slot, or a sketch column, whose bytes name its epoch.
fn element_number(kind: &StoreKind, slot: u64, bytes: &[u8]) -> u64 {
    match (kind, bytes.first_chunk()) {
        (StoreKind::SketchMerge { columns, epochs, .. }, Some(epoch)) => {
            let ring_place = u32::from_be_bytes(*epoch) & (epochs - 1);
            u64::from(ring_place) * u64::from(*columns) + slot
        }
        _ => slot,
    }
}
