//! Looking up slots in one Parquet file: only the pages that hold them are read.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::file::statistics::Statistics;

use super::FileTail;
use super::pread::Pread;
use crate::HistoryError;
use crate::layout::{CellSource, EPOCH, Layout, LayoutColumn, Order, SLOT, TEXT};

pub(crate) struct DataFile {
    path: PathBuf,
    reader: Arc<Pread>,
    meta: ParquetMetaData,
    pub(crate) layout: Arc<Layout>,
    /// First and last slot of each row group.
    spans: Vec<(i64, i64)>,
}

/// The epochs asked for, by number, each with the index of its first element in the answer.
pub(crate) type Epochs = BTreeMap<i64, usize>;

/// A slot to look up, and the index of its element among an epoch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WantedSlot {
    pub(crate) slot: i64,
    pub(crate) answer: usize,
}

impl DataFile {
    /// Opens a file. `tail`: what its end must be.
    pub(crate) fn open(
        path: &Path,
        layout: Arc<Layout>,
        tail: Option<FileTail>,
    ) -> Result<DataFile, HistoryError> {
        let file = File::open(path).map_err(HistoryError::io_error("open", path))?;
        tail.map_or(Ok(()), |tail| tail.verify_file(&file, path))?;
        let reader = Pread::new(file).map_err(HistoryError::io_error("read", path))?;
        let metadata = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Optional);
        let meta = metadata.parse_and_finish(&reader).map_err(HistoryError::parquet_error(path))?;
        let foreign = |problem: String| HistoryError::Foreign { path: path.to_owned(), problem };
        let schema = meta.file_metadata().schema_descr();
        let same = schema.num_columns() == layout.columns.len()
            && schema.columns().iter().zip(&layout.columns).all(|(has, column)| {
                has.name() == column.name
                    && has.physical_type() == column.physical_type()
                    && has.max_def_level() == 0
                    && has.max_rep_level() == 0
            });
        if !same {
            let names: Vec<&str> = schema.columns().iter().map(|column| column.name()).collect();
            return Err(foreign(format!("it has the columns {}", names.join(", "))));
        }
        let spans: Option<Vec<_>> =
            (0..meta.num_row_groups()).map(|group| column_range(&meta, group, SLOT)).collect();
        let spans = spans.ok_or_else(|| foreign("a row group has no statistics of its slots".to_owned()))?;
        if layout.order == Order::BySlot && !spans.is_sorted() {
            return Err(foreign("its row groups are not in the order of their slots".to_owned()));
        }
        Ok(DataFile { path: path.to_owned(), reader: Arc::new(reader), meta, layout, spans })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.meta.memory_size()
    }

    pub(crate) fn file_path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn row_group_count(&self) -> usize {
        self.spans.len()
    }

    /// Whether a row group may have rows of an epoch.
    pub(crate) fn may_have_epoch(&self, group: usize, epoch: i64) -> bool {
        column_range(&self.meta, group, EPOCH).is_none_or(|(first, last)| (first..=last).contains(&epoch))
    }

    pub(crate) fn row_group_len(&self, group: usize) -> usize {
        self.meta.row_group(group).num_rows() as usize
    }

    /// A reader of one column of a row group, starting at its first row.
    pub(crate) fn column_reader(&self, group: usize, column: usize) -> Result<ColumnReader> {
        let chunk = self.meta.row_group(group).column(column);
        let index = self.meta.page_index_for_row_group(group);
        let locations = index.page_locations(column).filter(|pages| !pages.is_empty()).cloned();
        let pages =
            SerializedPageReader::new(self.reader.clone(), chunk, self.row_group_len(group), locations)?;
        Ok(get_column_reader(chunk.column_descr_ptr(), Box::new(pages)))
    }

    /// Writes the elements of slots into `out` for rows of one of these epochs, and leaves the rest as it is. `wanted` is sorted, without
    /// duplicate slots. `several`: the file has more than one epoch.
    pub(crate) fn look_up_slots(
        &self,
        epochs: &Epochs,
        several: bool,
        wanted: &[WantedSlot],
        out: &mut [u8],
    ) -> Result<(), HistoryError> {
        for (group, (first, last)) in self.spans.iter().enumerate() {
            let from = wanted.partition_point(|wanted| wanted.slot < *first);
            let to = wanted.partition_point(|wanted| wanted.slot <= *last);
            if from < to {
                let looked = self.look_up_in(group, epochs, several, &wanted[from..to], out);
                looked.map_err(HistoryError::parquet_error(&self.path))?;
            }
        }
        Ok(())
    }

    fn look_up_in(
        &self,
        group: usize,
        epochs: &Epochs,
        several: bool,
        wanted: &[WantedSlot],
        out: &mut [u8],
    ) -> Result<()> {
        let found = self.find_wanted_rows(group, epochs, several, wanted)?;
        if found.is_empty() {
            return Ok(());
        }
        let len = self.layout.element_len;
        for (number, column) in self.layout.element_columns() {
            let mut cells = Cells::new(self.column_reader(group, number)?, column);
            for (row, answer) in &found {
                cells.skip_to_row(*row)?;
                cells.read(1, |_| *answer, len, out)?;
            }
        }
        Ok(())
    }

    /// The wanted rows of a row group, ascending, each with its place in the answer.
    fn find_wanted_rows(
        &self,
        group: usize,
        epochs: &Epochs,
        several: bool,
        wanted: &[WantedSlot],
    ) -> Result<Vec<(usize, usize)>> {
        let pages = self.slot_pages(group);
        let mut slots = Numbers::new(self.column_reader(group, SLOT)?);
        let mut of_rows = Numbers::new(self.column_reader(group, EPOCH)?);
        let mut found = Vec::new();
        let mut page = 0;
        for wanted in wanted {
            page += pages[page..].partition_point(|page| page.last < wanted.slot);
            // In a file of several epochs, a slot's rows may continue on the next page.
            for page in pages[page..].iter().take_while(|page| page.first <= wanted.slot) {
                let in_page = slots.read_range(page.row, page.rows)?;
                let from = in_page.partition_point(|slot| *slot < wanted.slot);
                let same = in_page[from..].partition_point(|slot| *slot == wanted.slot);
                let row = page.row + from;
                if !several {
                    found.extend(
                        (row..row + same)
                            .zip(epochs.values())
                            .map(|(row, first)| (row, first + wanted.answer)),
                    );
                } else if same > 0 {
                    let of_rows = (row..).zip(of_rows.read_range(row, same)?);
                    let asked = |(row, epoch)| Some((row, epochs.get(epoch)? + wanted.answer));
                    found.extend(of_rows.filter_map(asked));
                }
            }
        }
        Ok(found)
    }

    /// The pages of a row group's slot column; without an index, a single page for all of it.
    fn slot_pages(&self, group: usize) -> Vec<SlotPage> {
        let rows = self.row_group_len(group);
        let index = self.meta.page_index_for_row_group(group);
        let of_index = || {
            let locations = index.page_locations(SLOT)?;
            let Some(ColumnIndexMetaData::INT64(slots)) = index.column_index(SLOT) else { return None };
            let (first, last) = (slots.min_values(), slots.max_values());
            if first.len() != locations.len() || !last.is_sorted() || locations.is_empty() {
                return None;
            }
            let starts = locations.iter().map(|location| location.first_row_index as usize);
            let ends = starts.clone().skip(1).chain([rows]);
            let page = |(row, end): (usize, usize)| Some((row, end.checked_sub(row)?));
            let ranges: Option<Vec<_>> = starts.zip(ends).map(page).collect();
            let pages = ranges?.into_iter().zip(first.iter().zip(last));
            Some(
                pages
                    .map(|((row, rows), (first, last))| SlotPage { first: *first, last: *last, row, rows })
                    .collect(),
            )
        };
        let (first, last) = self.spans[group];
        of_index().unwrap_or_else(|| vec![SlotPage { first, last, row: 0, rows }])
    }
}

