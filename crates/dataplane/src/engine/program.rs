//! Applying a program: entries added and removed.

use std::net::{IpAddr, Ipv4Addr};

use dta_proto::program::{CheckError, DataPlaneChange, DataPlaneEntry, EntryKey, Purpose, Store};
use dta_proto::store::StoreKind;
use dta_proto::wire::dta;

use super::Engine;
use super::stores::{InstalledStore, InstalledStores};
use super::time::flush_held_reports;
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

pub(super) fn check_changes(engine: &Engine, changes: &[DataPlaneChange]) -> Result<(), SetupError> {
    dta_proto::program::apply_changes(&engine.program, changes)?;
    for change in changes {
        if let DataPlaneChange::Insert { entry: DataPlaneEntry::Store(store) }
        | DataPlaneChange::Modify { to: DataPlaneEntry::Store(store), .. } = change
        {
            check_room(engine, store)?;
        }
    }
    Ok(())
}

pub(super) fn apply_changes(
    engine: &mut Engine,
    now: u64,
    changes: &[DataPlaneChange],
    out: &mut EngineOutput,
) -> Result<(), SetupError> {
    engine.clock = engine.clock.max(now);
    check_changes(engine, changes)?;
    flush_leaving(engine, changes, out);
    let mut anew = Vec::new();
    for change in changes {
        match change {
            DataPlaneChange::Insert { entry } => set_entry(engine, entry, &mut anew, out),
            DataPlaneChange::Modify { to, .. } => set_entry(engine, to, &mut anew, out),
            DataPlaneChange::Delete { entry } => delete_entry(engine, &entry.entry_key(), out),
            DataPlaneChange::Forget { entry } => forget_entry(engine, entry),
        }
    }
    // Only now that all stores have their rkeys, because a replaced queue pair resends.
    anew.into_iter().for_each(|collector| send_again(engine, collector, out));
    engine.egress.transmit_waiting(engine.clock, out);
    Ok(())
}

/// Flushes lists that leave their collector, unless its region or session changes too: then others may have written to them.
fn flush_leaving(engine: &mut Engine, changes: &[DataPlaneChange], out: &mut EngineOutput) {
    for change in changes {
        let leaving = match change {
            DataPlaneChange::Delete { entry: DataPlaneEntry::Lists(lists) } => lists,
            DataPlaneChange::Modify { from: DataPlaneEntry::Lists(from), to: DataPlaneEntry::Lists(to) }
                if from.count != to.count =>
            {
                from
            }
            _ => continue,
        };
        let (part, session) =
            (EntryKey::Store(leaving.store, leaving.collector), EntryKey::Session(leaving.collector));
        if changes.iter().any(|change| [part, session].contains(&change.entry_key())) {
            continue;
        }
        if let Some(store) = engine.stores.find_store(leaving.store)
            && let PrimitiveState::Append(state) = &mut store.state
        {
            let regions = &store.regions;
            let mut context = Context { now: engine.clock, regions, egress: &mut engine.egress, out };
            state.flush_lists(leaving.first, &mut context);
        }
    }
}

/// Checks that there is memory for a store's state.
fn check_room(engine: &Engine, store: &Store) -> Result<(), SetupError> {
    let StoreKind::SketchMerge { columns, epochs, .. } = store.spec.kind else { return Ok(()) };
    let (all, limit) = (u64::from(columns) * u64::from(epochs), engine.limits.sketch_columns);
    if all > limit {
        return Err(SetupError::SketchTooLarge { store: store.spec.name.clone(), columns: all, limit });
    }
    Ok(())
}

/// Resends what was sent on a collector's previous queue pair for writes and may not have arrived.
fn send_again(engine: &mut Engine, collector: u8, out: &mut EngineOutput) {
    for store in engine.stores.iter_mut() {
        if let PrimitiveState::Append(state) = &store.state {
            let regions = &store.regions;
            let mut context = Context { now: engine.clock, regions, egress: &mut engine.egress, out };
            state.send_again(collector, &mut context);
        }
    }
}

/// Adds a checked entry. Adds the collector to `anew` if its queue pair for writes changed.
fn set_entry(engine: &mut Engine, entry: &DataPlaneEntry, anew: &mut Vec<u8>, out: &mut EngineOutput) {
    match entry {
        DataPlaneEntry::Service(service) => {
            if let IpAddr::V4(ip) = service.address {
                engine.service = (ip, service.port);
            }
        }
        DataPlaneEntry::Mode(mode) => set_reference(engine, mode.reference, out),
        DataPlaneEntry::Flush(flush) => {
            engine.flush_ns[flush.primitive.index()] = u64::from(flush.after_ms) * 1_000_000;
        }
        DataPlaneEntry::QueuePair(pair) => {
            let stores = engine.stores.region_entries();
            if engine.egress.set_pair(engine.clock, pair, &stores, out) && pair.purpose == Purpose::Write {
                anew.push(pair.collector);
            }
        }
        DataPlaneEntry::Store(store) => set_store(engine, store, out),
        DataPlaneEntry::Lists(lists) => {
            if let Some(PrimitiveState::Append(state)) = store_state(&mut engine.stores, lists.store) {
                state.own_lists(lists, engine.limits.name_reports, &mut engine.egress.counters);
            }
        }
        DataPlaneEntry::Version0(v0) => engine.version0[v0.primitive.index()] = Some(v0.store),
        DataPlaneEntry::SketchReporter(e) => {
            if let Some(PrimitiveState::SketchMerge(state)) = store_state(&mut engine.stores, e.store) {
                state.reserve_bit(e.bit, Some(e.reporter));
            }
        }
        DataPlaneEntry::Session(_) => {}
    }
    engine.program.set(entry.clone());
}

