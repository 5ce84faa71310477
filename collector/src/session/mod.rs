//! Sessions: named leases that give translators queue pairs and keys to memory.
//!
//! A session is not a connection. It begins with [`CollectorSessions::open`] and lasts as long as it is
//! renewed (or forever). It ends by [`CollectorSessions::end_session`] or by expiry: its queue pairs and keys
//! end, and the regions stay. Reopening a name resumes it.
//!
//! - `caller`: the caller, and whose sessions it may touch.
//! - [`lease`]: who may write what, until when.
//! - `grant`: what a lease holds on the NIC.
//! - `rebuilds`: how often broken queue pairs are rebuilt.
//! - [`sharing`]: which keys and lists are at other collectors.
//! - [`state`]: the files that restore sessions after a restart.
//! - [`statistics`]: the counters that translators hand in.
//!
//! Time is a parameter: `now` must never go backwards.

mod caller;
mod grant;
pub mod lease;
mod persisted;
pub mod positions;
mod rebuilds;
pub mod sharing;
pub mod state;
pub mod statistics;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use caller::SessionCaller;
pub use grant::{FormerRegion, Grant, GrantedQueuePair, GrantedRegion, RetiredQueuePair};
pub use lease::{Lease, LeaseError, OpenRequest, RequesterQueuePair};
pub use positions::ListPosition;
pub use state::StateError;
pub use statistics::{NodeCounters, NodeSums, ReporterPosition};

use dta_proto::counter::collector as names;

use crate::config::Transport;
use dta_memory::nic::{Endpoint, Nic, NicError, QueuePairStatus};
use dta_memory::store::{MemoryError, ServedStores};
use grant::{Anew, NewGrant, Terms};
use lease::Leases;
use rebuilds::Rebuilds;
use sharing::SharingClaims;
use statistics::{LeftOut, SessionStatistics};

/// Why a session call was refused. Nothing has changed, except that the lease may have been extended before
/// something else was refused.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A store of counters on a device without atomics.
    #[error("store {store:?} needs atomics, which the device {device:?} does not have; leave the store out")]
    NoAtomics { store: String, device: String },
    /// Queue pairs of the session were rebuilt too often. They are unchanged.
    #[error(
        "the queue pairs of session {name:?} were rebuilt too often; now at most once in {} s: ask again later; until then \
         the existing ones stay (docs/rdma.md)",
        rebuilds::EVERY.as_secs()
    )]
    HeldBack { name: String },
    /// The state could not be written, so after a crash the session would be unknown.
    #[error("cannot keep the session: {0}")]
    State(#[from] StateError),
    /// The positions of the session's lists cannot be read. The session is open; asking again resumes it.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A session as its translator needs it.
#[derive(Clone, Debug)]
pub struct GrantedSession {
    pub lease: Lease,
    /// Whether it resumes an earlier session of this name.
    pub resumed: bool,
    pub grant: Grant,
    /// The positions of this session's lists, only when it is opened and only for lists that are not empty.
    pub positions: Vec<ListPosition>,
    /// How far earlier translators of this session had heard their reporters, only when it is opened.
    pub reporters: Vec<ReporterPosition>,
}

/// A session as an operator sees it.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    pub lease: Lease,
    /// Its queue pairs. After a restart there are none until the translator renews.
    pub queue_pairs: Vec<QueuePairStatus>,
    /// How its frames travel, as reported by its translator; empty if not reported.
    pub frames_by: String,
}

dta_proto::published_counters! {
    /// What happened to sessions since the collector started.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SessionCounters {
        pub opened: u64 = names::SESSION_OPENED,
        pub resumed: u64 = names::SESSION_RESUMED,
        pub renewed: u64 = names::SESSION_RENEWED,
        pub expired: u64 = names::SESSION_EXPIRED,
        pub ended: u64 = names::SESSION_ENDED,
        pub refused: u64 = names::SESSION_REFUSED,
        pub queue_pairs_rebuilt: u64 = names::SESSION_QUEUE_PAIRS_REBUILT,
        pub rebuilds_held_back: u64 = names::SESSION_REBUILDS_HELD_BACK,
        pub statistics_left_out: u64 = names::SESSION_STATISTICS_LEFT_OUT,
        pub statistics_no_room: u64 = names::SESSION_STATISTICS_NO_ROOM,
    }
}

