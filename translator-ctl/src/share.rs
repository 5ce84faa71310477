//! What the leases of all collectors share: the target, and the collectors' grants, which together make one
//! program.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use dta_cluster::View;
use dta_proto::program::{Program, Transport};
use tokio::sync::Mutex;

use crate::cluster::placing::Placing;
use crate::cluster::roster::Roster;
use crate::config::TranslatorConfig;
use crate::program::{BuildError, Grant, TargetProgramSettings, build_program};
use dta_switch::{After, ApplyError, Target, TargetError, TargetStatus};
use dta_switch::{DeviceSource, RingAt};

/// Why a grant is not in the target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrantRefusal {
    /// Together with the other grants and the configuration it makes no program. Nothing has changed.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The target does not hold it.
    #[error(transparent)]
    Target(#[from] ApplyError),
}

impl GrantRefusal {
    /// Whether trying again may help without a change of configuration.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            GrantRefusal::Build(_) => false,
            GrantRefusal::Target(error) => error.error.is_retryable(),
        }
    }

    /// Whether the target restarted, so that the session must be opened again.
    pub(crate) fn is_restart(&self) -> bool {
        matches!(self, GrantRefusal::Target(ApplyError { error: TargetError::Restarted, .. }))
    }
}

/// A target as the leases see it.
pub(crate) struct SharedTarget<'a, T> {
    wanted: TargetProgramSettings,
    /// Locked from reading the grants until the target holds their program, so that one lease does not undo
    /// another's change.
    state: Mutex<SharedTargetState<'a, T>>,
}

struct SharedTargetState<'a, T> {
    target: &'a mut T,
    known: &'a mut TargetGrants,
}

/// State of a target. It survives a change of configuration.
pub(crate) struct TargetGrants {
    granted: BTreeMap<u8, Grant>,
    /// What the target holds of each grant.
    held: BTreeMap<u8, Grant>,
    /// Collectors whose sessions must be opened again, because the target restarted.
    lost: BTreeSet<u8>,
    /// In a cluster, the placements in effect for stores.
    placing: Option<Placing>,
    /// Reporters for which a collector has sent earlier positions.
    positioned: HashSet<u16>,
}

impl TargetGrants {
    /// For a target not programmed yet.
    pub(crate) fn new(config: &TranslatorConfig) -> TargetGrants {
        let placing = config.cluster.is_some().then(Placing::default);
        let (granted, held) = (BTreeMap::new(), BTreeMap::new());
        TargetGrants { granted, held, lost: BTreeSet::new(), placing, positioned: HashSet::new() }
    }

    /// Takes in a newer view of the cluster. The target holds it after [`SharedTarget::apply_newest_view`].
    pub(crate) fn apply_view(&mut self, view: &Arc<View>, roster: &Roster) {
        let placing = self.placing.get_or_insert_default();
        placing.apply_view(view.clone(), roster.clone());
        self.granted.retain(|index, _| roster.iter().any(|(_, of)| of == *index));
    }

    /// The target restarted, and holds nothing of what was granted.
    fn discard_grants(&mut self, granted: BTreeMap<u8, Grant>) {
        self.lost.extend(granted.into_keys());
        (self.granted, self.held) = (BTreeMap::new(), BTreeMap::new());
    }

    /// The part of the grants that the target should hold, and whether it includes all new regions of one collector.
    fn grants_to_hold(
        &mut self,
        granted: &BTreeMap<u8, Grant>,
        collector: Option<u8>,
    ) -> (BTreeMap<u8, Grant>, bool) {
        let Some(placing) = &mut self.placing else { return (granted.clone(), true) };
        let now = Instant::now();
        placing.choose_placements(granted, now);
        let (mut held, mut is_whole) = (BTreeMap::new(), true);
        for (index, grant) in granted {
            let (used, all) = placing.restrict_grant(grant, self.held.get(index), *index, now);
            is_whole &= all || collector != Some(*index);
            held.insert(*index, used);
        }
        (held, is_whole)
    }

    /// Whether the target could hold these collectors' grants, together with what it holds of the others.
    pub(crate) async fn could_hold(
        &self,
        target: &mut impl Target,
        granted: Vec<(u8, Grant)>,
        wanted: &TargetProgramSettings,
    ) -> Result<(), String> {
        let mut held = self.held.clone();
        for (collector, grant) in granted {
            let used = match &self.placing {
                Some(placing) => {
                    placing.restrict_grant(&grant, held.get(&collector), collector, Instant::now()).0
                }
                None => grant,
            };
            held.insert(collector, used);
        }
        let want =
            build_program(&grants_by_collector(&held, wanted), wanted).map_err(|error| error.to_string())?;
        target.could_hold(&want).await.map_err(|error| error.to_string())
    }
}

