//! Timers: sends what was held long enough, and recovers silent queue pairs.

use super::{Engine, stores::InstalledStore};
use crate::context::Context;
use crate::frame::EngineOutput;

pub(super) fn run_timers(engine: &mut Engine, now: u64, out: &mut EngineOutput) {
    engine.clock = engine.clock.max(now);
    let now = engine.clock;
    for store in engine.stores.iter_mut() {
        let after = flush_after(&engine.flush_ns, store);
        if after != 0 && now >= after {
            let mut context = Context { now, regions: &store.regions, egress: &mut engine.egress, out };
            if let Some(gathers) = store.state.gathers_mut() {
                gathers.flush_started_by(now - after, &mut context);
            }
        }
    }
    engine.egress.run_timers(now, out);
}

pub(super) fn flush_held_reports(engine: &mut Engine, now: u64, out: &mut EngineOutput) -> u64 {
    engine.clock = engine.clock.max(now);
    let before = held_reports(engine);
    for id in engine.stores.store_ids() {
        let Some(store) = engine.stores.find_store(id) else { continue };
        let regions = &store.regions;
        let mut context = Context { now: engine.clock, regions, egress: &mut engine.egress, out };
        if let Some(gathers) = store.state.gathers_mut() {
            gathers.flush_all(&mut context);
        }
    }
    engine.egress.transmit_waiting(engine.clock, out);
    before - held_reports(engine)
}

fn held_reports(engine: &Engine) -> u64 {
    engine.egress.counters.primitives.iter().map(|p| p.held).sum()
}

pub(super) fn next_deadline(engine: &Engine) -> Option<u64> {
    let stores = engine.stores.iter().filter_map(|store| {
        let after = flush_after(&engine.flush_ns, store);
        let oldest = store.state.gathers()?.oldest_start_time();
        oldest.filter(|_| after != 0).map(|born| born + after)
    });
    stores.chain(engine.egress.next_deadline()).min()
}

/// How long reports of a store are held, in nanoseconds; 0 = until their operation is full.
fn flush_after(flush_ns: &[u64], store: &InstalledStore) -> u64 {
    flush_ns[store.kind.primitive().index()]
}
