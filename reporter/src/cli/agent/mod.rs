//! `dta-reporter agent`: traces one host continuously; points and filters change over gRPC.

mod config;
mod service;
mod trace_spec;
mod traced;

use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::packet_trace::kernel::{self, Tracer, TracerOptions, rights};
use anyhow::{Context as _, Result};
use clap::Args;
use dta_cli::number::format_count;
use dta_cli::service_manager::ServiceManager;
use dta_cli::{CommandStatus, LogFormat};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use config::Config;
use service::{AgentGrpcServer, Command};
use trace_spec::TraceSpec;
use traced::{AgentHost, Traced};

use super::check::CollectorStores;
use super::trace::send::{Sender, SenderConfig, Skew, host_name};
use crate::trace::TraceStores;

pub(super) const AGENT_HELP: &str = "\
Traces the points of its file with its filter from the start. `dta-manager trace` changes and restores \
them at run time. A point that cannot be attached does not stop the agent: the status gives the reason. An \
interface that appears later is attached then.

When ready, it prints one line of JSON with its address. SIGHUP reloads the file: its points, filter and \
TLS files take effect. If anything else has changed, the reload is refused with an error and nothing \
changes. SIGTERM and SIGINT shut it down cleanly. Anything that a killed agent left attached is detached \
by the next one.

Examples:
  dta-reporter agent --config agent.toml";

pub(super) const CHECK_HELP: &str = "\
Checks what `agent` checks at its start, including the TLS files, but not whether the kernel has the \
points. Prints the resulting configuration as a file, and warnings on standard error.

Example:
  dta-reporter check-config --config agent.toml";

pub(super) const CONFIG_HELP: &str =
    "Example:\n  dta-reporter config --example > agent.toml\n  dta-reporter check-config --config agent.toml";

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// What to log, such as `info` or `dta_reporter=debug`
    #[arg(long, env, default_value = "info", value_name = "FILTER")]
    log: String,
    /// Log format
    #[arg(long, env, value_name = "FORMAT", default_value = "text", value_parser = dta_cli::one_of_names::<LogFormat>(&LogFormat::NAMES))]
    log_format: LogFormat,
    /// For tests: a clock that is this many nanoseconds ahead, and gains this many millionths
    #[arg(long, hide = true, value_name = "NANOSECONDS,PPM", allow_hyphen_values = true)]
    test_clock: Option<Skew>,
}

#[derive(Debug, Args)]
pub(super) struct ConfigFile {
    /// Configuration file; `none` reads no file [default: ~/.config/dta/agent.toml or /etc/dta/agent.toml, if
    /// there is one; else nothing is traced until requested]
    #[arg(long, short, env, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    fn load(&self) -> Result<(Config, Option<PathBuf>)> {
        Config::load(self.config.as_deref()).map_err(dta_cli::misuse_error)
    }
}

/// `dta-reporter config`.
pub(super) fn print_example() -> Result<CommandStatus> {
    dta_cli::print_line(config::EXAMPLE.trim_end())?;
    Ok(CommandStatus::Done)
}

/// `dta-reporter check-config`.
pub(super) fn check_config(file: &ConfigFile) -> Result<CommandStatus> {
    let (config, path) = file.load()?;
    match path {
        Some(path) => eprintln!("configuration: {}", path.display()),
        None => eprintln!("no configuration file: these are the defaults"),
    }
    let warnings = service::check_tls(&config).map_err(dta_cli::misuse_error)?;
    dta_cli::configuration_is_good(&toml::to_string(&config)?, &warnings)
}

/// Contents of the ready line.
#[derive(Serialize)]
struct Ready {
    ready: bool,
    pid: u32,
    listen: SocketAddr,
}

/// Interval between checks of the certificate's expiry.
const CERTIFICATE: Duration = Duration::from_secs(3600);

/// Most threads for blocking work of the runtime.
const OTHERS: usize = 4;

