//! The only place where channels are created: which addresses are valid, when TLS is used, and time limits.

use std::future::{Ready, ready};
use std::io;
use std::task::{Context, Poll};

use crate::transport::dial;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

use crate::{ClientError, ClientOptions, ServerKind};

/// Connects at once.
pub(crate) async fn connect(server: ServerKind, options: &ClientOptions) -> Result<Channel, ClientError> {
    let address = options.address.clone();
    dial::connect(&build_endpoint(server, options)?).await.map_err(|e| {
        match crate::transport::known_tls_reason(&e) {
            Some(reason) => ClientError::Security { server, address, reason },
            None => {
                ClientError::Unreachable { server, address, reason: crate::transport::failure_reason(&e) }
            }
        }
    })
}

/// Connects on the first call, and again after the connection broke.
pub(crate) fn connect_lazy(server: ServerKind, options: &ClientOptions) -> Result<Channel, ClientError> {
    Ok(dial::connect_lazy(&build_endpoint(server, options)?))
}

/// A channel on which every call fails, with this reason.
pub(crate) fn unusable(reason: String) -> Channel {
    Endpoint::from_static("http://unusable.invalid").connect_with_connector_lazy(NoConnection(reason))
}

/// A connector that always fails, with this reason.
struct NoConnection(String);

impl Service<Uri> for NoConnection {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(Err(io::Error::other(self.0.clone())))
    }
}

/// A channel to a server at `unix:PATH`, without host or TLS, and without waiting: the socket either exists or not.
pub(crate) fn unix_lazy(server: ServerKind, options: &ClientOptions) -> Result<Channel, ClientError> {
    let endpoint = Endpoint::from_shared(options.address.clone())
        .map_err(|e| address_error(server, options, crate::transport::failure_reason(&e)))?;
    Ok(with_call_timeout(endpoint, options).connect_lazy())
}

/// An endpoint with its timeouts and TLS; reads the TLS files.
fn build_endpoint(server: ServerKind, options: &ClientOptions) -> Result<Endpoint, ClientError> {
    Ok(dial::configure_endpoint(
        with_call_timeout(parse_endpoint(server, options)?, options),
        options.tls.as_ref(),
    )?)
}

/// The parsed address; reads no file.
pub(crate) fn parse_endpoint(server: ServerKind, options: &ClientOptions) -> Result<Endpoint, ClientError> {
    let bad = |reason: &str| address_error(server, options, reason.to_owned());
    let host = match options.address.split_once("://") {
        Some(("http", host)) if options.tls.is_none() => host,
        Some(("https", host)) if options.tls.is_some() => host,
        Some(("http", _)) => {
            return Err(bad("http, but TLS files are given: write https, or give no files"));
        }
        Some(("https", _)) => return Err(bad(server.tls_files())),
        Some(_) => return Err(bad("neither http nor https")),
        None => options.address.as_str(),
    };
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(|e| bad(&crate::transport::failure_reason(&e)))?;
    let uri = endpoint.uri();
    if uri.host().is_none_or(str::is_empty) {
        return Err(bad("no host"));
    }
    if uri.port_u16().is_none() {
        return Err(bad("no port"));
    }
    Ok(endpoint)
}

fn with_call_timeout(endpoint: Endpoint, options: &ClientOptions) -> Endpoint {
    match options.call {
        Some(time) => endpoint.timeout(time),
        None => endpoint,
    }
}

fn address_error(server: ServerKind, options: &ClientOptions, reason: String) -> ClientError {
    ClientError::Address { server, address: options.address.clone(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientTls;

    fn refusal(server: ServerKind, options: &ClientOptions) -> String {
        build_endpoint(server, options).expect_err(&options.address).to_string()
    }

    #[test]
    fn an_address_has_host_and_port_and_a_known_scheme() {
        for server in [ServerKind::Collector, ServerKind::Translator] {
            for good in ["127.0.0.1:40050", "http://127.0.0.1:40050", "collector.example:1", "[::1]:40050"] {
                let made = build_endpoint(server, &ClientOptions::without_tls(good)).expect(good);
                assert_eq!(made.uri().scheme_str(), Some("http"), "{good}");
                assert_eq!(made.uri().authority().unwrap().as_str(), good.trim_start_matches("http://"));
            }
            for (bad, reason) in [
                ("localhost", "no port"),
                ("http://localhost", "no port"),
                ("[::1]", "no port"),
                ("127.0.0.1:", "no port"),
                ("ftp://127.0.0.1:1", "neither http nor https"),
                ("https://127.0.0.1:1", "TLS"),
                ("", "address"),
                (":40050", "address"),
                ("a b:1", "address"),
                ("127.0.0.1:70000", "address"),
            ] {
                let error = refusal(server, &ClientOptions::without_tls(bad));
                assert!(error.contains(reason), "{error}");
                assert!(
                    error.contains(&format!("{bad:?}")) && error.contains(&server.to_string()),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn files_of_tls_are_never_left_aside() {
        let tls = ClientTls { ca: "ca".into(), cert: "none.crt".into(), key: "key".into(), domain: None };
        let of = |address: &str| ClientOptions::new(address, Some(tls.clone()));
        let refusal_of = |address: &str| refusal(ServerKind::Collector, &of(address));
        assert!(refusal_of("http://127.0.0.1:1").contains("TLS files are given"));
        // The files are read, which fails here because there are none.
        for address in ["https://127.0.0.1:1", "127.0.0.1:1"] {
            let error = build_endpoint(ServerKind::Collector, &of(address)).unwrap_err();
            assert!(matches!(error, ClientError::Tls(_)), "{error}");
        }
    }
}
