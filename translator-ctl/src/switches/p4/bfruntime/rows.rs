//! Rows of the program's tables, by the switch's description.

use p4runtime_proto::bfruntime::bfrt::*;

use super::Described;
use super::fields::{bytes, data_of, exact, number, number_in, stream, update};
use crate::switches::p4::bfrt_json::{BfrtInfo, BfrtTable, last};
use crate::switches::p4::schema::{self, Counter, Field, MatchKind, Schema, Table, all_ones};
use crate::switches::p4::tables::{Holds, Item, Match, Step};

/// Name of the key field for the priority.
const PRIORITY: &str = "$MATCH_PRIORITY";

/// The program's tables used by the control plane, as P4Runtime would describe them.
pub fn schema(info: &BfrtInfo) -> Schema {
    let field = |id: u32, name: &str, width: u16| Field { name: last(name).into(), id, width };
    let of = |table: &BfrtTable| Table {
        name: last(&table.name).into(),
        id: table.id,
        size: table.size,
        // Range tables have a separate priority field.
        key: table
            .key
            .iter()
            .filter(|key| key.name != PRIORITY)
            .map(|key| schema::KeyField {
                field: field(key.id, &key.name, key.kind.bits()),
                kind: match key.match_type.as_str() {
                    "Exact" => MatchKind::Exact,
                    "LPM" => MatchKind::Prefix,
                    "Range" => MatchKind::Range,
                    "Ternary" => MatchKind::Ternary,
                    _ => MatchKind::Other,
                },
            })
            .collect(),
        actions: table
            .action_specs
            .iter()
            .map(|action| schema::Action {
                name: last(&action.name).into(),
                id: action.id,
                params: action.data.iter().map(|data| field(data.id, &data.name, data.kind.bits())).collect(),
            })
            .collect(),
    };
    let is_counter = |table: &&BfrtTable| table.table_type == "Counter";
    let counter =
        |table: &BfrtTable| Counter { name: last(&table.name).into(), id: table.id, size: table.size };
    Schema {
        tables: info
            .tables
            .iter()
            .filter(|table| table.table_type.starts_with("MatchAction"))
            .map(of)
            .collect(),
        counters: info.tables.iter().filter(is_counter).map(counter).collect(),
        packet_out: Vec::new(),
    }
}

impl Described {
    /// Number and width of the priority of a table's rows; `None` if they have none.
    fn priority(&self, table: &Table) -> Option<(u32, u16)> {
        let priority = self.program.table_of(table.id)?.key.iter().find(|key| key.name == PRIORITY)?;
        Some((priority.id, priority.kind.bits()))
    }

    /// A row by its key and order or, without them, the table's default.
    fn row(&self, table: &str, key: Option<(&[Match], u32)>, holds: Option<&Holds>) -> Option<TableEntry> {
        let table = self.schema.table(table)?;
        let mut fields = Vec::new();
        for (of, matched) in table.key.iter().zip(key.map_or(&[][..], |(key, _)| key)) {
            let width = of.field.width;
            let fits = |value: u128| value <= all_ones(width);
            let kind = match (of.kind, *matched) {
                (MatchKind::Exact, Match::Exact(value)) if fits(value) => {
                    key_field::MatchType::Exact(key_field::Exact { value: bytes(value, width) })
                }
                (MatchKind::Prefix, Match::Prefix { value, len }) if fits(value) => {
                    key_field::MatchType::Lpm(key_field::Lpm {
                        value: bytes(value, width),
                        prefix_len: len.into(),
                    })
                }
                (MatchKind::Ternary, Match::Masked { value, mask }) if fits(mask) && value & !mask == 0 => {
                    key_field::MatchType::Ternary(key_field::Ternary {
                        value: bytes(value, width),
                        mask: bytes(mask, width),
                    })
                }
                (MatchKind::Range, Match::Range { low, high }) if low <= high && fits(high) => {
                    key_field::MatchType::Range(key_field::Range {
                        low: bytes(low, width),
                        high: bytes(high, width),
                    })
                }
                _ => return None,
            };
            fields.push(KeyField { field_id: of.field.id, match_type: Some(kind) });
        }
        if let Some((id, width)) = self.priority(table) {
            // The lowest priority applies.
            fields.push(exact(id, key.map_or(0, |(_, order)| order).into(), width));
        }
        let data = match holds {
            Some(Holds::Action { name, params }) => {
                let action = table.action(name)?;
                let param = |(field, value): (&Field, &u128)| {
                    (*value <= all_ones(field.width)).then(|| stream(field.id, *value, field.width))
                };
                let fields = action.params.iter().zip(params).map(param).collect::<Option<Vec<_>>>()?;
                (fields.len() == params.len() && fields.len() == action.params.len())
                    .then_some(Some(TableData { action_id: action.id, fields }))?
            }
            Some(Holds::Copies(_) | Holds::Mirror(_) | Holds::Queue { .. }) => return None,
            None => None,
        };
        let is_default_entry = key.is_none();
        let key = key.map(|_| TableKey { fields });
        Some(TableEntry { table_id: table.id, key, data, is_default_entry, ..TableEntry::default() })
    }

