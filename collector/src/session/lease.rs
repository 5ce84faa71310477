//! A lease, and the table of all leases: who may write what, and until when. No NIC, no clock, no files.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dta_memory::nic::{Endpoint, Purpose};
use dta_proto::list_range::ListRange;
use dta_proto::name;
use dta_proto::store::{StoreKind, StoreSpec, find_store};

use super::caller::{SessionAction, SessionCaller};
use super::sharing::Sharing;

/// What a translator asks for when it opens a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// Name of the lease. Opening the same name resumes it.
    pub name: String,
    /// Where its frames come from and answers go to.
    pub translator: Endpoint,
    /// Its queue pairs, at most one per purpose.
    pub queue_pairs: Vec<RequesterQueuePair>,
    /// How long the lease lasts without renewal; `None` = forever.
    pub lease: Option<Duration>,
    /// Stores wanted, by name; empty = all.
    pub stores: Vec<String>,
    /// Append lists wanted; a store without a range here means all its lists.
    pub lists: Vec<ListRange>,
    /// Whether RC queue pairs must be rebuilt even if the session's existing ones work.
    pub fresh: bool,
    /// What other collectors hold of the stores, if the translator spreads them.
    pub sharing: Option<Sharing>,
    pub caller: SessionCaller,
}

/// The translator's side of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterQueuePair {
    pub purpose: Purpose,
    /// Its number at the translator (24 bits).
    pub qpn: u32,
    /// PSN of its first packet (24 bits).
    pub start_psn: u32,
}

/// Ranges sorted by store and first list. Ranges that do not overlap are then also sorted by their ends.
fn sorted_ranges(ranges: &[ListRange]) -> Vec<&ListRange> {
    let mut sorted: Vec<_> = ranges.iter().collect();
    sorted.sort_unstable_by(|a, b| (&a.store, a.first).cmp(&(&b.store, b.first)));
    sorted
}

/// A lease: one translator's right to write some stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub name: String,
    /// Rises over all sessions of a collector whenever new queue pairs or keys, which carry it, are given out.
    pub generation: u64,
    /// The generation at the last open. A renewal with an earlier one comes from a translator that has been replaced.
    pub opened: u64,
    pub translator: Endpoint,
    pub queue_pairs: Vec<RequesterQueuePair>,
    /// How long it lasts without renewal; `None` = forever.
    pub lease: Option<Duration>,
    /// Names of the stores it may write.
    pub stores: Vec<String>,
    /// The append lists it owns.
    pub lists: Vec<ListRange>,
    /// The identity that opened it; only it may reopen, renew and (operators aside) end it; `None` without TLS.
    pub owner: Option<String>,
    /// Where it was opened from; `None` after a restart.
    pub from: Option<IpAddr>,
    /// When it ends; `None` = never.
    pub expires: Option<Instant>,
}

/// Why a lease is refused, in words. The variants differ in what the caller may do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The request itself is invalid.
    #[error("{0}")]
    Request(String),
    /// Another session owns part of the request.
    #[error("{0}")]
    Owned(String),
    /// The session belongs to another owner.
    #[error("{0}")]
    Foreign(String),
    #[error("{0}")]
    Unknown(String),
    /// Another translator has since opened the name.
    #[error("{0}")]
    Superseded(String),
    #[error("{0}")]
    TooMany(String),
}

impl LeaseError {
    pub(super) fn unknown_session(name: &str) -> LeaseError {
        LeaseError::Unknown(format!(
            "there is no session {name:?}: it was never opened, was ended, or has expired; its translator may open it again"
        ))
    }
}

/// Most sessions at a time.
pub const MAX_SESSIONS: usize = 256;

/// Most sessions opened from one address if no certificate identifies the caller.
pub const MAX_FROM: usize = MAX_SESSIONS / 2;

#[derive(Debug, Default)]
pub struct Leases {
    by_name: BTreeMap<String, Lease>,
    /// The last generation given out.
    generation: u64,
}

impl Leases {
    /// Restores stored leases, each with its full time from `now`: a monotonic clock does not know how long
    /// the collector was down, and its translators could not renew meanwhile.
    pub fn from_stored(leases: Vec<Lease>, generation: u64, now: Instant) -> Self {
        let by_name = leases
            .into_iter()
            .map(|mut lease| {
                lease.expires = lease.lease.map(|l| now + l);
                (lease.name.clone(), lease)
            })
            .collect();
        Self { by_name, generation }
    }

