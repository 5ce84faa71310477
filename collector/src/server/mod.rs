//! A whole collector: regions, NIC, sessions and the gRPC service, started and stopped together.

pub mod alert_readings;
mod alerts;
mod certificate;
mod check;
mod cluster;
mod collapse;
mod directory;
mod disk_space;
mod list_follower;
mod metrics;
mod nic;
mod notify;
mod reload;
mod traffic;
#[cfg(feature = "web")]
mod web;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use dta_cli::number::format_count;
use dta_export::alert::AlertFeeds;
use dta_export::names::Names;
use dta_export::run::{ExportOptions, Exporters};
use dta_files::lock::Lock;
use dta_files::owned_folder::OwnedFolder;
use dta_memory::nic::{Device, Nic, NicError};
use dta_memory::region::RegionOptions;
use dta_memory::store::ServedStores;
use dta_rpc::Ask;
use dta_rpc::transport::Listen;
use dta_rpc::transport::standard::{self, Health};
use dta_rpc::transport::tls::ServerTls;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use check::check_config;

use crate::alerts::AlertBoard;
use crate::alerts::deliver::{AlertDeliveries, export_feeds};
use crate::cluster::ClusterMembership;
use crate::config::{Config, HistoryConfig, MemoryBacking};
use crate::epochs::{Counted, Epochs, Keep, StoreTraffic};
use crate::service::CollectorService;
use crate::session::{CollectorSessions, Writers};
use metrics::CollectorMetrics;

/// How often sessions are tended.
const TICK: Duration = Duration::from_secs(1);

/// For how long to keep trying to write an epoch.
const PATIENCE: Duration = Duration::from_secs(120);

/// Open files besides connections: two for the ring of each session, ring doors and pending joins, metrics,
/// the page, the NIC's sockets, region files while they are opened, state files.
const FILES: u64 = 928;

/// The full name of the collector's gRPC service.
const SERVICE: &str = "dta.v1.Collector";

/// Time limits at shutdown for exporters, running calls, tasks, and writing state: less than 10 seconds together.
const EXPORTS: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(3);
const TASKS: Duration = Duration::from_secs(1);
const WRITE: Duration = Duration::from_secs(2);

struct Grpc {
    task: JoinHandle<Result<(), tonic::transport::Error>>,
    /// True = takes no new connections and asks clients of existing ones to reconnect. Closed once no new
    /// connection can be accepted.
    halt: watch::Sender<bool>,
    certificate: Option<JoinHandle<()>>,
}

/// A running collector. Dropping it leaves it running; [`RunningCollector::shut_down`] stops it in order.
pub struct RunningCollector {
    /// Where gRPC listens, with the actual port.
    pub listen: SocketAddr,
    /// How long the start took.
    pub took: Duration,
    /// The NIC, with its endpoint.
    pub device: Device,
    stores: Arc<ServedStores>,
    sessions: Arc<CollectorSessions>,
    service: CollectorService,
    nic: Arc<dyn Nic>,
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    tasks: Vec<JoinHandle<()>>,
    /// How often sessions have been tended.
    ticks: Arc<AtomicU64>,
    grpc: Grpc,
    /// Listeners of earlier configurations, which end with their last connection.
    former: Vec<JoinHandle<Result<(), tonic::transport::Error>>>,
    listener: Arc<TcpListener>,
    connections: Arc<dta_rpc::transport::ConnectionCounters>,
    metrics: CollectorMetrics,
    health: Health,
    epochs: Arc<Epochs>,
    alerts: Arc<AlertBoard>,
    alert_rules: alerts::AlertFollower,
    alert_deliveries: AlertDeliveries,
    /// The exporters to databases.
    exporters: Option<Exporters>,
    /// Its membership in a cluster.
    membership: Option<cluster::MembershipHandle>,
    /// The names of switches, ports and drop reasons.
    names: Arc<Names>,
    /// Whether a thread takes the NIC's immediates.
    wakes: bool,
    /// The page in the browser.
    #[cfg(feature = "web")]
    page: Option<dta_web::ServedWeb>,
    #[cfg(feature = "web")]
    page_members: Arc<web::PageMembers>,
    config: Config,
    /// Holds the locks of the memory directory and the history folder.
    _locks: Vec<Lock>,
}

