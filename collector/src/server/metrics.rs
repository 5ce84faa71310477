//! The metrics that a collector exports to Prometheus.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use dta_export::gauges::{GaugeFollower, Gauges};
use dta_export::metrics::{Labels, MetricKind, MetricsPage, MetricsPort, Process, Served, Targets};
use dta_export::names::Names;
use dta_export::run::Pages;
use dta_export::schema::Schema;
use dta_memory::reader::flow_scan::holds_flow_records;
use dta_memory::store::ServedStores;
use dta_proto::flow_record;
use dta_proto::store::StoreKind;
use dta_proto::telemetry::ENTRY_LEN;
use dta_rpc::transport::standard::Health;
use dta_rpc::transport::tls::Validity;

#[cfg(feature = "web")]
use super::certificate;
use super::cluster;
use super::disk_space::DiskSpace;
use super::traffic::TrafficFollower;
use crate::alerts::AlertBoard;
use crate::cluster::ClusterMembership;
use crate::config::{self, Config, Telemetry};
use crate::service::CollectorService;

/// The metrics of a collector, for those who scrape or export them. Served until this is dropped.
pub(super) struct CollectorMetrics {
    served: Option<Served>,
    is_exported: bool,
    is_traffic_exported: bool,
    source: Arc<MetricsSource>,
}

struct MetricsSource {
    process: Process,
    service: CollectorService,
    health: Health,
    cluster: Option<Arc<ClusterMembership>>,
    telemetry: OnceLock<GaugeFollower>,
    /// With the names of exporters and interfaces.
    traffic: OnceLock<(TrafficFollower, Arc<Names>)>,
    room: Arc<DiskSpace>,
    /// Validity of the certificate in use.
    certificate: Mutex<Option<Validity>>,
}

impl CollectorMetrics {
    pub(super) fn new(
        config: &Config,
        service: CollectorService,
        health: Health,
        cluster: Option<Arc<ClusterMembership>>,
    ) -> CollectorMetrics {
        let process = Process::new("dta-collector", env!("CARGO_PKG_VERSION"));
        let source = Arc::new(MetricsSource {
            process,
            service,
            health,
            cluster,
            telemetry: OnceLock::new(),
            traffic: OnceLock::new(),
            room: Arc::new(DiskSpace::from_config(config)),
            certificate: Mutex::default(),
        });
        CollectorMetrics {
            served: None,
            is_exported: config.export.has_metrics(),
            is_traffic_exported: config.export.has_traffic(),
            source,
        }
    }

    pub(super) fn serve_at(&mut self, port: MetricsPort) {
        let shared = self.source.clone();
        let page = move || {
            let source = shared.clone();
            async move { source.collect_page().await }
        };
        let targets =
            |of: Arc<ClusterMembership>| -> Targets { Box::new(move || cluster::scrape_targets(&of)) };
        self.served = Some(port.serve_with(page, self.source.cluster.clone().map(targets)));
    }

    /// Builds metrics pages for exporters.
    pub(super) fn export_pages(&self) -> Pages {
        let shared = self.source.clone();
        Arc::new(move || {
            let source = shared.clone();
            Box::pin(async move { source.collect_page().await })
        })
    }

    /// Builds pages with only the sums of traffic, for exporters.
    pub(super) fn traffic_pages(&self) -> Pages {
        let shared = self.source.clone();
        Arc::new(move || {
            let mut page = MetricsPage::default();
            shared.add_traffic(&mut page);
            Box::pin(std::future::ready(Ok(page)))
        })
    }

    /// Finds notices about disk space and the certificate, for the page.
    #[cfg(feature = "web")]
    pub(super) fn own_notices(&self) -> dta_web::OwnNotices {
        let shared = self.source.clone();
        Arc::new(move || shared.room.find_notices().into_iter().chain(shared.certificate_notice()).collect())
    }

    /// Updates the expiry of the certificate in use.
    pub(super) fn set_certificate(&self, validity: Option<Validity>) {
        *self.source.certificate.lock().unwrap_or_else(PoisonError::into_inner) = validity;
    }

    /// Where the metrics are scraped, if anywhere.
    pub(super) fn scrape_address(&self) -> Option<std::net::SocketAddr> {
        self.served.as_ref().map(|served| served.address)
    }