    pub fn get(&self, name: &str) -> Option<&Lease> {
        self.by_name.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.by_name.values()
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The lease that a request would get, with generation 0; changes nothing.
    pub fn prepare_lease(
        &self,
        request: &OpenRequest,
        stores: &[&StoreSpec],
        now: Instant,
    ) -> Result<Lease, LeaseError> {
        check_name(&request.name)?;
        if !self.by_name.contains_key(&request.name) && self.by_name.len() >= MAX_SESSIONS {
            return Err(LeaseError::TooMany(format!(
                "this collector holds {MAX_SESSIONS} sessions, its limit; end one first (`dta-collector sessions`)"
            )));
        }
        if let Some(owner) = &request.caller.identity
            && self.by_name.get(&request.name).is_none_or(|lease| lease.owner.as_ref() != Some(owner))
            && self.by_name.values().filter(|lease| lease.owner.as_ref() == Some(owner)).count()
                >= request.caller.sessions
        {
            return Err(LeaseError::TooMany(format!(
                "{owner:?} has {} sessions, the limit for one certificate (`sessions_per_certificate` in the collector's \
                 [limits]); end one first (`dta-collector sessions`)",
                request.caller.sessions
            )));
        }
        if request.caller.identity.is_none()
            && let Some(from) = request.caller.address
            && !self.by_name.contains_key(&request.name)
            && self.by_name.values().filter(|lease| lease.from == Some(from)).count() >= MAX_FROM
        {
            return Err(LeaseError::TooMany(format!(
                "{MAX_FROM} sessions were opened from {from}, the limit for one address without TLS; end one first \
                 (`dta-collector sessions`)"
            )));
        }
        if let Some(earlier) = self.by_name.get(&request.name) {
            request.caller.check_access(SessionAction::Write, earlier)?;
        }
        let wanted = wanted_stores(request, stores)?;
        let lists = wanted_lists(request, &wanted)?;
        for (i, pair) in request.queue_pairs.iter().enumerate() {
            if request.queue_pairs[..i].iter().any(|p| p.purpose == pair.purpose) {
                let twice =
                    "two queue pairs for the same purpose; a session has one for writes and one for atomics";
                return Err(LeaseError::Request(twice.into()));
            }
        }
        for spec in &wanted {
            let purpose = spec.kind.primitive().queue_pair_purpose();
            if !request.queue_pairs.iter().any(|p| p.purpose == purpose) {
                return Err(LeaseError::Request(format!(
                    "store {:?} needs a queue pair for {}, but none was offered",
                    spec.name,
                    purpose.operations()
                )));
            }
        }
        let lease = Lease {
            name: request.name.clone(),
            generation: 0,
            opened: 0,
            translator: request.translator,
            queue_pairs: request.queue_pairs.clone(),
            lease: request.lease,
            stores: wanted.iter().map(|s| s.name.clone()).collect(),
            lists,
            owner: request.caller.identity.clone(),
            from: request.caller.address,
            expires: request.lease.map(|l| now + l),
        };
        self.check_owners(&lease, &wanted)?;
        Ok(lease)
    }

    /// Refuses what another session owns, naming it. Workers of one translator share ownership: only one of
    /// them writes each list, row and column.
    fn check_owners(&self, lease: &Lease, wanted: &[&StoreSpec]) -> Result<(), LeaseError> {
        let another = |other: &&Lease| {
            other.name != lease.name
                && (name::translator_of(&other.name) != name::translator_of(&lease.name)
                    || other.owner != lease.owner)
        };
        for other in self.by_name.values().filter(another) {
            let owned = |what: String| {
                let owner = &other.name;
                Err(LeaseError::Owned(format!(
                    "{what} is owned by session {owner:?}, and has one writer at a time; \
                     ask for other stores or lists, or stop that session's translator and end the session \
                     (`dta-collector sessions end {owner}`): a running translator reopens its session"
                )))
            };
            let has: BTreeSet<&str> = other.stores.iter().map(String::as_str).collect();
            // An append store instead has one writer per list.
            let whole = |s: &&&StoreSpec| s.single_writer() && !matches!(s.kind, StoreKind::Append { .. });
            if let Some(spec) = wanted.iter().filter(whole).find(|s| has.contains(s.name.as_str())) {
                return owned(format!("store {:?}", spec.name));
            }
            let theirs = sorted_ranges(&other.lists);
            for mine in &lease.lists {
                let before = |l: &&ListRange| {
                    (l.store.as_str(), l.end_of_lists()) <= (mine.store.as_str(), u64::from(mine.first))
                };
                let first = theirs.get(theirs.partition_point(before)).filter(|l| l.overlaps(mine));
                if let Some(theirs) = first {
                    let list = mine.first.max(theirs.first);
                    return owned(format!("list {list} of store {:?}", mine.store));
                }
            }
        }
        Ok(())
    }

    /// A generation that was never given out before.
    pub fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Inserts a lease, replacing the one with its name.
    pub fn insert(&mut self, lease: Lease) {
        self.generation = self.generation.max(lease.generation);
        self.by_name.insert(lease.name.clone(), lease);
    }

    /// Extends a lease. Any generation that the collector gave out since the last open is accepted: the
    /// answer that carried the newest one may have been lost.
    pub fn renew_lease(
        &mut self,
        name: &str,
        caller: &SessionCaller,
        generation: u64,
        now: Instant,
    ) -> Result<&mut Lease, LeaseError> {
        let lease = self.by_name.get_mut(name).ok_or_else(|| LeaseError::unknown_session(name))?;
        caller.check_access(SessionAction::Write, lease)?;
        if !(lease.opened..=lease.generation).contains(&generation) {
            return Err(LeaseError::Superseded(format!(
                "another translator has opened session {name:?}, from {} (generation {}, this one knows {generation}); \
                 each translator needs a name of its own: give one of them another (--name), or stop one",
                SocketAddr::new(lease.translator.ip, lease.translator.port),
                lease.generation
            )));
        }
        lease.expires = lease.lease.map(|l| now + l);
        Ok(lease)
    }

    /// Restarts a lease's time at `now`, when its translator was asked to try again.
    pub fn restart_lease_time(&mut self, name: &str, now: Instant) {
        if let Some(lease) = self.by_name.get_mut(name) {
            lease.expires = lease.lease.map(|l| now + l);
        }
    }

    pub fn remove(&mut self, name: &str) -> Option<Lease> {
        self.by_name.remove(name)
    }

    pub fn expired_leases(&self, now: Instant) -> Vec<String> {
        self.by_name
            .values()
            .filter(|l| l.expires.is_some_and(|e| e <= now))
            .map(|l| l.name.clone())
            .collect()
    }
}

fn check_name(session: &str) -> Result<(), LeaseError> {
    match name::is_session_of_worker(session) {
        true => Ok(()),
        false => Err(LeaseError::Request(format!("session name {session:?} must be {}", name::SESSION))),
    }
}

fn wanted_stores<'a>(
    request: &OpenRequest,
    stores: &[&'a StoreSpec],
) -> Result<Vec<&'a StoreSpec>, LeaseError> {
    if request.stores.is_empty() {
        return Ok(stores.to_vec());
    }
    let meant = |text: &String| {
        find_store(stores.iter().copied(), |spec| spec, text).ok_or_else(|| {
            let have = stores.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
            LeaseError::Request(format!("there is no store {text:?}; this collector has {have}"))
        })
    };
    let asked = request.stores.iter().map(|text| Ok(meant(text)?.id)).collect::<Result<BTreeSet<_>, _>>()?;
    Ok(stores.iter().copied().filter(|s| asked.contains(&s.id)).collect())
}

