//! Sessions: named leases by which translators get queue pairs and keys to memory.
//!
//! A session is not a connection. It begins with [`Sessions::open`], lasts as long as it is renewed
//! (or for ever), and ends by [`Sessions::end`] or expiry; then its queue pairs and keys end and
//! the regions stay. Opening a name again resumes it.
//!
//! - `caller`: who calls, and whose sessions they may touch.
//! - [`lease`]: who may write what, until when.
//! - [`grant`]: what a lease holds of the NIC.
//! - `rebuilds`: how often broken queue pairs are made anew.
//! - [`sharing`]: which keys and lists are at other collectors.
//! - [`state`]: the files from which a restarted collector knows its sessions.
//! - [`statistics`]: the counters that translators hand in.
//!
//! Time is an argument: `now` never goes back.

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

pub use caller::Caller;
pub use grant::{Ended, FormerRegion, Grant, GrantedQueuePair, GrantedRegion};
pub use lease::{Lease, LeaseError, OpenRequest, RequesterQueuePair};
pub use positions::ListPosition;
pub use state::StateError;
pub use statistics::{NodeCounters, NodeSums, ReporterPosition};

use crate::config::Transport;
use crate::nic::{Nic, NicError, QueuePairStatus};
use crate::store::{MemoryError, Stores};
use grant::{Anew, Made, Terms};
use lease::Leases;
use rebuilds::Rebuilds;
use sharing::Shared;
use statistics::{LeftOut, Statistics};

/// Why a session call was refused. Nothing has changed, but that the lease may have been extended
/// before something else was refused.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The NIC.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Counters on a device without atomics.
    #[error("store {store:?} needs atomics, which the device {device:?} does not have; leave the store out")]
    NoAtomics {
        /// The store.
        store: String,
        /// The device.
        device: String,
    },
    /// Queue pairs of the session were made anew too often; they are as they were.
    #[error(
        "the queue pairs of session {name:?} were made anew again and again, and are now made anew once in {} s; ask again: until then \
         those that there are stay (docs/rdma.md)",
        rebuilds::EVERY.as_secs()
    )]
    HeldBack {
        /// The session.
        name: String,
    },
    /// The state could not be written: after a crash the session would be unknown.
    #[error("cannot keep the session: {0}")]
    State(#[from] StateError),
    /// Where the session's lists stand cannot be read. The session is open; asked again, it is resumed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A session as its translator needs it.
#[derive(Clone, Debug)]
pub struct Session {
    /// The lease.
    pub lease: Lease,
    /// Whether an earlier session of this name goes on.
    pub resumed: bool,
    /// Queue pairs and keys.
    pub grant: Grant,
    /// Where the lists of this session stand; only told at open, and only of lists that hold something.
    pub positions: Vec<ListPosition>,
    /// How far the translators that held this session before had heard their reporters; only told at open.
    pub reporters: Vec<ReporterPosition>,
}

/// A session as an operator sees it.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// The lease.
    pub lease: Lease,
    /// Its queue pairs; none after a restart until the translator renews.
    pub queue_pairs: Vec<QueuePairStatus>,
    /// How its frames travel, in its translator's words; empty where it did not say.
    pub frames_by: String,
}

/// What happened to sessions since the collector started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Opened under a new name.
    pub opened: u64,
    /// Opened again under their name.
    pub resumed: u64,
    /// Renewals.
    pub renewed: u64,
    /// Run out.
    pub expired: u64,
    /// Ended by their translator or an operator.
    pub ended: u64,
    /// Opens and renewals that were refused.
    pub refused: u64,
    /// Queue pairs that were made anew because they had fallen into ERROR, were lost in a restart,
    /// or did not answer their translator.
    pub queue_pairs_rebuilt: u64,
    /// Times that a queue pair was left as it is for now, because it had been made anew too often.
    pub rebuilds_held_back: u64,
    /// Times that a node of statistics was left out because of its names, or of how many counters it had.
    pub statistics_left_out: u64,
    /// Times that a node of statistics, or counters of its earlier lives, were left out because
    /// there was no room.
    pub statistics_no_room: u64,
}