/// Whether sessions may still write to a generation of a store's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// At least one session has a key to it.
    There,
    /// No session has a key any more, and all that had one have confirmed that they write elsewhere.
    Moved,
    /// No session has a key any more, but at least one key ended without such a confirmation.
    Gone,
}

/// Least interval between log lines about left-out statistics of a session, as they recur with each renewal.
const LOG_EVERY: Duration = Duration::from_secs(300);

pub struct CollectorSessions {
    nic: Arc<dyn Nic>,
    stores: Arc<ServedStores>,
    transport: Transport,
    /// Directory of the state; `None` = state is not kept.
    directory: Option<PathBuf>,
    inner: Mutex<LockedSessions>,
    /// Notified when a name leaves [`LockedSessions::unsettled`].
    settled: Condvar,
    /// Has a lock of its own, so that queries do not wait while a session is opened.
    shared: Mutex<KnownSharing>,
    files: SessionFiles,
}

struct KnownSharing {
    shared: Arc<SharingClaims>,
    /// Whether there are changes that are not in the file.
    dirty: bool,
}

/// A file's lock is held while it is written, so that older contents never replace newer ones. A disk may
/// take long, so nothing is written while the sessions are locked.
#[derive(Default)]
struct SessionFiles {
    /// The last change of the leases that is in the file. Never lock the sessions while holding this.
    leases: Mutex<u64>,
    /// Locked before the sessions, and never while they are locked.
    statistics: Mutex<()>,
    sharing: Mutex<()>,
}

#[derive(Default)]
struct LockedSessions {
    leases: Leases,
    /// By name, what a session gets once its new or changed lease is in the file.
    unsettled: BTreeMap<String, Grant>,
    grants: BTreeMap<String, Grant>,
    /// By session, for sessions whose queue pairs broke.
    rebuilds: BTreeMap<String, Rebuilds>,
    statistics: SessionStatistics,
    statistics_dirty: bool,
    /// How many times leases were encoded for the file.
    leases_change: u64,
    /// Whether the file has leases that have ended or never began.
    leases_dirty: bool,
    /// By session, when left-out statistics were last logged.
    logged_left_out: BTreeMap<String, Instant>,
    /// By session, how its frames travel, as reported by its translator.
    frames_by: BTreeMap<String, String>,
    /// Sessions whose translator has said goodbye.
    left: BTreeSet<String>,
    /// By store, generations of memory whose key ended before its translator confirmed that it writes elsewhere.
    deserted: BTreeMap<String, BTreeSet<u64>>,
    counters: SessionCounters,
}

/// A lease that was inserted but must still be written ([`CollectorSessions::settle_lease`]).
struct UnsettledLease<'a> {
    lease: Lease,
    replaced: Option<Lease>,
    made: NewGrant,
    former: Option<Grant>,
    /// Queue pairs that count as rebuilt.
    rebuilt: u64,
    /// The request, if the session is being opened.
    opens: Option<&'a OpenRequest>,
    /// The new contents of the file, if there is one, with the number of the change.
    file: Result<Option<(u64, Vec<u8>)>, StateError>,
}

/// The outcome of a renewal.
enum RenewalOutcome {
    AsItWas(Box<GrantedSession>),
    Changed(Box<UnsettledLease<'static>>),
}

impl LockedSessions {
    /// Records what a session hands in. Never fails.
    fn record_statistics(&mut self, session: &str, statistics: &[NodeCounters], now: Instant) {
        let LeftOut { bad, no_room } =
            self.statistics.record_statistics(session, statistics, SystemTime::now());
        self.counters.statistics_left_out += bad as u64;
        self.counters.statistics_no_room += no_room as u64;
        self.statistics_dirty = true;
        let logged_at = self.logged_left_out.get(session);
        if bad + no_room > 0
            && logged_at.is_none_or(|logged_at| now.saturating_duration_since(*logged_at) >= LOG_EVERY)
        {
            tracing::warn!(
                %session, bad, no_room,
                "statistics of nodes are left out: a name is not valid or they have too many counters (bad), or there is no room \
                 for more nodes and counters (no_room; docs/counters.md)"
            );
            self.logged_left_out.insert(session.to_owned(), now);
        }
    }

