//! The leases of a running translator, one per collector: opening and renewing its session, and keeping a
//! target in step with it.

use dta_cli::number::format_count;
use dta_cluster::View;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::future::try_join_all;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::cluster::roster::Roster;
use crate::config::TranslatorConfig;
use crate::packets::for_collector;
use crate::program::Grant;
use crate::session::{BACKOFF, LeasedSession, Opened, SessionError};
use crate::share::{GrantRefusal, SharedTarget, TargetGrants};
use crate::start::StartProgress;
use dta_switch::{After, Target, TargetError, TargetStatus};

/// How long unacknowledged operations keep a former region's rkey valid. After that the collector may revoke
/// it: the next such frame is refused, the queue pair replaced, and the operations go to the current region.
const LONGEST_FORMER: Duration = Duration::from_secs(30);

/// State shared by the leases of all collectors.
struct Leases<'a, T, R> {
    config: &'a TranslatorConfig,
    target: SharedTarget<'a, T>,
    start: &'a StartProgress,
    halt: watch::Receiver<bool>,
    report: R,
}

/// State of all leases. It survives a change of configuration.
pub struct KnownLeases {
    known: TargetGrants,
    start: StartProgress,
    leases: BTreeMap<u8, LeaseState>,
}

#[derive(Default)]
struct LeaseState {
    /// Whether it was ever open.
    was_open: bool,
    /// Why it is over, if another translator took the session.
    over: Option<SessionError>,
}

impl KnownLeases {
    /// The initial state for the collectors of a configuration.
    pub fn new(config: &TranslatorConfig) -> KnownLeases {
        KnownLeases {
            known: TargetGrants::new(config),
            start: StartProgress::new(config.collector.indices(), config.cluster.is_none()),
            leases: config.collector.indices().map(|index| (index, LeaseState::default())).collect(),
        }
    }

    /// Takes in a newer view of the cluster, with the indices of its collectors. The next call of [`maintain_leases`]
    /// uses it.
    pub(crate) fn apply_view(&mut self, view: &Arc<View>, roster: &Roster) {
        self.known.apply_view(view, roster);
        let known = std::mem::take(&mut self.leases);
        let is_there = |index: &u8| roster.iter().any(|(_, of)| of == *index);
        self.leases = known.into_iter().filter(|(index, _)| is_there(index)).collect();
        for (_, index) in roster.iter() {
            self.leases.entry(index).or_default();
        }
        self.start.set_collectors(self.leases.keys().copied());
    }

    /// Whether a target could hold what these collectors would grant under another configuration, together
    /// with what it holds of the others.
    pub async fn could_hold(
        &self,
        config: &TranslatorConfig,
        target: &mut impl Target,
        granted: Vec<(u8, Grant)>,
    ) -> Result<(), String> {
        self.known.could_hold(target, granted, &config.program_settings()).await
    }
}

/// Status of the leases, sent whenever one changes.
#[derive(Clone, Copy, Debug)]
pub struct LeaseEvent<'a> {
    /// Whether this makes the translator ready: set once.
    pub ready: bool,
    /// Whether every collector was tried.
    pub asked: bool,
    /// How many leases are open, and how many there are.
    pub open: (usize, usize),
    /// The collector that is not open, and why, if this is about one.
    pub waits_for: Option<(&'a str, &'a str)>,
}

impl fmt::Display for LeaseEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, of) = self.open;
        write!(f, "{open} of {} open", format_count(of as u64, "session", "sessions"))?;
        match self.waits_for {
            Some((address, why)) => write!(f, "; waiting for the collector at {address}: {why}"),
            None => Ok(()),
        }
    }
}

/// Why [`maintain_leases`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halted;

/// Why a session is not open or not usable.
#[derive(Debug, thiserror::Error)]
enum LeaseFailure {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Refusal(#[from] GrantRefusal),
}

impl LeaseFailure {
    fn is_retryable(&self) -> bool {
        match self {
            LeaseFailure::Session(error) => error.is_retryable(),
            LeaseFailure::Refusal(refusal) => refusal.is_retryable(),
        }
    }