fn wanted_lists(request: &OpenRequest, wanted: &[&StoreSpec]) -> Result<Vec<ListRange>, LeaseError> {
    let append = |s: &&StoreSpec| match s.kind {
        StoreKind::Append { lists, .. } => Some(lists),
        _ => None,
    };
    let lists_of: BTreeMap<&str, u32> =
        wanted.iter().filter_map(|s| Some((s.name.as_str(), append(s)?))).collect();
    // Replaces an id by the name of its store.
    let mut lists = request.lists.clone();
    for range in &mut lists {
        if let Some(spec) = find_store(wanted.iter().copied(), |spec| spec, &range.store) {
            range.store.clone_from(&spec.name);
        }
    }
    for range in &lists {
        let ListRange { store, first, count } = range;
        let fault = match lists_of.get(store.as_str()) {
            None => {
                format!(
                    "lists of store {store:?} are asked for, but it is not among the append stores asked for"
                )
            }
            Some(_) if *count == 0 => {
                format!("a range of 0 lists of store {store:?}; leave it out to get all")
            }
            Some(have) if range.end_of_lists() > u64::from(*have) => format!(
                "lists {first} to {} of store {store:?} are asked for, but it has lists 0 to {}",
                range.end_of_lists() - 1,
                have - 1
            ),
            Some(_) => continue,
        };
        return Err(LeaseError::Request(fault));
    }
    // There may be as many ranges as lists, and the sessions are locked, so only neighbours are compared.
    if let Some(twice) = sorted_ranges(&lists).windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        return Err(LeaseError::Request(format!(
            "list {} of store {:?} is asked for twice; ranges must not overlap",
            twice[1].first, twice[1].store
        )));
    }
    let given: BTreeSet<String> = lists.iter().map(|l| l.store.clone()).collect();
    for spec in wanted {
        if let Some(count) = append(spec)
            && !given.contains(&spec.name)
        {
            lists.push(ListRange { store: spec.name.clone(), first: 0, count });
        }
    }
    Ok(lists)
}