struct SlotPage {
    first: i64,
    last: i64,
    /// The index of its first row in the row group.
    row: usize,
    rows: usize,
}

/// A column of longs, read forwards in ranges; the last range is kept.
struct Numbers {
    reader: ColumnReaderImpl<Int64Type>,
    /// The row after the last one read.
    at: usize,
    kept: Vec<i64>,
}

impl Numbers {
    fn new(reader: ColumnReader) -> Numbers {
        Numbers { reader: get_typed_column_reader(reader), at: 0, kept: Vec::new() }
    }

    fn read_range(&mut self, from: usize, rows: usize) -> Result<&[i64]> {
        let kept = self.at - self.kept.len();
        if from >= kept && from + rows <= self.at {
            return Ok(&self.kept[from - kept..from - kept + rows]);
        }
        let skip = from.checked_sub(self.at).ok_or_else(row_order_error)?;
        if self.reader.skip_records(skip)? != skip {
            return Err(missing_rows_error());
        }
        next_rows(&mut self.reader, rows, &mut self.kept)?;
        self.at = from + rows;
        Ok(&self.kept)
    }
}

/// A column, read forwards into the bytes of elements.
pub(crate) struct Cells<'a> {
    column: &'a LayoutColumn,
    reader: Typed,
    at: usize,
}

enum Typed {
    Longs(ColumnReaderImpl<Int64Type>, Vec<i64>),
    Integers(ColumnReaderImpl<Int32Type>, Vec<i32>),
    Bytes(ColumnReaderImpl<ByteArrayType>, Vec<ByteArray>),
}

