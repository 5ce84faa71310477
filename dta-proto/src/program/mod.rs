//! What a switch should hold, as a declarative description.
//!
//! A [`Program`] is a set of table entries, computed from a session and a translator's configuration. It is
//! independent of the target: the software data plane, bmv2 and Tofino are programmed from the same entries.
//! What a target holds is a `Program` too. The two are compared by their [`TableRow`]s, which have only the
//! [`RowFields`] that the target uses. The result is the entries to insert, modify or delete; applying it twice
//! changes nothing.

mod check;
mod diff;
mod rows;

pub use crate::endpoint::Endpoint;
pub use crate::queue_pair::{Purpose, Transport};
pub use crate::wire::dta::Primitive;
pub use crate::wire::ethernet::Mac;

pub use check::{CheckError, MAX_COLLECTORS, MAX_STORES, apply_changes};
pub use diff::{DataPlaneChange, changes_for_session, diff_programs, without_keys};
pub use rows::{RowFields, RowValue, TableRow, Values};

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;

use crate::buckets::Copies;
use crate::store::StoreSpec;
use serde::{Deserialize, Serialize};

/// The entries of every table, at most one per [`EntryKey`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<DataPlaneEntry>", into = "Vec<DataPlaneEntry>")]
pub struct Program {
    entries: BTreeMap<EntryKey, DataPlaneEntry>,
}

/// One entry of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "table", rename_all = "kebab-case")]
pub enum DataPlaneEntry {
    /// Where reports are received.
    Service(ReportService),
    /// Global behaviour of the data plane.
    Mode(Mode),
    /// How long reports of a primitive may be held.
    Flush(FlushDelay),
    /// A queue pair and the constant part of its frames.
    QueuePair(ProgramQueuePair),
    /// A store and its region.
    Store(Store),
    /// Append lists that this translator writes.
    Lists(Lists),
    /// The store of a version-0 primitive.
    Version0(Version0),
    /// A reporter's bit in the bitmap of a sketch-merge store.
    SketchReporter(SketchReporter),
    /// The session that the program is for.
    Session(ProgramSession),
}

/// What identifies an entry in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKey {
    /// The service address, of which there is one.
    Service,
    /// The mode, of which there is one.
    Mode,
    /// Per primitive.
    Flush(Primitive),
    /// Per collector and purpose.
    QueuePair(u8, Purpose),
    /// Per store id and collector.
    Store(u16, u8),
    /// Per store id and first list.
    Lists(u16, u32),
    /// Per primitive.
    Version0(Primitive),
    /// Per store id and reporter id.
    SketchReporter(u16, u16),
    /// Per collector. It comes last, so that a target that holds it holds the rest.
    Session(u8),
}

/// Where reports are received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportService {
    /// Destination address of reports.
    pub address: IpAddr,
    /// UDP destination port of reports, normally 40040.
    pub port: u16,
}

/// Global behaviour of the data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    /// Restricts a target to what a switch can do, so that all targets emit the same bytes:
    /// `docs/reference-mode.md`.
    pub reference: bool,
}

/// How long reports of a primitive may be held before they are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushDelay {
    /// `append`, `postcarding` or `sketch-merge`.
    pub primitive: Primitive,
    /// Milliseconds after the first report held; 0 = no limit.
    pub after_ms: u32,
}

/// A queue pair and the constant part of its frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramQueuePair {
    /// Index of its collector, 0 for the first.
    #[serde(default)]
    pub collector: u8,
    /// What it is for.
    pub purpose: Purpose,
    /// Its transport.
    pub transport: Transport,
    /// Queue pair number at the collector, the BTH's destination; 24 bits. Determines the UDP source port.
    pub remote_qpn: u32,
    /// Queue pair number at the translator, the destination of ACKs and NAKs; 24 bits.
    pub local_qpn: u32,
    /// The translator's side.
    pub source: Endpoint,
    /// The collector's side.
    pub destination: Endpoint,
    /// IPv4 TOS byte.
    pub tos: u8,
    /// Atomics that may be in flight; 0 on UC.
    pub max_dest_rd_atomic: u32,
    /// Generation of the queue pair. A new generation means a new queue pair.
    pub generation: u64,
    /// Initial PSN when the entry is inserted or its queue pair replaced. Not compared: it moves with every
    /// frame.
    pub start_psn: u32,
    /// How the queue pair before this one ended, if the collector knows. Not compared.
    #[serde(default)]
    pub replaced: Option<EndedQueuePair>,
}

