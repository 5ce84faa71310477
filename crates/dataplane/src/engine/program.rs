//! Applying a program: entries added and removed.

use std::net::{IpAddr, Ipv4Addr};

use dta_proto::program::{Change, CheckError, Entry, EntryKey, Purpose, Store, checked};
use dta_proto::store::StoreKind;
use dta_proto::wire::dta;

use super::Engine;
use super::stores::{InstalledStore, Stores};
use crate::context::Context;
use crate::frame::Output;
use crate::primitive::State;

/// Why an entry cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// No target can hold it.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The sketch is too large.
    #[error(
        "store `{store}` has {columns} columns over all epochs, but this translator keeps at most {limit}; raise `sketch_columns` \
         in its configuration or make the store smaller"
    )]
    SketchTooLarge {
        /// Name of the store.
        store: String,
        /// Columns over all epochs.
        columns: u64,
        /// Most columns kept.
        limit: u64,
    },
}

impl Engine {
    /// Whether the changes can be applied.
    ///
    /// # Errors
    /// As [`Engine::apply`].
    pub fn check(&self, changes: &[Change]) -> Result<(), SetupError> {
        checked(&self.program, changes)?;
        for change in changes {
            if let Change::Insert { entry: Entry::Store(store) }
            | Change::Modify { to: Entry::Store(store), .. } = change
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
    pub fn apply(&mut self, now: u64, changes: &[Change], out: &mut Output) -> Result<(), SetupError> {
        self.clock = self.clock.max(now);
        self.check(changes)?;
        self.flush_leaving(changes, out);
        let mut anew = Vec::new();
        for change in changes {
            match change {
                Change::Insert { entry } => self.set(entry, &mut anew, out),
                Change::Modify { to, .. } => self.set(to, &mut anew, out),
                Change::Delete { entry } => self.delete(&entry.key(), out),
                Change::Forget { entry } => self.forget(entry),
            }
        }
        // Only now, when all stores have their rkeys: a replaced queue pair resends.
        anew.into_iter().for_each(|collector| self.send_again(collector, out));
        self.egress.transmit(self.clock, out);
        Ok(())
    }

    /// Sends what lists hold that leave their collector, where nobody else can have written to them.
    fn flush_leaving(&mut self, changes: &[Change], out: &mut Output) {
        for change in changes {
            let leaving = match change {
                Change::Delete { entry: Entry::Lists(lists) } => lists,
                Change::Modify { from: Entry::Lists(from), to: Entry::Lists(to) }
                    if from.count != to.count =>
                {
                    from
                }
                _ => continue,
            };
            let (part, session) =
                (EntryKey::Store(leaving.store, leaving.collector), EntryKey::Session(leaving.collector));
            if changes.iter().any(|change| [part, session].contains(&change.key())) {
                continue;
            }
            if let Some(store) = self.stores.find(leaving.store)
                && let State::Append(state) = &mut store.state
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
    fn send_again(&mut self, collector: u8, out: &mut Output) {
        for store in self.stores.iter_mut() {
            if let State::Append(state) = &store.state {
                let regions = &store.regions;
                let mut context = Context { now: self.clock, regions, egress: &mut self.egress, out };
                state.send_again(collector, &mut context);
            }
        }
    }

    /// Adds a checked entry. Adds the collector to `anew` if its queue pair for writes changed.
    fn set(&mut self, entry: &Entry, anew: &mut Vec<u8>, out: &mut Output) {
        match entry {
            Entry::Service(service) => {
                if let IpAddr::V4(ip) = service.address {
                    self.service = (ip, service.port);
                }
            }
            Entry::Mode(mode) => self.set_reference(mode.reference, out),
            Entry::Flush(flush) => {
                self.flush_ns[flush.primitive.index()] = u64::from(flush.after_ms) * 1_000_000;
            }
            Entry::QueuePair(pair) => {
                let stores = self.stores.entries();
                if self.egress.set_pair(self.clock, pair, &stores, out) && pair.purpose == Purpose::Write {
                    anew.push(pair.collector);
                }
            }
            Entry::Store(store) => self.set_store(store, out),
            Entry::Lists(lists) => {
                if let Some(State::Append(state)) = state_of(&mut self.stores, lists.store) {
                    state.own(lists, self.limits.name_reports, &mut self.egress.counters);
                }
            }
            Entry::Version0(v0) => self.version0[v0.primitive.index()] = Some(v0.store),
            Entry::SketchReporter(e) => {
                if let Some(State::SketchMerge(state)) = state_of(&mut self.stores, e.store) {
                    state.reserve(e.bit, Some(e.reporter));
                }
            }
            Entry::Session(_) => {}
        }
        self.program.set(entry.clone());
    }

    /// Removes an existing entry.
    fn delete(&mut self, key: &EntryKey, out: &mut Output) {
        let Some(entry) = self.program.remove(key) else { return };
        match &entry {
            Entry::Service(_) => self.service = (Ipv4Addr::UNSPECIFIED, dta::PORT),
            Entry::Mode(_) => self.set_reference(false, out),
            Entry::Flush(flush) => self.flush_ns[flush.primitive.index()] = 0,
            Entry::QueuePair(pair) => {
                let stores = self.stores.entries();
                self.egress.remove_pair(pair, &stores, out);
            }
            Entry::Store(store) => {
                self.remove_region(store.spec.id, store.collector, out);
                self.egress.set_templates(&self.stores.entries());
            }
            Entry::Lists(lists) => {
                if let Some(State::Append(state)) = state_of(&mut self.stores, lists.store) {
                    state.disown(lists.first, &mut self.egress.counters);
                }
            }
            Entry::Version0(v0) => self.version0[v0.primitive.index()] = None,
            Entry::SketchReporter(e) => {
                if let Some(State::SketchMerge(state)) = state_of(&mut self.stores, e.store) {
                    state.reserve(e.bit, None);
                }
            }
            Entry::Session(_) => {}
        }
    }

    /// Discards what is gathered for a region; the region stays.
    fn forget(&mut self, entry: &Entry) {
        if let Entry::Store(store) = entry {
            self.discard(store.spec.id, store.collector);
        }
    }

    fn discard(&mut self, id: u16, collector: u8) {
        if let Some(InstalledStore { regions, state, .. }) = self.stores.find(id)
            && let Some(place) = regions.of_collector(collector)
            && let Some(gathers) = state.gathers_mut()
        {
            gathers.discard(regions, place, &mut self.egress.counters);
        }
    }

    fn forget_lists(&mut self, id: u16, collector: u8) {
        if let Some(State::Append(state)) = state_of(&mut self.stores, id) {
            state.forget(collector);
        }
    }

    /// Switches reference mode on or off. What was held under the other rules is sent first.
    fn set_reference(&mut self, reference: bool, out: &mut Output) {
        if self.reference == reference {
            return;
        }
        self.flush(self.clock, out);
        self.reference = reference;
        self.increments.set_coalescing(!reference);
        self.egress.set_reference(reference);
        self.reporters.set_reference(reference);
        for store in self.stores.iter_mut() {
            store.state.set_reference(reference);
        }
    }

    fn set_store(&mut self, store: &Store, out: &mut Output) {
        let id = store.spec.id;
        let another = self.stores.find(id).filter(|known| known.kind != store.spec.kind);
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
        self.egress.set_templates(&self.stores.entries());
    }

    /// Removes a store's region at a collector, if present; what is held for it is discarded.
    fn remove_region(&mut self, id: u16, collector: u8, out: &mut Output) {
        self.discard(id, collector);
        self.forget_lists(id, collector);
        if let Some(place) = self.stores.remove(id, collector) {
            self.egress.forget_store(place, out);
        }
    }
}

fn state_of(stores: &mut Stores, id: u16) -> Option<&mut State> {
    stores.find(id).map(|store| &mut store.state)
}
