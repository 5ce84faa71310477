//! A client of a collector's gRPC service, for programs and the command line.
//!
//! Thin: it connects (with TLS where asked), splits long queries, and turns failures into errors that say what to do. Every other
//! call is [`Client::raw`]'s.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{
    CounterAnswer, EndSessionRequest, KeyWriteAnswer, ListSessionsRequest, ListStoresRequest, NodeStatistics,
    PathAnswer, Policy, QueryCounterRequest, QueryKeyWriteRequest, QueryPathRequest, QuerySketchRequest,
    ReadMemoryRequest, ReadMemoryResponse, SessionInfo, SketchAnswer, StatisticsRequest, StoreInfo,
    TailRequest, TailResponse,
};
use dta_proto::key::Key;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Status, Streaming};

use crate::service::MAX_KEYS;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

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
    /// A TLS file.
    #[error("cannot read {}: {source}", path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Nobody answers.
    #[error(
        "no collector answers at {address}: {reason}; is it running (`dta-collector serve`), and does it want TLS?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What the transport says.
        reason: String,
    },
    /// The collector refused, or the connection broke.
    // Not a source: its own words would only repeat these with a code in front.
    #[error("{}", .0.message())]
    Status(Status),
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
        let channel = channel(options)?.connect().await.map_err(|e| ClientError::Unreachable {
            address: options.address.clone(),
            reason: innermost(&e),
        })?;
        Ok(Self::over(channel))
    }

    /// A client that connects when it is first used, and again after the collector was away.
    pub fn connect_lazy(options: &ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::over(channel(options)?.connect_lazy()))
    }

    fn over(channel: Channel) -> Self {
        Self { inner: CollectorClient::new(channel).max_decoding_message_size(64 << 20) }
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

fn channel(options: &ClientOptions) -> Result<Endpoint, ClientError> {
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
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(|e| bad(innermost(&e)))?
        .connect_timeout(CONNECT);
    let Some(tls) = &options.tls else {
        return Ok(endpoint);
    };
    let mut config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(&tls.ca)?))
        .identity(Identity::from_pem(read(&tls.cert)?, read(&tls.key)?));
    if let Some(domain) = &tls.domain {
        config = config.domain_name(domain.clone());
    }
    endpoint.tls_config(config).map_err(|e| ClientError::Unreachable {
        address: options.address.clone(),
        reason: format!("the TLS files cannot be used: {}", innermost(&e)),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(path).map_err(|source| ClientError::TlsFile { path: path.to_owned(), source })
}

/// The reason behind the reasons: "transport error" alone helps nobody.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