impl<'a> Cells<'a> {
    pub(crate) fn new(reader: ColumnReader, column: &'a LayoutColumn) -> Cells<'a> {
        let reader = match column.part {
            CellSource::Epoch
            | CellSource::Slot
            | CellSource::Be32(_)
            | CellSource::Be64(_)
            | CellSource::Le64(_) => Typed::Longs(get_typed_column_reader(reader), Vec::new()),
            CellSource::Be16(_) | CellSource::Le16(_) | CellSource::Byte(_) => {
                Typed::Integers(get_typed_column_reader(reader), Vec::new())
            }
            CellSource::Bytes(_) | CellSource::Address(_) | CellSource::Text(_) => {
                Typed::Bytes(get_typed_column_reader(reader), Vec::new())
            }
            CellSource::Opened | CellSource::Closed => unreachable!("no part of an element"),
        };
        Cells { column, reader, at: 0 }
    }

    fn skip_to_row(&mut self, row: usize) -> Result<()> {
        // Rows of a damaged file may come in any order.
        let skip = row.checked_sub(self.at).ok_or_else(row_order_error)?;
        let skipped = match &mut self.reader {
            Typed::Longs(reader, _) => reader.skip_records(skip),
            Typed::Integers(reader, _) => reader.skip_records(skip),
            Typed::Bytes(reader, _) => reader.skip_records(skip),
        }?;
        self.at = row;
        if skipped == skip { Ok(()) } else { Err(missing_rows_error()) }
    }

    /// Reads the cells of the next rows; row n of them goes into element `place(n)` of `out`.
    pub(crate) fn read(
        &mut self,
        rows: usize,
        place: impl Fn(usize) -> usize,
        len: usize,
        out: &mut [u8],
    ) -> Result<()> {
        self.at += rows;
        let mut put = |row: usize, range: std::ops::Range<usize>, bytes: &[u8]| {
            out[place(row) * len..][range].copy_from_slice(bytes);
        };
        let wrong =
            |problem: String| Err(ParquetError::General(format!("column {}: {problem}", self.column.name)));
        match &mut self.reader {
            Typed::Longs(reader, values) => {
                next_rows(reader, rows, values)?;
                for (row, value) in values.iter().enumerate() {
                    match (&self.column.part, u32::try_from(*value)) {
                        (CellSource::Be64(at), _) => put(row, *at..at + 8, &value.to_be_bytes()),
                        (CellSource::Le64(at), _) => put(row, *at..at + 8, &value.to_le_bytes()),
                        (CellSource::Be32(at), Ok(value)) => put(row, *at..at + 4, &value.to_be_bytes()),
                        (CellSource::Be32(_), Err(_)) => {
                            return wrong(format!("{value} is no 32-bit number"));
                        }
                        _ => unreachable!("no part of an element"),
                    }
                }
            }
            Typed::Integers(reader, values) => {
                next_rows(reader, rows, values)?;
                for (row, value) in values.iter().enumerate() {
                    let Ok(value) = u16::try_from(*value) else {
                        return wrong(format!("{value} is no 16-bit number"));
                    };
                    match self.column.part {
                        CellSource::Le16(at) => put(row, at..at + 2, &value.to_le_bytes()),
                        CellSource::Be16(at) => put(row, at..at + 2, &value.to_be_bytes()),
                        CellSource::Byte(at) => match u8::try_from(value) {
                            Ok(value) => put(row, at..at + 1, &[value]),
                            Err(_) => return wrong(format!("{value} is no 8-bit number")),
                        },
                        _ => unreachable!("the column's type says so"),
                    }
                }
            }
            Typed::Bytes(reader, values) => {
                next_rows(reader, rows, values)?;
                for (row, value) in values.iter().enumerate() {
                    match &self.column.part {
                        CellSource::Bytes(range) if value.len() == range.len() => {
                            put(row, range.clone(), value.data())
                        }
                        CellSource::Address(at) => match parse_address(value.data()) {
                            Some(octets) => put(row, *at..at + 16, &octets),
                            None => return wrong("a text that is no address".to_owned()),
                        },
                        CellSource::Text(at) if value.len() <= TEXT => {
                            let mut text = [0; TEXT];
                            text[..value.len()].copy_from_slice(value.data());
                            put(row, *at..at + TEXT, &text);
                        }
                        _ => return wrong(format!("a value of {} bytes", value.len())),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads the cells of the next rows into `values`, replacing what was there.
pub(crate) fn next_rows<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    values: &mut Vec<T::T>,
) -> Result<()> {
    values.clear();
    if reader.read_records(rows, None, None, values)?.0 == rows { Ok(()) } else { Err(missing_rows_error()) }
}

/// The least and greatest number in a column of a row group; `None` without statistics.
fn column_range(meta: &ParquetMetaData, group: usize, column: usize) -> Option<(i64, i64)> {
    match meta.row_group(group).column(column).statistics() {
        Some(Statistics::Int64(of)) => Some((*of.min_opt()?, *of.max_opt()?)),
        _ => None,
    }
}

/// The bytes of an address given as text.
fn parse_address(text: &[u8]) -> Option<[u8; 16]> {
    Some(match std::str::from_utf8(text).ok()?.parse().ok()? {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    })
}

/// The index claims more rows than there are.
fn missing_rows_error() -> ParquetError {
    ParquetError::EOF("a column has fewer rows than its row group".to_owned())
}

fn row_order_error() -> ParquetError {
    ParquetError::General("its rows are not in the order of their slots".to_owned())
}
