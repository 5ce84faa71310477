//! Which columns a store's table has, and which bytes of a row each holds; the columns of an element are its [`element_fields`].
//!
//! | store | columns |
//! |---|---|
//! | key-write | `epoch` long, `slot` long, `checksum` long, with inline keys `key` binary, `value` binary |
//! | postcarding | `epoch` long, `slot` long, `checksum` long, `bitmap` integer, `length` integer, `hop_0` long, `hop_1` long, … |
//! | key-increment | `epoch` long, `slot` long, `count` long |
//! | sketch-merge | `epoch` long, `column` long, `sketch_epoch` long, `merged` integer, `expected` integer, `cell_0` long, … |
//! | append | `epoch` long, `list` long, `sequence` long, `number` integer, `entry` binary |
//! | `flow-records` | the same, but in place of `entry` the columns of [`flow_record`] |
//!
//! No column has nulls. Delta has no unsigned types, so 32 bits become a long and 16 bits an integer; counts from 2^63 on are
//! negative. Numbers are as the store means them, whatever their byte order in memory. A row's bytes are restored exactly:
//! `length` even includes, in its upper byte, the byte of a path that is always zero unless damaged. Only the bytes after a sketch
//! column's last cell, which mean nothing, become zeros.
//!
//! A row of a list is not what memory holds, but one entry of a batch: the sequence of the batch (4 bytes, big-endian), the
//! entry's place in it (2 bytes, big-endian), two zero bytes, the entry.

use std::ops::Range;
use std::sync::Arc;

use dta_proto::flow_record::{self, ColumnType};
use dta_proto::layout::{ElementField, element_fields};
use dta_proto::store::{StoreKind, StoreSpec};
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::schema::types::{Type, TypePtr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CellSource {
    Epoch,
    /// The number of the slot, column or list.
    Slot,
    /// Eight bytes of the element, little-endian, at this offset.
    Le64(usize),
    /// Four bytes of the element, big-endian, at this offset.
    Be32(usize),
    /// Eight bytes, big-endian.
    Be64(usize),
    /// Two bytes, big-endian.
    Be16(usize),
    Byte(usize),
    /// Two bytes, little-endian.
    Le16(usize),
    /// Bytes as they are.
    Bytes(Range<usize>),
    /// Sixteen bytes of an address, as text.
    Address(usize),
    /// Text of at most [`TEXT`] bytes, padded with zeros.
    Text(usize),
    /// When the row's epoch began.
    Opened,
    /// When the last of its writers had moved to the next one.
    Closed,
}

impl CellSource {
    /// A field of an element, at this offset.
    fn from_field(field: ElementField, at: usize) -> CellSource {
        match field {
            ElementField::Be16 => CellSource::Be16(at),
            ElementField::Be32 => CellSource::Be32(at),
            ElementField::Le16 => CellSource::Le16(at),
            ElementField::Le64 => CellSource::Le64(at),
            ElementField::Bytes(size) => CellSource::Bytes(at..at + size),
        }
    }
}

/// Bytes that text takes in a row.
pub(crate) const TEXT: usize = 16;

/// The range of a text in an element, without the zeros that pad it.
pub(crate) fn text_range(element: &[u8], at: usize) -> Range<usize> {
    let len = element[at..][..TEXT].iter().position(|byte| *byte == 0);
    at..at + len.unwrap_or(TEXT)
}

/// The type of a column of [`EpochTable::open_rows`](crate::EpochTable::open_rows) and
/// [`EpochTable::open_entries`](crate::EpochTable::open_entries). Cells lie back to back in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// An integer: 2 bytes, big-endian.
    U16,
    /// A long: 4 bytes, big-endian.
    U32,
    /// A long, negative from 2^63 on: 8 bytes, big-endian.
    U64,
    /// A string: an IPv6 address of 16 bytes; an IPv4 address is mapped to one.
    Address,
    /// A string: 16 bytes of UTF-8, padded with zeros.
    Text,
}

#[derive(Clone, Debug)]
pub(crate) struct LayoutColumn {
    pub(crate) name: String,
    pub(crate) part: CellSource,
    /// Whether files have a dictionary of its values: where many rows share them and rows are read from the start.
    pub(crate) has_dictionary: bool,
}

impl LayoutColumn {
    fn new(name: &str, part: CellSource) -> LayoutColumn {
        LayoutColumn { name: name.to_owned(), part, has_dictionary: false }
    }

