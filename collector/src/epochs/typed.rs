//! What stores for INT held, in named columns: tables beside each history, for known keys and for events.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use dta_export::directory::Meaning;
use dta_history::{Cell, EpochFlush, EpochTable, HistoryEpoch, HistoryError};
use dta_memory::reader::{key_increment, key_write, postcarding};
use dta_memory::region::AccessError;
use dta_memory::store::Store;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::key_write::Choice;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry::{self, Metric, PATH_HOPS, PATH_LEN, VALUE_LEN, store};

use super::events;
use super::key_directory::{KnownKeys, id};
use super::write::{WriteError, finish_epoch};

/// How many keys are looked up together.
const TOGETHER: usize = 4096;

/// The columns of a flow, and their length in bytes.
pub(super) const FLOW_LEN: usize = 16 + 16 + 2 + 2 + 2;
pub(super) const FLOW: [(&str, Cell); 5] = [
    ("src", Cell::Address),
    ("dst", Cell::Address),
    ("sport", Cell::U16),
    ("dport", Cell::U16),
    ("protocol", Cell::U16),
];

/// A table with what a store held.
pub(super) struct Typed {
    pub(super) table: EpochTable,
    of: RowSubject,
}

enum RowSubject {
    Keys(KeyRecordKind),
    Events,
}

/// What a store holds for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyRecordKind {
    Path,
    Latency,
    Counts,
    Postcards(u8),
    /// For a hop of a flow, a queue or a port.
    Metric,
    /// For a switch or a flow.
    Drops,
}

/// A key on its way into a row.
struct PendingKeyRow {
    id: u64,
    key: Key,
    meaning: Meaning,
    /// The columns that say what the key stands for.
    says: Vec<u8>,
}

impl KeyRecordKind {
    /// What a store holds; empty if it is not a store for INT.
    fn kinds_in_store(spec: &StoreSpec) -> Vec<KeyRecordKind> {
        let is_long = |value_len: u8, needed| usize::from(value_len) >= needed;
        match (spec.name.as_str(), &spec.kind) {
            (store::PATHS, StoreKind::KeyWrite { value_len, .. }) if is_long(*value_len, PATH_LEN) => {
                vec![KeyRecordKind::Path]
            }
            (store::VALUES, StoreKind::KeyWrite { value_len, .. }) if is_long(*value_len, VALUE_LEN) => {
                vec![KeyRecordKind::Latency, KeyRecordKind::Metric]
            }
            (store::COUNTERS, StoreKind::KeyIncrement { .. }) => {
                vec![KeyRecordKind::Counts, KeyRecordKind::Drops]
            }
            (store::POSTCARDS, StoreKind::Postcarding { hops, .. }) => vec![KeyRecordKind::Postcards(*hops)],
            _ => Vec::new(),
        }
    }

    /// The suffix of the table's name, and the name of the column that numbers its rows.
    fn table_names(self) -> (&'static str, &'static str) {
        match self {
            KeyRecordKind::Path
            | KeyRecordKind::Latency
            | KeyRecordKind::Counts
            | KeyRecordKind::Postcards(_) => ("flows", "flow"),
            KeyRecordKind::Metric => ("metrics", "key"),
            KeyRecordKind::Drops => ("drops", "key"),
        }
    }

    /// What a key stands for ([`KeyRecordKind::key_cells`]), then what it had ([`KeyRecordKind::look_up_keys`]).
    fn row_columns(self) -> Vec<(String, Cell)> {
        let of_key: &[_] = match self {
            KeyRecordKind::Path
            | KeyRecordKind::Latency
            | KeyRecordKind::Counts
            | KeyRecordKind::Postcards(_) => &FLOW,
            KeyRecordKind::Metric => &[
                ("metric", Cell::Text),
                ("flow", Cell::U64),
                ("switch", Cell::U32),
                ("port", Cell::U32),
                ("queue", Cell::U32),
            ],
            KeyRecordKind::Drops => &[
                ("flow", Cell::U64),
                ("switch", Cell::U32),
                ("reason", Cell::U32),
                ("reason_source", Cell::Text),
            ],
        };
        let (held, (numbered, count)): (&[_], (&str, usize)) = match self {
            KeyRecordKind::Path => (&[("hops", Cell::U16), ("looped", Cell::U16)], ("switch", PATH_HOPS)),
            KeyRecordKind::Latency => (&[("latency", Cell::U32), ("time", Cell::U64)], ("", 0)),
            KeyRecordKind::Counts => {
                (&[("reports", Cell::U64), ("packets", Cell::U64), ("bytes", Cell::U64)], ("", 0))
            }
            KeyRecordKind::Postcards(hops) => {
                (&[("bitmap", Cell::U16), ("length", Cell::U16)], ("hop", hops.into()))
            }
            KeyRecordKind::Metric => (&[("value", Cell::U32), ("time", Cell::U64)], ("", 0)),
            KeyRecordKind::Drops => (&[("drops", Cell::U64)], ("", 0)),
        };
        let fixed = of_key.iter().chain(held).map(|(name, cell)| ((*name).to_owned(), *cell));
        fixed.chain((0..count).map(|n| (format!("{numbered}_{n}"), Cell::U32))).collect()
    }

