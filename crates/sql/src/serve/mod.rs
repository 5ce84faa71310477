//! `dta-history serve`: Arrow Flight SQL. [`service`] has its methods, [`answer`] limits what statements may take, [`worker`] manages the processes
//! that run them, and [`work`] is what these processes do.

mod answer;
mod metadata;
mod protocol;
mod service;
mod work;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use arrow_flight::flight_service_server::FlightServiceServer;
use dta_cli::service_manager::ServiceManager;
use dta_cli::{CommandStatus, LogFormat};
use dta_files::host;
use dta_rpc::transport::tls::ServerFiles;
use dta_rpc::transport::{ConnectionCounters, Listen, MAX_MESSAGE, Method};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::session::StatementLimits;
use crate::source::SourceFlags;
use answer::{Bounds, StatementRunner};
use protocol::WorkerSetup;
use service::HistoryFlightService;
pub(crate) use work::{COMMAND as WORKER, main as run_worker};

/// Threads for connections; statements run in processes of their own.
const CONNECTIONS: usize = 2;
/// How long open connections may take to end.
const ENDING: Duration = Duration::from_secs(2);
/// Open files besides connections: pipes to workers.
const FILES: u64 = 256;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  dta-history serve
  dta-history serve --collector 127.0.0.1:40050 --queries 2 --query-seconds 10
  dta-history serve --listen 10.0.0.5:40056 \\
      --tls-cert c.crt --tls-key c.key --tls-client-ca ca.crt

Clients are ADBC's drivers for Flight SQL, Grafana's Flight SQL data source, and JDBC. When ready, it prints one line of JSON with its address. SIGTERM and SIGINT shut it down.")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceFlags,
    #[command(flatten)]
    limits: StatementLimits,
    /// Address and port; port 0 takes a free one
    #[arg(long, env, value_name = "HOST:PORT", default_value = "127.0.0.1:40056", value_parser = host::resolve_socket)]
    listen: SocketAddr,
    /// Certificate (PEM)
    #[arg(long, env, value_name = "FILE", requires_all = ["tls_key", "tls_client_ca"])]
    tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, env, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA of client certificates (PEM)
    #[arg(long, env, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Serve a non-loopback address without TLS: anyone who reaches it can read all tables
    #[arg(long, env)]
    insecure: bool,
    /// Simultaneous connections
    #[arg(long, env, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Statements that run at a time, those of one client at most three quarters of them; others wait
    #[arg(long, env, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    queries: u16,
    /// Seconds that a statement may take, with waiting and with the reading of its answer
    #[arg(long, env, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    query_seconds: u32,
    /// Rows that an answer may have
    #[arg(long, env, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    query_rows: u64,
    /// What to log, for instance `info` or `dta_history=debug`
    #[arg(long, env, default_value = "info", value_name = "FILTER")]
    log: String,
    /// Log format
    #[arg(long, env, value_name = "FORMAT", default_value = "text", value_parser = dta_cli::one_of_names::<LogFormat>(&LogFormat::NAMES))]
    log_format: LogFormat,
}

pub(crate) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    dta_cli::init_logging(&args.log, args.log_format);
    let files = match (&args.tls_cert, &args.tls_key, &args.tls_client_ca) {
        (Some(cert), Some(key), Some(client_ca)) => Some(ServerFiles { cert, key, client_ca }),
        _ => None,
    };
    if files.is_none() && !args.listen.ip().is_loopback() && !args.insecure {
        return Err(dta_cli::misuse_error(anyhow::anyhow!(
            "without TLS, anyone who reaches {} can read all tables: give --tls-cert, --tls-key and --tls-client-ca, listen on loopback, or \
             say --insecure",
            args.listen
        )));
    }
    dta_rpc::transport::tls::exposure_warnings(args.listen, files.as_ref(), "read all tables")
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    let tls =
        files.map(|files| dta_rpc::transport::tls::load_server_tls(&files, SystemTime::now())).transpose()?;
    let limits = dta_rpc::transport::ServerLimits {
        connections: args.connections.into(),
        connections_per_address: three_quarters(args.connections),
        // Calls wait for statements' places, of which there are fewer.
        calls: args.connections.into(),
        calls_per_caller: three_quarters(args.connections),
        // A late statement reaches its own time limit first, whose error says so.
        call: Duration::from_secs(u64::from(args.query_seconds) + 5),
        ..dta_rpc::transport::ServerLimits::FEW
    };
    let limits = limits.within_file_limit(dta_rpc::transport::raise_file_limit(), FILES);
    let connections =
        tokio::runtime::Builder::new_multi_thread().worker_threads(CONNECTIONS).enable_all().build()?;
    let bounds = Bounds {
        statements: args.queries.into(),
        statements_per_caller: three_quarters(args.queries),
        time: Duration::from_secs(args.query_seconds.into()),
    };
    let setup = WorkerSetup {
        source: args.source,
        limits: args.limits,
        rows: args.query_rows,
        log: args.log,
        log_json: matches!(args.log_format, LogFormat::Json),
    };
    let runner =
        connections.block_on(StatementRunner::start(setup, bounds)).map_err(dta_cli::misuse_error)?;
    let service = HistoryFlightService::new(runner)?;
    connections.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let listener = TcpListener::bind(args.listen).await.with_context(|| {
            format!("cannot listen on {} (choose another address with --listen)", args.listen)
        })?;
        let address = listener.local_addr()?;
        let counters = Arc::new(ConnectionCounters::default());
        let health = dta_rpc::transport::standard::start_health("arrow.flight.protocol.FlightService");
        health.set(true);
        let incoming = dta_rpc::transport::accept_tcp(
            listener,
            Listen { limits, tls: tls.map(|tls| tls.config) },
            counters.clone(),
        );
        let server = dta_rpc::transport::build_server(limits, flight_method, counters)
            .add_service(FlightServiceServer::new(service).max_decoding_message_size(MAX_MESSAGE))
            .add_service(health.health_service());
        let manager = ServiceManager::of_this_process();
        manager.notify_ready(&format!("serving {address}"));
        let ready = serde_json::json!({ "ready": true, "pid": std::process::id(), "listen": address });
        dta_cli::print_line(ready).context("cannot print the ready line")?;
        let stopped = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("shutting down");
            manager.notify_stopping();
        };
        // Answers still being read are cut off.
        tokio::pin!(stopped);
        tokio::select! {
            served = server.serve_with_incoming(incoming) => served.context("cannot serve"),
            () = &mut stopped => Ok(()),
        }
    })?;
    // Workers, and what they left on disk, go with their connections and statements.
    connections.shutdown_timeout(ENDING);
    Ok(CommandStatus::Done)
}

/// What one client may have of a number, so that some is left for others.
fn three_quarters(number: u16) -> usize {
    (usize::from(number) * 3 / 4).max(1)
}

fn flight_method(path: &str) -> Method {
    match path {
        "/arrow.flight.protocol.FlightService/DoGet" => Method::Stream,
        _ => Method::Ordinary,
    }
}
