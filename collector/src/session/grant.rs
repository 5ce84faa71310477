//! What a lease holds of the NIC: one queue pair per purpose, and a key per store.
//!
//! Each has a generation of its own: that of the session when it was made. A key is kept for as long as
//! the store has the region that the key is of. When it has another, the session gets a key to that one,
//! and the key of before goes on until the translator has confirmed the new one ([`FormerRegion`]).

use std::sync::Arc;

use crate::nic::{
    Access, Device, Nic, NicError, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState, QueuePairStatus,
    Registration, Transport,
};
use crate::store::{Store, Stores};
use dta_proto::store::StoreKind;
use dta_proto::wire::roce::Psn;

use super::SessionError;
use super::lease::{Lease, RequesterQueuePair};

/// Receives kept posted on a queue pair whose writes may come with immediate: some milliseconds of
/// a busy list. A write that finds none is dropped.
const RECEIVES: u32 = 4096;

/// Queue pairs and keys of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// In the order in which the translator asked for them.
    pub queue_pairs: Vec<GrantedQueuePair>,
    /// In the order of the stores.
    pub regions: Vec<GrantedRegion>,
    /// At most one per store: regions of before, to which the translator may still write.
    pub former: Vec<FormerRegion>,
    /// The NIC's epoch in which all this was made.
    pub epoch: u64,
}

/// One queue pair of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedQueuePair {
    /// What it is for.
    pub purpose: Purpose,
    /// Its transport.
    pub transport: Transport,
    /// Its number and where it stands.
    pub info: QueuePairInfo,
    /// The session's generation when it was made.
    pub generation: u64,
    /// The one that it took the place of, where it is known how that one ended.
    pub replaced: Option<Ended>,
}

/// A store's region with the key to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedRegion {
    /// Name of the store.
    pub store: String,
    /// Address, length and key.
    pub registration: Registration,
    /// The rights that come with the key.
    pub access: Access,
    /// The [generation of the store](Store::generation) whose memory it is.
    pub memory: u64,
    /// The session's generation when the key was made.
    pub generation: u64,
}

impl GrantedRegion {
    /// Whether it is of the memory that the store has now, with these rights.
    fn is_of(&self, store: &Store, access: Access) -> bool {
        let place = |r: &Registration| (r.iova, r.len);
        place(&self.registration) == (store.region.iova(), store.region.len())
            && self.memory == store.generation
            && self.access == access
    }
}

/// A region whose place another one has taken in the grant. Its key lives until the translator has
/// confirmed that: what is on its way there would otherwise be refused, and break its queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerRegion {
    /// The region and its key.
    pub region: GrantedRegion,
    /// The generation of the session that the translator has to confirm.
    pub until: u64,
}

/// A queue pair that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its number.
    pub qpn: u32,
    /// The PSN that it expected: everything before was executed, and nothing from it on.
    pub expected_psn: u32,
}

impl Grant {
    /// How many queue pairs both have.
    pub(super) fn queue_pairs_in_common(&self, other: &Grant) -> usize {
        let both = |a: &GrantedQueuePair, b: &GrantedQueuePair| {
            (a.purpose, a.generation) == (b.purpose, b.generation)
        };
        self.queue_pairs.iter().filter(|a| other.queue_pairs.iter().any(|b| both(a, b))).count()
    }

    /// Takes out the former regions that the translator is through with, as it has confirmed this
    /// generation.
    pub(super) fn take_confirmed(&mut self, generation: u64) -> Vec<FormerRegion> {
        self.former.extract_if(.., |former| former.until <= generation).collect()
    }

    /// All keys.
    fn keys(&self) -> impl Iterator<Item = &GrantedRegion> {
        self.regions.iter().chain(self.former.iter().map(|former| &former.region))
    }
}

/// How far the first PSN of a queue pair is beyond the last one of the queue pair that it takes the
/// place of: late answers of that one are no answers to this one.
const PSN_STRIDE: u32 = 1 << 16;