impl RunningCollector {
    /// Starts a collector with the NIC that its configuration names.
    pub async fn start(config: &Config) -> anyhow::Result<Self> {
        Self::start_with(config, || Ok(nic::open_nic(config)?)).await
    }

    /// Starts a collector with a NIC that the caller opens.
    pub async fn start_with(
        config: &Config,
        open_nic: impl FnOnce() -> anyhow::Result<Arc<dyn Nic>>,
    ) -> anyhow::Result<Self> {
        let began = Instant::now();
        // Cheap checks come first.
        let tls = check::checked_tls(config)?;
        check::exposure_warnings(config).iter().for_each(|warning| tracing::warn!("{warning}"));
        let names = check::load_names(config).unwrap_or_else(|error| {
            let error = dta_cli::error_line(&error);
            tracing::error!(
                error,
                "cannot use the file of names: switches and ports have no names until the next start"
            );
            Arc::default()
        });
        let rules = config.alerts.to_rules(&names)?;
        let cannot_listen = |error: std::io::Error| {
            anyhow!("cannot listen for gRPC on {}: {error}{}", config.listen, listen_hint(&error))
        };
        let listener = TcpListener::bind(config.listen).await.map_err(cannot_listen)?;
        let listen = listener.local_addr().map_err(cannot_listen)?;

        let metrics_port = dta_export::metrics::MetricsPort::open(
            &config.metrics.listen,
            dta_export::metrics::COLLECTOR_ADDRESS,
        )
        .await?;

        #[cfg(feature = "web")]
        let web_port = dta_web::WebPort::open(&config.web.listen).await?;

        let folder = match &config.memory {
            MemoryBacking::Anonymous => None,
            MemoryBacking::Directory(dir) => Some(dir.clone()),
        };
        let owner = format!("collector {}", config.name);
        let mut locks = Vec::new();
        if let Some(folder) = &folder {
            locks.push(directory::lock_directory(folder, &owner)?);
        }
        if !config.epochs.is_empty() {
            let path = &config.history.directory(&config.name);
            let advice = "give this one another name or folder ([collector] name, [history] directory)";
            locks.push(OwnedFolder { path, kind: "history folder", owner: &owner, advice }.lock()?);
        }
        // On a thread of its own: allocating much memory takes long, and the caller may want to stop meanwhile.
        let (specs, memory) = (config.stores.clone(), config.memory.clone());
        let open = move || ServedStores::open(&specs, &memory, RegionOptions::default());
        let stores = Arc::new(tokio::task::spawn_blocking(open).await??);
        for store in stores.current_stores().iter() {
            tracing::info!(
                store = %store.spec.name,
                kind = store.spec.primitive(),
                bytes = store.region.len(),
                found = store.region.is_preexisting(),
                "store open"
            );
        }
        let nic = open_nic()?;
        let device = nic.describe_device();
        check::check_path_mtu(&config.stores, &device)?;
        let alerts = Arc::new(alerts::open_board(folder.as_deref()));
        alerts::join_cluster(config, &alerts)?;
        let sessions = Arc::new(CollectorSessions::open_state(
            nic.clone(),
            stores.clone(),
            config.transport,
            folder,
            Instant::now(),
        )?);

        let (stop, stopped) = watch::channel(false);
        let connections = Arc::new(dta_rpc::transport::ConnectionCounters::default());
        let cluster = config.cluster.as_ref().map(|cluster| Arc::new(cluster::new_cluster(cluster, config)));
        let traffic =
            ObservedTraffic { sessions: sessions.clone(), nic: nic.clone(), cluster: cluster.clone() };
        let epochs = begin_epochs(config, &stores, traffic, &stopped).await?;
        let service = CollectorService::new(stores.clone(), sessions.clone(), nic.clone(), stopped.clone())
            .with_epochs(epochs.clone())
            .with_operators(operators(config))
            .with_limits(&config.limits)
            .with_replicas(config.replicas.clone())
            .with_connections(connections.clone())
            .with_alerts(alerts.clone())
            .with_cluster(cluster.clone());
        #[cfg(feature = "web")]
        let web_counters = Arc::new(dta_web::WebCounters::default());
        #[cfg(feature = "web")]
        let service = service.with_web(web_counters.clone());
        let ticks = Arc::new(AtomicU64::new(0));
        let mut tasks = vec![tokio::spawn(upkeep_sessions(sessions.clone(), ticks.clone(), stopped.clone()))];
        if nic.pins_memory() {
            // Pinned pages can no longer be joined, and a start does not wait until they have been.
            tracing::info!(device = %device.name, "the device pins the memory of stores, so their pages cannot be joined into huge ones; use hugetlbfs");
            collapse::log_page_kinds(stores.current_stores().iter());
        } else {
            tasks.push(tokio::spawn(collapse::keep_collapsed(stores.clone(), stopped.clone())));
        }
        let wakes = notify::is_wanted(&stores);
        if wakes {
            tasks.push(notify::spawn_notifier(nic.clone(), service.wake_signal(), stopped.clone()));
        }
        let listener = Arc::new(listener);
        let health = standard::start_health(SERVICE);
        let mut metrics = CollectorMetrics::new(config, service.clone(), health.clone(), cluster.clone());
        let reachable_address = match &config.cluster {
            Some(of) => cluster::reachable_address(of, config, listen)?,
            None => listen.to_string(),
        };
        #[cfg(feature = "web")]
        let page_members = Arc::new(web::PageMembers::new(config, reachable_address.clone(), &service));
        #[cfg(feature = "web")]
        let page = {
            let notices = metrics.own_notices();
            let serve = |port| web::serve_page(port, config, &page_members, &names, web_counters, notices);
            web_port.map(serve).transpose()?
        };
        #[cfg(feature = "web")]
        let followed = page_members.clone();
        #[cfg(feature = "web")]
        let follow_view = move |view: &dta_cluster::View| followed.follow_view(view);
        #[cfg(not(feature = "web"))]
        let follow_view = |_: &dta_cluster::View| {};
        #[cfg(feature = "web")]
        let page_url = page.as_ref().map(dta_web::ServedWeb::page_url).unwrap_or_default();
        #[cfg(not(feature = "web"))]
        let page_url = String::new();
        let feeds = export_feeds(alerts.clone(), alerts::delivery_options(config, page_url.clone()));
        let exporters = start_exports(config, &names, &service, &metrics, feeds)?;
        let validity = tls.as_ref().map(|tls| tls.validity);
        let grpc =
            serve_grpc(listener.clone(), config, tls, &service, &health, connections.clone(), &stopped)?;
        health.set(true);
        if let Some(port) = metrics_port {
            metrics.serve_at(port);
        }
        metrics.set_certificate(validity);
        metrics.follow_telemetry(&config.metrics, &names, &stores);
        metrics.follow_traffic(&config.metrics, &names, &stores);
        let alert_deliveries = alerts::start_deliveries(config, page_url, &alerts)?;
        let alert_rules = alerts::AlertFollower::start(rules, &alerts, &stores, &names)?;
        let membership = match (&config.cluster, cluster) {
            (Some(of), Some(cluster)) => {
                let scraped = metrics.scrape_address();
                Some(cluster::join_cluster(
                    of,
                    config,
                    reachable_address,
                    scraped,
                    &device,
                    cluster,
                    follow_view,
                )?)
            }
            _ => None,
        };
        let took = began.elapsed();
        Ok(Self {
            listen,
            took,
            device,
            stores,
            sessions,
            service,
            nic,
            stop,
            stopped,
            tasks,
            ticks,
            grpc,
            former: Vec::new(),
            listener,
            connections,
            metrics,
            health,
            epochs,
            alerts,
            alert_rules,
            alert_deliveries,
            exporters,
            membership,
            names,
            wakes,
            #[cfg(feature = "web")]
            page,
            #[cfg(feature = "web")]
            page_members,
            config: config.clone(),
            _locks: locks,
        })
    }

