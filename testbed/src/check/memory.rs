//! The bytes of a store, over gRPC.

use dta_proto::control::{MAX_READ, ReadMemoryRequest};
use dta_proto::store::StoreSpec;
use dta_rpc::{Ask, ClientError};

/// Bytes of memory that one call gives at most.
const MEMORY_CHUNK: u64 = MAX_READ as u64;

/// Bytes of a store's memory at one collector.
pub(super) async fn read_store_memory(
    collector: &dyn Ask,
    store: &StoreSpec,
    first: u64,
    length: u64,
) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::with_capacity(length as usize);
    while (bytes.len() as u64) < length {
        let at = bytes.len() as u64;
        let chunk = MEMORY_CHUNK.min(length - at);
        let (store, offset, length) = (store.name.clone(), first + at, chunk as u32);
        bytes.extend(collector.read_memory(ReadMemoryRequest { store, offset, length }).await?.data);
    }
    Ok(bytes)
}