/// A queue pair at the collector that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedQueuePair {
    /// Its number; 24 bits.
    pub qpn: u32,
    /// Its expected PSN when it ended: everything before was executed, nothing from it on.
    pub expected_psn: u32,
}

/// A store and its region. Several collectors may share a store's keys: each then has an entry with its own
/// region, and all have the same id, name and layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Index of the collector that holds it, 0 for the first.
    #[serde(default)]
    pub collector: u8,
    /// Id, name and layout.
    pub spec: StoreSpec,
    /// The key buckets of this region, by copy. In a key-write store whose buckets are at several collectors, copy n of a key
    /// goes to the `n`-th of them, counted round; paths go to each, and counters to each in its lane: for them, buckets are by
    /// [lane](crate::layout::key_increment). With no buckets, nothing is reported to the region, but what is in flight to it is
    /// still acknowledged. Ignored for append stores: see [`Lists`].
    #[serde(default, skip_serializing_if = "Copies::is_whole_store")]
    pub buckets: Copies,
    /// Address of the region on the wire (iova), aligned to the region's length.
    pub address: u64,
    /// Bytes of the region, a power of two.
    pub length: u64,
    /// rkey of the region.
    pub rkey: Rkey,
    /// Generation of the region and its rkey: it changes when base or rkey does.
    pub generation: u64,
    /// Queue pair of its collector that carries its operations.
    pub queue_pair: Purpose,
}

/// An rkey. Anyone who has it can write to memory, so `Debug` does not print it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rkey(pub u32);

impl fmt::Debug for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rkey(redacted)")
    }
}

/// Append lists `first .. first + count` of a store, which only this translator writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lists {
    /// Store id.
    pub store: u16,
    /// Index of the collector that holds them, 0 for the first.
    #[serde(default)]
    pub collector: u8,
    /// First list.
    pub first: u32,
    /// Number of lists.
    pub count: u32,
    /// Newest sequence in each ring when the entry was made, as (list, sequence); other lists begin at 1. Not
    /// compared: it moves with every batch.
    pub positions: Vec<(u32, u32)>,
}

impl Lists {
    /// The numbers of the lists.
    pub fn list_numbers(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// The store for version-0 reports of a primitive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version0 {
    /// Primitive of the report.
    pub primitive: Primitive,
    /// Store id.
    pub store: u16,
}

/// A reporter's bit in the bitmap of a sketch-merge store. Other reporters get free bits as they appear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SketchReporter {
    /// Store id.
    pub store: u16,
    /// Reporter id.
    pub reporter: u16,
    /// Bit, 0 to 31.
    pub bit: u8,
}

/// The session with a collector that the program is for. It affects no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSession {
    /// Index of the collector.
    #[serde(default)]
    pub collector: u8,
    /// Its generation, which increases whenever the session's grants change.
    pub generation: u64,
}

impl DataPlaneEntry {
    /// The entry's key.
    pub fn entry_key(&self) -> EntryKey {
        match self {
            DataPlaneEntry::Service(_) => EntryKey::Service,
            DataPlaneEntry::Mode(_) => EntryKey::Mode,
            DataPlaneEntry::Flush(e) => EntryKey::Flush(e.primitive),
            DataPlaneEntry::QueuePair(e) => EntryKey::QueuePair(e.collector, e.purpose),
            DataPlaneEntry::Store(e) => EntryKey::Store(e.spec.id, e.collector),
            DataPlaneEntry::Lists(e) => EntryKey::Lists(e.store, e.first),
            DataPlaneEntry::Version0(e) => EntryKey::Version0(e.primitive),
            DataPlaneEntry::SketchReporter(e) => EntryKey::SketchReporter(e.store, e.reporter),
            DataPlaneEntry::Session(e) => EntryKey::Session(e.collector),
        }
    }

