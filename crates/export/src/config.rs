//! The configuration of an exporter: the table `[export]` of a collector's configuration.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use dta_files::config_file::ConfigError;
use dta_proto::key::Flow;
use dta_proto::prefix::Prefix;
use dta_proto::telemetry::{Metric, TelemetryEntry, Why};
use serde::{Deserialize, Serialize};

use crate::ExportError;
use crate::events::{LookupStores, TelemetryEvent};
use crate::schema::Schema;
use crate::source::DEFAULT_STORE;

const SPOOL_MIB: RangeInclusive<u64> = 16..=1 << 20;
const FLUSH_MS: RangeInclusive<u64> = 1..=60_000;

/// Declares the table of an exporter from its name in counters and logs, its table, the variable with its secret and the
/// suffix of its spool's folder: its own keys, then those that all exporters to a receiver share.
macro_rules! exporter_table {
    ($Table:ident = $sink:literal, $table:literal, $variable:literal, $suffix:literal { $($keys:tt)* }) => {
        dta_files::config_table! {
            #[doc = concat!("The table `[", $table, "]`.")]
            #[derive(Eq)]
            pub struct $Table {
                $($keys)*
                /// File with the token or password in its first line; default: [`Self::SECRET_VARIABLE`].
                pub secret_file: Option<PathBuf> = None;
                /// CAs of the receiver's certificate (PEM); default: those that browsers trust.
                pub ca: Option<PathBuf> = None;
                /// Directory of the spool, or for OTLP of one spool per signal; default: `export-NAME` in `/var/lib/dta` for
                /// root, else in the user's state folder.
                pub spool: Option<PathBuf> = None;
                /// Limit of each spool, in MiB.
                pub spool_mib: u64 = 256, in SPOOL_MIB;
            }
        }

        impl $Table {
            /// The name of its exporter in counters and logs.
            pub const SINK: &str = $sink;
            const TABLE: &str = $table;
            /// The variable with the token or password, if no file is set.
            pub const SECRET_VARIABLE: &str = $variable;

            /// The first line of the file or the variable, if any.
            pub fn read_secret(&self) -> Result<Option<String>, ExportError> {
                dta_files::http::read_secret(self.secret_file.as_deref(), Self::SECRET_VARIABLE).map_err(ExportError)
            }

            /// The error of a table without the secret that it needs; `what` says what needs it.
            pub fn missing_secret(what: &str) -> ExportError {
                ExportError(format!("{what}: name its file (`secret_file`) or set {}", Self::SECRET_VARIABLE))
            }

            pub fn has_secret(&self) -> bool {
                let is_set = || std::env::var_os(Self::SECRET_VARIABLE).is_some_and(|secret| !secret.is_empty());
                self.secret_file.is_some() || is_set()
            }

            /// Its spool, in a collector of this name.
            pub(crate) fn configured_spool(&self, name: &str) -> ConfiguredSpool {
                let state = || dta_files::state_directory(&format!(concat!("export-{}", $suffix), name));
                let directory = self.spool.clone().unwrap_or_else(state);
                ConfiguredSpool { sink: Self::SINK, directory, most: self.spool_mib << 20 }
            }
        }
    };
}

dta_files::config_table! {
    /// The table `[export]`.
    #[derive(Eq)]
    pub struct Config {
        /// The append store with the events.
        pub events: String = DEFAULT_STORE.into();
        pub paths: String = LookupStores::default().paths;
        pub values: String = LookupStores::default().values;
        pub influx: Option<Influx> = None;
        pub otlp: Option<Otlp> = None;
        /// A server that takes Prometheus remote write.
        pub remote_write: Option<RemoteWrite> = None;
        pub kafka: Option<Kafka> = None;
        /// A file of JSON lines.
        pub json: Option<Json> = None;
    }
}

exporter_table! {
    Influx = "influx", "export.influx", "DTA_EXPORT_INFLUX_SECRET", "" {
        /// `http://HOST:PORT` or `https://HOST:PORT`; a path may follow.
        pub url: String = "http://127.0.0.1:8086".into();
        /// Database of a 1.x server; created if it does not exist.
        pub database: Option<String> = None;
        /// User of a 1.x server with authentication.
        pub user: Option<String> = None;
        /// Organisation of a 2.x server.
        pub org: Option<String> = None;
        /// Bucket of a 2.x server.
        pub bucket: Option<String> = None;
        pub schema: Schema = Schema::default();
        /// Whether names of switches, ports and drop reasons are written next to their numbers (schema `tags`).
        pub names: bool = true;
        /// Milliseconds that events may wait to be sent together.
        pub flush_ms: u64 = 200, in FLUSH_MS;
        /// Seconds after which each known value is written again, changed or not; 0 = never.
        pub state_seconds: u64 = 0, in 0..=86_400;
        /// Seconds after which sums of traffic are written again, by a collector with flow records (schema `tags`); 0 =
        /// never.
        pub traffic_seconds: u64 = 10, in 0..=86_400;
    }
}

