//! Rows as ClickHouse takes them: its types for a layout's columns, and rows in its format `RowBinary` (numbers little-endian, strings
//! preceded by their lengths, cells back to back).

use std::net::Ipv6Addr;

use crate::epoch::HistoryEpoch;
use crate::layout::{CellSource, Layout, text_range};

/// The columns before the table's own: where a row came from, and when its epoch was.
const BEFORE: [(&str, &str); 3] = [
    ("collector", "LowCardinality(String)"),
    ("opened", "DateTime64(3, 'UTC')"),
    ("closed", "DateTime64(3, 'UTC')"),
];

/// The index of the column with the number of the slot, list or key.
pub(super) const SLOT: usize = BEFORE.len() + crate::layout::SLOT;

pub(super) fn column_types(layout: &Layout) -> Vec<(&str, String)> {
    let of = |part: &CellSource| match part {
        CellSource::Epoch | CellSource::Slot | CellSource::Le64(_) | CellSource::Be64(_) => {
            "UInt64".to_owned()
        }
        CellSource::Be32(_) => "UInt32".to_owned(),
        CellSource::Be16(_) | CellSource::Le16(_) => "UInt16".to_owned(),
        CellSource::Byte(_) => "UInt8".to_owned(),
        CellSource::Bytes(range) => format!("FixedString({})", range.len()),
        CellSource::Address(_) => "String".to_owned(),
        CellSource::Text(_) => "LowCardinality(String)".to_owned(),
        CellSource::Opened | CellSource::Closed => unreachable!("they are before"),
    };
    let before = BEFORE.map(|(name, of)| (name, of.to_owned()));
    let columns = layout.columns.iter().filter(|column| !column.is_moment());
    let columns = columns.map(|column| (column.name.as_str(), of(&column.part)));
    before.into_iter().chain(columns).collect()
}

pub(super) fn epoch_cells(collector: &str, epoch: &HistoryEpoch) -> Vec<u8> {
    let mut cells = Vec::new();
    append_string(&mut cells, collector.as_bytes());
    // ClickHouse's moments are signed milliseconds.
    [epoch.opened, epoch.flipped_to].iter().for_each(|moment| cells.extend(moment.to_le_bytes()));
    cells
}

/// Appends the cells of the table's own columns.
pub(super) fn append_cells(row: &mut Vec<u8>, layout: &Layout, epoch: u64, slot: u64, element: &[u8]) {
    for column in &layout.columns {
        match &column.part {
            CellSource::Epoch => row.extend(epoch.to_le_bytes()),
            CellSource::Slot => row.extend(slot.to_le_bytes()),
            CellSource::Le64(at) => row.extend(&element[*at..at + 8]),
            CellSource::Le16(at) => row.extend(&element[*at..at + 2]),
            CellSource::Be64(at) => row.extend(element[*at..at + 8].iter().rev()),
            CellSource::Be32(at) => row.extend(element[*at..at + 4].iter().rev()),
            CellSource::Be16(at) => row.extend(element[*at..at + 2].iter().rev()),
            CellSource::Byte(at) => row.push(element[*at]),
            CellSource::Bytes(range) => row.extend(&element[range.clone()]),
            CellSource::Address(at) => {
                let octets: [u8; 16] = element[*at..at + 16].try_into().expect("sixteen bytes");
                append_string(row, Ipv6Addr::from(octets).to_canonical().to_string().as_bytes());
            }
            CellSource::Text(at) => append_string(row, &element[text_range(element, *at)]),
            // Already written, before the table's own columns.
            CellSource::Opened | CellSource::Closed => {}
        }
    }
}

/// A string preceded by its length (LEB128).
fn append_string(row: &mut Vec<u8>, text: &[u8]) {
    let mut len = text.len();
    while len >= 0x80 {
        row.push(len as u8 | 0x80);
        len >>= 7;
    }
    row.push(len as u8);
    row.extend(text);
}
