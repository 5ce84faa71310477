//! `dta-translator run`: the software data plane between links, with its session and its own service.

mod control_port;
mod drops;
mod lanes;
mod metrics;
mod reload;
mod service;
mod watch;

use std::cell::RefCell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use dta_cluster::View;
use dta_link::fault::Faults;
use futures_util::future::{join_all, try_join_all};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch::channel as watch_channel};
use tracing::{info, warn};

use crate::cluster::following::ClusterFollower;
use crate::config::TranslatorConfig;
use crate::control_address::ControlAddress;
use crate::lease::{Halted, LeaseEvent};
use crate::packets::for_collector;
use crate::session::LeasedSession;
use dta_proto::control::NodeStatistics;
use dta_proto::program::{Endpoint, MAX_COLLECTORS};
use lanes::{Lane, Links};
pub use reload::Read;
use reload::{Asked, PreparedReload};
use service::TranslatorService;
use watch::Manager;

/// Full name of the translators' gRPC service.
const SERVICE: &str = "dta.v1.Translator";

/// Maximum number of threads besides the workers': they join rings, resolve names and write metrics.
const OTHERS: usize = 16;

/// Options of `run` that are not in the configuration.
#[derive(Clone, Debug, clap::Args)]
pub struct TranslatorRunOptions {
    /// Faults on frames (and on NACKs): drop=P,dup=P,reorder=P,corrupt=P
    #[arg(long, env, default_value = "none")]
    pub faults: Faults,
    /// Faults on NACKs, if different
    #[arg(long, env)]
    pub nack_faults: Option<Faults>,
    /// Faults on the NIC's answers on receipt, for a NIC that cannot inject faults
    #[arg(long, env, default_value = "none")]
    pub answer_faults: Faults,
    /// Seed for the faults
    #[arg(long, env, default_value_t = 1)]
    pub seed: u64,
    // Workers other than the first write their own, with `.n` appended to the name.
    /// Write which report copies did not arrive as sent to this file (for testbeds)
    #[arg(long, env)]
    pub ledger: Option<PathBuf>,
    /// Print one line of JSON on stdout when ready for reports, which every daemon does without it
    #[arg(long, hide = true)]
    pub ready: bool,
    /// Open no session; wait for `dta-translator setup`
    #[arg(long)]
    pub blank: bool,
}

impl TranslatorRunOptions {
    fn nack_faults(&self) -> Faults {
        self.nack_faults.unwrap_or(self.faults)
    }
}

