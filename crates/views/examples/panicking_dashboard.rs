//! The dashboard of a collector, one of whose workers panics while it is shown: for the test that the terminal is
//! restored afterwards.
//!
//! cargo run -p dta-views --example panicking_dashboard -- HOST:PORT

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dta_proto::control::{
    EntriesRequest, EpochsRequest, EpochsResponse, ListSessionsResponse, NodeStatistics, PlacementResponse,
    ReadMemoryRequest, ReadMemoryResponse, StoreInfo, TailRequest,
};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientError, ClientOptions, QueryAnswers, Question, Series, Span, TailMessages};
use dta_views::dashboard::{self, DataSource};

/// A collector that panics the fourth time its stores are read.
struct Panics(RemoteCollector, AtomicU32);

#[tonic::async_trait]
impl Ask for Panics {
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 3 {
            panic!("a bug made by the test");
        }
        self.0.fetch_stores().await
    }

    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        self.0.placement().await
    }

    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        self.0.query_keys(question).await
    }

    async fn query_keys_in_span(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        self.0.query_keys_in_span(question, span).await
    }

    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        self.0.fetch_epochs(request).await
    }

    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError> {
        self.0.tail_list(request).await
    }

    async fn stream_entries(&self, request: EntriesRequest) -> Result<TailMessages, ClientError> {
        self.0.stream_entries(request).await
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.0.read_memory(request).await
    }

    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        self.0.fetch_sessions().await
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        self.0.statistics().await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: panicking_dashboard HOST:PORT")?;
    let client = RemoteCollector::connect_lazy(&ClientOptions::without_tls(&address))?;
    let source = DataSource::from_ask(Arc::new(Panics(client, AtomicU32::new(0))), "x".into(), true);
    Ok(dashboard::run(source, Duration::from_millis(300)).await?)
}