    /// The error that ends the program, unchanged.
    fn into_error(self) -> anyhow::Error {
        match self {
            LeaseFailure::Session(error) => error.into(),
            LeaseFailure::Refusal(GrantRefusal::Build(error)) => error.into(),
            LeaseFailure::Refusal(GrantRefusal::Target(error)) => error.into(),
        }
    }
}

/// Opens a session with each collector, programs the target, and keeps both in step with the collectors,
/// independently of each other. A failed request to the target is repeated. `report` receives the status of the
/// leases. The translator is ready when the target first holds one collector's grant, and every other
/// collector's was applied or failed; in a cluster, not before its stores are placed.
///
/// Returns when `halt` becomes true, between two steps: the target then holds one program, and [`maintain_leases`] can
/// continue with other sessions of the same names and what was `kept`.
///
/// # Errors
/// Permanent failures: every collector refuses at the start, a program that the target cannot hold, or other
/// translators took all sessions of this name.
pub async fn maintain_leases(
    config: &TranslatorConfig,
    sessions: &mut [LeasedSession],
    target: &mut impl Target,
    kept: &mut KnownLeases,
    halt: watch::Receiver<bool>,
    report: impl Fn(LeaseEvent<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Halted> {
    let KnownLeases { known, start, leases: all } = kept;
    let leases = Leases { config, target: SharedTarget::new(config, target, known), start, halt, report };
    if config.cluster.is_some() {
        leases.apply_newest_view().await?;
    }
    // Both are in the order of indices.
    let each = sessions.iter_mut().zip(all.values_mut());
    try_join_all(each.map(|(session, kept)| leases.maintain_lease(session, kept))).await?;
    if config.cluster.is_some() {
        // There may be other collectors later.
        leases.until_halt(std::future::pending::<()>()).await;
        return Ok(Halted);
    }
    if all.values().any(|kept| kept.over.is_none()) {
        return Ok(Halted);
    }
    let mut over: Vec<SessionError> = all.values_mut().filter_map(|kept| kept.over.take()).collect();
    match (over.pop(), over.len()) {
        (Some(only), 0) => bail!(only),
        (last, _) => {
            let all = over.iter().chain(&last).map(ToString::to_string);
            bail!(all.collect::<Vec<_>>().join("; "))
        }
    }
}

impl<T: Target, R: Fn(LeaseEvent<'_>) -> anyhow::Result<()>> Leases<'_, T, R> {
    /// Makes the target hold what follows from the newest view of the cluster, before any session is open again.
    async fn apply_newest_view(&self) -> anyhow::Result<()> {
        match self.target.apply_newest_view().await {
            Err(refusal) if self.is_fatal(&refusal) => Err(LeaseFailure::from(refusal).into_error()),
            Err(refusal) => {
                warn!(error = %refusal, "cannot apply the placement: waiting for the next session");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Keeps the lease of one collector until another translator takes the session, or until halted. An error
    /// ends the program.
    async fn maintain_lease(&self, session: &mut LeasedSession, kept: &mut LeaseState) -> anyhow::Result<()> {
        if kept.over.is_some() {
            return Ok(());
        }
        let collector = session.collector();
        let mut backoff = BACKOFF.0;
        let was_open = &mut kept.was_open;
        // Whether the collector ended the session or refuses to continue it, so that its queue pairs are
        // dead.
        let mut ended = false;
        // Whether a queue pair is silent that the collector considers healthy; or, at the start and after a
        // restart of the target, operations of an earlier run are in flight.
        let mut fresh = !*was_open || self.target.is_session_lost(collector).await;
        loop {
            let Some(opened) = self.open(session, &mut fresh, *was_open).await else { return Ok(()) };
            match opened {
                Ok(is_whole) => {
                    // Renewals must know this generation from the first one.
                    if is_whole {
                        session.mark_applied();
                    }
                    *was_open = true;
                    let ready = self.start.programmed(collector) | self.is_now_placed().await;
                    let nowhere = "the cluster has not placed anything on its collectors yet";
                    let waits_for =
                        (!self.start.is_placed()).then_some((session.collector_address(), nowhere));
                    self.report_status(ready, waits_for)?;
                    backoff = BACKOFF.0;
                    let Some(failure) = self.renew_until_reopen(session).await? else { return Ok(()) };
                    if let LeaseFailure::Session(over @ SessionError::Superseded(_)) = failure {
                        self.stand_down(collector).await?;
                        if !self.has_single_collector() {
                            error!(error = %over, "reports for this collector's stores are dropped until this program restarts");
                        }
                        kept.over = Some(over);
                        return Ok(());
                    }
                    if matches!(failure, LeaseFailure::Session(SessionError::MoreStores)) {
                        // The same session continues, with more.
                        info!(
                            collector = session.collector_address(),
                            "the collector has more stores: requesting them"
                        );
                        continue;
                    }
                    warn!(collector = session.collector_address(), error = %failure, "reopening the session");
                    fresh = match &failure {
                        LeaseFailure::Session(error) => matches!(error, SessionError::Silent),
                        LeaseFailure::Refusal(refusal) => refusal.is_restart(),
                    };
                    ended = !fresh;
                    // A renewal takes time, so this is not a busy loop; and nothing arrives until the session
                    // is back.
                    continue;
                }
                Err(failure) => {
                    // What the target did not do now is requested again.
                    let lasts = !matches!(&failure, LeaseFailure::Refusal(refusal) if refusal.is_retryable());
                    let why = failure.to_string();
                    let ready = self.judge_open_failure(session, failure)?;
                    if ended && lasts && self.stand_down(collector).await? {
                        ended = false;
                        // The target no longer has these queue pairs.
                        fresh = true;
                    }
                    // Only now: whoever learns of the failure may count on dead queue pairs being gone.
                    let (address, wait) = (session.collector_address(), backoff.as_millis());
                    warn!(collector = address, error = %why, "retrying in {wait} ms");
                    self.report_status(ready, Some((address, &why)))?;
                }
            }
            if self.until_halt(tokio::time::sleep(backoff)).await.is_none() {
                return Ok(());
            }
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }

    /// Whether the cluster has placed all stores, and that makes the translator ready.
    async fn is_now_placed(&self) -> bool {
        !self.start.is_placed() && self.target.is_placed().await && self.start.record_placed()
    }

    /// Waits for a future that may be dropped; `None` if halted first. Not for work that changes the target.
    async fn until_halt<O>(&self, work: impl Future<Output = O>) -> Option<O> {
        let mut halt = self.halt.clone();
        let halted = async move {
            // Without a sender, halting is impossible.
            if halt.wait_for(|halt| *halt).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = halted => None,
            done = work => Some(done),
        }
    }

    fn report_status(&self, ready: bool, waits_for: Option<(&str, &str)>) -> anyhow::Result<()> {
        let (open, asked) = self.start.attempt_summary();
        (self.report)(LeaseEvent { ready, asked, open: (open, self.config.collector.count()), waits_for })
    }

    /// Opens the session and applies its grant to the target, after passing on the reporters' positions the
    /// first time. `None` if halted first.
    async fn open(
        &self,
        session: &mut LeasedSession,
        fresh: &mut bool,
        was_open: bool,
    ) -> Option<Result<bool, LeaseFailure>> {
        if self.config.device.is_some() {
            let transport = match self.until_halt(session.preview_transport()).await? {
                Ok(transport) => transport,
                Err(error) => return Some(Err(error.into())),
            };
            match self.target.device_source(session.collector(), transport).await {
                Ok(source) => source.into_iter().for_each(|source| session.set_device_source(source)),
                Err(refusal) => return Some(Err(refusal.into())),
            }
        }
        let opened = self.until_halt(session.open(self.config.lease_seconds, *fresh)).await?;
        Some(match opened {
            Ok(opened) => self.program_target(session, opened, fresh, was_open).await,
            Err(error) => Err(error.into()),
        })
    }

    /// Applies the grant of an opened session to the target. Returns whether it holds all of it.
    async fn program_target(
        &self,
        session: &LeasedSession,
        opened: Opened,
        fresh: &mut bool,
        was_open: bool,
    ) -> Result<bool, LeaseFailure> {
        let Opened { grant, resumed, reporters } = opened;
        info!(name = self.config.name, collector = session.collector_address(), resumed, "session is open");
        // New queue pairs, if requested, exist by now.
        *fresh = false;
        if !was_open {
            self.target.heard_earlier(reporters).await?;
        }
        self.target.join_ring(session.collector(), session.ring_offer()).await?;
        Ok(self.target.apply_grant(session.collector(), grant, After::Open).await?)
    }

    /// Judges a failed attempt to open: returns whether it makes the translator ready, or an error if it ends the
    /// program.
    fn judge_open_failure(&self, session: &LeasedSession, failure: LeaseFailure) -> anyhow::Result<bool> {
        let may_pass = failure.is_retryable();
        match &failure {
            // A collector that took this session before may be starting with another configuration.
            LeaseFailure::Session(_) => {}
            LeaseFailure::Refusal(refusal) if self.is_fatal(refusal) => return Err(failure.into_error()),
            // Contradictory configurations: at the start there is somebody to fix them.
            LeaseFailure::Refusal(_)
                if !may_pass && !self.start.is_ready() && self.config.cluster.is_none() =>
            {
                return Err(failure.into_error());
            }
            LeaseFailure::Refusal(_) => {}
        }
        let ready = self.start.record_failure(session.collector(), may_pass);
        if self.start.is_hopeless() && self.config.cluster.is_none() {
            return Err(failure.into_error());
        }
        Ok(ready)
    }

    /// Whether a refusal ends the program. One collector's grant that the target cannot hold does not affect
    /// the others.
    fn is_fatal(&self, refusal: &GrantRefusal) -> bool {
        match refusal {
            GrantRefusal::Build(_) => false,
            GrantRefusal::Target(error) => {
                let of_one = matches!(error.error, TargetError::Refused(_)) && !self.has_single_collector();
                !error.error.is_retryable() && !of_one
            }
        }
    }

    fn has_single_collector(&self) -> bool {
        self.config.collector.count() == 1 && self.config.cluster.is_none()
    }

    /// Renews until the session must be reopened; returns the reason, or `None` if halted.
    async fn renew_until_reopen(&self, session: &mut LeasedSession) -> anyhow::Result<Option<LeaseFailure>> {
        let collector = session.collector();
        let lease = u64::from(self.config.lease_seconds);
        let every = Duration::from_millis(lease * 1000 / 3).min(Duration::from_secs(1));
        let among_others = (!self.has_single_collector()).then_some(collector);
        let mut away = false;
        let mut failed_renewals = 0;
        // Number of stores at the collector when this session was found to get no more of them.
        let mut known_stores = None;
        // Whether the target holds the collector's latest grant, and since when operations to the previous
        // one are in flight.
        let (mut holds, mut ahead_since) = (true, None);
        loop {
            if self.until_halt(tokio::time::sleep(every)).await.is_none() {
                return Ok(None);
            }
            // The lease is kept even if the target does not answer right now.
            let TargetStatus { mut nodes, silent, former_regions, frames_by } = self.target_status().await?;
            let frames_by = frames_by.get(&collector).map_or("", String::as_str);
            for_collector(&mut nodes, among_others);
            // What was sent on UC before the newest program has arrived by now.
            if holds && is_through(session, former_regions, &mut ahead_since) {
                session.mark_applied();
            }
            let placement = self.target.placement_version().await;
            let Some(renewed) = self.until_halt(session.renew_lease(nodes, frames_by, placement)).await
            else {
                return Ok(None);
            };
            match renewed {
                Ok(newest) => {
                    if std::mem::take(&mut away) {
                        info!(collector = session.collector_address(), "the collector is answering again");
                    }
                    if let Err(refusal) = self.target.join_ring(collector, session.ring_offer()).await {
                        return Err(LeaseFailure::from(refusal).into_error());
                    }
                    holds = match self.target.apply_grant(collector, newest, After::Renewal).await {
                        Ok(is_whole) => is_whole,
                        Err(refusal) if refusal.is_restart() => return Ok(Some(refusal.into())),
                        Err(refusal) if refusal.is_retryable() => {
                            warn!(collector = session.collector_address(), error = %refusal, "retrying at the next renewal");
                            false
                        }
                        Err(refusal) if self.is_fatal(&refusal) => {
                            return Err(LeaseFailure::from(refusal).into_error());
                        }
                        Err(refusal) => return Ok(Some(refusal.into())),
                    };
                    if self.is_now_placed().await {
                        self.report_status(true, None)?;
                    }
                    if let Some(more) = session.more_stores().filter(|more| known_stores != Some(*more)) {
                        known_stores = Some(more);
                        // Checked first: a session that is refused on opening would be lost.
                        match self.until_halt(session.preview_grant()).await {
                            None => return Ok(None),
                            Some(Ok(preview)) => {
                                match self.target.could_hold(vec![(collector, preview.grant)]).await {
                                    Ok(()) => return Ok(Some(SessionError::MoreStores.into())),
                                    Err(error) => warn_without_stores(session, &error),
                                }
                            }
                            Some(Err(error)) => warn_without_stores(session, &error),
                        }
                    }
                    // The collector replaces a queue pair in ERROR; one that it considers healthy but that
                    // does not answer is replaced on request.
                    let still_silent = silent.contains(&collector)
                        && self.target_status().await?.silent.contains(&collector);
                    failed_renewals = if still_silent { failed_renewals + 1 } else { 0 };
                    if failed_renewals >= 2 {
                        return Ok(Some(SessionError::Silent.into()));
                    }
                }
                Err(error @ SessionError::Away(_)) => {
                    // Frames still go to the old queue pairs: the collector's memory may well be there.
                    if !std::mem::replace(&mut away, true) {
                        warn!(%error, "continuing with the existing queue pairs");
                    }
                }
                Err(error) => return Ok(Some(error.into())),
            }
        }
    }

    /// The target's counters; empty if it does not answer.
    async fn target_status(&self) -> anyhow::Result<TargetStatus> {
        match self.target.target_status().await {
            Ok(status) => Ok(status),
            Err(error) if error.is_retryable() => {
                warn!(%error, "cannot read the target's counters");
                Ok(TargetStatus::default())
            }
            Err(error) => bail!(error),
        }
    }

    /// Removes an ended session's queue pairs from the target. Returns whether that succeeded.
    async fn stand_down(&self, collector: u8) -> anyhow::Result<bool> {
        match self.target.stand_down(collector).await {
            Ok(()) => Ok(true),
            Err(refusal) if refusal.is_retryable() => {
                warn!(error = %refusal, "dead queue pairs remain in the target");
                Ok(false)
            }
            Err(refusal) => Err(LeaseFailure::from(refusal).into_error()),
        }
    }
}

/// Logs that a session gets none of the collector's additional stores.
fn warn_without_stores(session: &LeasedSession, error: &dyn fmt::Display) {
    warn!(
        collector = session.collector_address(), %error,
        "cannot use the collector's additional stores: the session continues without them"
    );
}

/// Whether no operation to a former region has been in flight since the collector granted a new one, or for
/// too long. While the target does not say how many such regions there are (`None`), only the time counts.
fn is_through(
    session: &LeasedSession,
    former_regions: Option<usize>,
    ahead_since: &mut Option<Instant>,
) -> bool {
    if !session.has_unapplied_grant() || former_regions == Some(0) {
        *ahead_since = None;
        return true;
    }
    let too_long = ahead_since.get_or_insert_with(Instant::now).elapsed() > LONGEST_FORMER;
    if too_long {
        *ahead_since = None;
        warn!(
            stores = former_regions,
            "operations to a replaced region were not acknowledged: resending them to the new region, on another queue pair"
        );
    }
    too_long
}