/// How often the log says of one session that statistics are left out: they come again with each renewal.
const TELL_EVERY: Duration = Duration::from_secs(300);

/// All sessions of a collector.
pub struct Sessions {
    nic: Arc<dyn Nic>,
    stores: Arc<Stores>,
    transport: Transport,
    /// Where state is kept; `None` = nowhere.
    directory: Option<PathBuf>,
    inner: Mutex<Inner>,
    /// A name has left [`Inner::unsettled`].
    settled: Condvar,
    /// For itself: who asks a store does not wait for a session that is being opened.
    shared: Mutex<Known>,
    files: Files,
}

/// What is known of other collectors.
struct Known {
    shared: Arc<Shared>,
    /// Whether the file lacks something of it.
    dirty: bool,
}

/// Whoever writes a file has its lock, so that nothing older takes the place of anything newer. A disk may take
/// long, so nothing is written with the lock of the sessions held.
#[derive(Default)]
struct Files {
    /// Which change of the leases is in the file. Nobody takes the lock of the sessions who has this.
    leases: Mutex<u64>,
    /// Taken before the lock of the sessions, never with it.
    statistics: Mutex<()>,
    sharing: Mutex<()>,
}

struct Inner {
    leases: Leases,
    /// Names whose lease is new or changed, and not yet in its file.
    unsettled: BTreeSet<String>,
    grants: BTreeMap<String, Grant>,
    /// By session, where queue pairs broke.
    rebuilds: BTreeMap<String, Rebuilds>,
    statistics: Statistics,
    statistics_dirty: bool,
    /// How often leases were made ready for their file.
    leases_change: u64,
    /// Whether the file of leases has some that ended, or never began.
    leases_dirty: bool,
    /// By session, when the log said last that statistics of it are left out.
    told_left_out: BTreeMap<String, Instant>,
    /// By session, how its frames travel, in its translator's words.
    frames_by: BTreeMap<String, String>,
    /// Sessions whose translator has taken its leave.
    left: BTreeSet<String>,
    counters: SessionCounters,
}

/// A lease that was entered, and is to be written down ([`Sessions::keep`]).
struct Entered<'a> {
    lease: Lease,
    /// The lease whose place it took.
    replaced: Option<Lease>,
    made: Made,
    /// The grant of before.
    former: Option<Grant>,
    /// Queue pairs that count as made anew.
    rebuilt: u64,
    /// What asked for it, if the session is being opened.
    opens: Option<&'a OpenRequest>,
    /// The file with it, if there is one, and the number of the change.
    file: Result<Option<(u64, Vec<u8>)>, StateError>,
}

/// What a renewal found.
enum Renewed {
    /// The session has what it had.
    AsItWas(Box<Session>),
    /// It has something new.
    Changed(Box<Entered<'static>>),
}

impl Inner {
    /// Keeps what a session hands in, which never fails.
    fn hand_in(&mut self, session: &str, statistics: &[NodeCounters], now: Instant) {
        let LeftOut { bad, no_room } = self.statistics.hand_in(session, statistics, SystemTime::now());
        self.counters.statistics_left_out += bad as u64;
        self.counters.statistics_no_room += no_room as u64;
        self.statistics_dirty = true;
        let told = self.told_left_out.get(session);
        if bad + no_room > 0 && told.is_none_or(|told| now.saturating_duration_since(*told) >= TELL_EVERY) {
            tracing::warn!(
                %session, bad, no_room,
                "statistics of nodes are left out: a name of theirs is none, or they have too many counters (bad), or there is no room \
                 for more nodes and counters (no_room; docs/counters.md)"
            );
            self.told_left_out.insert(session.to_owned(), now);
        }
    }

    /// The leases as their file has them, and the number of this change of it.
    fn encode_leases(&mut self, dir: &Path) -> Result<(u64, Vec<u8>), StateError> {
        (self.leases_change, self.leases_dirty) = (self.leases_change + 1, false);
        Ok((self.leases_change, persisted::encode_leases(dir, &self.leases)?))
    }