    /// Name of the entry's table.
    pub fn table_name(&self) -> &'static str {
        match self {
            DataPlaneEntry::Service(_) => "service",
            DataPlaneEntry::Mode(_) => "mode",
            DataPlaneEntry::Flush(_) => "flush",
            DataPlaneEntry::QueuePair(_) => "queue-pair",
            DataPlaneEntry::Store(_) => "store",
            DataPlaneEntry::Lists(_) => "lists",
            DataPlaneEntry::Version0(_) => "version0",
            DataPlaneEntry::SketchReporter(_) => "sketch-reporter",
            DataPlaneEntry::Session(_) => "session",
        }
    }
}

impl Program {
    /// Adds an entry, or replaces the one with the same key.
    pub fn set(&mut self, entry: DataPlaneEntry) {
        self.entries.insert(entry.entry_key(), entry);
    }

    /// Removes and returns an entry.
    pub fn remove(&mut self, key: &EntryKey) -> Option<DataPlaneEntry> {
        self.entries.remove(key)
    }

    /// The entry with a key.
    pub fn get(&self, key: &EntryKey) -> Option<&DataPlaneEntry> {
        self.entries.get(key)
    }

    /// All entries: service and mode first, then queue pairs, stores and entries that refer to them, sessions
    /// last.
    pub fn entries(&self) -> impl Iterator<Item = &DataPlaneEntry> {
        self.entries.values()
    }

    /// The store with an id, at the first collector that has a part of it.
    pub fn first_store_part(&self, id: u16) -> Option<&Store> {
        self.store_parts(id).next()
    }

    /// The parts of a store, by collector.
    pub fn store_parts(&self, id: u16) -> impl Iterator<Item = &Store> {
        let of_id = EntryKey::Store(id, 0)..=EntryKey::Store(id, u8::MAX);
        self.entries.range(of_id).filter_map(|(_, entry)| match entry {
            DataPlaneEntry::Store(store) => Some(store),
            _ => None,
        })
    }

    /// A collector's part of a store.
    pub fn store_part(&self, id: u16, collector: u8) -> Option<&Store> {
        match self.get(&EntryKey::Store(id, collector)) {
            Some(DataPlaneEntry::Store(store)) => Some(store),
            _ => None,
        }
    }

    /// The generation of the session with a collector; `None` if the program has no session.
    pub fn generation(&self, collector: u8) -> Option<u64> {
        match self.get(&EntryKey::Session(collector)) {
            Some(DataPlaneEntry::Session(session)) => Some(session.generation),
            _ => None,
        }
    }

    /// The program without these parts of stores and the entries that refer to them.
    fn without_stores(&self, is_one: impl Fn(&Store) -> bool) -> Program {
        let goes = |entry: &&DataPlaneEntry| {
            let store = match entry {
                DataPlaneEntry::Store(store) => return is_one(store),
                DataPlaneEntry::Lists(lists) => {
                    return self.store_part(lists.store, lists.collector).is_some_and(&is_one);
                }
                DataPlaneEntry::Version0(v0) => v0.store,
                DataPlaneEntry::SketchReporter(reporter) => reporter.store,
                DataPlaneEntry::Service(_)
                | DataPlaneEntry::Mode(_)
                | DataPlaneEntry::Flush(_)
                | DataPlaneEntry::QueuePair(_)
                | DataPlaneEntry::Session(_) => return false,
            };
            self.first_store_part(store).is_some() && self.store_parts(store).all(&is_one)
        };
        let stays = self.entries().filter(|entry| !goes(entry));
        Program { entries: stays.map(|entry| (entry.entry_key(), entry.clone())).collect() }
    }

    /// Whether the program is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl From<Vec<DataPlaneEntry>> for Program {
    fn from(entries: Vec<DataPlaneEntry>) -> Self {
        Program { entries: entries.into_iter().map(|e| (e.entry_key(), e)).collect() }
    }
}

impl From<Program> for Vec<DataPlaneEntry> {
    fn from(program: Program) -> Self {
        program.entries.into_values().collect()
    }
}