    /// Starts adding telemetry, if it is read, wanted, not yet there, and its store exists.
    pub(super) fn follow_telemetry(
        &self,
        config: &config::CollectorMetricsConfig,
        names: &Arc<Names>,
        stores: &ServedStores,
    ) {
        let Telemetry::As(schema) = config.telemetry else { return };
        if self.served.is_none() && !self.is_exported {
            return;
        }
        let all = stores.current_stores();
        match all.iter().find(|store| store.spec.name == config.store).map(|store| &store.spec.kind) {
            Some(StoreKind::Append { entry_len, .. }) if usize::from(*entry_len) == ENTRY_LEN => {
                self.source.telemetry.get_or_init(|| self.source.start_telemetry(schema, config, names));
            }
            Some(_) => {
                tracing::warn!(
                    store = config.store,
                    "metrics without telemetry: the store does not hold INT events"
                );
            }
            None => {
                tracing::info!(store = config.store, "metrics without telemetry: the store does not exist")
            }
        }
    }

    /// Starts adding sums of flow records, if they are read and wanted, and there is a store of records.
    pub(super) fn follow_traffic(
        &self,
        config: &config::CollectorMetricsConfig,
        names: &Arc<Names>,
        stores: &Arc<ServedStores>,
    ) {
        let is_read = self.served.is_some() || self.is_traffic_exported;
        let Ok(store) = stores.get(flow_record::STORE) else { return };
        if !config.traffic || !is_read || !holds_flow_records(&store) {
            return;
        }
        self.source.traffic.get_or_init(|| {
            let names = if config.names { names.clone() } else { Arc::new(Names::empty()) };
            (TrafficFollower::start(stores.clone(), store, config.largest_flows), names)
        });
    }
}

impl MetricsSource {
    #[cfg(feature = "web")]
    fn certificate_notice(&self) -> Option<dta_web::Notice> {
        let validity = (*self.certificate.lock().unwrap_or_else(PoisonError::into_inner))?;
        certificate::expiry_notice(&validity, std::time::SystemTime::now())
    }

    fn add_traffic(&self, page: &mut MetricsPage) {
        let Some((traffic, names)) = self.traffic.get() else { return };
        let reported_name = |switch, interface| self.telemetry.get()?.interface_name(switch, interface);
        traffic.add_to_page(page, names, &reported_name);
    }

    fn start_telemetry(
        &self,
        schema: Schema,
        config: &config::CollectorMetricsConfig,
        names: &Arc<Names>,
    ) -> GaugeFollower {
        let names = if config.names { names.clone() } else { Arc::new(Names::empty()) };
        let gauges = Gauges::new(schema, config.telemetry_limits(), names);
        GaugeFollower::start(Arc::new(self.service.clone()), &config.store, gauges)
    }

    async fn collect_page(&self) -> Result<MetricsPage, String> {
        let began = Instant::now();
        let mut page = crate::page::metrics_page(&self.service).await.map_err(|error| error.to_string())?;
        let room = self.room.clone();
        // File systems may be slow.
        let filled = tokio::task::spawn_blocking(move || {
            room.add_disk_metrics(&mut page);
            page
        });
        let mut page = filled.await.map_err(|error| error.to_string())?;
        self.process.add_process_metrics(&mut page);
        let help = "1 if sessions and the NIC are tended, as in the health service";
        let serving = self.health.is_serving().into();
        page.add("dta_collector_serving", MetricKind::Gauge, help, Labels::new(), serving);
        if let Some(validity) = *self.certificate.lock().unwrap_or_else(PoisonError::into_inner) {
            let help = "when the TLS certificate that this collector serves with ends, in seconds since 1970";
            let name = "dta_collector_certificate_end_timestamp_seconds";
            page.add_real_gauge(name, help, Labels::new(), validity.not_after().as_secs_f64());
        }
        if let Some(cluster) = &self.cluster {
            cluster::add_cluster_metrics(cluster, &mut page);
        }
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.add_to_page(&mut page);
        }
        self.add_traffic(&mut page);
        add_alerts(self.service.alerts(), &mut page);
        let help = "how long it took to gather this page";
        page.add_real_gauge("dta_metrics_page_seconds", help, Labels::new(), began.elapsed().as_secs_f64());
        Ok(page)
    }
}

/// Counts the pending and firing alerts of each rule.
fn add_alerts(board: &AlertBoard, page: &mut MetricsPage) {
    let help = "alerts of a rule that are pending or firing";
    for alert in board.alerts().into_iter().filter(|alert| alert.resolved_at.is_none()) {
        let labels = vec![
            ("rule".into(), alert.rule),
            ("severity".into(), alert.severity),
            ("state".into(), alert.state),
        ];
        page.add("dta_collector_alerts", MetricKind::Gauge, help, labels, 1);
    }
}
