//! Sends events and alerts to a Kafka topic, as JSON. (kafka.apache.org, "Protocol")
//!
//! A record of the spool has a line for each message: its identifier, a blank, and its value. A message's key is its flow, or
//! the fingerprint of its alert, so that messages about one subject stay in one partition, in order.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dta_files::http::SentSecrets;
use dta_files::moment::now_ns;
use dta_proto::telemetry::is_since_1970;
use rskafka::BackoffConfig;
use rskafka::chrono::DateTime;
use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder, Credentials, SaslConfig};
use rskafka::record::Record;
use serde::Deserialize;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::ExportError;
use crate::alert::AlertMessage;
use crate::config::{Kafka, KafkaLogin};
use crate::encode::EncodeEvents;
use crate::events::TelemetryEvent;
use crate::http;
use crate::json::EventLine;
use crate::names::Names;
use crate::receiver::{RecordReceiver, WriteOutcome, write_halving};
use crate::sink::{Sink, SinkInput, names_to_write};
use crate::unique::{Ids, SeriesTimes};

/// How long the client retries by itself, and how long a record may take in all.
const TRY: Duration = Duration::from_secs(5);
const CALL: Duration = Duration::from_secs(30);
/// Most bytes in one request: brokers take 1 MiB by default.
const REQUEST: usize = 512 << 10;
/// Most bytes in a message besides its value: its key, its identifier and their lengths.
const OVERHEAD: usize = 128;
/// How far ahead a message's time may be.
const AHEAD: Duration = Duration::from_secs(300);
/// The header with a message's identifier.
const ID: &str = "uid";

pub(crate) fn build_sink(config: &Kafka, name: &str, names: &Arc<Names>) -> Result<Sink, ExportError> {
    let encoder =
        Box::new(Messages { names: names_to_write(names, config.names), ids: Ids::new(), lines: Vec::new() });
    Ok(Sink {
        spool: config.configured_spool(name),
        what: SinkInput::Events {
            encoder,
            flush: Duration::from_millis(config.flush_ms),
            state_every: None,
            traffic_every: None,
            traces: None,
            takes_alerts: true,
        },
        receiver: Box::new(Topic::new(config)?),
    })
}

struct Messages {
    names: Arc<Names>,
    ids: Ids,
    lines: Vec<u8>,
}

impl EncodeEvents for Messages {
    fn encode_event(&mut self, event: &TelemetryEvent, _: &mut SeriesTimes) -> bool {
        let Some(value) =
            EventLine::from_event(event, &self.names).and_then(|line| serde_json::to_string(&line).ok())
        else {
            return false;
        };
        self.lines.extend_from_slice(format!("{:032x} {value}\n", self.ids.next()).as_bytes());
        true
    }

    fn encode_alert(&mut self, message: &AlertMessage) -> bool {
        let Ok(value) = message.to_event_line() else { return false };
        // A blank ends the identifier.
        let id = message.id.replace(|c: char| c.is_whitespace() || c.is_control(), "_");
        self.lines.extend_from_slice(format!("{id} {value}\n").as_bytes());
        true
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }
}

/// The parts of a value that its message needs.
#[derive(Deserialize)]
struct Subject<'a> {
    time: u64,
    flow: Option<&'a str>,
    key: Option<&'a str>,
    #[serde(borrow)]
    alert: Option<AlertSubject<'a>>,
}

#[derive(Deserialize)]
struct AlertSubject<'a> {
    fingerprint: &'a str,
}

#[derive(Clone, Copy)]
struct KafkaMessage<'a> {
    id: &'a str,
    value: &'a str,
}

impl<'a> KafkaMessage<'a> {
    fn parse_line(line: &'a str) -> Option<Self> {
        let (id, value) = line.split_once(' ')?;
        Some(Self { id, value })
    }

    fn to_kafka_record(self) -> Record {
        let subject: Option<Subject<'_>> = serde_json::from_str(self.value).ok();
        let alert = |subject: &Subject<'a>| subject.alert.as_ref().map(|alert| alert.fingerprint);
        let key = subject.as_ref().and_then(|subject| subject.flow.or(subject.key).or(alert(subject)));
        // A switch's own time is not a moment, and brokers refuse times too far ahead.
        let latest = now_ns() + AHEAD.as_nanos() as u64;
        let is_moment = |time: &u64| is_since_1970(*time) && *time <= latest;
        let time = subject.as_ref().map(|subject| subject.time).filter(is_moment);
        Record {
            key: key.map(|key| key.as_bytes().to_vec()),
            value: Some(self.value.as_bytes().to_vec()),
            headers: BTreeMap::from([(ID.to_owned(), self.id.as_bytes().to_vec())]),
            timestamp: DateTime::from_timestamp_nanos(time.unwrap_or_else(now_ns) as i64),
        }
    }
}