impl Influx {
    /// How often sums of traffic are written, if at all: INTCollector has no names for them.
    pub(crate) fn traffic_interval(&self) -> Option<Duration> {
        let is_wanted = self.traffic_seconds > 0 && self.schema == Schema::Tags;
        is_wanted.then(|| Duration::from_secs(self.traffic_seconds))
    }
}

dta_proto::named! {
    /// What OTLP carries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Signal {
        /// Events, as log records.
        Logs: "logs",
        /// What `/metrics` shows.
        Metrics: "metrics",
        /// Paths of flows.
        Traces: "traces",
        /// Paths of packets through hosts.
        #[serde(rename = "host-traces")]
        HostTraces: "host-traces",
    }
}

impl Signal {
    /// The name of its exporter in counters and logs.
    pub fn sink_name(self) -> &'static str {
        match self {
            Signal::Logs => "otlp-logs",
            Signal::Metrics => "otlp-metrics",
            Signal::Traces => "otlp-traces",
            Signal::HostTraces => "otlp-host-traces",
        }
    }
}

dta_proto::named! {
    /// The transport of OTLP.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum OtlpProtocol {
        /// Protobuf over HTTP.
        #[default]
        Http: "http",
        Grpc: "grpc",
    }
}

dta_proto::parse_by_name!(OtlpProtocol);

exporter_table! {
    Otlp = "otlp", "export.otlp", "DTA_EXPORT_OTLP_SECRET", "-otlp" {
        /// `http://HOST:PORT` or `https://HOST:PORT`. With HTTP a path may follow, and `/v1/logs` and the like are added.
        pub url: String = "http://127.0.0.1:4318".into();
        pub protocol: OtlpProtocol = OtlpProtocol::default();
        pub signals: Vec<Signal> = vec![Signal::Logs, Signal::Metrics];
        /// The header for the token; default: `Authorization: Bearer TOKEN`.
        pub secret_header: Option<String> = None;
        /// Whether names of switches, ports and drop reasons are written next to their numbers.
        pub names: bool = true;
        /// Milliseconds that events may wait to be sent together.
        pub flush_ms: u64 = 200, in FLUSH_MS;
        /// Seconds between metrics.
        pub metrics_seconds: u64 = 60, in 1..=86_400;
        pub traces: TraceSelection = TraceSelection::default();
        /// Which packets of hosts become traces.
        pub host_traces: TraceSelection = TraceSelection::default();
    }
}

dta_files::config_table! {
    /// The tables `[export.otlp.traces]`, which selects changes of a flow's path or latency with a known path, and
    /// `[export.otlp.host_traces]`, which selects packets of hosts.
    #[derive(Eq)]
    pub struct TraceSelection {
        /// Selects one in this many.
        pub one_in: u64 = 100, in 1..=u64::MAX;
        /// Only flows with an end in this prefix.
        pub prefix: Option<Prefix> = None;
        /// Only those with at least this latency in nanoseconds.
        pub least_latency_ns: u64 = 0;
    }
}

impl TraceSelection {
    pub(crate) fn selects_event(&self, event: &TelemetryEvent) -> bool {
        let TelemetryEntry::Change { metric, why, key, time, new, .. } = event.entry else { return false };
        // Nothing changed; or the path was already in the entry before, and this one says that it loops.
        if matches!(why, Why::KeepAlive | Why::Loop) {
            return false;
        }
        let latency = match metric {
            // Reported together with the path, just before.
            Metric::FlowLatency if why == Why::New => return false,
            Metric::FlowLatency => Some(new),
            Metric::FlowPath => event.latency.map(u64::from),
            _ => return false,
        };
        let identity = [&key.0[..], &time.to_be_bytes()].concat();
        let flow = event.meaning.and_then(|meaning| meaning.known_flow());
        self.selects_flows(&identity, flow.into_iter())
            && latency.unwrap_or_default() >= self.least_latency_ns
    }

