//! Connects, with a timeout.

use std::time::{Duration, SystemTime};

use hyper_util::client::legacy::connect::HttpConnector;
use tonic::transport::{Channel, Endpoint, Error};

use crate::transport::tls::{self, ClientTls, TlsError};

/// Timeout of connecting, including the TLS handshake.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection that is silent for this long while calls wait for answers is pinged, and given up after [`ALIVE`].
const ASK: Duration = Duration::from_secs(10);
const ALIVE: Duration = Duration::from_secs(5);

/// The prefix of a Unix socket's address, which only its owner may reach.
pub const UNIX: &str = "unix:";

/// Configures an endpoint as all DTA clients need it, with TLS if there are files.
pub fn configure_endpoint(endpoint: Endpoint, files: Option<&ClientTls>) -> Result<Endpoint, TlsError> {
    let endpoint = endpoint.connect_timeout(CONNECT).http2_keep_alive_interval(ASK).keep_alive_timeout(ALIVE);
    let Some(files) = files else {
        return Ok(endpoint);
    };
    let config = tls::load_client_tls(files, SystemTime::now())?;
    endpoint
        .tls_config(config)
        .map_err(|e| tls::unusable_file("TLS certificate", &files.cert, crate::transport::failure_reason(&e)))
}

/// Connects at once.
pub async fn connect(endpoint: &Endpoint) -> Result<Channel, Error> {
    endpoint.connect_with_connector(connector()).await
}

/// A channel that connects on first use, and again after the connection broke.
pub fn connect_lazy(endpoint: &Endpoint) -> Channel {
    endpoint.connect_with_connector_lazy(connector())
}

/// tonic's own connector limits only the TCP connect; around a given connector, the limit includes TLS.
fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector
}
