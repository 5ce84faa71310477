//! If several collectors share stores: queries for what another one has are refused with its address.

use std::sync::Arc;

use dta_client::Question;
use dta_proto::buckets;
use dta_proto::control::{PlacementResponse, StorePlacement, bucket_ranges};
use dta_proto::wire::dta::{Addressing, Primitive};

use super::Service;
use crate::answers::AskError;
use crate::session::sharing::{Shared, Whereabouts};
use crate::store::Store;

impl Service {
    /// Refuses keys and sketches that another collector has.
    pub(super) fn check(&self, shared: &Shared, question: &Question) -> Result<(), AskError> {
        if shared.is_empty() {
            return Ok(());
        }
        let primitive = question.kind.primitive();
        let store = &self.stores.of_primitive(&question.store, primitive)?.spec.name;
        let replicas = self.replicas(store);
        if primitive.addressing() == Addressing::Column {
            return refuse(shared.sketch(store), || "the sketch".into(), store);
        }
        for key in &question.keys {
            let bucket = buckets::of_key(key);
            refuse(shared.bucket(store, replicas, bucket), || format!("key {key} (bucket {bucket})"), store)?;
        }
        Ok(())
    }

    /// How many collectors are to have each key of a store.
    pub(super) fn replicas(&self, store: &str) -> usize {
        self.replicas.get(store).map_or(1, |replicas| usize::from(*replicas))
    }

    /// Refuses a list that another collector has.
    pub(super) fn check_list(&self, store: &str, list: u32) -> Result<(), AskError> {
        let shared = self.sessions.shared();
        if shared.is_empty() {
            return Ok(());
        }
        let store = &self.stores.of_primitive(store, Primitive::Append)?.spec.name;
        refuse(shared.list(store, list), || format!("list {list}"), store)
    }

    /// The part of each store that is here.
    pub(super) fn here(&self, shared: &Shared) -> PlacementResponse {
        let version = self.version(shared);
        let placement = |store: &Arc<Store>| {
            let (spec, generation) = (&store.spec, store.generation);
            let (store, written) = (Some(spec.into()), Some(shared.is_written(&spec.name)));
            let mut place = StorePlacement { store, written, generation, ..StorePlacement::default() };
            if shared.is_empty() {
                return place;
            }
            let (buckets, lists) = shared.here(&spec.name, self.replicas(&spec.name));
            match spec.kind.primitive().addressing() {
                Addressing::Key => place.buckets = bucket_ranges(&buckets),
                Addressing::List => place.lists = lists.into_iter().map(Into::into).collect(),
                Addressing::Column => {}
            }
            place.elsewhere = shared.elsewhere(&spec.name).unwrap_or_default();
            place
        };
        let started = shared.started;
        PlacementResponse { version, started, stores: self.stores.all().iter().map(placement).collect() }
    }

    /// The version of [`Service::here`]; it changes when a store is added, too. Stores are never removed.
    pub(super) fn version(&self, shared: &Shared) -> u64 {
        shared.version + self.stores.all().len() as u64
    }
}

fn refuse(place: Whereabouts, what: impl FnOnce() -> String, store: &str) -> Result<(), AskError> {
    match place {
        Whereabouts::Here => Ok(()),
        Whereabouts::At(address) => Err(AskError::Elsewhere { what: what(), store: store.into(), address }),
    }
}
