//! A program from a session and the configuration.

use std::net::IpAddr;

use dta_proto::control;
use dta_proto::queue_pair::has_24_bits;
use dta_proto::store::{SpecError, StoreKind, StoreSpec};
use dta_proto::wire::roce;

use dta_proto::program::{
    CheckError, EndedQueuePair, Endpoint, Entry, Flush, Lists, Mac, Mode, Primitive, Program, Purpose,
    QueuePair, Rkey, Service, Session, SketchReporter, Store, Version0,
};

/// The translator's side of its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSource {
    /// Where frames come from and ACKs go to.
    pub endpoint: Endpoint,
    /// IPv4 TOS byte.
    pub tos: u8,
    /// Queue pair number for writes, 24 bits.
    pub write_qpn: u32,
    /// Queue pair number for atomics, 24 bits.
    pub atomic_qpn: u32,
}

/// The part of a program that configuration decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where reports are taken.
    pub service: Service,
    /// No coalescing and no timed flush.
    pub reference: bool,
    /// Milliseconds that append batches, postcard rows and sketch columns may be held; 0 = never by time.
    pub flush_ms: [(Primitive, u32); 3],
    /// The translator's side of its frames.
    pub source: FrameSource,
    /// Stores of version-0 primitives by name. A primitive not named takes the only store of its kind, where there is one.
    pub version0: Vec<(Primitive, String)>,
    /// Bits of sketch-merge reporters: store name, reporter, bit.
    pub sketch_reporters: Vec<(String, u16, u8)>,
}

