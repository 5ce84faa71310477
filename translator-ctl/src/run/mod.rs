//! `dta-translator run`: the software data plane between links, with its session and its own service.

mod control_port;
mod hot;
mod lease;
pub mod ledger;
mod roce_link;
mod service;
mod stats;

pub use hot::{Command, Hot, HotError, Snapshot};
pub use roce_link::RoceLink;
pub use stats::nodes;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use dta_link::fault::{FaultInjector, Faults};
use dta_link::{Link, UdpConfig, UdpLink};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::config::Translator;
use crate::control_address::ControlAddress;
use crate::session::Session;
use dta_dataplane::Engine;
use dta_proto::program::Endpoint;
use ledger::Ledger;
use service::Control;

/// What `run` is told beside the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Faults on RoCEv2 frames and on NACKs.
    pub faults: Faults,
    /// Faults on NACKs, where they are others than on frames.
    pub nack_faults: Option<Faults>,
    /// Faults on the NIC's answers as they come in, for a NIC that injects none itself.
    pub answer_faults: Faults,
    /// Seed of the faults.
    pub seed: u64,
    /// Where to write which report copies did not arrive as sent.
    pub ledger: Option<PathBuf>,
    /// Print one line of JSON on stdout when reports are taken.
    pub ready: bool,
    /// Open no session: wait to be programmed by `setup`.
    pub blank: bool,
}

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// An address in use, a collector that refuses, or a link that stops working.
pub fn run(config: &Translator, options: &Options) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(serve(config, options))
}

async fn serve(config: &Translator, options: &Options) -> anyhow::Result<()> {
    let nack_faults = options.nack_faults.unwrap_or(options.faults);
    let reports = UdpLink::open(&UdpConfig::reports(config.listen, nack_faults.corrupts()))
        .context("cannot take reports")?;
    let (roce, endpoint) = RoceLink::open(config).context("cannot send frames and take the NIC's answers")?;
    let listen = reports.local_addr();
    let own = control_port::Port::open(&config.control)
        .await
        .with_context(|| format!("cannot serve gRPC on {}: choose another --control", config.control))?;
    let control_address = own.address.clone();

    let ledger = match &options.ledger {
        Some(path) => Some(
            Ledger::create(path).with_context(|| format!("cannot create the ledger {}", path.display()))?,
        ),
        None => None,
    };
    let (commands, inbox) = mpsc::channel();
    let mut engine = Engine::new(config.limits(ledger.is_some()));
    let listed: Vec<(u16, Ipv4Addr)> = config.reporters.iter().map(|r| (r.id, r.address)).collect();
    engine.list_reporters(&listed);
    let hot = Hot {
        engine,
        roce_faults: FaultInjector::new(options.faults, options.seed, roce.scope()),
        nack_faults: FaultInjector::new(nack_faults, options.seed ^ 0x4e41_434b, reports.scope()),
        answer_faults: FaultInjector::new(options.answer_faults, options.seed ^ 0x4143_4b53, roce.scope()),
        faulty: !options.faults.is_none(),
        ledger,
        commands: inbox,
        reports,
        roce,
    };
    let (ended, mut end) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("dataplane".into())
        .spawn(move || {
            // Nobody waits any more when the program is leaving for another reason.
            let _ = ended.send(hot.run());
        })
        .context("cannot start the data plane")?;

    // Keys that came with TLS go to nobody over a port that every user of this host reaches.
    let programs = config.tls.is_none() || matches!(control_address, ControlAddress::Unix(_));
    let control = Control::new(config.name.clone(), life(), commands, programs);
    let (stop_service, service_stopped) = oneshot::channel::<()>();
    let service = own.serve(control.clone(), async {
        let _ = service_stopped.await;
    });
    info!(%listen, control = %control_address, source = %endpoint.ip, port = endpoint.port, "taking reports");

    let mut session = Session::new(config, endpoint.clone())?;
    let ready = |session: bool| ready_line(config, options, listen, &control_address, &endpoint, session);
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let result = {
        let leased = async {
            if options.blank {
                ready(false)?;
                std::future::pending::<anyhow::Result<()>>().await
            } else {
                lease::keep(config, &mut session, &control, || ready(true)).await
            }
        };
        tokio::select! {
            result = leased => result,
            _ = stop.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            hot = &mut end => match hot {
                Ok(Err(error)) => Err(anyhow!(error).context("the data plane stopped")),
                _ => Err(anyhow!("the data plane stopped")),
            },
        }
    };

    // Send what is held, and tell the collector the last numbers; the lease stays, so that the next start resumes it.
    if let Ok(last) = control.ask(Command::Stop).await {
        info!(accepted = last.counters.primitives.iter().map(|p| p.accepted).sum::<u64>(), "stopped");
        if session.is_open() && result.is_ok() {
            let last = session.renew(lease::handed_in(&control, &last));
            match tokio::time::timeout(Duration::from_secs(2), last).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => warn!(%error, "the last counters did not reach the collector"),
                Err(_) => warn!("the last counters did not reach the collector in 2 s"),
            }
        }
    }
    let _ = stop_service.send(());
    service.abort();
    let _ = thread.join();
    result
}

fn ready_line(
    config: &Translator,
    options: &Options,
    listen: SocketAddrV4,
    control: &ControlAddress,
    endpoint: &Endpoint,
    session: bool,
) -> anyhow::Result<()> {
    if !options.ready {
        return Ok(());
    }
    let line = json!({
        "ready": true,
        "program": "dta-translator",
        "name": config.name,
        "listen": listen.to_string(),
        "control": control.to_string(),
        "source": format!("{}:{}", endpoint.ip, endpoint.port),
        "session": session,
        "pid": std::process::id(),
    });
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| anyhow!("cannot write the ready line: {error}"))
}

/// A number that tells this start from earlier ones.
fn life() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
}