/// A PSN that nobody can foresee.
fn anywhere() -> Result<u32, NicError> {
    let random = getrandom::u32().map_err(|error| NicError::System {
        action: "get random bytes for a PSN".into(),
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(random & Psn::MASK)
}

/// How [`make`] goes about what is there.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// The grant of before, of which it keeps what it can.
    pub(super) keep: Option<&'a Grant>,
    /// The generation of what is new.
    pub(super) generation: u64,
    /// Whether queue pairs that live, or are in ERROR, may be made anew.
    pub(super) rebuild: bool,
    /// Whether all RC queue pairs are to be new.
    pub(super) fresh: bool,
    /// Whether the translator may have had queue pairs in this session that are in no grant any more.
    pub(super) resumes: bool,
    /// Whether the translator begins with this grant. One that renews has to confirm the last region
    /// that it got of a store before it gets another.
    pub(super) opens: bool,
}

/// What [`make`] made.
pub(super) struct Made {
    pub(super) grant: Grant,
    /// Whether something is new or gone.
    pub(super) changed: bool,
    /// What became of queue pairs that lived and were to be made anew.
    pub(super) anew: Anew,
    /// Those that new ones take the place of, by purpose. They still live, for [`Made::finish`] to end.
    former: Vec<(Purpose, u32)>,
}

/// Queue pairs that lived and were to be made anew, because they were in ERROR or because `fresh`
/// asked for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Anew {
    /// How many were.
    pub(super) made: u32,
    /// How many were left as they are, without `rebuild`.
    pub(super) held_back: u32,
    /// How many of both were in ERROR.
    pub(super) broken: u32,
}

impl Made {
    /// Ends what the former grant has and this one does not, and notes how the queue pairs ended
    /// whose place was taken. To be called when nothing can be refused any more.
    pub(super) fn finish(mut self, nic: &dyn Nic, former: Option<&Grant>) -> Grant {
        if self.grant.epoch != nic.epoch() {
            // They went with the device, and its numbers may be somebody else's by now.
            self.former.clear();
        }
        for (purpose, qpn) in self.former {
            // Asked as it ends: one that lives goes on executing until then.
            match nic.destroy_queue_pair(qpn) {
                Ok(ended) => {
                    if let Some(new) = self.grant.queue_pairs.iter_mut().find(|q| q.purpose == purpose) {
                        new.replaced = ended.map(|expected_psn| Ended { qpn, expected_psn });
                    }
                }
                Err(error) => tracing::warn!(%error, "a queue pair could not be ended"),
            }
        }
        if let Some(former) = former {
            release(nic, former, Some(&self.grant));
        }
        self.grant
    }
}

/// The grant of a lease: what lives of the one before, and new queue pairs and keys for the rest.
/// Nothing of that one has ended when this returns: either [`Made::finish`] does that, or
/// [`release`] gives back what is new.
///
/// Nobody else makes anything on the NIC meanwhile: the caller holds the lock of the sessions.
pub(super) fn make(
    nic: &dyn Nic,
    stores: &Stores,
    writes: Transport,
    lease: &Lease,
    terms: Terms<'_>,
) -> Result<Made, SessionError> {
    // Asked first: it notices a device that was lost, and what was made of that is not worth keeping.
    let status = nic.queue_pairs()?;
    let mut grant = Grant { epoch: nic.epoch(), ..Grant::default() };
    let keep = terms.keep.filter(|keep| keep.epoch == grant.epoch);
    match fill(nic, stores, writes, lease, (Terms { keep, ..terms }, &status), &mut grant) {
        Ok((anew, former)) => {
            let same = |old: &Grant| {
                old.regions == grant.regions
                    && old.queue_pairs.len() == grant.queue_pairs.len()
                    && grant.queue_pairs_in_common(old) == old.queue_pairs.len()
            };
            let changed = !keep.is_some_and(same);
            Ok(Made { grant, changed, anew, former })
        }
        Err(e) => {
            release(nic, &grant, keep);
            Err(e)
        }
    }
}

