//! Displays programs and differences as tables or JSON. rkeys are left out unless requested.

use dta_cli::table::Table;
use serde_json::{Value, json};

use dta_proto::buckets::Copies;
use dta_proto::program::{Change, Entry, Program};

const REDACTED: &str = "redacted";

/// The program as a JSON array of entries.
pub fn program_json(program: &Program, show_secrets: bool) -> Value {
    let mut value = json!(program);
    redact(&mut value, show_secrets);
    value
}

/// A difference as a JSON array of changes.
pub fn changes_json(changes: &[Change], show_secrets: bool) -> Value {
    let mut value = json!(changes);
    redact(&mut value, show_secrets);
    value
}

fn redact(value: &mut Value, show_secrets: bool) {
    if show_secrets {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, inner) in map.iter_mut() {
                if name == "rkey" {
                    *inner = Value::String(REDACTED.into());
                } else {
                    redact(inner, false);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, false)),
        _ => {}
    }
}

/// The program as a table: one line per entry.
pub fn program_table(program: &Program, show_secrets: bool) -> String {
    let mut table = Table::new(&["table", "key", "holds"], &[]);
    for entry in program.entries() {
        let (key, holds) = describe(entry, show_secrets);
        table.row([entry.table().to_string(), key, holds]);
    }
    table.to_string()
}

/// A difference as a table; a sentence if there is none.
pub fn changes_table(changes: &[Change], show_secrets: bool) -> String {
    if changes.is_empty() {
        return "nothing to change: the switch holds what it should".into();
    }
    let mut table = Table::new(&["", "table", "key", "holds"], &[]);
    for change in changes {
        let mut row = |sign: &str, entry: &Entry| {
            let (key, holds) = describe(entry, show_secrets);
            table.row([sign.to_string(), entry.table().to_string(), key, holds]);
        };
        match change {
            Change::Insert { entry } => row("+", entry),
            Change::Delete { entry } => row("-", entry),
            Change::Modify { from, to } => {
                row("-", from);
                row("+", to);
            }
            Change::Forget { entry } => {
                let (key, _) = describe(entry, show_secrets);
                let what = "what was gathered for it is discarded: memory may be newer";
                table.row(["!", entry.table(), &key, what]);
            }
        }
    }
    table.to_string()
}

/// Names any collector but the first: most translators have only one.
fn at_collector(index: u8) -> String {
    if index == 0 { String::new() } else { format!(" at collector {index}") }
}

/// Describes a part of a store.
fn of_buckets(buckets: Copies) -> String {
    if buckets.is_whole() { String::new() } else { format!(", buckets {buckets}") }
}

fn describe(entry: &Entry, show_secrets: bool) -> (String, String) {
    match entry {
        Entry::Service(e) => (String::new(), format!("reports to {} UDP port {}", e.address, e.port)),
        Entry::Mode(e) => {
            (String::new(), if e.reference { "reference: as a switch does it" } else { "normal" }.into())
        }
        Entry::Flush(e) => (
            e.primitive.to_string(),
            if e.after_ms == 0 { "never by time".into() } else { format!("after {} ms", e.after_ms) },
        ),
        Entry::QueuePair(e) => (
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
        Entry::Store(e) => {
            let rkey = if show_secrets { format!("{:#010x}", e.rkey.0) } else { REDACTED.into() };
            (
                e.spec.id.to_string(),
                format!(
                    "{} ({}){}{}, {} elements of {} B at {:#x}, {} B, rkey {rkey}, generation {}, by the {} queue pair",
                    e.spec.name,
                    e.spec.primitive(),
                    at_collector(e.collector),
                    of_buckets(e.buckets),
                    e.spec.elements(),
                    e.spec.element_len(),
                    e.address,
                    e.length,
                    e.generation,
                    e.queue_pair
                ),
            )
        }
        Entry::Lists(e) => (
            format!("{} {}", e.store, e.first),
            format!(
                "lists {} to {} of store {}{}",
                e.first,
                u64::from(e.first) + u64::from(e.count) - 1,
                e.store,
                at_collector(e.collector)
            ),
        ),
        Entry::Version0(e) => (e.primitive.to_string(), format!("store {}", e.store)),
        Entry::Session(e) => (String::new(), format!("generation {}", e.generation)),
        Entry::SketchReporter(e) => {
            (format!("{} {}", e.store, e.reporter), format!("bit {} of store {}", e.bit, e.store))
        }
    }
}
