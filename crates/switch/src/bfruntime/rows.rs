//! Rows of the program's tables, by the switch's description.

use crate::messages::bfruntime::bfrt::*;

use super::Described;
use super::fields::{
    data_fields, exact_key_field, number_in, parse_number, stream_data_field, table_update, to_padded_bytes,
};
use crate::bfrt_json::{BfrtInfo, BfrtTable, last_segment};
use crate::schema::{self, MatchKind, P4CounterSchema, P4FieldSchema, P4TableSchema, Schema, all_ones};
use crate::tables::{Holds, Item, Match, SwitchUpdate};

/// Name of the key field for the priority.
const PRIORITY: &str = "$MATCH_PRIORITY";

/// The program's tables used by the control plane, as P4Runtime would describe them.
pub fn schema_from_bfrt(info: &BfrtInfo) -> Schema {
    let field =
        |id: u32, name: &str, width: u16| P4FieldSchema { name: last_segment(name).into(), id, width };
    let of = |table: &BfrtTable| P4TableSchema {
        name: last_segment(&table.name).into(),
        id: table.id,
        size: table.size,
        // Range tables have a separate priority field.
        key: table
            .key
            .iter()
            .filter(|key| key.name != PRIORITY)
            .map(|key| schema::KeyField {
                field: field(key.id, &key.name, key.kind.bit_width()),
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
            .map(|action| schema::P4ActionSchema {
                name: last_segment(&action.name).into(),
                id: action.id,
                params: action
                    .data
                    .iter()
                    .map(|data| field(data.id, &data.name, data.kind.bit_width()))
                    .collect(),
            })
            .collect(),
    };
    let is_counter = |table: &&BfrtTable| table.table_type == "Counter";
    let counter = |table: &BfrtTable| P4CounterSchema {
        name: last_segment(&table.name).into(),
        id: table.id,
        size: table.size,
    };
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
    fn priority_field(&self, table: &P4TableSchema) -> Option<(u32, u16)> {
        let priority = self.program.table_by_id(table.id)?.key.iter().find(|key| key.name == PRIORITY)?;
        Some((priority.id, priority.kind.bit_width()))
    }

    /// A row by its key and order or, without them, the table's default.
    fn encode_row(
        &self,
        table: &str,
        key: Option<(&[Match], u32)>,
        holds: Option<&Holds>,
    ) -> Option<TableEntry> {
        let table = self.schema.table_by_name(table)?;
        let mut fields = Vec::new();
        for (of, matched) in table.key.iter().zip(key.map_or(&[][..], |(key, _)| key)) {
            let width = of.field.width;
            let fits = |value: u128| value <= all_ones(width);
            let kind = match (of.kind, *matched) {
                (MatchKind::Exact, Match::Exact(value)) if fits(value) => {
                    key_field::MatchType::Exact(key_field::Exact { value: to_padded_bytes(value, width) })
                }
                (MatchKind::Prefix, Match::Prefix { value, len }) if fits(value) => {
                    key_field::MatchType::Lpm(key_field::Lpm {
                        value: to_padded_bytes(value, width),
                        prefix_len: len.into(),
                    })
                }
                (MatchKind::Ternary, Match::Masked { value, mask }) if fits(mask) && value & !mask == 0 => {
                    key_field::MatchType::Ternary(key_field::Ternary {
                        value: to_padded_bytes(value, width),
                        mask: to_padded_bytes(mask, width),
                    })
                }
                (MatchKind::Range, Match::Range { low, high }) if low <= high && fits(high) => {
                    key_field::MatchType::Range(key_field::Range {
                        low: to_padded_bytes(low, width),
                        high: to_padded_bytes(high, width),
                    })
                }
                _ => return None,
            };
            fields.push(KeyField { field_id: of.field.id, match_type: Some(kind) });
        }
        if let Some((id, width)) = self.priority_field(table) {
            // The lowest priority applies.
            fields.push(exact_key_field(id, key.map_or(0, |(_, order)| order).into(), width));
        }
        let data = match holds {
            Some(Holds::Action { name, params }) => {
                let action = table.action_by_name(name)?;
                let param = |(field, value): (&P4FieldSchema, &u128)| {
                    (*value <= all_ones(field.width))
                        .then(|| stream_data_field(field.id, *value, field.width))
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
    pub(super) fn encode_update(&self, step: &SwitchUpdate) -> Option<Update> {
        use update::Type::{Delete, Insert, Modify};
        let (kind, item, holds) = match step {
            SwitchUpdate::Insert(item, holds) => (Insert, item, Some(holds)),
            SwitchUpdate::Modify(item, holds) => (Modify, item, Some(holds)),
            SwitchUpdate::Delete(item) => (Delete, item, None),
        };
        Some(match item {
            Item::Row { table, key, order } => {
                table_update(kind, self.encode_row(table, Some((key, *order)), holds)?)
            }
            Item::Default { table } => table_update(Modify, self.encode_row(table, None, holds)?),
            _ => table_update(kind, self.encode_own(item, holds)?),
        })
    }

    /// An entry as an item; `None` if it is not described.
    pub(super) fn decode_entry(&self, entry: &TableEntry) -> Option<(Item, Holds)> {
        let Some(table) = self.schema.table_by_id(entry.table_id) else { return self.decode_own(entry) };
        let action = table.action_of(entry.data.as_ref()?.action_id)?;
        let param = |of: &P4FieldSchema| number_in(data_fields(entry).find(|field| field.field_id == of.id)?);
        let params = action.params.iter().map(param).collect::<Option<Vec<_>>>()?;
        let (table_name, holds) = (table.name.clone(), Holds::Action { name: action.name.clone(), params });
        if entry.is_default_entry {
            return Some((Item::Default { table: table_name }, holds));
        }
        let key = entry.key.as_ref().map_or(&[][..], |key| &key.fields);
        let of_key = |id: u32| key.iter().find(|field| field.field_id == id)?.match_type.as_ref();
        let matched = |of: &schema::KeyField| {
            Some(match of_key(of.field.id)? {
                key_field::MatchType::Exact(exact) => Match::Exact(parse_number(&exact.value)?),
                key_field::MatchType::Lpm(lpm) => Match::Prefix {
                    value: parse_number(&lpm.value)?,
                    len: u16::try_from(lpm.prefix_len).ok()?,
                },
                key_field::MatchType::Range(range) => {
                    Match::Range { low: parse_number(&range.low)?, high: parse_number(&range.high)? }
                }
                key_field::MatchType::Ternary(ternary) => {
                    let mask = parse_number(&ternary.mask)?;
                    Match::Masked { value: parse_number(&ternary.value)? & mask, mask }
                }
            })
        };
        let key = table.key.iter().map(matched).collect::<Option<Vec<_>>>()?;
        let order = match self.priority_field(table).map(|(id, _)| of_key(id)) {
            Some(Some(key_field::MatchType::Exact(exact))) => {
                u32::try_from(parse_number(&exact.value)?).ok()?
            }
            Some(_) => return None,
            None => 0,
        };
        Some((Item::Row { table: table_name, key, order }, holds))
    }
}