    /// What a key stands for; `None` if the table has no keys of its kind. Numbers that a key lacks are 2^32 - 1.
    fn key_cells(self, key: &Key, meaning: &Meaning) -> Option<Vec<u8>> {
        let numbers = |flow: Option<Key>, numbers: &[Option<u32>]| {
            let flow = flow.map_or(0, |flow| id(&flow)).to_be_bytes();
            let numbers = numbers.iter().flat_map(|number| number.unwrap_or(u32::MAX).to_be_bytes());
            flow.into_iter().chain(numbers).collect::<Vec<u8>>()
        };
        match self {
            KeyRecordKind::Path
            | KeyRecordKind::Latency
            | KeyRecordKind::Counts
            | KeyRecordKind::Postcards(_) => match meaning {
                Meaning::Flow(flow) => Some(flow_cells(flow)),
                _ => None,
            },
            KeyRecordKind::Metric => {
                let place = match *meaning {
                    Meaning::Hop { flow_key, switch, .. } => {
                        numbers(Some(flow_key), &[Some(switch), None, None])
                    }
                    Meaning::Queue { switch, port, queue } => numbers(None, &[Some(switch), port, queue]),
                    Meaning::Port { switch, port } => numbers(None, &[Some(switch), port, None]),
                    Meaning::Flow(_) | Meaning::FlowDrops { .. } | Meaning::SwitchDrops { .. } => {
                        return None;
                    }
                };
                Some([&name_cell(Metric::from_key(key)?.name())[..], &place].concat())
            }
            KeyRecordKind::Drops => {
                let (place, reason) = match *meaning {
                    Meaning::FlowDrops { flow_key, reason, .. } => (numbers(Some(flow_key), &[None]), reason),
                    Meaning::SwitchDrops { switch, reason } => (numbers(None, &[Some(switch)]), reason),
                    _ => return None,
                };
                let source = name_cell(reason.source_name());
                Some([&place[..], &reason.number().to_be_bytes(), &source].concat())
            }
        }
    }

    /// What the store has for each key; `None` if nothing.
    fn look_up_keys(
        self,
        store: &Store,
        asked: &[PendingKeyRow],
    ) -> Result<Vec<Option<Vec<u8>>>, AccessError> {
        let keys = || asked.iter().map(|asked| asked.key).collect::<Vec<Key>>();
        let values = |with: fn(&[u8]) -> Option<Vec<u8>>| {
            let reader = key_write::KeyWriteReader::new(store).expect("a key-write store");
            let mut answers = vec![key_write::KeyWriteReading::default(); asked.len()];
            let mut values = vec![0; asked.len() * reader.value_len()];
            reader.query_keys(&keys(), Choice::First, &mut answers, &mut values)?;
            let values = answers.iter().zip(values.chunks_exact(reader.value_len()));
            Ok(values.map(|(answer, value)| with(value).filter(|_| answer.found)).collect())
        };
        // Takes one or more keys for each key asked about.
        let counts = |keys: Vec<Key>| {
            let reader = key_increment::KeyIncrementReader::new(store).expect("a key-increment store");
            let mut of_lanes = vec![0; keys.len() * reader.lane_count()];
            reader.query_keys(&keys, &mut of_lanes)?;
            let counts: Vec<u64> =
                of_lanes.chunks(reader.lane_count()).map(key_increment::total_of_lanes).collect();
            let row = |counts: &[u64]| {
                let is_any = counts.iter().any(|count| *count != 0);
                is_any.then(|| counts.iter().flat_map(|count| count.to_be_bytes()).collect())
            };
            Ok(counts.chunks_exact(keys.len() / asked.len()).map(row).collect())
        };
        match self {
            KeyRecordKind::Path => values(|value| {
                let path = telemetry::SwitchPath::parse_bytes(value)?;
                let fixed = [path.hops.into(), u16::from(path.looped)].map(u16::to_be_bytes);
                let switches = path.switches.map(u32::to_be_bytes);
                Some([fixed.as_flattened(), switches.as_flattened()].concat())
            }),
            KeyRecordKind::Latency | KeyRecordKind::Metric => {
                values(|value| Some(telemetry::TimedValue::parse_bytes(value)?.to_bytes().to_vec()))
            }
            KeyRecordKind::Counts => {
                let flows = asked.iter().filter_map(|asked| asked.meaning.known_flow());
                let of_flow =
                    |flow: Flow| [flow.to_key(), telemetry::packets_key(&flow), telemetry::bytes_key(&flow)];
                counts(flows.flat_map(of_flow).collect())
            }
            KeyRecordKind::Drops => counts(keys()),
            KeyRecordKind::Postcards(hops) => {
                let reader = postcarding::PostcardingReader::new(store).expect("a postcarding store");
                let mut answers = vec![postcarding::PostcardingReading::default(); asked.len()];
                reader.query_keys(&keys(), &mut answers)?;
                let row = |answer: postcarding::PostcardingReading| {
                    let path = answer.path?;
                    let values =
                        (0..hops).flat_map(|hop| path.hop_value(hop).unwrap_or_default().to_be_bytes());
                    let fixed = [path.bitmap, path.length.into()].map(u16::to_be_bytes);
                    Some(fixed.as_flattened().iter().copied().chain(values).collect())
                };
                Ok(answers.into_iter().map(row).collect())
            }
        }
    }

