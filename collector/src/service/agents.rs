//! The packet accounts of agents on hosts, as nodes in the waterfall.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dta_memory::reader::append::{Lists, ReadStart};
use dta_memory::store::ServedStores;
use dta_proto::control::{Counter, NodeStatistics};
use dta_proto::counter::Stage;
use dta_proto::counter::reporter::{self as names, BooksLoss};
use dta_proto::trace::{Books, TraceEntry, list, store};
use rustix::time::{DynamicClockId, clock_gettime_dynamic};

/// A node `agent/HOST` for each host with accounts in the list, with its newest accounts and their age by
/// this host's TAI clock. None if there is no such store.
pub(super) fn agent_nodes(stores: &ServedStores) -> Vec<NodeStatistics> {
    let now = tai_now_ns();
    let node = |(host, (time, books)): (u16, (u64, Books))| NodeStatistics {
        node: Stage::Agent.node_name(&host.to_string()),
        counters: account_counters(&books).into(),
        age_seconds: Duration::from_nanos(now.saturating_sub(time)).as_secs_f64(),
        time_us: time / 1000,
        ..NodeStatistics::default()
    };
    newest_accounts(stores).into_iter().map(node).collect()
}

fn newest_accounts(stores: &ServedStores) -> BTreeMap<u16, (u64, Books)> {
    let mut newest = BTreeMap::new();
    let Ok(store) = stores.get(store::EVENTS) else { return newest };
    let Some(lists) = Lists::new(&store) else { return newest };
    let Ok(mut reader) = lists.open_reader(list::NAMES, ReadStart::Oldest) else { return newest };
    let entry_len = reader.entry_len().max(1);
    // Later accounts replace earlier ones. A list that this store does not have has no accounts.
    let _ = reader.read(u64::MAX, Instant::now(), |_, entries| {
        for entry in entries.chunks_exact(entry_len) {
            if let Some(TraceEntry::Books { time, host, books }) = TraceEntry::parse_bytes(entry) {
                newest.insert(host, (time, books));
            }
        }
    });
    newest
}

fn account_counters(books: &Books) -> [Counter; 5] {
    let dropped = |loss: BooksLoss| names::BOOKS_DROPPED.format_name(&[loss.name()]);
    [
        (names::BOOKS_SEEN.format_name(&[]), books.seen),
        (names::BOOKS_REPORTED.format_name(&[]), books.reported),
        (names::BOOKS_LEFT_OUT.format_name(&[]), books.left_out),
        (dropped(BooksLoss::RingFull), books.ring_full),
        (dropped(BooksLoss::Refused), books.refused),
    ]
    .map(|(name, value)| Counter { name, value })
}

/// Now, in nanoseconds on the clock of the accounts.
fn tai_now_ns() -> u64 {
    let now = clock_gettime_dynamic(DynamicClockId::Tai).unwrap_or_default();
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}
