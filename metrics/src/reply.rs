//! Answers of the port.

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, Response, StatusCode};

/// What an answer holds. Cheap to clone.
pub(crate) type Body = Full<Bytes>;

const PATH: &str = "/metrics";
/// The format of pages, and what to call them for a scraper that knows its forerunner alone, which reads them too.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The answer to what is not asked for metrics.
pub(crate) fn refusal<B>(request: &Request<B>) -> Option<Response<Body>> {
    match (request.uri().path(), request.method()) {
        (PATH, &Method::GET | &Method::HEAD) => None,
        (PATH, _) => {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET\n");
            answer.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
            Some(answer)
        }
        _ => Some(text(StatusCode::NOT_FOUND, "metrics are at /metrics\n")),
    }
}

/// A page.
pub(crate) fn page<B>(request: &Request<B>, body: Body) -> Response<Body> {
    let accepts = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let open_metrics = accepts.into_iter().any(|value| value.contains("application/openmetrics-text"));
    with_type(StatusCode::OK, if open_metrics { OPEN_METRICS } else { PLAIN }, body)
}

/// The answer when there is no page.
pub(crate) fn unavailable(why: &str) -> Response<Body> {
    text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", Full::new(text.into()))
}

fn with_type(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    answer
}