    pub fn set_serving(&self, serving: bool) {
        self.health.set(serving);
    }

    /// Where metrics are scraped, if anywhere.
    pub fn scrape_address(&self) -> Option<SocketAddr> {
        self.metrics.scrape_address()
    }

    /// The page's address for a browser, if there is a page.
    pub fn page_url(&self) -> Option<String> {
        #[cfg(feature = "web")]
        return self.page.as_ref().map(dta_web::ServedWeb::page_url);
        #[cfg(not(feature = "web"))]
        None
    }

    pub fn stores(&self) -> &Arc<ServedStores> {
        &self.stores
    }

    /// Answers queries; also implements [`dta_rpc::Ask`] within this process.
    pub fn service(&self) -> &CollectorService {
        &self.service
    }

    /// The alerts of its rules, for those who show and deliver them.
    pub fn alerts(&self) -> &Arc<AlertBoard> {
        &self.alerts
    }

    pub fn sessions(&self) -> &Arc<CollectorSessions> {
        &self.sessions
    }

    /// Waits until the NIC or the gRPC server has ended and returns why: the service manager must then
    /// restart this process. May be called repeatedly.
    pub async fn wait_for_failure(&mut self) -> anyhow::Error {
        let nic = self.nic.clone();
        tokio::select! {
            reason = wait_for_nic_failure(nic) => NicError::Stopped { reason }.into(),
            ended = &mut self.grpc.task => anyhow!("the gRPC service ended: {}", match ended {
                Ok(Ok(())) => "its listener closed".into(),
                Ok(Err(e)) => e.to_string(),
                Err(e) => e.to_string(),
            }),
        }
    }

