//! A client of a collector: `dta.v1.Collector`. What stores are asked is [`Ask`]; here are sessions, and
//! queries of any number of keys.

use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{
    CounterAnswer, EndSessionRequest, KeyWriteAnswer, MAX_KEYS, OpenSessionRequest, PathAnswer, Policy,
    QueryCounterRequest, QueryKeyWriteRequest, QueryPathRequest, QuerySketchRequest, RenewSessionRequest,
    Session, SketchAnswer,
};
use dta_proto::key::Key;
use tonic::transport::Channel;

use crate::{Ask, ClientError, ClientOptions, MAX_ANSWER, Server, channel};

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

    /// The generated client: a handle of the same connection.
    pub(crate) fn grpc(&self) -> CollectorClient<Channel> {
        self.inner.clone()
    }

    /// Opens or resumes a translator's session.
    pub async fn open_session(&mut self, request: OpenSessionRequest) -> Result<Session, ClientError> {
        Ok(self.inner.open_session(request).await?.into_inner())
    }

    /// What [`Client::open_session`] would give; nothing changes in the collector.
    pub async fn preview_session(&mut self, request: OpenSessionRequest) -> Result<Session, ClientError> {
        Ok(self.inner.preview_session(request).await?.into_inner())
    }

    /// Renews a translator's session, and hands in counters of at most [`dta_proto::control::MAX_NODES`]
    /// nodes.
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

    /// Values of keys, in the order of the keys; any number of them. An empty store name stands for the only
    /// key-write store. `at_least` is for [`Policy::AtLeast`].
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
            answers.extend(self.query_key_write(request).await?.answers);
        }
        Ok(answers)
    }

    /// Paths of keys, like [`Client::key_write`].
    pub async fn path(&mut self, store: &str, keys: &[Key]) -> Result<Vec<PathAnswer>, ClientError> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            let request = QueryPathRequest { store: store.to_owned(), keys: bytes(keys) };
            answers.extend(self.query_path(request).await?.answers);
        }
        Ok(answers)
    }

    /// Counters of keys, like [`Client::key_write`].
    pub async fn counter(&mut self, store: &str, keys: &[Key]) -> Result<Vec<CounterAnswer>, ClientError> {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            let request = QueryCounterRequest { store: store.to_owned(), keys: bytes(keys) };
            answers.extend(self.query_counter(request).await?.answers);
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
            answers.extend(self.query_sketch(request).await?.answers);
        }
        Ok(answers)
    }
}

fn bytes(keys: &[Key]) -> Vec<Vec<u8>> {
    keys.iter().map(|k| k.0.to_vec()).collect()
}
