//! The gRPC service `dta.v1.Collector`.
//!
//! Queries of stores go to [`answers`](crate::answers). Session calls are checked (`convert`) and executed by
//! [`session`](crate::session); their errors become statuses whose messages say what to do. Anything that may
//! take long runs on other threads, so that neither other calls nor the software NIC wait for it.

mod agents;
mod ask;
mod caller;
mod convert;
mod elsewhere;
mod inspect;
mod sessions;
mod status;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use dta_memory::nic::Nic;
use dta_memory::store::ServedStores;
use dta_proto::control::collector_server::{Collector, CollectorServer};
use dta_proto::control::{
    AlertsRequest, AlertsResponse, EndSessionRequest, EndSessionResponse, EntriesRequest, EpochsRequest,
    EpochsResponse, FlowsRequest, FlowsResponse, ListSessionsRequest, ListSessionsResponse,
    ListStoresRequest, ListStoresResponse, OpenSessionRequest, PlacementRequest, PlacementResponse,
    QueryRequest, QueryResponse, QuerySeriesRequest, QuerySeriesResponse, ReadMemoryRequest,
    ReadMemoryResponse, RenewSessionRequest, Session, StatisticsRequest, StatisticsResponse, TailRequest,
};
use tokio::sync::{Notify, Semaphore, watch};
use tonic::{Request, Response, Status};

use crate::alerts::AlertBoard;
use crate::answers::Memory;
use crate::cluster::ClusterMembership;
use crate::config::CollectorLimits;
use crate::epochs::Epochs;
use crate::session::CollectorSessions;
use caller::Rules;
use dta_export::counters::OfSinks;
use dta_rpc::transport::{CertificateName, Method};
use dta_rpc::{Ask, ClientError, series_question};

/// The state that calls are answered from.
#[derive(Clone)]
pub struct CollectorService {
    stores: Arc<ServedStores>,
    sessions: Arc<CollectorSessions>,
    nic: Arc<dyn Nic>,
    memory: Memory,
    tails: Arc<Semaphore>,
    rules: Arc<Rules>,
    connections: Arc<dta_rpc::transport::ConnectionCounters>,
    exporters: Arc<OnceLock<OfSinks>>,
    alerts: Arc<AlertBoard>,
    #[cfg(feature = "web")]
    web: Arc<dta_web::WebCounters>,
    /// Its membership in a cluster, if any.
    cluster: Option<Arc<ClusterMembership>>,
    /// Held by the one caller that may read all counters.
    counting: Arc<tokio::sync::Mutex<()>>,
    /// How many collectors hold each key of a store, by store name.
    replicas: Arc<BTreeMap<String, u8>>,
}

impl CollectorService {
    /// The service over stores, their sessions and the NIC that fills them. Tails end when `stop` becomes
    /// true or its sender is dropped.
    pub fn new(
        stores: Arc<ServedStores>,
        sessions: Arc<CollectorSessions>,
        nic: Arc<dyn Nic>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let limits = CollectorLimits::default();
        Self {
            memory: Memory::new(stores.clone())
                .with_stop(stop)
                .with_roles(elsewhere::session_roles(sessions.clone())),
            stores,
            sessions,
            nic,
            tails: Arc::new(Semaphore::new(limits.tails)),
            rules: Arc::new(Rules { operators: Vec::new(), sessions: limits.sessions_per_certificate }),
            connections: Arc::default(),
            exporters: Arc::default(),
            alerts: Arc::default(),
            #[cfg(feature = "web")]
            web: Arc::default(),
            cluster: None,
            counting: Arc::default(),
            replicas: Arc::default(),
        }
    }

    /// Lets callers whose certificate has one of these names end any session.
    pub fn with_operators(self, operators: Vec<CertificateName>) -> Self {
        let rules = Arc::new(Rules { operators, ..(*self.rules).clone() });
        Self { rules, ..self }
    }

    pub fn with_limits(self, limits: &CollectorLimits) -> Self {
        let rules = Arc::new(Rules { sessions: limits.sessions_per_certificate, ..(*self.rules).clone() });
        Self { rules, tails: Arc::new(Semaphore::new(limits.tails)), ..self }
    }

    /// Asks translators to give each key of these stores to this many collectors.
    pub fn with_replicas(self, replicas: BTreeMap<String, u8>) -> Self {
        Self { replicas: Arc::new(replicas), ..self }
    }

    /// Adds these counters of connections to the service's own.
    pub fn with_connections(self, connections: Arc<dta_rpc::transport::ConnectionCounters>) -> Self {
        Self { connections, ..self }
    }

    /// Adds these counters of the page to the service's own.
    #[cfg(feature = "web")]
    pub fn with_web(self, web: Arc<dta_web::WebCounters>) -> Self {
        Self { web, ..self }
    }

    /// Answers with these alerts, and adds their counters to the service's own.
    pub fn with_alerts(self, alerts: Arc<AlertBoard>) -> Self {
        Self { alerts, ..self }
    }

    pub fn alerts(&self) -> &Arc<AlertBoard> {
        &self.alerts
    }

    /// Adds these counters of exporters to the service's own, by sink. Only the first call counts.
    pub fn add_exporters(&self, counters: OfSinks) {
        let _ = self.exporters.set(counters);
    }

    /// Answers for what the cluster has placed here.
    pub fn with_cluster(self, cluster: Option<Arc<ClusterMembership>>) -> Self {
        let memory = match cluster.clone() {
            Some(cluster) => self.memory.with_roles(elsewhere::cluster_roles(cluster)),
            None => self.memory,
        };
        Self { cluster, memory, ..self }
    }

