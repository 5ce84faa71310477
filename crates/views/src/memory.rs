//! A store's memory: how full it is from beginning to end, and elements with their bytes.

use dta_files::moment::now_ns;
use dta_proto::control::{MAX_READ, ReadMemoryRequest};
use dta_proto::flow_record::{self, FlowRecord};
use dta_proto::hex_groups;
use dta_proto::layout::append::{self, RingBatch};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry::{self, TelemetryEntry, TimedValue, VALUE_LEN, age_in_seconds, is_since_1970};
use dta_rpc::{Ask, ClientError};
use serde::Serialize;

use crate::element::describe_element;

/// Most bytes that a map reads; in larger stores it reads the beginning of each cell.
const MAP_BYTES: u64 = 4 << 20;

/// A store's elements, counted in cells of equal size from the first to the last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryMap {
    pub store: String,
    pub primitive: &'static str,
    pub generation: u64,
    /// Bytes of an element: a slot, a row, a batch or a column.
    pub element_bytes: u64,
    pub elements: u64,
    /// For lists: elements in each list.
    pub ring: Option<u64>,
    pub cells: Vec<MemoryCell>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryCell {
    /// The first element.
    pub first: u64,
    pub count: u64,
    /// How many of these were read: all, or the first ones of a large cell.
    pub read: u64,
    /// How many of those hold something.
    pub used: u64,
    /// The age of the newest one with a known time; `None` = there is none.
    pub age_seconds: Option<f64>,
}

/// Some elements of a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryElements {
    pub store: String,
    pub generation: u64,
    pub element_bytes: u64,
    pub elements: u64,
    pub rows: Vec<ElementRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ElementRow {
    pub index: u64,
    /// In bytes from the store's beginning.
    pub offset: u64,
    pub hex: String,
    /// What it holds, in words. Most slots do not contain their key, so this is not verified.
    pub content: String,
}

/// How full a store is, in at most `most` cells.
pub async fn map_memory(ask: &dyn Ask, spec: &StoreSpec, most: u64) -> Result<MemoryMap, ClientError> {
    let (element_bytes, elements) = (spec.element_len(), spec.element_count());
    let per_cell = elements.div_ceil(most.max(1)).max(1);
    let cells = elements.div_ceil(per_cell);
    let affordable = (MAP_BYTES / element_bytes / cells.max(1)).max(1);
    let mut map = MemoryMap {
        store: spec.name.clone(),
        primitive: spec.primitive(),
        generation: 0,
        element_bytes,
        elements,
        ring: match spec.kind {
            StoreKind::Append { ring, .. } => Some(ring),
            _ => None,
        },
        cells: Vec::with_capacity(cells as usize),
    };
    for first in (0..elements).step_by(per_cell as usize) {
        let count = per_cell.min(elements - first);
        let read = count.min(affordable);
        let (generation, bytes) = read_elements(ask, spec, first, read).await?;
        map.generation = generation;
        let used = bytes.chunks(element_bytes as usize).filter(|one| one.iter().any(|b| *b != 0)).count();
        let times = (first..).zip(bytes.chunks(element_bytes as usize));
        let newest = times.filter_map(|(index, element)| newest_time(spec, index, element)).max();
        let age_seconds = newest.and_then(|time| age_in_seconds(time, now_ns()));
        map.cells.push(MemoryCell { first, count, read, used: used as u64, age_seconds });
    }
    Ok(map)
}

/// When the contents of an element were reported, in nanoseconds since 1970: INT values, events and flow records have
/// times. A slot's checksum is not verified, so a time in the future is ignored.
fn newest_time(spec: &StoreSpec, index: u64, element: &[u8]) -> Option<u64> {
    let is_past = |time: &u64| is_since_1970(*time) && *time <= now_ns();
    match spec.kind {
        StoreKind::KeyWrite { value_len, .. } if usize::from(value_len) == VALUE_LEN => {
            let value = element.get(element.len().checked_sub(VALUE_LEN)?..)?;
            Some(TimedValue::parse_bytes(value)?.time).filter(is_past)
        }
        StoreKind::Append { ring, entry_len, .. } => {
            let list = u32::try_from(index / ring).ok()?;
            let RingBatch::Valid { entries, .. } = append::decode_batch(element, list, entry_len) else {
                return None;
            };
            let entries = entries.chunks_exact(usize::from(entry_len).max(1));
            let time = |entry: &[u8]| match usize::from(entry_len) {
                telemetry::ENTRY_LEN => TelemetryEntry::parse_bytes(entry)?.event_time(),
                flow_record::ENTRY_LEN => Some(FlowRecord::from_entry(entry.try_into().ok()?).received),
                _ => None,
            };
            entries.filter_map(time).filter(is_past).max()
        }
        _ => None,
    }
}

/// Elements from `first` on, as far as the store goes.
pub async fn fetch_elements(
    ask: &dyn Ask,
    spec: &StoreSpec,
    first: u64,
    count: u64,
) -> Result<MemoryElements, ClientError> {
    let (element_bytes, elements) = (spec.element_len(), spec.element_count());
    let count = count.min(elements.saturating_sub(first));
    let (generation, bytes) = read_elements(ask, spec, first, count).await?;
    let row = |(index, bytes): (u64, &[u8])| ElementRow {
        index,
        offset: index * element_bytes,
        hex: hex_groups(bytes),
        content: describe_element(spec, index, bytes),
    };
    let rows = (first..).zip(bytes.chunks(element_bytes as usize)).map(row).collect();
    Ok(MemoryElements { store: spec.name.clone(), generation, element_bytes, elements, rows })
}

/// The generation of the memory, and the bytes.
async fn read_elements(
    ask: &dyn Ask,
    spec: &StoreSpec,
    first: u64,
    count: u64,
) -> Result<(u64, Vec<u8>), ClientError> {
    let (begin, end) = (first * spec.element_len(), (first + count) * spec.element_len());
    let (mut generation, mut bytes) = (0, Vec::with_capacity((end - begin) as usize));
    for offset in (begin..end).step_by(MAX_READ as usize) {
        let length = (end - offset).min(MAX_READ.into()) as u32;
        let request = ReadMemoryRequest { store: spec.name.clone(), offset, length };
        let answer = ask.read_memory(request).await?;
        generation = answer.generation;
        bytes.extend(answer.data);
    }
    Ok((generation, bytes))
}
