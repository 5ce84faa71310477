//! A running collector: signals, and notifications to the service manager.

use std::convert::Infallible;
use std::io;
use std::time::{Duration, Instant};

use dta_cli::service_manager::{Progress, ServiceManager};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Config, ConfigError};
use crate::server::Server;

/// How often the status line is updated, and the least interval of the watchdog.
const LOOK: Duration = Duration::from_secs(1);
/// How long a component may stand still before the watchdog is no longer fed. Sessions are tended every second, but
/// wait for calls that take long.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a start asks for more time, and for how much.
const MORE_TIME: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// The signals that a collector handles.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on, none of them kills the process.
    pub(super) fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGTERM or SIGINT. Other signals stay pending.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::info!("shutting down");
    }

    /// Waits for the next signal.
    async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::End,
            _ = self.interrupt.recv() => Request::End,
            _ = self.hangup.recv() => Request::Reload,
        }
    }
}

/// What a signal asks for.
enum Request {
    End,
    Reload,
}

/// Keeps telling the service manager that the start goes on: making much memory takes long.
pub(super) async fn ask_for_time(manager: &ServiceManager) -> Infallible {
    loop {
        tokio::time::sleep(MORE_TIME.0).await;
        manager.longer(MORE_TIME.1);
    }
}

/// Serves until asked to stop, or until a part of it has ended.
pub(super) async fn run(
    mut server: Server,
    manager: &ServiceManager,
    signals: &mut Signals,
    read: &dyn Fn() -> Result<Config, ConfigError>,
) -> anyhow::Result<()> {
    let mut told = server.status().unwrap_or_default();
    manager.ready(&told);
    let watchdog = manager.watchdog();
    let mut look = tokio::time::interval(watchdog.map_or(LOOK, |half| half.min(LOOK)));
    let mut progress = Progress::new(PATIENCE);
    let mut stuck = false;
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Request::End => {
                    tracing::info!("shutting down");
                    manager.stopping();
                    return server.stop().await;
                }
                Request::Reload => {
                    manager.reloading();
                    reload(&mut server, read).await;
                    told = server.status().unwrap_or(told);
                    manager.ready(&told);
                }
            },
            failure = server.failed() => {
                manager.stopping();
                server.stop().await?;
                return Err(failure);
            }
            _ = look.tick() => {}
        }
        let moves = progress.is_made(server.progress(), Instant::now());
        if !moves && !stuck {
            tracing::error!(
                "sessions or the NIC stand still: health reports NOT_SERVING, and the watchdog is no longer fed"
            );
        }
        server.set_serving(moves);
        stuck = !moves;
        if moves && watchdog.is_some() {
            manager.alive();
        }
        if let Some(status) = server.status()
            && status != told
        {
            manager.status(&status);
            told = status;
        }
    }
}

/// Reloads the configuration, or logs why not.
async fn reload(server: &mut Server, read: &dyn Fn() -> Result<Config, ConfigError>) {
    let changed = match read() {
        Ok(config) => server.reload(&config).await,
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
