//! Entries of the lists of `int-events`, in named columns.

use std::ops::ControlFlow;

use dta_export::directory;
use dta_export::fields::EventFields;
use dta_history::{Cell, EpochFlush, EpochTable, HistoryEntry as Row, HistoryError};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::Key;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry::{ENTRY_LEN, EVENT_HOPS, TelemetryEntry, Why, store};

use super::key_directory::{KnownKeys, id};
use super::typed::{FLOW, FLOW_LEN, flow_cells, name_cell};

/// Stands for a number that an event lacks.
const NONE: u32 = u32::MAX;

pub(super) fn is_event_store(spec: &StoreSpec) -> bool {
    let is_long = |entry_len: u8| usize::from(entry_len) >= ENTRY_LEN;
    matches!(spec.kind, StoreKind::Append { entry_len, .. } if spec.name == store::EVENTS && is_long(entry_len))
}

pub(super) fn row_columns() -> Vec<(String, Cell)> {
    let texts = ["kind", "why", "reason_source"].map(|name| (name, Cell::Text));
    let fixed = texts.into_iter().chain([("time", Cell::U64), ("key", Cell::U64)]);
    let flow = [("flow", Cell::U64)].into_iter().chain(FLOW);
    let numbers =
        ["switch", "port", "ingress_port", "queue", "old", "new", "reason", "occupancy", "latency", "looped"];
    let fixed = fixed.chain(flow).chain(numbers.map(|name| (name, Cell::U32)));
    let fixed = fixed.map(|(name, cell)| (name.to_owned(), cell));
    fixed.chain((0..EVENT_HOPS).map(|hop| (format!("switch_{hop}"), Cell::U32))).collect()
}

/// Writes a row for each entry in the history of the epoch of `flush`, except those that are not events.
pub(super) fn write_rows(
    history: &EpochTable,
    epoch: u64,
    known: &KnownKeys,
    flush: &mut EpochFlush<'_>,
) -> Result<(), HistoryError> {
    let mut pushed = Ok(());
    history.scan_entries(epoch, |entry| {
        if let Some(event) = TelemetryEntry::parse_bytes(entry.bytes) {
            pushed = flush.push(Row { bytes: &event_row(&event, known), ..entry });
        }
        if pushed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    pushed
}

fn event_row(event: &TelemetryEntry, known: &KnownKeys) -> Vec<u8> {
    let learned = |key: &Key| Some(known.get(&id(key))?.1);
    let of = EventFields::from_entry(event, |key| directory::of_itself(key).or_else(|| learned(key)));
    let number = |key: Option<Key>| key.map_or(0, |key| id(&key));
    let longs = [of.time.unwrap_or(0), number(of.key), number(of.flow.map(|flow| flow.to_key()))];
    let narrow = |number: Option<u64>| number.map(|number| u32::try_from(number).unwrap_or(NONE));
    let numbers = [
        of.place.switch,
        of.place.port,
        of.ingress_port,
        of.place.queue,
        narrow(of.old),
        narrow(of.new),
        of.reason.map(DropReason::number),
        of.occupancy,
        of.latency,
        of.looped.map(u32::from),
    ];
    let mut switches = [NONE; EVENT_HOPS];
    if let Some(path) = &of.path {
        switches.iter_mut().zip(path.stored_switches()).for_each(|(cell, switch)| *cell = *switch);
    }
    [
        &name_cell(of.kind.name())[..],
        &name_cell(of.why.map_or("", Why::name)),
        &name_cell(of.reason.map_or("", DropReason::source_name)),
        longs.map(u64::to_be_bytes).as_flattened(),
        &of.flow.map_or_else(|| vec![0; FLOW_LEN], |flow| flow_cells(&flow)),
        numbers.map(|number| number.unwrap_or(NONE).to_be_bytes()).as_flattened(),
        switches.map(u32::to_be_bytes).as_flattened(),
    ]
    .concat()
}
