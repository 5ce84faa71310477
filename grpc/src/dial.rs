//! Connecting, within a time.

use std::time::{Duration, SystemTime};

use hyper_util::client::legacy::connect::HttpConnector;
use tonic::transport::{Channel, Endpoint, Error};

use crate::tls::{self, ClientFiles, TlsError};

/// How long connecting may take, with the handshake of TLS.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection that says nothing for this long while calls wait for answers is asked whether it
/// lives, and given up after [`ALIVE`].
const ASK: Duration = Duration::from_secs(10);
const ALIVE: Duration = Duration::from_secs(5);

/// Where a server of this host listens that only a file's owner may reach.
pub const UNIX: &str = "unix:";

/// Sets an endpoint up as all clients of DTA have it, with TLS if there are files for it.
pub fn endpoint(endpoint: Endpoint, files: Option<&ClientFiles<'_>>) -> Result<Endpoint, TlsError> {
    let endpoint = endpoint.connect_timeout(CONNECT).http2_keep_alive_interval(ASK).keep_alive_timeout(ALIVE);
    let Some(files) = files else {
        return Ok(endpoint);
    };
    let config = tls::client(files, SystemTime::now())?;
    endpoint.tls_config(config).map_err(|e| TlsError::Unusable {
        what: "TLS certificate",
        path: files.cert.to_owned(),
        reason: crate::reason(&e),
    })
}

/// Connects now.
pub async fn connect(endpoint: &Endpoint) -> Result<Channel, Error> {
    endpoint.connect_with_connector(connector()).await
}

/// A channel that connects when it is first used, and again after the connection broke.
pub fn connect_lazy(endpoint: &Endpoint) -> Channel {
    endpoint.connect_with_connector_lazy(connector())
}

/// tonic's own connector limits the time of TCP's connecting alone; around one that is given to it,
/// the limit includes TLS.
fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector
}
