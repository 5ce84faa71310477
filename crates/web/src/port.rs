//! The page's port: HTTP/1.1, bounded connections, read-only.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dta_export::metrics::{Address, ConnectionPlace, ConnectionPlaces, PortError};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, Method, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::api::{Download, WebAnswer, WebServer};
use crate::counters::count;
use crate::mcp;
use crate::page;
use crate::problem::Problem;
use crate::stall::StallLimit;
use crate::{Access, DEFAULT_ADDRESS, WebOptions};

/// Most connections at a time; beyond this, waiting ones are closed in favour of others. A browser uses six.
const CONNECTIONS: usize = 128;
/// How long TLS or the head of a request may take; a connection may also rest this long between requests.
const HEAD: Duration = Duration::from_secs(10);
/// Longest head of a request, in bytes.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);
/// The header that names collectors that do not answer, so that clients know that sums lack them.
pub(crate) const UNREACHABLE: &str = "dta-unreachable";
/// The path for agents.
const AGENTS: &str = "/mcp";

/// Allows only the page's own files, from here, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type WebBody = BoxBody<Bytes, std::convert::Infallible>;

/// A port that is open but not served yet.
#[derive(Debug)]
pub struct WebPort {
    address: SocketAddr,
    listener: TcpListener,
}

/// A page that is served until this is dropped.
pub struct ServedWeb {
    /// Its address, with the chosen port.
    pub address: SocketAddr,
    server: Arc<WebServer>,
    tls: watch::Sender<Option<Arc<ServerConfig>>>,
    task: JoinHandle<()>,
}

impl ServedWeb {
    /// The page's address, in the form a browser takes.
    pub fn page_url(&self) -> String {
        let scheme = if self.tls.borrow().is_some() { "https" } else { "http" };
        format!("{scheme}://{}/", self.address)
    }

    /// Sets TLS for connections from here on.
    pub fn set_tls(&self, tls: Option<Arc<ServerConfig>>) {
        self.tls.send_replace(tls);
    }

    pub fn has_access(&self, access: &Access) -> bool {
        *self.server.access.read().unwrap_or_else(PoisonError::into_inner) == *access
    }

    /// Sets who may ask from here on, also over existing connections. Live streams end: whoever may still ask opens another.
    pub fn set_access(&self, access: Access) {
        *self.server.access.write().unwrap_or_else(PoisonError::into_inner) = access;
        self.server.feeds.end_streams();
    }
}

impl Drop for ServedWeb {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WebPort {
    /// Opens the port; needs a tokio runtime. `None` if no page is wanted, or another program has the default port.
    pub async fn open(address: &Address) -> Result<Option<WebPort>, PortError> {
        let opened = address.open_port(DEFAULT_ADDRESS, "the page", "web").await?;
        Ok(opened.map(|(address, listener)| WebPort { address, listener }))
    }

    pub fn listen_address(&self) -> SocketAddr {
        self.address
    }

