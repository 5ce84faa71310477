//! What one collector's session grants: queue pairs, stores and append lists, as program entries.

use std::collections::BTreeMap;

use dta_proto::buckets::{Copies, MAX_COPIES};
use dta_proto::control;
use dta_proto::program::{
    DataPlaneEntry, EndedQueuePair, Endpoint, Lists, ProgramQueuePair, ProgramSession, Purpose, Rkey, Store,
};
use dta_proto::queue_pair::has_24_bits;
use dta_proto::store::{StoreKind, StoreSpec};

/// The translator's side of its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSource {
    /// Source of frames, and destination of ACKs.
    pub endpoint: Endpoint,
    /// IPv4 TOS byte, or IPv6 traffic class.
    pub tos: u8,
    /// Queue pair number for writes, 24 bits.
    pub write_qpn: u32,
    /// Queue pair number for atomics, 24 bits.
    pub atomic_qpn: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its session; none after it has ended.
    pub session: Option<ProgramSession>,
    /// Its queue pairs; none after its session has ended.
    pub queue_pairs: Vec<ProgramQueuePair>,
    /// Its stores with their regions. Their buckets are what the collector accepts: all of them, in as many
    /// copies as the store is to have replicas.
    pub stores: Vec<Store>,
    /// In a cluster, by store name: the version of the placement that the region of a store with epochs follows.
    pub goes_by: BTreeMap<String, u64>,
    /// The append lists that this translator may write.
    pub lists: Vec<Lists>,
}

/// Why a session is unusable, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrantError(String);

fn require_part<'a, T>(what: &str, part: Option<&'a T>) -> Result<&'a T, GrantError> {
    let missing = || format!("the collector's session has no {what}; is it a DTA collector of this version?");
    part.ok_or_else(|| GrantError(missing()))
}

/// A number that does not fit its field, which `dta.v1` names.
fn out_of_range(field: &str, value: u64) -> GrantError {
    GrantError(format!("the collector's session says {field} = {value}, which is out of range"))
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
        let destination = parse_endpoint(require_part("collector", session.collector.as_ref())?, source)?;
        require_part("queue_pairs", session.queue_pairs.first())?;
        let pairs = session.queue_pairs.iter();
        let queue_pairs: Vec<ProgramQueuePair> =
            pairs.map(|pair| queue_pair(collector, pair, &destination, source)).collect::<Result<_, _>>()?;
        let regions = session.regions.iter();
        let stores: Vec<Store> =
            regions.map(|region| parse_store(collector, region)).collect::<Result<_, _>>()?;
        let mut lists = Vec::new();
        for store in &stores {
            lists.extend(parse_lists(session, collector, &store.spec)?);
        }
        let opened = ProgramSession { collector, generation: session.generation };
        let goes_by =
            |(store, region): (&Store, &control::Region)| Some((store.spec.name.clone(), region.placement?));
        let goes_by = stores.iter().zip(&session.regions).filter_map(goes_by).collect();
        let grant = Grant { session: Some(opened), queue_pairs, stores, goes_by, lists };
        grant
            .program_entries()
            .try_for_each(|entry| entry.validate())
            .map_err(|error| GrantError(format!("the collector's session is unusable: {error}")))?;
        Ok(grant)
    }

    pub fn program_entries(&self) -> impl Iterator<Item = DataPlaneEntry> {
        let pairs = self.queue_pairs.iter().cloned().map(DataPlaneEntry::QueuePair);
        let stores = self.stores.iter().cloned().map(DataPlaneEntry::Store);
        let lists = self.lists.iter().cloned().map(DataPlaneEntry::Lists);
        pairs.chain(stores).chain(lists).chain(self.session.map(DataPlaneEntry::Session))
    }

    /// What remains after the session has ended: what the target gathered for its stores.
    pub fn without_session(self) -> Grant {
        Grant { session: None, queue_pairs: Vec::new(), ..self }
    }
}

