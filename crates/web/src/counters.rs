//! Counters of the page's port.

use std::sync::atomic::{AtomicU64, Ordering};

use dta_proto::counter::collector as names;

dta_proto::shared_counters! {
    /// Requests, and what was refused or cut off.
    pub struct WebCounters {
        pub(crate) requests = names::WEB_REQUESTS,
        pub(crate) refused = names::WEB_REFUSED,
        pub(crate) busy = names::WEB_BUSY,
        pub(crate) malformed = names::WEB_MALFORMED,
        pub(crate) displaced = names::WEB_DISPLACED,
        pub(crate) unread = names::WEB_UNREAD,
        pub(crate) skipped = names::WEB_SKIPPED,
    }
}

/// Relaxed, as no other memory is published through these numbers.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
