//! `dta-collector export`

use std::path::PathBuf;
use std::sync::Arc;

use clap::ArgAction;
use dta_cli::{CommandStatus, LogFormat};
use dta_export::config::{Config, Influx, Json, OtlpProtocol, RemoteWriteVersion};
use dta_export::gauges::{GaugeFollower, Gauges};
use dta_export::names::Names;
use dta_export::run::{ExportOptions, Exporters, Pages, check_exporters, config_warnings};
use dta_export::schema::Schema;
use dta_export::source::Begin;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions, DEFAULT_COLLECTOR};

use crate::cli::TlsFlags;
use crate::cli::names_flag::NamesFlag;
use crate::cli::supervise::Signals;
use crate::config::{CollectorMetricsConfig, Telemetry};

#[derive(clap::Args)]
#[command(after_help = "\
Exports INT events to InfluxDB, an OpenTelemetry collector or Kafka, or prints them as lines of JSON, and metrics to an OpenTelemetry collector or by Prometheus remote write, in a process of its own. `dta-collector serve` does the same within the collector, with the table [export] of its configuration.

Examples:
  dta-collector export --json -           print each event as it comes
  dta-collector export --json - --from-start --once | jq .flow
  dta-collector export --influx http://127.0.0.1:8086 --database int
  dta-collector export --otlp http://127.0.0.1:4318
  dta-collector export --remote-write http://127.0.0.1:9090/api/v1/write
  dta-collector export --kafka 127.0.0.1:9092 --kafka-topic dta-events
  dta-collector export --config collector.toml

InfluxDB's token or password is read from --secret-file or the variable DTA_EXPORT_INFLUX_SECRET, OTLP's token from --otlp-secret-file or DTA_EXPORT_OTLP_SECRET, remote write's token or password from --remote-write-secret-file or DTA_EXPORT_REMOTE_WRITE_SECRET, Kafka's password from DTA_EXPORT_KAFKA_SECRET. Points that a receiver does not accept stay in its spool until it does, even after this program ends.")]
pub(in crate::cli) struct Args {
    /// The collector's gRPC address
    #[arg(long, env, default_value = DEFAULT_COLLECTOR, value_name = "HOST:PORT")]
    collector: String,
    #[command(flatten)]
    tls: TlsFlags,
    /// Take the table [export] of a collector's configuration; flags override it
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// InfluxDB server, such as http://127.0.0.1:8086
    #[arg(long, value_name = "URL")]
    influx: Option<String>,
    /// Database of a 1.x server; created if it does not exist
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// User of a 1.x server with authentication
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Organisation of a 2.x server
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Bucket of a 2.x server
    #[arg(long, value_name = "NAME")]
    bucket: Option<String>,
    /// File whose first line is the token (2.x) or the user's password (1.x)
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// CA certificates of the server (PEM), for an https URL
    #[arg(long, value_name = "FILE")]
    influx_ca: Option<PathBuf>,
    /// Names in the database; `intcollector` uses those of INTCollector [default: tags]
    #[arg(long, value_name = "SCHEMA", value_parser = dta_cli::one_of_names::<Schema>(&Schema::NAMES))]
    schema: Option<Schema>,
    /// Directory of points that the database has not accepted yet
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// OpenTelemetry collector, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// How it is reached; gRPC usually has port 4317 [default: http]
    #[arg(long, value_name = "PROTOCOL", value_parser = dta_cli::one_of_names::<OtlpProtocol>(&OtlpProtocol::NAMES))]
    otlp_protocol: Option<OtlpProtocol>,
    /// File whose first line is the token for it
    #[arg(long, value_name = "FILE")]
    otlp_secret_file: Option<PathBuf>,
    /// CA certificates of it (PEM), for an https URL
    #[arg(long, value_name = "FILE")]
    otlp_ca: Option<PathBuf>,
    /// Receiver of Prometheus remote write, such as http://127.0.0.1:9090/api/v1/write
    #[arg(long, value_name = "URL")]
    remote_write: Option<String>,
    /// Version of remote write [default: 1.0]
    #[arg(long, value_name = "VERSION", value_parser = dta_cli::one_of_names::<RemoteWriteVersion>(&RemoteWriteVersion::NAMES))]
    remote_write_version: Option<RemoteWriteVersion>,
    /// User of a receiver with passwords
    #[arg(long, value_name = "NAME")]
    remote_write_user: Option<String>,
    /// File whose first line is the token or the user's password for it
    #[arg(long, value_name = "FILE")]
    remote_write_secret_file: Option<PathBuf>,
    /// CA certificates of it (PEM), for an https URL
    #[arg(long, value_name = "FILE")]
    remote_write_ca: Option<PathBuf>,
    /// Broker of Kafka, such as 127.0.0.1:9092
    #[arg(long, value_name = "HOST:PORT")]
    kafka: Option<String>,
    /// Its topic, which must exist [default: dta-events]
    #[arg(long, value_name = "NAME")]
    kafka_topic: Option<String>,
    /// Append events to this file as lines of JSON; `-` prints them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Append store with the events [default: int-events]
    #[arg(long, value_name = "NAME")]
    events: Option<String>,
    #[command(flatten)]
    names: NamesFlag,
    /// Begin with the oldest event in the ring. Printed lines otherwise begin with the next one
    #[arg(long, action = ArgAction::SetTrue)]
    from_start: bool,
    /// Stop when everything that is there has been exported
    #[arg(long)]
    once: bool,
    /// What to log, for instance `info` or `dta_export=debug`
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log: String,
    /// Log format
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = dta_cli::one_of_names::<LogFormat>(&LogFormat::NAMES))]
    log_format: LogFormat,
}

