//! What a collector exports to Prometheus.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dta_client::Ask as _;
use dta_export::gauges::{Following, Gauges};
use dta_export::names::Names;
use dta_export::schema::Schema;
use dta_grpc::standard::Health;
use dta_grpc::tls::Validity;
use dta_metrics::{Kind, Labels, Page, Port, Process, Served};
use dta_proto::control::{ListSessionsResponse, StoreInfo, store};
use dta_proto::layout::append::entries_per_batch;
use dta_proto::store::StoreKind;
use dta_proto::telemetry::ENTRY_LEN;

use super::room::Room;
use crate::config::{Config, Metrics as Configured, Telemetry};
use crate::service::Service;
use crate::store::Stores;

/// Most sessions with series of their own.
const MAX_SESSIONS: usize = 1000;

/// Serves metrics until this is dropped.
pub(super) struct Metrics {
    served: Served,
    source: Arc<Source>,
}

/// The sources of a page.
struct Source {
    process: Process,
    service: Service,
    health: Health,
    telemetry: std::sync::OnceLock<Following>,
    room: Arc<Room>,
    /// Of the certificate in use.
    certificate: Mutex<Option<Validity>>,
}

impl Metrics {
    pub(super) fn serve(port: Port, config: &Config, service: Service, health: Health) -> Metrics {
        let process = Process::new("dta-collector", env!("CARGO_PKG_VERSION"));
        let (telemetry, certificate, room) =
            (Default::default(), Mutex::default(), Arc::new(Room::of(config)));
        let source = Arc::new(Source { process, service, health, telemetry, room, certificate });
        let shared = source.clone();
        let served = port.serve(move || {
            let source = shared.clone();
            async move { source.page().await }
        });
        Metrics { served, source }
    }

    /// Updates the expiry of the certificate in use.
    pub(super) fn set_certificate(&self, validity: Option<Validity>) {
        *self.source.certificate.lock().unwrap_or_else(PoisonError::into_inner) = validity;
    }

    /// Where they are scraped.
    pub(super) fn address(&self) -> std::net::SocketAddr {
        self.served.address
    }

    /// Starts to export telemetry as well, if it is wanted, its store exists and it is not exported yet.
    pub(super) fn follow(&self, config: &Configured, names: &Arc<Names>, stores: &Stores) {
        let Telemetry::As(schema) = config.telemetry else { return };
        let all = stores.all();
        match all.iter().find(|store| store.spec.name == config.store).map(|store| &store.spec.kind) {
            Some(StoreKind::Append { entry_len, .. }) if usize::from(*entry_len) == ENTRY_LEN => {
                self.source.telemetry.get_or_init(|| self.source.start(schema, config, names));
            }
            Some(_) => {
                tracing::warn!(
                    store = config.store,
                    "metrics have no telemetry: the store does not hold INT events"
                );
            }
            None => tracing::info!(store = config.store, "metrics have no telemetry: there is no such store"),
        }
    }
}

impl Source {
    fn start(&self, schema: Schema, config: &Configured, names: &Arc<Names>) -> Following {
        let names = if config.names { names.clone() } else { Arc::new(Names::none()) };
        let gauges = Gauges::new(schema, config.limits(), names);
        Following::start(Arc::new(self.service.clone()), &config.store, gauges)
    }

    async fn page(&self) -> Result<Page, String> {
        let began = Instant::now();
        let said = |error: dta_client::ClientError| error.to_string();
        let nodes = self.service.statistics().await.map_err(said)?;
        let sessions = self.service.sessions().await.map_err(said)?;
        let stores = self.service.stores().await.map_err(said)?;
        let room = self.room.clone();
        // There may be many counters of nodes, and file systems may be slow.
        let filled = tokio::task::spawn_blocking(move || {
            let mut page = Page::default();
            dta_metrics::nodes(&mut page, &nodes);
            put_sessions(&mut page, &sessions);
            put_stores(&mut page, &stores);
            room.put(&mut page);
            page
        });
        let mut page = filled.await.map_err(|error| error.to_string())?;
        self.process.put(&mut page);
        let help = "1 if sessions and the NIC are tended, as in the health service";
        let serving = self.health.is_serving().into();
        page.add("dta_collector_serving", Kind::Gauge, help, Labels::new(), serving);
        if let Some(validity) = *self.certificate.lock().unwrap_or_else(PoisonError::into_inner) {
            let help = "when the TLS certificate that this collector serves with ends, in seconds since 1970";
            let name = "dta_collector_certificate_end_timestamp_seconds";
            page.real(name, help, Labels::new(), validity.not_after().as_secs_f64());
        }
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.put(&mut page);
        }
        let help = "how long it took to gather this page";
        page.real("dta_metrics_page_seconds", help, Labels::new(), began.elapsed().as_secs_f64());
        Ok(page)
    }
}

fn put_sessions(page: &mut Page, sessions: &ListSessionsResponse) {
    let all = sessions.sessions.len() as u64;
    page.add("dta_collector_sessions", Kind::Gauge, "sessions that are open", Labels::new(), all);
    for session in sessions.sessions.iter().take(MAX_SESSIONS) {
        let labels = || vec![("session".into(), session.name.clone())];
        let help =
            "time until a session runs out unless its translator renews it; below 0: it does not run out";
        page.real("dta_collector_session_expires_seconds", help, labels(), session.expires_in_seconds);
        for pair in &session.queue_pairs {
            let mut labels = labels();
            labels.push(("state".into(), pair.state.clone()));
            let help = "queue pairs of a session by their state: rtr takes operations, error does not";
            page.add("dta_collector_session_queue_pairs", Kind::Gauge, help, labels, 1);
        }
    }
    page.leave_out(sessions.sessions.len().saturating_sub(MAX_SESSIONS) as u64);
}

fn put_stores(page: &mut Page, stores: &[StoreInfo]) {
    for info in stores {
        let Some(store) = &info.store else { continue };
        let labels = || vec![("store".into(), store.name.clone())];
        let mut gauge = |name: &'static str, help: &'static str, value: u64| {
            page.add(name, Kind::Gauge, help, labels(), value);
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
            page.real("dta_collector_store_survival_ratio", help, labels(), survival);
        }
    }
}
