//! The Parquet files of a table.

pub(crate) mod new_file;
pub(crate) mod pread;
pub(crate) mod read;
pub(crate) mod scan;
pub(crate) mod tail;
pub(crate) mod write;

pub(crate) use new_file::{ClosedFile, DataFileSummary, NewFile};
pub(crate) use read::DataFile;
pub(crate) use scan::{Scan, have_same_rows};
pub(crate) use tail::FileTail;
pub(crate) use write::{DataWriter, RowMoments, moment_cell};

/// Rows read per batch when a file is scanned.
pub(crate) const BATCH: usize = 8192;
