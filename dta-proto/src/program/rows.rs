//! A program as a target holds it: table rows.
//!
//! Some fields of a program matter only to people, readers or the start. They are not in the rows, so a
//! change of them does not reprogram a target. [`Fields`] says which optional fields a target has in its
//! rows. [`Fields::diff`] compares two programs by their rows.
//!
//! A target with differently shaped tables builds its own rows from these or from the entries, in its own
//! file.

use std::net::IpAddr;

use super::{
    Endpoint, Entry, EntryKey, Flush, Lists, Mac, Mode, Program, QueuePair, Rkey, Service, Session,
    SketchReporter, Store, Version0,
};
use crate::buckets::Copies;
use crate::store::{StoreKind, StoreSpec};

/// One row of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name of the table.
    pub table: &'static str,
    /// What identifies the row.
    pub key: EntryKey,
    /// Its fields by name.
    pub values: Values,
}

/// Values by name, in the same order for all rows of a table.
pub type Values = Vec<(&'static str, Value)>;

/// The value of one field of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, or a boolean as 1 or 0.
    Number(u64),
    /// A value of an enumeration, by name.
    Word(&'static str),
    /// A user-chosen name.
    Name(String),
    /// Sets of key buckets, by copy.
    Buckets(Copies),
    /// An IP address.
    Ip(IpAddr),
    /// An Ethernet address.
    Mac(Mac),
    /// An rkey, which `Debug` does not print.
    Key(Rkey),
}

/// Which optional fields a target has in its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Names of stores: for targets that count or log by name.
    pub name: bool,
    /// How many reporters complete a sketch column: for targets that send complete columns, or write the
    /// number.
    pub expected: bool,
    /// Whether an append store's batches wake a reader: for targets that write with immediate.
    pub notify: bool,
    /// Whether a queue pair's destination takes frames in runs: for targets that send some.
    pub runs: bool,
}

impl Fields {
    /// All of them, as the software data plane uses.
    pub const ALL: Fields = Fields { name: true, expected: true, notify: true, runs: true };
    /// None of them.
    pub const NONE: Fields = Fields { name: false, expected: false, notify: false, runs: false };

    /// The row of an entry.
    pub fn row(self, entry: &Entry) -> Row {
        Row { table: entry.table(), key: entry.key(), values: self.values(entry) }
    }

    /// The rows of a program, in the order of its entries.
    pub fn rows(self, program: &Program) -> impl Iterator<Item = Row> {
        program.entries().map(move |entry| self.row(entry))
    }

    /// Whether two entries give the same row.
    pub(super) fn same(self, a: &Entry, b: &Entry) -> bool {
        a == b || self.row(a) == self.row(b)
    }

    // Entries are destructured in full, so that a new field must be assigned to the rows or left out here.
    fn values(self, entry: &Entry) -> Values {
        match entry {
            Entry::Service(Service { address, port }) => {
                vec![("address", Value::Ip(*address)), ("port", number(*port))]
            }
            Entry::Mode(Mode { reference }) => vec![("reference", number(*reference))],
            Entry::Flush(Flush { primitive: _, after_ms }) => vec![("after_ms", number(*after_ms))],
            Entry::QueuePair(pair) => self.queue_pair(pair),
            Entry::Store(store) => self.store(store),
            // Positions are where the lists begin. They move with every batch.
            Entry::Lists(Lists { store: _, collector, first: _, count, positions: _ }) => {
                vec![("collector", number(*collector)), ("count", number(*count))]
            }
            Entry::Version0(Version0 { primitive: _, store }) => vec![("store", number(*store))],
            Entry::SketchReporter(SketchReporter { store: _, reporter: _, bit }) => {
                vec![("bit", number(*bit))]
            }
            Entry::Session(Session { collector: _, generation }) => vec![("generation", number(*generation))],
        }
    }

    fn queue_pair(self, pair: &QueuePair) -> Values {
        let QueuePair {
            collector: _,
            purpose: _,
            transport,
            remote_qpn,
            local_qpn,
            source,
            destination,
            tos,
            max_dest_rd_atomic,
            generation,
            // The initial PSN and the end of the previous queue pair matter only when the row is written.
            start_psn: _,
            replaced: _,
        } = pair;
        // Nothing but answers come to the source.
        let Endpoint { mac: source_mac, ip: source_ip, port: source_port, runs: _ } = source;
        let Endpoint { mac: destination_mac, ip: destination_ip, port: destination_port, runs } = destination;
        let mut values = vec![
            ("transport", Value::Word(transport.name())),
            ("remote_qpn", number(*remote_qpn)),
            ("local_qpn", number(*local_qpn)),
            ("source_mac", Value::Mac(*source_mac)),
            ("source_ip", Value::Ip(*source_ip)),
            ("source_port", number(*source_port)),
            ("destination_mac", Value::Mac(*destination_mac)),
            ("destination_ip", Value::Ip(*destination_ip)),
            ("destination_port", number(*destination_port)),
            ("tos", number(*tos)),
            ("max_dest_rd_atomic", number(*max_dest_rd_atomic)),
            ("generation", number(*generation)),
        ];
        if self.runs {
            values.push(("runs", number(*runs)));
        }
        values
    }

    fn store(self, store: &Store) -> Values {
        let Store { collector: _, spec, buckets, address, length, rkey, generation, queue_pair } = store;
        let StoreSpec { id: _, name, kind } = spec;
        let mut values = self.layout(kind);
        if self.name {
            values.push(("name", Value::Name(name.clone())));
        }
        values.extend([
            ("buckets", Value::Buckets(*buckets)),
            ("address", number(*address)),
            ("length", number(*length)),
            ("rkey", Value::Key(*rkey)),
            ("generation", number(*generation)),
            ("queue_pair", Value::Word(queue_pair.name())),
        ]);
        values
    }

