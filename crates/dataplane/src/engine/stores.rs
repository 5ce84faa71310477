//! The engine's stores, their regions, and their state.

use dta_proto::program::Store;
use dta_proto::store::StoreKind;

use super::EngineLimits;
use crate::primitive::PrimitiveState;
use crate::primitive::key_write::KeyWriteShape;
use crate::regions::Regions;

/// A store of the program, with all its regions.
pub(super) struct InstalledStore {
    pub(super) id: u16,
    pub(super) kind: StoreKind,
    pub(super) regions: Regions,
    pub(super) state: PrimitiveState,
}

impl InstalledStore {
    /// The shape of a key-write store without inline keys whose keys are each at one collector; `None` for any other store.
    pub(super) fn key_write(&self) -> Option<KeyWriteShape> {
        match &self.state {
            PrimitiveState::KeyWrite(shape) if self.regions.replica_count() == 1 => Some(*shape),
            _ => None,
        }
    }
}

/// All stores and their regions. A region keeps its place for as long as it exists.
pub(super) struct InstalledStores {
    stores: Vec<Option<InstalledStore>>,
    /// Index in `stores` + 1 by store id; 0 = none.
    by_id: Vec<u16>,
    /// The entries of all regions, by their places.
    places: Vec<Option<Store>>,
}

impl InstalledStores {
    pub(super) fn new() -> InstalledStores {
        InstalledStores { stores: Vec::new(), by_id: vec![0; 1 << 16], places: Vec::new() }
    }

    #[inline]
    pub(super) fn find_store(&mut self, id: u16) -> Option<&mut InstalledStore> {
        let at = usize::from(self.by_id[usize::from(id)]).checked_sub(1)?;
        self.stores[at].as_mut()
    }

    /// The ids of all stores in ascending order.
    pub(super) fn store_ids(&self) -> Vec<u16> {
        let mut ids: Vec<u16> = self.iter().map(|store| store.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &InstalledStore> {
        self.stores.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut InstalledStore> {
        self.stores.iter_mut().flatten()
    }

    /// The regions' entries by place; `None` for a free place.
    pub(super) fn region_entries(&self) -> Vec<Option<&Store>> {
        self.places.iter().map(Option::as_ref).collect()
    }

    /// Adds a region of a store, which must be new or have the same layout. If this replaces an entry,
    /// returns its place and the old entry.
    pub(super) fn set(
        &mut self,
        entry: &Store,
        limits: &EngineLimits,
        reference: bool,
    ) -> Option<(usize, Store)> {
        let at = match usize::from(self.by_id[usize::from(entry.spec.id)]).checked_sub(1) {
            Some(at) => at,
            None => self.insert_store(entry, limits, reference),
        };
        let InstalledStores { stores, places, .. } = self;
        let store = stores[at].as_mut()?;
        let known = store.regions.of_collector(entry.collector);
        let place = known.or_else(|| places.iter().position(Option::is_none)).unwrap_or(places.len());
        if place == places.len() {
            places.push(None);
        }
        store.regions.set(entry.collector, place, entry.buckets);
        let before = places[place].replace(entry.clone())?;
        Some((place, before))
    }

    fn insert_store(&mut self, entry: &Store, limits: &EngineLimits, reference: bool) -> usize {
        let state = PrimitiveState::new(entry, limits, reference);
        let (id, kind) = (entry.spec.id, entry.spec.kind.clone());
        let store = Some(InstalledStore { id, kind, regions: Regions::new(), state });
        let at = self.stores.iter().position(Option::is_none).unwrap_or(self.stores.len());
        if at == self.stores.len() {
            self.stores.push(None);
        }
        self.stores[at] = store;
        self.by_id[usize::from(id)] = at as u16 + 1;
        at
    }

    /// Removes a store's region at a collector, and the store with its last one. Returns the region's place.
    pub(super) fn remove_region(&mut self, id: u16, collector: u8) -> Option<usize> {
        let at = usize::from(self.by_id[usize::from(id)]).checked_sub(1)?;
        let store = self.stores[at].as_mut()?;
        let place = store.regions.of_collector(collector)?;
        store.regions.remove_region(collector);
        self.places[place] = None;
        if store.regions.region_count() == 0 {
            self.stores[at] = None;
            self.by_id[usize::from(id)] = 0;
        }
        Some(place)
    }
}