/// Runs the agent until it is stopped.
pub(super) fn run(args: &AgentArgs) -> Result<CommandStatus> {
    let (config, path) = args.file.load()?;
    dta_cli::init_logging(&args.log, args.log_format);
    match &path {
        Some(path) => tracing::info!(config = %path.display(), "configuration read"),
        None => tracing::info!("no configuration file: nothing is traced until requested"),
    }
    dta_rpc::transport::give_memory_back();
    let agent = &config.agent;
    let missing = rights::missing_capabilities(agent.namespaces).context("cannot read capabilities")?;
    if !missing.is_empty() {
        return Err(kernel::Error::Rights(missing).into());
    }
    let first = wanted_of(&config).map_err(anyhow::Error::msg)?;
    let options = TracerOptions {
        follow: agent.follow,
        clsact: agent.clsact,
        translator: Some(agent.translator),
        table: first.table.clone(),
        ..TracerOptions::default()
    };
    // Detaches what a dead agent left on interfaces, in all namespaces, which needs the capabilities dropped
    // below.
    let tracer = Tracer::start(&options)?;
    // Before other threads start, because they inherit this thread's capabilities.
    rights::drop_others(agent.namespaces).context("cannot drop capabilities")?;
    let stores = match &agent.collector {
        None => TraceStores::with_default_ids(),
        Some(address) => match CollectorStores::query_collector(Some(address))? {
            CollectorStores::Known(stores) => TraceStores::from_specs(&stores)?,
            CollectorStores::Unknown => TraceStores::with_default_ids(),
        },
    };
    let name = host_name(agent.name.as_deref(), agent.reporter_id);
    let sender = SenderConfig {
        translator: agent.translator,
        reporter_id: agent.reporter_id,
        name: name.clone(),
        slow: config.slow_threshold(),
        synced: agent.synced,
        settle: Duration::from_millis(agent.settle_ms),
        stores,
        first_hop: agent.first_hop,
        skew: args.test_clock,
    };
    if args.test_clock.is_some() {
        tracing::warn!("--test-clock: reported times are wrong");
    }
    let sender = Sender::open(sender, &tracer)?;
    let host = AgentHost {
        name,
        reporter_id: agent.reporter_id,
        translator: agent.translator.to_string(),
        namespaces: agent.namespaces,
    };
    let mut traced = Traced::new(tracer, sender, host);

    dta_cli::enough_threads(1 + OTHERS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(OTHERS)
        .thread_name("dta-grpc")
        .enable_all()
        .build()?;
    let (sender, commands) = mpsc::channel();
    forward_signals(&runtime, &sender)?;
    traced.set(first, true)?;
    let server = AgentGrpcServer::start(&runtime, &config, sender)?;
    let line = serde_json::to_string(&Ready { ready: true, pid: std::process::id(), listen: server.listen })?;
    writeln!(std::io::stdout(), "{line}")
        .map_err(|error| anyhow::anyhow!("cannot write the ready line: {error}"))?;
    tracing::info!(listen = %server.listen, "ready");
    let read = || args.file.load().map(|(config, _)| config);
    let manager = ServiceManager::of_this_process();
    let running = Running {
        traced: &mut traced,
        server,
        runtime: &runtime,
        config,
        read: &read,
        manager,
        alive: Instant::now(),
        certificate: None,
    };
    let ended = running.run(&commands);
    let finished = traced.finish();
    // Do not wait for callers that will get no answer.
    drop((traced, commands));
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended.and(finished).map(|()| CommandStatus::Done)
}

/// The configured trace, or what is wrong with it.
fn wanted_of(config: &Config) -> Result<TraceSpec, String> {
    TraceSpec::of_config(config).map_err(|(key, why)| format!("{key}: {why}"))
}

/// SIGHUP, SIGTERM and SIGINT as commands.
fn forward_signals(runtime: &Runtime, commands: &mpsc::Sender<Command>) -> Result<()> {
    let _inside = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let commands = commands.clone();
    runtime.spawn(async move {
        loop {
            let command = tokio::select! {
                _ = interrupt.recv() => Command::End,
                _ = terminate.recv() => Command::End,
                _ = hangup.recv() => Command::Reload,
            };
            if commands.send(command).is_err() {
                return;
            }
        }
    });
    Ok(())
}

struct Running<'a> {
    traced: &'a mut Traced,
    server: AgentGrpcServer,
    runtime: &'a Runtime,
    config: Config,
    read: &'a dyn Fn() -> Result<Config>,
    manager: ServiceManager,
    /// When the service manager was last notified that the agent is alive.
    alive: Instant,
    /// When the certificate was last checked.
    certificate: Option<Instant>,
}

