//! `dta-collector serve`

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use dta_cli::service_manager::ServiceManager;
use dta_cli::{CommandStatus, LogFormat};
use dta_files::config_file::{self, KeyPositions};
use dta_files::host;
use serde::Serialize;

use super::names_flag::NamesFlag;
use super::supervise::{self, Signals};
use crate::config::{
    CollectorClusterConfig, CollectorTlsConfig, Config, ConfigError, MemoryBacking, SoftLink, Telemetry,
    Transport,
};
use crate::server::RunningCollector;

/// Threads for calls; the software NIC has its own.
const WORKERS: usize = 2;
/// Most threads that wait for memory and files. Calls that read memory take up to 8 of them and session calls
/// 32, which leaves some for the upkeep of stores, sessions and exports.
const BLOCKING: usize = 48;
/// Most threads for ring doors, exports and signals.
const OTHERS: usize = 8;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  dta-collector serve                     software NIC, gRPC on 127.0.0.1:40050
  dta-collector serve --device mlx5_0     a real NIC
  dta-collector serve --listen 10.0.0.5:40050 \\
      --tls-cert c.crt --tls-key c.key --tls-client-ca ca.crt
  dta-collector serve --listen 10.0.0.5:40050 --cluster etcd://10.0.0.1:2379

Flags override DTA_COLLECTOR_* variables, which override the file. When ready, it prints one line of JSON with its addresses. SIGTERM and SIGINT shut it down cleanly; sessions and stores survive even a kill.

SIGHUP reloads the configuration: TLS files, limits, operators and added stores take effect. If anything else has changed, that is logged and nothing takes effect.")]
pub(super) struct Args {
    #[command(flatten)]
    settings: ServeSettings,
    /// What to log, for instance `info` or `dta_collector=debug`
    #[arg(long, env, default_value = "info", value_name = "FILTER")]
    log: String,
    /// Log format
    #[arg(long, env, value_name = "FORMAT", default_value = "text", value_parser = dta_cli::one_of_names::<LogFormat>(&LogFormat::NAMES))]
    log_format: LogFormat,
    /// Print one line of JSON on stdout when ready, which every daemon does without it
    #[arg(long = "ready", hide = true)]
    _ready: bool,
    /// Exit when the parent process exits
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Where the configuration comes from.
#[derive(clap::Args)]
pub(super) struct ServeSettings {
    /// Configuration file; `none` reads no file [default: ~/.config/dta/collector.toml or
    /// /etc/dta/collector.toml, if there is one; else small stores are served on loopback]
    #[arg(long, short, env, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of this collector, part of its memory directory's name
    #[arg(long, env)]
    name: Option<String>,
    /// Address and port of gRPC; port 0 takes a free one
    #[arg(long, env, value_name = "HOST:PORT", value_parser = host::resolve_socket)]
    listen: Option<SocketAddr>,
    /// `soft`, or the name of an RDMA device such as mlx5_0
    #[arg(long, env)]
    device: Option<String>,
    /// Directory of region files, or `anonymous`
    #[arg(long, env, value_name = "DIR")]
    memory: Option<MemoryBacking>,
    /// Where metrics are scraped: HOST:PORT, `off`, or `auto`, which is 127.0.0.1:40052 if it is free
    #[arg(long, env, value_name = "HOST:PORT|auto|off")]
    metrics: Option<dta_export::metrics::Address>,
    /// Naming scheme of telemetry in the metrics
    #[arg(long, env, value_name = "SCHEMA", value_parser = dta_cli::one_of_names::<Telemetry>(&Telemetry::NAMES))]
    metrics_telemetry: Option<Telemetry>,
    /// Where the page in the browser is: HOST:PORT, `off`, or `auto`, which is 127.0.0.1:40055 if it is free
    #[arg(long, env, value_name = "HOST:PORT|auto|off")]
    web: Option<dta_export::metrics::Address>,
    #[command(flatten)]
    names: NamesFlag,
    /// Transport of writes
    #[arg(long, env, value_parser = dta_cli::one_of_names::<Transport>(&Transport::NAMES))]
    transport: Option<Transport>,
    /// Address of the software NIC
    #[arg(long, env, value_name = "HOST", value_parser = host::resolve_ip)]
    soft_address: Option<IpAddr>,
    /// UDP port of the software NIC; 0 takes a free one
    #[arg(long, env, value_name = "PORT")]
    soft_port: Option<u16>,
    /// Link of the software NIC: `udp`, or `packet:`, `xdp:` or `auto:` and an interface
    #[arg(long, env, value_name = "LINK")]
    soft_link: Option<SoftLink>,
    /// Threads of the software NIC, 1 to 16; each queue pair belongs to one thread
    #[arg(long, env, value_name = "N")]
    soft_threads: Option<usize>,
    /// Faults on frames that the software NIC sends, such as drop=0.01,dup=0.01 (for testbeds)
    #[arg(long, env, value_name = "FAULTS")]
    soft_faults: Option<dta_link::fault::Faults>,
    /// Seed of the faults
    #[arg(long, env, value_name = "N")]
    soft_fault_seed: Option<u64>,
    /// Port of the RDMA device, from 1
    #[arg(long, env, value_name = "N")]
    ib_port: Option<u8>,
    /// Address whose GID translators send to
    #[arg(long, env, value_name = "HOST", value_parser = host::resolve_ip)]
    roce_address: Option<IpAddr>,
    /// GID index of the RDMA device, instead of the best match
    #[arg(long, env, value_name = "N")]
    gid_index: Option<u32>,
    /// Join the cluster in etcd: etcd://HOST:PORT[,HOST:PORT][/PREFIX]
    #[arg(long, env, value_name = "URL")]
    cluster: Option<dta_cluster::Config>,
    /// Name in the cluster, unlike that of any other collector [default: --name]
    #[arg(long, env, value_name = "ID")]
    id: Option<String>,
    /// Address by which others in the cluster reach gRPC here [default: --listen]
    #[arg(long, env, value_name = "HOST:PORT")]
    cluster_address: Option<String>,
    /// What fails as a whole with this collector, such as a rack
    #[arg(long, env, value_name = "NAME")]
    zone: Option<String>,
    /// Certificate of the gRPC service (PEM)
    #[arg(long, env, value_name = "FILE", requires_all = ["tls_key", "tls_client_ca"])]
    tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, env, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA of client certificates (PEM)
    #[arg(long, env, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Serve a non-loopback address without TLS: anyone who reaches it can get keys to memory
    #[arg(
        long, env, num_args = 0..=1, default_missing_value = "true",
        value_name = "YES|NO", value_parser = clap::builder::BoolishValueParser::new()
    )]
    insecure: Option<bool>,
}