    /// Its current state in one line for people; `None` while sessions are being changed.
    pub fn status_line(&self) -> Option<String> {
        let (stores, sessions) = (self.stores.current_stores().len(), self.sessions.session_count()?);
        Some(format!(
            "{}, {}, gRPC on {}",
            format_count(stores as u64, "store", "stores"),
            format_count(sessions as u64, "session", "sessions"),
            self.listen
        ))
    }

    /// Counters that rise as long as this collector works: one for the upkeep of sessions, and one for the
    /// NIC's thread. If the NIC has none, the first stands for both.
    pub fn progress_counters(&self) -> [u64; 2] {
        let ticks = self.ticks.load(Ordering::Relaxed);
        [ticks, self.nic.poll_count().unwrap_or(ticks)]
    }

    /// Ends tails and calls, writes state, and releases everything. Sessions stay: their translators continue
    /// when a collector starts in the same memory directory.
    pub async fn shut_down(self) -> anyhow::Result<()> {
        let began = tokio::time::Instant::now();
        self.health.set(false);
        // First, so that what it holds goes to others at once.
        if let Some(membership) = self.membership {
            membership.leave_cluster().await;
        }
        drop(self.metrics);
        #[cfg(feature = "web")]
        drop(self.page);
        drop(self.alert_rules);
        drop(self.alert_deliveries);
        // Exporters follow lists, which end with the service.
        if let Some(exporters) = self.exporters
            && tokio::time::timeout(EXPORTS, exporters.stop_exporters()).await.is_err()
        {
            tracing::warn!("exporters did not stop in time: what they had read will be read again");
        }
        self.stop.send_replace(true);
        let Grpc { task: mut grpc, certificate, .. } = self.grpc;
        let calls = async {
            // A task that has ended may already have been polled for its result.
            if !grpc.is_finished() && tokio::time::timeout(GRACE, &mut grpc).await.is_err() {
                tracing::info!("cutting off calls that did not end in time");
                grpc.abort();
            }
        };
        // From here on, nothing delivers or exports alerts.
        tokio::join!(calls, alerts::leave_cluster(&self.alerts));
        self.former.iter().for_each(JoinHandle::abort);
        // Tasks may use the time the others left: one that goes on keeps the memory of its stores.
        let by = began + EXPORTS + GRACE + TASKS;
        for task in self.tasks.into_iter().chain(certificate) {
            match tokio::time::timeout_at(by, task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "a task stopped unexpectedly"),
                Err(_) => tracing::warn!("a task did not stop in time"),
            }
        }
        let epochs = self.epochs;
        if tokio::time::timeout_at(by, tokio::task::spawn_blocking(move || epochs.join_threads()))
            .await
            .is_err()
        {
            tracing::info!("an epoch is still being written: the next start writes it");
        }
        let sessions = self.sessions;
        let last = tokio::task::spawn_blocking(move || sessions.run_upkeep(Instant::now()));
        // This, too, has the time that the others left.
        match tokio::time::timeout_at(by + WRITE, last).await {
            Ok(ended) => Ok(ended??),
            Err(_) => bail!(
                "the last counters of translators could not be written: stopping has taken {} s",
                began.elapsed().as_secs()
            ),
        }
    }
}

