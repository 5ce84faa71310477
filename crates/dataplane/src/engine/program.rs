//! Applying a program: entries added and removed.

use std::net::{IpAddr, Ipv4Addr};

use dta_proto::program::{
    CheckError, DataPlaneChange, DataPlaneEntry, EntryKey, Purpose, Store, apply_changes,
};
use dta_proto::store::StoreKind;
use dta_proto::wire::dta;

use super::Engine;
use super::stores::{InstalledStore, InstalledStores};
use crate::context::Context;
use crate::frame::EngineOutput;
use crate::primitive::PrimitiveState;

/// Why an entry cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// No target can hold it.
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(
        "store `{store}` has {columns} columns over all epochs, but this translator keeps at most {limit}; raise `sketch_columns` \
         in its configuration or make the store smaller"
    )]
    SketchTooLarge { store: String, columns: u64, limit: u64 },
}

impl Engine {
    /// Whether the changes can be applied.
    ///
    /// # Errors
    /// As [`Engine::apply_changes`].
    pub fn check_changes(&self, changes: &[DataPlaneChange]) -> Result<(), SetupError> {
        apply_changes(&self.program, changes)?;
        for change in changes {
            if let DataPlaneChange::Insert { entry: DataPlaneEntry::Store(store) }
            | DataPlaneChange::Modify { to: DataPlaneEntry::Store(store), .. } = change
            {
                self.check_room(store)?;
            }
        }
        Ok(())
    }

    /// Applies changes in order. Operations that this releases go to `out`.
    ///
    /// # Errors
    /// A [`SetupError`] that names the offending entry; nothing has changed then.
    pub fn apply_changes(
        &mut self,
        now: u64,
        changes: &[DataPlaneChange],
        out: &mut EngineOutput,
    ) -> Result<(), SetupError> {
        self.clock = self.clock.max(now);
        self.check_changes(changes)?;
        self.flush_leaving(changes, out);
        let mut anew = Vec::new();
        for change in changes {
            match change {
                DataPlaneChange::Insert { entry } => self.set(entry, &mut anew, out),
                DataPlaneChange::Modify { to, .. } => self.set(to, &mut anew, out),
                DataPlaneChange::Delete { entry } => self.delete_entry(&entry.entry_key(), out),
                DataPlaneChange::Forget { entry } => self.forget_entry(entry),
            }
        }
        // Only now, when all stores have their rkeys: a replaced queue pair resends.
        anew.into_iter().for_each(|collector| self.send_again(collector, out));
        self.egress.transmit_waiting(self.clock, out);
        Ok(())
    }

    /// Sends what lists hold that leave their collector, where nobody else can have written to them.
    fn flush_leaving(&mut self, changes: &[DataPlaneChange], out: &mut EngineOutput) {
        for change in changes {
            let leaving = match change {
                DataPlaneChange::Delete { entry: DataPlaneEntry::Lists(lists) } => lists,
                DataPlaneChange::Modify {
                    from: DataPlaneEntry::Lists(from),
                    to: DataPlaneEntry::Lists(to),
                } if from.count != to.count => from,
                _ => continue,
            };
            let (part, session) =
                (EntryKey::Store(leaving.store, leaving.collector), EntryKey::Session(leaving.collector));
            if changes.iter().any(|change| [part, session].contains(&change.entry_key())) {
                continue;
            }
            if let Some(store) = self.stores.find_store(leaving.store)
                && let PrimitiveState::Append(state) = &mut store.state
            {
                let regions = &store.regions;
                let mut context = Context { now: self.clock, regions, egress: &mut self.egress, out };
                state.flush_lists(leaving.first, &mut context);
            }
        }
    }

    /// Whether there is memory for a store's state.
    fn check_room(&self, store: &Store) -> Result<(), SetupError> {
        let StoreKind::SketchMerge { columns, epochs, .. } = store.spec.kind else { return Ok(()) };
        let (all, limit) = (u64::from(columns) * u64::from(epochs), self.limits.sketch_columns);
        if all > limit {
            return Err(SetupError::SketchTooLarge { store: store.spec.name.clone(), columns: all, limit });
        }
        Ok(())
    }

    /// Resends what was sent on a collector's previous queue pair for writes if nobody knows whether it
    /// arrived.
    fn send_again(&mut self, collector: u8, out: &mut EngineOutput) {
        for store in self.stores.iter_mut() {
            if let PrimitiveState::Append(state) = &store.state {
                let regions = &store.regions;
                let mut context = Context { now: self.clock, regions, egress: &mut self.egress, out };
                state.send_again(collector, &mut context);
            }
        }
    }

