//! What goes on beside the sessions while a translator runs: drops are told, and the service manager
//! hears how it is.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dta_cli::service_manager::{Progress, ServiceManager};
use dta_dataplane::workers::MAX_WORKERS;
use dta_grpc::standard::Health;

use super::drops::Drops;
use crate::lease::Event;
use crate::packets::Command;
use crate::switches::software::InProcess;

/// How often is looked.
const LOOK: Duration = Duration::from_secs(1);
/// How long the data plane may stand still before the watchdog is told nothing more.
const PATIENCE: Duration = Duration::from_secs(10);
/// For how long a start asks for more time, as often as is looked: a collector may be slow to answer.
const MORE_TIME: Duration = Duration::from_secs(30);

/// The service manager and whoever asks for this program's health, and what they were told.
pub(super) struct Manager {
    manager: ServiceManager,
    is_ready: Cell<bool>,
    status: RefCell<String>,
    health: Health,
    /// Whether reports that come have somewhere to go, as far as sessions tell.
    has_session: Cell<bool>,
}

impl Manager {
    /// The service manager that started this process, if there is one. With `blank`, programs come from
    /// elsewhere: no session tells whether there is one.
    pub(super) fn new(health: Health, blank: bool) -> Manager {
        let manager = ServiceManager::of_this_process().unwrap_or_else(|error| {
            tracing::warn!(%error, "the service manager is told nothing");
            ServiceManager::default()
        });
        Manager {
            manager,
            is_ready: Cell::new(false),
            status: RefCell::default(),
            health,
            has_session: Cell::new(blank),
        }
    }

    /// Tells it that the service is up, or up again after a reload.
    pub(super) fn ready(&self, status: String) {
        self.manager.ready(&status);
        self.is_ready.set(true);
        self.status.replace(status);
    }

    /// Tells it how the sessions are. A translator is up when each collector was asked: one that is
    /// away does not keep it from taking reports later, when it is there.
    pub(super) fn sessions(&self, event: &Event<'_>) {
        self.has_session.set(event.open.0 > 0);
        let status = event.to_string();
        if !self.is_ready.get() && event.asked {
            self.ready(status);
        } else if *self.status.borrow() != status {
            self.manager.status(&status);
            self.status.replace(status);
        }
    }

    /// Tells it that the configuration is read anew.
    pub(super) fn reloading(&self) {
        self.manager.reloading();
    }

    /// Tells it that this is done, and the service is as its last status says.
    pub(super) fn reloaded(&self) {
        self.manager.ready(&self.status.borrow());
        self.is_ready.set(true);
    }

    /// Tells it that this process ends in order.
    pub(super) fn stopping(&self) {
        self.health.set(false);
        self.manager.stopping();
    }
}

/// Looks after the data plane for ever.
pub(super) async fn look_after(
    target: &InProcess,
    turns: &[Arc<AtomicU64>],
    manager: &Manager,
) -> Infallible {
    let watchdog = manager.manager.watchdog();
    let mut look = tokio::time::interval(watchdog.map_or(LOOK, |half| half.min(LOOK)));
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut drops: Vec<Drops> = turns.iter().map(|_| Drops::default()).collect();
    let mut progress = Progress::new(PATIENCE);
    let mut stuck = false;
    loop {
        look.tick().await;
        // Where there are fewer workers, some are looked at several times.
        let counters: [u64; MAX_WORKERS] =
            std::array::from_fn(|worker| turns[worker % turns.len()].load(Ordering::Relaxed));
        let moves = progress.is_made(counters, Instant::now());
        manager.health.set(moves && manager.has_session.get());
        if !moves {
            if !stuck {
                tracing::error!(
                    "the data plane stands still: health is told as not serving, and a watchdog nothing more"
                );
            }
            stuck = true;
            continue;
        }
        stuck = false;
        if watchdog.is_some() {
            manager.manager.alive();
        }
        if !manager.is_ready.get() {
            manager.manager.longer(MORE_TIME);
        }
        tell(target, &mut drops).await;
    }
}

/// Tells of drops that are due, of each worker.
async fn tell(target: &InProcess, drops: &mut [Drops]) {
    // One that has ended is noticed elsewhere; one that is stuck is not waited for.
    let asked = tokio::time::timeout(LOOK, target.all(Command::Drops)).await;
    let Ok(Ok(dropped)) = asked else { return };
    let workers = drops.iter_mut().zip(&dropped);
    let due: Vec<_> = workers.flat_map(|(drops, dropped)| drops.due(dropped, Instant::now())).collect();
    if due.is_empty() {
        return;
    }
    let program = tokio::time::timeout(LOOK, target.ask(Command::Program)).await;
    let program = program.ok().and_then(Result::ok).unwrap_or_default();
    due.iter().for_each(|due| due.tell(&program));
}
