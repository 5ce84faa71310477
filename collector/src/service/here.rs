//! Where several collectors share stores: what is not here is refused with the address of the one that has it.

use std::sync::Arc;

use dta_proto::buckets;
use dta_proto::control::StoreInfo;
use dta_proto::control::bucket_ranges;
use dta_proto::key::Key;

use super::Service;
use crate::answers::AskError;
use crate::session::sharing::{Shared, Whereabouts};

impl Service {
    /// Which keys and lists are here; nothing where all are.
    fn shared(&self) -> Option<Arc<Shared>> {
        Some(self.sessions.shared()).filter(|shared| !shared.is_empty())
    }

    /// Refuses keys of a store that another collector has. An empty name stands for the only store of the
    /// primitive.
    pub(super) fn check_keys(
        &self,
        store: &str,
        primitive: &'static str,
        keys: &[Vec<u8>],
    ) -> Result<(), AskError> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let store = &self.stores.of_primitive(store, primitive)?.spec.name;
        for key in keys.iter().filter_map(|key| <[u8; 16]>::try_from(&key[..]).ok().map(Key)) {
            let bucket = buckets::of_key(&key);
            if let Whereabouts::At(address) = shared.bucket(store, bucket) {
                let what = format!("key {key} (bucket {bucket})");
                return Err(AskError::Elsewhere { what, store: store.clone(), address });
            }
        }
        Ok(())
    }

    /// Refuses a list that another collector has.
    pub(super) fn check_list(&self, store: &str, list: u32) -> Result<(), AskError> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let store = &self.stores.of_primitive(store, "append")?.spec.name;
        match shared.list(store, list) {
            Whereabouts::Here => Ok(()),
            Whereabouts::At(address) => {
                Err(AskError::Elsewhere { what: format!("list {list}"), store: store.clone(), address })
            }
        }
    }

    /// Adds what is here to what is told of each store.
    pub(super) fn say_what_is_here(&self, mut infos: Vec<StoreInfo>) -> Vec<StoreInfo> {
        if let Some(shared) = self.shared() {
            for info in &mut infos {
                let name = info.store.as_ref().map_or("", |store| &store.name);
                let (buckets, lists) = shared.here(name);
                info.buckets = bucket_ranges(buckets);
                info.lists = lists.into_iter().map(Into::into).collect();
            }
        }
        infos
    }
}