    /// Whether queue pairs of a session may be made anew now.
    fn may_rebuild(&self, session: &str, now: Instant) -> bool {
        self.rebuilds.get(session).is_none_or(|rebuilds| rebuilds.may(now))
    }

    /// Says and counts what became of queue pairs that were to be made anew.
    fn count_anew(&mut self, session: &str, anew: Anew, now: Instant) {
        if anew.made + anew.held_back == 0 {
            return;
        }
        let rebuilds = self.rebuilds.entry(session.to_owned()).or_insert_with(|| Rebuilds::new(now));
        if anew.made > 0 {
            rebuilds.count(now);
        }
        if anew.made > 0 && anew.broken > 0 {
            tracing::warn!(
                %session, queue_pairs = anew.made,
                "queue pairs had fallen into ERROR and are made anew: the translator asked for what is not its own, or somebody else \
                 sent in its name (docs/rdma.md)"
            );
        } else if anew.made > 0 {
            tracing::info!(%session, queue_pairs = anew.made, "queue pairs are made anew, as the translator asks");
        }
        self.counters.rebuilds_held_back += u64::from(anew.held_back);
        if anew.held_back > 0 && rebuilds.tell() {
            tracing::warn!(
                %session, queue_pairs = anew.held_back,
                "queue pairs break again and again: from now on they are made anew every {} s at most",
                rebuilds::EVERY.as_secs()
            );
        }
    }
}

impl Files {
    fn write_leases(&self, dir: &Path, change: u64, bytes: &[u8]) -> Result<(), StateError> {
        let mut written = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if *written < change {
            persisted::write_leases(dir, bytes)?;
            *written = change;
        }
        Ok(())
    }
}

impl Sessions {
    /// Sessions over a NIC and stores. With a directory, those that an earlier collector kept there
    /// go on: their leases run anew from `now`, and their translators get new queue pairs when they
    /// renew.
    pub fn open_state(
        nic: Arc<dyn Nic>,
        stores: Arc<Stores>,
        transport: Transport,
        directory: Option<PathBuf>,
        now: Instant,
    ) -> Result<Self, StateError> {
        let (leases, statistics, mut shared) = match &directory {
            Some(dir) => {
                let leases = persisted::load_leases(dir, now)?;
                let statistics = persisted::load_statistics(dir, &leases)?;
                let mut shared = sharing::load(dir)?;
                shared.open_are(|name| leases.get(name).is_some());
                // As long as nobody shares anything, nothing of it is in a file.
                for lease in leases.iter() {
                    if !shared.knows(&lease.name) {
                        shared.note(&lease.name, &lease.stores, None);
                    }
                }
                (leases, statistics, shared)
            }
            None => Default::default(),
        };
        let inner = Inner {
            leases,
            unsettled: BTreeSet::new(),
            grants: BTreeMap::new(),
            rebuilds: BTreeMap::new(),
            statistics,
            statistics_dirty: false,
            leases_change: 0,
            leases_dirty: false,
            told_left_out: BTreeMap::new(),
            frames_by: BTreeMap::new(),
            left: BTreeSet::new(),
            counters: SessionCounters::default(),
        };
        // So that no number is that of an earlier life.
        shared.version = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_micros() as u64);
        let shared = Mutex::new(Known { shared: Arc::new(shared), dirty: false });
        let files = Files::default();
        let (inner, settled) = (Mutex::new(inner), Condvar::new());
        Ok(Self { nic, stores, transport, directory, inner, settled, shared, files })
    }

