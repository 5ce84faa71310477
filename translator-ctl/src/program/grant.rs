//! What one collector's session grants: queue pairs, stores and append lists, as program entries.

use std::net::IpAddr;

use dta_proto::buckets::Buckets;
use dta_proto::control;
use dta_proto::program::{
    CheckError, EndedQueuePair, Endpoint, Entry, Lists, Purpose, QueuePair, Rkey, Session, Store,
};
use dta_proto::queue_pair::has_24_bits;
use dta_proto::store::{SpecError, StoreKind, StoreSpec};

/// The translator's side of its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSource {
    /// Source of frames, and destination of ACKs.
    pub endpoint: Endpoint,
    /// IPv4 TOS byte.
    pub tos: u8,
    /// Queue pair number for writes, 24 bits.
    pub write_qpn: u32,
    /// Queue pair number for atomics, 24 bits.
    pub atomic_qpn: u32,
}

/// One collector's grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its session; none after it has ended.
    pub session: Option<Session>,
    /// Its queue pairs; none after its session has ended.
    pub queue_pairs: Vec<QueuePair>,
    /// Its stores with their regions.
    pub stores: Vec<Store>,
    /// The append lists that this translator may write.
    pub lists: Vec<Lists>,
}

/// Why a session is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A part that every session has is missing.
    #[error("the collector's session has no {0}; is it a DTA collector of this version?")]
    Missing(&'static str),
    /// An undefined enumeration value.
    #[error("the collector's session says that a queue pair's {0}; is it a DTA collector of this version?")]
    Unknown(#[from] control::UnknownNumber),
    /// A number does not fit its field.
    #[error("the collector's session says {field} = {value}, which is out of range")]
    OutOfRange {
        /// Name of the field in `dta.v1`.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// An invalid endpoint of its own.
    #[error("the collector's session says of the collector: {0}")]
    Endpoint(#[from] control::EndpointError),
    /// Only RoCEv2 over IPv4 is supported.
    #[error(
        "the collector's device has the IPv6 address {0}: only RoCEv2 over IPv4 is supported; give the device an IPv4 address"
    )]
    Ipv6(IpAddr),
    /// An invalid store.
    #[error(transparent)]
    Store(#[from] SpecError),
    /// An invalid entry.
    #[error("the collector's session is unusable: {0}")]
    Entry(#[from] CheckError),
}

impl Grant {
    /// Converts a session with the collector of an index. `source` is the translator's side of frames to it.
    ///
    /// # Errors
    /// A [`GrantError`] that names the offending field of the session.
    pub fn read(
        session: &control::Session,
        collector: u8,
        source: &FrameSource,
    ) -> Result<Grant, GrantError> {
        let destination = endpoint(session.collector.as_ref().ok_or(GrantError::Missing("collector"))?)?;
        if session.queue_pairs.is_empty() {
            return Err(GrantError::Missing("queue_pairs"));
        }
        let pairs = session.queue_pairs.iter();
        let queue_pairs: Vec<QueuePair> = pairs
            .map(|pair| queue_pair(collector, session, pair, &destination, source))
            .collect::<Result<_, _>>()?;
        let regions = session.regions.iter();
        let stores: Vec<Store> = regions.map(|region| store(collector, region)).collect::<Result<_, _>>()?;
        let mut lists = Vec::new();
        for store in &stores {
            lists.extend(lists_of(session, collector, &store.spec)?);
        }
        let opened = Session { collector, generation: session.generation };
        let grant = Grant { session: Some(opened), queue_pairs, stores, lists };
        grant.entries().try_for_each(|entry| entry.check())?;
        Ok(grant)
    }

    /// All of it as entries of a program.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let pairs = self.queue_pairs.iter().cloned().map(Entry::QueuePair);
        let stores = self.stores.iter().cloned().map(Entry::Store);
        let lists = self.lists.iter().cloned().map(Entry::Lists);
        pairs.chain(stores).chain(lists).chain(self.session.map(Entry::Session))
    }

    /// What remains after the session has ended: what the target gathered for its stores.
    pub fn ended(self) -> Grant {
        Grant { session: None, queue_pairs: Vec::new(), ..self }
    }
}

fn endpoint(e: &control::Endpoint) -> Result<Endpoint, GrantError> {
    let endpoint = Endpoint::try_from(e)?.with_usual_port();
    if endpoint.ip.is_ipv6() {
        return Err(GrantError::Ipv6(endpoint.ip));
    }
    Ok(endpoint)
}

fn bits24(field: &'static str, value: u32) -> Result<u32, GrantError> {
    if has_24_bits(value) { Ok(value) } else { Err(GrantError::OutOfRange { field, value: value.into() }) }
}

fn queue_pair(
    collector: u8,
    session: &control::Session,
    pair: &control::ResponderQueuePair,
    destination: &Endpoint,
    source: &FrameSource,
) -> Result<QueuePair, GrantError> {
    let purpose = control::purpose(pair.purpose)?;
    let transport = control::transport(pair.transport)?;
    Ok(QueuePair {
        collector,
        purpose,
        transport,
        remote_qpn: bits24("queue_pairs.qpn", pair.qpn)?,
        local_qpn: match purpose {
            Purpose::Write => source.write_qpn,
            Purpose::Atomic => source.atomic_qpn,
        },
        source: source.endpoint,
        destination: *destination,
        tos: source.tos,
        max_dest_rd_atomic: pair.max_dest_rd_atomic,
        // Older collectors do not send it: everything was replaced with the session then.
        generation: if pair.generation == 0 { session.generation } else { pair.generation },
        start_psn: bits24("queue_pairs.expected_psn", pair.expected_psn)?,
        replaced: pair.replaced.map(ended).transpose()?,
    })
}

fn ended(pair: control::EndedQueuePair) -> Result<EndedQueuePair, GrantError> {
    Ok(EndedQueuePair {
        qpn: bits24("queue_pairs.replaced.qpn", pair.qpn)?,
        expected_psn: bits24("queue_pairs.replaced.expected_psn", pair.expected_psn)?,
    })
}

fn store(collector: u8, region: &control::Region) -> Result<Store, GrantError> {
    let spec = StoreSpec::try_from(region.store.as_ref().ok_or(GrantError::Missing("regions.store"))?)?;
    let (address, length) = (region.address, region.length);
    let queue_pair = spec.kind.primitive().purpose();
    Ok(Store {
        collector,
        spec,
        buckets: Buckets::ALL,
        address,
        length,
        rkey: Rkey(region.rkey),
        generation: region.generation,
        queue_pair,
    })
}

/// The ranges of a store's lists, if any.
fn lists_of(session: &control::Session, collector: u8, spec: &StoreSpec) -> Result<Vec<Lists>, GrantError> {
    let StoreKind::Append { lists: all, .. } = spec.kind else { return Ok(Vec::new()) };
    let mut lists = Vec::new();
    let ranges: Vec<(u32, u32)> =
        session.lists.iter().filter(|r| r.store == spec.name).map(|r| (r.first, r.count)).collect();
    for (first, count) in ranges {
        if count == 0 {
            continue;
        }
        if first.checked_add(count).is_none_or(|end| end > all) {
            return Err(GrantError::OutOfRange {
                field: "lists",
                value: u64::from(first) + u64::from(count),
            });
        }
        let positions = session
            .positions
            .iter()
            .filter(|p| p.store == spec.name && (first..first + count).contains(&p.list) && p.sequence != 0)
            .map(|p| (p.list, p.sequence))
            .collect();
        lists.push(Lists { store: spec.id, collector, first, count, positions });
    }
    Ok(lists)
}
