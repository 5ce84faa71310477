//! Timers: sends what was held long enough, and recovers silent queue pairs.

use super::{Engine, stores::InstalledStore};
use crate::context::Context;
use crate::frame::EngineOutput;

impl Engine {
    /// Lets time pass: sends what has been held long enough, and recovers queue pairs that are
    /// silent.
    pub fn run_timers(&mut self, now: u64, out: &mut EngineOutput) {
        self.clock = self.clock.max(now);
        let now = self.clock;
        for store in self.stores.iter_mut() {
            let after = flush_after(&self.flush_ns, store);
            if after != 0 && now >= after {
                let mut context = Context { now, regions: &store.regions, egress: &mut self.egress, out };
                if let Some(gathers) = store.state.gathers_mut() {
                    gathers.flush_started_by(now - after, &mut context);
                }
            }
        }
        self.egress.run_timers(now, out);
    }

    /// Sends everything held, by store id and then by place (lists by number). Returns how many reports that
    /// were.
    pub fn flush_held_reports(&mut self, now: u64, out: &mut EngineOutput) -> u64 {
        self.clock = self.clock.max(now);
        let before = self.held_reports();
        for id in self.stores.store_ids() {
            let Some(store) = self.stores.find_store(id) else { continue };
            let regions = &store.regions;
            let mut context = Context { now: self.clock, regions, egress: &mut self.egress, out };
            if let Some(gathers) = store.state.gathers_mut() {
                gathers.flush_all(&mut context);
            }
        }
        self.egress.transmit_waiting(self.clock, out);
        before - self.held_reports()
    }

    fn held_reports(&self) -> u64 {
        self.egress.counters.primitives.iter().map(|p| p.held).sum()
    }

    /// When [`Engine::run_timers`] is next needed, if ever.
    pub fn next_deadline(&self) -> Option<u64> {
        let stores = self.stores.iter().filter_map(|store| {
            let after = flush_after(&self.flush_ns, store);
            let oldest = store.state.gathers()?.oldest_start_time();
            oldest.filter(|_| after != 0).map(|born| born + after)
        });
        stores.chain(self.egress.next_deadline()).min()
    }
}

/// How long reports of a store are held, in nanoseconds; 0 = until their operation is full.
fn flush_after(flush_ns: &[u64], store: &InstalledStore) -> u64 {
    flush_ns[store.kind.primitive().index()]
}