impl ServeSettings {
    /// The configuration from the file, with variables and flags applied, and the path of that file, if any.
    pub(super) fn configuration(&self) -> Result<(Config, Option<PathBuf>), ConfigError> {
        let path = config_file::find_config_file(self.config.as_deref(), "collector.toml");
        let (mut config, mut places) = match &path {
            Some(path) => Config::load(path)?,
            None => Default::default(),
        };
        if let Some(name) = &self.name
            && config.memory == MemoryBacking::Directory(crate::config::default_directory(&config.name))
        {
            config.memory = MemoryBacking::Directory(crate::config::default_directory(name));
        }
        places.apply_flag("collector.name", &mut config.name, &self.name);
        places.apply_flag("collector.listen", &mut config.listen, &self.listen);
        places.apply_flag("collector.device", &mut config.device, &self.device);
        places.apply_flag("collector.memory", &mut config.memory, &self.memory);
        places.apply_flag("collector.transport", &mut config.transport, &self.transport);
        places.apply_flag("metrics.listen", &mut config.metrics.listen, &self.metrics);
        places.apply_flag("metrics.telemetry", &mut config.metrics.telemetry, &self.metrics_telemetry);
        places.apply_flag("web.listen", &mut config.web.listen, &self.web);
        let soft = &mut config.soft;
        places.apply_flag("soft.address", &mut soft.address, &self.soft_address);
        places.apply_flag("soft.port", &mut soft.port, &self.soft_port);
        places.apply_flag("soft.link", &mut soft.link, &self.soft_link);
        places.apply_flag("soft.threads", &mut soft.threads, &self.soft_threads);
        places.apply_flag("soft.faults", &mut soft.faults, &self.soft_faults);
        places.apply_flag("soft.fault_seed", &mut soft.fault_seed, &self.soft_fault_seed);
        self.apply_cluster_flags(&mut config, &mut places)?;
        config.names = self.names.names.clone().or(config.names);
        config.verbs.port = self.ib_port.or(config.verbs.port);
        config.verbs.address = self.roce_address.or(config.verbs.address);
        config.verbs.gid_index = self.gid_index.or(config.verbs.gid_index);
        if let (Some(cert), Some(key), Some(client_ca)) = (&self.tls_cert, &self.tls_key, &self.tls_client_ca)
        {
            places.forget_key("tls");
            let operators = config.tls.take().map(|tls| tls.operators).unwrap_or_default();
            config.tls = Some(CollectorTlsConfig {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
                operators,
            });
        }
        places.apply_flag("collector.insecure", &mut config.insecure, &self.insecure);
        config.validate().map_err(|error| places.locate_error(error))?;
        Ok((config, path))
    }
}

