//! A running collector as one that can be asked, without a gRPC call: its memory knows the stores, and the
//! service its sessions and counters.

use dta_client::{Ask, ClientError, Following};
use dta_proto::control::{
    ListSessionsResponse, NodeStatistics, QueryCounterRequest, QueryCounterResponse, QueryKeyWriteRequest,
    QueryKeyWriteResponse, QueryPathRequest, QueryPathResponse, QuerySketchRequest, QuerySketchResponse,
    ReadMemoryRequest, ReadMemoryResponse, StoreInfo, TailRequest,
};

use super::Service;

#[tonic::async_trait]
impl Ask for Service {
    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        Ok(self.say_what_is_here(self.memory.stores().await?))
    }

    async fn query_key_write(
        &self,
        request: QueryKeyWriteRequest,
    ) -> Result<QueryKeyWriteResponse, ClientError> {
        self.check_keys(&request.store, "key-write", &request.keys)?;
        self.memory.query_key_write(request).await
    }

    async fn query_path(&self, request: QueryPathRequest) -> Result<QueryPathResponse, ClientError> {
        self.check_keys(&request.store, "postcarding", &request.keys)?;
        self.memory.query_path(request).await
    }

    async fn query_counter(&self, request: QueryCounterRequest) -> Result<QueryCounterResponse, ClientError> {
        self.check_keys(&request.store, "key-increment", &request.keys)?;
        self.memory.query_counter(request).await
    }

    async fn query_sketch(&self, request: QuerySketchRequest) -> Result<QuerySketchResponse, ClientError> {
        self.check_sketch(&request.store)?;
        self.memory.query_sketch(request).await
    }

    async fn tail(&self, request: TailRequest) -> Result<Following, ClientError> {
        self.check_list(&request.store, request.list)?;
        self.memory.tail(request).await
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.memory.read_memory(request).await
    }

    async fn sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        Ok(self.blocking(Self::list_sessions).await?)
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        Ok(self.all_counters().await?.nodes)
    }
}