    /// Whether an item with this identity, of these flows, is in the share and in the prefix.
    pub(crate) fn selects_flows(&self, identity: &[u8], mut flows: impl Iterator<Item = Flow>) -> bool {
        // Stable across restarts.
        u64::from(crc32fast::hash(identity)).is_multiple_of(self.one_in)
            && self.prefix.is_none_or(|prefix| flows.any(|flow| prefix.has_end_of(&flow)))
    }
}

dta_proto::named! {
    /// A version of Prometheus remote write.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum RemoteWriteVersion {
        /// `prometheus.WriteRequest`.
        #[default]
        #[serde(rename = "1.0")]
        One: "1.0",
        /// `io.prometheus.write.v2.Request`.
        #[serde(rename = "2.0")]
        Two: "2.0",
    }
}

dta_proto::parse_by_name!(RemoteWriteVersion);

exporter_table! {
    RemoteWrite = "remote-write", "export.remote_write", "DTA_EXPORT_REMOTE_WRITE_SECRET", "-remote-write" {
        /// The URL for requests, including its path.
        pub url: String = "http://127.0.0.1:9090/api/v1/write".into();
        pub version: RemoteWriteVersion = RemoteWriteVersion::default();
        /// User of a server with passwords; if unset, the secret is a bearer token.
        pub user: Option<String> = None;
        /// Seconds between metrics.
        pub metrics_seconds: u64 = 15, in 1..=86_400;
    }
}

dta_proto::named! {
    /// How a Kafka user authenticates (SASL).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum KafkaLogin {
        /// The password as it is.
        #[default]
        Plain: "plain",
        #[serde(rename = "scram-sha-256")]
        ScramSha256: "scram-sha-256",
        #[serde(rename = "scram-sha-512")]
        ScramSha512: "scram-sha-512",
    }
}

exporter_table! {
    Kafka = "kafka", "export.kafka", "DTA_EXPORT_KAFKA_SECRET", "-kafka" {
        /// Brokers to contact first, each `HOST:PORT`.
        pub brokers: Vec<String> = vec!["127.0.0.1:9092".into()];
        /// The topic, which must exist.
        pub topic: String = "dta-events".into();
        /// User, for brokers that require one.
        pub user: Option<String> = None;
        /// How the user authenticates.
        pub login: KafkaLogin = KafkaLogin::default();
        /// Whether brokers are reached over TLS.
        pub tls: bool = false;
        /// Whether names of switches, ports and drop reasons are written next to their numbers.
        pub names: bool = true;
        /// Milliseconds that events may wait to be sent together.
        pub flush_ms: u64 = 200, in FLUSH_MS;
    }
}

/// The table `[export.json]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Json {
    /// The file that lines are appended to, or `-` for standard output.
    pub file: PathBuf,
    /// Whether names of switches, ports and drop reasons are written next to their numbers.
    #[serde(default = "default_true")]
    pub names: bool,
}

const fn default_true() -> bool {
    true
}

impl Config {
    pub fn has_exporters(&self) -> bool {
        self.has_events() || self.has_metrics() || self.has_host_traces()
    }

    pub fn has_events(&self) -> bool {
        self.influx.is_some()
            || self.json.is_some()
            || self.kafka.is_some()
            || self.exports_signal(Signal::Logs)
            || self.exports_signal(Signal::Traces)
    }

    pub fn has_metrics(&self) -> bool {
        self.remote_write.is_some() || self.exports_signal(Signal::Metrics)
    }

    /// Whether sums of flow records are to be exported.
    pub fn has_traffic(&self) -> bool {
        self.has_metrics() || self.influx.as_ref().is_some_and(|influx| influx.traffic_interval().is_some())
    }

    /// Whether paths of packets through hosts are to be exported.
    pub fn has_host_traces(&self) -> bool {
        self.exports_signal(Signal::HostTraces)
    }

    fn exports_signal(&self, signal: Signal) -> bool {
        self.otlp.as_ref().is_some_and(|otlp| otlp.signals.contains(&signal))
    }

