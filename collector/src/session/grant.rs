//! What a lease holds on the NIC: one queue pair per purpose, and an rkey per store.
//!
//! Each has a generation of its own: that of the session when it was made. A key is kept as long as the store
//! has the same region. When the store gets another region, the session gets a key to that, and the old key
//! stays valid until the translator has confirmed the new one ([`FormerRegion`]).

use std::sync::Arc;

use dta_memory::nic::{
    Access, Device, Nic, NicError, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState, QueuePairStatus,
    Registration, Transport,
};
use dta_memory::store::{ServedStores, Store};
use dta_proto::store::StoreKind;
use dta_proto::wire::roce::Psn;

use super::SessionError;
use super::lease::{Lease, RequesterQueuePair};

/// Receives kept posted on a queue pair whose writes may come with immediate: enough for some milliseconds of
/// a busy list. A write that finds none is dropped.
const RECEIVES: u32 = 4096;

/// Queue pairs and keys of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// In the order in which the translator asked for them.
    pub queue_pairs: Vec<GrantedQueuePair>,
    /// In store order.
    pub regions: Vec<GrantedRegion>,
    /// At most one per store: earlier regions, to which the translator may still write.
    pub former: Vec<FormerRegion>,
    /// The NIC's epoch in which all of this was made.
    pub epoch: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedQueuePair {
    pub purpose: Purpose,
    pub transport: Transport,
    /// Its number and expected PSN.
    pub info: QueuePairInfo,
    /// The session's generation when it was made.
    pub generation: u64,
    /// The queue pair that it replaced, if it is known how that ended.
    pub replaced: Option<RetiredQueuePair>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedRegion {
    pub store: String,
    pub registration: Registration,
    /// The rights that come with the key.
    pub access: Access,
    /// The [generation of the store](Store::generation) whose memory it is.
    pub memory: u64,
    /// The session's generation when the key was made.
    pub generation: u64,
}

impl GrantedRegion {
    /// Whether it is the store's current memory and has these rights.
    fn matches_store(&self, store: &Store, access: Access) -> bool {
        let place = |r: &Registration| (r.iova, r.len);
        place(&self.registration) == (store.region.wire_address(), store.region.len())
            && self.memory == store.generation
            && self.access == access
    }
}

/// A region that another one has replaced in the grant. Its key stays valid until the translator has
/// confirmed that, because otherwise operations on their way there would be refused and break its queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerRegion {
    /// The region and its key.
    pub region: GrantedRegion,
    /// The session generation that the translator must confirm.
    pub until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetiredQueuePair {
    pub qpn: u32,
    /// The PSN that it expected: everything before was executed, and nothing from it on.
    pub expected_psn: u32,
}

impl Grant {
    pub(super) fn queue_pairs_in_common(&self, other: &Grant) -> usize {
        let both = |a: &GrantedQueuePair, b: &GrantedQueuePair| {
            (a.purpose, a.generation) == (b.purpose, b.generation)
        };
        self.queue_pairs.iter().filter(|a| other.queue_pairs.iter().any(|b| both(a, b))).count()
    }

    /// Takes out the former regions that the translator no longer uses, now that it has confirmed this
    /// generation.
    pub(super) fn take_confirmed(&mut self, generation: u64) -> Vec<FormerRegion> {
        self.former.extract_if(.., |former| former.until <= generation).collect()
    }

    /// Whether a key gives access to this generation of a store's memory.
    pub(super) fn has_key_to(&self, store: &str, memory: u64) -> bool {
        self.granted_keys().any(|key| key.memory == memory && key.store == store)
    }

    pub(super) fn granted_keys(&self) -> impl Iterator<Item = &GrantedRegion> {
        self.regions.iter().chain(self.former.iter().map(|former| &former.region))
    }
}

/// Distance between the last PSN of a queue pair and the first PSN of its replacement, so that late answers
/// to the old one are not mistaken for answers to the new one.
const PSN_STRIDE: u32 = 1 << 16;

fn random_psn() -> Result<u32, NicError> {
    let random = getrandom::u32().map_err(|error| NicError::System {
        action: "get random bytes for a PSN".into(),
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(random & Psn::MASK)
}

/// How [`make_grant`] treats the previous grant.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// The previous grant, to be kept as far as possible.
    pub(super) keep: Option<&'a Grant>,
    /// The generation of new queue pairs and keys.
    pub(super) generation: u64,
    /// Whether existing queue pairs may be rebuilt, in ERROR or not.
    pub(super) rebuild: bool,
    /// Whether all RC queue pairs must be new.
    pub(super) fresh: bool,
    /// Whether the translator may have had queue pairs in this session that are no longer in any grant.
    pub(super) resumes: bool,
    /// Whether the translator opens the session with this grant. On a renewal, it must confirm a store's last
    /// region before it gets another.
    pub(super) opens: bool,
}

/// The result of [`make_grant`].
pub(super) struct NewGrant {
    pub(super) grant: Grant,
    /// Whether something is new or gone.
    pub(super) changed: bool,
    /// What happened to existing queue pairs that had to be rebuilt.
    pub(super) anew: Anew,
    /// Queue pairs being replaced, by purpose. They still exist; [`NewGrant::finish`] ends them.
    former: Vec<(Purpose, u32)>,
}

/// Existing queue pairs that had to be rebuilt, because they were in ERROR or because of `fresh`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Anew {
    pub(super) made: u32,
    /// How many were left as they are because `rebuild` was false.
    pub(super) held_back: u32,
    /// How many of these two were in ERROR.
    pub(super) broken: u32,
}

impl NewGrant {
    /// Ends what the former grant has and this one lacks, and records how the replaced queue pairs ended.
    /// Call it once nothing can fail any more.
    pub(super) fn finish(mut self, nic: &dyn Nic, former: Option<&Grant>) -> Grant {
        if self.grant.epoch != nic.device_epoch() {
            // They were lost with the device, and their numbers may be in use again.
            self.former.clear();
        }
        for (purpose, qpn) in self.former {
            // The PSN is read when it ends: until then it keeps executing.
            match nic.destroy_queue_pair(qpn) {
                Ok(ended) => {
                    if let Some(new) = self.grant.queue_pairs.iter_mut().find(|q| q.purpose == purpose) {
                        new.replaced = ended.map(|expected_psn| RetiredQueuePair { qpn, expected_psn });
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot end a queue pair"),
            }
        }
        if let Some(former) = former {
            release_grant(nic, former, Some(&self.grant));
        }
        self.grant
    }
}

/// Makes the grant of a lease: keeps what still exists of the previous one, and creates the other queue pairs
/// and keys. Ends nothing of the previous one: either [`NewGrant::finish`] does that, or [`release_grant`]
/// gives back what is new.
///
/// The caller holds the lock of the sessions, so nobody else creates anything on the NIC meanwhile.
pub(super) fn make_grant(
    nic: &dyn Nic,
    stores: &ServedStores,
    writes: Transport,
    lease: &Lease,
    terms: Terms<'_>,
) -> Result<NewGrant, SessionError> {
    // Called first because it notices a lost device, whose queue pairs and keys are not worth keeping.
    let status = nic.queue_pairs()?;
    let mut grant = Grant { epoch: nic.device_epoch(), ..Grant::default() };
    let keep = terms.keep.filter(|keep| keep.epoch == grant.epoch);
    match fill_grant(nic, stores, writes, lease, (Terms { keep, ..terms }, &status), &mut grant) {
        Ok((anew, former)) => {
            let same = |old: &Grant| {
                old.regions == grant.regions
                    && old.queue_pairs.len() == grant.queue_pairs.len()
                    && grant.queue_pairs_in_common(old) == old.queue_pairs.len()
            };
            let changed = !keep.is_some_and(same);
            Ok(NewGrant { grant, changed, anew, former })
        }
        Err(e) => {
            release_grant(nic, &grant, keep);
            Err(e)
        }
    }
}

fn fill_grant(
    nic: &dyn Nic,
    stores: &ServedStores,
    writes: Transport,
    lease: &Lease,
    (terms, status): (Terms<'_>, &[QueuePairStatus]),
    grant: &mut Grant,
) -> Result<(Anew, Vec<(Purpose, u32)>), SessionError> {
    let Terms { keep, generation, rebuild, fresh, .. } = terms;
    let (mut anew, mut former) = (Anew::default(), Vec::new());
    let wanted = leased_stores(stores, lease);
    fill_regions(nic, &wanted, &terms, grant)?;
    for pair in &lease.queue_pairs {
        let request = queue_pair_request(lease, pair, writes, &wanted);
        let granted = keep.and_then(|k| k.queue_pairs.iter().find(|q| q.purpose == pair.purpose));
        let held = granted.and_then(|q| Some((q, status.iter().find(|s| s.qpn == q.info.qpn)?)));
        let push = |grant: &mut Grant, info| {
            let (purpose, transport) = (pair.purpose, request.transport);
            grant.queue_pairs.push(GrantedQueuePair { purpose, transport, info, generation, replaced: None });
        };
        let Some((granted, live)) = held else {
            // The progress of the previous pair is unknown: its late answers may have any PSN.
            let start_psn = if terms.resumes { random_psn()? } else { request.start_psn };
            let info = create_granted_pair(nic, grant, &QueuePairRequest { start_psn, ..request })?;
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
        let info = create_granted_pair(nic, grant, &QueuePairRequest { start_psn, ..request.clone() })?;
        push(grant, info);
        former.push((pair.purpose, live.qpn));
    }
    Ok((anew, former))
}

fn leased_stores(stores: &ServedStores, lease: &Lease) -> Vec<Arc<Store>> {
    stores.current_stores().iter().filter(|s| lease.stores.contains(&s.spec.name)).cloned().collect()
}

fn fill_regions(
    nic: &dyn Nic,
    wanted: &[Arc<Store>],
    terms: &Terms<'_>,
    grant: &mut Grant,
) -> Result<(), SessionError> {
    let device = nic.describe_device();
    for store in wanted {
        let name = &store.spec.name;
        let access = access_of(store, &device)?;
        let is_good = |r: &&GrantedRegion| r.matches_store(store, access);
        if let Some(kept) = terms.keep.and_then(|k| k.regions.iter().find(is_good)) {
            let waits = terms.keep.iter().flat_map(|k| &k.former).filter(|f| f.region.store == *name);
            grant.former.extend(waits.cloned());
            grant.regions.push(kept.clone());
            continue;
        }
        let had = terms.keep.and_then(|k| k.regions.iter().find(|r| r.store == *name));
        let waits = terms.keep.and_then(|k| k.former.iter().find(|f| f.region.store == *name));
        if let (Some(had), Some(waits), false) = (had, waits, terms.opens) {
            // One at a time, so that a translator that confirms nothing keeps at most two regions.
            grant.former.push(waits.clone());
            grant.regions.push(had.clone());
            continue;
        }
        let registration = nic.register_region(store.region.clone(), access)?;
        check_same_device(nic, grant, || nic.deregister(registration.rkey))?;
        let (store, memory, generation) = (name.clone(), store.generation, terms.generation);
        grant.regions.push(GrantedRegion { store, registration, access, memory, generation });
        grant.former.extend(had.map(|had| FormerRegion { region: had.clone(), until: generation }));
    }
    Ok(())
}

fn create_granted_pair(
    nic: &dyn Nic,
    grant: &Grant,
    request: &QueuePairRequest,
) -> Result<QueuePairInfo, SessionError> {
    let info = nic.create_queue_pair(request)?;
    check_same_device(nic, grant, || nic.destroy_queue_pair(info.qpn).map(drop))?;
    Ok(info)
}

/// Checks, after something was created on the device, that it is still the device that the grant began with.
/// If not, everything created before was lost with the earlier device, but this last thing may belong to the
/// later one and is given back there.
fn check_same_device(
    nic: &dyn Nic,
    grant: &Grant,
    give_back: impl FnOnce() -> Result<(), NicError>,
) -> Result<(), NicError> {
    if nic.device_epoch() == grant.epoch {
        return Ok(());
    }
    if let Err(error) = give_back() {
        tracing::debug!(%error, "it went with the device");
    }
    Err(NicError::Lost { device: nic.describe_device().name })
}

/// The rights that a store's memory needs, if the device supports them.
fn access_of(store: &Store, device: &Device) -> Result<Access, SessionError> {
    let access = Access::for_store(&store.spec.kind);
    if access.remote_atomic && !device.atomics {
        return Err(SessionError::NoAtomics { store: store.spec.name.clone(), device: device.name.clone() });
    }
    Ok(access)
}

/// The grant that a lease has or would get; numbers and keys not given out yet are 0. Changes nothing.
pub(super) fn preview_grant(
    nic: &dyn Nic,
    stores: &ServedStores,
    writes: Transport,
    lease: &Lease,
    held: Option<&Grant>,
) -> Result<Grant, SessionError> {
    let (status, device) = (nic.queue_pairs()?, nic.describe_device());
    let mut grant = Grant { epoch: nic.device_epoch(), ..Grant::default() };
    let held = held.filter(|held| held.epoch == grant.epoch);
    let wanted = leased_stores(stores, lease);
    for store in &wanted {
        let access = access_of(store, &device)?;
        let has = held.and_then(|h| h.regions.iter().find(|r| r.matches_store(store, access)));
        let to_come = || GrantedRegion {
            store: store.spec.name.clone(),
            registration: Registration {
                iova: store.region.wire_address(),
                len: store.region.len(),
                rkey: 0,
            },
            access,
            memory: store.generation,
            generation: 0,
        };
        grant.regions.push(has.cloned().unwrap_or_else(to_come));
    }
    for pair in &lease.queue_pairs {
        let transport = queue_pair_request(lease, pair, writes, &wanted).transport;
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

/// The request for a queue pair with exactly the rights that its stores need.
fn queue_pair_request(
    lease: &Lease,
    pair: &RequesterQueuePair,
    writes: Transport,
    wanted: &[Arc<Store>],
) -> QueuePairRequest {
    let mut access = Access::default();
    let mut receives = 0;
    for store in wanted.iter().filter(|s| s.spec.kind.primitive().queue_pair_purpose() == pair.purpose) {
        let needs = Access::for_store(&store.spec.kind);
        access.remote_write |= needs.remote_write;
        access.remote_read |= needs.remote_read;
        access.remote_atomic |= needs.remote_atomic;
        if matches!(store.spec.kind, StoreKind::Append { notify: true, .. }) {
            receives = RECEIVES;
        }
    }
    let transport = pair.purpose.transport(writes);
    // Zero-length WRITEs, which a switch uses to resynchronize and which replace writes whose store is gone,
    // touch no memory but still need the right; which memory may be written is up to the regions.
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

/// Releases what `grant` holds and `but` does not.
pub(super) fn release_grant(nic: &dyn Nic, grant: &Grant, but: Option<&Grant>) {
    if grant.epoch != nic.device_epoch() {
        // It was lost with the device; its numbers may be in use again.
        return;
    }
    for pair in &grant.queue_pairs {
        if but.is_some_and(|b| b.queue_pairs.iter().any(|q| q.info.qpn == pair.info.qpn)) {
            continue;
        }
        match nic.destroy_queue_pair(pair.info.qpn) {
            // It already ended when it was replaced.
            Ok(_) | Err(NicError::NoQueuePair { .. }) => {}
            Err(error) => tracing::warn!(%error, "cannot end a queue pair"),
        }
    }
    for region in grant.granted_keys() {
        let rkey = |r: &GrantedRegion| r.registration.rkey;
        if !but.is_some_and(|b| b.granted_keys().any(|kept| rkey(kept) == rkey(region))) {
            revoke_key(nic, region);
        }
    }
}

/// Revokes keys that are no longer used.
pub(super) fn revoke_keys(nic: &dyn Nic, epoch: u64, former: &[FormerRegion]) {
    if epoch == nic.device_epoch() {
        former.iter().for_each(|former| revoke_key(nic, &former.region));
    }
}

fn revoke_key(nic: &dyn Nic, region: &GrantedRegion) {
    if let Err(error) = nic.deregister(region.registration.rkey) {
        tracing::warn!(%error, store = %region.store, "cannot revoke a key");
    }
}
