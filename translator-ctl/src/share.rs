//! What the leases of all collectors share: the target, and the collectors' grants, which together make one
//! program.

use std::collections::HashSet;

use dta_proto::program::Program;
use tokio::sync::Mutex;

use crate::config::Translator;
use crate::program::{BuildError, Grant, Wanted, build};
use crate::session::RingAt;
use crate::switches::{After, ApplyError, Status, Target, TargetError};

/// Why a grant is not in the target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Together with the other grants and the configuration it makes no program. Nothing has changed.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The target does not hold it.
    #[error(transparent)]
    Target(#[from] ApplyError),
}

impl Refusal {
    /// Whether trying again may help without a change of configuration.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Refusal::Build(_) => false,
            Refusal::Target(error) => error.error.may_pass(),
        }
    }
}

/// A target as the leases see it.
pub(crate) struct Shared<'a, T> {
    wanted: Wanted,
    /// Locked from reading the grants until the target holds their program, so that one lease does not undo
    /// another's change.
    state: Mutex<State<'a, T>>,
}

struct State<'a, T> {
    target: &'a mut T,
    known: &'a mut Known,
}

/// State of a target. It survives a change of configuration.
pub(crate) struct Known {
    /// Each collector's grant, as the target holds it.
    grants: Vec<Option<Grant>>,
    /// Reporters for which a collector has sent earlier positions.
    told: HashSet<u16>,
}

impl Known {
    /// For a target not programmed yet, and this many collectors.
    pub(crate) fn new(collectors: usize) -> Known {
        Known { grants: vec![None; collectors], told: HashSet::new() }
    }

    /// Whether the target could hold these collectors' grants, with what it holds of the others.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn could_hold(
        &self,
        target: &mut impl Target,
        granted: Vec<(u8, Grant)>,
        wanted: &Wanted,
    ) -> Result<(), String> {
        let mut grants = self.grants.clone();
        for (collector, grant) in granted {
            if let Some(place) = grants.get_mut(usize::from(collector)) {
                *place = Some(grant);
            }
        }
        let all: Vec<Option<&Grant>> = grants.iter().map(Option::as_ref).collect();
        let want = build(&all, wanted).map_err(|error| error.to_string())?;
        target.could_hold(&want).await.map_err(|error| error.to_string())
    }
}

impl<'a, T: Target> Shared<'a, T> {
    pub(crate) fn new(config: &Translator, target: &'a mut T, known: &'a mut Known) -> Shared<'a, T> {
        Shared { wanted: config.wanted(), state: Mutex::new(State { target, known }) }
    }

    /// Sets how far earlier translators had heard their reporters. Each collector knows it; the first answer
    /// counts.
    pub(crate) async fn heard_earlier(&self, mut reporters: Vec<(u16, u32)>) -> Result<(), Refusal> {
        let mut state = self.state.lock().await;
        reporters.retain(|(id, _)| !state.known.told.contains(id));
        state.target.heard_earlier(&reporters).await.map_err(ApplyError::nothing)?;
        state.known.told.extend(reporters.iter().map(|(id, _)| id));
        Ok(())
    }

    /// Makes the target hold a collector's current grant, together with the others'.
    pub(crate) async fn apply(&self, collector: u8, grant: Grant, after: After) -> Result<(), Refusal> {
        self.take(collector, |_| Some(grant), after).await
    }

    /// Removes an ended session's queue pairs from the target: reports for this collector's stores are then
    /// dropped under that name (`no_queue_pair`) instead of being sent in vain.
    pub(crate) async fn stand_down(&self, collector: u8) -> Result<(), Refusal> {
        self.take(collector, |held| held.map(Grant::ended), After::Renewal).await
    }

    /// Routes frames to a collector's NIC through a ring, if possible.
    pub(crate) async fn join(&self, collector: u8, ring: Option<&RingAt>) -> Result<(), Refusal> {
        let mut state = self.state.lock().await;
        Ok(state.target.join(collector, ring).await.map_err(ApplyError::nothing)?)
    }

    /// The target's counters, and the state of its queue pairs.
    pub(crate) async fn status(&self) -> Result<Status, TargetError> {
        self.state.lock().await.target.status().await
    }

    /// Whether the target could hold these collectors' grants, with what it holds of the others.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn could_hold(&self, granted: Vec<(u8, Grant)>) -> Result<(), String> {
        let State { target, known } = &mut *self.state.lock().await;
        known.could_hold(*target, granted, &self.wanted).await
    }

    async fn take(
        &self,
        collector: u8,
        becomes: impl FnOnce(Option<Grant>) -> Option<Grant>,
        after: After,
    ) -> Result<(), Refusal> {
        let mut state = self.state.lock().await;
        let mut grants = state.known.grants.clone();
        if let Some(grant) = grants.get_mut(usize::from(collector)) {
            *grant = becomes(grant.take());
        }
        let all: Vec<Option<&Grant>> = grants.iter().map(Option::as_ref).collect();
        let want: Program = build(&all, &self.wanted)?;
        state.target.apply(&want, after).await?;
        // Anything half done is found, and completed or undone, with the next program.
        state.known.grants = grants;
        Ok(())
    }
}
