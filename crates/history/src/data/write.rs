//! Writes one Parquet file, with its rows in the order of the layout.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Ipv6Addr;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::ColumnPath;

use super::BATCH;
use crate::layout::{CellSource, EPOCH, Layout, Order, SLOT, text_range};

/// Rows in a row group, which is held in memory until it is full.
const GROUP: usize = 1 << 18;
/// Rows in a page: a lookup decodes this many of each column.
const PAGE: usize = 4096;
/// Rows in a page of list entries, which nobody looks up.
const ENTRY_PAGE: usize = 16_384;

/// When the epochs of a file began, and when the last of their writers had moved away.
#[derive(Debug)]
pub(crate) enum RowMoments {
    /// The file has one epoch, which is not over yet: [`WrittenData::moments`] says where to fill in its moments.
    Later,
    /// By epoch number, in milliseconds since 1970.
    Known(BTreeMap<i64, [u64; 2]>),
}

#[derive(Debug)]
pub(crate) struct WrittenData {
    /// The offset of its index, after the last rows.
    pub(crate) index: u64,
    /// For each row group the offsets of its two moments, eight bytes each, if they are still to be filled in.
    pub(crate) moments: Vec<[u64; 2]>,
}

/// A moment as it is stored: in microseconds.
pub(crate) fn moment_cell(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds).unwrap_or(i64::MAX).saturating_mul(1000)
}

/// A file that is being written. Rows must come in the order of the layout.
pub(crate) struct DataWriter<W: Write + Send> {
    layout: Arc<Layout>,
    moments: RowMoments,
    file: SerializedFileWriter<W>,
    epochs: Vec<i64>,
    slots: Vec<i64>,
    /// The elements of the rows, back to back.
    elements: Vec<u8>,
    written: RowSummary,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowSummary {
    pub(crate) count: u64,
    /// The smallest and the largest slot; `None` without rows.
    pub(crate) slots: Option<(i64, i64)>,
}

impl<W: Write + Send> DataWriter<W> {
    /// Begins a file; `about` is written into its metadata.
    pub(crate) fn new(
        layout: Arc<Layout>,
        into: W,
        about: (&str, String),
        moments: RowMoments,
    ) -> Result<DataWriter<W>> {
        let properties = Arc::new(properties(&layout, about, &moments));
        let file = SerializedFileWriter::new(into, layout.parquet_schema(), properties)?;
        let (epochs, slots, elements) = (Vec::new(), Vec::new(), Vec::new());
        Ok(DataWriter { layout, moments, file, epochs, slots, elements, written: RowSummary::default() })
    }

    #[inline]
    pub(crate) fn append_row(&mut self, epoch: i64, slot: i64, element: &[u8]) -> Result<()> {
        debug_assert_eq!(element.len(), self.layout.element_len);
        self.epochs.push(epoch);
        self.slots.push(slot);
        self.elements.extend_from_slice(element);
        if self.slots.len() == GROUP { self.flush() } else { Ok(()) }
    }

    pub(crate) fn row_summary(&self) -> RowSummary {
        let held = self.slots.iter().copied().min().zip(self.slots.iter().copied().max());
        let slots = match (self.written.slots, held) {
            (Some((first, last)), Some((least, most))) => Some((first.min(least), last.max(most))),
            (written, held) => written.or(held),
        };
        RowSummary { count: self.written.count + self.slots.len() as u64, slots }
    }

    /// Writes the rows held in memory as a row group.
    fn flush(&mut self) -> Result<()> {
        let mut group = self.file.next_row_group()?;
        let elements = Bytes::from(std::mem::take(&mut self.elements));
        let (len, end) = (self.layout.element_len, elements.len());
        for column in &self.layout.columns {
            let mut writer = group.next_column()?.expect("a column of the schema");
            let to = &mut writer;
            match &column.part {
                CellSource::Epoch => _ = to.typed::<Int64Type>().write_batch(&self.epochs, None, None)?,
                CellSource::Slot => _ = to.typed::<Int64Type>().write_batch(&self.slots, None, None)?,
                CellSource::Be32(at) => {
                    write_column::<Int64Type>(to, end, len, |row| read_be32(&elements, row + at).into())?
                }
                CellSource::Be64(at) => write_column::<Int64Type>(to, end, len, |row| {
                    read_be64(&elements, row + at).cast_signed()
                })?,
                CellSource::Le64(at) => write_column::<Int64Type>(to, end, len, |row| {
                    read_le64(&elements, row + at).cast_signed()
                })?,
                CellSource::Be16(at) => {
                    write_column::<Int32Type>(to, end, len, |row| read_be16(&elements, row + at).into())?
                }
                CellSource::Byte(at) => {
                    write_column::<Int32Type>(to, end, len, |row| elements[row + at].into())?
                }
                CellSource::Le16(at) => write_column::<Int32Type>(to, end, len, |row| {
                    read_be16(&elements, row + at).swap_bytes().into()
                })?,
                CellSource::Bytes(range) => write_column::<ByteArrayType>(to, end, len, |row| {
                    elements.slice(row + range.start..row + range.end).into()
                })?,
                CellSource::Address(at) => write_column::<ByteArrayType>(to, end, len, |row| {
                    let octets: [u8; 16] = elements[row + at..][..16].try_into().expect("sixteen bytes");
                    Ipv6Addr::from(octets).to_canonical().to_string().into_bytes().into()
                })?,
                CellSource::Text(at) => write_column::<ByteArrayType>(to, end, len, |row| {
                    elements.slice(text_range(&elements, row + at)).into()
                })?,
                CellSource::Opened => write_moments(to, &self.moments, &self.epochs, 0)?,
                CellSource::Closed => write_moments(to, &self.moments, &self.epochs, 1)?,
            }
            writer.close()?;
        }
        group.close()?;
        self.written = self.row_summary();
        self.epochs.clear();
        self.slots.clear();
        // Nobody else holds a part of it, so the memory is reused for the next rows.
        self.elements = elements.into();
        self.elements.clear();
        Ok(())
    }

