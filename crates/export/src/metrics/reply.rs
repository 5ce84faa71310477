//! Responses of the port.

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, Response, StatusCode};

use crate::metrics::page::PageFormat;

/// The body of a response. Cheap to clone.
pub(crate) type Body = Full<Bytes>;

const PAGE: &str = "/metrics";
const TARGETS: &str = "/targets";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) enum ScrapeRequest {
    Page(PageFormat),
    Targets,
    /// Anything else; the response to it.
    Other(Response<Body>),
}

pub(crate) fn parse_request<B>(request: &Request<B>) -> ScrapeRequest {
    match (request.uri().path(), request.method()) {
        (PAGE, &Method::GET | &Method::HEAD) => ScrapeRequest::Page(requested_format(request)),
        (TARGETS, &Method::GET | &Method::HEAD) => ScrapeRequest::Targets,
        (PAGE | TARGETS, _) => {
            let mut answer = text_response(StatusCode::METHOD_NOT_ALLOWED, "read metrics with GET\n");
            answer.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
            ScrapeRequest::Other(answer)
        }
        _ => ScrapeRequest::Other(text_response(StatusCode::NOT_FOUND, "metrics are at /metrics\n")),
    }
}

fn requested_format<B>(request: &Request<B>) -> PageFormat {
    let mut accepts = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    match accepts.any(|value| value.contains("application/openmetrics-text")) {
        true => PageFormat::OpenMetrics,
        false => PageFormat::Text,
    }
}

pub(crate) fn page_response(format: PageFormat, body: Body) -> Response<Body> {
    let kind = match format {
        PageFormat::OpenMetrics => OPEN_METRICS,
        PageFormat::Text => PLAIN,
    };
    with_type(StatusCode::OK, kind, body)
}

pub(crate) fn targets_response(json: String) -> Response<Body> {
    with_type(StatusCode::OK, "application/json", Body::from(json))
}

/// The response if there is no list of targets.
pub(crate) fn no_targets() -> Response<Body> {
    text_response(StatusCode::NOT_FOUND, "only a collector in a cluster has targets\n")
}

/// The response when there is no page.
pub(crate) fn unavailable(why: &str) -> Response<Body> {
    text_response(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

fn text_response(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", Full::new(text.into()))
}

fn with_type(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    answer
}