    /// Notes memory that the session had keys to, but no longer has with its present grant.
    fn note_deserted(&mut self, former: &Grant, now: Option<&Grant>) {
        for key in former.granted_keys() {
            if !now.is_some_and(|now| now.has_key_to(&key.store, key.memory)) {
                self.deserted.entry(key.store.clone()).or_default().insert(key.memory);
            }
        }
    }

    /// The encoded leases and the number of this change.
    fn encode_leases(&mut self, dir: &Path) -> Result<(u64, Vec<u8>), StateError> {
        (self.leases_change, self.leases_dirty) = (self.leases_change + 1, false);
        Ok((self.leases_change, persisted::encode_leases(dir, &self.leases)?))
    }

    /// Whether queue pairs of a session may be rebuilt now.
    fn may_rebuild(&self, session: &str, now: Instant) -> bool {
        self.rebuilds.get(session).is_none_or(|rebuilds| rebuilds.can_rebuild(now))
    }

    /// Logs and counts queue pairs that had to be rebuilt.
    fn count_anew(&mut self, session: &str, anew: Anew, now: Instant) {
        if anew.made + anew.held_back == 0 {
            return;
        }
        let rebuilds = self.rebuilds.entry(session.to_owned()).or_insert_with(|| Rebuilds::new(now));
        if anew.made > 0 {
            rebuilds.count_rebuild(now);
        }
        if anew.made > 0 && anew.broken > 0 {
            tracing::warn!(
                %session, queue_pairs = anew.made,
                "queue pairs were in ERROR and have been rebuilt: the translator accessed what it does not own, or somebody else \
                 sent in its name (docs/rdma.md)"
            );
        } else if anew.made > 0 {
            tracing::info!(%session, queue_pairs = anew.made, "queue pairs rebuilt at the translator's request");
        }
        self.counters.rebuilds_held_back += u64::from(anew.held_back);
        if anew.held_back > 0 && rebuilds.should_warn_once() {
            tracing::warn!(
                %session, queue_pairs = anew.held_back,
                "queue pairs keep failing: from now on they are rebuilt at most every {} s",
                rebuilds::EVERY.as_secs()
            );
        }
    }
}

impl SessionFiles {
    fn write_leases(&self, dir: &Path, change: u64, bytes: &[u8]) -> Result<(), StateError> {
        let mut written = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if *written < change {
            persisted::write_leases(dir, bytes)?;
            *written = change;
        }
        Ok(())
    }
}

impl CollectorSessions {
    /// Sessions over a NIC and stores. With a directory, sessions that an earlier collector saved there
    /// continue: their leases have their full time from `now`, and their translators get new queue pairs when
    /// they renew.
    pub fn open_state(
        nic: Arc<dyn Nic>,
        stores: Arc<ServedStores>,
        transport: Transport,
        directory: Option<PathBuf>,
        now: Instant,
    ) -> Result<Self, StateError> {
        let (leases, statistics, mut shared) = match &directory {
            Some(dir) => {
                let leases = persisted::load_leases(dir, now)?;
                let statistics = persisted::load_statistics(dir, &leases)?;
                let mut shared = sharing::load(dir)?;
                shared.set_open_sessions(|name| leases.get(name).is_some());
                // There is no file as long as nothing is shared.
                for lease in leases.iter() {
                    if !shared.has_session(&lease.name) {
                        shared.record_claim(&lease.name, &lease.stores, None);
                    }
                }
                (leases, statistics, shared)
            }
            None => Default::default(),
        };
        let inner = LockedSessions { leases, statistics, ..LockedSessions::default() };
        // Ensures that no version repeats one of an earlier run.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        shared.version = (now.as_micros() as u64).max(1);
        shared.started = now.as_millis() as u64;
        let shared = Mutex::new(KnownSharing { shared: Arc::new(shared), dirty: false });
        let files = SessionFiles::default();
        let (inner, settled) = (Mutex::new(inner), Condvar::new());
        Ok(Self { nic, stores, transport, directory, inner, settled, shared, files })
    }