    /// Ends the file. The caller still has to fill in moments and sync it.
    pub(crate) fn finish(mut self) -> Result<WrittenData> {
        if !self.slots.is_empty() {
            self.flush()?;
        }
        let meta = self.file.finish()?;
        let columns = meta.row_groups().iter().flat_map(|group| group.columns());
        let end = columns.map(|column| column.byte_range()).map(|(start, len)| start + len).max();
        let mut moments = Vec::new();
        if matches!(self.moments, RowMoments::Later) {
            for group in meta.row_groups() {
                let of_moments = self.layout.columns.iter().zip(group.columns());
                let places = of_moments.filter(|(column, _)| column.is_moment()).map(|(_, chunk)| {
                    // The dictionary has a single value, just before the page of the rows begins.
                    let value = chunk.dictionary_page_offset().map(|_| chunk.data_page_offset() - 8);
                    value.and_then(|value| u64::try_from(value).ok())
                });
                let places: Option<Vec<u64>> = places.collect();
                let places = places.and_then(|places| places.try_into().ok());
                moments.push(places.ok_or_else(|| {
                    ParquetError::General("a column of moments has no dictionary".to_owned())
                })?);
            }
        }
        Ok(WrittenData { index: end.unwrap_or(0), moments })
    }
}

/// Writes the column of one of the two moments.
fn write_moments(
    writer: &mut SerializedColumnWriter,
    moments: &RowMoments,
    epochs: &[i64],
    which: usize,
) -> Result<()> {
    let moment = |epoch: &i64| match moments {
        RowMoments::Later => 0,
        RowMoments::Known(all) => all.get(epoch).map_or(0, |moments| moment_cell(moments[which])),
    };
    for epochs in epochs.chunks(BATCH) {
        let moments: Vec<i64> = epochs.iter().map(moment).collect();
        writer.typed::<Int64Type>().write_batch(&moments, None, None)?;
    }
    Ok(())
}

fn read_be32(elements: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(elements[at..at + 4].try_into().expect("four bytes"))
}

fn read_be64(elements: &[u8], at: usize) -> u64 {
    read_le64(elements, at).swap_bytes()
}

fn read_le64(elements: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(elements[at..at + 8].try_into().expect("eight bytes"))
}

fn read_be16(elements: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([elements[at], elements[at + 1]])
}

/// Writes a column of rows of `len` bytes; `of` returns the value of the row at an offset.
fn write_column<T: DataType>(
    writer: &mut SerializedColumnWriter,
    end: usize,
    len: usize,
    of: impl Fn(usize) -> T::T,
) -> Result<()> {
    let mut values: Vec<T::T> = Vec::with_capacity(BATCH);
    for first in (0..end).step_by(BATCH * len) {
        values.extend((first..end.min(first + BATCH * len)).step_by(len).map(&of));
        writer.typed::<T>().write_batch(&values, None, None)?;
        values.clear();
    }
    Ok(())
}

fn properties(layout: &Layout, about: (&str, String), moments: &RowMoments) -> WriterProperties {
    let ascending =
        |column: usize| SortingColumn { column_idx: column as i32, descending: false, nulls_first: false };
    let (sorting, page) = match layout.order {
        Order::BySlot => (vec![ascending(SLOT), ascending(EPOCH)], PAGE),
        Order::AsTheyCame => (vec![ascending(EPOCH)], ENTRY_PAGE),
        Order::Ranked => (Vec::new(), ENTRY_PAGE),
    };
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("dta-history ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).expect("a level of zstd")))
        .set_key_value_metadata(Some(vec![KeyValue::new(about.0.to_owned(), about.1)]))
        .set_sorting_columns((!sorting.is_empty()).then_some(sorting))
        .set_max_row_group_row_count(Some(GROUP))
        .set_data_page_row_count_limit(page)
        .set_write_batch_size(PAGE)
        // Dictionaries make files of a few switches' numbers 7 % smaller but writing 50 % slower, and each lookup reads
        // them. Flow records, which no lookup reads, shrink by a third at no cost (docs/decisions/history.md).
        .set_dictionary_enabled(false);
    for (number, column) in layout.columns.iter().enumerate() {
        let path = ColumnPath::from(column.name.as_str());
        if column.is_moment() {
            properties = properties
                .set_column_dictionary_enabled(path.clone(), true)
                .set_column_statistics_enabled(path.clone(), EnabledStatistics::None);
            if matches!(moments, RowMoments::Later) {
                // Its bytes are overwritten later.
                properties = properties.set_column_compression(path, Compression::UNCOMPRESSED);
            }
            continue;
        }
        properties = properties.set_column_dictionary_enabled(path.clone(), column.has_dictionary);
        let encoding = match column.physical_type() {
            Physical::BYTE_ARRAY => Encoding::PLAIN,
            _ => Encoding::DELTA_BINARY_PACKED,
        };
        // Ranges of hashes and of values help nobody.
        let statistics =
            if layout.has_range(number) { EnabledStatistics::Page } else { EnabledStatistics::None };
        properties = properties
            .set_column_encoding(path.clone(), encoding)
            .set_column_statistics_enabled(path, statistics);
    }
    properties.build()
}
