//! Which columns a store's table has, and which bytes of an element each of them holds.
//!
//! | store | columns |
//! |---|---|
//! | all | `epoch` long, `slot` long, `checksum` long |
//! | key-write | `value` binary |
//! | postcarding | `bitmap` integer, `length` integer, `hop_0` long, `hop_1` long, … |
//!
//! No column has nulls. Delta has no unsigned types, so 32 bits are a long and 16 bits an integer. Numbers
//! are as the store means them (big-endian in memory). An element's bytes come back exactly: `length` also
//! has, in its upper byte, the byte of a row that is always zero unless the row is damaged.

use std::ops::Range;
use std::sync::Arc;

use dta_proto::store::{StoreKind, StoreSpec};
use parquet::basic::{Repetition, Type as Physical};
use parquet::schema::types::{Type, TypePtr};

use crate::HistoryError;

/// What a column holds of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The epoch's number.
    Epoch,
    /// The slot's number.
    Slot,
    /// Four bytes of the element, big-endian, from here on.
    Be32(usize),
    /// Two bytes, big-endian.
    Be16(usize),
    /// Two bytes, little-endian.
    Le16(usize),
    /// Bytes as they are.
    Bytes(Range<usize>),
}

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) part: Part,
}

impl Column {
    fn new(name: &str, part: Part) -> Column {
        Column { name: name.to_owned(), part }
    }

    pub(crate) fn physical(&self) -> Physical {
        match self.part {
            Part::Epoch | Part::Slot | Part::Be32(_) => Physical::INT64,
            Part::Be16(_) | Part::Le16(_) => Physical::INT32,
            Part::Bytes(_) => Physical::BYTE_ARRAY,
        }
    }

    /// Its type in Delta's schema.
    fn delta(&self) -> &'static str {
        match self.physical() {
            Physical::INT64 => "long",
            Physical::INT32 => "integer",
            _ => "binary",
        }
    }
}

/// Where `epoch` and `slot` stand among the columns.
pub(crate) const EPOCH: usize = 0;
pub(crate) const SLOT: usize = 1;

/// The columns of a store's table.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) columns: Vec<Column>,
    /// Bytes of an element.
    pub(crate) element_len: usize,
    /// Elements of the store.
    pub(crate) elements: u64,
}

impl Layout {
    pub(crate) fn of(spec: &StoreSpec) -> Result<Layout, HistoryError> {
        let mut columns = vec![
            Column::new("epoch", Part::Epoch),
            Column::new("slot", Part::Slot),
            Column::new("checksum", Part::Be32(0)),
        ];
        let element_len = spec.element_len() as usize;
        match spec.kind {
            StoreKind::KeyWrite { .. } => columns.push(Column::new("value", Part::Bytes(4..element_len))),
            StoreKind::Postcarding { hops, .. } => {
                columns.push(Column::new("bitmap", Part::Be16(4)));
                columns.push(Column::new("length", Part::Le16(6)));
                let hop = |hop: usize| Column::new(&format!("hop_{hop}"), Part::Be32(8 + 4 * hop));
                columns.extend((0..usize::from(hops)).map(hop));
            }
            StoreKind::Append { .. } | StoreKind::KeyIncrement { .. } | StoreKind::SketchMerge { .. } => {
                return Err(HistoryError::Kind { store: spec.name.clone(), primitive: spec.primitive() });
            }
        }
        Ok(Layout { columns, element_len, elements: spec.elements() })
    }

    /// The schema of its Parquet files.
    pub(crate) fn schema(&self) -> TypePtr {
        let field = |column: &Column| {
            let field = Type::primitive_type_builder(&column.name, column.physical());
            Arc::new(field.with_repetition(Repetition::REQUIRED).build().expect("a plain column"))
        };
        let fields = self.columns.iter().map(field).collect();
        Arc::new(Type::group_type_builder("row").with_fields(fields).build().expect("plain columns"))
    }

    /// The same as Delta's `schemaString`.
    pub(crate) fn delta_schema(&self) -> String {
        let field = |column: &Column| serde_json::json!({ "name": column.name, "type": column.delta(), "nullable": false, "metadata": {} });
        let fields: Vec<_> = self.columns.iter().map(field).collect();
        serde_json::json!({ "type": "struct", "fields": fields }).to_string()
    }
}