    /// Writes a row for each known key that the store has something for.
    fn write_rows(
        self,
        store: &Store,
        known: &KnownKeys,
        flush: &mut EpochFlush<'_>,
    ) -> Result<(), WriteError> {
        let mut keys = known.iter().filter_map(|(id, (key, meaning))| {
            Some(PendingKeyRow { id: *id, key: *key, meaning: *meaning, says: self.key_cells(key, meaning)? })
        });
        loop {
            let asked: Vec<PendingKeyRow> = keys.by_ref().take(TOGETHER).collect();
            if asked.is_empty() {
                return Ok(());
            }
            for (asked, held) in asked.iter().zip(self.look_up_keys(store, &asked)?) {
                if let Some(held) = held {
                    flush.write_slots(asked.id, &join_cells(&asked.says, &held))?;
                }
            }
        }
    }
}

impl Typed {
    /// Opens the tables of a store for INT; other stores have none. Files within spans of this length are merged.
    pub(super) fn open(dir: &Path, spec: &StoreSpec, span: Duration) -> Result<Vec<Typed>, HistoryError> {
        let name = |of: &str| format!("{}.{of}", spec.name);
        if events::is_event_store(spec) {
            let columns = events::row_columns();
            let columns: Vec<_> = columns.iter().map(|(name, cell)| (name.as_str(), *cell)).collect();
            let table = EpochTable::open_entries(dir, &name("events"), spec, &columns)?;
            let table = table.with_unchanged_epochs(span);
            return Ok(vec![Typed { table, of: RowSubject::Events }]);
        }
        let open = |of: KeyRecordKind| {
            let ((kind, id), columns) = (of.table_names(), of.row_columns());
            let columns: Vec<_> = columns.iter().map(|(name, cell)| (name.as_str(), *cell)).collect();
            let table = EpochTable::open_rows(dir, &name(kind), spec, id, &columns)?;
            let table = table.with_unchanged_epochs(span);
            Ok(Typed { table, of: RowSubject::Keys(of) })
        };
        KeyRecordKind::kinds_in_store(spec).into_iter().map(open).collect()
    }

    /// Writes what a store held in an epoch of its history, under the same number, unless done already. `store` has its memory.
    pub(super) fn write_epoch(
        &self,
        history: &EpochTable,
        store: &Store,
        epoch: &HistoryEpoch,
        known: &KnownKeys,
    ) -> Result<(), WriteError> {
        let is_it = |kept: &HistoryEpoch| (kept.number, kept.opened) == (epoch.number, epoch.opened);
        if self.table.kept_epochs()?.iter().any(|kept| is_it(&kept.epoch)) {
            return Ok(());
        }
        let mut flush = self.table.begin_epoch(epoch.number)?;
        match self.of {
            RowSubject::Keys(held) => held.write_rows(store, known, &mut flush)?,
            RowSubject::Events => events::write_rows(history, epoch.number, known, &mut flush)?,
        }
        // Losses are recorded once, by the history.
        let epoch = HistoryEpoch { waterfall: serde_json::Value::Null, ..epoch.clone() };
        finish_epoch(&self.table, flush, &epoch)
    }
}

pub(super) fn flow_cells(flow: &Flow) -> Vec<u8> {
    let address = |address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let numbers = [flow.sport, flow.dport, flow.proto.into()].map(u16::to_be_bytes);
    [&address(flow.src)[..], &address(flow.dst), numbers.as_flattened()].concat()
}

pub(super) fn name_cell(name: &str) -> [u8; 16] {
    let mut cell = [0; 16];
    cell[..name.len()].copy_from_slice(name.as_bytes());
    cell
}

pub(super) fn join_cells(says: &[u8], held: &[u8]) -> Vec<u8> {
    let mut row = [says, held].concat();
    row.resize(row.len().next_multiple_of(8), 0);
    row
}
