//! Sends requests, in one of the versions.

use prost::Message;

use super::message::{MetricMetadata, Request2, TimeSeries, WriteRequest};
use crate::ExportError;
use crate::config::{RemoteWrite, RemoteWriteVersion};
use crate::http::{self, Http, ReceiverResponse};
use crate::receiver::{RecordReceiver, WriteOutcome, write_halving};

/// How many samples were written, in a 2.0 answer.
const SAMPLES_WRITTEN: &str = "X-Prometheus-Remote-Write-Samples-Written";

pub(super) struct RemoteWriteServer {
    http: Http,
    url: String,
    version: RemoteWriteVersion,
}

impl RemoteWriteServer {
    /// Reads secrets and certificates; makes no connection.
    pub(super) fn new(config: &RemoteWrite) -> Result<Self, ExportError> {
        let secret = match (&config.user, config.read_secret()?) {
            (Some(_), None) => return Err(RemoteWrite::missing_secret("`user` has a password")),
            (Some(user), Some(password)) => Some(http::basic_authorization(user, &password)),
            (None, secret) => secret.map(|token| http::authorization("Bearer", &token)),
        };
        let http = Http::new(config.ca.as_deref(), secret)?;
        Ok(Self { http, url: config.url.clone(), version: config.version })
    }

    /// The outcome of sending these series; the error says why all of them are refused.
    fn send(&self, series: &[TimeSeries], metadata: &[MetricMetadata]) -> Result<WriteOutcome, String> {
        let (body, kind, version) = match self.version {
            RemoteWriteVersion::One => {
                let request = WriteRequest { timeseries: series.to_vec(), metadata: metadata.to_vec() };
                (request.encode_to_vec(), "application/x-protobuf", "0.1.0")
            }
            RemoteWriteVersion::Two => (
                Request2::from_series(series, metadata).encode_to_vec(),
                "application/x-protobuf;proto=io.prometheus.write.v2.Request",
                "2.0.0",
            ),
        };
        let body = snap::raw::Encoder::new().compress_vec(&body).map_err(|error| error.to_string())?;
        let headers = [
            ("Content-Type", kind),
            ("Content-Encoding", "snappy"),
            ("X-Prometheus-Remote-Write-Version", version),
        ];
        match self.http.post_body(&self.url, &headers, &body) {
            Ok(answer) => self.write_outcome(&answer, series.len() as u64),
            Err(reason) => Ok(WriteOutcome::retry_later(reason)),
        }
    }

    fn write_outcome(&self, answer: &ReceiverResponse, samples: u64) -> Result<WriteOutcome, String> {
        let written = answer.header_value(SAMPLES_WRITTEN).and_then(|count| count.trim().parse::<u64>().ok());
        match (answer.status, self.version, written) {
            (200..=299, RemoteWriteVersion::One, _) => Ok(WriteOutcome::Done),
            (415, RemoteWriteVersion::Two, _) | (200..=299, RemoteWriteVersion::Two, None) => {
                // It took this for a 1.0 request without series.
                Ok(WriteOutcome::retry_later(
                    "it does not speak remote write 2.0; set `version = \"1.0\"` in [export.remote_write]",
                ))
            }
            (200..=299, _, Some(written)) | (400..=428, _, Some(written @ 1..)) => {
                let rejected = samples.saturating_sub(written);
                let reason = answer.error_message();
                Ok(if rejected == 0 { WriteOutcome::Done } else { WriteOutcome::Rejected { points: rejected, reason } })
            }
            // Retryable by the specification, or after a change of configuration on either side.
            (429 | 500.. | 300..=399 | 401 | 403..=405 | 407 | 408, ..) => {
                Ok(answer.retry_later("a receiver of remote write, and does it take any (Prometheus: --web.enable-remote-write-receiver)"))
            }
            (status, ..) => Err(format!("it answers {status} ({})", answer.error_message())),
        }
    }
}

impl RecordReceiver for RemoteWriteServer {
    fn write_record(&self, record: &[u8], points: u64) -> WriteOutcome {
        let WriteRequest { timeseries, metadata } = match WriteRequest::decode(record) {
            Ok(request) => request,
            Err(error) => return WriteOutcome::Rejected { points, reason: error.to_string() },
        };
        write_halving(&timeseries, &|part| part.len() as u64, &mut |part| self.send(part, &metadata))
    }
}
