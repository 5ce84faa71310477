//! The description of a compiled P4 program's tables, and the check that it has what the control plane uses.

use std::borrow::Cow;

use crate::messages::p4runtime::config::{P4Info, match_field::MatchType};

/// Tables, actions, counters and headers of a compiled program, with the switch's numbers for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    pub tables: Vec<P4TableSchema>,
    pub counters: Vec<P4CounterSchema>,
    /// The fields of packets from the control plane, by name; empty if there are none.
    pub packet_out: Vec<P4FieldSchema>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4TableSchema {
    /// The last part of its name.
    pub name: String,
    pub id: u32,
    pub size: u64,
    /// Its key fields, in order.
    pub key: Vec<KeyField>,
    pub actions: Vec<P4ActionSchema>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    /// Its name, number and width.
    pub field: P4FieldSchema,
    pub kind: MatchKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    Exact,
    Prefix,
    Range,
    Ternary,
    /// In a way that the control plane does not use.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4ActionSchema {
    /// The last part of its name.
    pub name: String,
    pub id: u32,
    /// Its parameters, in their order.
    pub params: Vec<P4FieldSchema>,
}

/// A name, a number and a width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4FieldSchema {
    pub name: String,
    pub id: u32,
    pub width: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4CounterSchema {
    /// The last part of its name.
    pub name: String,
    pub id: u32,
    pub size: u64,
}

/// Why a program is unusable: what it lacks of what the control plane uses, one per line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the switch's program is not the one that this translator knows: {}", .0.join("; "))]
pub struct Mismatch(pub Vec<String>);

/// What the control plane uses of a table: name, key with kinds and widths, actions with parameters and widths.
#[derive(Clone)]
pub struct UsedTable {
    pub name: &'static str,
    /// The fields of its key.
    pub key: &'static [(&'static str, MatchKind, u16)],
    pub actions: &'static [UsedAction],
}

/// What the control plane uses of an action.
pub struct UsedAction {
    pub name: &'static str,
    /// Its parameters in their order.
    pub params: &'static [(&'static str, u16)],
}

/// Everything the control plane uses of a program.
pub struct Used {
    pub tables: Cow<'static, [UsedTable]>,
    /// Counters, with the minimum size.
    pub counters: Cow<'static, [(&'static str, u64)]>,
    /// The fields of packets to the switch.
    pub packet_out: &'static [(&'static str, u16)],
}

/// The part of a name after its last dot.
fn last_segment(name: &str) -> String {
    name.rsplit('.').next().unwrap_or(name).to_owned()
}

pub fn all_ones(width: u16) -> u128 {
    if width >= 128 { u128::MAX } else { (1 << width) - 1 }
}

fn to_width(bits: i32) -> u16 {
    u16::try_from(bits).unwrap_or(u16::MAX)
}

impl Schema {
    pub fn of_p4info(info: &P4Info) -> Schema {
        let field =
            |id: u32, name: &str, bits: i32| P4FieldSchema { name: name.into(), id, width: to_width(bits) };
        let action = |id: u32| {
            let action =
                info.actions.iter().find(|action| action.preamble.as_ref().is_some_and(|p| p.id == id))?;
            let params = action.params.iter().map(|param| field(param.id, &param.name, param.bitwidth));
            let name = last_segment(&action.preamble.as_ref()?.name);
            Some(P4ActionSchema { name, id, params: params.collect() })
        };
        let tables = info.tables.iter().filter_map(|table| {
            let preamble = table.preamble.as_ref()?;
            let key = table.match_fields.iter().map(|f| KeyField {
                field: field(f.id, &f.name, f.bitwidth),
                kind: match f.match_type() {
                    MatchType::Exact => MatchKind::Exact,
                    MatchType::Lpm => MatchKind::Prefix,
                    MatchType::Range => MatchKind::Range,
                    MatchType::Ternary => MatchKind::Ternary,
                    MatchType::Unspecified | MatchType::Optional => MatchKind::Other,
                },
            });
            Some(P4TableSchema {
                name: last_segment(&preamble.name),
                id: preamble.id,
                size: u64::try_from(table.size).unwrap_or(0),
                key: key.collect(),
                actions: table.action_refs.iter().filter_map(|of| action(of.id)).collect(),
            })
        });
        let counters = info.counters.iter().filter_map(|counter| {
            let preamble = counter.preamble.as_ref()?;
            let size = u64::try_from(counter.size).unwrap_or(0);
            Some(P4CounterSchema { name: last_segment(&preamble.name), id: preamble.id, size })
        });
        let header = info
            .controller_packet_metadata
            .iter()
            .find(|header| header.preamble.as_ref().is_some_and(|p| last_segment(&p.name) == "packet_out"));
        let packet_out = header.into_iter().flat_map(|header| &header.metadata);
        Schema {
            tables: tables.collect(),
            counters: counters.collect(),
            packet_out: packet_out.map(|m| field(m.id, &m.name, m.bitwidth)).collect(),
        }
    }