    /// Opens a session, or resumes the one of its name. If the translator is the same, it keeps the
    /// keys, and the queue pairs that live; with `fresh` its RC queue pairs are new ones, if that
    /// is allowed so soon after the last time ([`SessionError::HeldBack`]). Another translator gets
    /// new queue pairs and new keys. Whatever is new comes under a new generation. Reads the rings
    /// of the session's lists, so it may take a while.
    pub fn open(&self, request: &OpenRequest, now: Instant) -> Result<Session, SessionError> {
        let entered = self.enter_opened(&mut self.settled(&request.name), request, now);
        let result = entered.and_then(|entered| self.keep(entered));
        let mut inner = self.lock();
        match &result {
            Ok(session) if session.resumed => inner.counters.resumed += 1,
            Ok(_) => inner.counters.opened += 1,
            Err(_) => inner.counters.refused += 1,
        }
        let has_left = inner.left.contains(&request.name);
        drop(inner);
        let mut session = result?;
        self.write_sharing()?;
        // The lists are this session's by now, and others need not wait while their rings are read.
        session.positions = positions::of(&self.stores, &session.lease.lists)?;
        if session.resumed && request.fresh && !has_left {
            session.positions.iter_mut().for_each(ListPosition::leave_out);
        }
        Ok(session)
    }

    /// What [`Sessions::open`] would give, without opening, granting or extending anything: of a
    /// session of that name what it holds, and 0 for numbers and keys that are not given out yet.
    /// Refuses what `open` refuses.
    pub fn preview(&self, request: &OpenRequest, now: Instant) -> Result<Session, SessionError> {
        let mut inner = self.lock();
        self.expire(&mut inner, now);
        let specs: Vec<_> = self.stores.specs().collect();
        let wanted = inner.leases.prepare(request, &specs, now)?;
        let (lease, resumed) = match inner.leases.get(&request.name) {
            Some(held) => (Lease { stores: wanted.stores, lists: wanted.lists, ..held.clone() }, true),
            None => (wanted, false),
        };
        let held = inner.grants.get(&request.name);
        let grant = grant::preview(&*self.nic, &self.stores, self.transport, &lease, held)?;
        drop(inner);
        let positions = positions::of(&self.stores, &lease.lists)?;
        Ok(Session { lease, resumed, grant, positions, reporters: Vec::new() })
    }

