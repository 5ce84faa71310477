//! A server's address, and how to connect to it.

use std::time::Duration;

use crate::{ClientError, ClientTls, ServerKind, channel};

/// A server's address, and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Host and port, such as `127.0.0.1:40050`; `http://` or `https://` may stand in front.
    pub address: String,
    /// TLS, if the server has it.
    pub tls: Option<ClientTls>,
    /// Timeout of one call; `None` = unlimited. An answer that is a stream must begin in this time.
    pub call: Option<Duration>,
}

impl ClientOptions {
    /// A server, with TLS if there are files. Calls are unlimited.
    pub fn new(address: impl ToString, tls: Option<ClientTls>) -> Self {
        Self { address: address.to_string(), tls, call: None }
    }

    /// A server without TLS. Calls are unlimited.
    pub fn without_tls(address: impl ToString) -> Self {
        Self::new(address, None)
    }

    /// Checks the address, and that it has TLS if there are files. Makes no connection and reads no file.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn check_address(&self, server: ServerKind) -> Result<(), ClientError> {
        channel::parse_endpoint(server, self).map(drop)
    }
}
