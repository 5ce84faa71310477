//! What a lease holds of the NIC: one queue pair per purpose, and a key per store.

use crate::nic::{
    Access, Device, Nic, NicError, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState, QueuePairStatus,
    Registration, Transport,
};
use crate::store::{Store, Stores};
use dta_proto::store::StoreKind;
use dta_proto::wire::roce::Psn;

use super::SessionError;
use super::lease::{Lease, RequesterQueuePair};

/// Receives kept posted on a queue pair whose writes may come with immediate: some milliseconds of a busy list. A write that finds none
/// is dropped.
const RECEIVES: u32 = 4096;

/// Queue pairs and keys of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// In the order in which the translator asked for them.
    pub queue_pairs: Vec<GrantedQueuePair>,
    /// By store name, in the order of the stores.
    pub regions: Vec<(String, Registration)>,
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
    /// The one that it took the place of, where it is known how that one ended.
    pub replaced: Option<Ended>,
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
    /// How many queue pairs both have. Numbers of another epoch mean nothing.
    pub(super) fn queue_pairs_in_common(&self, other: &Grant) -> usize {
        if self.epoch != other.epoch {
            return 0;
        }
        self.queue_pairs.iter().filter(|a| other.queue_pairs.iter().any(|b| a.info.qpn == b.info.qpn)).count()
    }
}

/// How far the first PSN of a queue pair is beyond the last one of the queue pair that it takes the
/// place of: late answers of that one are no answers to this one.
const PSN_STRIDE: u32 = 1 << 16;

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

/// Queue pairs that lived and were to be made anew, because they were in ERROR or because `fresh` asked for it.
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
    /// Ends what the former grant has and this one does not, and notes how the queue pairs ended whose place was taken. To be called
    /// when nothing can be refused any more.
    pub(super) fn finish(mut self, nic: &dyn Nic, former: Option<&Grant>) -> Grant {
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

/// The grant of a lease: what lives of `keep`, and new queue pairs and keys for the rest; with `fresh`, all RC queue pairs are
/// new; without `rebuild`, queue pairs that live, or are in ERROR, are left as they are. Nothing of `keep` has ended when this returns:
/// either [`Made::finish`] does that, or [`release`] gives back what is new.
///
/// Nobody else makes anything on the NIC meanwhile: the caller holds the lock of the sessions.
pub(super) fn make(
    nic: &dyn Nic,
    stores: &Stores,
    writes: Transport,
    lease: &Lease,
    (keep, rebuild, fresh): (Option<&Grant>, bool, bool),
) -> Result<Made, SessionError> {
    // Asked first: it notices a device that was lost, and what was made of that is not worth keeping.
    let status = nic.queue_pairs()?;
    let mut grant = Grant { epoch: nic.epoch(), ..Grant::default() };
    let keep = keep.filter(|keep| keep.epoch == grant.epoch);
    match fill(nic, stores, writes, lease, (keep, &status, rebuild, fresh), &mut grant) {
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
    (keep, status, rebuild, fresh): (Option<&Grant>, &[QueuePairStatus], bool, bool),
    grant: &mut Grant,
) -> Result<(Anew, Vec<(Purpose, u32)>), SessionError> {
    let device = nic.device();
    let (mut anew, mut former) = (Anew::default(), Vec::new());
    let wanted: Vec<_> = stores.iter().filter(|s| lease.stores.contains(&s.spec.name)).collect();
    for store in &wanted {
        let name = &store.spec.name;
        let access = access_of(store, &device)?;
        let kept = keep.and_then(|k| k.regions.iter().find(|(n, _)| n == name)).map(|(_, r)| *r);
        let registration = match kept {
            Some(registration) => registration,
            None => {
                let registration = nic.register(store.region.clone(), access)?;
                still(nic, grant, || nic.deregister(registration.rkey))?;
                registration
            }
        };
        grant.regions.push((name.clone(), registration));
    }
    for pair in &lease.queue_pairs {
        let request = request(lease, pair, writes, &wanted);
        let granted = keep.and_then(|k| k.queue_pairs.iter().find(|q| q.purpose == pair.purpose));
        let held = granted.and_then(|q| Some((q, status.iter().find(|s| s.qpn == q.info.qpn)?)));
        let push = |grant: &mut Grant, info, replaced| {
            let (purpose, transport) = (pair.purpose, request.transport);
            grant.queue_pairs.push(GrantedQueuePair { purpose, transport, info, replaced });
        };
        let Some((granted, live)) = held else {
            let info = create(nic, grant, &request)?;
            push(grant, info, None);
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
            push(grant, info, granted.replaced);
            continue;
        }
        anew.made += u32::from(asked_for);
        let start_psn = (live.expected_psn + PSN_STRIDE) & Psn::MASK;
        let info = create(nic, grant, &QueuePairRequest { start_psn, ..request.clone() })?;
        push(grant, info, None);
        former.push((pair.purpose, live.qpn));
    }
    Ok((anew, former))
}

fn create(nic: &dyn Nic, grant: &Grant, request: &QueuePairRequest) -> Result<QueuePairInfo, SessionError> {
    let info = nic.create_queue_pair(request)?;
    still(nic, grant, || nic.destroy_queue_pair(info.qpn).map(drop))?;
    Ok(info)
}

/// Makes sure that the device is still the one that the grant began with, after something was made on it. If it is not, all that was
/// made before went with the earlier device, but this last thing may be the later one's: it is given back there.
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

/// The grant that a lease has, or would get; numbers and keys that are not given out yet are 0. Changes nothing.
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
    let wanted: Vec<_> = stores.iter().filter(|s| lease.stores.contains(&s.spec.name)).collect();
    for store in &wanted {
        access_of(store, &device)?;
        let name = &store.spec.name;
        let has = held.and_then(|h| h.regions.iter().find(|(n, _)| n == name)).map(|(_, r)| *r);
        let region = &store.region;
        let to_come = Registration { iova: region.iova(), len: region.len(), rkey: 0 };
        grant.regions.push((name.clone(), has.unwrap_or(to_come)));
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
        grant.queue_pairs.push(GrantedQueuePair { purpose: pair.purpose, transport, info, replaced: None });
    }
    Ok(grant)
}

/// What a queue pair is made with: the rights that its stores need, and no more.
fn request(
    lease: &Lease,
    pair: &RequesterQueuePair,
    writes: Transport,
    wanted: &[&crate::store::Store],
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
    for (store, registration) in &grant.regions {
        let kept = but.is_some_and(|b| b.regions.iter().any(|(_, r)| r.rkey == registration.rkey));
        if !kept && let Err(error) = nic.deregister(registration.rkey) {
            tracing::warn!(%error, %store, "a key could not be ended");
        }
    }
}
