//! A program as a target holds it: table rows.
//!
//! Some fields of a program matter only to people, to readers or at the start. They are not in the rows, so
//! that changing them does not reprogram a target. [`RowFields`] says which optional fields a target has in
//! its rows. [`RowFields::diff_programs`] compares two programs by their rows.
//!
//! A target with differently shaped tables builds its own rows from these or from the entries, in its own
//! file.

use std::net::IpAddr;

use super::{
    DataPlaneEntry, Endpoint, EntryKey, FlushDelay, Lists, Mac, Mode, ProgramQueuePair, ProgramSession,
    ReportService, Rkey, SketchReporter, Store, Version0,
};
use crate::buckets::Copies;
use crate::store::{StoreKind, StoreSpec};

/// One row of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRow {
    /// Name of the table.
    pub table: &'static str,
    /// What identifies the row.
    pub key: EntryKey,
    /// Its fields by name.
    pub values: Values,
}

/// Values by name, in the same order for all rows of a table.
pub type Values = Vec<(&'static str, RowValue)>;

/// The value of one field of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowValue {
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
pub struct RowFields {
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

impl RowFields {
    /// All of them, as the software data plane uses.
    pub const ALL: RowFields = RowFields { name: true, expected: true, notify: true, runs: true };
    /// None of them.
    pub const NONE: RowFields = RowFields { name: false, expected: false, notify: false, runs: false };

    /// The row of an entry.
    pub fn entry_row(self, entry: &DataPlaneEntry) -> TableRow {
        TableRow { table: entry.table_name(), key: entry.entry_key(), values: self.entry_values(entry) }
    }

    /// Whether two entries give the same row.
    pub(super) fn is_same_row(self, a: &DataPlaneEntry, b: &DataPlaneEntry) -> bool {
        a == b || self.entry_row(a) == self.entry_row(b)
    }

    // Entries are destructured in full, so that a new field must be assigned to the rows or left out here.
    fn entry_values(self, entry: &DataPlaneEntry) -> Values {
        match entry {
            DataPlaneEntry::Service(ReportService { address, port }) => {
                vec![("address", RowValue::Ip(*address)), ("port", number_value(*port))]
            }
            DataPlaneEntry::Mode(Mode { reference }) => vec![("reference", number_value(*reference))],
            DataPlaneEntry::Flush(FlushDelay { primitive: _, after_ms }) => {
                vec![("after_ms", number_value(*after_ms))]
            }
            DataPlaneEntry::QueuePair(pair) => self.queue_pair(pair),
            DataPlaneEntry::Store(store) => self.store_values(store),
            // Positions are where the lists begin. They move with every batch.
            DataPlaneEntry::Lists(Lists { store: _, collector, first: _, count, positions: _ }) => {
                vec![("collector", number_value(*collector)), ("count", number_value(*count))]
            }
            DataPlaneEntry::Version0(Version0 { primitive: _, store }) => {
                vec![("store", number_value(*store))]
            }
            DataPlaneEntry::SketchReporter(SketchReporter { store: _, reporter: _, bit }) => {
                vec![("bit", number_value(*bit))]
            }
            DataPlaneEntry::Session(ProgramSession { collector: _, generation }) => {
                vec![("generation", number_value(*generation))]
            }
        }
    }

    fn queue_pair(self, pair: &ProgramQueuePair) -> Values {
        let ProgramQueuePair {
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
        // The source receives nothing but answers.
        let Endpoint { mac: source_mac, ip: source_ip, port: source_port, runs: _ } = source;
        let Endpoint { mac: destination_mac, ip: destination_ip, port: destination_port, runs } = destination;
        let mut values = vec![
            ("transport", RowValue::Word(transport.canonical_name())),
            ("remote_qpn", number_value(*remote_qpn)),
            ("local_qpn", number_value(*local_qpn)),
            ("source_mac", RowValue::Mac(*source_mac)),
            ("source_ip", RowValue::Ip(*source_ip)),
            ("source_port", number_value(*source_port)),
            ("destination_mac", RowValue::Mac(*destination_mac)),
            ("destination_ip", RowValue::Ip(*destination_ip)),
            ("destination_port", number_value(*destination_port)),
            ("tos", number_value(*tos)),
            ("max_dest_rd_atomic", number_value(*max_dest_rd_atomic)),
            ("generation", number_value(*generation)),
        ];
        if self.runs {
            values.push(("runs", number_value(*runs)));
        }
        values
    }

    fn store_values(self, store: &Store) -> Values {
        let Store { collector: _, spec, buckets, address, length, rkey, generation, queue_pair } = store;
        let StoreSpec { id: _, name, kind } = spec;
        let mut values = self.layout_values(kind);
        if self.name {
            values.push(("name", RowValue::Name(name.clone())));
        }
        values.extend([
            ("buckets", RowValue::Buckets(*buckets)),
            ("address", number_value(*address)),
            ("length", number_value(*length)),
            ("rkey", RowValue::Key(*rkey)),
            ("generation", number_value(*generation)),
            ("queue_pair", RowValue::Word(queue_pair.name())),
        ]);
        values
    }

    /// The fields of a store's layout that are in the rows.
    pub(super) fn layout_values(self, kind: &StoreKind) -> Values {
        let mut values = vec![("kind", RowValue::Word(kind.primitive().canonical_name()))];
        let is_in = |name: &str| match name {
            "expected" => self.expected,
            "notify" => self.notify,
            _ => true,
        };
        values.extend(
            kind.fields()
                .into_iter()
                .filter(|(name, _)| is_in(name))
                .map(|(name, n)| (name, number_value(n))),
        );
        values
    }
}

fn number_value(number: impl Into<u64>) -> RowValue {
    RowValue::Number(number.into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::program::{DataPlaneChange, Program, diff_programs};

    /// The program of the frame vectors, plus an entry for the table that it lacks.
    fn sample() -> Program {
        let mut sample: Program = serde_json::from_str(include_str!("../../vectors/program.json")).unwrap();
        sample.set(DataPlaneEntry::SketchReporter(SketchReporter { store: 5, reporter: 9, bit: 3 }));
        sample
    }

    /// The sample with each store changed.
    fn with_stores(change: impl Fn(&mut StoreSpec)) -> Program {
        let mut program = sample();
        for entry in sample().entries() {
            if let DataPlaneEntry::Store(store) = entry {
                let mut store = store.clone();
                change(&mut store.spec);
                program.set(DataPlaneEntry::Store(store));
            }
        }
        program
    }

    #[test]
    fn a_target_without_names_does_not_notice_that_stores_are_renamed() {
        let renamed = with_stores(|spec| spec.name.insert_str(0, "other-"));
        assert_eq!(RowFields::NONE.diff_programs(&sample(), &renamed), []);
        // The software data plane reports names.
        let changes = diff_programs(&sample(), &renamed);
        assert_eq!(changes.len(), 6);
        assert!(
            changes.iter().all(|c| matches!(c, DataPlaneChange::Modify { to: DataPlaneEntry::Store(_), .. })),
            "{changes:?}"
        );
        assert_eq!(RowFields { name: true, ..RowFields::NONE }.diff_programs(&sample(), &renamed), changes);
    }

    #[test]
    fn what_only_readers_need_is_another_layout_where_the_target_uses_it() {
        let changed = with_stores(|spec| match &mut spec.kind {
            StoreKind::SketchMerge { expected, .. } => *expected += 1,
            StoreKind::Append { notify, .. } => *notify ^= true,
            _ => {}
        });
        assert_eq!(RowFields::NONE.diff_programs(&sample(), &changed), []);
        let replaced = |fields: RowFields| {
            let mut ids = Vec::new();
            for change in fields.diff_programs(&sample(), &changed) {
                if let DataPlaneChange::Insert { entry: DataPlaneEntry::Store(store) } = change {
                    ids.push(store.spec.id);
                }
            }
            ids
        };
        assert_eq!(replaced(RowFields { expected: true, ..RowFields::NONE }), [5]);
        assert_eq!(replaced(RowFields { notify: true, ..RowFields::NONE }), [2, 6]);
        assert_eq!(replaced(RowFields::ALL), [2, 5, 6]);
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
                let Ok(other) = serde_json::from_value::<DataPlaneEntry>(value) else { continue };
                let moves = ["/start_psn", "/replaced", "/positions"].iter().any(|p| path.starts_with(p));
                assert_ne!(*entry, other, "{path}");
                assert_eq!(
                    RowFields::ALL.entry_row(entry) == RowFields::ALL.entry_row(&other),
                    moves,
                    "{entry:?} {path}"
                );
                seen += 1;
            }
        }
        assert!(seen > 80, "{seen} fields were changed");
    }

    #[test]
    fn a_row_does_not_print_its_key() {
        let rows: Vec<TableRow> = sample().entries().map(|entry| RowFields::ALL.entry_row(entry)).collect();
        assert_eq!(rows.len(), sample().entries().count());
        let text = format!("{rows:?}");
        assert!(text.contains("Rkey(redacted)") && !text.contains("4097"), "{text}");
    }
}
