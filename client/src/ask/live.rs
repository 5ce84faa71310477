//! Asking a running collector, over gRPC.

use dta_proto::control::{
    ListSessionsRequest, ListSessionsResponse, ListStoresRequest, NodeStatistics, QueryCounterRequest,
    QueryCounterResponse, QueryKeyWriteRequest, QueryKeyWriteResponse, QueryPathRequest, QueryPathResponse,
    QuerySketchRequest, QuerySketchResponse, ReadMemoryRequest, ReadMemoryResponse, StatisticsRequest,
    StoreInfo, TailRequest,
};
use tokio_stream::StreamExt;

use super::{Ask, Following};
use crate::ClientError;
use crate::collector::Client;

#[tonic::async_trait]
impl Ask for Client {
    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        Ok(self.grpc().list_stores(ListStoresRequest {}).await?.into_inner().stores)
    }

    async fn query_key_write(
        &self,
        request: QueryKeyWriteRequest,
    ) -> Result<QueryKeyWriteResponse, ClientError> {
        Ok(self.grpc().query_key_write(request).await?.into_inner())
    }

    async fn query_path(&self, request: QueryPathRequest) -> Result<QueryPathResponse, ClientError> {
        Ok(self.grpc().query_path(request).await?.into_inner())
    }

    async fn query_counter(&self, request: QueryCounterRequest) -> Result<QueryCounterResponse, ClientError> {
        Ok(self.grpc().query_counter(request).await?.into_inner())
    }

    async fn query_sketch(&self, request: QuerySketchRequest) -> Result<QuerySketchResponse, ClientError> {
        Ok(self.grpc().query_sketch(request).await?.into_inner())
    }

    async fn tail(&self, request: TailRequest) -> Result<Following, ClientError> {
        let stream = self.grpc().tail(request).await?.into_inner();
        Ok(Following::new(stream.map(|message| message.map_err(ClientError::from))))
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        Ok(self.grpc().read_memory(request).await?.into_inner())
    }

    async fn sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        Ok(self.grpc().list_sessions(ListSessionsRequest {}).await?.into_inner())
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        Ok(self.grpc().statistics(StatisticsRequest {}).await?.into_inner().nodes)
    }
}
