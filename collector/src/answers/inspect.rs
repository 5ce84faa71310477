//! Stores and their raw memory.

use dta_proto::control::{MAX_READ, ReadMemoryRequest, ReadMemoryResponse, StoreInfo};

use super::{AskError, Memory};
use crate::store;

impl Memory {
    pub(super) fn store_infos(&self) -> Result<Vec<StoreInfo>, AskError> {
        Ok(self
            .current_stores()?
            .current_stores()
            .iter()
            .map(|store| store::store_info(store))
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