/// Runs until SIGINT or SIGTERM. On SIGHUP, `read` returns the current configuration.
///
/// # Errors
/// An address in use, a collector that refuses, or a link that stops working.
pub fn run(config: &TranslatorConfig, options: &TranslatorRunOptions, read: &Read<'_>) -> anyhow::Result<()> {
    dta_rpc::transport::give_memory_back();
    dta_cli::enough_threads(config.workers + OTHERS)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(OTHERS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(run_until_stopped(config, options, read));
    // Do not wait for blocking work whose caller is gone.
    runtime.shutdown_background();
    result
}

async fn run_until_stopped(
    config: &TranslatorConfig,
    options: &TranslatorRunOptions,
    read: &Read<'_>,
) -> anyhow::Result<()> {
    // First of all: from here on, none of these signals kills the process.
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    if options.blank && config.workers > 1 {
        bail!("a program from `setup` has one worker's queue pairs: leave out --blank or --workers");
    }
    if options.blank && config.device.is_some() {
        bail!("a program from `setup` does not have the device's queue pairs: leave out --blank or --device");
    }
    let (mut cluster, begin) = ClusterFollower::from_config(config, MAX_COLLECTORS)?;
    let config = &begin;
    let links = Links::open(config, options)?;
    let (listen, endpoint) = (links.listen.clone(), links.frame_endpoint()?);
    let (runs, frames) = (links.runs, links.frames.map(|frames| frames.to_string()));
    let (int_addresses, flow_addresses) = (links.int_addresses.clone(), links.flow_addresses.clone());
    let own = control_port::TranslatorControlPort::open(&config.control)
        .await
        .with_context(|| format!("cannot serve gRPC on {}: choose another --control", config.control))?;
    let control_address = own.address.clone();
    let metrics =
        dta_export::metrics::MetricsPort::open(&config.metrics, dta_export::metrics::TRANSLATOR_ADDRESS)
            .await?;

    let mut workers = links.start_workers(config, options)?;
    let target = workers.combined_target()?;

    // With TLS, rkeys are secret. Every user of this host can reach a TCP port on loopback, so programs,
    // which contain rkeys, are served only on a unix socket.
    let programs = config.tls.is_none() || matches!(control_address, ControlAddress::Unix(_));
    let (stop_service, service_stopped) = oneshot::channel::<()>();
    let health = dta_rpc::transport::standard::start_health(SERVICE);
    let stopped = async {
        let _ = service_stopped.await;
    };
    let service = TranslatorService::new(target.clone(), programs);
    let service = own.serve_control(service, &health, stopped).map_err(|error| anyhow!(error))?;
    let session_metrics = Arc::new(metrics::TranslatorSessionMetrics::default());
    session_metrics.set_certificate(config);
    let served = metrics
        .map(|port| metrics::serve_metrics(port, target.clone(), health.clone(), session_metrics.clone()));
    let metrics_address = metrics::served_address(served.as_ref());
    let manager = Manager::new(health, options.blank);
    info!(listen, control = %control_address, source = %endpoint.ip, port = endpoint.port, runs = %runs, frames, "receiving reports");

    let ready = |session: bool| {
        let taken = TranslatorAddresses {
            listen: &listen,
            int: &int_addresses,
            flows: &flow_addresses,
            control: &control_address,
            metrics: metrics_address,
            endpoint: &endpoint,
        };
        ready_line(config, &taken, session)
    };
    let together = CombinedStatus::new(workers.lanes.len());
    let report = |worker: usize, event: LeaseEvent<'_>| {
        let event = together.merge_event(worker, event);
        manager.notify_sessions(&event);
        session_metrics.update_counts(&event);
        if event.ready { ready(true) } else { Ok(()) }
    };
    let turns = workers.turns.clone();
    let mut look_after = std::pin::pin!(watch::look_after(&target, &turns, &manager));
    let mut config = config.clone();
    let mut announced = false;
    let result = loop {
        let (halt, mut halted) = watch_channel(false);
        let mut prepared: Option<PreparedReload> = None;
        let mut seen: Option<Arc<View>> = None;
        let next = {
            let config = &config;
            let mut asked: Option<Asked<'_>> = None;
            let (lanes, end) = (&mut workers.lanes, &mut workers.end);
            let mut leased = std::pin::pin!(async {
                if options.blank {
                    if !std::mem::replace(&mut announced, true) {
                        ready(false)?;
                        manager.notify_ready("waiting for a program".into());
                    }
                    // The sender outlives this.
                    let _ = halted.wait_for(|halt| *halt).await;
                    Ok(Halted)
                } else {
                    let each = lanes.iter_mut().enumerate().map(|(worker, lane)| {
                        let Lane { sessions, target } = lane;
                        sessions.maintain_leases(target, halted.clone(), move |event: LeaseEvent<'_>| {
                            report(worker, event)
                        })
                    });
                    try_join_all(each).await.map(|_| Halted)
                }
            });
            loop {
                tokio::select! {
                    result = &mut leased => break match result {
                        Ok(Halted) => LeaseLoopOutcome::Reload,
                        Err(error) => LeaseLoopOutcome::End(Err(error)),
                    },
                    _ = stop.recv() => break LeaseLoopOutcome::End(Ok(())),
                    _ = interrupt.recv() => break LeaseLoopOutcome::End(Ok(())),
                    _ = hangup.recv(), if asked.is_none() && prepared.is_none() => {
                        manager.reloading();
                        asked = Some(Box::pin(reload::prepare_reload(config, &endpoint, options.blank, read)));
                    }
                    outcome = async { asked.as_mut().expect("asked").await }, if asked.is_some() => {
                        asked = None;
                        match outcome {
                            Ok(Some(new)) => {
                                prepared = Some(new);
                                halt.send_replace(true);
                            }
                            Ok(None) => manager.notify_reloaded(),
                            Err(error) => {
                                reload::log_refusal(&error);
                                manager.notify_reloaded();
                            }
                        }
                    }
                    // A configuration that is being prepared is for the current collectors.
                    view = cluster.next_view(), if asked.is_none() => {
                        seen = Some(view);
                        halt.send_replace(true);
                    }
                    ended = end.recv() => break LeaseLoopOutcome::End(Err(match ended {
                        Some(Err(error)) => anyhow!(error).context("the data plane stopped"),
                        _ => anyhow!("the data plane stopped"),
                    })),
                    never = &mut look_after => match never {},
                }
            }
        };
        if let LeaseLoopOutcome::End(result) = next {
            break result;
        }
        if let Some(view) = seen {
            config.collector =
                cluster.apply_view(&view, workers.lanes.iter_mut().map(|lane| &mut lane.sessions));
        }
        if let Some(new) = prepared {
            match reload::take(new, &mut config, &mut workers.lanes).await {
                Ok(()) => session_metrics.set_certificate(&config),
                Err(error) => reload::log_refusal(&error),
            }
            manager.notify_reloaded();
        }
    };
    manager.notify_stopping();
    drop(served);

    // Send the reports that are still held, and give the collectors the last counters. The sessions stay
    // open, so that the next start resumes them.
    if let Ok(last) = workers.stop_workers(&target).await {
        info!(accepted = last.counters.primitives.iter().map(|p| p.accepted).sum::<u64>(), "stopped");
        if let (Ok(()), Some(first)) = (&result, workers.lanes.first_mut()) {
            let nodes = target.node_statistics(&last);
            let alone = first.sessions.all.len() == 1;
            let open = first.sessions.all.iter_mut().filter(|session| session.is_open());
            join_all(open.map(|session| send_final_counters(session, nodes.clone(), alone))).await;
        }
    }
    let _ = stop_service.send(());
    service.abort();
    workers.join_threads();
    result
}

