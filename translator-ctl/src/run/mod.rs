//! `dta-translator run`: the software data plane between links, with its session and its own service.

mod control_port;
mod drops;
mod metrics;
mod reload;
mod service;
mod watch;

use std::io::Write as _;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use dta_link::fault::{FaultInjector, Faults};
use dta_link::{Link, UdpConfig, UdpLink};
use futures_util::future::join_all;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch::channel as watch_channel};
use tracing::{info, warn};

use crate::config::Translator;
use crate::control_address::ControlAddress;
use crate::lease::{self, Event, Halted, Kept};
use crate::packets::ledger::Ledger;
use crate::packets::{Command, IntSide, PacketThread, RoceLink, for_collector};
use crate::session::Session;
use crate::target::software::InProcess;
use dta_dataplane::Engine;
use dta_proto::control::NodeStatistics;
use dta_proto::program::Endpoint;
pub use reload::Read;
use reload::{Asked, Prepared};
use service::Service;
use watch::Manager;

/// The gRPC service of translators, by its full name.
const SERVICE: &str = "dta.v1.Translator";

/// Options of `run` that are not in the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Faults on RoCEv2 frames and on NACKs.
    pub faults: Faults,
    /// Faults on NACKs. `None` = the same as on frames.
    pub nack_faults: Option<Faults>,
    /// Faults on the NIC's answers as they come in, for a NIC that injects none itself.
    pub answer_faults: Faults,
    /// Seed of the faults.
    pub seed: u64,
    /// File in which to write each copy of a report that was lost or changed on its way to the NIC.
    pub ledger: Option<PathBuf>,
    /// Print one line of JSON on stdout when reports are taken.
    pub ready: bool,
    /// Open no session: wait to be programmed by `setup`.
    pub blank: bool,
}

/// Runs until SIGINT or SIGTERM. At SIGHUP, `read` gives the configuration of then.
///
/// # Errors
/// An address in use, a collector that refuses, or a link that stops working.
pub fn run(config: &Translator, options: &Options, read: &Read<'_>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(serve(config, options, read))
}

