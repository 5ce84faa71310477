//! What happens besides the sessions while a translator runs: logging drops, and notifying the service
//! manager.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dta_cli::service_manager::{DaemonProgress, ServiceManager};
use dta_dataplane::workers::MAX_WORKERS;
use dta_rpc::transport::standard::Health;

use super::drops::DropLog;
use crate::lease::LeaseEvent;
use crate::packets::Command;
use crate::software::InProcess;

const LOOK: Duration = Duration::from_secs(1);
/// How long the data plane may stand still before watchdog notifications stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the start keeps asking for more time, at each check: a collector may be slow to answer.
const MORE_TIME: Duration = Duration::from_secs(30);

/// The service manager and the health service, and what they were last sent.
pub(super) struct Manager {
    manager: ServiceManager,
    is_ready: Cell<bool>,
    status: RefCell<String>,
    health: Health,
    /// Whether reports can be sent somewhere, as far as sessions show.
    has_session: Cell<bool>,
}

impl Manager {
    /// The service manager that started this process, if any. With `blank`, programs come from elsewhere, and
    /// no session shows whether there is one.
    pub(super) fn new(health: Health, blank: bool) -> Manager {
        let manager = ServiceManager::of_this_process();
        Manager {
            manager,
            is_ready: Cell::new(false),
            status: RefCell::default(),
            health,
            has_session: Cell::new(blank),
        }
    }

    /// Notifies that the service is up, possibly again after a reload.
    pub(super) fn notify_ready(&self, status: String) {
        self.manager.notify_ready(&status);
        self.is_ready.set(true);
        self.status.replace(status);
    }

    /// Notifies of the sessions' status. A translator is up once every collector was tried: an unreachable
    /// one does not keep it from accepting reports later.
    pub(super) fn notify_sessions(&self, event: &LeaseEvent<'_>) {
        self.has_session.set(event.open.0 > 0);
        let status = event.to_string();
        if !self.is_ready.get() && event.asked {
            self.notify_ready(status);
        } else if *self.status.borrow() != status {
            self.manager.notify_status(&status);
            self.status.replace(status);
        }
    }

    /// Notifies that the configuration is being reloaded.
    pub(super) fn reloading(&self) {
        self.manager.reloading();
    }

    /// Notifies that the reload is done, with the last status.
    pub(super) fn notify_reloaded(&self) {
        self.manager.notify_ready(&self.status.borrow());
        self.is_ready.set(true);
    }

    /// Notifies that this process is shutting down.
    pub(super) fn notify_stopping(&self) {
        self.health.set(false);
        self.manager.notify_stopping();
    }
}

/// Watches the data plane forever.
pub(super) async fn look_after(
    target: &InProcess,
    turns: &[Arc<AtomicU64>],
    manager: &Manager,
) -> Infallible {
    let watchdog = manager.manager.watchdog_interval();
    let mut look = tokio::time::interval(watchdog.map_or(LOOK, |half| half.min(LOOK)));
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut drops: Vec<DropLog> = turns.iter().map(|_| DropLog::default()).collect();
    let mut progress = DaemonProgress::new(PATIENCE);
    let mut stuck = false;
    loop {
        look.tick().await;
        // With fewer workers, some are checked several times.
        let counters: [u64; MAX_WORKERS] =
            std::array::from_fn(|worker| turns[worker % turns.len()].load(Ordering::Relaxed));
        let moves = progress.is_advancing(counters, Instant::now());
        manager.health.set(moves && manager.has_session.get());
        if !moves {
            if !stuck {
                tracing::error!(
                    "the data plane is stuck: health reports NOT_SERVING, and the watchdog is no longer fed"
                );
            }
            stuck = true;
            continue;
        }
        stuck = false;
        if watchdog.is_some() {
            manager.manager.notify_alive();
        }
        if !manager.is_ready.get() {
            manager.manager.extend_start_timeout(MORE_TIME);
        }
        log_due_drops(target, &mut drops).await;
    }
}

async fn log_due_drops(target: &InProcess, drops: &mut [DropLog]) {
    // A data plane that has ended is noticed elsewhere; one that is stuck is not waited for.
    let asked = tokio::time::timeout(LOOK, target.send_to_workers(Command::Drops)).await;
    let Ok(Ok(dropped)) = asked else { return };
    let workers = drops.iter_mut().zip(&dropped);
    let due: Vec<_> = workers.flat_map(|(drops, dropped)| drops.due_lines(dropped, Instant::now())).collect();
    if due.is_empty() {
        return;
    }
    let program = tokio::time::timeout(LOOK, target.send_command(Command::Program)).await;
    let program = program.ok().and_then(Result::ok).unwrap_or_default();
    due.iter().for_each(|due| due.log_drops(&program));
}