    /// The update for a step; `None` for a deflection, which needs the queue from the switch first.
    pub(super) fn update(&self, step: &Step) -> Option<Update> {
        use update::Type::{Delete, Insert, Modify};
        let (kind, item, holds) = match step {
            Step::Insert(item, holds) => (Insert, item, Some(holds)),
            Step::Modify(item, holds) => (Modify, item, Some(holds)),
            Step::Delete(item) => (Delete, item, None),
        };
        Some(match item {
            Item::Row { table, key, order } => update(kind, self.row(table, Some((key, *order)), holds)?),
            Item::Default { table } => update(Modify, self.row(table, None, holds)?),
            _ => update(kind, self.own_item(item, holds)?),
        })
    }

    /// An entry as an item; `None` if it is not described.
    pub(super) fn decode(&self, entry: &TableEntry) -> Option<(Item, Holds)> {
        let Some(table) = self.schema.table_of(entry.table_id) else { return self.decode_own(entry) };
        let action = table.action_of(entry.data.as_ref()?.action_id)?;
        let param = |of: &Field| number_in(data_of(entry).find(|field| field.field_id == of.id)?);
        let params = action.params.iter().map(param).collect::<Option<Vec<_>>>()?;
        let (table_name, holds) = (table.name.clone(), Holds::Action { name: action.name.clone(), params });
        if entry.is_default_entry {
            return Some((Item::Default { table: table_name }, holds));
        }
        let key = entry.key.as_ref().map_or(&[][..], |key| &key.fields);
        let of_key = |id: u32| key.iter().find(|field| field.field_id == id)?.match_type.as_ref();
        let matched = |of: &schema::KeyField| {
            Some(match of_key(of.field.id)? {
                key_field::MatchType::Exact(exact) => Match::Exact(number(&exact.value)?),
                key_field::MatchType::Lpm(lpm) => {
                    Match::Prefix { value: number(&lpm.value)?, len: u16::try_from(lpm.prefix_len).ok()? }
                }
                key_field::MatchType::Range(range) => {
                    Match::Range { low: number(&range.low)?, high: number(&range.high)? }
                }
                key_field::MatchType::Ternary(ternary) => {
                    let mask = number(&ternary.mask)?;
                    Match::Masked { value: number(&ternary.value)? & mask, mask }
                }
            })
        };
        let key = table.key.iter().map(matched).collect::<Option<Vec<_>>>()?;
        let order = match self.priority(table).map(|(id, _)| of_key(id)) {
            Some(Some(key_field::MatchType::Exact(exact))) => u32::try_from(number(&exact.value)?).ok()?,
            Some(_) => return None,
            None => 0,
        };
        Some((Item::Row { table: table_name, key, order }, holds))
    }
}