/// What epochs observe of sessions and the NIC.
struct ObservedTraffic {
    sessions: Arc<CollectorSessions>,
    nic: Arc<dyn Nic>,
    cluster: Option<Arc<ClusterMembership>>,
}

impl StoreTraffic for ObservedTraffic {
    fn store_writers(&self, store: &str, generation: u64) -> Writers {
        self.sessions.store_writers(store, generation)
    }

    fn is_taken_over(&self) -> bool {
        self.cluster.is_some()
    }

    fn begin_generation(&self, store: &str, generation: u64, at: u64) {
        if let Some(cluster) = &self.cluster {
            cluster.begin_epoch(store, generation, at);
        }
    }

    fn node_counters(&self) -> Vec<Counted> {
        let nodes = self.sessions.statistics().into_iter().map(|sums| (sums.node, sums.counters));
        nodes
            .chain([(format!("nic/{}", self.nic.describe_device().name), self.nic.named_counters())])
            .collect()
    }
}

/// Begins the epochs of stores, if any have epochs. On a thread of its own, as histories may be long.
async fn begin_epochs(
    config: &Config,
    stores: &Arc<ServedStores>,
    traffic: ObservedTraffic,
    stopped: &watch::Receiver<bool>,
) -> anyhow::Result<Arc<Epochs>> {
    if config.epochs.is_empty() {
        return Ok(Arc::default());
    }
    let HistoryConfig { url, keep, keep_bytes, look_back, coarse, .. } = config.history.clone();
    let keep = Keep {
        url,
        clickhouse: config.clickhouse()?.map(Arc::new),
        directory: config.history.directory(&config.name),
        keep: Some(keep),
        keep_bytes: Some(keep_bytes),
        look_back,
        coarse: Some(coarse),
        patience: PATIENCE,
    };
    let (stores, every, stopped) = (stores.clone(), config.epochs.clone(), stopped.clone());
    let traffic: Arc<dyn StoreTraffic> = Arc::new(traffic);
    let begin = move || Epochs::start(&stores, &every, &keep, &traffic, &stopped);
    Ok(Arc::new(tokio::task::spawn_blocking(begin).await??))
}