fn fill(
    nic: &dyn Nic,
    stores: &Stores,
    writes: Transport,
    lease: &Lease,
    (terms, status): (Terms<'_>, &[QueuePairStatus]),
    grant: &mut Grant,
) -> Result<(Anew, Vec<(Purpose, u32)>), SessionError> {
    let Terms { keep, generation, rebuild, fresh, .. } = terms;
    let (mut anew, mut former) = (Anew::default(), Vec::new());
    let wanted = wanted(stores, lease);
    fill_regions(nic, &wanted, &terms, grant)?;
    for pair in &lease.queue_pairs {
        let request = request(lease, pair, writes, &wanted);
        let granted = keep.and_then(|k| k.queue_pairs.iter().find(|q| q.purpose == pair.purpose));
        let held = granted.and_then(|q| Some((q, status.iter().find(|s| s.qpn == q.info.qpn)?)));
        let push = |grant: &mut Grant, info| {
            let (purpose, transport) = (pair.purpose, request.transport);
            grant.queue_pairs.push(GrantedQueuePair { purpose, transport, info, generation, replaced: None });
        };
        let Some((granted, live)) = held else {
            // Nobody knows how far the one before had got: its late answers may have any PSN.
            let start_psn = if terms.resumes { anywhere()? } else { request.start_psn };
            let info = create(nic, grant, &QueuePairRequest { start_psn, ..request })?;
            push(grant, info);
            continue;
        };
        let in_error = live.state == QueuePairState::Error;
        let asked_for = in_error || (fresh && request.transport == Transport::Rc);
        let is_good = live.state == QueuePairState::ReadyToReceive && live.request.access == request.access;
        anew.broken += u32::from(in_error);
        if asked_for && !rebuild {
            anew.held_back += 1;
        }
        if (is_good && !asked_for) || (asked_for && !rebuild) {
            let info = QueuePairInfo { expected_psn: live.expected_psn, ..granted.info };
            grant.queue_pairs.push(GrantedQueuePair { info, ..*granted });
            continue;
        }
        anew.made += u32::from(asked_for);
        let start_psn = (live.expected_psn + PSN_STRIDE) & Psn::MASK;
        let info = create(nic, grant, &QueuePairRequest { start_psn, ..request.clone() })?;
        push(grant, info);
        former.push((pair.purpose, live.qpn));
    }
    Ok((anew, former))
}

/// The stores of a lease.
fn wanted(stores: &Stores, lease: &Lease) -> Vec<Arc<Store>> {
    stores.all().iter().filter(|s| lease.stores.contains(&s.spec.name)).cloned().collect()
}

fn fill_regions(
    nic: &dyn Nic,
    wanted: &[Arc<Store>],
    terms: &Terms<'_>,
    grant: &mut Grant,
) -> Result<(), SessionError> {
    let device = nic.device();
    for store in wanted {
        let name = &store.spec.name;
        let access = access_of(store, &device)?;
        let is_good = |r: &&GrantedRegion| r.is_of(store, access);
        if let Some(kept) = terms.keep.and_then(|k| k.regions.iter().find(is_good)) {
            let waits = terms.keep.iter().flat_map(|k| &k.former).filter(|f| f.region.store == *name);
            grant.former.extend(waits.cloned());
            grant.regions.push(kept.clone());
            continue;
        }
        let had = terms.keep.and_then(|k| k.regions.iter().find(|r| r.store == *name));
        let waits = terms.keep.and_then(|k| k.former.iter().find(|f| f.region.store == *name));
        if let (Some(had), Some(waits), false) = (had, waits, terms.opens) {
            // One at a time: so a translator that confirms nothing keeps two regions at most.
            grant.former.push(waits.clone());
            grant.regions.push(had.clone());
            continue;
        }
        let registration = nic.register(store.region.clone(), access)?;
        still(nic, grant, || nic.deregister(registration.rkey))?;
        let (store, memory, generation) = (name.clone(), store.generation, terms.generation);
        grant.regions.push(GrantedRegion { store, registration, access, memory, generation });
        grant.former.extend(had.map(|had| FormerRegion { region: had.clone(), until: generation }));
    }
    Ok(())
}

fn create(nic: &dyn Nic, grant: &Grant, request: &QueuePairRequest) -> Result<QueuePairInfo, SessionError> {
    let info = nic.create_queue_pair(request)?;
    still(nic, grant, || nic.destroy_queue_pair(info.qpn).map(drop))?;
    Ok(info)
}

/// Makes sure that the device is still the one that the grant began with, after something was made
/// on it. If it is not, all that was made before went with the earlier device, but this last thing
/// may be the later one's: it is given back there.
fn still(
    nic: &dyn Nic,
    grant: &Grant,
    give_back: impl FnOnce() -> Result<(), NicError>,
) -> Result<(), NicError> {
    if nic.epoch() == grant.epoch {
        return Ok(());
    }
    if let Err(error) = give_back() {
        tracing::debug!(%error, "it went with the device");
    }
    Err(NicError::Lost { device: nic.device().name })
}

/// The rights that a store's memory needs, where the device can give them.
fn access_of(store: &Store, device: &Device) -> Result<Access, SessionError> {
    let access = Access::for_store(&store.spec.kind);
    if access.remote_atomic && !device.atomics {
        return Err(SessionError::NoAtomics { store: store.spec.name.clone(), device: device.name.clone() });
    }
    Ok(access)
}

/// The grant that a lease has, or would get; numbers and keys that are not given out yet are 0.
/// Changes nothing.
pub(super) fn preview(
    nic: &dyn Nic,
    stores: &Stores,
    writes: Transport,
    lease: &Lease,
    held: Option<&Grant>,
) -> Result<Grant, SessionError> {
    let (status, device) = (nic.queue_pairs()?, nic.device());
    let mut grant = Grant { epoch: nic.epoch(), ..Grant::default() };
    let held = held.filter(|held| held.epoch == grant.epoch);
    let wanted = wanted(stores, lease);
    for store in &wanted {
        let access = access_of(store, &device)?;
        let has = held.and_then(|h| h.regions.iter().find(|r| r.is_of(store, access)));
        let to_come = || GrantedRegion {
            store: store.spec.name.clone(),
            registration: Registration { iova: store.region.iova(), len: store.region.len(), rkey: 0 },
            access,
            memory: store.generation,
            generation: 0,
        };
        grant.regions.push(has.cloned().unwrap_or_else(to_come));
    }
    for pair in &lease.queue_pairs {
        let transport = request(lease, pair, writes, &wanted).transport;
        let has = held.and_then(|h| h.queue_pairs.iter().find(|q| q.purpose == pair.purpose));
        let info = match has {
            Some(GrantedQueuePair { info, .. }) => {
                let now = status.iter().find(|s| s.qpn == info.qpn);
                QueuePairInfo { expected_psn: now.map_or(info.expected_psn, |s| s.expected_psn), ..*info }
            }
            None => QueuePairInfo {
                qpn: 0,
                expected_psn: pair.start_psn,
                max_dest_rd_atomic: if transport == Transport::Rc { device.max_dest_rd_atomic } else { 0 },
            },
        };
        let (purpose, generation) = (pair.purpose, has.map_or(0, |has| has.generation));
        grant.queue_pairs.push(GrantedQueuePair { purpose, transport, info, generation, replaced: None });
    }
    Ok(grant)
}

/// What a queue pair is made with: the rights that its stores need, and no more.
fn request(
    lease: &Lease,
    pair: &RequesterQueuePair,
    writes: Transport,
    wanted: &[Arc<Store>],
) -> QueuePairRequest {
    let mut access = Access::default();
    let mut receives = 0;
    for store in wanted.iter().filter(|s| s.spec.kind.primitive().purpose() == pair.purpose) {
        let needs = Access::for_store(&store.spec.kind);
        access.remote_write |= needs.remote_write;
        access.remote_read |= needs.remote_read;
        access.remote_atomic |= needs.remote_atomic;
        if matches!(store.spec.kind, StoreKind::Append { notify: true, .. }) {
            receives = RECEIVES;
        }
    }
    let transport = pair.purpose.transport(writes);
    // Zero-length WRITEs, with which a switch finds its place again and which take the place of
    // what lost its store, touch no memory but need the right all the same; what may be written is
    // the regions' to say.
    access.remote_write |= transport == Transport::Rc;
    QueuePairRequest {
        purpose: pair.purpose,
        transport,
        peer: lease.translator,
        peer_qpn: pair.qpn,
        start_psn: pair.start_psn,
        access,
        receives,
    }
}

/// Gives back what `grant` holds and `but` does not.
pub(super) fn release(nic: &dyn Nic, grant: &Grant, but: Option<&Grant>) {
    if grant.epoch != nic.epoch() {
        // It went with the device; its numbers may be somebody else's by now.
        return;
    }
    for pair in &grant.queue_pairs {
        if but.is_some_and(|b| b.queue_pairs.iter().any(|q| q.info.qpn == pair.info.qpn)) {
            continue;
        }
        match nic.destroy_queue_pair(pair.info.qpn) {
            // It ended when another one took its place.
            Ok(_) | Err(NicError::NoQueuePair { .. }) => {}
            Err(error) => tracing::warn!(%error, "a queue pair could not be ended"),
        }
    }
    for region in grant.keys() {
        let rkey = |r: &GrantedRegion| r.registration.rkey;
        if !but.is_some_and(|b| b.keys().any(|kept| rkey(kept) == rkey(region))) {
            end_key(nic, region);
        }
    }
}

/// Ends keys that nobody uses any more.
pub(super) fn end_keys(nic: &dyn Nic, epoch: u64, former: &[FormerRegion]) {
    if epoch == nic.epoch() {
        former.iter().for_each(|former| end_key(nic, &former.region));
    }
}

fn end_key(nic: &dyn Nic, region: &GrantedRegion) {
    if let Err(error) = nic.deregister(region.registration.rkey) {
        tracing::warn!(%error, store = %region.store, "a key could not be ended");
    }
}
