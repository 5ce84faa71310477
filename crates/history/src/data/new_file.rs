//! A data file on its way to disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use dta_proto::store::StoreSpec;

use super::{DataFile, DataWriter, FileTail, RowMoments, moment_cell};
use crate::HistoryError;
use crate::layout::Layout;
use crate::log::action::{STORE, describe_store};
use crate::temporary::Temporary;

/// A data file that is being written, under a temporary name.
pub(crate) struct NewFile {
    file: Temporary,
    writer: DataWriter<File>,
}

/// A finished file, still under its temporary name.
pub(crate) struct ClosedFile {
    file: Temporary,
    pub(crate) summary: DataFileSummary,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DataFileSummary {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// The smallest and the largest slot; `None` without rows.
    pub(crate) slots: Option<(u64, u64)>,
    pub(crate) tail: FileTail,
}

impl NewFile {
    pub(crate) fn new(
        table: &Path,
        spec: &StoreSpec,
        layout: &Arc<Layout>,
        moments: RowMoments,
    ) -> Result<NewFile, HistoryError> {
        let file = Temporary::new(table)?;
        let clone =
            file.locked_file().try_clone().map_err(HistoryError::io_error("write", file.file_path()))?;
        let writer = DataWriter::new(layout.clone(), clone, (STORE, describe_store(spec)), moments);
        let writer = writer.map_err(HistoryError::parquet_error(file.file_path()))?;
        Ok(NewFile { file, writer })
    }

    /// Appends a row; rows must come in the order of the layout.
    #[inline]
    pub(crate) fn append_row(&mut self, epoch: u64, slot: u64, element: &[u8]) -> Result<(), HistoryError> {
        let put = self.writer.append_row(epoch.cast_signed(), slot.cast_signed(), element);
        put.map_err(HistoryError::parquet_error(self.file.file_path()))
    }

    pub(crate) fn row_count(&self) -> u64 {
        self.writer.row_summary().count
    }

    /// Writes the rest, and fills in these moments (milliseconds since 1970) where they were left open.
    pub(crate) fn close(self, moments: [u64; 2]) -> Result<ClosedFile, HistoryError> {
        let NewFile { file, writer } = self;
        let rows = writer.row_summary();
        let written = writer.finish().map_err(HistoryError::parquet_error(file.file_path()))?;
        for (place, moment) in written.moments.iter().flat_map(|places| places.iter().zip(moments)) {
            let fill = file.locked_file().write_all_at(&moment_cell(moment).to_le_bytes(), *place);
            fill.map_err(HistoryError::io_error("write", file.file_path()))?;
        }
        let bytes =
            file.locked_file().metadata().map_err(HistoryError::io_error("read", file.file_path()))?.len();
        let tail = FileTail::read_from(file.locked_file(), file.file_path(), written.index)?;
        let slots = rows.slots.map(|(first, last)| (first.cast_unsigned(), last.cast_unsigned()));
        Ok(ClosedFile { file, summary: DataFileSummary { rows: rows.count, bytes, slots, tail } })
    }
}

impl ClosedFile {
    /// Syncs the file and gives it its name. It is removed again without [`Temporary::persist_file`].
    pub(crate) fn rename_to(mut self, name: &str) -> Result<(Temporary, DataFileSummary), HistoryError> {
        self.file.rename_to(&self.file.file_path().with_file_name(name))?;
        Ok((self.file, self.summary))
    }

    pub(crate) fn open(&self, layout: &Arc<Layout>) -> Result<DataFile, HistoryError> {
        DataFile::open(self.file.file_path(), layout.clone(), Some(self.summary.tail))
    }
}
