//! Where several collectors share stores: what is not here is refused with the address of the one that has it.

use std::sync::Arc;

use dta_proto::buckets;
use dta_proto::control::StoreInfo;
use dta_proto::control::bucket_ranges;
use dta_proto::key::Key;
use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::Primitive;

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
            refuse(shared.bucket(store, bucket), || format!("key {key} (bucket {bucket})"), store)?;
        }
        Ok(())
    }

    /// Refuses a sketch that another collector has.
    pub(super) fn check_sketch(&self, store: &str) -> Result<(), AskError> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let store = &self.stores.of_primitive(store, "sketch-merge")?.spec.name;
        refuse(shared.sketch(store), || "the sketch".into(), store)
    }

    /// Refuses a list that another collector has.
    pub(super) fn check_list(&self, store: &str, list: u32) -> Result<(), AskError> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let store = &self.stores.of_primitive(store, "append")?.spec.name;
        refuse(shared.list(store, list), || format!("list {list}"), store)
    }

    /// Adds what is here to what is told of each store.
    pub(super) fn say_what_is_here(&self, mut infos: Vec<StoreInfo>) -> Vec<StoreInfo> {
        let shared = self.sessions.shared();
        for info in &mut infos {
            let Some(Ok(spec)) = info.store.as_ref().map(StoreSpec::try_from) else { continue };
            info.written = shared.is_written(&spec.name);
            if shared.is_empty() {
                continue;
            }
            let (buckets, lists) = shared.here(&spec.name);
            match spec.kind.primitive() {
                Primitive::Append => info.lists = lists.into_iter().map(Into::into).collect(),
                Primitive::SketchMerge => {}
                _ => info.buckets = bucket_ranges(buckets),
            }
            info.elsewhere = shared.elsewhere(&spec.name).unwrap_or_default();
        }
        infos
    }
}

fn refuse(place: Whereabouts, what: impl FnOnce() -> String, store: &str) -> Result<(), AskError> {
    match place {
        Whereabouts::Here => Ok(()),
        Whereabouts::At(address) => Err(AskError::Elsewhere { what: what(), store: store.into(), address }),
    }
}
