//! Counters of this service's queries and tails.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dta_memory::reader::append::ReadProgress;
use dta_proto::counter::collector as names;
use dta_proto::wire::dta::Primitive;

#[derive(Default)]
pub(super) struct AnswerCounters {
    /// One for each primitive whose keys can be queried.
    queries: [Query; Primitive::ALL.len()],
    pub(super) tails: TailCounters,
}

dta_proto::shared_counters! {
    pub(super) struct TailCounters {
        entries = names::TAIL_ENTRIES,
        pub(super) woken = names::TAIL_WOKEN,
        overwritten = names::TAIL_OVERWRITTEN,
        missing = names::TAIL_MISSING,
        damaged = names::TAIL_DAMAGED,
    }
}

/// Keys asked for, and those of them that were found.
#[derive(Default)]
pub(super) struct Query {
    keys: AtomicU64,
    found: AtomicU64,
}

impl Query {
    pub(super) fn count_keys(&self, keys: usize, found: usize) {
        self.keys.fetch_add(keys as u64, Relaxed);
        self.found.fetch_add(found as u64, Relaxed);
    }
}

impl AnswerCounters {
    pub(super) fn query_counts(&self, primitive: Primitive) -> &Query {
        &self.queries[primitive.index()]
    }

    /// Counts what a tail was handed and what it skipped.
    pub(super) fn add_tail_progress(&self, progress: &ReadProgress) {
        self.tails.entries.fetch_add(progress.entries, Relaxed);
        self.tails.overwritten.fetch_add(progress.overwritten, Relaxed);
        self.tails.missing.fetch_add(progress.missing, Relaxed);
        self.tails.damaged.fetch_add(progress.damaged, Relaxed);
    }

    pub(super) fn named_counters(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for primitive in Primitive::IN_TABLES {
            let (Some(name), query) = (primitive.description().query, self.query_counts(primitive)) else {
                continue;
            };
            all.push((names::QUERY_KEYS.format_name(&[name]), query.keys.load(Relaxed)));
            all.push((names::QUERY_FOUND.format_name(&[name]), query.found.load(Relaxed)));
        }
        all.extend(self.tails.named_counters());
        all
    }
}