fn delete_entry(engine: &mut Engine, key: &EntryKey, out: &mut EngineOutput) {
    let Some(entry) = engine.program.remove(key) else { return };
    match &entry {
        DataPlaneEntry::Service(_) => engine.service = (Ipv4Addr::UNSPECIFIED, dta::PORT),
        DataPlaneEntry::Mode(_) => set_reference(engine, false, out),
        DataPlaneEntry::Flush(flush) => engine.flush_ns[flush.primitive.index()] = 0,
        DataPlaneEntry::QueuePair(pair) => {
            let stores = engine.stores.region_entries();
            engine.egress.remove_pair(pair, &stores, out);
        }
        DataPlaneEntry::Store(store) => {
            remove_region(engine, store.spec.id, store.collector, out);
            engine.egress.set_templates(&engine.stores.region_entries());
        }
        DataPlaneEntry::Lists(lists) => {
            if let Some(PrimitiveState::Append(state)) = store_state(&mut engine.stores, lists.store) {
                state.disown_lists(lists.first, &mut engine.egress.counters);
            }
        }
        DataPlaneEntry::Version0(v0) => engine.version0[v0.primitive.index()] = None,
        DataPlaneEntry::SketchReporter(e) => {
            if let Some(PrimitiveState::SketchMerge(state)) = store_state(&mut engine.stores, e.store) {
                state.reserve_bit(e.bit, None);
            }
        }
        DataPlaneEntry::Session(_) => {}
    }
}

/// Discards what is gathered for a region, which stays.
fn forget_entry(engine: &mut Engine, entry: &DataPlaneEntry) {
    if let DataPlaneEntry::Store(store) = entry {
        discard_gathered(engine, store.spec.id, store.collector);
    }
}

fn discard_gathered(engine: &mut Engine, id: u16, collector: u8) {
    if let Some(InstalledStore { regions, state, .. }) = engine.stores.find_store(id)
        && let Some(place) = regions.of_collector(collector)
        && let Some(gathers) = state.gathers_mut()
    {
        gathers.discard_region(regions, place, &mut engine.egress.counters);
    }
}

fn forget_lists(engine: &mut Engine, id: u16, collector: u8) {
    if let Some(PrimitiveState::Append(state)) = store_state(&mut engine.stores, id) {
        state.forget_collector(collector);
    }
}

/// Switches reference mode on or off. What was held under the other rules is sent first.
fn set_reference(engine: &mut Engine, reference: bool, out: &mut EngineOutput) {
    if engine.reference == reference {
        return;
    }
    let now = engine.clock;
    flush_held_reports(engine, now, out);
    engine.reference = reference;
    engine.increments.set_coalescing(!reference);
    engine.egress.set_reference(reference);
    engine.reporters.set_reference(reference);
    for store in engine.stores.iter_mut() {
        store.state.set_reference(reference);
    }
}

fn set_store(engine: &mut Engine, store: &Store, out: &mut EngineOutput) {
    let id = store.spec.id;
    let another = engine.stores.find_store(id).filter(|known| known.kind != store.spec.kind);
    if let Some(known) = another {
        let collectors: Vec<u8> = known.regions.collectors().collect();
        collectors.into_iter().for_each(|collector| remove_region(engine, id, collector, out));
    }
    // If base, rkey or generation changed, what is held stays, and goes to the new region.
    if let Some((place, before)) = engine.stores.set(store, &engine.limits, engine.reference)
        && (before.address, before.rkey) != (store.address, store.rkey)
    {
        engine.egress.move_store(place, &before);
        forget_lists(engine, id, store.collector);
    }
    engine.egress.set_templates(&engine.stores.region_entries());
}

/// Removes a store's region at a collector, if present; what is held for it is discarded.
fn remove_region(engine: &mut Engine, id: u16, collector: u8, out: &mut EngineOutput) {
    discard_gathered(engine, id, collector);
    forget_lists(engine, id, collector);
    if let Some(place) = engine.stores.remove_region(id, collector) {
        engine.egress.forget_store(place, out);
    }
}

fn store_state(stores: &mut InstalledStores, id: u16) -> Option<&mut PrimitiveState> {
    stores.find_store(id).map(|store| &mut store.state)
}
