//! A running collector: signals, and notifications to the service manager.

use std::convert::Infallible;
use std::io;
use std::time::{Duration, Instant};

use dta_cli::service_manager::{DaemonProgress, ServiceManager};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Config, ConfigError};
use crate::server::RunningCollector;

/// How often the status line is updated, and the least interval of the watchdog.
const LOOK: Duration = Duration::from_secs(1);
/// How long a component may stand still before the watchdog is no longer fed. Sessions are tended every
/// second, but wait for long calls.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a start asks for more time, and for how much.
const MORE_TIME: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on, these signals no longer kill the process.
    pub(super) fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGTERM or SIGINT. Other signals stay pending.
    pub(super) async fn wait_for_end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::info!("shutting down");
    }

    async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::End,
            _ = self.interrupt.recv() => Request::End,
            _ = self.hangup.recv() => Request::Reload,
        }
    }
}

enum Request {
    End,
    Reload,
}

/// Keeps telling the service manager that the start is still under way: allocating much memory takes long.
pub(super) async fn ask_for_time(manager: &ServiceManager) -> Infallible {
    loop {
        tokio::time::sleep(MORE_TIME.0).await;
        manager.extend_start_timeout(MORE_TIME.1);
    }
}

/// Serves until asked to stop or until a part of the collector has ended.
pub(super) async fn run(
    mut server: RunningCollector,
    manager: &ServiceManager,
    signals: &mut Signals,
    read: &dyn Fn() -> Result<Config, ConfigError>,
) -> anyhow::Result<()> {
    let mut notified = server.status_line().unwrap_or_default();
    manager.notify_ready(&notified);
    let watchdog = manager.watchdog_interval();
    let mut look = tokio::time::interval(watchdog.map_or(LOOK, |half| half.min(LOOK)));
    let mut progress = DaemonProgress::new(PATIENCE);
    let mut stuck = false;
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Request::End => {
                    tracing::info!("shutting down");
                    manager.notify_stopping();
                    return server.shut_down().await;
                }
                Request::Reload => {
                    manager.reloading();
                    reload_config(&mut server, read).await;
                    notified = server.status_line().unwrap_or(notified);
                    manager.notify_ready(&notified);
                }
            },
            failure = server.wait_for_failure() => {
                manager.notify_stopping();
                server.shut_down().await?;
                return Err(failure);
            }
            _ = look.tick() => {}
        }
        let moves = progress.is_advancing(server.progress_counters(), Instant::now());
        if !moves && !stuck {
            tracing::error!(
                "sessions or the NIC are stuck: health reports NOT_SERVING, and the watchdog is no longer fed"
            );
        }
        server.set_serving(moves);
        stuck = !moves;
        if moves && watchdog.is_some() {
            manager.notify_alive();
        }
        if let Some(status) = server.status_line()
            && status != notified
        {
            manager.notify_status(&status);
            notified = status;
        }
    }
}

/// Reloads the configuration, or logs why it cannot.
async fn reload_config(server: &mut RunningCollector, read: &dyn Fn() -> Result<Config, ConfigError>) {
    let changed = match read() {
        Ok(config) => server.reload_config(&config).await,
        Err(error) => Err(error.into()),
    };
    match changed {
        Ok(changed) if changed.is_empty() => {
            tracing::info!("configuration reloaded: nothing has changed");
        }
        Ok(changed) => {
            tracing::info!(changed = changed.join(", "), "configuration reloaded");
        }
        Err(error) => {
            let error = dta_cli::error_line(&error);
            tracing::error!(error, "configuration not reloaded: nothing has changed");
        }
    }
}
