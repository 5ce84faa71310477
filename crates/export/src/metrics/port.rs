//! A daemon's metrics port: HTTP/1.1, `GET /metrics` (and `/targets`), one request per connection.
//!
//! Anyone who reaches the port may read it, so the default is loopback. Limits keep it to what a few scrapers need:
//! connections at a time, seconds per connection, and one page per second in each format, shared by all who ask
//! meanwhile.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::metrics::address::{Address, PortError};
use crate::metrics::connection_places::{ConnectionPlace, ConnectionPlaces};
use crate::metrics::page::{Labels, MetricKind, MetricsPage, PageFormat};
use crate::metrics::reply::{self, Body, ScrapeRequest};

/// Simultaneous connections: beyond this, waiting ones are closed for others.
const CONNECTIONS: usize = 16;
/// How long a connection may take in total.
const CONNECTION: Duration = Duration::from_secs(10);
/// Greatest age of a page that is given to another scraper.
const AGE: Duration = Duration::from_secs(1);

/// The first bytes from an HTTP/2 client (RFC 9113 section 3.4).
const HTTP2_BEGIN: &[u8; 14] = b"PRI * HTTP/2.0";
/// An empty SETTINGS frame, and GOAWAY with HTTP_1_1_REQUIRED (sections 6.5 and 6.8).
const HTTP2_REFUSAL: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";
/// Most reads of what such a client still sends.
const UNREAD_READS: usize = 16;

/// A port that is open but not served yet.
#[derive(Debug)]
pub struct MetricsPort {
    address: SocketAddr,
    listener: TcpListener,
}

/// A port that is served until this is dropped.
#[derive(Debug)]
pub struct Served {
    /// Its address, with the chosen port.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MetricsPort {
    /// Opens it; needs a tokio runtime. `own` is the address for [`Address::Auto`]. `None` if metrics are off.
    pub async fn open(address: &Address, own: SocketAddr) -> Result<Option<MetricsPort>, PortError> {
        let opened = address.open_port(own, "metrics", "metrics").await?;
        Ok(opened.map(|(address, listener)| {
            if !address.ip().is_loopback() {
                tracing::warn!(%address, "anyone who reaches this address can read all metrics");
            }
            MetricsPort { address, listener }
        }))
    }

    pub fn listen_address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the result of `page`, which is called at most once a second for each format; its error becomes the
    /// answer's text.
    pub fn serve_pages<P, F>(self, page: P) -> Served
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<MetricsPage, String>> + Send + 'static,
    {
        self.serve_with(page, None)
    }

    /// As [`MetricsPort::serve_pages`], and serves at `/targets` the result of `targets`, if any: what Prometheus
    /// should scrape, for its [HTTP service discovery](https://prometheus.io/docs/prometheus/latest/http_sd/).
    pub fn serve_with<P, F>(self, page: P, targets: Option<Targets>) -> Served
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<MetricsPage, String>> + Send + 'static,
    {
        let MetricsPort { address, listener } = self;
        let places = ConnectionPlaces::new(CONNECTIONS);
        let pages = Arc::new(Pages { page, targets, last: Default::default(), places: places.clone() });
        let serve = move |stream, place| {
            let pages = pages.clone();
            async move {
                let _ = tokio::time::timeout(CONNECTION, pages.serve_connection(stream, &place)).await;
            }
        };
        let task = tokio::spawn(places.accept_connections(listener, "metrics", serve));
        Served { address, task }
    }
}

/// Tells an HTTP/2 client that this port speaks HTTP/1.1, so that a gRPC client can say that its port is wrong.
async fn refuse_http2(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(HTTP2_REFUSAL).await?;
    stream.shutdown().await?;
    // Closing a connection with unread data resets it, and the reset overtakes what was written.
    let mut unread = [0; 1024];
    for _ in 0..UNREAD_READS {
        if stream.read(&mut unread).await? == 0 {
            break;
        }
    }
    Ok(())
}

/// A list of targets as JSON.
pub type Targets = Box<dyn Fn() -> String + Send + Sync>;

/// Builds pages, and caches the last one of each format.
struct Pages<P> {
    page: P,
    targets: Option<Targets>,
    last: [Mutex<Option<(Instant, Body)>>; PageFormat::ALL.len()],
    places: Arc<ConnectionPlaces>,
}

impl<P, F> Pages<P>
where
    P: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<MetricsPage, String>> + Send + 'static,
{
    async fn serve_connection(self: Arc<Self>, mut stream: TcpStream, place: &ConnectionPlace) {
        let mut begin = [0; HTTP2_BEGIN.len()];
        if stream.peek(&mut begin).await.is_ok_and(|read| read > 0) && begin == *HTTP2_BEGIN {
            place.mark_requested();
            let _ = refuse_http2(&mut stream).await;
            return;
        }
        let answer = service_fn(|request: Request<Incoming>| {
            place.mark_requested();
            let pages = self.clone();
            async move {
                let answer: Response<Body> = match (reply::parse_request(&request), &pages.targets) {
                    (ScrapeRequest::Page(format), _) => match pages.page_body(format).await {
                        Ok(body) => reply::page_response(format, body),
                        Err(why) => reply::unavailable(&why),
                    },
                    (ScrapeRequest::Targets, Some(targets)) => reply::targets_response(targets()),
                    (ScrapeRequest::Targets, None) => reply::no_targets(),
                    (ScrapeRequest::Other(answer), _) => answer,
                };
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(stream), answer);
        // A scraper that leaves early is no error of ours.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the metrics ended early");
        }
    }

    /// The current page, or a recent one. Callers wait while one is built.
    async fn page_body(&self, format: PageFormat) -> Result<Body, String> {
        let mut last = self.last[format as usize].lock().await;
        match &*last {
            Some((made, body)) if made.elapsed() < AGE => Ok(body.clone()),
            _ => {
                let mut page = (self.page)().await?;
                let help = "connections to this port that were closed for others, because too many had not asked or not read yet";
                page.add(
                    "dta_metrics_connections_displaced",
                    MetricKind::Counter,
                    help,
                    Labels::new(),
                    self.places.displaced(),
                );
                // Its text may take megabytes.
                let text = tokio::task::spawn_blocking(move || page.into_encoded(format))
                    .await
                    .map_err(|e| e.to_string())?;
                let body = Body::from(text);
                *last = Some((Instant::now(), body.clone()));
                Ok(body)
            }
        }
    }
}
