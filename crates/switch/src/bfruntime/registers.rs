//! Registers of the program, and how commands set them.

use std::collections::BTreeMap;

use crate::messages::bfruntime::bfrt::*;

use super::fields::{
    FROM_HARDWARE, data_fields, exact_key_field, number_in, single_key, stream_data_field, table_entity,
    table_update,
};
use super::{BfRuntime, Described};
use crate::TargetError;
use crate::bfrt_json::{BfrtInfo, BfrtTable, last_segment};
use crate::runtime::BATCH;
use crate::tofino::{self, COLUMN_UNSENT, COLUMN_USED, LIST_COUNT, LIST_SEQUENCE, NEXT_PSN, ROW_HEAD};
use crate::translator::{Command, FORGET_COLUMN, FORGET_LIST, FORGET_ROW, SET_LIST, SET_PSN};

/// Registers of one name: table, number of the index, number and width of the value.
fn find_register<'a>(info: &'a BfrtInfo, name: &str) -> Option<(&'a BfrtTable, u32, u32, u16)> {
    let table = info.tables.iter().find(|t| t.table_type == "Register" && last_segment(&t.name) == name)?;
    let index = table.key.iter().find(|key| key.name == "$REGISTER_INDEX")?;
    let value = &table.data.first()?.singleton;
    Some((table, index.id, value.id, value.kind.bit_width()))
}

impl Described {
    /// The registers that a command sets; `None` for commands that do not set registers.
    pub(super) fn register_updates(&self, command: &Command) -> Option<Vec<Update>> {
        let of_state = |name, value| self.register_update(name, command.state, value);
        match command.command {
            SET_PSN => Some(vec![self.register_update(NEXT_PSN, command.pair.into(), command.value)?]),
            SET_LIST => Some(vec![of_state(LIST_SEQUENCE, tofino::register_sequence(command.value))?]),
            FORGET_LIST => Some(vec![of_state(LIST_COUNT, 0)?]),
            FORGET_ROW => Some(vec![of_state(ROW_HEAD, 0)?]),
            FORGET_COLUMN => Some(vec![of_state(COLUMN_USED, 0)?, of_state(COLUMN_UNSENT, 0)?]),
            _ => None,
        }
    }

    fn register_update(&self, name: &str, index: u32, value: u32) -> Option<Update> {
        let (table, index_id, value_id, width) = find_register(&self.program, name)?;
        let key = Some(TableKey { fields: vec![exact_key_field(index_id, index.into(), 32)] });
        let data =
            Some(TableData { action_id: 0, fields: vec![stream_data_field(value_id, value.into(), width)] });
        Some(table_update(
            update::Type::Modify,
            TableEntry { table_id: table.id, key, data, ..TableEntry::default() },
        ))
    }
}

impl BfRuntime {
    /// Everything in the counters or registers with these numbers.
    pub(super) async fn read_counts(&mut self, ids: &[u32]) -> Result<Vec<TableEntry>, TargetError> {
        let asked = |table_id: &u32| {
            table_entity(TableEntry {
                table_id: *table_id,
                table_flags: FROM_HARDWARE,
                ..TableEntry::default()
            })
        };
        self.read_entities(ids.iter().map(asked).collect()).await
    }

    /// Sequences requested by NACKs, over all pipes.
    pub(super) async fn nacked_sequences(&mut self, described: &Described) -> Result<u64, TargetError> {
        let Some((table, _, value_id, _)) = find_register(&described.program, tofino::NACKED) else {
            return Ok(0);
        };
        let entries = self.read_counts(&[table.id]).await?;
        let fields = entries.iter().flat_map(data_fields).filter(|field| field.field_id == value_id);
        Ok(fields.filter_map(number_in).filter_map(|count| u64::try_from(count).ok()).sum())
    }

    /// Whether the program has the required registers.
    pub(super) fn check_registers(&self, described: &Described) -> Result<(), TargetError> {
        let mut names = (self.pipeline.tofino.registers)(self.profile).iter();
        match names.find(|name| find_register(&described.program, name).is_none()) {
            Some(name) => Err(TargetError::Refused(format!("the switch's program has no registers {name}"))),
            None => Ok(()),
        }
    }

    /// Registers with these numbers, in order, each with its value in each pipe; of several fields, the
    /// first.
    pub(super) async fn registers(
        &mut self,
        described: &Described,
        name: &str,
        indices: &[u32],
    ) -> Result<Vec<Vec<u32>>, TargetError> {
        // A profile has no registers for what it does not support.
        if indices.is_empty() {
            return Ok(Vec::new());
        }
        let Some((table, index_id, value_id, _)) = find_register(&described.program, name) else {
            return Err(self.switch_failure(&format!("its program has no registers {name}")));
        };
        let mut found = BTreeMap::new();
        for part in indices.chunks(BATCH) {
            let asked = |index: &u32| {
                let key = Some(TableKey { fields: vec![exact_key_field(index_id, u128::from(*index), 32)] });
                table_entity(TableEntry {
                    table_id: table.id,
                    key,
                    table_flags: FROM_HARDWARE,
                    ..TableEntry::default()
                })
            };
            for entry in self.read_entities(part.iter().map(asked).collect()).await? {
                let Some(index) = single_key(&entry) else { continue };
                let fields = data_fields(&entry).filter(|field| field.field_id == value_id);
                let values: Vec<u32> =
                    fields.filter_map(|field| u32::try_from(number_in(field)?).ok()).collect();
                if !values.is_empty() {
                    found.insert(index, values);
                }
            }
        }
        let value = |index: &u32| found.get(index).cloned();
        let values: Option<Vec<Vec<u32>>> = indices.iter().map(value).collect();
        values
            .ok_or_else(|| self.switch_failure(&format!("it does not return all requested registers {name}")))
    }
}
