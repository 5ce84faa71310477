//! What the collectors grant, all together, and the data plane that is kept in step with it.

use std::cell::RefCell;
use std::collections::HashSet;

use dta_dataplane::SetupError;
use dta_proto::program::{Change, Program, changes_for_session, diff};
use tokio::sync::Mutex;
use tracing::info;

use super::packet_thread::Command;
use super::service::{Control, Stopped};
use crate::config::Translator;
use crate::program::{BuildError, Grant, Wanted, build};

/// Why a grant is not in the data plane. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// With what the other collectors grant, and the configuration, it makes no program.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The data plane cannot hold it.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// There is no data plane any more.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The data plane as the leases see it.
pub(super) struct DataPlane<'a> {
    pub(super) control: &'a Control,
    wanted: Wanted,
    /// What each collector grants, as the data plane holds it. Locked from a look at the data plane until it is changed, so that the
    /// lease of one collector does not undo what that of another does.
    grants: Mutex<Vec<Option<Grant>>>,
    /// Reporters of which a collector has told how far they were heard before.
    told: RefCell<HashSet<u16>>,
}

impl<'a> DataPlane<'a> {
    pub(super) fn new(config: &Translator, control: &'a Control) -> DataPlane<'a> {
        DataPlane {
            control,
            wanted: config.wanted(),
            grants: Mutex::new(vec![None; config.collector.count()]),
            told: RefCell::default(),
        }
    }

    /// Tells how far earlier lives of this translator had heard its reporters. Each collector knows it; the first one's word counts.
    pub(super) async fn heard_earlier(&self, mut reporters: Vec<(u16, u32)>) -> Result<(), Stopped> {
        reporters.retain(|(id, _)| self.told.borrow_mut().insert(*id));
        self.control.ask(|reply| Command::Reporters(reporters, reply)).await
    }

    /// Takes what a collector grants in a session that was opened.
    pub(super) async fn open(&self, collector: u8, grant: Grant) -> Result<(), Refusal> {
        self.take(collector, |_| Some(grant), changes_for_session).await
    }

    /// Takes what a collector grants after a renewal.
    pub(super) async fn follow(&self, collector: u8, grant: Grant) -> Result<(), Refusal> {
        self.take(collector, |_| Some(grant), diff).await
    }

    /// Takes the queue pairs of a session that has ended out of the data plane: reports for this collector's stores are then dropped under
    /// that name (`no_queue_pair`), rather than sent to a collector that throws them away.
    pub(super) async fn stand_down(&self, collector: u8) -> Result<(), Refusal> {
        let without = |held: Option<Grant>| held.map(|grant| Grant { queue_pairs: Vec::new(), ..grant });
        self.take(collector, without, diff).await
    }

    async fn take(
        &self,
        collector: u8,
        becomes: impl FnOnce(Option<Grant>) -> Option<Grant>,
        needed: fn(&Program, &Program) -> Vec<Change>,
    ) -> Result<(), Refusal> {
        let mut held = self.grants.lock().await;
        let mut grants = held.clone();
        if let Some(grant) = grants.get_mut(usize::from(collector)) {
            *grant = becomes(grant.take());
        }
        let all: Vec<Option<&Grant>> = grants.iter().map(Option::as_ref).collect();
        let want = build(&all, &self.wanted)?;
        let have = self.control.ask(Command::Program).await?;
        let changes = needed(&have, &want);
        if !changes.is_empty() {
            info!(changes = changes.len(), "programming the data plane");
            self.control.ask(|reply| Command::Apply(changes, reply)).await??;
        }
        *held = grants;
        Ok(())
    }
}
