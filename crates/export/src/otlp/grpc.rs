//! OTLP over gRPC.

use std::cell::OnceCell;
use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;

use dta_files::http::SentSecrets;
use dta_rpc::transport::dial;
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};

use super::signal::{self, Carried, Request};
use crate::ExportError;
use crate::config::Otlp;
use crate::http::{CALL, cannot_read, secrets_of_header};
use crate::receiver::{RecordReceiver, WriteOutcome};

pub(super) struct OtlpGrpcServer<R> {
    endpoint: Endpoint,
    secret: Option<(AsciiMetadataKey, AsciiMetadataValue)>,
    /// Secrets that no message may repeat.
    sent: SentSecrets,
    /// Runs on the sending thread, from its first record on.
    connection: OnceCell<(Runtime, Channel)>,
    signal: PhantomData<fn(R)>,
}

impl<R: Request> OtlpGrpcServer<R> {
    /// Reads certificates; makes no connection. `secret` is a header's name and value.
    pub(super) fn new(config: &Otlp, secret: Option<(String, String)>) -> Result<Self, ExportError> {
        let bad = |error: &dyn Display| ExportError(format!("[export.otlp] {}: {error}", config.url));
        let endpoint = Endpoint::from_shared(config.url.clone())
            .and_then(|endpoint| endpoint.user_agent(concat!("dta-export/", env!("CARGO_PKG_VERSION"))))
            .map_err(|error| bad(&error))?;
        let mut endpoint =
            dial::configure_endpoint(endpoint, None).map_err(|error| bad(&error))?.timeout(CALL);
        if config.url.starts_with("https://") {
            let tls = match &config.ca {
                Some(path) => {
                    let pem = std::fs::read(path).map_err(|error| cannot_read(path, &error.to_string()))?;
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
                }
                None => ClientTlsConfig::new().with_webpki_roots(),
            };
            endpoint =
                endpoint.tls_config(tls).map_err(|error| bad(&dta_rpc::transport::failure_reason(&error)))?;
        }
        let sent = secret.as_ref().map(|(_, value)| secrets_of_header(value)).unwrap_or_default();
        let secret = match secret {
            Some((name, value)) => {
                let name: AsciiMetadataKey =
                    name.to_ascii_lowercase().parse().map_err(|error| bad(&error))?;
                let mut value: AsciiMetadataValue = value
                    .parse()
                    .map_err(|_| ExportError("the token of [export.otlp] is not ASCII".into()))?;
                value.set_sensitive(true);
                Some((name, value))
            }
            None => None,
        };
        Ok(Self { endpoint, secret, sent, connection: OnceCell::new(), signal: PhantomData })
    }

    /// The outcome of a request; the error says why all of it is refused.
    fn send(&self, message: R, carried: Carried) -> Result<WriteOutcome, String> {
        let (runtime, channel) = match self.connection.get() {
            Some(connection) => connection,
            None => match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let inside = runtime.enter();
                    let channel = dial::connect_lazy(&self.endpoint);
                    drop(inside);
                    self.connection.get_or_init(|| (runtime, channel))
                }
                Err(error) => return Ok(WriteOutcome::retry_later(error.to_string())),
            },
        };
        let mut request = tonic::Request::new(message);
        if let Some((name, value)) = &self.secret {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        match runtime.block_on(R::call(channel.clone(), request)) {
            Ok(response) => Ok(signal::success_outcome::<R>(response, carried, &self.sent)),
            Err(status) => write_outcome(&status, &self.sent),
        }
    }
}

impl<R: Request> RecordReceiver for OtlpGrpcServer<R> {
    fn write_record(&self, record: &[u8], points: u64) -> WriteOutcome {
        signal::write_record(record, points, |request: R, carried| self.send(request, carried))
    }
}

/// The outcome of a failed call; the error says why all points are refused.
fn write_outcome(status: &Status, sent: &SentSecrets) -> Result<WriteOutcome, String> {
    let after = retry_after(status.details());
    let said = sent.strike_out_text(dta_rpc::transport::status_reason(status));
    let code = status.code();
    // Only failures on this side have a source: a broken connection, or something else listening there.
    let is_ours = std::error::Error::source(status).is_some();
    let hint = match code {
        _ if is_ours => "; is this the URL of an OTLP receiver over gRPC (port 4317)?",
        Code::Unauthenticated | Code::PermissionDenied => "; is this token valid, and may it write there?",
        Code::Unimplemented => "; is this the URL of an OTLP receiver over gRPC (port 4317)?",
        _ => "",
    };
    let reason = format!("{code:?} ({said}){hint}");
    match code {
        _ if is_ours => Ok(WriteOutcome::Later { reason, after }),
        // tonic's servers refuse a message that is too large in this way.
        Code::OutOfRange if said.contains("too large") => Err(reason),
        // Retryable by the specification, or after a change of configuration on either side.
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated
        | Code::PermissionDenied
        | Code::Unimplemented => Ok(WriteOutcome::Later { reason, after }),
        Code::ResourceExhausted if after.is_some() => Ok(WriteOutcome::Later { reason, after }),
        _ => Err(reason),
    }
}

/// How long the receiver asks to be left alone: `google.rpc.RetryInfo` in the details of a status.
fn retry_after(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&info.value[..]).ok()?.retry_delay?;
    Some(Duration::new(delay.seconds.try_into().ok()?, delay.nanos.try_into().ok()?))
}

/// The part of `google.rpc.Status` that matters here.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, Copy, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exhausted_is_sent_again_only_if_the_receiver_says_when() {
        let info = RetryInfo { retry_delay: Some(Delay { seconds: 7, nanos: 5 }) };
        let any =
            Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".into(), value: info.encode_to_vec() };
        let details = RpcStatus { details: vec![any] }.encode_to_vec();
        let sent = secrets_of_header("Bearer very-secret");
        let outcome = |code, details: &[u8]| {
            write_outcome(&Status::with_details(code, "no", details.to_vec().into()), &sent)
        };
        assert!(matches!(
            outcome(Code::ResourceExhausted, &details),
            Ok(WriteOutcome::Later { after: Some(after), .. }) if after == Duration::new(7, 5)
        ));
        // Such as for a message that is too large.
        assert!(outcome(Code::ResourceExhausted, &[]).is_err());
        assert!(outcome(Code::InvalidArgument, &details).is_err());
        let too_large = Status::out_of_range("decoded message length too large");
        assert!(write_outcome(&too_large, &sent).is_err());
        assert!(write_outcome(&Status::out_of_range("no"), &sent).is_ok());
        let echo = write_outcome(&Status::unauthenticated("no: authorization: Bearer very-secret"), &sent);
        assert!(matches!(echo, Ok(WriteOutcome::Later { reason, .. }) if !reason.contains("very-secret")));
        assert!(matches!(outcome(Code::Unavailable, b"?"), Ok(WriteOutcome::Later { after: None, .. })));
    }
}