    fn enter_opened<'a>(
        &self,
        inner: &mut Inner,
        request: &'a OpenRequest,
        now: Instant,
    ) -> Result<Entered<'a>, SessionError> {
        self.expire(inner, now);
        let specs: Vec<_> = self.stores.specs().collect();
        let mut lease = inner.leases.prepare(request, &specs, now)?;
        let earlier = inner.leases.get(&request.name);
        // Another translator, or another life of it, gets nothing that the one before knows.
        let same = earlier.is_some_and(|e| {
            e.translator == lease.translator
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
        let made = grant::make(&*self.nic, &self.stores, self.transport, &lease, terms)?;
        let anew = made.anew;
        inner.count_anew(&request.name, anew, now);
        if anew.held_back > 0 {
            grant::release(&*self.nic, &made.grant, before.1.as_ref());
            // Its translator is there, and is told to come again: the session has to be there, too,
            // and its count of rebuilds with it.
            inner.leases.extend(&request.name, now);
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
        Ok(self.enter(inner, lease, made, before.1, u64::from(anew.made), Some(request)))
    }

    /// Enters a lease with what was made for it. Until it is written down, or that has failed, whoever opens, renews or
    /// ends this session waits, and it does not expire.
    fn enter<'a>(
        &self,
        inner: &mut Inner,
        lease: Lease,
        made: Made,
        former: Option<Grant>,
        rebuilt: u64,
        opens: Option<&'a OpenRequest>,
    ) -> Entered<'a> {
        let replaced = inner.leases.get(&lease.name).cloned();
        inner.leases.insert(lease.clone());
        inner.unsettled.insert(lease.name.clone());
        let file = self.directory.as_ref().map(|dir| inner.encode_leases(dir)).transpose();
        Entered { lease, replaced, made, former, rebuilt, opens, file }
    }

    /// Writes an entered lease down, and gives its session what was made for it: nobody may use what a collector that
    /// restarts would not know. If it cannot be written, all is as before.
    fn keep(&self, entered: Entered<'_>) -> Result<Session, SessionError> {
        let Entered { lease, replaced, made, former, rebuilt, opens, file } = entered;
        let written = file.and_then(|file| match (&self.directory, file) {
            (Some(dir), Some((change, bytes))) => self.files.write_leases(dir, change, &bytes),
            _ => Ok(()),
        });
        let mut inner = self.lock();
        inner.unsettled.remove(&lease.name);
        self.settled.notify_all();
        let resumed = replaced.is_some();
        if let Err(error) = written {
            match replaced {
                Some(lease) => inner.leases.insert(lease),
                None => drop(inner.leases.remove(&lease.name)),
            }
            // Whoever wrote theirs meanwhile wrote this one with it.
            inner.leases_dirty = true;
            grant::release(&*self.nic, &made.grant, former.as_ref());
            return Err(error.into());
        }
        inner.counters.queue_pairs_rebuilt += rebuilt;
        let grant = made.finish(&*self.nic, former.as_ref());
        inner.grants.insert(lease.name.clone(), grant.clone());
        let mut reporters = Vec::new();
        if let Some(request) = opens {
            self.change_shared(|shared| shared.note(&lease.name, &lease.stores, request.sharing.as_ref()));
            inner.statistics.begin(&lease.name);
            reporters = inner.statistics.reporters(&lease.name);
        }
        Ok(Session { lease, resumed, grant, positions: Vec::new(), reporters })
    }

    /// Whether a caller may renew a session, as far as its name tells: looked at before what it
    /// sends is taken in. A refusal is counted like one of the renewal itself.
    pub fn may_renew(&self, name: &str, caller: &Caller) -> Result<(), SessionError> {
        let mut inner = self.lock();
        let lease = inner.leases.get(name).ok_or_else(|| LeaseError::Unknown(name.to_owned()));
        let result = lease.and_then(|lease| caller.check(caller::Action::Write, lease));
        inner.counters.refused += u64::from(result.is_err());
        Ok(result?)
    }

    /// Takes note of how the frames of a session travel, in words of its translator, of which 200
    /// characters are kept, and none that moves a cursor.
    pub fn note_frames_by(&self, name: &str, said: &str) {
        let mut inner = self.lock();
        if said.is_empty() || inner.leases.get(name).is_none() {
            inner.frames_by.remove(name);
        } else if inner.frames_by.get(name).is_none_or(|known| known != said) {
            let words = said.chars().filter(|c| !c.is_control()).take(200).collect();
            inner.frames_by.insert(name.to_owned(), words);
        }
    }

    /// Takes note of whether the translator of a session has sent all that it held and stops. Where it
    /// has not said so, what it sent last may be lost: one that opens the session anew then leaves out
    /// some sequences of each list that holds something, which readers see. A collector that was started
    /// since does not know.
    pub fn note_leaving(&self, name: &str, leaving: bool) {
        let mut inner = self.lock();
        match leaving && inner.leases.get(name).is_some() {
            true => inner.left.insert(name.to_owned()),
            false => inner.left.remove(name),
        };
    }

    /// Extends a lease and takes its translator's statistics. `generation` is the one that the
    /// translator works with: keys that this one took the place of end. If queue pairs fell into
    /// ERROR, or were lost with an earlier collector, or a store has another region, the answer has
    /// new ones under a new generation.
    pub fn renew(
        &self,
        name: &str,
        caller: &Caller,
        generation: u64,
        statistics: &[NodeCounters],
        now: Instant,
    ) -> Result<Session, SessionError> {
        let renewed = self.renew_entered(&mut self.settled(name), name, caller, generation, statistics, now);
        let result = match renewed {
            Ok(Renewed::AsItWas(session)) => Ok(*session),
            Ok(Renewed::Changed(entered)) => self.keep(*entered),
            Err(error) => Err(error),
        };
        let mut inner = self.lock();
        match &result {
            Ok(_) => inner.counters.renewed += 1,
            Err(_) => inner.counters.refused += 1,
        }
        result
    }

    fn renew_entered(
        &self,
        inner: &mut Inner,
        name: &str,
        caller: &Caller,
        generation: u64,
        statistics: &[NodeCounters],
        now: Instant,
    ) -> Result<Renewed, SessionError> {
        self.expire(inner, now);
        let mut lease = inner.leases.renew(name, caller, generation, now)?.clone();
        if !statistics.is_empty() {
            inner.hand_in(name, statistics, now);
        }
        self.confirm(inner, name, generation);
        let old = inner.grants.get(name).cloned();
        let terms = Terms {
            keep: old.as_ref(),
            generation: inner.leases.generation() + 1,
            rebuild: inner.may_rebuild(name, now),
            fresh: false,
            resumes: true,
            opens: false,
        };
        let made = grant::make(&*self.nic, &self.stores, self.transport, &lease, terms)?;
        inner.count_anew(name, made.anew, now);
        if !made.changed {
            let (grant, positions, reporters) = (made.grant, Vec::new(), Vec::new());
            let session = Session { lease, resumed: true, grant, positions, reporters };
            return Ok(Renewed::AsItWas(Box::new(session)));
        }
        lease.generation = inner.leases.next_generation();
        let kept = old.as_ref().map_or(0, |old| made.grant.queue_pairs_in_common(old));
        let rebuilt = (made.grant.queue_pairs.len() - kept) as u64;
        Ok(Renewed::Changed(Box::new(self.enter(inner, lease, made, old, rebuilt, None))))
    }

    /// Ends the keys that a session does not use any more, now that its translator works with this
    /// generation.
    fn confirm(&self, inner: &mut Inner, name: &str, generation: u64) {
        let Some(grant) = inner.grants.get_mut(name) else { return };
        let confirmed = grant.take_confirmed(generation);
        for former in &confirmed {
            tracing::info!(
                session = %name, store = %former.region.store, generation,
                "the translator writes to the new region: the key to the one before ends"
            );
        }
        grant::end_keys(&*self.nic, grant.epoch, &confirmed);
    }

    /// Ends a session: its queue pairs and keys are worth nothing from here on. `last` is what a
    /// translator gives that ends its own session: the generation it knows, and its last counters.
    /// An operator has none.
    pub fn end(
        &self,
        name: &str,
        caller: &Caller,
        last: Option<(u64, &[NodeCounters])>,
        now: Instant,
    ) -> Result<(), SessionError> {
        let mut inner = self.settled(name);
        self.expire(&mut inner, now);
        let lease = inner.leases.get(name).ok_or_else(|| LeaseError::Unknown(name.to_owned()))?;
        caller.check(caller::Action::End, lease)?;
        if let Some((generation, statistics)) = last {
            inner.leases.renew(name, caller, generation, now)?;
            inner.hand_in(name, statistics, now);
        }
        self.remove(&mut inner, name);
        inner.counters.ended += 1;
        drop(inner);
        self.write_sharing_or_warn();
        self.write_leases()?;
        Ok(self.write_statistics()?)
    }

    /// Ends sessions that have run out, looks after the NIC, and writes which sessions have ended and
    /// which statistics came in since the last call. To be called about once a second.
    pub fn tick(&self, now: Instant) -> Result<(), StateError> {
        // Nobody tells of a queue pair that broke, or of a device that is gone: both are seen by
        // asking, and logged and counted there.
        if let Err(error) = self.nic.queue_pairs() {
            tracing::debug!(%error, "the NIC does not answer");
        }
        self.expire(&mut self.lock(), now);
        self.write_sharing_or_warn();
        if let Err(error) = self.write_leases() {
            // They are only found again by a collector that restarts now, and then run out again.
            tracing::warn!(%error, "expired sessions could not be removed from the state file");
        }
        self.write_statistics()
    }

    /// Changes what is known of other collectors; `change` says whether that is anything new.
    fn change_shared(&self, change: impl FnOnce(&mut Shared) -> bool) {
        let mut known = self.known();
        let before = known.shared.is_empty();
        let now = Arc::make_mut(&mut known.shared);
        let changed = change(now);
        now.version += u64::from(changed);
        // As long as nobody shares anything, there is no file.
        known.dirty |= changed && !(before && known.shared.is_empty());
    }

    fn write_sharing(&self) -> Result<(), StateError> {
        let Some(dir) = &self.directory else { return Ok(()) };
        let _file = self.files.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = {
            let mut known = self.known();
            if !std::mem::take(&mut known.dirty) {
                return Ok(());
            }
            known.shared.clone()
        };
        sharing::save(dir, &shared).inspect_err(|_| self.known().dirty = true)
    }

    fn write_sharing_or_warn(&self) {
        if let Err(error) = self.write_sharing() {
            // A collector that restarts takes those for ended by itself that have no lease.
            tracing::warn!(%error, "what other collectors have could not be written");
        }
    }

    /// Which keys and lists are here and which at other collectors.
    pub fn shared(&self) -> Arc<Shared> {
        self.known().shared.clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All sessions, by name, with their queue pairs as they stand.
    pub fn list(&self, now: Instant) -> Result<Vec<SessionStatus>, NicError> {
        let pairs = self.nic.queue_pairs()?;
        let mut inner = self.lock();
        self.expire(&mut inner, now);
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

    /// How many there are; `None` while they are being changed, which may take a while.
    pub fn count(&self) -> Option<usize> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(inner.leases.iter().count())
    }

    /// What happened since the collector started.
    pub fn counters(&self) -> SessionCounters {
        self.lock().counters
    }

    /// The sums of what translators handed in, also of ended sessions.
    pub fn statistics(&self) -> Vec<NodeSums> {
        self.lock().statistics.sums(SystemTime::now())
    }

    /// Ends what has run out. The files hear of it within a second ([`Sessions::tick`]).
    fn expire(&self, inner: &mut Inner, now: Instant) {
        for name in inner.leases.expired(now) {
            if inner.unsettled.contains(&name) {
                continue;
            }
            tracing::warn!(session = %name, "the session was not renewed in time and has ended");
            self.remove(inner, &name);
            inner.counters.expired += 1;
        }
    }

    fn remove(&self, inner: &mut Inner, name: &str) {
        inner.leases.remove(name);
        inner.rebuilds.remove(name);
        inner.told_left_out.remove(name);
        inner.frames_by.remove(name);
        inner.left.remove(name);
        inner.statistics.end(name);
        (inner.statistics_dirty, inner.leases_dirty) = (true, true);
        self.change_shared(|shared| shared.end(name));
        if let Some(grant) = inner.grants.remove(name) {
            grant::release(&*self.nic, &grant, None);
        }
    }

    /// Writes which leases have ended, if any have.
    fn write_leases(&self) -> Result<(), StateError> {
        let Some(dir) = &self.directory else { return Ok(()) };
        let (change, bytes) = {
            let mut inner = self.lock();
            if !inner.leases_dirty {
                return Ok(());
            }
            inner.encode_leases(dir)?
        };
        self.files.write_leases(dir, change, &bytes).inspect_err(|_| self.lock().leases_dirty = true)
    }

    fn write_statistics(&self) -> Result<(), StateError> {
        let Some(dir) = &self.directory else { return Ok(()) };
        let _file = self.files.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = {
            let mut inner = self.lock();
            if !std::mem::take(&mut inner.statistics_dirty) {
                return Ok(());
            }
            persisted::encode_statistics(dir, &inner.statistics)?
        };
        persisted::write_statistics(dir, &bytes).inspect_err(|_| self.lock().statistics_dirty = true)
    }

    /// The lock, once no lease of this name is on its way to the file.
    fn settled(&self, name: &str) -> MutexGuard<'_, Inner> {
        let inner = self.lock();
        let settled = self.settled.wait_while(inner, |inner| inner.unsettled.contains(name));
        settled.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change leaves the maps whole before anything that could panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
