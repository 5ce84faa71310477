//! What the service itself counts. Names are explained in docs/counters.md.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(super) struct Counters {
    pub(super) key_write: Query,
    pub(super) path: Query,
    pub(super) counter: Query,
    pub(super) sketch: Query,
    pub(super) tail_entries: Count,
    pub(super) tail_woken: Count,
    pub(super) tail_overwritten: Count,
    pub(super) tail_missing: Count,
    pub(super) tail_damaged: Count,
}

/// A number that only rises.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        // Nothing else is read by way of this number.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keys asked for, and what came of them.
#[derive(Default)]
pub(super) struct Query {
    pub(super) keys: Count,
    pub(super) found: Count,
}

impl Counters {
    pub(super) fn named(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for (name, query) in [
            ("key-write", &self.key_write),
            ("path", &self.path),
            ("counter", &self.counter),
            ("sketch", &self.sketch),
        ] {
            all.push((format!("query.{name}.keys"), query.keys.get()));
            all.push((format!("query.{name}.found"), query.found.get()));
        }
        for (name, count) in [
            ("tail.entries", &self.tail_entries),
            ("tail.woken", &self.tail_woken),
            ("tail.overwritten", &self.tail_overwritten),
            ("tail.missing", &self.tail_missing),
            ("tail.damaged", &self.tail_damaged),
        ] {
            all.push((name.to_owned(), count.get()));
        }
        all
    }
}