impl Args {
    /// The file's tables `[export]`, with flags applied, and `[metrics]`; and the names of switches, ports and drop reasons.
    fn configuration(&self) -> anyhow::Result<(Config, CollectorMetricsConfig, Names)> {
        let (mut config, metrics, named) = match &self.config {
            Some(path) => {
                let of_file = crate::config::Config::load(path).map_err(dta_cli::misuse_error)?.0;
                (of_file.export, of_file.metrics, of_file.names)
            }
            None => Default::default(),
        };
        let asked = self.names.names.as_deref().or(named.as_deref());
        let (names, _) = Names::find_and_load(asked).map_err(dta_cli::misuse_error)?;
        fn override_with<T: Clone>(field: &mut Option<T>, flag: &Option<T>) {
            if flag.is_some() {
                field.clone_from(flag);
            }
        }
        let of_influx = [&self.influx, &self.database, &self.org, &self.bucket];
        if of_influx.iter().any(|flag| flag.is_some()) {
            config.influx.get_or_insert_default();
        }
        if let Some(influx) = &mut config.influx {
            let Influx { url, database, user, org, bucket, secret_file, ca, schema, spool, .. } = influx;
            *url = self.influx.clone().unwrap_or_else(|| url.clone());
            // A server has one version, so flags of one version replace settings of the other.
            if self.database.is_some() {
                (*org, *bucket) = (None, None);
            } else if self.org.is_some() || self.bucket.is_some() {
                (*database, *user) = (None, None);
            }
            override_with(database, &self.database);
            override_with(user, &self.user);
            override_with(org, &self.org);
            override_with(bucket, &self.bucket);
            override_with(secret_file, &self.secret_file);
            override_with(ca, &self.influx_ca);
            override_with(spool, &self.spool);
            *schema = self.schema.unwrap_or(*schema);
        }
        if let Some(url) = &self.otlp {
            config.otlp.get_or_insert_default().url.clone_from(url);
        }
        if let Some(otlp) = &mut config.otlp {
            otlp.protocol = self.otlp_protocol.unwrap_or(otlp.protocol);
            override_with(&mut otlp.secret_file, &self.otlp_secret_file);
            override_with(&mut otlp.ca, &self.otlp_ca);
        }
        if let Some(url) = &self.remote_write {
            config.remote_write.get_or_insert_default().url.clone_from(url);
        }
        if let Some(remote) = &mut config.remote_write {
            remote.version = self.remote_write_version.unwrap_or(remote.version);
            override_with(&mut remote.user, &self.remote_write_user);
            override_with(&mut remote.secret_file, &self.remote_write_secret_file);
            override_with(&mut remote.ca, &self.remote_write_ca);
        }
        if let Some(broker) = &self.kafka {
            config.kafka.get_or_insert_default().brokers = vec![broker.clone()];
        }
        if let (Some(kafka), Some(topic)) = (&mut config.kafka, &self.kafka_topic) {
            kafka.topic.clone_from(topic);
        }
        if let Some(file) = &self.json {
            let names = config.json.is_none_or(|json| json.names);
            config.json = Some(Json { file: file.clone(), names });
        }
        config.events = self.events.clone().unwrap_or(config.events);
        if !config.has_exporters() {
            return Err(dta_cli::misuse_error(anyhow::anyhow!(
                "no destination: give --influx URL and --database NAME (or --org and --bucket), --otlp URL, \
                 --remote-write URL, --kafka HOST:PORT, --json FILE, or --config FILE"
            )));
        }
        check_exporters(&config).map_err(dta_cli::misuse_error)?;
        Ok((config, metrics, names))
    }