/// Why a session and the configuration do not make a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The session lacks something that every session has.
    #[error("the collector's session has no {0}; is it a DTA collector of this version?")]
    Missing(&'static str),
    /// A number that no enumeration has.
    #[error("the collector's session says that a queue pair's {0}; is it a DTA collector of this version?")]
    Unknown(#[from] control::UnknownNumber),
    /// A number does not fit its field.
    #[error("the collector's session says {field} = {value}, which is out of range")]
    OutOfRange {
        /// Name of the field in `dta.v1`.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// An address cannot be read.
    #[error("the collector's session says {field} = {value:?}, which is no address")]
    Address {
        /// Name of the field in `dta.v1`.
        field: &'static str,
        /// What it holds.
        value: String,
    },
    /// RoCEv2 over IPv4 alone is spoken.
    #[error(
        "the collector's device has the IPv6 address {0}: RoCEv2 over IPv4 only is supported; give the device an IPv4 address"
    )]
    Ipv6(IpAddr),
    /// A store that cannot be.
    #[error(transparent)]
    Store(#[from] SpecError),
    /// An entry that cannot be held.
    #[error("the collector's session cannot be used: {0}")]
    Entry(#[from] CheckError),
    /// Configuration names a store that the session lacks.
    #[error("configuration names store `{name}` for {what}, but the session has {have}")]
    UnknownStore {
        /// Name in configuration.
        name: String,
        /// What for.
        what: String,
        /// Names that the session has for it.
        have: String,
    },
}

/// Computes what a switch should hold.
///
/// # Errors
/// A [`BuildError`] that names the field of the session or configuration at fault.
pub fn build(session: &control::Session, wanted: &Wanted) -> Result<Program, BuildError> {
    let mut program = Program::default();
    program.set(Entry::Service(wanted.service.clone()));
    program.set(Entry::Mode(Mode { reference: wanted.reference }));
    program.set(Entry::Session(Session { collector: 0, generation: session.generation }));
    for (primitive, after_ms) in wanted.flush_ms {
        let after_ms = if wanted.reference { 0 } else { after_ms };
        program.set(Entry::Flush(Flush { primitive, after_ms }));
    }

    let destination = endpoint(session.collector.as_ref().ok_or(BuildError::Missing("collector"))?)?;
    if session.queue_pairs.is_empty() {
        return Err(BuildError::Missing("queue_pairs"));
    }
    for pair in &session.queue_pairs {
        program.set(Entry::QueuePair(queue_pair(session, pair, &destination, &wanted.source)?));
    }

    let mut specs = Vec::new();
    for region in &session.regions {
        let entry = store(region)?;
        specs.push(entry.spec.clone());
        program.set(Entry::Store(entry));
    }
    let named = |name: &str| specs.iter().find(|s| s.name == name);

    for spec in specs.iter().filter(|s| matches!(s.kind, StoreKind::Append { .. })) {
        lists(session, spec, &mut program)?;
    }
    for primitive in Primitive::ALL {
        if !primitive.in_version0() {
            continue; // version 0 has none
        }
        let of_kind: Vec<&StoreSpec> = specs.iter().filter(|s| s.kind.primitive() == primitive).collect();
        let chosen = match wanted.version0.iter().find(|(p, _)| *p == primitive) {
            Some((_, name)) => Some(
                *of_kind
                    .iter()
                    .find(|s| s.name == *name)
                    .ok_or_else(|| unknown_store(name, format!("version 0 {primitive}"), &of_kind))?,
            ),
            None if of_kind.len() == 1 => Some(of_kind[0]),
            None => None,
        };
        if let Some(spec) = chosen {
            program.set(Entry::Version0(Version0 { primitive, store: spec.id }));
        }
    }
    for (name, reporter, bit) in &wanted.sketch_reporters {
        let spec = named(name).filter(|s| s.kind.primitive() == Primitive::SketchMerge).ok_or_else(|| {
            let of_kind: Vec<&StoreSpec> =
                specs.iter().filter(|s| s.kind.primitive() == Primitive::SketchMerge).collect();
            unknown_store(name, format!("sketch reporter {reporter}"), &of_kind)
        })?;
        program.set(Entry::SketchReporter(SketchReporter { store: spec.id, reporter: *reporter, bit: *bit }));
    }
    program.entries().try_for_each(Entry::check)?;
    Ok(program)
}

fn unknown_store(name: &str, what: String, have: &[&StoreSpec]) -> BuildError {
    let have = match have {
        [] => "no such store".to_string(),
        stores => stores.iter().map(|s| format!("`{}`", s.name)).collect::<Vec<_>>().join(", "),
    };
    BuildError::UnknownStore { name: name.into(), what, have }
}

fn endpoint(e: &control::Endpoint) -> Result<Endpoint, BuildError> {
    let ip: IpAddr =
        e.ip.parse().map_err(|_| BuildError::Address { field: "collector.ip", value: e.ip.clone() })?;
    if ip.is_ipv6() {
        return Err(BuildError::Ipv6(ip));
    }
    let mac =
        match e.mac.len() {
            0 => Mac::default(),
            _ => e.mac.as_slice().try_into().map(Mac).map_err(|_| BuildError::Address {
                field: "collector.mac",
                value: format!("{:02x?}", e.mac),
            })?,
        };
    let port = match e.port {
        0 => roce::PORT,
        p => u16::try_from(p)
            .map_err(|_| BuildError::OutOfRange { field: "collector.port", value: p.into() })?,
    };
    Ok(Endpoint { mac, ip, port })
}

fn bits24(field: &'static str, value: u32) -> Result<u32, BuildError> {
    if has_24_bits(value) { Ok(value) } else { Err(BuildError::OutOfRange { field, value: value.into() }) }
}

fn queue_pair(
    session: &control::Session,
    pair: &control::ResponderQueuePair,
    destination: &Endpoint,
    source: &FrameSource,
) -> Result<QueuePair, BuildError> {
    let purpose = control::purpose(pair.purpose)?;
    let transport = control::transport(pair.transport)?;
    Ok(QueuePair {
        collector: 0,
        purpose,
        transport,
        remote_qpn: bits24("queue_pairs.qpn", pair.qpn)?,
        local_qpn: match purpose {
            Purpose::Write => source.write_qpn,
            Purpose::Atomic => source.atomic_qpn,
        },
        source: source.endpoint.clone(),
        destination: destination.clone(),
        tos: source.tos,
        max_dest_rd_atomic: pair.max_dest_rd_atomic,
        // Collectors of before do not tell it: all was made anew with the session's.
        generation: if pair.generation == 0 { session.generation } else { pair.generation },
        start_psn: bits24("queue_pairs.expected_psn", pair.expected_psn)?,
        replaced: pair.replaced.map(ended).transpose()?,
    })
}

fn ended(pair: control::EndedQueuePair) -> Result<EndedQueuePair, BuildError> {
    Ok(EndedQueuePair {
        qpn: bits24("queue_pairs.replaced.qpn", pair.qpn)?,
        expected_psn: bits24("queue_pairs.replaced.expected_psn", pair.expected_psn)?,
    })
}

fn store(region: &control::Region) -> Result<Store, BuildError> {
    let spec = StoreSpec::try_from(region.store.as_ref().ok_or(BuildError::Missing("regions.store"))?)?;
    let (address, length) = (region.address, region.length);
    let queue_pair = spec.kind.primitive().purpose();
    Ok(Store {
        collector: 0,
        spec,
        address,
        length,
        rkey: Rkey(region.rkey),
        generation: region.generation,
        queue_pair,
    })
}

fn lists(session: &control::Session, spec: &StoreSpec, program: &mut Program) -> Result<(), BuildError> {
    let StoreKind::Append { lists: all, .. } = spec.kind else { return Ok(()) };
    let ranges: Vec<(u32, u32)> =
        session.lists.iter().filter(|r| r.store == spec.name).map(|r| (r.first, r.count)).collect();
    for (first, count) in ranges {
        if count == 0 {
            continue;
        }
        if first.checked_add(count).is_none_or(|end| end > all) {
            return Err(BuildError::OutOfRange {
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
        program.set(Entry::Lists(Lists { store: spec.id, first, count, positions }));
    }
    Ok(())
}
