//! A client of a collector: `dta.v1.Collector`.

use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{
    CounterAnswer, EndSessionRequest, KeyWriteAnswer, ListSessionsRequest, ListSessionsResponse,
    ListStoresRequest, MAX_KEYS, NodeStatistics, OpenSessionRequest, PathAnswer, Policy, QueryCounterRequest,
    QueryKeyWriteRequest, QueryPathRequest, QuerySketchRequest, ReadMemoryRequest, ReadMemoryResponse,
    RenewSessionRequest, Session, SessionInfo, SketchAnswer, StatisticsRequest, StoreInfo, TailRequest,
    TailResponse,
};
use dta_proto::key::Key;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::{ClientError, ClientOptions, MAX_ANSWER, Server, channel};

/// A connected client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    inner: CollectorClient<Channel>,
}

impl Client {
    /// Connects.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::over(channel::connect(Server::Collector, options).await?))
    }

    /// A client that connects when it is first used, and again after the collector was away.
    pub fn connect_lazy(options: &ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::over(channel::connect_lazy(Server::Collector, options)?))
    }

    fn over(channel: Channel) -> Self {
        Self { inner: CollectorClient::new(channel).max_decoding_message_size(MAX_ANSWER) }
    }

    /// The generated client: every call of `dta.v1.Collector`.
    pub fn raw(&mut self) -> &mut CollectorClient<Channel> {
        &mut self.inner
    }

    /// Stores, with their load.
    pub async fn stores(&mut self) -> Result<Vec<StoreInfo>, ClientError> {
        Ok(self.inner.list_stores(ListStoresRequest {}).await?.into_inner().stores)
    }

    /// Sessions, with their queue pairs.
    pub async fn sessions(&mut self) -> Result<Vec<SessionInfo>, ClientError> {
        Ok(self.inner.list_sessions(ListSessionsRequest {}).await?.into_inner().sessions)
    }

    /// All that [`Client::sessions`] gives, with the collector's NIC and its endpoint.
    pub async fn sessions_and_nic(&mut self) -> Result<ListSessionsResponse, ClientError> {
        Ok(self.inner.list_sessions(ListSessionsRequest {}).await?.into_inner())
    }

    /// Opens or resumes a translator's session.
    pub async fn open_session(&mut self, request: OpenSessionRequest) -> Result<Session, ClientError> {
        Ok(self.inner.open_session(request).await?.into_inner())
    }

    /// What [`Client::open_session`] would give; nothing changes in the collector.
    pub async fn preview_session(&mut self, request: OpenSessionRequest) -> Result<Session, ClientError> {
        Ok(self.inner.preview_session(request).await?.into_inner())
    }

    /// Renews a translator's session, and hands in counters of at most [`dta_proto::control::MAX_NODES`] nodes.
    pub async fn renew_session(&mut self, request: RenewSessionRequest) -> Result<Session, ClientError> {
        Ok(self.inner.renew_session(request).await?.into_inner())
    }

    /// Ends a session as its translator does, with its last counters.
    pub async fn give_up_session(&mut self, request: EndSessionRequest) -> Result<(), ClientError> {
        self.inner.end_session(request).await?;
        Ok(())
    }

    /// Ends a session, as an operator does.
    pub async fn end_session(&mut self, name: &str) -> Result<(), ClientError> {
        let request = EndSessionRequest { name: name.to_owned(), ..EndSessionRequest::default() };
        self.inner.end_session(request).await?;
        Ok(())
    }

    /// Counters of every node that the collector knows of.
    pub async fn statistics(&mut self) -> Result<Vec<NodeStatistics>, ClientError> {
        Ok(self.inner.statistics(StatisticsRequest {}).await?.into_inner().nodes)
    }

    /// Values of keys, in the order of the keys; any number of them. An empty store name stands for the only key-write store.
    /// `at_least` is for [`Policy::AtLeast`].
    pub async fn key_write(
        &mut self,
        store: &str,
        keys: &[Key],
        policy: Policy,
        at_least: u32,
    ) -> Result<Vec<KeyWriteAnswer>, ClientError> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            let (store, keys) = (store.to_owned(), bytes(keys));
            let request = QueryKeyWriteRequest { store, keys, policy: policy.into(), at_least };
            answers.extend(self.inner.query_key_write(request).await?.into_inner().answers);
        }
        Ok(answers)
    }

    /// Paths of keys, like [`Client::key_write`].
    pub async fn path(&mut self, store: &str, keys: &[Key]) -> Result<Vec<PathAnswer>, ClientError> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            let request = QueryPathRequest { store: store.to_owned(), keys: bytes(keys) };
            answers.extend(self.inner.query_path(request).await?.into_inner().answers);
        }
        Ok(answers)
    }

    /// Counters of keys, like [`Client::key_write`].
    pub async fn counter(&mut self, store: &str, keys: &[Key]) -> Result<Vec<CounterAnswer>, ClientError> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            let request = QueryCounterRequest { store: store.to_owned(), keys: bytes(keys) };
            answers.extend(self.inner.query_counter(request).await?.into_inner().answers);
        }
        Ok(answers)
    }

    /// Estimates of keys in one epoch, like [`Client::key_write`].
    pub async fn sketch(
        &mut self,
        store: &str,
        keys: &[Key],
        epoch: u32,
    ) -> Result<Vec<SketchAnswer>, ClientError> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            let request = QuerySketchRequest { store: store.to_owned(), keys: bytes(keys), epoch };
            answers.extend(self.inner.query_sketch(request).await?.into_inner().answers);
        }
        Ok(answers)
    }

    /// Follows a list.
    pub async fn tail(&mut self, request: TailRequest) -> Result<Streaming<TailResponse>, ClientError> {
        Ok(self.inner.tail(request).await?.into_inner())
    }

    /// Raw bytes of a store, at most [`dta_proto::control::MAX_READ`].
    pub async fn read_memory(
        &mut self,
        store: &str,
        offset: u64,
        length: u32,
    ) -> Result<ReadMemoryResponse, ClientError> {
        let request = ReadMemoryRequest { store: store.to_owned(), offset, length };
        Ok(self.inner.read_memory(request).await?.into_inner())
    }
}

fn bytes(keys: &[Key]) -> Vec<Vec<u8>> {
    keys.iter().map(|k| k.0.to_vec()).collect()
}
