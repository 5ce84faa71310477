//! OTLP over HTTP, in protobuf.

use std::marker::PhantomData;

use prost::Message;

use super::signal::{self, Carried, Request};
use crate::ExportError;
use crate::config::Otlp;
use crate::http::Http;
use crate::receiver::{RecordReceiver, WriteOutcome};

pub(super) struct OtlpHttpServer<R> {
    http: Http,
    url: String,
    signal: PhantomData<fn(R)>,
}

/// The body of a failed request (`google.rpc.Status`).
#[derive(Clone, PartialEq, Message)]
struct OtlpStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

impl<R: Request> OtlpHttpServer<R> {
    /// Reads certificates; makes no connection. `secret` is a header's name and value.
    pub(super) fn new(config: &Otlp, secret: Option<(String, String)>) -> Result<Self, ExportError> {
        let url = format!("{}{}", config.url.trim_end_matches('/'), R::PATH);
        Ok(Self { http: Http::new(config.ca.as_deref(), secret)?, url, signal: PhantomData })
    }

    /// The outcome of a request; the error says why all of it is refused.
    fn send(&self, request: &R, carried: Carried) -> Result<WriteOutcome, String> {
        let headers = [("Content-Type", "application/x-protobuf")];
        let answer = match self.http.post_body(&self.url, &headers, &request.encode_to_vec()) {
            Ok(answer) => answer,
            Err(reason) => return Ok(WriteOutcome::retry_later(reason)),
        };
        match answer.status {
            // A body that is not OTLP's says nothing.
            200..=299 => Ok(signal::success_outcome::<R>(
                R::Response::decode(&answer.body[..]).unwrap_or_default(),
                carried,
                &self.http.sent,
            )),
            // Retryable by the specification, or after a change of configuration on either side.
            429 | 502..=504 | 300..=399 | 401 | 403..=405 | 407 | 408 => {
                Ok(answer.retry_later("an OTLP receiver over HTTP (port 4318)"))
            }
            status => {
                let status_of = OtlpStatus::decode(&answer.body[..]).ok();
                let words = status_of.map(|status| status.message).filter(|words| !words.is_empty());
                Err(format!("it answers {status} ({})", words.unwrap_or_else(|| answer.error_message())))
            }
        }
    }
}

impl<R: Request> RecordReceiver for OtlpHttpServer<R> {
    fn write_record(&self, record: &[u8], points: u64) -> WriteOutcome {
        signal::write_record(record, points, |request: R, carried| self.send(&request, carried))
    }
}
