//! Connections to collectors and translators.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::translator_client::TranslatorClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::config::Tls;

/// Longest time for one call.
const CALL: Duration = Duration::from_secs(10);

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
    /// A certificate or key cannot be read.
    #[error("cannot read {path}: {source}")]
    Certificate {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The certificates do not do.
    #[error("TLS to {address}: {source}")]
    Tls {
        /// Where to.
        address: String,
        /// What is wrong.
        source: tonic::transport::Error,
    },
}

/// A client of a collector. The connection is made with the first call, and again after it broke.
pub fn collector(address: &str, tls: Option<&Tls>) -> Result<CollectorClient<Channel>, ClientError> {
    Ok(CollectorClient::new(channel(address, tls)?).max_decoding_message_size(64 << 20))
}

/// A client of a running translator.
pub fn translator(address: &str) -> Result<TranslatorClient<Channel>, ClientError> {
    Ok(TranslatorClient::new(channel(address, None)?).max_decoding_message_size(64 << 20))
}

fn channel(address: &str, tls: Option<&Tls>) -> Result<Channel, ClientError> {
    let address = &*with_scheme(address, tls.is_some());
    let endpoint = Endpoint::from_shared(address.to_string())
        .ok()
        .filter(|e| e.uri().scheme().is_some() && e.uri().host().is_some())
        .ok_or_else(|| ClientError::Address { address: address.into() })?
        .connect_timeout(Duration::from_secs(3))
        .timeout(CALL);
    let endpoint = match tls {
        Some(tls) if address.starts_with("https://") => {
            let config = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(read(&tls.ca)?))
                .identity(Identity::from_pem(read(&tls.cert)?, read(&tls.key)?));
            endpoint
                .tls_config(config)
                .map_err(|source| ClientError::Tls { address: address.into(), source })?
        }
        _ => endpoint,
    };
    Ok(endpoint.connect_lazy())
}

/// HOST:PORT stands for `http://HOST:PORT`, or with certificates for `https://HOST:PORT`, as `dta-collector` has it.
fn with_scheme(address: &str, tls: bool) -> Cow<'_, str> {
    match (address.contains("://"), tls) {
        (true, _) => address.into(),
        (false, true) => format!("https://{address}").into(),
        (false, false) => format!("http://{address}").into(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(path)
        .map_err(|source| ClientError::Certificate { path: path.display().to_string(), source })
}
