//! One interface for asking a collector's stores, wherever the answers come from.
//!
//! [`Client`](crate::collector::Client) answers from a running collector, over gRPC; the collector's own
//! crate has another side, which answers from memory. Both answer the same question with the same answer, and
//! refuse it with the same words: who asks (the gRPC service, the dashboard, an exporter) need not know which
//! one it has. What keys are asked is a [`Question`]; other questions, and all answers, are the messages of
//! `dta.v1`, whose fields are explained in `dta-proto/proto/dta/v1/collector.proto`.

mod following;
mod keyed;
mod live;
mod question;

use dta_proto::control::{
    ListSessionsResponse, NodeStatistics, PlacementResponse, ReadMemoryRequest, ReadMemoryResponse,
    StoreInfo, TailRequest,
};

use crate::ClientError;

pub use following::Following;
pub use keyed::AskKeys;
pub use question::{Answers, KeyAnswer, Moment, Question, QuestionError, QuestionKind};

/// Somebody who can be asked: `Box<dyn Ask>` stands for any side.
///
/// # Errors
/// What is refused is a [`ClientError::Status`] on every side: its code tells a program what to do next, its
/// message a person. `NOT_FOUND` = no store of that name; `INVALID_ARGUMENT` = the question cannot be
/// answered by this store; `FAILED_PRECONDITION` = another collector has it, whose address is told;
/// `OUT_OF_RANGE` = bytes beyond the store's end; `RESOURCE_EXHAUSTED` = too many follow lists already;
/// `UNAVAILABLE` = the collector is going away, or is away; `UNIMPLEMENTED` = this side does not know;
/// `INTERNAL` = the collector's memory is not what it should be.
#[tonic::async_trait]
pub trait Ask: Send + Sync {
    /// Stores in the order of the configuration, with their load. Looks at a sample of all memory.
    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError>;

    /// The same stores with what of each is here. Looks at no memory.
    async fn placement(&self) -> Result<PlacementResponse, ClientError>;

    /// What a store says of keys. For any number of keys there is [`AskKeys`].
    async fn ask(&self, question: Question) -> Result<Answers, ClientError>;

    /// Follows a list of an append store. Once this has returned, nothing that is written is passed by.
    async fn tail(&self, request: TailRequest) -> Result<Following, ClientError>;

    /// Raw bytes of a store, at most [`MAX_READ`](dta_proto::control::MAX_READ).
    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError>;

    /// Sessions with their queue pairs, the collector's NIC and its endpoint. Memory alone does not know
    /// them.
    async fn sessions(&self) -> Result<ListSessionsResponse, ClientError>;

    /// Counters of every node that the collector knows of. Memory alone does not know them.
    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError>;
}