    /// Adds a checked entry. Adds the collector to `anew` if its queue pair for writes changed.
    fn set(&mut self, entry: &DataPlaneEntry, anew: &mut Vec<u8>, out: &mut EngineOutput) {
        match entry {
            DataPlaneEntry::Service(service) => {
                if let IpAddr::V4(ip) = service.address {
                    self.service = (ip, service.port);
                }
            }
            DataPlaneEntry::Mode(mode) => self.set_reference(mode.reference, out),
            DataPlaneEntry::Flush(flush) => {
                self.flush_ns[flush.primitive.index()] = u64::from(flush.after_ms) * 1_000_000;
            }
            DataPlaneEntry::QueuePair(pair) => {
                let stores = self.stores.region_entries();
                if self.egress.set_pair(self.clock, pair, &stores, out) && pair.purpose == Purpose::Write {
                    anew.push(pair.collector);
                }
            }
            DataPlaneEntry::Store(store) => self.set_store(store, out),
            DataPlaneEntry::Lists(lists) => {
                if let Some(PrimitiveState::Append(state)) = store_state(&mut self.stores, lists.store) {
                    state.own_lists(lists, self.limits.name_reports, &mut self.egress.counters);
                }
            }
            DataPlaneEntry::Version0(v0) => self.version0[v0.primitive.index()] = Some(v0.store),
            DataPlaneEntry::SketchReporter(e) => {
                if let Some(PrimitiveState::SketchMerge(state)) = store_state(&mut self.stores, e.store) {
                    state.reserve_bit(e.bit, Some(e.reporter));
                }
            }
            DataPlaneEntry::Session(_) => {}
        }
        self.program.set(entry.clone());
    }

    fn delete_entry(&mut self, key: &EntryKey, out: &mut EngineOutput) {
        let Some(entry) = self.program.remove(key) else { return };
        match &entry {
            DataPlaneEntry::Service(_) => self.service = (Ipv4Addr::UNSPECIFIED, dta::PORT),
            DataPlaneEntry::Mode(_) => self.set_reference(false, out),
            DataPlaneEntry::Flush(flush) => self.flush_ns[flush.primitive.index()] = 0,
            DataPlaneEntry::QueuePair(pair) => {
                let stores = self.stores.region_entries();
                self.egress.remove_pair(pair, &stores, out);
            }
            DataPlaneEntry::Store(store) => {
                self.remove_region(store.spec.id, store.collector, out);
                self.egress.set_templates(&self.stores.region_entries());
            }
            DataPlaneEntry::Lists(lists) => {
                if let Some(PrimitiveState::Append(state)) = store_state(&mut self.stores, lists.store) {
                    state.disown_lists(lists.first, &mut self.egress.counters);
                }
            }
            DataPlaneEntry::Version0(v0) => self.version0[v0.primitive.index()] = None,
            DataPlaneEntry::SketchReporter(e) => {
                if let Some(PrimitiveState::SketchMerge(state)) = store_state(&mut self.stores, e.store) {
                    state.reserve_bit(e.bit, None);
                }
            }
            DataPlaneEntry::Session(_) => {}
        }
    }

    /// Discards what is gathered for a region; the region stays.
    fn forget_entry(&mut self, entry: &DataPlaneEntry) {
        if let DataPlaneEntry::Store(store) = entry {
            self.discard_gathered(store.spec.id, store.collector);
        }
    }

    fn discard_gathered(&mut self, id: u16, collector: u8) {
        if let Some(InstalledStore { regions, state, .. }) = self.stores.find_store(id)
            && let Some(place) = regions.of_collector(collector)
            && let Some(gathers) = state.gathers_mut()
        {
            gathers.discard_region(regions, place, &mut self.egress.counters);
        }
    }

    fn forget_lists(&mut self, id: u16, collector: u8) {
        if let Some(PrimitiveState::Append(state)) = store_state(&mut self.stores, id) {
            state.forget_collector(collector);
        }
    }

    /// Switches reference mode on or off. What was held under the other rules is sent first.
    fn set_reference(&mut self, reference: bool, out: &mut EngineOutput) {
        if self.reference == reference {
            return;
        }
        self.flush_held_reports(self.clock, out);
        self.reference = reference;
        self.increments.set_coalescing(!reference);
        self.egress.set_reference(reference);
        self.reporters.set_reference(reference);
        for store in self.stores.iter_mut() {
            store.state.set_reference(reference);
        }
    }

    fn set_store(&mut self, store: &Store, out: &mut EngineOutput) {
        let id = store.spec.id;
        let another = self.stores.find_store(id).filter(|known| known.kind != store.spec.kind);
        if let Some(known) = another {
            let collectors: Vec<u8> = known.regions.collectors().collect();
            collectors.into_iter().for_each(|collector| self.remove_region(id, collector, out));
        }
        // If base, rkey or generation changed, what is held stays, and goes to the new region.
        if let Some((place, before)) = self.stores.set(store, &self.limits, self.reference)
            && (before.address, before.rkey) != (store.address, store.rkey)
        {
            self.egress.move_store(place, &before);
            self.forget_lists(id, store.collector);
        }
        self.egress.set_templates(&self.stores.region_entries());
    }

    /// Removes a store's region at a collector, if present; what is held for it is discarded.
    fn remove_region(&mut self, id: u16, collector: u8, out: &mut EngineOutput) {
        self.discard_gathered(id, collector);
        self.forget_lists(id, collector);
        if let Some(place) = self.stores.remove_region(id, collector) {
            self.egress.forget_store(place, out);
        }
    }
}

fn store_state(stores: &mut InstalledStores, id: u16) -> Option<&mut PrimitiveState> {
    stores.find_store(id).map(|store| &mut store.state)
}
