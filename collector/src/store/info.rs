//! Describes a store over the control plane.

use dta_proto::control::StoreInfo;

use super::{MemoryError, Store, load};

/// A store with its memory and load, as `dta.v1` describes it. Measures the load, which reads a sample of the
/// memory.
///
/// # Errors
/// The memory does not match the store's description.
pub fn store_info(store: &Store) -> Result<StoreInfo, MemoryError> {
    let load = load::measure_load(store).map_err(|error| store.outside_region(error))?;
    Ok(StoreInfo {
        store: Some((&store.spec).into()),
        generation: store.generation,
        length: store.region.len(),
        memory: store.region.page_kind().to_string(),
        file: store.region.file_path().map(|p| p.display().to_string()).unwrap_or_default(),
        used: load.used,
        capacity: load.capacity,
        load: load.load,
        survival: load.survival,
        advised_redundancy: load.advised_redundancy.map(u32::from),
        buckets: Vec::new(),
        lists: Vec::new(),
        elsewhere: String::new(),
        written: None,
    })
}
