//! The dashboard of a collector, one of whose workers panics while it is shown: for the test that the terminal is
//! restored afterwards.
//!
//! cargo run -p dta-views --example panicking_dashboard -- HOST:PORT

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dta_rpc::collector::Client;
use dta_rpc::{Answers, Ask, ClientError, ClientOptions, Following, Question, Series, Span};
use dta_proto::control::{
    EntriesRequest, EpochsRequest, EpochsResponse, ListSessionsResponse, NodeStatistics, PlacementResponse,
    ReadMemoryRequest, ReadMemoryResponse, StoreInfo, TailRequest,
};
use dta_views::dashboard::{self, DataSource};

/// A collector that panics the fourth time its stores are read.
struct Panics(Client, AtomicU32);

#[tonic::async_trait]
impl Ask for Panics {
    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 3 {
            panic!("a bug made by the test");
        }
        self.0.stores().await
    }

    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        self.0.placement().await
    }

    async fn ask(&self, question: Question) -> Result<Answers, ClientError> {
        self.0.ask(question).await
    }

    async fn series(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        self.0.series(question, span).await
    }

    async fn epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        self.0.epochs(request).await
    }

    async fn tail(&self, request: TailRequest) -> Result<Following, ClientError> {
        self.0.tail(request).await
    }

    async fn entries(&self, request: EntriesRequest) -> Result<Following, ClientError> {
        self.0.entries(request).await
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.0.read_memory(request).await
    }

    async fn sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        self.0.sessions().await
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        self.0.statistics().await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: panicking_dashboard HOST:PORT")?;
    let client = Client::connect_lazy(&ClientOptions::plain(&address))?;
    let source = DataSource::asking(Arc::new(Panics(client, AtomicU32::new(0))), "x".into(), true);
    Ok(dashboard::run(source, Duration::from_millis(300)).await?)
}