fn parse_endpoint(e: &control::Endpoint, source: &FrameSource) -> Result<Endpoint, GrantError> {
    let endpoint = Endpoint::try_from(e)
        .map_err(|error| {
            GrantError(format!("the collector's session has an invalid endpoint of the collector: {error}"))
        })?
        .with_usual_port();
    if endpoint.ip.is_ipv4() != source.endpoint.ip.is_ipv4() {
        return Err(GrantError(format!(
            "the collector's NIC has the address {}, but frames come from {}, of the other IP version: set `source` \
             (--source) to an address of the same version, or give the NIC one",
            endpoint.ip, source.endpoint.ip
        )));
    }
    Ok(endpoint)
}

fn check_24_bits(field: &str, value: u32) -> Result<u32, GrantError> {
    if has_24_bits(value) { Ok(value) } else { Err(out_of_range(field, value.into())) }
}

fn queue_pair(
    collector: u8,
    pair: &control::ResponderQueuePair,
    destination: &Endpoint,
    source: &FrameSource,
) -> Result<ProgramQueuePair, GrantError> {
    let unknown = |error| {
        GrantError(format!(
            "the collector's session says that a queue pair's {error}; is it a DTA collector of this version?"
        ))
    };
    let purpose = control::parse_purpose(pair.purpose).map_err(unknown)?;
    let transport = control::transport(pair.transport).map_err(unknown)?;
    Ok(ProgramQueuePair {
        collector,
        purpose,
        transport,
        remote_qpn: check_24_bits("queue_pairs.qpn", pair.qpn)?,
        local_qpn: match purpose {
            Purpose::Write => source.write_qpn,
            Purpose::Atomic => source.atomic_qpn,
        },
        source: source.endpoint,
        destination: *destination,
        tos: source.tos,
        max_dest_rd_atomic: pair.max_dest_rd_atomic,
        generation: pair.generation,
        start_psn: check_24_bits("queue_pairs.expected_psn", pair.expected_psn)?,
        replaced: pair.replaced.map(parse_ended_pair).transpose()?,
    })
}

fn parse_ended_pair(pair: control::EndedQueuePair) -> Result<EndedQueuePair, GrantError> {
    Ok(EndedQueuePair {
        qpn: check_24_bits("queue_pairs.replaced.qpn", pair.qpn)?,
        expected_psn: check_24_bits("queue_pairs.replaced.expected_psn", pair.expected_psn)?,
    })
}

fn parse_store(collector: u8, region: &control::Region) -> Result<Store, GrantError> {
    let spec = require_part("regions.store", region.store.as_ref())?;
    let spec = StoreSpec::try_from(spec).map_err(|error| GrantError(error.to_string()))?;
    let (address, length) = (region.address, region.length);
    let queue_pair = spec.kind.primitive().queue_pair_purpose();
    let replicas = region.replicas.max(1);
    if replicas as usize > MAX_COPIES {
        return Err(out_of_range("regions.replicas", replicas.into()));
    }
    if let StoreKind::KeyIncrement { replicas: of_layout, .. } = spec.kind
        && u32::from(of_layout) != replicas
    {
        return Err(GrantError(format!(
            "store `{}` is to be counted by {replicas} collectors, but its slots are for {of_layout}: the collector and this \
             program are of different versions",
            spec.name
        )));
    }
    Ok(Store {
        collector,
        spec,
        buckets: Copies::with_all_buckets(replicas as usize),
        address,
        length,
        rkey: Rkey(region.rkey),
        generation: region.generation,
        queue_pair,
    })
}

/// The ranges of a store's lists, if any.
fn parse_lists(
    session: &control::Session,
    collector: u8,
    spec: &StoreSpec,
) -> Result<Vec<Lists>, GrantError> {
    let StoreKind::Append { lists: all, .. } = spec.kind else { return Ok(Vec::new()) };
    let mut lists = Vec::new();
    let ranges: Vec<(u32, u32)> =
        session.lists.iter().filter(|r| r.store == spec.name).map(|r| (r.first, r.count)).collect();
    for (first, count) in ranges {
        if count == 0 {
            continue;
        }
        if first.checked_add(count).is_none_or(|end| end > all) {
            return Err(out_of_range("lists", u64::from(first) + u64::from(count)));
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
