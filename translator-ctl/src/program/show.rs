//! Displays programs and differences as tables or JSON. rkeys are left out unless requested.

use dta_cli::table::TextTable;
use serde_json::{Value, json};

use dta_proto::buckets::Copies;
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Program};

const REDACTED: &str = "redacted";

/// The program as a JSON array of entries.
pub fn program_json(program: &Program, show_secrets: bool) -> Value {
    let mut value = json!(program);
    redact_rkeys(&mut value, show_secrets);
    value
}

/// A difference as a JSON array of changes.
pub fn changes_json(changes: &[DataPlaneChange], show_secrets: bool) -> Value {
    let mut value = json!(changes);
    redact_rkeys(&mut value, show_secrets);
    value
}

fn redact_rkeys(value: &mut Value, show_secrets: bool) {
    if show_secrets {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, inner) in map.iter_mut() {
                if name == "rkey" {
                    *inner = Value::String(REDACTED.into());
                } else {
                    redact_rkeys(inner, false);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact_rkeys(item, false)),
        _ => {}
    }
}

/// The program as a table: one line per entry.
pub fn program_table(program: &Program, show_secrets: bool) -> String {
    let mut table = TextTable::new(&["table", "key", "holds"], &[]);
    for entry in program.entries() {
        let (key, holds) = describe_entry(entry, show_secrets);
        table.add_row([entry.table_name().to_string(), key, holds]);
    }
    table.to_string()
}

/// A difference as a table; a sentence if there is none.
pub fn changes_table(changes: &[DataPlaneChange], show_secrets: bool) -> String {
    if changes.is_empty() {
        return "nothing to change: the switch holds what it should".into();
    }
    let mut table = TextTable::new(&["", "table", "key", "holds"], &[]);
    for change in changes {
        let mut row = |sign: &str, entry: &DataPlaneEntry| {
            let (key, holds) = describe_entry(entry, show_secrets);
            table.add_row([sign.to_string(), entry.table_name().to_string(), key, holds]);
        };
        match change {
            DataPlaneChange::Insert { entry } => row("+", entry),
            DataPlaneChange::Delete { entry } => row("-", entry),
            DataPlaneChange::Modify { from, to } => {
                row("-", from);
                row("+", to);
            }
            DataPlaneChange::Forget { entry } => {
                let (key, _) = describe_entry(entry, show_secrets);
                let what = "what was gathered for it is discarded: memory may be newer";
                table.add_row(["!", entry.table_name(), &key, what]);
            }
        }
    }
    table.to_string()
}

/// Names any collector but the first: most translators have only one.
fn at_collector(index: u8) -> String {
    if index == 0 { String::new() } else { format!(" at collector {index}") }
}

fn of_buckets(buckets: Copies) -> String {
    if buckets.is_whole_store() { String::new() } else { format!(", buckets {buckets}") }
}

fn describe_entry(entry: &DataPlaneEntry, show_secrets: bool) -> (String, String) {
    match entry {
        DataPlaneEntry::Service(e) => {
            (String::new(), format!("reports to {} UDP port {}", e.address, e.port))
        }
        DataPlaneEntry::Mode(e) => {
            (String::new(), if e.reference { "reference: as a switch does it" } else { "normal" }.into())
        }
        DataPlaneEntry::Flush(e) => (
            e.primitive.to_string(),
            if e.after_ms == 0 { "never by time".into() } else { format!("after {} ms", e.after_ms) },
        ),
        DataPlaneEntry::QueuePair(e) => (
            format!("{}{}", e.purpose, at_collector(e.collector)),
            format!(
                "{} to queue pair {:#08x} at {} ({}) port {}, from {:#08x} at {} ({}), TOS {}, start PSN {}, generation {}",
                e.transport.to_string().to_uppercase(),
                e.remote_qpn,
                e.destination.ip,
                e.destination.mac,
                e.destination.port,
                e.local_qpn,
                e.source.ip,
                e.source.mac,
                e.tos,
                e.start_psn,
                e.generation
            ),
        ),
        DataPlaneEntry::Store(e) => {
            let rkey = if show_secrets { format!("{:#010x}", e.rkey.0) } else { REDACTED.into() };
            (
                e.spec.id.to_string(),
                format!(
                    "{} ({}){}{}, {} elements of {} B at {:#x}, {} B, rkey {rkey}, generation {}, by the {} queue pair",
                    e.spec.name,
                    e.spec.primitive(),
                    at_collector(e.collector),
                    of_buckets(e.buckets),
                    e.spec.element_count(),
                    e.spec.element_len(),
                    e.address,
                    e.length,
                    e.generation,
                    e.queue_pair
                ),
            )
        }
        DataPlaneEntry::Lists(e) => (
            format!("{} {}", e.store, e.first),
            format!(
                "lists {} to {} of store {}{}",
                e.first,
                u64::from(e.first) + u64::from(e.count) - 1,
                e.store,
                at_collector(e.collector)
            ),
        ),
        DataPlaneEntry::Version0(e) => (e.primitive.to_string(), format!("store {}", e.store)),
        DataPlaneEntry::Session(e) => (String::new(), format!("generation {}", e.generation)),
        DataPlaneEntry::SketchReporter(e) => {
            (format!("{} {}", e.store, e.reporter), format!("bit {} of store {}", e.bit, e.store))
        }
    }
}
