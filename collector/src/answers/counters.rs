//! What queries and tails of this service count.

use std::sync::atomic::{AtomicU64, Ordering};

use dta_memory::reader::append::ReadProgress;
use dta_proto::counter::collector as names;
use dta_proto::wire::dta::Primitive;

#[derive(Default)]
pub(super) struct AnswerCounters {
    /// Of each primitive whose keys are asked about.
    queries: [Query; Primitive::ALL.len()],
    tail_entries: Count,
    pub(super) tail_woken: Count,
    tail_overwritten: Count,
    tail_missing: Count,
    tail_damaged: Count,
}

#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        // No other memory is published through this counter.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keys asked for, and how many were found.
#[derive(Default)]
pub(super) struct Query {
    keys: Count,
    found: Count,
}

impl Query {
    pub(super) fn count_keys(&self, keys: usize, found: usize) {
        self.keys.add(keys as u64);
        self.found.add(found as u64);
    }
}

impl AnswerCounters {
    pub(super) fn query_counts(&self, primitive: Primitive) -> &Query {
        &self.queries[primitive.index()]
    }

    /// What was handed to a tail, and what it skipped.
    pub(super) fn add_tail_progress(&self, progress: &ReadProgress) {
        self.tail_entries.add(progress.entries);
        self.tail_overwritten.add(progress.overwritten);
        self.tail_missing.add(progress.missing);
        self.tail_damaged.add(progress.damaged);
    }

    pub(super) fn named_counters(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for primitive in Primitive::IN_TABLES {
            let (Some(name), query) = (primitive.description().query, self.query_counts(primitive)) else {
                continue;
            };
            all.push((names::QUERY_KEYS.format_name(&[name]), query.keys.get()));
            all.push((names::QUERY_FOUND.format_name(&[name]), query.found.get()));
        }
        for (counter, count) in [
            (&names::TAIL_ENTRIES, &self.tail_entries),
            (&names::TAIL_WOKEN, &self.tail_woken),
            (&names::TAIL_OVERWRITTEN, &self.tail_overwritten),
            (&names::TAIL_MISSING, &self.tail_missing),
            (&names::TAIL_DAMAGED, &self.tail_damaged),
        ] {
            all.push((counter.format_name(&[]), count.get()));
        }
        all
    }
}
