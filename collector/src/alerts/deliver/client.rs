//! HTTP to one receiver of alerts: makes one attempt at a time and interprets the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_files::http::{SentSecrets, client_config, read_secret};
use dta_proto::backoff::Backoff;
use tokio::task::spawn_blocking;
use ureq::Agent;

use super::AlertReceiver;

const CONNECT: Duration = Duration::from_secs(5);
const CALL: Duration = Duration::from_secs(30);
/// How many bytes of an answer are read: its beginning is logged.
const ANSWER: u64 = 300;
/// Delay before a retry.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// How often the log repeats that a receiver is still down.
const REMIND: Duration = Duration::from_secs(300);

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostOutcome {
    Accepted,
    /// For good: the same body would be refused again.
    Rejected,
    Later,
}

/// A receiver with its secret, which `Debug` does not show.
#[derive(Debug)]
pub(super) struct ReceiverClient {
    agent: Agent,
    pub(super) url: String,
    authorization: Option<SentHeader>,
    sent: SentSecrets,
}

struct SentHeader(String);

impl std::fmt::Debug for SentHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SentHeader")
    }
}

impl ReceiverClient {
    /// Reads the secret and the certificates; does not connect.
    pub(super) fn new(receiver: &AlertReceiver) -> Result<ReceiverClient, String> {
        let ca = receiver.ca.as_deref();
        let agent = client_config(ca, concat!("dta-collector/", env!("CARGO_PKG_VERSION")))
            .map_err(|reason| format!("cannot read {}: {reason}", ca.unwrap_or("".as_ref()).display()))?
            .timeout_global(Some(CALL))
            .timeout_connect(Some(CONNECT))
            .build()
            .into();
        let secret = receiver.secret_file.as_deref().map(|file| read_secret(Some(file), ""));
        let secret = secret.transpose()?.flatten();
        let sent = SentSecrets::new(secret.as_deref());
        let authorization = secret.map(|secret| SentHeader(format!("Bearer {secret}")));
        Ok(ReceiverClient { agent, url: receiver.url.clone(), authorization, sent })
    }

    /// Only scheme and host: the path of a webhook is often its secret.
    pub(super) fn public_url(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        format!("{scheme}://{}", host.rsplit('@').next().unwrap_or_default())
    }

    /// Sends JSON to a path of the receiver. The text says why it must be sent again or was rejected.
    fn post_json(&self, path: &str, body: &[u8]) -> (PostOutcome, String) {
        let mut request = self.agent.post(format!("{}{path}", self.url.trim_end_matches('/')));
        request = request.header("Content-Type", "application/json");
        if let Some(SentHeader(authorization)) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut answer = match request.send(body) {
            Ok(answer) => answer,
            Err(error) => {
                let reason = error.to_string().replace(&self.url, &self.public_url());
                return (PostOutcome::Later, self.sent.strike_out_text(reason));
            }
        };
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(ANSWER).lossy_utf8(true).read_to_string();
        let text = self.sent.strike_out_text(text.unwrap_or_default());
        let reason = format!("it answers {status} ({})", text.replace(char::is_control, " ").trim());
        match status {
            200..=299 => (PostOutcome::Accepted, reason),
            400 | 413 | 422 => (PostOutcome::Rejected, reason),
            _ => (PostOutcome::Later, reason),
        }
    }
}

/// Attempts to reach one receiver: knows when the next one is due, and logs outages.
#[derive(Debug)]
pub(super) struct Attempts {
    pub(super) client: Arc<ReceiverClient>,
    path: &'static str,
    again: Backoff,
    logged_at: Option<Instant>,
}

impl Attempts {
    pub(super) fn new(client: Arc<ReceiverClient>, path: &'static str) -> Attempts {
        Attempts { client, path, again: AGAIN, logged_at: None }
    }

    /// Posts once. After [`PostOutcome::Later`], wait for [`Attempts::next_pause`].
    pub(super) async fn post_json(&mut self, body: Vec<u8>) -> PostOutcome {
        let (client, path) = (self.client.clone(), self.path);
        let posted = spawn_blocking(move || client.post_json(path, &body)).await;
        let (outcome, reason) =
            posted.unwrap_or_else(|_| (PostOutcome::Later, "its answer cannot be read".to_owned()));
        let receiver = self.client.public_url();
        match outcome {
            PostOutcome::Accepted if self.logged_at.take().is_some() => {
                tracing::info!(receiver, "the alert receiver is accepting alerts again");
            }
            PostOutcome::Rejected => {
                tracing::warn!(
                    receiver,
                    reason,
                    "the alert receiver rejected an alert permanently: dropping it"
                )
            }
            PostOutcome::Later if self.logged_at.is_none_or(|at| at.elapsed() > REMIND) => {
                self.logged_at = Some(Instant::now());
                tracing::warn!(receiver, reason, "the alert receiver is not accepting alerts; retrying");
            }
            PostOutcome::Accepted | PostOutcome::Later => {}
        }
        if outcome != PostOutcome::Later {
            self.again = AGAIN;
        }
        outcome
    }

    pub(super) fn next_pause(&mut self) -> Duration {
        self.again.next_pause()
    }
}
