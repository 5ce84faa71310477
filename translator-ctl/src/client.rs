//! Connections to collectors and translators.

use std::borrow::Cow;
use std::time::Duration;

use dta_grpc::dial::{self, UNIX};
use dta_grpc::tls::{ClientFiles, TlsError};
use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::translator_client::TranslatorClient;
use tonic::transport::{Channel, Endpoint};

use crate::config::Tls;

/// Longest time for one call.
const CALL: Duration = Duration::from_secs(10);

/// The longest answer that is taken: a session with thousands of stores.
const MAX_ANSWER: usize = 64 << 20;

/// Why there is no connection to speak of.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error(
        "{address:?} is no address to connect to: write HOST:PORT, http://HOST:PORT or https://HOST:PORT"
    )]
    Address {
        /// As given.
        address: String,
    },
    /// The certificates do not do.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A client of a collector. The connection is made with the first call, and again after it broke.
pub fn collector(address: &str, tls: Option<&Tls>) -> Result<CollectorClient<Channel>, ClientError> {
    Ok(CollectorClient::new(channel(address, tls)?).max_decoding_message_size(MAX_ANSWER))
}

/// A client of a running translator, at HOST:PORT or `unix:PATH`.
pub fn translator(address: &str) -> Result<TranslatorClient<Channel>, ClientError> {
    let channel = if address.starts_with(UNIX) {
        let endpoint = Endpoint::from_shared(address.to_owned())
            .map_err(|_| ClientError::Address { address: address.into() })?;
        // Nothing to wait for: the socket is there or not.
        endpoint.timeout(CALL).connect_lazy()
    } else {
        channel(address, None)?
    };
    Ok(TranslatorClient::new(channel).max_decoding_message_size(MAX_ANSWER))
}

fn channel(address: &str, tls: Option<&Tls>) -> Result<Channel, ClientError> {
    let address = &*with_scheme(address, tls.is_some());
    let endpoint = Endpoint::from_shared(address.to_string())
        .ok()
        .filter(|e| e.uri().scheme().is_some() && e.uri().host().is_some())
        .ok_or_else(|| ClientError::Address { address: address.into() })?
        .timeout(CALL);
    let files = tls.filter(|_| address.starts_with("https://")).map(|tls| ClientFiles {
        ca: &tls.ca,
        cert: &tls.cert,
        key: &tls.key,
        domain: tls.domain.as_deref(),
    });
    Ok(dial::connect_lazy(&dial::endpoint(endpoint, files.as_ref())?))
}

/// HOST:PORT stands for `http://HOST:PORT`, or with certificates for `https://HOST:PORT`, as `dta-collector` has it.
fn with_scheme(address: &str, tls: bool) -> Cow<'_, str> {
    match (address.contains("://"), tls) {
        (true, _) => address.into(),
        (false, true) => format!("https://{address}").into(),
        (false, false) => format!("http://{address}").into(),
    }
}
