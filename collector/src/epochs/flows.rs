//! What stores for INT held by flow: beside each history a table whose columns are the flow, and what its values mean.
//!
//! A slot says nothing of its key. Flows are known from the key directory (list 3 of the events), which is read on
//! whenever an epoch is written: those that were reported by then and are not forgotten are looked up in the epoch.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use dta_export::directory::Directory;
use dta_history::{Cell, Epoch, HistoryError, Table};
use dta_proto::crc;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::key_write::Policy;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry::{self, Entry, PATH_HOPS, PATH_LEN, VALUE_LEN, list, store};

use super::write::{WriteError, finish};
use crate::region::AccessError;
use crate::store::append::{ListError, Lists, ReadPosition, Start};
use crate::store::{Store, Stores, key_increment, key_write, postcarding};

/// Flows that are looked up together.
const TOGETHER: usize = 4096;
/// Batches of the key directory that are read at a time.
const BATCHES: u64 = 1024;

/// The columns of the flow.
const FLOW: [(&str, Cell); 5] = [
    ("src", Cell::Address),
    ("dst", Cell::Address),
    ("sport", Cell::U16),
    ("dport", Cell::U16),
    ("protocol", Cell::U16),
];

/// Flows by the number that they have in tables.
pub(super) type ById = BTreeMap<u64, (Key, Flow)>;

/// The flows of the key directory, as far as it was read.
#[derive(Default)]
pub(super) struct KnownFlows {
    directory: Directory,
    /// Up to where, in which generation of the events' memory.
    read: Option<(u64, ReadPosition)>,
}

impl KnownFlows {
    /// Reads what is new. Without a key directory, or if it cannot be read, that is nothing.
    pub(super) fn read(&mut self, stores: &Stores) -> ById {
        let events = stores.get(store::EVENTS).ok();
        let lists = events.as_deref().and_then(|events| Some((events.generation, Lists::new(events)?)));
        let has_keys = |lists: &Lists<'_>| lists.count() > list::KEYS;
        if let Some((generation, lists)) = lists.filter(|(_, lists)| has_keys(lists))
            && let Err(error) = self.learn(generation, lists)
        {
            tracing::warn!(%error, "the key directory could not be read");
        }
        let mut flows = ById::new();
        // A look at a key keeps it from being forgotten: the last one to be reported comes last.
        let keys: Vec<Key> = self.directory.keys().collect();
        for key in keys.iter().rev() {
            if let Some(flow) = self.directory.meaning(key).and_then(|meaning| meaning.flow()) {
                flows.insert(id(&flow.key()), (flow.key(), flow));
            }
        }
        flows
    }

    fn learn(&mut self, generation: u64, lists: Lists<'_>) -> Result<(), ListError> {
        let position = match self.read {
            Some((same, position)) if same == generation => position,
            _ => lists.reader(list::KEYS, Start::Oldest)?.place(),
        };
        let (mut reader, mut batches) = (lists.resume(position), 0);
        loop {
            let progress = reader.read(BATCHES, Instant::now(), |_, entries| {
                let entries = entries.chunks_exact(lists.entry_len()).filter_map(Entry::parse);
                entries.for_each(|entry| self.directory.take(&entry));
            })?;
            batches += progress.batches;
            if progress.batches < BATCHES || batches >= lists.ring() {
                break;
            }
        }
        self.read = Some((generation, reader.place()));
        Ok(())
    }
}

/// The number of a flow: 63 bits of a hash of its key.
pub(super) fn id(key: &Key) -> u64 {
    (u64::from(crc::crc32(&key.0)) << 32 | u64::from(crc::crc32c(&key.0))) >> 1
}

/// A table of flows.
pub(super) struct Flows {
    pub(super) table: Table,
    of: Held,
}

/// What a store holds of a flow.
#[derive(Clone, Copy)]
enum Held {
    Path,
    Latency,
    Counts,
    Postcards(u8),
}

impl Held {
    fn of(spec: &StoreSpec) -> Option<Held> {
        match (spec.name.as_str(), &spec.kind) {
            (store::PATHS, StoreKind::KeyWrite { value_len, .. }) if usize::from(*value_len) >= PATH_LEN => {
                Some(Held::Path)
            }
            (store::VALUES, StoreKind::KeyWrite { value_len, .. })
                if usize::from(*value_len) >= VALUE_LEN =>
            {
                Some(Held::Latency)
            }
            (store::COUNTERS, StoreKind::KeyIncrement { .. }) => Some(Held::Counts),
            (store::POSTCARDS, StoreKind::Postcarding { hops, .. }) => Some(Held::Postcards(*hops)),
            _ => None,
        }
    }

    /// The columns behind those of the flow.
    fn columns(self) -> Vec<(String, Cell)> {
        let named = |name: &str, cell| (name.to_owned(), cell);
        let numbered =
            |name: &str, count: usize| (0..count).map(|n| (format!("{name}_{n}"), Cell::U32)).collect();
        match self {
            Held::Path => {
                let switches: Vec<_> = numbered("switch", PATH_HOPS);
                [named("hops", Cell::U16), named("looped", Cell::U16)].into_iter().chain(switches).collect()
            }
            Held::Latency => vec![named("latency", Cell::U32), named("time", Cell::U64)],
            Held::Counts => ["reports", "packets", "bytes"].map(|name| named(name, Cell::U64)).into(),
            Held::Postcards(hops) => {
                let values: Vec<_> = numbered("hop", hops.into());
                [named("bitmap", Cell::U16), named("length", Cell::U16)].into_iter().chain(values).collect()
            }
        }
    }