    /// Opens a session, or resumes the one with its name. The same translator keeps its keys, and the queue
    /// pairs that work; with `fresh` its RC queue pairs are rebuilt, unless that happened too often lately
    /// ([`SessionError::HeldBack`]). Another translator gets new queue pairs and keys. Everything new has a
    /// new generation. Reads the rings of the session's lists, so it may take a while.
    pub fn open(&self, request: &OpenRequest, now: Instant) -> Result<GrantedSession, SessionError> {
        let entered = self.enter_opened(&mut self.lock_settled(&request.name), request, now);
        let result = entered.and_then(|entered| self.settle_lease(entered));
        let mut inner = self.lock_sessions();
        match &result {
            Ok(session) if session.resumed => inner.counters.resumed += 1,
            Ok(_) => inner.counters.opened += 1,
            Err(_) => inner.counters.refused += 1,
        }
        let has_left = inner.left.contains(&request.name);
        drop(inner);
        let mut session = result?;
        self.write_sharing()?;
        // The lists belong to this session by now, so others need not wait while their rings are read.
        session.positions = positions::read_positions(&self.stores, &session.lease.lists)?;
        if session.resumed && request.fresh && !has_left {
            session.positions.iter_mut().for_each(ListPosition::leave_out);
        }
        Ok(session)
    }

    /// Previews [`CollectorSessions::open`] without opening, granting or extending anything: returns what an existing
    /// session of that name holds, and 0 for numbers and keys not given out yet. Refuses what `open` refuses.
    pub fn preview_open(&self, request: &OpenRequest, now: Instant) -> Result<GrantedSession, SessionError> {
        let mut inner = self.lock_sessions();
        self.expire_sessions(&mut inner, now);
        let stores = self.stores.current_stores();
        let specs: Vec<_> = stores.iter().map(|store| &store.spec).collect();
        let wanted = inner.leases.prepare_lease(request, &specs, now)?;
        let (lease, resumed) = match inner.leases.get(&request.name) {
            Some(held) => (Lease { stores: wanted.stores, lists: wanted.lists, ..held.clone() }, true),
            None => (wanted, false),
        };
        let held = inner.grants.get(&request.name);
        let grant = grant::preview_grant(&*self.nic, &self.stores, self.transport, &lease, held)?;
        drop(inner);
        let positions = positions::read_positions(&self.stores, &lease.lists)?;
        Ok(GrantedSession { lease, resumed, grant, positions, reporters: Vec::new() })
    }

