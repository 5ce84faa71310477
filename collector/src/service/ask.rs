//! A running collector answers queries without gRPC: its memory knows the stores, and the service knows
//! sessions and counters.

use dta_proto::control::{
    AlertsRequest, AlertsResponse, EntriesRequest, EpochsRequest, EpochsResponse, FlowsRequest,
    FlowsResponse, ListSessionsResponse, NodeStatistics, PlacementResponse, ReadMemoryRequest,
    ReadMemoryResponse, StoreInfo, TailRequest,
};
use dta_rpc::{Ask, ClientError, QueryAnswers, Question, Series, Span, TailMessages};

use super::CollectorService;

#[tonic::async_trait]
impl Ask for CollectorService {
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        let mut infos = self.memory.fetch_stores().await?;
        // A collector that does not know its share still has its memory.
        let here =
            self.local_placement(&self.sessions.sharing_claims()).map(|here| here.stores).unwrap_or_default();
        for (info, here) in infos.iter_mut().zip(here) {
            (info.buckets, info.lists) = (here.buckets, here.lists);
            (info.elsewhere, info.written) = (here.elsewhere, here.written);
        }
        Ok(infos)
    }

    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        Ok(self.local_placement(&self.sessions.sharing_claims())?)
    }

    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        // Taken before the answer, so that a change in between shows in the next one.
        let shared = self.sessions.sharing_claims();
        let placement = self.placement_version(&shared);
        self.check_placement(&shared, &question)?;
        Ok(QueryAnswers { placement, ..self.memory.query_keys(question).await? })
    }

    async fn query_keys_in_span(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        let shared = self.sessions.sharing_claims();
        let placement = self.placement_version(&shared);
        match self.cluster {
            Some(_) => self.check_counters(&question)?,
            None => self.check_placement(&shared, &question)?,
        }
        let mut series = self.memory.query_keys_in_span(question, span).await?;
        series.epochs.iter_mut().for_each(|answers| answers.placement = placement);
        Ok(series)
    }

    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        self.memory.fetch_epochs(request).await
    }

    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError> {
        self.check_list(&request.store, request.list)?;
        self.memory.tail_list(request).await
    }

    async fn stream_entries(&self, request: EntriesRequest) -> Result<TailMessages, ClientError> {
        self.check_list(&request.store, request.list)?;
        self.memory.stream_entries(request).await
    }

    async fn fetch_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        self.memory.fetch_flows(request).await
    }

    async fn fetch_alerts(&self, request: AlertsRequest) -> Result<AlertsResponse, ClientError> {
        Ok(self.alerts.answer(request))
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.memory.read_memory(request).await
    }

    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        Ok(self.run_blocking(Self::list_sessions).await?)
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        Ok(self.all_counters().await?.nodes)
    }
}