    /// The fields of a store's layout that are in the rows.
    pub(super) fn layout(self, kind: &StoreKind) -> Values {
        let mut values = vec![("kind", Value::Word(kind.primitive().name()))];
        let is_in = |name: &str| match name {
            "expected" => self.expected,
            "notify" => self.notify,
            _ => true,
        };
        values.extend(
            kind.fields().into_iter().filter(|(name, _)| is_in(name)).map(|(name, n)| (name, number(n))),
        );
        values
    }
}

fn number(number: impl Into<u64>) -> Value {
    Value::Number(number.into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::program::{Change, diff};

    /// The program of the frame vectors, plus an entry for the table that it lacks.
    fn sample() -> Program {
        let mut sample: Program = serde_json::from_str(include_str!("../../vectors/program.json")).unwrap();
        sample.set(Entry::SketchReporter(SketchReporter { store: 5, reporter: 9, bit: 3 }));
        sample
    }

    /// The sample with each store changed.
    fn with_stores(change: impl Fn(&mut StoreSpec)) -> Program {
        let mut program = sample();
        for entry in sample().entries() {
            if let Entry::Store(store) = entry {
                let mut store = store.clone();
                change(&mut store.spec);
                program.set(Entry::Store(store));
            }
        }
        program
    }

    #[test]
    fn a_target_without_names_does_not_notice_that_stores_are_renamed() {
        let renamed = with_stores(|spec| spec.name.insert_str(0, "other-"));
        assert_eq!(Fields::NONE.diff(&sample(), &renamed), []);
        // The software data plane reports names.
        let changes = diff(&sample(), &renamed);
        assert_eq!(changes.len(), 6);
        assert!(
            changes.iter().all(|c| matches!(c, Change::Modify { to: Entry::Store(_), .. })),
            "{changes:?}"
        );
        assert_eq!(Fields { name: true, ..Fields::NONE }.diff(&sample(), &renamed), changes);
    }

    #[test]
    fn what_only_readers_need_is_another_layout_where_the_target_uses_it() {
        let changed = with_stores(|spec| match &mut spec.kind {
            StoreKind::SketchMerge { expected, .. } => *expected += 1,
            StoreKind::Append { notify, .. } => *notify ^= true,
            _ => {}
        });
        assert_eq!(Fields::NONE.diff(&sample(), &changed), []);
        let replaced = |fields: Fields| {
            let mut ids = Vec::new();
            for change in fields.diff(&sample(), &changed) {
                if let Change::Insert { entry: Entry::Store(store) } = change {
                    ids.push(store.spec.id);
                }
            }
            ids
        };
        assert_eq!(replaced(Fields { expected: true, ..Fields::NONE }), [5]);
        assert_eq!(replaced(Fields { notify: true, ..Fields::NONE }), [2, 6]);
        assert_eq!(replaced(Fields::ALL), [2, 5, 6]);
    }

    /// Each leaf of a value as JSON, changed on its own: its path, and the resulting values.
    fn changed(value: &Json) -> Vec<(String, Json)> {
        let mut leaves = Vec::new();
        let mut open = vec![(String::new(), value)];
        while let Some((path, inner)) = open.pop() {
            match inner {
                Json::Object(map) => open.extend(map.iter().map(|(k, v)| (format!("{path}/{k}"), v))),
                Json::Array(items) => {
                    open.extend(items.iter().enumerate().map(|(i, v)| (format!("{path}/{i}"), v)));
                }
                leaf => leaves.push((path, leaf.clone())),
            }
        }
        let mut all = Vec::new();
        for (path, leaf) in leaves {
            let others = match &leaf {
                Json::Number(n) => vec![json!(n.as_u64().unwrap() ^ 1)],
                Json::Bool(it) => vec![json!(!it)],
                Json::Null => vec![json!({"qpn": 77, "expected_psn": 5})],
                _ => ["uc", "rc", "sum", "max", "write", "atomic", "10.1.2.3", "02:00:00:00:00:77"]
                    .map(Json::from)
                    .into(),
            };
            for other in others.into_iter().filter(|other| *other != leaf) {
                let mut value = value.clone();
                *value.pointer_mut(&path).expect("it is there") = other;
                all.push((path.clone(), value));
            }
        }
        all
    }

    #[test]
    fn a_row_has_every_field_but_what_moves_while_running() {
        let mut seen = 0;
        for entry in sample().entries() {
            for (path, value) in changed(&json!(entry)) {
                let Ok(other) = serde_json::from_value::<Entry>(value) else { continue };
                let moves = ["/start_psn", "/replaced", "/positions"].iter().any(|p| path.starts_with(p));
                assert_ne!(*entry, other, "{path}");
                assert_eq!(Fields::ALL.row(entry) == Fields::ALL.row(&other), moves, "{entry:?} {path}");
                seen += 1;
            }
        }
        assert!(seen > 80, "{seen} fields were changed");
    }

    #[test]
    fn a_row_does_not_print_its_key() {
        let rows: Vec<Row> = Fields::ALL.rows(&sample()).collect();
        assert_eq!(rows.len(), sample().entries().count());
        let text = format!("{rows:?}");
        assert!(text.contains("Rkey(redacted)") && !text.contains("4097"), "{text}");
    }
}