    fn enter_opened<'a>(
        &self,
        inner: &mut LockedSessions,
        request: &'a OpenRequest,
        now: Instant,
    ) -> Result<UnsettledLease<'a>, SessionError> {
        self.expire_sessions(inner, now);
        let stores = self.stores.current_stores();
        let specs: Vec<_> = stores.iter().map(|store| &store.spec).collect();
        let mut lease = inner.leases.prepare_lease(request, &specs, now)?;
        let earlier = inner.leases.get(&request.name);
        // Another translator, or another run of the same one, gets nothing that its predecessor knows.
        let same = earlier.is_some_and(|e| {
            // The file does not record whether it takes answers in runs.
            Endpoint { runs: lease.translator.runs, ..e.translator } == lease.translator
                && e.queue_pairs
                    .iter()
                    .map(|p| (p.purpose, p.qpn))
                    .eq(lease.queue_pairs.iter().map(|p| (p.purpose, p.qpn)))
        });
        let before = (earlier.map(|e| (e.generation, e.opened)), inner.grants.get(&request.name).cloned());
        let terms = Terms {
            keep: if same { before.1.as_ref() } else { None },
            generation: inner.leases.generation() + 1,
            rebuild: inner.may_rebuild(&request.name, now),
            fresh: request.fresh,
            resumes: same,
            opens: true,
        };
        let made = grant::make_grant(&*self.nic, &self.stores, self.transport, &lease, terms)?;
        let anew = made.anew;
        inner.count_anew(&request.name, anew, now);
        if anew.held_back > 0 {
            grant::release_grant(&*self.nic, &made.grant, before.1.as_ref());
            // Its translator will try again, so the session and its count of rebuilds must stay.
            inner.leases.restart_lease_time(&request.name, now);
            return Err(SessionError::HeldBack { name: request.name.clone() });
        }
        let changed = made.changed;
        match before.0 {
            Some((generation, opened)) if same && !changed => {
                (lease.generation, lease.opened) = (generation, opened)
            }
            _ => {
                lease.generation = inner.leases.next_generation();
                lease.opened = lease.generation;
            }
        }
        Ok(self.enter_lease(inner, lease, made, before.1, u64::from(anew.made), Some(request)))
    }

    /// Inserts a lease with the grant made for it. Until it has been written or that has failed, calls that
    /// open, renew or end this session wait, and it does not expire.
    fn enter_lease<'a>(
        &self,
        inner: &mut LockedSessions,
        lease: Lease,
        made: NewGrant,
        former: Option<Grant>,
        rebuilt: u64,
        opens: Option<&'a OpenRequest>,
    ) -> UnsettledLease<'a> {
        let replaced = inner.leases.get(&lease.name).cloned();
        inner.leases.insert(lease.clone());
        inner.unsettled.insert(lease.name.clone(), made.grant.clone());
        let file = self.directory.as_ref().map(|dir| inner.encode_leases(dir)).transpose();
        UnsettledLease { lease, replaced, made, former, rebuilt, opens, file }
    }

    /// Writes an inserted lease, then gives its session the new grant: nobody may use what a restarted
    /// collector would not know. If writing fails, everything is rolled back.
    fn settle_lease(&self, entered: UnsettledLease<'_>) -> Result<GrantedSession, SessionError> {
        let UnsettledLease { lease, replaced, made, former, rebuilt, opens, file } = entered;
        let written = file.and_then(|file| match (&self.directory, file) {
            (Some(dir), Some((change, bytes))) => self.files.write_leases(dir, change, &bytes),
            _ => Ok(()),
        });
        let mut inner = self.lock_sessions();
        inner.unsettled.remove(&lease.name);
        self.settled.notify_all();
        let resumed = replaced.is_some();
        if let Err(error) = written {
            match replaced {
                Some(lease) => inner.leases.insert(lease),
                None => drop(inner.leases.remove(&lease.name)),
            }
            // A concurrent write of another lease may have written this one with it.
            inner.leases_dirty = true;
            grant::release_grant(&*self.nic, &made.grant, former.as_ref());
            return Err(error.into());
        }
        inner.counters.queue_pairs_rebuilt += rebuilt;
        let grant = made.finish(&*self.nic, former.as_ref());
        if let Some(former) = &former {
            inner.note_deserted(former, Some(&grant));
        }
        inner.grants.insert(lease.name.clone(), grant.clone());
        let mut reporters = Vec::new();
        if let Some(request) = opens {
            self.change_shared(|shared| {
                shared.record_claim(&lease.name, &lease.stores, request.sharing.as_ref())
            });
            inner.statistics.begin_session(&lease.name);
            reporters = inner.statistics.reporters(&lease.name);
        }
        Ok(GrantedSession { lease, resumed, grant, positions: Vec::new(), reporters })
    }

    /// Whether a caller may renew a session, judged by its name alone, before its statistics are read. A
    /// refusal counts like one of the renewal itself.
    pub fn may_renew(&self, name: &str, caller: &SessionCaller) -> Result<(), SessionError> {
        let mut inner = self.lock_sessions();
        let lease = inner.leases.get(name).ok_or_else(|| LeaseError::unknown_session(name));
        let result = lease.and_then(|lease| caller.check_access(caller::SessionAction::Write, lease));
        inner.counters.refused += u64::from(result.is_err());
        Ok(result?)
    }

    /// Notes how the frames of a session travel, as its translator says: at most 200 characters, without
    /// control characters.
    pub fn note_frames_by(&self, name: &str, said: &str) {
        let mut inner = self.lock_sessions();
        if said.is_empty() || inner.leases.get(name).is_none() {
            inner.frames_by.remove(name);
        } else if inner.frames_by.get(name).is_none_or(|known| known != said) {
            let words = said.chars().filter(|c| !c.is_control()).take(200).collect();
            inner.frames_by.insert(name.to_owned(), words);
        }
    }

    /// Notes whether a session's translator is stopping after it has sent everything it held. If it has not
    /// said so, its last frames may be lost: the next translator to open the session then skips some
    /// sequences of each non-empty list, which readers see. A collector started since then does not know.
    pub fn note_leaving(&self, name: &str, leaving: bool) {
        let mut inner = self.lock_sessions();
        match leaving && inner.leases.get(name).is_some() {
            true => inner.left.insert(name.to_owned()),
            false => inner.left.remove(name),
        };
    }

    /// Extends a lease and takes its translator's statistics. `generation` is the one that the translator
    /// works with: keys that it replaced end. If queue pairs fell into ERROR or were lost with an earlier
    /// collector, or if a store has another region, the answer has new ones with a new generation.
    pub fn renew_session(
        &self,
        name: &str,
        caller: &SessionCaller,
        generation: u64,
        statistics: &[NodeCounters],
        now: Instant,
    ) -> Result<GrantedSession, SessionError> {
        let renewed =
            self.renew_entered(&mut self.lock_settled(name), name, caller, generation, statistics, now);
        let result = match renewed {
            Ok(RenewalOutcome::AsItWas(session)) => Ok(*session),
            Ok(RenewalOutcome::Changed(entered)) => self.settle_lease(*entered),
            Err(error) => Err(error),
        };
        let mut inner = self.lock_sessions();
        match &result {
            Ok(_) => inner.counters.renewed += 1,
            Err(_) => inner.counters.refused += 1,
        }
        result
    }

    fn renew_entered(
        &self,
        inner: &mut LockedSessions,
        name: &str,
        caller: &SessionCaller,
        generation: u64,
        statistics: &[NodeCounters],
        now: Instant,
    ) -> Result<RenewalOutcome, SessionError> {
        self.expire_sessions(inner, now);
        let mut lease = inner.leases.renew_lease(name, caller, generation, now)?.clone();
        if !statistics.is_empty() {
            inner.record_statistics(name, statistics, now);
        }
        self.confirm_generation(inner, name, generation);
        let old = inner.grants.get(name).cloned();
        let terms = Terms {
            keep: old.as_ref(),
            generation: inner.leases.generation() + 1,
            rebuild: inner.may_rebuild(name, now),
            fresh: false,
            resumes: true,
            opens: false,
        };
        let made = grant::make_grant(&*self.nic, &self.stores, self.transport, &lease, terms)?;
        inner.count_anew(name, made.anew, now);
        if !made.changed {
            let (grant, positions, reporters) = (made.grant, Vec::new(), Vec::new());
            let session = GrantedSession { lease, resumed: true, grant, positions, reporters };
            return Ok(RenewalOutcome::AsItWas(Box::new(session)));
        }
        lease.generation = inner.leases.next_generation();
        let kept = old.as_ref().map_or(0, |old| made.grant.queue_pairs_in_common(old));
        let rebuilt = (made.grant.queue_pairs.len() - kept) as u64;
        Ok(RenewalOutcome::Changed(Box::new(self.enter_lease(inner, lease, made, old, rebuilt, None))))
    }

    /// Revokes keys that a session no longer uses, now that its translator works with this generation.
    fn confirm_generation(&self, inner: &mut LockedSessions, name: &str, generation: u64) {
        let Some(grant) = inner.grants.get_mut(name) else { return };
        let confirmed = grant.take_confirmed(generation);
        for former in &confirmed {
            tracing::debug!(
                session = %name, store = %former.region.store, generation,
                "the translator writes to the new region: revoking the key to the previous one"
            );
        }
        grant::revoke_keys(&*self.nic, grant.epoch, &confirmed);
    }

    /// Ends a session: its queue pairs and keys become invalid. `last` comes from a translator that ends its
    /// own session: the generation it knows and its last counters. An operator passes none.
    pub fn end_session(
        &self,
        name: &str,
        caller: &SessionCaller,
        last: Option<(u64, &[NodeCounters])>,
        now: Instant,
    ) -> Result<(), SessionError> {
        let mut inner = self.lock_settled(name);
        self.expire_sessions(&mut inner, now);
        let lease = inner.leases.get(name).ok_or_else(|| LeaseError::unknown_session(name))?;
        caller.check_access(caller::SessionAction::End, lease)?;
        if let Some((generation, statistics)) = last {
            inner.leases.renew_lease(name, caller, generation, now)?;
            inner.record_statistics(name, statistics, now);
        }
        self.remove_session(&mut inner, name, last.is_some());
        inner.counters.ended += 1;
        drop(inner);
        self.write_sharing_or_warn();
        self.write_leases()?;
        Ok(self.write_statistics()?)
    }

    /// Ends expired sessions, checks the NIC, and writes sessions that ended and statistics that came since
    /// the last call. Call it about once a second.
    pub fn run_upkeep(&self, now: Instant) -> Result<(), StateError> {
        // Broken queue pairs and lost devices raise no event: this query notices both, and logs and counts
        // them.
        if let Err(error) = self.nic.queue_pairs() {
            tracing::debug!(%error, "the NIC does not answer");
        }
        self.expire_sessions(&mut self.lock_sessions(), now);
        self.write_sharing_or_warn();
        if let Err(error) = self.write_leases() {
            // Only a collector that restarts now would find them again, and there they expire again.
            tracing::warn!(%error, "cannot remove expired sessions from the state file");
        }
        self.write_statistics()
    }

    /// Updates what is known about other collectors; `change` returns whether anything is new.
    fn change_shared(&self, change: impl FnOnce(&mut SharingClaims) -> bool) {
        let mut known = self.lock_sharing();
        let before = known.shared.is_empty();
        let now = Arc::make_mut(&mut known.shared);
        let changed = change(now);
        now.version += u64::from(changed);
        // There is no file as long as nothing is shared.
        known.dirty |= changed && !(before && known.shared.is_empty());
    }

    fn write_sharing(&self) -> Result<(), StateError> {
        let Some(dir) = &self.directory else { return Ok(()) };
        let _file = self.files.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = {
            let mut known = self.lock_sharing();
            if !std::mem::take(&mut known.dirty) {
                return Ok(());
            }
            known.shared.clone()
        };
        sharing::save_sharing(dir, &shared).inspect_err(|_| self.lock_sharing().dirty = true)
    }

    fn write_sharing_or_warn(&self) {
        if let Err(error) = self.write_sharing() {
            // A restarted collector treats sessions without a lease as ended.
            tracing::warn!(%error, "cannot save what other collectors hold");
        }
    }

    /// Which keys and lists are here, and which are at other collectors.
    pub fn sharing_claims(&self) -> Arc<SharingClaims> {
        self.lock_sharing().shared.clone()
    }

    fn lock_sharing(&self) -> MutexGuard<'_, KnownSharing> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All sessions, by name, with the status of their queue pairs.
    pub fn list_sessions(&self, now: Instant) -> Result<Vec<SessionStatus>, NicError> {
        let pairs = self.nic.queue_pairs()?;
        let mut inner = self.lock_sessions();
        self.expire_sessions(&mut inner, now);
        let of = |grant: &Grant| {
            pairs.iter().filter(|p| grant.queue_pairs.iter().any(|g| g.info.qpn == p.qpn)).cloned().collect()
        };
        Ok(inner
            .leases
            .iter()
            .map(|lease| SessionStatus {
                lease: lease.clone(),
                queue_pairs: inner.grants.get(&lease.name).map(of).unwrap_or_default(),
                frames_by: inner.frames_by.get(&lease.name).cloned().unwrap_or_default(),
            })
            .collect())
    }

    /// Whether any session may write to this generation of a store's memory. Forgets what is known about
    /// earlier generations.
    pub fn store_writers(&self, store: &str, memory: u64) -> Writers {
        let mut inner = self.lock_sessions();
        let mut granted = inner.grants.values().chain(inner.unsettled.values());
        if granted.any(|grant| grant.has_key_to(store, memory)) {
            return Writers::There;
        }
        let Some(deserted) = inner.deserted.get_mut(store) else { return Writers::Moved };
        *deserted = deserted.split_off(&memory);
        if deserted.contains(&memory) { Writers::Gone } else { Writers::Moved }
    }

    /// The number of sessions; `None` while they are being changed, which may take a while.
    pub fn session_count(&self) -> Option<usize> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(inner.leases.iter().count())
    }

    /// What happened since the collector started.
    pub fn session_counters(&self) -> SessionCounters {
        self.lock_sessions().counters
    }

    /// The sums of what translators handed in, including those of ended sessions.
    pub fn statistics(&self) -> Vec<NodeSums> {
        self.lock_sessions().statistics.node_sums(SystemTime::now())
    }

    /// Ends expired sessions. The files are updated within a second ([`CollectorSessions::run_upkeep`]).
    fn expire_sessions(&self, inner: &mut LockedSessions, now: Instant) {
        for name in inner.leases.expired_leases(now) {
            if inner.unsettled.contains_key(&name) {
                continue;
            }
            tracing::warn!(session = %name, "the session was not renewed in time and has ended");
            self.remove_session(inner, &name, false);
            inner.counters.expired += 1;
        }
    }

    /// `word` means that its translator has said that it writes no more.
    fn remove_session(&self, inner: &mut LockedSessions, name: &str, word: bool) {
        inner.leases.remove(name);
        inner.rebuilds.remove(name);
        inner.logged_left_out.remove(name);
        inner.frames_by.remove(name);
        inner.left.remove(name);
        inner.statistics.end_session(name);
        (inner.statistics_dirty, inner.leases_dirty) = (true, true);
        self.change_shared(|shared| shared.end_session(name));
        if let Some(grant) = inner.grants.remove(name) {
            if !word {
                inner.note_deserted(&grant, None);
            }
            grant::release_grant(&*self.nic, &grant, None);
        }
    }

    /// Writes the leases if some have ended.
    fn write_leases(&self) -> Result<(), StateError> {
        let Some(dir) = &self.directory else { return Ok(()) };
        let (change, bytes) = {
            let mut inner = self.lock_sessions();
            if !inner.leases_dirty {
                return Ok(());
            }
            inner.encode_leases(dir)?
        };
        self.files.write_leases(dir, change, &bytes).inspect_err(|_| self.lock_sessions().leases_dirty = true)
    }

    fn write_statistics(&self) -> Result<(), StateError> {
        let Some(dir) = &self.directory else { return Ok(()) };
        let _file = self.files.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = {
            let mut inner = self.lock_sessions();
            if !std::mem::take(&mut inner.statistics_dirty) {
                return Ok(());
            }
            persisted::encode_statistics(dir, &inner.statistics)?
        };
        persisted::write_statistics(dir, &bytes).inspect_err(|_| self.lock_sessions().statistics_dirty = true)
    }

    /// Locks the sessions once no lease of this name is being written.
    fn lock_settled(&self, name: &str) -> MutexGuard<'_, LockedSessions> {
        let inner = self.lock_sessions();
        let settled = self.settled.wait_while(inner, |inner| inner.unsettled.contains_key(name));
        settled.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_sessions(&self) -> MutexGuard<'_, LockedSessions> {
        // Every change leaves the maps consistent before anything that could panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