    /// The spools of its exporters. `name` is the collector's.
    pub fn configured_spools(&self, name: &str) -> Vec<ConfiguredSpool> {
        let influx = self.influx.iter().map(|influx| influx.configured_spool(name));
        let otlp =
            self.otlp.iter().flat_map(|otlp| otlp.signals.iter().map(|one| otlp.signal_spool(name, *one)));
        let remote = self.remote_write.iter().map(|remote| remote.configured_spool(name));
        let kafka = self.kafka.iter().map(|kafka| kafka.configured_spool(name));
        influx.chain(otlp).chain(remote).chain(kafka).collect()
    }

    /// Tables that have a secret, each with its URL.
    pub(crate) fn tables_with_secret(&self) -> Vec<(&'static str, &str)> {
        let influx = self.influx.iter().filter(|influx| influx.user.is_some() || influx.org.is_some());
        let otlp = self.otlp.iter().filter(|otlp| otlp.has_secret());
        let remote = self.remote_write.iter().filter(|remote| remote.has_secret());
        influx
            .map(|influx| (Influx::TABLE, influx.url.as_str()))
            .chain(otlp.map(|otlp| (Otlp::TABLE, otlp.url.as_str())))
            .chain(remote.map(|remote| (RemoteWrite::TABLE, remote.url.as_str())))
            .collect()
    }

    /// The stores other than the one with the events.
    pub fn lookup_stores(&self) -> LookupStores {
        LookupStores { paths: self.paths.clone(), values: self.values.clone() }
    }

    /// Checks the tables. Reads no file and makes no connection.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (key, name) in
            [("export.events", &self.events), ("export.paths", &self.paths), ("export.values", &self.values)]
        {
            if name.is_empty() {
                return Err(ConfigError::new(
                    key,
                    format!("`{key}` must name a store, such as \"int-events\""),
                ));
            }
        }
        if let Some(json) = &self.json
            && json.file.as_os_str().is_empty()
        {
            return Err(ConfigError::new(
                "export.json.file",
                "`file` must name a file, or \"-\" for standard output",
            ));
        }
        self.influx.as_ref().map_or(Ok(()), Influx::validate)?;
        self.otlp.as_ref().map_or(Ok(()), Otlp::validate)?;
        self.remote_write.as_ref().map_or(Ok(()), RemoteWrite::validate)?;
        self.kafka.as_ref().map_or(Ok(()), Kafka::validate)
    }
}

/// Where an exporter keeps what its receiver has not yet accepted.
#[derive(Clone, Debug)]
pub struct ConfiguredSpool {
    /// The name of the exporter in counters and logs.
    pub sink: &'static str,
    pub directory: PathBuf,
    /// Its limit in bytes.
    pub most: u64,
}

/// Checks the URL of a table, and that only https has a `ca`. `server` says what should be there, `example` what its URL looks like.
pub fn check_url(
    table: &str,
    url: &str,
    ca: &Option<PathBuf>,
    variable: &str,
    [server, example]: [&str; 2],
) -> Result<(), ConfigError> {
    let key = format!("{table}.url");
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let rest = rest.map(|rest| rest.trim_end_matches('/'));
    match rest {
        None | Some("") => {
            return Err(ConfigError::new(
                key,
                format!(
                    "{:?} is not the URL of {server}; write {example}",
                    url.split('@').next_back().unwrap_or_default()
                ),
            ));
        }
        Some(rest) if rest.contains(['?', '#', ' ']) => {
            return Err(ConfigError::new(
                key,
                format!(
                    "the URL of {server} ends with its host, port or path; whatever else is needed has keys of its own"
                ),
            ));
        }
        // What precedes the @ is not repeated: it may be a password.
        Some(rest) if rest.split('/').next().is_some_and(|host| host.contains('@')) => {
            return Err(ConfigError::new(
                key,
                format!(
                    "the URL of {server} names a user or password: give `user`, and the password in `secret_file` or the variable {variable}"
                ),
            ));
        }
        Some(_) => {}
    }
    if ca.is_some() && !url.starts_with("https://") {
        return Err(ConfigError::new(format!("{table}.ca"), "`ca` is for an https URL"));
    }
    Ok(())
}

