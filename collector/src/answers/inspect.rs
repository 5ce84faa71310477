//! Stores and their raw memory.

use dta_memory::store::{MemoryError, Store, load};
use dta_proto::control::{MAX_READ, ReadMemoryRequest, ReadMemoryResponse, StoreInfo};

use super::{AskError, Memory};

impl Memory {
    pub(super) fn store_infos(&self) -> Result<Vec<StoreInfo>, AskError> {
        Ok(self
            .current_stores()?
            .current_stores()
            .iter()
            .map(|store| store_info(store))
            .collect::<Result<_, _>>()?)
    }

    pub(super) fn read_region(&self, request: &ReadMemoryRequest) -> Result<ReadMemoryResponse, AskError> {
        let store = self.current_stores()?.get(&request.store)?;
        if request.length > MAX_READ {
            return Err(AskError::TooManyBytes(request.length));
        }
        let mut data = vec![0; request.length as usize];
        store.region.read(request.offset, &mut data).map_err(|source| AskError::BeyondEnd {
            store: store.spec.name.clone(),
            len: store.region.len(),
            source,
        })?;
        Ok(ReadMemoryResponse { data, generation: store.generation })
    }
}

/// Describes a store with its memory and load, as in `dta.v1`. Measures the load, which reads a sample of the
/// memory.
///
/// # Errors
/// The memory does not match the store's description.
fn store_info(store: &Store) -> Result<StoreInfo, MemoryError> {
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
        overwritten: load.overwritten,
    })
}
