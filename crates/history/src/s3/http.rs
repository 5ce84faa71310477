//! HTTP for `object_store`, through the client that the exporters use. Requests block, so each has its own thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dta_files::http::SentSecrets;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use ureq::Agent;

use super::{S3Error, Variables};

const CONNECT: Duration = Duration::from_secs(5);
/// How long a step of a request may make no progress.
const STEP: Duration = Duration::from_secs(30);
/// Most bytes in an answer: checkpoints may be this large, other answers are small.
const ANSWER: u64 = 256 << 20;

#[derive(Clone, Debug)]
pub(super) struct Http {
    agent: Agent,
    status: Arc<AtomicU16>,
}

impl Http {
    /// With the certificate authorities of `AWS_CA_BUNDLE`, if it is set.
    pub(super) fn new(variables: &Variables) -> Result<Http, S3Error> {
        let ca = variables.get("AWS_CA_BUNDLE").map(Path::new);
        let agent = dta_files::http::client_config(ca, concat!("dta-history/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| S3Error::file_error(ca.unwrap_or(Path::new("")), error))?
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(STEP))
            .timeout_per_write(Some(STEP))
            .build();
        Ok(Http { agent: agent.into(), status: Arc::default() })
    }

    /// The status of the last request's answer; 0 if there was none.
    pub(super) fn last_status(&self) -> u16 {
        self.status.load(Ordering::Relaxed)
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        self.status.store(0, Ordering::Relaxed);
        let agent = self.agent.clone();
        // A server that rejects a signature echoes the request, including the token of temporary credentials.
        let secret = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let sent = SentSecrets::new(["authorization", "x-amz-security-token"].into_iter().filter_map(secret));
        let call = move || {
            // ureq sends a body with any request that is given one, even an empty body.
            let answer = if matches!(parts.method.as_str(), "PUT" | "POST") {
                agent.run(ureq::http::Request::from_parts(parts, &body[..]))
            } else {
                agent.run(ureq::http::Request::from_parts(parts, ()))
            };
            let (parts, mut body) = answer?.into_parts();
            let mut body = body.with_config().limit(ANSWER).read_to_vec()?;
            if !parts.status.is_success() {
                sent.strike_out(&mut body);
            }
            Ok((parts, body))
        };
        let answer = tokio::task::spawn_blocking(call).await;
        let (parts, body) =
            answer.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?.map_err(to_http_error)?;
        self.status.store(parts.status.as_u16(), Ordering::Relaxed);
        Ok(HttpResponse::from_parts(parts, Bytes::from(body).into()))
    }
}

fn to_http_error(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(ureq::Timeout::Connect)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            HttpErrorKind::Connect
        }
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use object_store::client::HttpRequestBody;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_repeats_the_request_repeats_no_secret() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/b/k", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut reader = BufReader::new(listener.accept().unwrap().0);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                reader.read_line(&mut head).unwrap();
            }
            let length = head.len();
            let answer = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {length}\r\n\r\n{head}");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            let _ = reader.read(&mut [0]);
        });
        let request = ureq::http::Request::get(url)
            .header("authorization", "AWS4-HMAC-SHA256 Signature=abcd")
            .header("x-amz-security-token", "very-secret");
        let http = Http::new(&Variables::new()).unwrap();
        let answer = http.call(request.body(HttpRequestBody::empty()).unwrap()).await.unwrap();
        let said = answer.into_body().collect().await.unwrap().to_bytes();
        let said = std::str::from_utf8(&said).unwrap();
        assert!(said.contains("x-amz-security-token: ***********\r\n"), "{said}");
        assert!(!said.contains("Signature"), "{said}");
    }
}
