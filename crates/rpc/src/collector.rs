//! A client of a collector: `dta.v1.Collector`. Queries are in [`Ask`](crate::Ask), sessions here.

use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{EndSessionRequest, OpenSessionRequest, RenewSessionRequest, Session};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::transport::is_farewell;
use crate::{ClientError, ClientOptions, MAX_ANSWER, ServerKind, channel};

/// Attempts of a call whose connection the collector closed gracefully, as it does with existing connections on
/// reload.
const TRIES: usize = 3;

/// A connected client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RemoteCollector {
    inner: CollectorClient<Channel>,
}

impl RemoteCollector {
    /// Connects to a collector.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::from_channel(channel::connect(ServerKind::Collector, options).await?))
    }

    /// A client that connects on first use, and again after the collector was down.
    pub fn connect_lazy(options: &ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::from_channel(channel::connect_lazy(ServerKind::Collector, options)?))
    }

    /// A client of a collector that cannot be reached: each of its calls fails with this reason.
    pub fn unreachable(reason: &ClientError) -> Self {
        Self::from_channel(channel::unusable(reason.to_string()))
    }

    fn from_channel(channel: Channel) -> Self {
        Self { inner: CollectorClient::new(channel).max_decoding_message_size(MAX_ANSWER) }
    }

    /// Makes a call, and repeats it if the connection ended before the collector processed it.
    pub(crate) async fn call<Q, T, F>(
        &self,
        request: Q,
        call: impl Fn(CollectorClient<Channel>, Q) -> F,
    ) -> Result<T, ClientError>
    where
        Q: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        for _ in 1..TRIES {
            match call(self.inner.clone(), request.clone()).await {
                Err(status) if is_farewell(&status) => {}
                answer => return Ok(answer?.into_inner()),
            }
        }
        Ok(call(self.inner.clone(), request).await?.into_inner())
    }

    /// Opens or resumes a translator's session.
    pub async fn open_session(&mut self, request: OpenSessionRequest) -> Result<Session, ClientError> {
        self.call(request, |mut to, request| async move { to.open_session(request).await }).await
    }

    /// What [`RemoteCollector::open_session`] would return; changes nothing in the collector.
    pub async fn preview_session(&mut self, request: OpenSessionRequest) -> Result<Session, ClientError> {
        self.call(request, |mut to, request| async move { to.preview_session(request).await }).await
    }

    /// Renews a translator's session, and reports the counters of at most [`dta_proto::control::MAX_NODES`]
    /// nodes.
    pub async fn renew_session(&mut self, request: RenewSessionRequest) -> Result<Session, ClientError> {
        self.call(request, |mut to, request| async move { to.renew_session(request).await }).await
    }

    /// Ends a session as its translator does, with its last counters.
    pub async fn give_up_session(&mut self, request: EndSessionRequest) -> Result<(), ClientError> {
        self.call(request, |mut to, request| async move { to.end_session(request).await }).await?;
        Ok(())
    }

    /// Ends a session, as an operator does.
    pub async fn end_session(&mut self, name: &str) -> Result<(), ClientError> {
        let request = EndSessionRequest { name: name.to_owned(), ..EndSessionRequest::default() };
        self.give_up_session(request).await
    }
}
