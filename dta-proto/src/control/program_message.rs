//! Programs and changes as messages.

use std::net::IpAddr;

use super::convert::unknown_value;
use super::program_change::Change as ChangeMessage;
use super::program_entry::Entry as EntryMessage;
use super::{MessageError, parse_purpose, transport};
use crate::buckets::Copies;
use crate::control;
use crate::program::{
    DataPlaneChange, DataPlaneEntry, EndedQueuePair, Endpoint, FlushDelay, Lists, Mode, Primitive, Program,
    ProgramQueuePair, ProgramSession, ReportService, Rkey, SketchReporter, Store, Version0,
};
use crate::store::StoreSpec;

type Result<T> = std::result::Result<T, MessageError>;

/// A part that must be present.
fn required_part<'a, T>(what: &str, part: &'a Option<T>) -> Result<&'a T> {
    part.as_ref().ok_or_else(|| MessageError(format!("the program lacks {what}")))
}

impl From<&DataPlaneEntry> for control::ProgramEntry {
    fn from(entry: &DataPlaneEntry) -> Self {
        let entry = match entry {
            DataPlaneEntry::Service(e) => EntryMessage::Service(control::ServiceEntry {
                address: e.address.to_string(),
                port: e.port.into(),
            }),
            DataPlaneEntry::Mode(e) => EntryMessage::Mode(control::ModeEntry { reference: e.reference }),
            DataPlaneEntry::Flush(e) => EntryMessage::Flush(control::FlushEntry {
                primitive: e.primitive.opcode().into(),
                after_ms: e.after_ms,
            }),
            DataPlaneEntry::QueuePair(e) => EntryMessage::QueuePair(pair_message(e)),
            DataPlaneEntry::Store(e) => EntryMessage::Store(control::StoreEntry {
                region: Some(control::Region {
                    store: Some((&e.spec).into()),
                    address: e.address,
                    length: e.length,
                    rkey: e.rkey.0,
                    generation: e.generation,
                    replicas: 0,
                    placement: None,
                }),
                queue_pair: control::Purpose::from(e.queue_pair).into(),
                collector: e.collector.into(),
                buckets: control::bucket_ranges(&e.buckets),
                idle: e.buckets == Copies::NONE,
            }),
            DataPlaneEntry::Lists(e) => EntryMessage::Lists(control::ListsEntry {
                store: e.store.into(),
                collector: e.collector.into(),
                first: e.first,
                count: e.count,
                positions: e
                    .positions
                    .iter()
                    .map(|&(list, sequence)| control::ListSequence { list, sequence })
                    .collect(),
            }),
            DataPlaneEntry::Version0(e) => EntryMessage::Version0(control::Version0Entry {
                primitive: e.primitive.opcode().into(),
                store: e.store.into(),
            }),
            DataPlaneEntry::SketchReporter(e) => EntryMessage::SketchReporter(control::SketchReporterEntry {
                store: e.store.into(),
                reporter: e.reporter.into(),
                bit: e.bit.into(),
            }),
            DataPlaneEntry::Session(e) => EntryMessage::Session(control::SessionEntry {
                collector: e.collector.into(),
                generation: e.generation,
            }),
        };
        control::ProgramEntry { entry: Some(entry) }
    }
}

fn pair_message(pair: &ProgramQueuePair) -> control::QueuePairEntry {
    control::QueuePairEntry {
        purpose: control::Purpose::from(pair.purpose).into(),
        transport: control::Transport::from(pair.transport).into(),
        remote_qpn: pair.remote_qpn,
        local_qpn: pair.local_qpn,
        source: Some((&pair.source).into()),
        destination: Some((&pair.destination).into()),
        tos: pair.tos.into(),
        max_dest_rd_atomic: pair.max_dest_rd_atomic,
        generation: pair.generation,
        start_psn: pair.start_psn,
        replaced: pair
            .replaced
            .map(|ended| control::EndedQueuePair { qpn: ended.qpn, expected_psn: ended.expected_psn }),
        collector: pair.collector.into(),
    }
}

impl TryFrom<&control::ProgramEntry> for DataPlaneEntry {
    type Error = MessageError;