impl<'a, T: Target> SharedTarget<'a, T> {
    pub(crate) fn new(
        config: &TranslatorConfig,
        target: &'a mut T,
        known: &'a mut TargetGrants,
    ) -> SharedTarget<'a, T> {
        SharedTarget {
            wanted: config.program_settings(),
            state: Mutex::new(SharedTargetState { target, known }),
        }
    }

    /// Sets how far earlier translators had heard their reporters. Each collector knows it; the first answer
    /// counts.
    pub(crate) async fn heard_earlier(&self, mut reporters: Vec<(u16, u32)>) -> Result<(), GrantRefusal> {
        let mut state = self.state.lock().await;
        reporters.retain(|(id, _)| !state.known.positioned.contains(id));
        state.target.heard_earlier(&reporters).await.map_err(ApplyError::before_first_change)?;
        state.known.positioned.extend(reporters.iter().map(|(id, _)| id));
        Ok(())
    }

    /// Makes the target hold a collector's current grant, together with the others'. Returns whether it holds all of
    /// it: in a cluster, new regions may have to wait for those of other collectors.
    pub(crate) async fn apply_grant(
        &self,
        collector: u8,
        grant: Grant,
        after: After,
    ) -> Result<bool, GrantRefusal> {
        if after == After::Renewal && self.is_session_lost(collector).await {
            return Err(ApplyError::before_first_change(TargetError::Restarted).into());
        }
        self.take(Some(collector), |_| Some(grant), after).await
    }

    /// Whether the target restarted, so that the session must be opened again.
    pub(crate) async fn is_session_lost(&self, collector: u8) -> bool {
        self.state.lock().await.known.lost.contains(&collector)
    }

    /// In a cluster, makes the target hold what follows from its newest view.
    pub(crate) async fn apply_newest_view(&self) -> Result<(), GrantRefusal> {
        self.take(None, |_| None, After::Renewal).await.map(drop)
    }

    /// The version of the cluster's placement in effect at the target; 0 = none.
    pub(crate) async fn placement_version(&self) -> u64 {
        self.state.lock().await.known.placing.as_ref().map_or(0, Placing::placement_version)
    }

    /// Whether all granted stores are placed; always true outside a cluster.
    pub(crate) async fn is_placed(&self) -> bool {
        let known = &*self.state.lock().await.known;
        known.placing.as_ref().is_none_or(|placing| placing.are_placed(&known.granted))
    }

    /// Removes an ended session's queue pairs from the target: reports for this collector's stores are then
    /// dropped under that name (`no_queue_pair`) instead of being sent in vain.
    pub(crate) async fn stand_down(&self, collector: u8) -> Result<(), GrantRefusal> {
        self.take(Some(collector), |held| held.map(Grant::without_session), After::Renewal).await.map(drop)
    }

    /// Routes frames to a collector's NIC through a ring, if possible.
    pub(crate) async fn join_ring(&self, collector: u8, ring: Option<&RingAt>) -> Result<(), GrantRefusal> {
        let mut state = self.state.lock().await;
        Ok(state.target.join_ring(collector, ring).await.map_err(ApplyError::before_first_change)?)
    }

    /// The source of frames to a collector, if an RDMA device sends the target's frames.
    pub(crate) async fn device_source(
        &self,
        collector: u8,
        writes: Transport,
    ) -> Result<Option<DeviceSource>, GrantRefusal> {
        let mut state = self.state.lock().await;
        Ok(state.target.device_source(collector, writes).await.map_err(ApplyError::before_first_change)?)
    }

    /// The target's counters, and the state of its queue pairs.
    pub(crate) async fn target_status(&self) -> Result<TargetStatus, TargetError> {
        self.state.lock().await.target.read_status().await
    }

    /// As [`TargetGrants::could_hold`].
    pub(crate) async fn could_hold(&self, granted: Vec<(u8, Grant)>) -> Result<(), String> {
        let SharedTargetState { target, known } = &mut *self.state.lock().await;
        known.could_hold(*target, granted, &self.wanted).await
    }

    async fn take(
        &self,
        collector: Option<u8>,
        becomes: impl FnOnce(Option<Grant>) -> Option<Grant>,
        after: After,
    ) -> Result<bool, GrantRefusal> {
        let mut state = self.state.lock().await;
        let mut granted = state.known.granted.clone();
        // Grants under other open sessions do not hold for a target that restarted.
        if after == After::Open
            && granted.keys().any(|other| Some(*other) != collector)
            && state.target.has_restarted().await.map_err(ApplyError::before_first_change)?
        {
            state.known.discard_grants(std::mem::take(&mut granted));
        }
        if after == After::Open {
            state.known.lost.retain(|lost| Some(*lost) != collector);
        }
        if let Some(collector) = collector
            && let Some(grant) = becomes(granted.remove(&collector))
        {
            granted.insert(collector, grant);
        }
        let (held, is_whole) = state.known.grants_to_hold(&granted, collector);
        let want: Program = build_program(&grants_by_collector(&held, &self.wanted), &self.wanted)?;
        if let Err(error) = state.target.apply_program(&want, after).await {
            let refusal = GrantRefusal::from(error);
            if refusal.is_restart() {
                state.known.discard_grants(granted);
            }
            return Err(refusal);
        }
        // Anything half done is found, and completed or undone, with the next program.
        (state.known.granted, state.known.held) = (granted, held);
        Ok(is_whole)
    }
}

/// The grants of all collectors; `None` for one that has not answered.
fn grants_by_collector<'g>(
    grants: &'g BTreeMap<u8, Grant>,
    wanted: &TargetProgramSettings,
) -> Vec<Option<&'g Grant>> {
    wanted.collectors.keys().map(|index| grants.get(index)).collect()
}
