//! Sends points to InfluxDB over HTTP: `/write` of 1.x servers, `/api/v2/write` of 2.x servers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::ExportError;
use crate::config::Influx;
use crate::encode::{EncodeEvents, series_part};
use crate::events::TelemetryEvent;
use crate::http::{self, Http, ReceiverResponse};
use crate::metrics::{Labels, MetricsPage, Number};
use crate::names::Names;
use crate::point::{InfluxPoint, PointValue};
use crate::receiver::{RecordReceiver, WriteOutcome, write_halving};
use crate::schema::Schema;
use crate::sink::{Sink, SinkInput, names_to_write};
use crate::traffic;
use crate::unique::SeriesTimes;

pub(crate) fn build_sink(config: &Influx, name: &str, names: &Arc<Names>) -> Result<Sink, ExportError> {
    let names = names_to_write(names, config.names);
    let encoder = Box::new(LineProtocolEncoder { schema: config.schema, names, text: String::new() });
    Ok(Sink {
        spool: config.configured_spool(name),
        what: SinkInput::Events {
            encoder,
            flush: Duration::from_millis(config.flush_ms),
            state_every: (config.state_seconds > 0).then(|| Duration::from_secs(config.state_seconds)),
            traffic_every: config.traffic_interval(),
            traces: None,
            takes_alerts: false,
        },
        receiver: Box::new(InfluxServer::new(config)?),
    })
}

struct LineProtocolEncoder {
    schema: Schema,
    names: Arc<Names>,
    text: String,
}

impl EncodeEvents for LineProtocolEncoder {
    fn encode_event(&mut self, event: &TelemetryEvent, times: &mut SeriesTimes) -> bool {
        let Some(point) = self.schema.build_point(event, &self.names) else { return false };
        let series = point.series_name();
        let time = times.assign_time(&series, series_part(event), point.time);
        point.write_line(&mut self.text, &series, time);
        true
    }

    fn encode_traffic(&mut self, page: MetricsPage, time: u64) -> u64 {
        let points = traffic_points(page, time);
        for point in &points {
            point.write_line(&mut self.text, &point.series_name(), time);
        }
        points.len() as u64
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text).into_bytes()
    }
}