    pub fn table_by_name(&self, name: &str) -> Option<&P4TableSchema> {
        self.tables.iter().find(|table| table.name == name)
    }

    pub fn table_by_id(&self, id: u32) -> Option<&P4TableSchema> {
        self.tables.iter().find(|table| table.id == id)
    }

    pub fn counter_by_name(&self, name: &str) -> Option<&P4CounterSchema> {
        self.counters.iter().find(|counter| counter.name == name)
    }

    /// Whether everything used is there, with the same widths.
    pub fn check_required(&self, used: &Used) -> Result<(), Mismatch> {
        let mut faults = Vec::new();
        for want in used.tables.iter() {
            let name = want.name;
            if self.tables.iter().filter(|table| table.name == name).count() > 1 {
                faults.push(format!("there are two tables {name}"));
            }
            let Some(table) = self.table_by_name(name) else {
                faults.push(format!("there is no table {name}"));
                continue;
            };
            let key: Vec<_> =
                table.key.iter().map(|k| (k.field.name.as_str(), k.kind, k.field.width)).collect();
            if key != want.key {
                faults.push(format!("the key of table {name} is {key:?}, not {:?}", want.key));
            }
            for action in want.actions {
                let Some(has) = table.actions.iter().find(|has| has.name == action.name) else {
                    faults.push(format!("table {name} has no action {}", action.name));
                    continue;
                };
                let params: Vec<_> = has.params.iter().map(|p| (p.name.as_str(), p.width)).collect();
                if params != action.params {
                    let (action, want) = (action.name, action.params);
                    faults.push(format!(
                        "the parameters of action {action} of table {name} are {params:?}, not {want:?}"
                    ));
                }
            }
        }
        for (name, size) in used.counters.iter() {
            match self.counter_by_name(name) {
                None => faults.push(format!("there are no counters {name}")),
                Some(has) if has.size < *size => {
                    faults.push(format!("there are {} counters {name}, not {size}", has.size));
                }
                Some(_) => {}
            }
        }
        let fields: Vec<_> = self.packet_out.iter().map(|field| (field.name.as_str(), field.width)).collect();
        if fields != used.packet_out {
            faults.push(format!("the fields of packet_out are {fields:?}, not {:?}", used.packet_out));
        }
        if faults.is_empty() { Ok(()) } else { Err(Mismatch(faults)) }
    }
}

impl P4TableSchema {
    pub fn action_by_name(&self, name: &str) -> Option<&P4ActionSchema> {
        self.actions.iter().find(|action| action.name == name)
    }

    pub fn action_of(&self, id: u32) -> Option<&P4ActionSchema> {
        self.actions.iter().find(|action| action.id == id)
    }

    /// Whether its rows have a priority: only those of range and mask tables do.
    pub fn has_priority(&self) -> bool {
        let of =
            |key: &KeyField| matches!(key.kind, MatchKind::Range | MatchKind::Ternary | MatchKind::Other);
        self.key.iter().any(of)
    }
}
