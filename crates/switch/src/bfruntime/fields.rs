//! Numbers and entries in BfRuntime's messages. Numbers are big-endian, in as many bytes as their width
//! needs.

use crate::messages::bfruntime::bfrt::*;

/// Counters are read from the chip: the driver's own copy is as old as the last read.
pub(super) const FROM_HARDWARE: Option<TableFlags> = Some(TableFlags { from_hw: true, key_only: false });

/// A number in as many bytes as its width needs.
pub(super) fn to_padded_bytes(value: u128, width: u16) -> Vec<u8> {
    let len = usize::from(width.div_ceil(8)).clamp(1, 16);
    value.to_be_bytes()[16 - len..].to_vec()
}

/// The number in some bytes, at most 16.
pub(super) fn parse_number(bytes: &[u8]) -> Option<u128> {
    (bytes.len() <= 16).then(|| bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)))
}

pub(super) fn number_in(field: &DataField) -> Option<u128> {
    match field.value.as_ref()? {
        data_field::Value::Stream(bytes) => parse_number(bytes),
        _ => None,
    }
}

/// The value of an entry's key that is a single number.
pub(super) fn single_key(entry: &TableEntry) -> Option<u32> {
    match entry.key.as_ref()?.fields.first()?.match_type.as_ref()? {
        key_field::MatchType::Exact(exact) => u32::try_from(parse_number(&exact.value)?).ok(),
        _ => None,
    }
}

pub(super) fn data_fields(entry: &TableEntry) -> impl Iterator<Item = &DataField> {
    entry.data.iter().flat_map(|data| &data.fields)
}

pub(super) fn exact_key_field(field_id: u32, value: u128, width: u16) -> KeyField {
    let value = key_field::Exact { value: to_padded_bytes(value, width) };
    KeyField { field_id, match_type: Some(key_field::MatchType::Exact(value)) }
}

pub(super) fn stream_data_field(field_id: u32, value: u128, width: u16) -> DataField {
    DataField { field_id, value: Some(data_field::Value::Stream(to_padded_bytes(value, width))) }
}

pub(super) fn table_entity(entry: TableEntry) -> Entity {
    Entity { entity: Some(entity::Entity::TableEntry(entry)) }
}

pub(super) fn table_update(kind: update::Type, entry: TableEntry) -> Update {
    Update { r#type: kind.into(), entity: Some(table_entity(entry)) }
}
