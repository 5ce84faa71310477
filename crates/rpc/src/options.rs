//! A server's address, and how to connect to it.

use std::time::Duration;

use crate::{ClientError, ClientTls, ServerKind, channel};

/// A server's address, and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Host and port, such as `127.0.0.1:40050`, optionally after `http://` or `https://`.
    pub address: String,
    /// TLS, if the server uses it.
    pub tls: Option<ClientTls>,
    /// Timeout of one call; `None` = unlimited. A stream must begin within this time.
    pub call: Option<Duration>,
}

impl ClientOptions {
    /// Options for a server, with TLS if there are files. Calls are unlimited.
    pub fn new(address: impl ToString, tls: Option<ClientTls>) -> Self {
        Self { address: address.to_string(), tls, call: None }
    }

    /// Options for a server without TLS. Calls are unlimited.
    pub fn without_tls(address: impl ToString) -> Self {
        Self::new(address, None)
    }

    /// Checks the address, and that its scheme fits the TLS files. Makes no connection and reads no file.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn check_address(&self, server: ServerKind) -> Result<(), ClientError> {
        channel::parse_endpoint(server, self).map(drop)
    }
}