    fn try_from(message: &control::ProgramEntry) -> Result<Self> {
        Ok(match required_part("an entry's table", &message.entry)? {
            EntryMessage::Service(m) => DataPlaneEntry::Service(ReportService {
                address: parse_address("service.address", &m.address)?,
                port: try_narrow("service.port", m.port)?,
            }),
            EntryMessage::Mode(m) => DataPlaneEntry::Mode(Mode { reference: m.reference }),
            EntryMessage::Flush(m) => {
                DataPlaneEntry::Flush(FlushDelay { primitive: primitive(m.primitive)?, after_ms: m.after_ms })
            }
            EntryMessage::QueuePair(m) => DataPlaneEntry::QueuePair(parse_queue_pair(m)?),
            EntryMessage::Store(m) => DataPlaneEntry::Store(parse_store(m)?),
            EntryMessage::Lists(m) => DataPlaneEntry::Lists(Lists {
                store: try_narrow("lists.store", m.store)?,
                collector: try_narrow("lists.collector", m.collector)?,
                first: m.first,
                count: m.count,
                positions: m.positions.iter().map(|p| (p.list, p.sequence)).collect(),
            }),
            EntryMessage::Version0(m) => DataPlaneEntry::Version0(Version0 {
                primitive: primitive(m.primitive)?,
                store: try_narrow("version0.store", m.store)?,
            }),
            EntryMessage::SketchReporter(m) => DataPlaneEntry::SketchReporter(SketchReporter {
                store: try_narrow("sketch-reporter.store", m.store)?,
                reporter: try_narrow("sketch-reporter.reporter", m.reporter)?,
                bit: try_narrow("sketch-reporter.bit", m.bit)?,
            }),
            EntryMessage::Session(m) => DataPlaneEntry::Session(ProgramSession {
                collector: try_narrow("session.collector", m.collector)?,
                generation: m.generation,
            }),
        })
    }
}

fn parse_queue_pair(m: &control::QueuePairEntry) -> Result<ProgramQueuePair> {
    let side = |name, side: &Option<control::Endpoint>| {
        Endpoint::try_from(required_part(name, side)?)
            .map_err(|error| MessageError(format!("an endpoint's {error}")))
    };
    Ok(ProgramQueuePair {
        collector: try_narrow("queue-pair.collector", m.collector)?,
        purpose: parse_purpose(m.purpose)?,
        transport: transport(m.transport)?,
        remote_qpn: m.remote_qpn,
        local_qpn: m.local_qpn,
        source: side("queue-pair.source", &m.source)?,
        destination: side("queue-pair.destination", &m.destination)?,
        tos: try_narrow("queue-pair.tos", m.tos)?,
        max_dest_rd_atomic: m.max_dest_rd_atomic,
        generation: m.generation,
        start_psn: m.start_psn,
        replaced: m.replaced.map(|e| EndedQueuePair { qpn: e.qpn, expected_psn: e.expected_psn }),
    })
}

fn parse_store(m: &control::StoreEntry) -> Result<Store> {
    let region = required_part("store.region", &m.region)?;
    let spec = required_part("store.region.store", &region.store)?;
    Ok(Store {
        collector: try_narrow("store.collector", m.collector)?,
        spec: StoreSpec::try_from(spec)?,
        buckets: if m.idle { Copies::NONE } else { control::copies_from_ranges(&m.buckets)? },
        address: region.address,
        length: region.length,
        rkey: Rkey(region.rkey),
        generation: region.generation,
        queue_pair: parse_purpose(m.queue_pair)?,
    })
}

fn parse_address(field: &str, text: &str) -> Result<IpAddr> {
    text.parse().map_err(|_| MessageError(format!("{field} is {text:?}, which is not an address")))
}

fn try_narrow<T: TryFrom<u32>>(field: &str, value: u32) -> Result<T> {
    T::try_from(value).map_err(|_| MessageError(format!("{field} is {value}, which is out of range")))
}

fn primitive(value: i32) -> Result<Primitive> {
    u8::try_from(value).ok().and_then(Primitive::from_opcode).ok_or_else(|| unknown_value("primitive", value))
}

/// The entries of a program as messages.
pub fn program_message(program: &Program) -> Vec<control::ProgramEntry> {
    program.entries().map(Into::into).collect()
}

/// The program that the messages describe.
///
/// # Errors
/// The first invalid entry, and why. [`crate::program::apply_changes`] checks whether a target can hold the
/// entries.
pub fn program_of(entries: &[control::ProgramEntry]) -> Result<Program> {
    Ok(entries.iter().map(DataPlaneEntry::try_from).collect::<Result<Vec<_>>>()?.into())
}