    /// Takes answers about other moments from these epochs.
    pub fn with_epochs(self, epochs: Arc<Epochs>) -> Self {
        Self { memory: self.memory.with_epochs(epochs), ..self }
    }

    /// Wakes tails that wait for new batches.
    pub fn wake_signal(&self) -> Arc<Notify> {
        self.memory.wake_signal()
    }

    pub fn into_server(self) -> CollectorServer<Self> {
        CollectorServer::new(self).max_decoding_message_size(dta_rpc::transport::MAX_MESSAGE)
    }

    /// Runs `work` on a thread that may block.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let service = self.clone();
        let done = dta_rpc::transport::run_blocking(move || work(&service)).await;
        done.map_err(|e| Status::internal(format!("the call failed: {e}")))?
    }

    /// The counters of all nodes, for one caller at a time: there may be many, and sessions wait meanwhile.
    async fn all_counters(&self) -> Result<StatisticsResponse, Status> {
        let turn = self.counting.clone().lock_owned().await;
        let work = move |service: &Self| {
            let counters = service.statistics();
            drop(turn);
            Ok(counters)
        };
        self.run_blocking(work).await
    }
}

pub(crate) fn describe_method(path: &str) -> Method {
    match path.strip_prefix("/dta.v1.Collector/") {
        Some("OpenSession" | "PreviewSession" | "RenewSession" | "EndSession") => Method::First,
        // `Statistics` may carry the counters of many nodes.
        Some("Statistics" | "Flows" | "Alerts") => Method::Large,
        Some("Tail" | "Entries") => Method::Tail,
        _ => Method::Ordinary,
    }
}

/// The answer or refusal of a query, for a gRPC client.
fn to_grpc_response<T>(answer: Result<T, ClientError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(status::from_client_error)
}

#[tonic::async_trait]
impl Collector for CollectorService {
    type TailStream = tail::Stream;
    type EntriesStream = tail::Stream;

    async fn open_session(&self, request: Request<OpenSessionRequest>) -> Result<Response<Session>, Status> {
        let caller = self.rules.identify_caller(&request);
        self.run_blocking(move |s| s.open(caller, request.into_inner())).await.map(Response::new)
    }

    async fn preview_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<Session>, Status> {
        let caller = self.rules.identify_caller(&request);
        self.run_blocking(move |s| s.handle_preview(caller, request.into_inner())).await.map(Response::new)
    }

    async fn renew_session(
        &self,
        request: Request<RenewSessionRequest>,
    ) -> Result<Response<Session>, Status> {
        let caller = self.rules.identify_caller(&request);
        self.run_blocking(move |s| s.handle_renewal(&caller, request.into_inner())).await.map(Response::new)
    }

    async fn end_session(
        &self,
        request: Request<EndSessionRequest>,
    ) -> Result<Response<EndSessionResponse>, Status> {
        let caller = self.rules.identify_caller(&request);
        self.run_blocking(move |s| s.handle_end(&caller, request.into_inner())).await.map(Response::new)
    }

    async fn list_sessions(
        &self,
        _: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        self.run_blocking(Self::list_sessions).await.map(Response::new)
    }

    async fn list_stores(
        &self,
        _: Request<ListStoresRequest>,
    ) -> Result<Response<ListStoresResponse>, Status> {
        to_grpc_response(Ask::fetch_stores(self).await.map(|stores| ListStoresResponse { stores }))
    }

    async fn placement(&self, _: Request<PlacementRequest>) -> Result<Response<PlacementResponse>, Status> {
        to_grpc_response(Ask::placement(self).await)
    }

    async fn query(&self, request: Request<QueryRequest>) -> Result<Response<QueryResponse>, Status> {
        let question = request.into_inner().try_into()?;
        to_grpc_response(Ask::query_keys(self, question).await.map(QueryResponse::from))
    }

    async fn query_series(
        &self,
        request: Request<QuerySeriesRequest>,
    ) -> Result<Response<QuerySeriesResponse>, Status> {
        let (question, span) = series_question(request.into_inner())?;
        to_grpc_response(Ask::query_keys_in_span(self, question, span).await.map(QuerySeriesResponse::from))
    }

    async fn epochs(&self, request: Request<EpochsRequest>) -> Result<Response<EpochsResponse>, Status> {
        to_grpc_response(Ask::fetch_epochs(self, request.into_inner()).await)
    }

    async fn tail(&self, request: Request<TailRequest>) -> Result<Response<Self::TailStream>, Status> {
        tail::start_tail(self, request).await.map(Response::new)
    }

    async fn entries(
        &self,
        request: Request<EntriesRequest>,
    ) -> Result<Response<Self::EntriesStream>, Status> {
        tail::start_entries(self, request).await.map(Response::new)
    }

    async fn flows(&self, request: Request<FlowsRequest>) -> Result<Response<FlowsResponse>, Status> {
        to_grpc_response(Ask::fetch_flows(self, request.into_inner()).await)
    }

    async fn alerts(&self, request: Request<AlertsRequest>) -> Result<Response<AlertsResponse>, Status> {
        to_grpc_response(Ask::fetch_alerts(self, request.into_inner()).await)
    }

    async fn statistics(
        &self,
        _: Request<StatisticsRequest>,
    ) -> Result<Response<StatisticsResponse>, Status> {
        self.all_counters().await.map(Response::new)
    }

    async fn read_memory(
        &self,
        request: Request<ReadMemoryRequest>,
    ) -> Result<Response<ReadMemoryResponse>, Status> {
        to_grpc_response(self.memory.read_memory(request.into_inner()).await)
    }
}