struct Topic {
    config: Kafka,
    login: Option<SaslConfig>,
    tls: Option<Arc<ClientConfig>>,
    /// Secrets that no message may repeat.
    sent: SentSecrets,
    /// Runs on the sending thread, from its first record on.
    runtime: OnceCell<Runtime>,
    /// Clients of all partitions; none after a failure.
    partitions: RefCell<Option<Vec<PartitionClient>>>,
    /// Messages of the current record that are already in their partitions, and are not sent again.
    taken: RefCell<HashSet<String>>,
    /// The first message of the current record.
    first: RefCell<String>,
}

impl Topic {
    /// Reads secrets and certificates; makes no connection.
    fn new(config: &Kafka) -> Result<Self, ExportError> {
        let secret = config.read_secret()?;
        let sent = SentSecrets::new(secret.as_deref());
        let login = match &config.user {
            Some(user) => {
                let password = secret.ok_or_else(|| Kafka::missing_secret("the user has a password"))?;
                let credentials = Credentials::new(user.clone(), password);
                Some(match config.login {
                    KafkaLogin::Plain => SaslConfig::Plain(credentials),
                    KafkaLogin::ScramSha256 => SaslConfig::ScramSha256(credentials),
                    KafkaLogin::ScramSha512 => SaslConfig::ScramSha512(credentials),
                })
            }
            None => None,
        };
        let tls = if config.tls { Some(Arc::new(tls_config(config.ca.as_deref())?)) } else { None };
        Ok(Self {
            config: config.clone(),
            login,
            tls,
            sent,
            runtime: OnceCell::new(),
            partitions: RefCell::default(),
            taken: RefCell::default(),
            first: RefCell::default(),
        })
    }

    /// Strikes out secrets, as a broker may repeat what it was sent.
    fn describe_error(&self, error: &Error) -> String {
        self.sent.strike_out_text(error.to_string())
    }

    async fn connect_partitions(&self) -> Result<Vec<PartitionClient>, String> {
        let topic = &self.config.topic;
        // The caller retries and logs it.
        let once = BackoffConfig { deadline: Some(TRY), ..BackoffConfig::default() };
        let mut builder =
            ClientBuilder::new(self.config.brokers.clone()).client_id("dta-export").backoff_config(once);
        if let Some(login) = &self.login {
            builder = builder.sasl_config(login.clone());
        }
        if let Some(tls) = &self.tls {
            builder = builder.tls_config(tls.clone());
        }
        let client: Client = builder.build().await.map_err(|error| self.describe_error(&error))?;
        let topics = client.list_topics().await.map_err(|error| self.describe_error(&error))?;
        let numbers = topics.into_iter().find(|there| there.name == *topic).map(|there| there.partitions);
        let numbers = numbers.ok_or_else(|| format!("there is no topic {topic:?}: create it"))?;
        let mut partitions = Vec::with_capacity(numbers.len());
        for number in numbers {
            let partition = client.partition_client(topic, number, UnknownTopicHandling::Error).await;
            partitions.push(partition.map_err(|error| self.describe_error(&error))?);
        }
        if partitions.is_empty() { Err(format!("topic {topic:?} has no partitions")) } else { Ok(partitions) }
    }