/// Runs until a command ends it: each turn executes one waiting command after calling `look`.
fn run_in_turns<T>(
    of: &mut T,
    commands: &mpsc::Receiver<Command>,
    look: fn(&mut T) -> Result<()>,
    obey: fn(&mut T, Option<Command>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    loop {
        look(of)?;
        if obey(of, commands.try_recv().ok())?.is_break() {
            return Ok(());
        }
    }
}

impl Running<'_> {
    fn run(mut self, commands: &mpsc::Receiver<Command>) -> Result<()> {
        self.manager.notify_ready(&self.activity_line());
        // The kernel's ring is read between commands, however many arrive.
        run_in_turns(&mut self, commands, |running| running.traced.read_and_send(), Self::execute_command)
    }

    /// Executes the next command, or waits a little if there is none.
    fn execute_command(&mut self, command: Option<Command>) -> Result<ControlFlow<()>> {
        match command {
            Some(Command::Status(answer)) => {
                // The caller may be gone.
                let _ = answer.send(self.traced.agent_status()?);
            }
            Some(Command::Set(trace, answer)) => {
                let result = match self.resolve_spec(trace.as_ref()) {
                    Ok(wanted) => {
                        self.traced.set(wanted, trace.is_none())?;
                        Ok(self.traced.agent_status()?)
                    }
                    Err(why) => Err(why),
                };
                let _ = answer.send(result);
                self.manager.notify_status(&self.activity_line());
            }
            Some(Command::Reload) => {
                self.manager.reloading();
                if let Err(error) = self.reload_config() {
                    let error = dta_cli::error_line(&error);
                    tracing::error!(error, "configuration not reloaded: nothing has changed");
                }
                self.manager.notify_ready(&self.activity_line());
            }
            Some(Command::End) => {
                tracing::info!("shutting down");
                self.manager.notify_stopping();
                return Ok(ControlFlow::Break(()));
            }
            None => self.traced.tracer.wait_for_records(Duration::from_millis(10))?,
        }
        if self.manager.watchdog_interval().is_some_and(|time| self.alive.elapsed() >= time) {
            self.alive = Instant::now();
            self.manager.notify_alive();
        }
        if self.certificate.is_none_or(|looked| looked.elapsed() >= CERTIFICATE) {
            self.certificate = Some(Instant::now());
            if let Some(warning) = self.server.certificate_warning() {
                tracing::warn!("{warning}");
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn resolve_spec(&self, trace: Option<&dta_proto::control::TraceSettings>) -> Result<TraceSpec, String> {
        match trace {
            Some(message) => TraceSpec::of_message(message, self.config.agent.first_hop),
            None => wanted_of(&self.config),
        }
    }

    /// Switches to the file's current contents.
    fn reload_config(&mut self) -> Result<()> {
        let new = (self.read)()?;
        let fixed = self.config.fixed_key_changes(&new);
        anyhow::ensure!(
            fixed.is_empty(),
            "{} cannot change while the agent runs: restart it for that",
            fixed.join(", ")
        );
        let wanted = wanted_of(&new).map_err(anyhow::Error::msg)?;
        if new.tls.is_some() {
            self.server.reload_tls(self.runtime, &new)?;
        }
        self.config = new;
        self.traced.set(wanted, true)?;
        tracing::info!("configuration reloaded");
        Ok(())
    }

    /// What it currently does, in one line for people.
    fn activity_line(&self) -> String {
        let points = self.traced.tracer.points().iter().filter(|point| point.is_attached()).count();
        format!(
            "{} attached, gRPC on {}",
            format_count(points as u64, "point is", "points are"),
            self.server.listen
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_read_between_commands_however_many_wait() {
        const WAITING: usize = 1000;
        let (sender, commands) = mpsc::channel();
        (0..WAITING).for_each(|_| sender.send(Command::Reload).unwrap());
        sender.send(Command::End).unwrap();
        // Reads of the ring, and commands since the last one.
        let mut counts = (0, 0);
        run_in_turns(
            &mut counts,
            &commands,
            |(looks, since)| {
                (*looks, *since) = (*looks + 1, 0);
                Ok(())
            },
            |(_, since), command| {
                *since += 1;
                assert_eq!(*since, 1, "commands follow each other");
                Ok(match command {
                    Some(Command::End) => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                })
            },
        )
        .unwrap();
        assert_eq!(counts.0, WAITING + 1);
    }
}