    /// The bytes of these columns for each key; `None` where the store has nothing of it.
    fn look_up(self, store: &Store, flows: &[(Key, Flow)]) -> Result<Vec<Option<Vec<u8>>>, AccessError> {
        let keys: Vec<Key> = flows.iter().map(|(key, _)| *key).collect();
        let of_values = |with: fn(&[u8]) -> Option<Vec<u8>>| {
            let reader = key_write::Reader::new(store).expect("a key-write store");
            let mut answers = vec![key_write::Answer::default(); keys.len()];
            let mut values = vec![0; keys.len() * reader.value_len()];
            reader.query(&keys, Policy::First, &mut answers, &mut values)?;
            let values = answers.iter().zip(values.chunks_exact(reader.value_len()));
            Ok(values.map(|(answer, value)| with(value).filter(|_| answer.found)).collect())
        };
        match self {
            Held::Path => of_values(|value| {
                let path = telemetry::Path::parse(value)?;
                let fixed = [path.hops.into(), u16::from(path.looped)].map(u16::to_be_bytes);
                let switches = path.switches.map(u32::to_be_bytes);
                Some([fixed.as_flattened(), switches.as_flattened()].concat())
            }),
            Held::Latency => of_values(|value| Some(telemetry::Value::parse(value)?.bytes().to_vec())),
            Held::Counts => {
                let of_flow = |(key, flow): &(Key, Flow)| {
                    [*key, telemetry::packets_key(flow), telemetry::bytes_key(flow)]
                };
                let keys: Vec<Key> = flows.iter().flat_map(of_flow).collect();
                let mut counts = vec![0; keys.len()];
                let reader = key_increment::Reader::new(store).expect("a key-increment store");
                reader.query(&keys, &mut counts)?;
                let row = |counts: &[u64; 3]| {
                    (*counts != [0; 3]).then(|| counts.map(u64::to_be_bytes).as_flattened().to_vec())
                };
                Ok(counts.as_chunks().0.iter().map(row).collect())
            }
            Held::Postcards(hops) => {
                let reader = postcarding::Reader::new(store).expect("a postcarding store");
                let mut answers = vec![postcarding::Answer::default(); keys.len()];
                reader.query(&keys, &mut answers)?;
                let row = |answer: postcarding::Answer| {
                    let path = answer.path?;
                    let values = (0..hops).flat_map(|hop| path.hop(hop).unwrap_or_default().to_be_bytes());
                    let fixed = [path.bitmap, path.length.into()].map(u16::to_be_bytes);
                    Some(fixed.as_flattened().iter().copied().chain(values).collect())
                };
                Ok(answers.into_iter().map(row).collect())
            }
        }
    }
}

impl Flows {
    /// Opens the table of a store for INT; `None` of any other.
    pub(super) fn open(dir: &Path, spec: &StoreSpec) -> Result<Option<Flows>, HistoryError> {
        let Some(of) = Held::of(spec) else { return Ok(None) };
        let own = of.columns();
        let columns = FLOW.into_iter().chain(own.iter().map(|(name, cell)| (name.as_str(), *cell)));
        let columns: Vec<_> = columns.collect();
        let table = Table::open_rows(dir, &format!("{}.flows", spec.name), spec, "flow", &columns)?;
        Ok(Some(Flows { table, of }))
    }

    /// Writes what `store` held of flows in an epoch, under its number in the history, unless that is there.
    pub(super) fn write(&self, store: &Store, epoch: &Epoch, known: &ById) -> Result<(), WriteError> {
        let is_it = |kept: &Epoch| (kept.number, kept.opened) == (epoch.number, epoch.opened);
        if self.table.epochs()?.iter().any(|kept| is_it(&kept.epoch)) {
            return Ok(());
        }
        let mut flush = self.table.begin(epoch.number)?;
        let (ids, flows): (Vec<u64>, Vec<(Key, Flow)>) = known.iter().map(|(id, flow)| (*id, *flow)).unzip();
        for (ids, flows) in ids.chunks(TOGETHER).zip(flows.chunks(TOGETHER)) {
            for ((id, (_, flow)), held) in ids.iter().zip(flows).zip(self.of.look_up(store, flows)?) {
                if let Some(held) = held {
                    flush.put(*id, &row(flow, &held))?;
                }
            }
        }
        // What was lost is said once, by the history.
        let epoch = Epoch { waterfall: serde_json::Value::Null, ..epoch.clone() };
        finish(&self.table, flush, &epoch)
    }
}

/// The columns of the flow, and those behind them.
pub(super) fn row(flow: &Flow, held: &[u8]) -> Vec<u8> {
    let address = |address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let numbers = [flow.sport, flow.dport, flow.proto.into()].map(u16::to_be_bytes);
    let mut row = [&address(flow.src)[..], &address(flow.dst), numbers.as_flattened(), held].concat();
    row.resize(row.len().next_multiple_of(8), 0);
    row
}