    /// Sends messages; the error says why they are refused.
    async fn send(&self, messages: &[KafkaMessage<'_>]) -> Result<WriteOutcome, String> {
        let partitions = match self.partitions.take() {
            Some(partitions) => partitions,
            None => match self.connect_partitions().await {
                Ok(partitions) => partitions,
                Err(reason) => return Ok(WriteOutcome::retry_later(reason)),
            },
        };
        let mut by_partition: BTreeMap<usize, (Vec<Record>, Vec<&str>)> = BTreeMap::new();
        for message in messages {
            if self.taken.borrow().contains(message.id) {
                continue;
            }
            let record = message.to_kafka_record();
            let of = crc32fast::hash(record.key.as_deref().unwrap_or_default()) as usize % partitions.len();
            let (records, ids) = by_partition.entry(of).or_default();
            records.push(record);
            ids.push(message.id);
        }
        let mut refused = None;
        for (partition, (records, ids)) in by_partition {
            match partitions[partition].produce(records, Compression::NoCompression).await {
                Ok(_) => self.taken.borrow_mut().extend(ids.into_iter().map(str::to_owned)),
                Err(error) if is_refusal(&error) => refused = Some(self.describe_error(&error)),
                // Dropping the clients makes the next call connect again.
                Err(error) => return Ok(WriteOutcome::retry_later(self.describe_error(&error))),
            }
        }
        self.partitions.replace(Some(partitions));
        refused.map_or(Ok(WriteOutcome::Done), Err)
    }
}

/// TLS to servers with certificates from these authorities.
fn tls_config(ca: Option<&Path>) -> Result<ClientConfig, ExportError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let bad = |reason: String| http::cannot_read(path, &reason);
            for certificate in dta_files::http::authorities(path).map_err(bad)? {
                roots.add(certificate.der().into()).map_err(|error| bad(error.to_string()))?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ExportError(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Whether a message fits into one request with those before it: a request that a broker refuses whole is sent again in parts,
/// which changes the order.
fn fits_beside(most: usize) -> impl FnMut(&KafkaMessage<'_>, &KafkaMessage<'_>) -> bool {
    let mut bytes = 0;
    move |before, next| {
        bytes += before.value.len() + OVERHEAD;
        let fits = bytes + next.value.len() + OVERHEAD <= most;
        if !fits {
            bytes = 0;
        }
        fits
    }
}

/// Whether a broker rejects the messages themselves.
fn is_refusal(error: &Error) -> bool {
    use ProtocolError::{InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge};
    matches!(
        error,
        Error::ServerError {
            protocol_error: InvalidRecord | InvalidTimestamp | MessageTooLarge | RecordListTooLarge,
            ..
        }
    )
}

impl RecordReceiver for Topic {
    fn write_record(&self, record: &[u8], points: u64) -> WriteOutcome {
        let Ok(text) = std::str::from_utf8(record) else {
            return WriteOutcome::Rejected { points, reason: "it is not UTF-8 text".into() };
        };
        let messages: Vec<KafkaMessage<'_>> = text.lines().filter_map(KafkaMessage::parse_line).collect();
        let runtime = match self.runtime.get() {
            Some(runtime) => runtime,
            None => match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => self.runtime.get_or_init(|| runtime),
                Err(error) => return WriteOutcome::retry_later(error.to_string()),
            },
        };
        // The previous record may have been dropped.
        let first = messages.first().map_or("", |message| message.id);
        if *self.first.borrow() != first {
            self.first.replace(first.to_owned());
            self.taken.borrow_mut().clear();
        }
        let mut refused: Option<(u64, String)> = None;
        for part in messages.chunk_by(fits_beside(REQUEST)) {
            let written = write_halving(part, &|part| part.len() as u64, &mut |part| {
                let sent = runtime.block_on(async { tokio::time::timeout(CALL, self.send(part)).await });
                sent.unwrap_or_else(|_| Ok(WriteOutcome::retry_later("no answer in time")))
            });
            match written {
                WriteOutcome::Done => {}
                WriteOutcome::Rejected { points, reason } => {
                    refused = Some((refused.map_or(0, |(before, _)| before) + points, reason));
                }
                later @ WriteOutcome::Later { .. } => return later,
            }
        }
        self.taken.borrow_mut().clear();
        refused.map_or(WriteOutcome::Done, |(points, reason)| WriteOutcome::Rejected { points, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_as_many_messages_as_fit() {
        let value = "v".repeat(72);
        let messages: Vec<_> = (0..7).map(|_| KafkaMessage { id: "1", value: &value }).collect();
        let lens = |most| messages.chunk_by(fits_beside(most)).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(lens(1400), [7]);
        assert_eq!(lens(1399), [6, 1]);
        assert_eq!(lens(600), [3, 3, 1]);
        // A message that fits nowhere goes alone.
        assert_eq!(lens(100), [1; 7]);
    }

    #[test]
    fn a_time_that_is_ahead_is_that_of_sending() {
        let of = |time: u64| {
            let value = format!("{{\"time\":{time}}}");
            KafkaMessage { id: "1", value: &value }.to_kafka_record().timestamp.timestamp_nanos_opt().unwrap()
                as u64
        };
        let begin = now_ns();
        assert_eq!(of(begin), begin);
        for ahead in [begin + 2 * AHEAD.as_nanos() as u64, u64::MAX] {
            let sent = of(ahead);
            assert!((begin..=now_ns()).contains(&sent));
        }
    }
}