fn check_numbers(
    table: &str,
    numbers: Vec<(&'static str, u64, RangeInclusive<u64>)>,
) -> Result<(), ConfigError> {
    match numbers.into_iter().find(|(_, value, range)| !range.contains(value)) {
        Some((name, value, range)) => Err(ConfigError::new(
            format!("{table}.{name}"),
            format!("`{name}` is {value}; it must be {} to {}", range.start(), range.end()),
        )),
        None => Ok(()),
    }
}

impl Otlp {
    /// The spool of a signal, in a collector of this name.
    pub(crate) fn signal_spool(&self, name: &str, signal: Signal) -> ConfiguredSpool {
        let ConfiguredSpool { directory, most, .. } = self.configured_spool(name);
        ConfiguredSpool { sink: signal.sink_name(), directory: directory.join(signal.name()), most }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let what = ["an OpenTelemetry collector", "http://HOST:4318"];
        check_url(Self::TABLE, &self.url, &self.ca, Self::SECRET_VARIABLE, what)?;
        let authority = self.url.split_once("://").map_or("", |(_, rest)| rest.trim_end_matches('/'));
        if self.protocol == OtlpProtocol::Grpc && authority.contains('/') {
            return Err(ConfigError::new(
                "export.otlp.url",
                "over gRPC, `url` ends with its host or port: only HTTP has a path",
            ));
        }
        if self.signals.is_empty()
            || (1..self.signals.len()).any(|n| self.signals[..n].contains(&self.signals[n]))
        {
            return Err(ConfigError::new(
                "export.otlp.signals",
                "`signals` must name what is sent, each once, such as [\"logs\", \"metrics\"]",
            ));
        }
        if self.secret_header.as_ref().is_some_and(|name| !is_header(name)) {
            return Err(ConfigError::new(
                "export.otlp.secret_header",
                "`secret_header` must be the name of an HTTP header, such as \"api-key\"",
            ));
        }
        check_numbers(Self::TABLE, self.bounded_numbers())?;
        check_numbers("export.otlp.traces", self.traces.bounded_numbers())?;
        check_numbers("export.otlp.host_traces", self.host_traces.bounded_numbers())
    }
}

fn is_header(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

impl RemoteWrite {
    fn validate(&self) -> Result<(), ConfigError> {
        let what = ["a receiver of remote write", "http://HOST:9090/api/v1/write"];
        check_url(Self::TABLE, &self.url, &self.ca, Self::SECRET_VARIABLE, what)?;
        check_numbers(Self::TABLE, self.bounded_numbers())
    }
}

impl Kafka {
    fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, reason: &str| Err(ConfigError::new(format!("{}.{key}", Self::TABLE), reason));
        let is_broker = |broker: &String| {
            broker.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
            })
        };
        if self.brokers.is_empty() || !self.brokers.iter().all(is_broker) {
            return wrong("brokers", "`brokers` must name brokers, each as HOST:PORT");
        }
        let is_in_names = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if self.topic.is_empty() || self.topic.len() > 249 || !self.topic.chars().all(is_in_names) {
            return wrong("topic", "`topic` must name a topic: letters, digits, `.`, `_` and `-`");
        }
        if self.ca.is_some() && !self.tls {
            return wrong("ca", "`ca` is for `tls = true`");
        }
        check_numbers(Self::TABLE, self.bounded_numbers())
    }
}

impl Influx {
    fn validate(&self) -> Result<(), ConfigError> {
        let what = ["an InfluxDB server", "http://HOST:8086"];
        check_url(Self::TABLE, &self.url, &self.ca, Self::SECRET_VARIABLE, what)?;
        let blank = |name: &Option<String>| name.as_ref().is_some_and(String::is_empty);
        match (&self.database, &self.org, &self.bucket) {
            (Some(_), None, None) if blank(&self.database) => {
                Err(ConfigError::new("export.influx.database", "`database` must name a database"))
            }
            (Some(_), None, None) => Ok(()),
            (None, Some(_), Some(_)) if blank(&self.org) || blank(&self.bucket) => Err(ConfigError::new(
                "export.influx.bucket",
                "`org` and `bucket` must name an organisation and a bucket",
            )),
            (None, Some(_), Some(_)) if self.user.is_some() => Err(ConfigError::new(
                "export.influx.user",
                "a 2.x server has tokens instead of users: leave `user` out",
            )),
            (None, Some(_), Some(_)) => Ok(()),
            (Some(_), _, _) => Err(ConfigError::new(
                "export.influx.database",
                "`database` is for a 1.x server, `org` and `bucket` for a 2.x server: give one or the other",
            )),
            (None, _, _) => Err(ConfigError::new(
                "export.influx",
                "`database` (1.x server), or `org` and `bucket` (2.x server), must say where points go",
            )),
        }?;
        check_numbers(Self::TABLE, self.bounded_numbers())
    }
}
