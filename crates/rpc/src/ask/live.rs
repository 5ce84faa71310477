//! Queries a running collector, over gRPC.

use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{
    AlertsRequest, AlertsResponse, EntriesRequest, EpochsRequest, EpochsResponse, FlowsRequest,
    FlowsResponse, ListSessionsRequest, ListSessionsResponse, ListStoresRequest, NodeStatistics,
    PlacementRequest, PlacementResponse, QueryRequest, QuerySeriesRequest, ReadMemoryRequest,
    ReadMemoryResponse, StatisticsRequest, StoreInfo, StorePlacement, TailRequest,
};
use tokio_stream::StreamExt;
use tonic::Code;

use super::{Ask, QueryAnswers, Question, Series, Span, TailMessages};
use crate::ClientError;
use crate::collector::RemoteCollector;

#[tonic::async_trait]
impl Ask for RemoteCollector {
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        let call = |mut to: CollectorClient<_>, request| async move { to.list_stores(request).await };
        Ok(self.call(ListStoresRequest {}, call).await?.stores)
    }

    /// A collector that does not know this call yet answers through its stores, and reads each of them.
    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        let call = |mut to: CollectorClient<_>, request| async move { to.placement(request).await };
        match self.call(PlacementRequest {}, call).await {
            Err(ClientError::Status(status)) if status.code() == Code::Unimplemented => {}
            answer => return answer,
        }
        let placement = |StoreInfo { store, buckets, lists, elsewhere, written, generation, .. }| {
            StorePlacement { store, buckets, lists, elsewhere, written, generation }
        };
        let stores = self.fetch_stores().await?.into_iter().map(placement).collect();
        Ok(PlacementResponse { stores, ..PlacementResponse::default() })
    }

    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        self.call(QueryRequest::from(question), |mut to, request| async move { to.query(request).await })
            .await?
            .try_into()
    }

    async fn query_keys_in_span(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        let Span { since, until } = span;
        let request = QuerySeriesRequest { since, until, query: Some(question.into()) };
        let answer = self.call(request, |mut to, request| async move { to.query_series(request).await });
        answer.await?.try_into()
    }

    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        self.call(request, |mut to, request| async move { to.epochs(request).await }).await
    }

    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError> {
        let stream = self.call(request, |mut to, request| async move { to.tail(request).await }).await?;
        Ok(TailMessages::new(stream.map(|message| message.map_err(ClientError::from))))
    }

    async fn stream_entries(&self, request: EntriesRequest) -> Result<TailMessages, ClientError> {
        let stream = self.call(request, |mut to, request| async move { to.entries(request).await }).await?;
        Ok(TailMessages::new(stream.map(|message| message.map_err(ClientError::from))))
    }

    async fn fetch_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        self.call(request, |mut to, request| async move { to.flows(request).await }).await
    }

    async fn fetch_alerts(&self, request: AlertsRequest) -> Result<AlertsResponse, ClientError> {
        self.call(request, |mut to, request| async move { to.alerts(request).await }).await
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.call(request, |mut to, request| async move { to.read_memory(request).await }).await
    }

    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        let request = ListSessionsRequest {};
        self.call(request, |mut to, request| async move { to.list_sessions(request).await }).await
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        let call = |mut to: CollectorClient<_>, request| async move { to.statistics(request).await };
        Ok(self.call(StatisticsRequest {}, call).await?.nodes)
    }
}
