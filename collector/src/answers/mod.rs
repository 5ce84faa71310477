//! Answers questions about stores from this process's memory, as the local implementation of [`Ask`], which
//! `dta-rpc` implements over gRPC.
//!
//! Each question is checked, answered by a [reader](dta_memory::reader), and counted. A refusal is an
//! [`AskError`], whose text says what to do. The gRPC service, the dashboard of a memory directory and
//! exporters all ask here.

mod counters;
mod entries;
mod error;
mod files;
mod flows;
mod inspect;
mod keys;
mod query;
mod tail;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use dta_memory::store::{ServedStores, Store};
use dta_proto::control::{
    EntriesRequest, EpochsRequest, EpochsResponse, FlowsRequest, FlowsResponse, ListSessionsResponse,
    NodeStatistics, PlacementResponse, ReadMemoryRequest, ReadMemoryResponse, StoreInfo, StorePlacement,
    TailRequest,
};
use dta_proto::wire::dta::Primitive;
use dta_rpc::{Ask, ClientError, QueryAnswers, Question, Series, Span, TailMessages};
use tokio::sync::{Notify, Semaphore, watch};

use crate::epochs::Epochs;
use counters::AnswerCounters;

pub use error::AskError;
pub use files::FilesError;
pub use keys::Roles;

/// Threads that scan whole rings for followed lists; other scans wait for one of them.
const LOOKS: usize = 4;
/// Threads that send entries of the history, each for as long as its reader takes; others wait for one.
const READS: usize = 4;
/// Most concurrent scans of flow records, each by up to eight threads; others wait for one.
const FLOW_SCANS: usize = 2;

/// Answers from the memory of stores. Cheap to clone: clones share stores and counters.
///
/// Needs a tokio runtime. Long reads of memory run on threads of their own, so that nobody else waits for
/// them.
#[derive(Clone)]
pub struct Memory {
    stores: Arc<ServedStores>,
    counters: Arc<AnswerCounters>,
    wake: Arc<Notify>,
    looks: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    flow_scans: Arc<Semaphore>,
    stop: Option<watch::Receiver<bool>>,
    epochs: Option<Arc<Epochs>>,
    roles: Option<Arc<Roles>>,
    /// Whether another process may replace region files.
    beside: bool,
}

impl Memory {
    pub fn new(stores: Arc<ServedStores>) -> Self {
        let looks = Arc::new(Semaphore::new(LOOKS));
        Self {
            stores,
            counters: Arc::default(),
            wake: Arc::default(),
            looks,
            reads: Arc::new(Semaphore::new(READS)),
            flow_scans: Arc::new(Semaphore::new(FLOW_SCANS)),
            stop: None,
            epochs: None,
            roles: None,
            beside: false,
        }
    }

    /// Ends all tails when `stop` becomes true or its sender is dropped.
    pub fn with_stop(self, stop: watch::Receiver<bool>) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Takes answers about other moments from these epochs.
    pub fn with_epochs(self, epochs: Arc<Epochs>) -> Self {
        Self { epochs: Some(epochs), ..self }
    }

    /// Tells this collector's counts apart from those of the other one that counts the same keys.
    pub fn with_roles(self, roles: Arc<Roles>) -> Self {
        Self { roles: Some(roles), ..self }
    }

    /// Wakes followers of lists that wait for new batches.
    pub fn wake_signal(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Counts of queries and tails so far. docs/counters.md explains the names.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let epochs = self.epochs.iter().flat_map(|epochs| epochs.named_counters());
        self.counters.named_counters().into_iter().chain(epochs).collect()
    }

    /// The stores, with their current memory.
    fn current_stores(&self) -> Result<&ServedStores, AskError> {
        if self.beside {
            self.stores.follow_files()?;
        }
        Ok(&self.stores)
    }

    /// Finds a store of this primitive; an empty name stands for the only one.
    fn find_store(&self, name: &str, primitive: Primitive) -> Result<Arc<Store>, AskError> {
        Ok(self.current_stores()?.of_primitive(name, primitive)?)
    }

    /// Runs `work` on a thread that may block.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, AskError> + Send + 'static,
    ) -> Result<T, ClientError> {
        let memory = self.clone();
        let done = dta_rpc::transport::run_blocking(move || work(&memory)).await;
        Ok(done.map_err(|e| AskError::Ended(e.to_string()))??)
    }
}

#[tonic::async_trait]
impl Ask for Memory {
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        self.run_blocking(Self::store_infos).await
    }

    /// Memory alone knows of no other collector.
    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        let placement = |store: &Arc<Store>| StorePlacement {
            store: Some((&store.spec).into()),
            generation: store.generation,
            ..StorePlacement::default()
        };
        let stores = move |memory: &Self| {
            Ok(memory.current_stores()?.current_stores().iter().map(placement).collect())
        };
        Ok(PlacementResponse { stores: self.run_blocking(stores).await?, ..PlacementResponse::default() })
    }

    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        self.run_blocking(move |memory| memory.answer_question(&question)).await
    }

    async fn query_keys_in_span(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        self.run_blocking(move |memory| memory.answer_series(&question, span)).await
    }

    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        self.run_blocking(move |memory| memory.list_epochs(&request)).await
    }

    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError> {
        self.follow_list(request, ()).await
    }

    async fn stream_entries(&self, request: EntriesRequest) -> Result<TailMessages, ClientError> {
        self.entries_of(request, ()).await
    }

    async fn fetch_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        self.answer_flows(request).await
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.run_blocking(move |memory| memory.read_region(&request)).await
    }

    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        Err(AskError::MemoryAlone("sessions").into())
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        Err(AskError::MemoryAlone("counters").into())
    }
}