/// One point for each measurement and its labels: the measurement of `dta_traffic_exporter_bytes` is
/// `traffic_exporter`, and its field `bytes`.
fn traffic_points(page: MetricsPage, time: u64) -> Vec<InfluxPoint> {
    let mut points: BTreeMap<(String, Labels), Vec<(&'static str, PointValue)>> = BTreeMap::new();
    for (name, family) in page.into_families() {
        let Some(kind) = name.strip_prefix(traffic::PREFIX) else { continue };
        let field = ["bytes", "packets", "records", "batches"].into_iter().find_map(|field| {
            let measurement = kind.strip_suffix(field)?.strip_suffix('_')?;
            Some((format!("traffic_{measurement}"), field))
        });
        let Some((measurement, field)) = field else { continue };
        for (labels, number) in family.series {
            let Number::Whole(value) = number else { continue };
            let fields = points.entry((measurement.clone(), labels)).or_default();
            fields.push((field, PointValue::Integer(value)));
        }
    }
    let tag = |(name, value): (Cow<'static, str>, String)| match name {
        Cow::Borrowed(name) => Some((name, value)),
        Cow::Owned(_) => None,
    };
    let point = |((measurement, labels), fields): ((String, Labels), _)| InfluxPoint {
        measurement,
        tags: labels.into_iter().filter_map(tag).collect(),
        fields,
        time,
    };
    points.into_iter().map(point).collect()
}

struct InfluxServer {
    http: Http,
    write: String,
    /// The request that creates the database; 1.x only.
    create: Option<(String, String)>,
}

impl InfluxServer {
    /// Reads secrets and certificates; makes no connection.
    fn new(config: &Influx) -> Result<Self, ExportError> {
        let secret = config.read_secret()?;
        let url = config.url.trim_end_matches('/');
        let (write, create, authorization) = match (&config.database, &config.org, &config.bucket) {
            (None, Some(org), Some(bucket)) => {
                let token = secret.ok_or_else(|| Influx::missing_secret("a 2.x server needs a token"))?;
                let write = format!(
                    "{url}/api/v2/write?org={}&bucket={}&precision=ns",
                    percent_encode(org),
                    percent_encode(bucket)
                );
                (write, None, Some(http::authorization("Token", &token)))
            }
            (database, _, _) => {
                let database = database.as_deref().unwrap_or_default();
                let authorization = match &config.user {
                    Some(user) => {
                        let lacks = || Influx::missing_secret("the user of a 1.x server has a password");
                        let password = secret.ok_or_else(lacks)?;
                        Some(http::basic_authorization(user, &password))
                    }
                    None => None,
                };
                let name = database.replace('\\', "\\\\").replace('"', "\\\"");
                let create = (
                    format!("{url}/query"),
                    format!("q={}", percent_encode(&format!("CREATE DATABASE \"{name}\""))),
                );
                (
                    format!("{url}/write?db={}&precision=ns", percent_encode(database)),
                    Some(create),
                    authorization,
                )
            }
        };
        Ok(Self { http: Http::new(config.ca.as_deref(), authorization)?, write, create })
    }

    fn write_whole(&self, lines: &[u8], points: u64) -> Result<WriteOutcome, String> {
        let answer = match self.post_lines(lines) {
            Ok(answer) => answer,
            Err(reason) => return Ok(WriteOutcome::retry_later(reason)),
        };
        match &self.create {
            Some(create) if answer.status == 404 && answer.error_message().contains("database not found") => {
                match self.create_database(create).and_then(|()| self.post_lines(lines)) {
                    Ok(answer) => write_outcome(&answer, points),
                    Err(reason) => Ok(WriteOutcome::retry_later(reason)),
                }
            }
            _ => write_outcome(&answer, points),
        }
    }

    fn post_lines(&self, lines: &[u8]) -> Result<ReceiverResponse, String> {
        self.http.post_body(&self.write, &[("Content-Type", "text/plain; charset=utf-8")], lines)
    }

    fn create_database(&self, (url, form): &(String, String)) -> Result<(), String> {
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = self.http.post_body(url, &headers, form.as_bytes())?;
        let said = answer.error_message();
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

/// The outcome of a write with this answer; the error says why all points are refused.
fn write_outcome(answer: &ReceiverResponse, points: u64) -> Result<WriteOutcome, String> {
    match answer.status {
        200..=299 => Ok(WriteOutcome::Done),
        // Lines that it cannot parse, has with another type, or finds too old: sending them again will not help.
        400 | 413 | 422 => {
            let reason = answer.error_message();
            // With a number, the database took the others. An error with 0 dropped does not say which are bad.
            match parse_dropped_points(&reason) {
                Some(dropped) if dropped > 0 => {
                    Ok(WriteOutcome::Rejected { points: dropped.min(points), reason })
                }
                _ => Err(reason),
            }
        }
        _ => Ok(answer.retry_later("an InfluxDB server, and is there such a bucket")),
    }
}

impl RecordReceiver for InfluxServer {
    /// Writes lines. A missing database is created (1.x). Points that arrive twice overwrite themselves.
    fn write_record(&self, lines: &[u8], _: u64) -> WriteOutcome {
        let lines: Vec<&[u8]> = lines.split_inclusive(|byte| *byte == b'\n').collect();
        write_halving(&lines, &|part| part.len() as u64, &mut |part| {
            self.write_whole(&part.concat(), part.len() as u64)
        })
    }
}

/// How many points a 1.x server says that it dropped: `partial write: .. dropped=3`.
fn parse_dropped_points(said: &str) -> Option<u64> {
    let (_, rest) = said.rsplit_once("dropped=")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Encodes a text for a query (RFC 3986): all but the unreserved characters in hex.
fn percent_encode(text: &str) -> impl std::fmt::Display {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_traffic_are_points_with_a_field_for_each() {
        let mut page = MetricsPage::default();
        let labels = || vec![("exporter".into(), "10.0.0.1".into()), ("interface".into(), "a b".into())];
        for (family, value) in [
            ("dta_traffic_interface_bytes", 100),
            ("dta_traffic_interface_packets", 2),
            ("dta_traffic_exporter_records", 1),
            ("dta_serving", 1),
        ] {
            page.add(family, crate::metrics::MetricKind::Counter, "", labels(), value);
        }
        let names = Arc::new(Names::empty());
        let mut encoder = LineProtocolEncoder { schema: Schema::Tags, names, text: String::new() };
        assert_eq!(encoder.encode_traffic(page, 7), 2);
        assert_eq!(
            String::from_utf8(encoder.take()).unwrap(),
            "traffic_exporter,exporter=10.0.0.1,interface=a\\ b records=1i 7\n\
             traffic_interface,exporter=10.0.0.1,interface=a\\ b bytes=100i,packets=2i 7\n"
        );
    }

    #[test]
    fn texts_of_queries_and_answers() {
        assert_eq!(percent_encode("a b&c=\u{fc}").to_string(), "a%20b%26c%3D%C3%BC");
        assert_eq!(parse_dropped_points("partial write: points beyond retention policy dropped=3"), Some(3));
        assert_eq!(parse_dropped_points("unable to parse"), None);
    }
}