    pub(crate) fn physical_type(&self) -> Physical {
        match self.part {
            CellSource::Epoch
            | CellSource::Slot
            | CellSource::Be32(_)
            | CellSource::Be64(_)
            | CellSource::Le64(_)
            | CellSource::Opened
            | CellSource::Closed => Physical::INT64,
            CellSource::Be16(_) | CellSource::Le16(_) | CellSource::Byte(_) => Physical::INT32,
            CellSource::Bytes(_) | CellSource::Address(_) | CellSource::Text(_) => Physical::BYTE_ARRAY,
        }
    }

    fn is_text(&self) -> bool {
        matches!(self.part, CellSource::Address(_) | CellSource::Text(_))
    }

    pub(crate) fn is_moment(&self) -> bool {
        matches!(self.part, CellSource::Opened | CellSource::Closed)
    }

    fn delta_type(&self) -> &'static str {
        match self.physical_type() {
            Physical::INT64 if self.is_moment() => "timestamp",
            Physical::INT64 => "long",
            Physical::INT32 => "integer",
            _ if self.is_text() => "string",
            _ => "binary",
        }
    }
}

/// The indexes of `epoch` and of the slot number among the columns.
pub(crate) const EPOCH: usize = 0;
pub(crate) const SLOT: usize = 1;

/// Bytes of a list's row before the entry, and columns before it.
pub(crate) const ENTRY: usize = 8;
const ENTRY_COLUMN: usize = 4;

/// The columns of a store's table.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) columns: Vec<LayoutColumn>,
    /// Size of an element in bytes: a slot, a column, or a list's row.
    pub(crate) element_len: usize,
    /// The number of slots, of columns in one epoch, or of lists.
    pub(crate) elements: u64,
    pub(crate) order: Order,
}

/// The order of the rows in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By slot, then by epoch; an epoch has each slot at most once.
    BySlot,
    /// By epoch, then in order of arrival.
    AsTheyCame,
    /// By a sum, largest first.
    Ranked,
}

impl Layout {
    pub(crate) fn from_spec(spec: &StoreSpec) -> Layout {
        if let StoreKind::Append { lists, entry_len, .. } = spec.kind {
            let element_len = ENTRY + usize::from(entry_len);
            let columns = [
                ("epoch", CellSource::Epoch),
                ("list", CellSource::Slot),
                ("sequence", CellSource::Be32(0)),
                ("number", CellSource::Be16(4)),
            ];
            let mut columns: Vec<_> = columns.map(|(name, part)| LayoutColumn::new(name, part)).into();
            if spec.name == flow_record::STORE && usize::from(entry_len) == flow_record::ENTRY_LEN {
                let in_entry = |column| flow_column(column, ENTRY);
                columns.extend(flow_record::COLUMNS.iter().map(in_entry));
            } else {
                columns.push(LayoutColumn::new("entry", CellSource::Bytes(ENTRY..element_len)));
            }
            let layout = Layout { columns, element_len, elements: lists.into(), order: Order::AsTheyCame };
            return layout.with_moments();
        }
        let (slot, elements) = match spec.kind {
            StoreKind::SketchMerge { columns, .. } => ("column", columns.into()),
            _ => ("slot", spec.element_count()),
        };
        let mut columns =
            vec![LayoutColumn::new("epoch", CellSource::Epoch), LayoutColumn::new(slot, CellSource::Slot)];
        let mut at = 0;
        for (name, field) in element_fields(&spec.kind) {
            columns.push(LayoutColumn::new(&name, CellSource::from_field(field, at)));
            at += field.size_in_bytes();
        }
        let element_len = spec.element_len() as usize;
        Layout { columns, element_len, elements, order: Order::BySlot }.with_moments()
    }

    /// The columns of a table of rows; `id` is the name of the second one.
    pub(crate) fn from_cells(id: &str, cells: &[(&str, Cell)]) -> Layout {
        let mut columns =
            vec![LayoutColumn::new("epoch", CellSource::Epoch), LayoutColumn::new(id, CellSource::Slot)];
        // Elements are whole 64-bit words.
        let element_len = append_columns(0, cells, &mut columns).next_multiple_of(8);
        Layout { columns, element_len, elements: 1 << 63, order: Order::BySlot }.with_moments()
    }

    /// The columns of a table that has cells in place of each entry of a store of lists.
    pub(crate) fn of_entries(spec: &StoreSpec, cells: &[(&str, Cell)]) -> Layout {
        let mut layout = Layout::from_spec(spec);
        assert_eq!(layout.order, Order::AsTheyCame, "a store of lists");
        layout.columns.truncate(ENTRY_COLUMN);
        layout.element_len = append_columns(ENTRY, cells, &mut layout.columns);
        layout.with_moments()
    }

