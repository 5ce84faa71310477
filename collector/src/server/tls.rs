//! TLS of the gRPC service: this collector's certificate, and the authorities whose clients it takes.

use std::path::Path;

use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::ServerError;
use crate::config::Tls;

/// Reads the files. A client without a certificate of `client_ca` is refused in the handshake.
pub(super) fn load(tls: &Tls) -> Result<ServerTlsConfig, ServerError> {
    let identity = Identity::from_pem(read("TLS certificate", &tls.cert)?, read("TLS key", &tls.key)?);
    let client_ca = Certificate::from_pem(read("client CA", &tls.client_ca)?);
    Ok(ServerTlsConfig::new().identity(identity).client_ca_root(client_ca))
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, ServerError> {
    std::fs::read(path).map_err(|source| ServerError::TlsFile { what, path: path.to_owned(), source })
}