impl From<&DataPlaneChange> for control::ProgramChange {
    fn from(change: &DataPlaneChange) -> Self {
        let change = match change {
            DataPlaneChange::Insert { entry } => ChangeMessage::Insert(entry.into()),
            DataPlaneChange::Modify { from, to } => {
                ChangeMessage::Modify(control::Modification { from: Some(from.into()), to: Some(to.into()) })
            }
            DataPlaneChange::Delete { entry } => ChangeMessage::Delete(entry.into()),
            DataPlaneChange::Forget { entry } => ChangeMessage::Forget(entry.into()),
        };
        control::ProgramChange { change: Some(change) }
    }
}

impl TryFrom<&control::ProgramChange> for DataPlaneChange {
    type Error = MessageError;

    fn try_from(message: &control::ProgramChange) -> Result<Self> {
        let side = |side: &Option<control::ProgramEntry>| {
            DataPlaneEntry::try_from(required_part("a modified entry", side)?)
        };
        Ok(match required_part("a change's kind", &message.change)? {
            ChangeMessage::Insert(m) => DataPlaneChange::Insert { entry: DataPlaneEntry::try_from(m)? },
            ChangeMessage::Modify(m) => DataPlaneChange::Modify { from: side(&m.from)?, to: side(&m.to)? },
            ChangeMessage::Delete(m) => DataPlaneChange::Delete { entry: DataPlaneEntry::try_from(m)? },
            ChangeMessage::Forget(m) => DataPlaneChange::Forget { entry: DataPlaneEntry::try_from(m)? },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::Buckets;
    use crate::program::diff_programs;

    /// The program that the frame vectors are made with.
    fn sample() -> Program {
        serde_json::from_str(include_str!("../../vectors/program.json")).unwrap()
    }

    #[test]
    fn programs_and_changes_are_read_back() {
        let mut program = sample();
        program.set(DataPlaneEntry::Session(ProgramSession { collector: 3, generation: u64::MAX }));
        program.set(DataPlaneEntry::SketchReporter(SketchReporter { store: 5, reporter: 9, bit: 3 }));
        let buckets =
            ["0,7-9,255", "1-6,200"].map(|text| text.parse::<Buckets>().unwrap()).into_iter().collect();
        let store = program.first_store_part(1).unwrap().clone();
        program.set(DataPlaneEntry::Store(Store { collector: 3, buckets, ..store.clone() }));
        program.set(DataPlaneEntry::Store(Store { collector: 4, buckets: Copies::NONE, ..store }));
        program.set(DataPlaneEntry::Lists(Lists {
            store: 2,
            collector: 3,
            first: 6,
            count: 1,
            positions: Vec::new(),
        }));
        let messages = program_message(&program);
        assert_eq!(program_of(&messages).unwrap(), program);
        for changes in
            [diff_programs(&Program::default(), &program), diff_programs(&program, &Program::default())]
        {
            assert!(!changes.is_empty());
            for change in changes {
                let message = control::ProgramChange::from(&change);
                assert_eq!(DataPlaneChange::try_from(&message).unwrap(), change);
            }
        }
        let entry = program.entries().next().unwrap().clone();
        let modify = DataPlaneChange::Modify { from: entry.clone(), to: entry.clone() };
        for change in [modify, DataPlaneChange::Forget { entry }] {
            assert_eq!(DataPlaneChange::try_from(&control::ProgramChange::from(&change)).unwrap(), change);
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let fail = |entry: EntryMessage| {
            DataPlaneEntry::try_from(&control::ProgramEntry { entry: Some(entry) }).unwrap_err().to_string()
        };
        let service = |address: &str, port| {
            EntryMessage::Service(control::ServiceEntry { address: address.into(), port })
        };
        assert_eq!(fail(service("::1", 65_536)), "service.port is 65536, which is out of range");
        assert_eq!(fail(service("here", 1)), "service.address is \"here\", which is not an address");
        let version0 = |primitive, store| EntryMessage::Version0(control::Version0Entry { primitive, store });
        assert_eq!(fail(version0(0, 1)), "primitive is 0, which is unknown");
        assert_eq!(fail(version0(255, 1)), "primitive is 255, which is unknown");
        assert_eq!(fail(version0(-1, 1)), "primitive is -1, which is unknown");
        assert_eq!(fail(version0(1, 1 << 16)), "version0.store is 65536, which is out of range");
        assert_eq!(fail(EntryMessage::QueuePair(Default::default())), "the program lacks queue-pair.source");
        assert_eq!(fail(EntryMessage::Store(Default::default())), "the program lacks store.region");
        assert!(DataPlaneEntry::try_from(&control::ProgramEntry { entry: None }).is_err());
        assert!(DataPlaneChange::try_from(&control::ProgramChange { change: None }).is_err());
    }
}