/// Starts the exporters to databases, if any.
fn start_exports(
    config: &Config,
    names: &Arc<Names>,
    service: &CollectorService,
    metrics: &CollectorMetrics,
    alerts: AlertFeeds,
) -> anyhow::Result<Option<Exporters>> {
    if !config.export.has_exporters() {
        return Ok(None);
    }
    let ask: Arc<dyn Ask> = Arc::new(service.clone());
    let traffic = Some(metrics.traffic_pages());
    let (names, alerts) = (names.clone(), Some(alerts));
    let run = ExportOptions { names, traffic, alerts, ..ExportOptions::default() };
    let exporters = Exporters::start(&config.export, &config.name, &ask, &metrics.export_pages(), run)?;
    service.add_exporters(exporters.exporter_counters());
    Ok(Some(exporters))
}

/// Serves gRPC with the TLS and limits of a configuration.
fn serve_grpc(
    listener: Arc<TcpListener>,
    config: &Config,
    tls: Option<ServerTls>,
    service: &CollectorService,
    health: &Health,
    connections: Arc<dta_rpc::transport::ConnectionCounters>,
    stopped: &watch::Receiver<bool>,
) -> anyhow::Result<Grpc> {
    let reflection = standard::reflection(dta_proto::control::DESCRIPTORS).map_err(anyhow::Error::msg)?;
    let (halt, halted) = watch::channel(false);
    let certificate = tls.as_ref().zip(config.tls.as_ref()).map(|(tls, files)| {
        tokio::spawn(certificate::watch_expiry(files.cert.clone(), tls.validity, stopped.clone()))
    });
    let limits = connection_limits(config);
    let listen = Listen { limits, tls: tls.map(|tls| tls.config) };
    let incoming =
        dta_rpc::transport::accept_until(listener, listen, connections.clone(), wait_until_stopped(halted));
    let serve = dta_rpc::transport::build_server(limits, crate::service::describe_method, connections)
        .add_service(service.clone().into_server())
        .add_service(health.health_service())
        .add_service(reflection)
        .serve_with_incoming_shutdown(incoming, wait_until_stopped(stopped.clone()));
    Ok(Grpc { task: tokio::spawn(serve), halt, certificate })
}

/// Certificate names that may end any session.
fn operators(config: &Config) -> Vec<dta_rpc::transport::CertificateName> {
    let names = config.tls.iter().flat_map(|tls| &tls.operators);
    names.filter_map(|name| name.parse().ok()).collect()
}

/// The connection limits, reduced to what the system allows.
fn connection_limits(config: &Config) -> dta_rpc::transport::ServerLimits {
    let (wanted, files) = (config.limits.of_connections(), dta_rpc::transport::file_limit());
    let limits = wanted.within_file_limit(files, FILES);
    if limits.connections < wanted.connections {
        tracing::warn!(
            files,
            connections = limits.connections,
            "the limit of open files (`ulimit -Hn`) allows fewer connections than `connections` in [limits]"
        );
    }
    limits
}

fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program (another collector?) listens there: stop it, or choose another port with --listen"
        }
        std::io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need root or CAP_NET_BIND_SERVICE",
        _ => "",
    }
}

async fn wait_until_stopped(mut stopped: watch::Receiver<bool>) {
    // `Err` means that the sender was dropped, which happens only with the collector.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Waits until the NIC stops; returns why.
async fn wait_for_nic_failure(nic: Arc<dyn Nic>) -> String {
    loop {
        if let Some(reason) = nic.fatal_failure() {
            return reason;
        }
        tokio::time::sleep(TICK).await;
    }
}

async fn upkeep_sessions(
    sessions: Arc<CollectorSessions>,
    ticks: Arc<AtomicU64>,
    stopped: watch::Receiver<bool>,
) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = wait_until_stopped(stopped.clone()) => return,
        }
        let sessions = sessions.clone();
        match tokio::task::spawn_blocking(move || sessions.run_upkeep(Instant::now())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot write state; trying again"),
            Err(error) => tracing::warn!(%error, "cannot maintain sessions"),
        }
        ticks.fetch_add(1, Ordering::Relaxed);
    }
}
