//! The metrics page of a collector: counters of all nodes, sessions and stores.

use dta_export::metrics::{Labels, MetricKind, MetricsPage};
use dta_proto::control::{ListSessionsResponse, StoreInfo, store};
use dta_proto::layout::append::entries_per_batch;
use dta_rpc::{Ask, ClientError};

/// Most sessions that get series of their own.
const MAX_SESSIONS: usize = 1000;

pub(crate) async fn metrics_page(ask: &dyn Ask) -> Result<MetricsPage, ClientError> {
    let nodes = ask.statistics().await?;
    let sessions = ask.fetch_sessions().await?;
    let stores = ask.fetch_stores().await?;
    let mut page = MetricsPage::default();
    dta_export::metrics::add_node_metrics(&mut page, &nodes);
    put_sessions(&mut page, &sessions);
    put_stores(&mut page, &stores);
    Ok(page)
}

fn put_sessions(page: &mut MetricsPage, sessions: &ListSessionsResponse) {
    let all = sessions.sessions.len() as u64;
    page.add("dta_collector_sessions", MetricKind::Gauge, "sessions that are open", Labels::new(), all);
    for session in sessions.sessions.iter().take(MAX_SESSIONS) {
        let labels = || vec![("session".into(), session.name.clone())];
        let help =
            "time until a session runs out unless its translator renews it; below 0: it does not run out";
        page.add_real_gauge(
            "dta_collector_session_expires_seconds",
            help,
            labels(),
            session.expires_in_seconds,
        );
        for pair in &session.queue_pairs {
            let mut labels = labels();
            labels.push(("state".into(), pair.state.clone()));
            let help = "queue pairs of a session by their state: rtr takes operations, error does not";
            page.add("dta_collector_session_queue_pairs", MetricKind::Gauge, help, labels, 1);
        }
    }
    page.leave_out(sessions.sessions.len().saturating_sub(MAX_SESSIONS) as u64);
}

fn put_stores(page: &mut MetricsPage, stores: &[StoreInfo]) {
    for info in stores {
        let Some(store) = &info.store else { continue };
        let labels = || vec![("store".into(), store.name.clone())];
        let mut gauge = |name: &'static str, help: &'static str, value: u64| {
            page.add(name, MetricKind::Gauge, help, labels(), value);
        };
        gauge("dta_collector_store_bytes", "memory of a store", info.length);
        let used = "used slots, keys (estimated), batches or columns of a store, by its kind";
        gauge("dta_collector_store_used", used, info.used);
        let capacity = "slots, keys, batches or columns that a store has room for, by its kind";
        gauge("dta_collector_store_capacity", capacity, info.capacity);
        if let Some(store::Kind::Append(lists)) = &store.kind
            && let (Ok(batch), Ok(entry)) = (lists.batch_len.try_into(), lists.entry_len.try_into())
        {
            let help = "entries that the ring of each list of a store has room for: when as many more are written, it has turned over";
            let entries = lists.ring.saturating_mul(entries_per_batch(batch, entry).into());
            gauge("dta_collector_store_list_entries", help, entries);
        }
        if let Some(survival) = info.survival {
            let help = "predicted share of keys that survive at this load, or whose count is exact";
            page.add_real_gauge("dta_collector_store_survival_ratio", help, labels(), survival);
        }
    }
}
