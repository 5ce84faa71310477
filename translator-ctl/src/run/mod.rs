//! `dta-translator run`: the software data plane between links, with its session and its own service.

mod hot;
pub mod ledger;
mod roce_link;
mod service;
mod stats;

pub use hot::{Command, Hot, HotError, Snapshot};
pub use roce_link::RoceLink;
pub use stats::nodes;

use std::io::Write as _;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail};
use dta_link::fault::{FaultInjector, Faults};
use dta_link::{Link, UdpConfig, UdpLink};
use dta_proto::control::translator_server::TranslatorServer;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tracing::{info, warn};

use crate::config::Translator;
use crate::dataplane::Engine;
use crate::program::{Change, Endpoint, EntryKey, Program, Purpose, diff, take_up};
use crate::session::{BACKOFF, Opened, Session, SessionError};
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
    let listener = TcpListener::bind(config.control)
        .await
        .with_context(|| format!("cannot serve gRPC on {}: choose another --control", config.control))?;
    let control_address = listener.local_addr()?;

    let ledger = match &options.ledger {
        Some(path) => Some(
            Ledger::create(path).with_context(|| format!("cannot create the ledger {}", path.display()))?,
        ),
        None => None,
    };
    let (commands, inbox) = mpsc::channel();
    let hot = Hot {
        engine: Engine::new(config.limits(ledger.is_some())),
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

    let control = Control::new(config.name.clone(), life(), commands);
    let (stop_service, service_stopped) = oneshot::channel::<()>();
    let service = tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TranslatorServer::new(control.clone()))
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
                let _ = service_stopped.await;
            }),
    );
    info!(%listen, control = %control_address, source = %endpoint.ip, port = endpoint.port, "taking reports");

    let mut session = Session::new(config, endpoint.clone())?;
    let ready = |session: bool| ready_line(config, options, listen, control_address, &endpoint, session);
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let result = {
        let leased = async {
            if options.blank {
                ready(false)?;
                std::future::pending::<anyhow::Result<()>>().await
            } else {
                lease(config, &mut session, &control, || ready(true)).await
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
            let last = session.renew(handed_in(&control, &last));
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

fn handed_in(control: &Control, snapshot: &Snapshot) -> Vec<dta_proto::control::NodeStatistics> {
    let mut nodes = nodes(&control.name, control.life, snapshot);
    for node in &mut nodes {
        // Of the numbers that may fall the collector takes `held` alone; the others are for this
        // translator's own statistics.
        let falls = [".held", ".outstanding", ".waiting"];
        node.counters.retain(|c| !falls.iter().any(|end| c.name.ends_with(end)));
    }
    nodes
}

/// Opens the session, programs the data plane, and keeps both in step with the collector. Returns only with an error that
/// waiting does not cure: a refusal at the start, or another translator that has opened the session of this name.
async fn lease(
    config: &Translator,
    session: &mut Session,
    control: &Control,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut backoff = BACKOFF.0;
    let mut was_ready = false;
    // Whether the collector has ended the session or will not have it go on, so that the queue pairs lead nowhere.
    let mut ended = false;
    // Whether a queue pair is silent that the collector thinks well of; or, at the start, what an
    // earlier life sent is on its way.
    let mut fresh = true;
    loop {
        match session.open(config.lease_seconds, fresh).await {
            Ok(Opened { program, resumed, reporters }) => {
                info!(name = config.name, resumed, "session is open");
                if !was_ready {
                    control.ask(|reply| Command::Reporters(reporters, reply)).await?;
                }
                apply(control, |have| take_up(have, &program)).await?;
                if !was_ready {
                    ready()?;
                    was_ready = true;
                }
                backoff = BACKOFF.0;
                let error = renew(config, session, control).await?;
                if let SessionError::Superseded { .. } = error {
                    stand_down(control).await?;
                    bail!(error);
                }
                warn!(%error, "opening the session again");
                ended = !matches!(error, SessionError::Silent);
                fresh = !ended;
                // A renewal takes its time, so this is no busy loop; and nothing arrives until the session is back.
                continue;
            }
            // A collector that took this session before may be starting with another configuration.
            Err(error) if was_ready || error.may_pass() => {
                warn!(%error, "trying again");
                if std::mem::take(&mut ended) {
                    stand_down(control).await?;
                }
            }
            Err(error) => bail!(error),
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// Renews until the session has to be opened again; gives the reason.
async fn renew(
    config: &Translator,
    session: &mut Session,
    control: &Control,
) -> anyhow::Result<SessionError> {
    let every = Duration::from_millis(u64::from(config.lease_seconds) * 1000 / 3).min(Duration::from_secs(1));
    let mut away = false;
    let mut failed_renewals = 0;
    let mut without_source = 0;
    loop {
        tokio::time::sleep(every).await;
        let snapshot = control.snapshot().await?;
        let unsent = snapshot.roce_link.unsent_no_source;
        if unsent > without_source {
            warn!(
                frames = unsent - without_source,
                "frames did not leave: another program has the UDP port of a queue pair (0xc000 + the low 14 bits of its number; \
                 `ss -uanp` names it); it is tried again every second"
            );
            without_source = unsent;
        }
        let down = snapshot.queue_pairs.iter().any(|q| q.down);
        let statistics = handed_in(control, &snapshot);
        match session.renew(statistics).await {
            Ok(program) => {
                if std::mem::take(&mut away) {
                    info!("the collector answers again");
                }
                apply(control, |have| diff(have, &program)).await?;
                // The collector rebuilds a queue pair that it finds in error; one that it thinks well of, but that does not answer
                // us, is asked for anew.
                let still_down = down && control.snapshot().await?.queue_pairs.iter().any(|q| q.down);
                failed_renewals = if still_down { failed_renewals + 1 } else { 0 };
                if failed_renewals >= 2 {
                    return Ok(SessionError::Silent);
                }
            }
            Err(error @ SessionError::Away { .. }) => {
                // Frames go on to the old queue pairs: the collector's memory may well be there.
                if !std::mem::replace(&mut away, true) {
                    warn!(%error, "going on with the queue pairs that are there");
                }
            }
            Err(error) => return Ok(error),
        }
    }
}

/// Takes the queue pairs of a session that has ended out of the data plane: reports are then dropped under that name (`no_queue_pair`),
/// rather than sent to a collector that throws them away.
async fn stand_down(control: &Control) -> anyhow::Result<()> {
    let without = |have: &Program| {
        let mut want = have.clone();
        for purpose in [Purpose::Write, Purpose::Atomic] {
            want.remove(&EntryKey::QueuePair(purpose));
        }
        diff(have, &want)
    };
    apply(control, without).await
}

/// Applies to the data plane the changes that what it holds needs.
async fn apply(control: &Control, needed: impl FnOnce(&Program) -> Vec<Change>) -> anyhow::Result<()> {
    let have = control.ask(Command::Program).await?;
    let changes = needed(&have);
    if !changes.is_empty() {
        info!(changes = changes.len(), "programming the data plane");
        control.ask(|reply| Command::Apply(changes, reply)).await??;
    }
    Ok(())
}

fn ready_line(
    config: &Translator,
    options: &Options,
    listen: SocketAddrV4,
    control: SocketAddr,
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