impl ServeSettings {
    fn apply_cluster_flags(&self, config: &mut Config, places: &mut KeyPositions) -> Result<(), ConfigError> {
        if let Some(etcd) = &self.cluster {
            places.forget_key("cluster.etcd");
            match &mut config.cluster {
                Some(cluster) => cluster.etcd = etcd.clone(),
                none => *none = Some(CollectorClusterConfig::with_etcd(etcd.clone())),
            }
        }
        let own = [("id", &self.id), ("cluster-address", &self.cluster_address), ("zone", &self.zone)];
        match (&mut config.cluster, own.into_iter().find(|(_, flag)| flag.is_some())) {
            (Some(cluster), _) => {
                cluster.id = self.id.clone().or(cluster.id.take());
                cluster.address = self.cluster_address.clone().or(cluster.address.take());
                places.apply_flag("cluster.zone", &mut cluster.zone, &self.zone);
                Ok(())
            }
            (None, None) => Ok(()),
            (None, Some((flag, _))) => {
                let reason = format!("--{flag} is for a collector in a cluster: give --cluster, too");
                Err(ConfigError::new("cluster", reason))
            }
        }
    }
}

#[derive(Serialize)]
struct Ready<'a> {
    ready: bool,
    pid: u32,
    listen: SocketAddr,
    device: &'a str,
    /// Where RoCEv2 frames are received.
    roce: SocketAddr,
    /// Where metrics are scraped; `null` if nowhere.
    metrics: Option<SocketAddr>,
    /// The page's address for a browser; `null` if there is none.
    web: Option<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let (config, path) = args.settings.configuration().map_err(dta_cli::misuse_error)?;
    if args.die_with_parent {
        let parent = rustix::process::getppid();
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .context("cannot ask to exit with the parent")?;
        // The parent may have exited before the line above.
        if rustix::process::getppid() != parent {
            return Ok(CommandStatus::Failed);
        }
    }
    dta_cli::init_logging(&args.log, args.log_format);
    match &path {
        Some(path) => tracing::info!(config = %path.display(), "configuration read"),
        None => tracing::info!("no configuration file: using the defaults"),
    }
    dta_rpc::transport::give_memory_back();
    dta_rpc::transport::raise_file_limit();
    dta_cli::enough_threads(WORKERS + BLOCKING + config.soft.threads + OTHERS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .thread_name("dta-grpc")
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Before anything is announced, so that a signal right after the ready line is seen.
        let mut signals = Signals::new()?;
        let manager = ServiceManager::of_this_process();
        let server = tokio::select! {
            server = RunningCollector::start(&config) => server?,
            () = signals.wait_for_end() => return Ok(()),
            never = supervise::ask_for_time(&manager) => match never {},
        };
        announce_ready(&server)?;
        let read = || args.settings.configuration().map(|(config, _)| config);
        supervise::run(server, &manager, &mut signals, &read).await
    })?;
    // An aborted start may still be allocating memory; do not wait for it.
    runtime.shutdown_background();
    Ok(CommandStatus::Done)
}

fn announce_ready(server: &RunningCollector) -> anyhow::Result<()> {
    let endpoint = &server.device.endpoint;
    let ready = Ready {
        ready: true,
        pid: std::process::id(),
        listen: server.listen,
        device: &server.device.name,
        roce: SocketAddr::new(endpoint.ip, endpoint.port),
        metrics: server.scrape_address(),
        web: server.page_url(),
    };
    let line = serde_json::to_string(&ready)?;
    // The program that started this one waits for that line, so a pipe that nobody reads is an error, too.
    dta_cli::print_line(line).map_err(|error| anyhow::anyhow!("cannot write the ready line: {error}"))?;
    if let Some(page) = &ready.web {
        tracing::info!(%page, "open this in a browser");
    }
    tracing::info!(
        listen = %server.listen,
        device = %server.device.name,
        roce = %ready.roce,
        seconds = server.took.as_secs_f64(),
        "ready"
    );
    Ok(())
}
