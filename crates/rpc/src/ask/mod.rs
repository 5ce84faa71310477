//! One interface for queries to a collector's stores, wherever the answers come from.
//!
//! [`RemoteCollector`](crate::collector::RemoteCollector) answers from a running collector, over gRPC; the collector's own crate has another
//! implementation, which answers from memory. Both give the same answers and refuse in the same words: callers (the gRPC service, the dashboard, an
//! exporter) need not know which one they have. Queries of keys are a [`Question`]; other queries, and all answers, are the messages of `dta.v1`,
//! documented in `dta-proto/proto/dta/v1/`, `primitive.proto` and `collector.proto`.

mod following;
mod keyed;
mod live;
mod question;

use dta_proto::control::{
    AlertsRequest, AlertsResponse, EntriesRequest, Epoch, EpochsRequest, EpochsResponse, FlowsRequest,
    FlowsResponse, ListSessionsResponse, NodeStatistics, PlacementResponse, ReadMemoryRequest,
    ReadMemoryResponse, StoreInfo, TailRequest,
};

use dta_proto::flow_query::{FlowAnswer, FlowQuestion, FlowSum, ScanCounts};

use tonic::Status;

use crate::{ClientError, flows};

pub use following::TailMessages;
pub use keyed::AskKeys;
pub use question::{
    AtLeastError, KeyAnswer, Moment, QueryAnswers, Question, QuestionError, QuestionKind, Series, Span,
    series_question,
};

/// A source of answers: `Box<dyn Ask>` stands for any.
///
/// # Errors
/// A refusal is always a [`ClientError::Status`]: its code tells a program what to do next, its message tells a person. `NOT_FOUND` = no store of
/// that name; `INVALID_ARGUMENT` = this store cannot answer the question; `FAILED_PRECONDITION` = another collector has it, whose address is given;
/// `OUT_OF_RANGE` = bytes beyond the store's end, or a moment for which nothing is kept; `RESOURCE_EXHAUSTED` = too many lists are being followed;
/// `UNAVAILABLE` = the collector is down or shutting down; `UNIMPLEMENTED` = not known here; `INTERNAL` = the collector's memory is damaged.
#[tonic::async_trait]
pub trait Ask: Send + Sync {
    /// Stores in the order of the configuration, with their load. Reads a sample of all memory.
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError>;

    /// The same stores, with the part of each that is here. Reads no memory.
    async fn placement(&self) -> Result<PlacementResponse, ClientError>;

    /// Queries keys of one store. For any number of keys there is [`AskKeys`].
    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError>;

    /// What keys had in each epoch of a span of time, for as many epochs as fit into one answer. `question` is about now. For any number of keys and
    /// epochs there is [`AskKeys::series_of`].
    async fn query_keys_in_span(&self, question: Question, span: Span) -> Result<Series, ClientError>;

    /// The epochs of a store, newest first, at most [`MAX_EPOCHS`](dta_proto::control::MAX_EPOCHS). For any number of them there is
    /// [`Ask::newest_epochs`].
    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError>;

    /// As [`Ask::fetch_epochs`], in as many calls as it takes: all of them, or the newest
    /// [`most`](EpochsRequest::most).
    async fn newest_epochs(&self, mut request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        let mut all = Vec::new();
        loop {
            let EpochsResponse { epochs, older } = self.fetch_epochs(request.clone()).await?;
            let left = request.most.saturating_sub(epochs.len() as u32);
            all.extend(epochs);
            // Each answer must go further back, or this would not end.
            let ends = older == 0 || (request.until != 0 && older >= request.until);
            if ends || (request.most != 0 && left == 0) {
                return Ok(EpochsResponse { epochs: all, older });
            }
            (request.most, request.until) = (left, older);
        }
    }

    /// All epochs of a store with moments from `since` to before `until` (milliseconds since 1970; 0 = no limit), newest first.
    async fn all_epochs(&self, store: &str, since: u64, until: u64) -> Result<Vec<Epoch>, ClientError> {
        let request = EpochsRequest { store: store.to_owned(), since, until, most: 0 };
        Ok(self.newest_epochs(request).await?.epochs)
    }

    /// Follows a list of an append store. Nothing written after this returns is missed.
    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError>;

    /// The entries of a list in each epoch of a span of time, as documented at the call `Entries`.
    async fn stream_entries(&self, request: EntriesRequest) -> Result<TailMessages, ClientError>;

    /// Flow records, filtered, grouped and summed, as documented at the call `Flows`. [`Ask::query_flows`] takes a question instead.
    async fn fetch_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        let store = request.store;
        Err(Status::unimplemented(format!("no answer about flow records of {store:?} here")).into())
    }

    /// The largest groups of flow records, and how much was scanned to find them.
    async fn query_flows(
        &self,
        store: &str,
        question: &FlowQuestion,
        by: FlowSum,
        most: usize,
    ) -> Result<(FlowAnswer, ScanCounts), ClientError> {
        let request = flows::ranked_request(store, question, by, most);
        flows::read_answer(question, self.fetch_flows(request).await?)
    }

    /// Alerts, and their transitions. Memory alone has none.
    async fn fetch_alerts(&self, _: AlertsRequest) -> Result<AlertsResponse, ClientError> {
        Err(Status::unimplemented("no alert rules are evaluated here").into())
    }

    /// Raw bytes of a store, at most [`MAX_READ`](dta_proto::control::MAX_READ).
    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError>;

    /// Sessions with their queue pairs, the collector's NIC and its endpoint. Memory alone does not know them.
    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError>;

    /// Counters of every node that the collector knows. Memory alone does not have them.
    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError>;
}
