//! Sends points to InfluxDB over HTTP: `/write` of 1.x servers, `/api/v2/write` of 2.x servers.

use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::ExportError;
use crate::config::{Influx, SECRET_VARIABLE};
use crate::encode::{EncodeEvents, part};
use crate::events::Event;
use crate::http::{self, Answer, Http};
use crate::names::Names;
use crate::receiver::{Receiver, Written, halving};
use crate::schema::Schema;
use crate::sink::{Sink, What, wanted};
use crate::unique::Times;

/// The sink of this server.
pub(crate) fn sink(config: &Influx, name: &str, names: &Arc<Names>) -> Result<Sink, ExportError> {
    let names = wanted(names, config.names);
    let encoder = Box::new(Lines { schema: config.schema, names, text: String::new() });
    Ok(Sink {
        name: Influx::SINK,
        spool: config.spool_directory(name),
        most: config.spool_mib << 20,
        what: What::Events {
            encoder,
            flush: Duration::from_millis(config.flush_ms),
            state_every: (config.state_seconds > 0).then(|| Duration::from_secs(config.state_seconds)),
            traces: None,
        },
        receiver: Box::new(Server::new(config)?),
    })
}

/// Lines of points.
struct Lines {
    schema: Schema,
    names: Arc<Names>,
    text: String,
}

impl EncodeEvents for Lines {
    fn put(&mut self, event: &Event, times: &mut Times) -> bool {
        let Some(point) = self.schema.point(event, &self.names) else { return false };
        let series = point.series();
        let time = times.give(&series, part(event), point.time);
        point.write(&mut self.text, &series, time);
        true
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text).into_bytes()
    }
}

/// A server.
struct Server {
    http: Http,
    write: String,
    /// Creates the database; 1.x only.
    create: Option<(String, String)>,
}

impl Server {
    /// Reads secrets and certificates; makes no connection.
    fn new(config: &Influx) -> Result<Self, ExportError> {
        let secret = http::secret(config.secret_file.as_deref(), SECRET_VARIABLE)?;
        let lacks = |what| http::lacks(what, SECRET_VARIABLE);
        let url = config.url.trim_end_matches('/');
        let (write, create, authorization) = match (&config.database, &config.org, &config.bucket) {
            (None, Some(org), Some(bucket)) => {
                let token = secret.ok_or_else(|| lacks("a 2.x server needs a token"))?;
                let write = format!(
                    "{url}/api/v2/write?org={}&bucket={}&precision=ns",
                    percent(org),
                    percent(bucket)
                );
                (write, None, Some(http::authorization("Token", &token)))
            }
            (database, _, _) => {
                let database = database.as_deref().unwrap_or_default();
                let authorization = match &config.user {
                    Some(user) => {
                        let password =
                            secret.ok_or_else(|| lacks("the user of a 1.x server has a password"))?;
                        Some(http::basic(user, &password))
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
        Ok(Self { http: Http::new(config.ca.as_deref(), authorization)?, write, create })
    }

    fn write_whole(&self, lines: &[u8], points: u64) -> Result<Written, String> {
        let answer = match self.post(lines) {
            Ok(answer) => answer,
            Err(reason) => return Ok(Written::later(reason)),
        };
        match &self.create {
            Some(create) if answer.status == 404 && answer.words().contains("database not found") => {
                match self.created(create).and_then(|()| self.post(lines)) {
                    Ok(answer) => outcome(&answer, points),
                    Err(reason) => Ok(Written::later(reason)),
                }
            }
            _ => outcome(&answer, points),
        }
    }

    fn post(&self, lines: &[u8]) -> Result<Answer, String> {
        self.http.post(&self.write, &[("Content-Type", "text/plain; charset=utf-8")], lines)
    }

    /// Creates the database.
    fn created(&self, (url, form): &(String, String)) -> Result<(), String> {
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = self.http.post(url, &headers, form.as_bytes())?;
        let said = answer.words();
        if matches!(answer.status, 200 | 204) && !said.contains("error") {
            tracing::info!("the database did not exist and was created");
            return Ok(());
        }
        Err(format!(
            "the database does not exist and cannot be created: it answers {} ({said})",
            answer.status
        ))
    }
}

/// The outcome of a write with this answer; the error is why all points are refused.
fn outcome(answer: &Answer, points: u64) -> Result<Written, String> {
    match answer.status {
        200..=299 => Ok(Written::Done),
        // Lines that it cannot parse, has with another type, or finds too old: that never changes.
        400 | 413 | 422 => {
            let reason = answer.words();
            // With a number, the database has the others. 0 dropped but still an error: it does not say which are bad.
            match dropped(&reason) {
                Some(dropped) if dropped > 0 => Ok(Written::Rejected { points: dropped.min(points), reason }),
                _ => Err(reason),
            }
        }
        _ => Ok(answer.later("an InfluxDB server, and is there such a bucket")),
    }
}

impl Receiver for Server {
    /// Writes lines. A database that does not exist is created (1.x). Points that arrive twice are the same.
    fn write(&self, lines: &[u8], _: u64) -> Written {
        let lines: Vec<&[u8]> = lines.split_inclusive(|byte| *byte == b'\n').collect();
        halving(&lines, &|part| part.len() as u64, &mut |part| {
            self.write_whole(&part.concat(), part.len() as u64)
        })
    }
}

/// How many points a 1.x server says that it dropped: `partial write: .. dropped=3`.
fn dropped(said: &str) -> Option<u64> {
    let (_, rest) = said.rsplit_once("dropped=")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Encodes a text for a query (RFC 3986): all but the unreserved characters in hex.
fn percent(text: &str) -> impl std::fmt::Display {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_queries_and_answers() {
        assert_eq!(percent("a b&c=\u{fc}").to_string(), "a%20b%26c%3D%C3%BC");
        assert_eq!(dropped("partial write: points beyond retention policy dropped=3"), Some(3));
        assert_eq!(dropped("unable to parse"), None);
    }
}
