//! A client of a collector's gRPC service, for programs and the command line.
//!
//! Thin: it connects (with TLS where asked), splits long queries, and turns failures into errors that say what to do. Every other
//! call is [`Client::raw`]'s.

use std::path::PathBuf;

use dta_grpc::dial;
use dta_grpc::tls::{ClientFiles, TlsError};
use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{
    CounterAnswer, EndSessionRequest, KeyWriteAnswer, ListSessionsRequest, ListStoresRequest, NodeStatistics,
    PathAnswer, Policy, QueryCounterRequest, QueryKeyWriteRequest, QueryPathRequest, QuerySketchRequest,
    ReadMemoryRequest, ReadMemoryResponse, SessionInfo, SketchAnswer, StatisticsRequest, StoreInfo,
    TailRequest, TailResponse,
};
use dta_proto::key::Key;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::service::MAX_KEYS;

/// The longest answer that is taken: the counters of all nodes, 65,536 of them at most, are the longest there is.
const MAX_ANSWER: usize = 64 << 20;

/// Where a collector is, and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Host and port, such as `127.0.0.1:40050`; `http://` or `https://` may stand in front.
    pub address: String,
    /// TLS, if the collector has it.
    pub tls: Option<ClientTls>,
}

impl ClientOptions {
    /// A collector without TLS.
    pub fn plain(address: impl ToString) -> Self {
        Self { address: address.to_string(), tls: None }
    }
}

/// TLS files of a client, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Authority of the collector's certificate.
    pub ca: PathBuf,
    /// This client's certificate chain, and
    pub cert: PathBuf,
    /// its private key.
    pub key: PathBuf,
    /// Name in the collector's certificate, if it is not the host of the address.
    pub domain: Option<String>,
}

/// Why a collector did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error("{address:?} is not an address of a collector ({reason}); write it as 127.0.0.1:40050")]
    Address {
        /// The address.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// A TLS file of this client.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Somebody answers, but not as TLS wants it, or wants TLS.
    #[error("cannot speak with the collector at {address}: {reason}")]
    Security {
        /// The address.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Nobody answers.
    #[error("no collector answers at {address}: {reason}; is it running (`dta-collector serve`)?")]
    Unreachable {
        /// The address.
        address: String,
        /// What the transport says.
        reason: String,
    },
    /// The collector refused, or the connection broke.
    // Not a source: its own words would only repeat these with a code in front.
    #[error("{}", words(.0))]
    Status(Status),
}

/// What a status says. Where the transport failed in the middle of a call, its reason: TLS 1.3 tells a client only then that it is refused.
fn words(status: &Status) -> String {
    let reason = dta_grpc::status_reason(status);
    match std::error::Error::source(status).and_then(dta_grpc::known) {
        Some(known) => format!("cannot speak with the collector: {known}"),
        None => reason,
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// A connected client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    inner: CollectorClient<Channel>,
}

impl Client {
    /// Connects.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        let address = options.address.clone();
        let channel = dial::connect(&endpoint(options)?).await.map_err(|e| match dta_grpc::known(&e) {
            Some(reason) => ClientError::Security { address, reason },
            None => ClientError::Unreachable { address, reason: dta_grpc::reason(&e) },
        })?;
        Ok(Self::over(channel))
    }

    /// A client that connects when it is first used, and again after the collector was away.
    pub fn connect_lazy(options: &ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::over(dial::connect_lazy(&endpoint(options)?)))
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

    /// Raw bytes of a store, at most 64 KiB.
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

fn endpoint(options: &ClientOptions) -> Result<Endpoint, ClientError> {
    let bad = |reason: String| ClientError::Address { address: options.address.clone(), reason };
    // Other programs of DTA write the address as a URL.
    let host = match options.address.split_once("://") {
        Some(("http", host)) if options.tls.is_none() => host,
        Some(("https", host)) if options.tls.is_some() => host,
        Some(("https", _)) => {
            return Err(bad("https needs the files of TLS: --ca, --client-cert and --client-key".into()));
        }
        Some(_) => return Err(bad("neither http nor https, or http with the files of TLS".into())),
        None => options.address.as_str(),
    };
    if !host.contains(':') {
        return Err(bad("no port".into()));
    }
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let endpoint =
        Endpoint::from_shared(format!("{scheme}://{host}")).map_err(|e| bad(dta_grpc::reason(&e)))?;
    let files = options.tls.as_ref().map(|tls| ClientFiles {
        ca: &tls.ca,
        cert: &tls.cert,
        key: &tls.key,
        domain: tls.domain.as_deref(),
    });
    Ok(dial::endpoint(endpoint, files.as_ref())?)
}
