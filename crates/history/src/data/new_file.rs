//! A data file on its way to the disk.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use dta_proto::store::StoreSpec;

use super::{DataWriter, Tail};
use crate::HistoryError;
use crate::layout::Layout;
use crate::log::action::{STORE, describe};
use crate::temporary::Temporary;

/// A data file that is being written, under a temporary name.
pub(crate) struct NewFile {
    file: Temporary,
    writer: DataWriter<File>,
}

/// What a data file has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// The smallest and the largest slot, if it has a row.
    pub(crate) slots: Option<(u64, u64)>,
    pub(crate) tail: Tail,
}

impl NewFile {
    pub(crate) fn new(table: &Path, spec: &StoreSpec, layout: &Arc<Layout>) -> Result<NewFile, HistoryError> {
        let file = Temporary::new(table)?;
        let clone = file.file().try_clone().map_err(HistoryError::io("write", file.path()))?;
        let writer = DataWriter::new(layout.clone(), clone, (STORE, describe(spec)));
        let writer = writer.map_err(HistoryError::parquet(file.path()))?;
        Ok(NewFile { file, writer })
    }

    /// Puts in a row: they come in the order of the layout.
    #[inline]
    pub(crate) fn put(&mut self, epoch: u64, slot: u64, element: &[u8]) -> Result<(), HistoryError> {
        let put = self.writer.put(epoch.cast_signed(), slot.cast_signed(), element);
        put.map_err(HistoryError::parquet(self.file.path()))
    }

    /// Its rows up to now.
    pub(crate) fn rows(&self) -> u64 {
        self.writer.rows().count
    }

    /// Has the whole file on disk under its name. It goes again unless it is [kept](Temporary::keep).
    pub(crate) fn finish(self, name: &str) -> Result<(Temporary, Made), HistoryError> {
        let NewFile { mut file, writer } = self;
        let rows = writer.rows();
        let index = writer.finish().map_err(HistoryError::parquet(file.path()))?;
        let bytes = file.file().metadata().map_err(HistoryError::io("read", file.path()))?.len();
        let tail = Tail::of(file.file(), file.path(), index)?;
        file.rename(&file.path().with_file_name(name))?;
        let slots = rows.slots.map(|(first, last)| (first.cast_unsigned(), last.cast_unsigned()));
        Ok((file, Made { rows: rows.count, bytes, slots, tail }))
    }
}