async fn serve(config: &Translator, options: &Options, read: &Read<'_>) -> anyhow::Result<()> {
    // Before anything else: none of them ends the process by itself from here on.
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let nack_faults = options.nack_faults.unwrap_or(options.faults);
    let reports = UdpLink::open(&UdpConfig::reports(config.listen, nack_faults.corrupts()))
        .context("cannot take reports (--listen)")?;
    let int = IntSide::open(&config.int.listen, &config.int.stores, config.int.rules()?)
        .context("cannot take Telemetry Reports of INT (--int)")?;
    let int_addresses = int.as_ref().map(IntSide::addresses).unwrap_or_default();
    let (roce, endpoint) = RoceLink::open(config)
        .context("cannot send frames and take the NIC's answers (--source, --source-port)")?;
    let (listen, runs) = (reports.local_addr(), reports.runs());
    let own = control_port::Port::open(&config.control)
        .await
        .with_context(|| format!("cannot serve gRPC on {}: choose another --control", config.control))?;
    let control_address = own.address.clone();
    let metrics = dta_metrics::Port::open(&config.metrics, dta_metrics::TRANSLATOR_ADDRESS).await?;

    let ledger = match &options.ledger {
        Some(path) => Some(
            Ledger::create(path).with_context(|| format!("cannot create the ledger {}", path.display()))?,
        ),
        None => None,
    };
    let (commands, inbox) = mpsc::channel();
    let mut engine = Engine::new(config.limits(ledger.is_some()));
    engine.list_reporters(&config.listed());
    let turns = watch::turns();
    let packets = PacketThread {
        engine,
        roce_faults: FaultInjector::new(options.faults, options.seed, roce.scope()),
        nack_faults: FaultInjector::new(nack_faults, options.seed ^ 0x4e41_434b, reports.scope()),
        answer_faults: FaultInjector::new(options.answer_faults, options.seed ^ 0x4143_4b53, roce.scope()),
        faulty: !options.faults.is_none(),
        turns: turns.clone(),
        ledger,
        commands: inbox,
        reports,
        int,
        roce,
    };
    let (ended, mut end) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("dataplane".into())
        .spawn(move || {
            // If the program ends for another reason, nobody waits for this result, and that is no error.
            let _ = ended.send(packets.run());
        })
        .context("cannot start the data plane")?;

    // With TLS, remote keys are a secret. Every user of this host can reach a TCP port of loopback, so
    // programs, which hold keys, are served on a unix socket only.
    let programs = config.tls.is_none() || matches!(control_address, ControlAddress::Unix(_));
    let mut target = InProcess::new(config.name.clone(), life(), commands).with_rings(config);
    let (stop_service, service_stopped) = oneshot::channel::<()>();
    let health = dta_grpc::standard::health(SERVICE);
    let stopped = async {
        let _ = service_stopped.await;
    };
    let service = Service::new(target.clone(), programs);
    let service = own.serve(service, &health, stopped).map_err(|error| anyhow!(error))?;
    let sessions_told = Arc::new(metrics::Sessions::default());
    let served =
        metrics.map(|port| metrics::serve(port, target.clone(), health.clone(), sessions_told.clone()));
    let metrics_address = metrics::address(served.as_ref());
    let manager = Manager::new(health, options.blank);
    info!(%listen, control = %control_address, source = %endpoint.ip, port = endpoint.port, runs = %runs, "taking reports");

    let mut sessions: Vec<Session> = (config.collector.indices())
        .map(|collector| Session::new(config, collector, endpoint))
        .collect::<Result<_, _>>()?;
    let ready = |session: bool| {
        let taken = Taken {
            listen,
            int: &int_addresses,
            control: &control_address,
            metrics: metrics_address,
            endpoint: &endpoint,
        };
        ready_line(config, options, &taken, session)
    };
    let tell = |event: Event<'_>| {
        manager.sessions(&event);
        sessions_told.tell(&event);
        if event.ready { ready(true) } else { Ok(()) }
    };
    let looked_after = target.clone();
    let mut look_after = std::pin::pin!(watch::look_after(&looked_after, &turns, &manager));
    let mut config = config.clone();
    let mut kept = Kept::new(sessions.len());
    let mut announced = false;
    let result = loop {
        let (halt, mut halted) = watch_channel(false);
        let mut prepared: Option<Prepared> = None;
        let next = {
            let config = &config;
            let mut asked: Option<Asked<'_>> = None;
            let mut leased = std::pin::pin!(async {
                if options.blank {
                    if !std::mem::replace(&mut announced, true) {
                        ready(false)?;
                        manager.ready("waiting to be programmed".into());
                    }
                    // The sender lives longer than this.
                    let _ = halted.wait_for(|halt| *halt).await;
                    Ok(Halted)
                } else {
                    lease::keep(config, &mut sessions, &mut target, &mut kept, halted, tell).await
                }
            });
            loop {
                tokio::select! {
                    result = &mut leased => break match result {
                        Ok(Halted) => Next::Reload,
                        Err(error) => Next::End(Err(error)),
                    },
                    _ = stop.recv() => break Next::End(Ok(())),
                    _ = interrupt.recv() => break Next::End(Ok(())),
                    _ = hangup.recv(), if asked.is_none() && prepared.is_none() => {
                        manager.reloading();
                        asked = Some(Box::pin(reload::prepare(config, &endpoint, options.blank, read)));
                    }
                    outcome = async { asked.as_mut().expect("asked").await }, if asked.is_some() => {
                        asked = None;
                        match outcome {
                            Ok(Some(new)) => {
                                prepared = Some(new);
                                halt.send_replace(true);
                            }
                            Ok(None) => manager.reloaded(),
                            Err(error) => {
                                reload::refused(&error);
                                manager.reloaded();
                            }
                        }
                    }
                    ended = &mut end => break Next::End(Err(match ended {
                        Ok(Err(error)) => anyhow!(error).context("the data plane stopped"),
                        _ => anyhow!("the data plane stopped"),
                    })),
                    never = &mut look_after => match never {},
                }
            }
        };
        match (next, prepared) {
            (Next::End(result), _) => break result,
            (Next::Reload, Some(new)) => {
                let taken = reload::take(new, &mut config, &mut sessions, &mut target, &kept).await;
                taken.unwrap_or_else(|error| reload::refused(&error));
                manager.reloaded();
            }
            (Next::Reload, None) => {}
        }
    };
    manager.stopping();
    drop(served);

    // Send the reports that are still held, and give the collectors the last counters. The sessions are not
    // ended, so that the next start resumes them.
    if let Ok(last) = target.ask(Command::Stop).await {
        info!(accepted = last.counters.primitives.iter().map(|p| p.accepted).sum::<u64>(), "stopped");
        if result.is_ok() {
            let nodes = target.nodes(&last);
            let alone = sessions.len() == 1;
            let open = sessions.iter_mut().filter(|session| session.is_open());
            join_all(open.map(|session| say_last(session, nodes.clone(), alone))).await;
        }
    }
    let _ = stop_service.send(());
    service.abort();
    let _ = thread.join();
    result
}

/// What follows when the leases are kept no longer.
enum Next {
    /// They go on with another configuration.
    Reload,
    /// The program ends.
    End(anyhow::Result<()>),
}

/// Gives a collector the counters of the end. `alone` says that it is the only one.
async fn say_last(session: &mut Session, mut nodes: Vec<NodeStatistics>, alone: bool) {
    for_collector(&mut nodes, (!alone).then_some(session.collector()));
    let address = session.address().to_owned();
    match tokio::time::timeout(Duration::from_secs(2), session.leave(nodes)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => warn!(%error, "the last counters did not reach the collector"),
        Err(_) => warn!(collector = address, "the last counters did not reach the collector in 2 s"),
    }
}

/// The addresses that a translator took.
struct Taken<'a> {
    listen: SocketAddrV4,
    int: &'a [String],
    control: &'a ControlAddress,
    metrics: Option<SocketAddr>,
    endpoint: &'a Endpoint,
}

fn ready_line(
    config: &Translator,
    options: &Options,
    taken: &Taken<'_>,
    session: bool,
) -> anyhow::Result<()> {
    let Taken { listen, int, control, metrics, endpoint } = taken;
    if !options.ready {
        return Ok(());
    }
    let line = json!({
        "ready": true,
        "program": "dta-translator",
        "name": config.name,
        "listen": listen.to_string(),
        "int": int,
        "control": control.to_string(),
        "metrics": metrics,
        "source": format!("{}:{}", endpoint.ip, endpoint.port),
        "session": session,
        "pid": std::process::id(),
    });
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| anyhow!("cannot write the ready line: {error}"))
}

/// A number that is different for each start of this program.
fn life() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
}
