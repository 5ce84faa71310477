//! Sends points to InfluxDB over HTTP: `/write` of 1.x servers, `/api/v2/write` of 2.x servers.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::ExportError;
use crate::config::{Influx, SECRET_VARIABLE};

/// Timeout of a request.
const CALL: Duration = Duration::from_secs(30);
/// Timeout of connecting.
const CONNECT: Duration = Duration::from_secs(5);
/// Lines of a rejected part that are tried alone before the part is halved.
const ALONE: usize = 32;
/// Bytes of a response that are read.
const ANSWER: u64 = 16 << 10;

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// All points are in the database.
    Done,
    /// The database will never accept this many of the points, and has the others.
    Rejected {
        /// Points.
        points: u64,
        /// Its message.
        reason: String,
    },
    /// To be retried.
    Later(String),
}

/// A server and its credentials. Its `Debug` shows no secret.
pub(crate) struct Server {
    agent: Agent,
    write: String,
    /// Creates the database; 1.x only.
    create: Option<(String, String)>,
    /// Value of the header `Authorization`.
    authorization: Option<String>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("write", &self.write).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads secrets and certificates; makes no connection.
    pub(crate) fn new(config: &Influx) -> Result<Self, ExportError> {
        let secret = secret(config)?;
        let url = config.url.trim_end_matches('/');
        let (write, create, authorization) = match (&config.database, &config.org, &config.bucket) {
            (None, Some(org), Some(bucket)) => {
                let token = secret.ok_or_else(|| lacks("a 2.x server needs a token"))?;
                let write = format!(
                    "{url}/api/v2/write?org={}&bucket={}&precision=ns",
                    percent(org),
                    percent(bucket)
                );
                (write, None, Some(format!("Token {token}")))
            }
            (database, _, _) => {
                let database = database.as_deref().unwrap_or_default();
                let authorization = match &config.user {
                    Some(user) => {
                        let password =
                            secret.ok_or_else(|| lacks("the user of a 1.x server has a password"))?;
                        Some(format!("Basic {}", BASE64.encode(format!("{user}:{password}"))))
                    }
                    None => None,
                };
                let name = database.replace('\\', "\\\\").replace('"', "\\\"");
                let create = (
                    format!("{url}/query"),
                    format!("q={}", percent(&format!("CREATE DATABASE \"{name}\""))),
                );
                (format!("{url}/write?db={}&precision=ns", percent(database)), Some(create), authorization)
            }
        };
        let roots = match &config.ca {
            Some(path) => authorities(path)?,
            None => RootCerts::WebPki,
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A proxy in the environment is for browsing.
            .proxy(None)
            .timeout_global(Some(CALL))
            .timeout_connect(Some(CONNECT))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .user_agent(concat!("dta-export/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok(Self { agent, write, create, authorization })
    }

    /// Writes `count` lines. A database that does not exist is created (1.x). A batch that is rejected is halved
    /// until the bad lines are alone, so no other is lost with them, unless nearly all are bad. Points that arrive
    /// twice are the same.
    pub(crate) fn write(&self, lines: &[u8], points: u64) -> Written {
        halving(lines, points, &mut |lines, points| self.write_whole(lines, points))
    }

    fn write_whole(&self, lines: &[u8], points: u64) -> Written {
        let written = self.attempt(lines, points);
        match (&written, &self.create) {
            (Err((404, said)), Some((url, form))) if said.contains("database not found") => {
                match self.post(url, "application/x-www-form-urlencoded", form.as_bytes()) {
                    Ok((200 | 204, said)) if !said.contains("error") => {
                        tracing::info!("the database did not exist and was created");
                        match self.attempt(lines, points) {
                            Ok(written) => written,
                            Err((status, said)) => Written::Later(answered(status, &said)),
                        }
                    }
                    Ok((status, said)) => Written::Later(format!(
                        "the database does not exist and cannot be created: {}",
                        answered(status, &said)
                    )),
                    Err(reason) => Written::Later(reason),
                }
            }
            (Err((status, said)), _) => Written::Later(answered(*status, said)),
            (Ok(_), _) => written.unwrap_or(Written::Done),
        }
    }

    /// The outcome of a write, or status and message of a response that needs special treatment.
    fn attempt(&self, lines: &[u8], points: u64) -> Result<Written, (u16, String)> {
        match self.post(&self.write, "text/plain; charset=utf-8", lines) {
            Ok((200..=299, _)) => Ok(Written::Done),
            // Lines that it cannot parse, has with another type, or finds too old: that never changes.
            Ok((400 | 413 | 422, said)) => {
                // With a number, the database has the others. 0 dropped but still an error: it does not say which are
                // bad.
                let dropped = dropped(&said).filter(|dropped| *dropped > 0);
                Ok(Written::Rejected { points: dropped.unwrap_or(points).min(points), reason: said })
            }
            Ok((status, said)) => Err((status, said)),
            Err(reason) => Ok(Written::Later(reason)),
        }
    }

    /// Status and message of the response; or why there is none.
    fn post(&self, url: &str, kind: &str, body: &[u8]) -> Result<(u16, String), String> {
        let mut request = self.agent.post(url).header("Content-Type", kind);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut answer = request.send(body).map_err(|error| error.to_string())?;
        let said = answer.body_mut().with_config().limit(ANSWER).read_to_string().unwrap_or_default();
        Ok((answer.status().as_u16(), words(&said)))
    }
}

/// Writes lines with `write`, halving batches that are rejected. If each of [`ALONE`] lines spread over a part is
/// rejected alone, too, the part is given up: to find out that nothing is good would take two requests per line.
fn halving(lines: &[u8], points: u64, write: &mut impl FnMut(&[u8], u64) -> Written) -> Written {
    let (all, reason) = match write(lines, points) {
        Written::Rejected { points: all, reason } if all >= points => (all, reason),
        other => return other,
    };
    let Some((first, second)) = halves(lines) else { return Written::Rejected { points: all, reason } };
    if points > 2 * ALONE as u64 {
        match is_any_taken(lines, write) {
            Ok(true) => {}
            Ok(false) => return Written::Rejected { points: all, reason },
            Err(later) => return later,
        }
    }
    let in_first = (first.iter().filter(|byte| **byte == b'\n').count() as u64).min(points);
    let mut rejected = 0;
    for (half, points) in [(first, in_first), (second, points - in_first)] {
        match halving(half, points, write) {
            Written::Done => {}
            Written::Rejected { points, .. } => rejected += points,
            later @ Written::Later(_) => return later,
        }
    }
    if rejected == 0 { Written::Done } else { Written::Rejected { points: rejected, reason } }
}

/// Whether one of [`ALONE`] lines, spread over all, is accepted; or another outcome of one.
fn is_any_taken(lines: &[u8], write: &mut impl FnMut(&[u8], u64) -> Written) -> Result<bool, Written> {
    for n in 0..ALONE {
        let at = lines.len() * (2 * n + 1) / (2 * ALONE);
        let begin = lines[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let end = lines[at..].iter().position(|byte| *byte == b'\n').map_or(lines.len(), |end| at + end + 1);
        match write(&lines[begin..end], 1) {
            Written::Done => return Ok(true),
            Written::Rejected { .. } => {}
            later @ Written::Later(_) => return Err(later),
        }
    }
    Ok(false)
}

/// Splits lines into two parts; `None` for a single line.
fn halves(lines: &[u8]) -> Option<(&[u8], &[u8])> {
    let ends = |at: usize| (lines[at] == b'\n' && at + 1 < lines.len()).then_some(at + 1);
    let middle = lines.len() / 2;
    let at = (middle..lines.len()).find_map(ends).or_else(|| (0..middle).rev().find_map(ends))?;
    Some(lines.split_at(at))
}

fn answered(status: u16, said: &str) -> String {
    let hint = match status {
        401 | 403 => "; is this token or password valid, and may it write there?",
        404 => "; is this the URL of an InfluxDB server, and is there such a bucket?",
        301 | 302 | 307 | 308 => "; it redirects: give the new URL",
        _ => "",
    };
    format!("it answers {status} ({said}){hint}")
}

/// The message of a response, in one line of limited length: the text in its JSON, or the whole.
fn words(said: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(said).ok();
    let field = |name: &str| json.as_ref()?.get(name)?.as_str().map(str::to_owned);
    let text = field("error").or_else(|| field("message")).unwrap_or_else(|| said.to_owned());
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect::<String>().trim().to_owned()
}

/// How many points a 1.x server says that it dropped: `partial write: .. dropped=3`.
fn dropped(said: &str) -> Option<u64> {
    let (_, rest) = said.rsplit_once("dropped=")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A secret that is not there.
fn lacks(what: &str) -> ExportError {
    ExportError(format!("{what}: name its file (`secret_file`) or set {SECRET_VARIABLE}"))
}

/// A file with a secret or certificates that cannot be used.
fn cannot_read(path: &Path, reason: &str) -> ExportError {
    ExportError(format!("cannot read {}: {reason}", path.display()))
}

/// The first line of the file or the variable, if any.
fn secret(config: &Influx) -> Result<Option<String>, ExportError> {
    let Some(path) = &config.secret_file else {
        return Ok(std::env::var(SECRET_VARIABLE).ok().filter(|secret| !secret.is_empty()));
    };
    let bad = |reason: String| cannot_read(path, &reason);
    let text = fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let secret = text.lines().next().unwrap_or_default().trim();
    if secret.is_empty() || secret.contains(|c: char| c.is_control()) {
        return Err(bad("its first line must be the token or password".into()));
    }
    Ok(Some(secret.to_owned()))
}

fn authorities(path: &Path) -> Result<RootCerts, ExportError> {
    let bad = |reason: String| cannot_read(path, &reason);
    let pem = fs::read(path).map_err(|error| bad(error.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(bad(error.to_string())),
        }
    }
    if certificates.is_empty() {
        return Err(bad("there is no PEM certificate in it".into()));
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

/// Encodes a text for a query (RFC 3986): all but the unreserved characters in hex.
fn percent(text: &str) -> impl std::fmt::Display {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, RESERVED)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The outcome, the accepted lines, and the number of writes.
    fn halved(text: &str, is_refused: impl Fn(&str) -> bool) -> (Written, BTreeSet<String>, usize) {
        let (mut taken, mut calls) = (BTreeSet::new(), 0);
        let written = halving(text.as_bytes(), text.lines().count() as u64, &mut |part, points| {
            calls += 1;
            let part = std::str::from_utf8(part).unwrap();
            assert_eq!(part.lines().count() as u64, points);
            if is_refused(part) {
                return rejected(points);
            }
            taken.extend(part.lines().map(str::to_owned));
            Written::Done
        });
        (written, taken, calls)
    }

    fn rejected(points: u64) -> Written {
        Written::Rejected { points, reason: "no".into() }
    }

    fn lines(count: u64) -> String {
        (0..count).map(|n| format!("m v={n}\n")).collect()
    }

    #[test]
    fn what_is_refused_whole_is_halved_until_the_bad_lines_are_alone() {
        let text = lines(100);
        // Too large (413): everything arrives, in parts.
        let (written, taken, _) = halved(&text, |part| part.len() > 200);
        assert_eq!((written, taken.len()), (Written::Done, 100));
        // Lines that cannot be parsed (400): only they are lost.
        let is_bad = |part: &str| part.lines().any(|line| ["m v=7", "m v=99"].contains(&line));
        let (written, taken, calls) = halved(&text, is_bad);
        assert_eq!((written, taken.len()), (rejected(2), 98));
        assert!(calls < 40, "{calls}");
        // The number of dropped points is trusted; and a server that is down is down.
        assert_eq!(halving(text.as_bytes(), 100, &mut |_, _| rejected(3)), rejected(3));
        let mut calls = 0;
        let written = halving(text.as_bytes(), 100, &mut |_, points| {
            calls += 1;
            if calls == 3 { Written::Later("away".into()) } else { rejected(points) }
        });
        assert_eq!((written, calls), (Written::Later("away".into()), 3));
    }

    #[test]
    fn what_is_refused_point_by_point_is_not_tried_to_the_last() {
        let text = lines(5000);
        let (written, taken, calls) = halved(&text, |_| true);
        assert_eq!((written, taken.len()), (rejected(5000), 0));
        assert!(calls < 50, "{calls}");
        // The first half is bad, in one piece: the other half arrives.
        let number = |line: &str| line[4..].parse::<u64>().unwrap();
        let (written, taken, calls) = halved(&text, |part| part.lines().any(|line| number(line) < 2500));
        assert_eq!((written, taken.len()), (rejected(2500), 2500));
        assert!(calls < 700, "{calls}");
        // One line in ten is good.
        let (written, taken, _) = halved(&text, |part| part.lines().any(|line| number(line) % 10 != 3));
        assert_eq!((written, taken.len()), (rejected(4500), 500));
    }

    #[test]
    fn texts_of_queries_and_answers() {
        assert_eq!(percent("a b&c=\u{fc}").to_string(), "a%20b%26c%3D%C3%BC");
        assert_eq!(dropped("partial write: points beyond retention policy dropped=3"), Some(3));
        assert_eq!(
            (dropped("unable to parse"), words("{\"error\":\"no\\nway\"}\n")),
            (None, "no way".into())
        );
    }
}
