//! HTTP to a receiver: the client, its secret, and what answers mean.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use dta_files::http::SentSecrets;
use ureq::Agent;

use crate::ExportError;
use crate::receiver::WriteOutcome;

pub(crate) const CALL: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);
/// Most bytes read of a response.
const ANSWER: u64 = 16 << 10;

#[derive(Debug)]
pub(crate) struct ReceiverResponse {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    headers: ureq::http::HeaderMap,
}

impl ReceiverResponse {
    pub(crate) fn header_value(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// How long the receiver asks to be left alone, in seconds; a date is ignored.
    fn retry_after(&self) -> Option<Duration> {
        self.header_value("Retry-After")?.trim().parse().ok().map(Duration::from_secs)
    }

    /// The message, in one line of limited length: the text in its JSON, or else the whole body.
    pub(crate) fn error_message(&self) -> String {
        extract_message(&String::from_utf8_lossy(&self.body))
    }

    /// The outcome that makes this response a reason to send again. `what` names the receiver.
    pub(crate) fn retry_later(&self, what: &str) -> WriteOutcome {
        let hint = match self.status {
            401 | 403 => "; is this token or password valid, and may it write there?".to_owned(),
            404 => format!("; is this the URL of {what}?"),
            301 | 302 | 307 | 308 => "; it redirects: give the new URL".to_owned(),
            _ => String::new(),
        };
        let reason = format!("it answers {} ({}){hint}", self.status, self.error_message());
        WriteOutcome::Later { reason, after: self.retry_after() }
    }
}

/// A client of one receiver, with its secret. Its `Debug` shows no secret.
pub(crate) struct Http {
    agent: Agent,
    /// Name and value of the header with the secret.
    secret: Option<(String, String)>,
    /// Secrets that no message may repeat.
    pub(crate) sent: SentSecrets,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

impl Http {
    /// Reads the certificate authorities; makes no connection. `secret` is a header's name and value.
    pub(crate) fn new(ca: Option<&Path>, secret: Option<(String, String)>) -> Result<Self, ExportError> {
        let agent = dta_files::http::client_config(ca, concat!("dta-export/", env!("CARGO_PKG_VERSION")))
            .map_err(|reason| cannot_read(ca.unwrap_or(Path::new("")), &reason))?
            .timeout_global(Some(CALL))
            .timeout_connect(Some(CONNECT))
            .build()
            .into();
        let sent = secret.as_ref().map(|(_, value)| secrets_of_header(value)).unwrap_or_default();
        Ok(Self { agent, secret, sent })
    }

    /// The response, with the secret struck out if it is repeated, or why there is none.
    pub(crate) fn post_body(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<ReceiverResponse, String> {
        let mut request = self.agent.post(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some((name, value)) = &self.secret {
            request = request.header(name, value);
        }
        let (parts, mut body) = request.send(body).map_err(|error| error.to_string())?.into_parts();
        let mut body = body.with_config().limit(ANSWER).read_to_vec().unwrap_or_default();
        self.sent.strike_out(&mut body);
        Ok(ReceiverResponse { status: parts.status.as_u16(), body, headers: parts.headers })
    }
}

pub(crate) fn authorization(scheme: &str, secret: &str) -> (String, String) {
    ("Authorization".into(), format!("{scheme} {secret}"))
}

pub(crate) fn basic_authorization(user: &str, password: &str) -> (String, String) {
    authorization("Basic", &BASE64.encode(format!("{user}:{password}")))
}

/// The secret in the value of a header: the token after its scheme or, without a scheme, all of it; for `Basic`,
/// the password, too.
pub(crate) fn secrets_of_header(value: &str) -> SentSecrets {
    let (scheme, token) = value.split_once(' ').unwrap_or(("", value));
    let login = BASE64.decode(token).ok().filter(|_| scheme == "Basic");
    let login = login.and_then(|login| String::from_utf8(login).ok()).unwrap_or_default();
    let password = login.split_once(':').map_or("", |(_, password)| password);
    SentSecrets::new([token, &login, password])
}

/// A file with a secret or certificates cannot be used.
pub(crate) fn cannot_read(path: &Path, reason: &str) -> ExportError {
    ExportError(format!("cannot read {}: {reason}", path.display()))
}

fn extract_message(said: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(said).ok();
    let field = |name: &str| json.as_ref()?.get(name)?.as_str().map(str::to_owned);
    let text = field("error").or_else(|| field("message")).unwrap_or_else(|| said.to_owned());
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_answer_is_one_line() {
        assert_eq!(extract_message("{\"error\":\"no\\nway\"}\n"), "no way");
        assert_eq!(extract_message("plain\ttext\n"), "plain text");
    }

    #[test]
    fn an_answer_that_repeats_the_request_repeats_no_secret() {
        for (header, said) in [
            (authorization("Bearer", "very-secret"), "headers: {Authorization: Bearer very-secret}"),
            (
                basic_authorization("me", "very-secret"),
                "who is me:very-secret? {\"sent\":\"bWU6dmVyeS1zZWNyZXQ=\"}",
            ),
            (("api-key".into(), "very-secret".into()), "unknown key very-secret"),
        ] {
            let struck = secrets_of_header(&header.1).strike_out_text(said.into());
            assert!(!struck.contains("very-secret") && !struck.contains("bWU6dmVy"), "{struck}");
            assert_eq!(struck.len(), said.len());
        }
    }
}