/// What to do after the leases are no longer kept.
enum LeaseLoopOutcome {
    Reload,
    End(anyhow::Result<()>),
}

/// Time to hand in the final counters: ending may take 10 s in all (`docs/operating.md`).
const LAST_COUNTERS: Duration = Duration::from_secs(5);

/// Sends a collector the final counters. `alone` means it is the only one.
async fn send_final_counters(session: &mut LeasedSession, mut nodes: Vec<NodeStatistics>, alone: bool) {
    for_collector(&mut nodes, (!alone).then_some(session.collector()));
    let address = session.collector_address().to_owned();
    match tokio::time::timeout(LAST_COUNTERS, session.leave_session(nodes)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => warn!(%error, "the last counters did not reach the collector"),
        Err(_) => {
            warn!(collector = address, "the last counters did not reach the collector in {LAST_COUNTERS:?}");
        }
    }
}

/// The addresses that a translator is using.
struct TranslatorAddresses<'a> {
    listen: &'a str,
    int: &'a [String],
    flows: &'a [String],
    control: &'a ControlAddress,
    metrics: Option<SocketAddr>,
    endpoint: &'a Endpoint,
}

fn ready_line(
    config: &TranslatorConfig,
    taken: &TranslatorAddresses<'_>,
    session: bool,
) -> anyhow::Result<()> {
    let TranslatorAddresses { listen, int, flows, control, metrics, endpoint } = taken;
    let line = json!({
        "ready": true,
        "program": "dta-translator",
        "name": config.name,
        "listen": listen,
        "int": int,
        "flows": flows,
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

/// The last status of each worker's leases.
struct CombinedStatus {
    of: RefCell<Vec<WorkerStatus>>,
}

#[derive(Clone, Copy, Default)]
struct WorkerStatus {
    ready: bool,
    asked: bool,
    open: (usize, usize),
}

impl CombinedStatus {
    /// The initial state for this many workers.
    fn new(workers: usize) -> CombinedStatus {
        CombinedStatus { of: RefCell::new(vec![WorkerStatus::default(); workers]) }
    }

    /// Turns a worker's status into the whole translator's: it is ready when the last worker is, and has as
    /// many sessions as the worker with the fewest.
    fn merge_event<'a>(&self, worker: usize, event: LeaseEvent<'a>) -> LeaseEvent<'a> {
        let mut of = self.of.borrow_mut();
        let before = of.iter().all(|status| status.ready);
        if let Some(status) = of.get_mut(worker) {
            *status =
                WorkerStatus { ready: status.ready || event.ready, asked: event.asked, open: event.open };
        }
        LeaseEvent {
            ready: !before && of.iter().all(|status| status.ready),
            asked: of.iter().all(|status| status.asked),
            open: (of.iter().map(|status| status.open.0).min().unwrap_or(0), event.open.1),
            waits_for: event.waits_for,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_translator_is_ready_once_with_its_last_worker() {
        let together = CombinedStatus::new(2);
        let event = |ready| LeaseEvent { ready, asked: true, open: (1, 1), waits_for: None };
        let first = together.merge_event(0, event(true));
        assert_eq!((first.ready, first.asked, first.open), (false, false, (0, 1)));
        let second = together.merge_event(1, event(true));
        assert_eq!((second.ready, second.asked, second.open), (true, true, (1, 1)));
        assert!(!together.merge_event(0, event(false)).ready);
    }
}