    pub fn serve(self, options: WebOptions, tls: Option<Arc<ServerConfig>>) -> ServedWeb {
        let WebPort { address, listener } = self;
        let (tls, current_tls) = watch::channel(tls);
        let server = Arc::new(WebServer::new(options));
        let places = ConnectionPlaces::new(CONNECTIONS);
        let (counted, served) = (places.clone(), server.clone());
        let serve = move |stream, place| {
            let server = &served;
            server.counters.displaced.store(counted.displaced(), std::sync::atomic::Ordering::Relaxed);
            serve_socket(server.clone(), stream, current_tls.borrow().clone(), place)
        };
        let task = tokio::spawn(places.accept_connections(listener, "page", serve));
        ServedWeb { address, server, tls, task }
    }
}

async fn serve_socket(
    server: Arc<WebServer>,
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    place: ConnectionPlace,
) {
    // Answers are small, and each should be sent at once.
    let _ = stream.set_nodelay(true);
    let stream = StallLimit::new(stream, server.counters.clone());
    let Some(tls) = tls else { return serve_connection(server, stream, &place).await };
    match tokio::time::timeout(HEAD, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(server, stream, &place).await,
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the page failed in TLS"),
        Err(_) => {}
    }
}

async fn serve_connection(
    server: Arc<WebServer>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    place: &ConnectionPlace,
) {
    let counters = server.counters.clone();
    let answer = service_fn(|request: Request<Incoming>| {
        place.mark_requested();
        let server = server.clone();
        async move { Ok::<_, std::convert::Infallible>(respond(&server, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    // Errors are normal: browsers leave whenever they like.
    if let Err(error) = connection.await {
        if error.is_parse() {
            count(&counters.malformed);
        }
        tracing::debug!(%error, "a connection to the page ended early");
    }
}

async fn respond(server: &Arc<WebServer>, request: Request<Incoming>) -> Response<WebBody> {
    count(&server.counters.requests);
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let answered = match server.check_access(&head.headers) {
        Err(refused) => {
            count(&server.counters.refused);
            Err(refused)
        }
        Ok(()) if path == AGENTS && head.method == Method::POST => {
            let answered = tokio::time::timeout(ANSWER, answer_agent(server, body));
            let late =
                || Problem::new(StatusCode::GATEWAY_TIMEOUT, "the answer takes too long: ask for less");
            match answered.await.unwrap_or_else(|_| Err(late())) {
                Ok(answer) => return with_safe_headers(answer),
                Err(problem) => Err(problem),
            }
        }
        Ok(()) if path == AGENTS => Err(Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "agents POST their messages, and there is no stream",
        )),
        Ok(()) if !matches!(head.method, Method::GET | Method::HEAD) => {
            Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "everything here is read with GET"))
        }
        Ok(()) => match page::find_file(path) {
            Some(file) => return with_safe_headers(file_response(file)),
            None => {
                let query = head.uri.query().unwrap_or_default();
                let late =
                    || Problem::new(StatusCode::GATEWAY_TIMEOUT, "the answer takes too long: ask for less");
                tokio::time::timeout(ANSWER, server.answer(path, query)).await.unwrap_or_else(|_| Err(late()))
            }
        },
    };
    // A stream that began while access was being changed was not ended by that change.
    let answered = answered.and_then(|answer| server.check_access(&head.headers).map(|()| answer));
    let mut answer = match answered {
        Ok(WebAnswer::Json(json)) => response(StatusCode::OK, "application/json", Full::from(json).boxed()),
        Ok(WebAnswer::Download(Download { format, content })) => {
            let mut answer = response(StatusCode::OK, format.content_type, Full::from(content).boxed());
            let name = format!("attachment; filename=\"flows.{}\"", format.name);
            if let Ok(name) = HeaderValue::from_str(&name) {
                answer.headers_mut().insert(CONTENT_DISPOSITION, name);
            }
            answer
        }
        Ok(WebAnswer::Events(stream)) => response(StatusCode::OK, "text/event-stream", stream.boxed()),
        Err(problem) => problem_response(&problem),
    };
    if let Ok(missing) = HeaderValue::from_str(&server.spread.unreachable_addresses().join(","))
        && !missing.is_empty()
    {
        answer.headers_mut().insert(UNREACHABLE, missing);
    }
    with_safe_headers(answer)
}

async fn answer_agent(server: &Arc<WebServer>, body: Incoming) -> Result<Response<WebBody>, Problem> {
    let message = Limited::new(body, mcp::LONGEST_MESSAGE).collect().await.map_err(|_| {
        let detail =
            format!("the message has more than {} bytes, or did not come whole", mcp::LONGEST_MESSAGE);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    })?;
    Ok(match mcp::answer_message(server, &message.to_bytes()).await {
        Some(answer) => response(StatusCode::OK, "application/json", Full::from(answer.to_string()).boxed()),
        None => response(StatusCode::ACCEPTED, "application/json", Full::default().boxed()),
    })
}

fn file_response(file: &page::PageFile) -> Response<WebBody> {
    response(StatusCode::OK, file.content_type, Full::from(file.content).boxed())
}

fn problem_response(problem: &Problem) -> Response<WebBody> {
    let body = Full::from(problem.to_json()).boxed();
    let mut answer = response(problem.status, "application/problem+json", body);
    let (name, value) = match problem.status {
        StatusCode::METHOD_NOT_ALLOWED => (ALLOW, "GET, HEAD"),
        StatusCode::UNAUTHORIZED => (WWW_AUTHENTICATE, "Basic realm=\"Direct Telemetry Access\""),
        StatusCode::SERVICE_UNAVAILABLE => (RETRY_AFTER, "2"),
        _ => return answer,
    };
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}

fn response(status: StatusCode, content_type: &'static str, body: WebBody) -> Response<WebBody> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

fn with_safe_headers(mut answer: Response<WebBody>) -> Response<WebBody> {
    let same_origin = "same-origin";
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), same_origin),
        (HeaderName::from_static("cross-origin-opener-policy"), same_origin),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
