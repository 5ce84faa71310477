//! A running collector answers queries without gRPC: its memory knows the stores, and the service its sessions and
//! counters.

use dta_rpc::{Answers, Ask, ClientError, Following, Question, Series, Span};
use dta_proto::control::{
    EntriesRequest, EpochsRequest, EpochsResponse, ListSessionsResponse, NodeStatistics, PlacementResponse,
    ReadMemoryRequest, ReadMemoryResponse, StoreInfo, TailRequest,
};

use super::Service;

#[tonic::async_trait]
impl Ask for Service {
    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        let mut infos = self.memory.stores().await?;
        // One that cannot tell what is here has its memory all the same.
        let here = self.here(&self.sessions.shared()).map(|here| here.stores).unwrap_or_default();
        for (info, here) in infos.iter_mut().zip(here) {
            (info.buckets, info.lists) = (here.buckets, here.lists);
            (info.elsewhere, info.written) = (here.elsewhere, here.written);
        }
        Ok(infos)
    }

    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        Ok(self.here(&self.sessions.shared())?)
    }

    async fn ask(&self, question: Question) -> Result<Answers, ClientError> {
        // Before the answer: a change in between shows in the next one.
        let shared = self.sessions.shared();
        let placement = self.version(&shared);
        self.check(&shared, &question)?;
        Ok(Answers { placement, ..self.memory.ask(question).await? })
    }

    async fn series(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        let shared = self.sessions.shared();
        let placement = self.version(&shared);
        match self.cluster {
            Some(_) => self.check_counters(&question)?,
            None => self.check(&shared, &question)?,
        }
        let mut series = self.memory.series(question, span).await?;
        series.epochs.iter_mut().for_each(|answers| answers.placement = placement);
        Ok(series)
    }

    async fn epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        self.memory.epochs(request).await
    }

    async fn tail(&self, request: TailRequest) -> Result<Following, ClientError> {
        self.check_list(&request.store, request.list)?;
        self.memory.tail(request).await
    }

    async fn entries(&self, request: EntriesRequest) -> Result<Following, ClientError> {
        self.check_list(&request.store, request.list)?;
        self.memory.entries(request).await
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