    /// Where to begin without an earlier run: a terminal wants what is new, a database everything there is.
    fn starting_point(&self, config: &Config) -> Begin {
        let prints = config.json.as_ref().is_some_and(|json| json.file.as_os_str() == "-");
        if prints
            && config.influx.is_none()
            && config.otlp.is_none()
            && config.kafka.is_none()
            && !self.from_start
            && !self.once
        {
            Begin::Next
        } else {
            Begin::Oldest
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let (config, metrics, names) = args.configuration()?;
    dta_cli::init_logging(&args.log, args.log_format);
    for warning in config_warnings(&config) {
        tracing::warn!("{warning}");
    }
    let options = ClientOptions::new(&args.collector, args.tls.client_tls());
    super::block_on(async {
        let mut signals = Signals::new()?;
        let ask: Arc<dyn Ask> = Arc::new(RemoteCollector::connect_lazy(&options)?);
        let begin = args.starting_point(&config);
        // The default spool directory depends on the collector.
        let name: String =
            args.collector.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let names = Arc::new(names);
        let pages = metric_pages(&ask, config.has_metrics().then_some(&metrics), &names);
        let run = ExportOptions { begin, once: args.once, names, ..ExportOptions::default() };
        let mut exporters = Exporters::start(&config, &name, &ask, &pages, run)?;
        let counters = exporters.exporter_counters();
        tokio::select! {
            () = exporters.wait_until_done() => {}
            () = signals.wait_for_end() => {}
        }
        exporters.stop_exporters().await;
        for (sink, counters) in counters {
            let counted = counters.named_counters(sink).into_iter().filter(|(_, value)| *value > 0);
            let counted: Vec<_> = counted.map(|(name, value)| format!("{name}={value}")).collect();
            tracing::info!(counted = counted.join(" "), "ended");
        }
        anyhow::Ok(())
    })?;
    Ok(CommandStatus::Done)
}

/// Builds pages of the collector's metrics, with telemetry if `metrics` asks for it.
fn metric_pages(ask: &Arc<dyn Ask>, metrics: Option<&CollectorMetricsConfig>, names: &Arc<Names>) -> Pages {
    let telemetry = metrics.and_then(|metrics| {
        let Telemetry::As(schema) = metrics.telemetry else { return None };
        let names = if metrics.names { names.clone() } else { Arc::new(Names::empty()) };
        let gauges = Gauges::new(schema, metrics.telemetry_limits(), names);
        Some(GaugeFollower::start(ask.clone(), &metrics.store, gauges))
    });
    let (ask, telemetry) = (ask.clone(), Arc::new(telemetry));
    Arc::new(move || {
        let (ask, telemetry) = (ask.clone(), telemetry.clone());
        Box::pin(async move {
            let mut page = crate::page::metrics_page(&*ask).await.map_err(|error| error.to_string())?;
            if let Some(telemetry) = &*telemetry {
                telemetry.add_to_page(&mut page);
            }
            Ok(page)
        })
    })
}