    /// The columns of sums of flow records: the grouping ones, the start of the time bucket if there are any, and the sums, named
    /// `sum_bytes` where `bytes` is a grouping column.
    pub(crate) fn of_flow_groups(group: &[&flow_record::Column], has_buckets: bool) -> Layout {
        let (mut columns, mut at) = (Vec::new(), 0);
        for column in group {
            columns.push(flow_column_at(column, at));
            at += column.kind.width();
        }
        let sums = ["bytes", "packets", "flows"].map(|sum| {
            let groups = columns.iter().any(|column: &LayoutColumn| column.name == sum);
            if groups { format!("sum_{sum}") } else { sum.to_owned() }
        });
        let start = has_buckets.then_some("bucket_start");
        let numbers = start.into_iter().chain(sums.iter().map(String::as_str));
        let numbers: Vec<_> = numbers.map(|name| (name, Cell::U64)).collect();
        let element_len = append_columns(at, &numbers, &mut columns);
        Layout { columns, element_len, elements: 1, order: Order::Ranked }
    }

    /// Adds the moments of a row's epoch, for readers that do not know the log's tags.
    fn with_moments(mut self) -> Layout {
        self.columns.push(LayoutColumn::new("opened", CellSource::Opened));
        self.columns.push(LayoutColumn::new("closed", CellSource::Closed));
        self
    }

    /// The columns that hold parts of elements, with their indexes.
    pub(crate) fn element_columns(&self) -> impl Iterator<Item = (usize, &LayoutColumn)> {
        self.columns.iter().enumerate().skip(SLOT + 1).filter(|(_, column)| !column.is_moment())
    }

    /// Whether a column's smallest and largest value in a page help readers to skip the page.
    pub(crate) fn has_range(&self, column: usize) -> bool {
        match self.order {
            Order::BySlot => column <= SLOT,
            Order::AsTheyCame => column <= SLOT + 1,
            Order::Ranked => false,
        }
    }

    pub(crate) fn parquet_schema(&self) -> TypePtr {
        let field = |column: &LayoutColumn| {
            let field = Type::primitive_type_builder(&column.name, column.physical_type());
            let logical = match () {
                () if column.is_text() => Some(LogicalType::String),
                () if column.is_moment() => Some(LogicalType::timestamp(true, TimeUnit::MICROS)),
                () => None,
            };
            let field = field.with_repetition(Repetition::REQUIRED).with_logical_type(logical);
            Arc::new(field.build().expect("a plain column"))
        };
        let fields = self.columns.iter().map(field).collect();
        Arc::new(Type::group_type_builder("row").with_fields(fields).build().expect("plain columns"))
    }

    /// The layout as Delta's `schemaString`.
    pub(crate) fn delta_schema(&self) -> String {
        let field = |column: &LayoutColumn| serde_json::json!({ "name": column.name, "type": column.delta_type(), "nullable": false, "metadata": {} });
        let fields: Vec<_> = self.columns.iter().map(field).collect();
        serde_json::json!({ "type": "struct", "fields": fields }).to_string()
    }
}

/// A column of flow records; the entry, which holds all of them, begins at offset `entry`.
fn flow_column(column: &flow_record::Column, entry: usize) -> LayoutColumn {
    // Arrival times only grow, so their differences take fewer bytes; and few byte counts are equal.
    let has_dictionary = !matches!(column.name, "received" | "bytes");
    LayoutColumn { has_dictionary, ..flow_column_at(column, entry + column.offset) }
}

/// A column of flow records whose value is at an offset.
fn flow_column_at(column: &flow_record::Column, at: usize) -> LayoutColumn {
    let part = match column.kind {
        ColumnType::Address => CellSource::Address(at),
        ColumnType::Time | ColumnType::Count => CellSource::Be64(at),
        ColumnType::Number { width: 4 } => CellSource::Be32(at),
        ColumnType::Number { width: 2 } => CellSource::Be16(at),
        ColumnType::Number { .. } => CellSource::Byte(at),
    };
    LayoutColumn::new(&column.name.replace('-', "_"), part)
}

/// Appends columns for cells, which lie in a row from `at` on; returns where they end.
fn append_columns(mut at: usize, cells: &[(&str, Cell)], columns: &mut Vec<LayoutColumn>) -> usize {
    for (name, cell) in cells {
        let (part, len) = match cell {
            Cell::U16 => (CellSource::Be16(at), 2),
            Cell::U32 => (CellSource::Be32(at), 4),
            Cell::U64 => (CellSource::Be64(at), 8),
            Cell::Address => (CellSource::Address(at), 16),
            Cell::Text => (CellSource::Text(at), TEXT),
        };
        columns.push(LayoutColumn::new(name, part));
        at += len;
    }
    at
}
