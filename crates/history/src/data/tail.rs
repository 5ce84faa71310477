//! The end of a Parquet file, which says where its rows are. The Parquet library panics on some damage there, and the format has no
//! checksum for it, so the log has one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::HistoryError;

/// Where the end of a file begins, and the CRC-32C of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileTail {
    at: u64,
    crc32c: u32,
}

impl FileTail {
    /// Reads the end of a file from an offset on.
    pub(crate) fn read_from(file: &File, path: &Path, at: u64) -> Result<FileTail, HistoryError> {
        let len = file.metadata().map_err(HistoryError::io_error("read", path))?.len();
        let mut bytes = vec![0; len.saturating_sub(at) as usize];
        file.read_exact_at(&mut bytes, at).map_err(HistoryError::io_error("read", path))?;
        Ok(FileTail { at, crc32c: dta_proto::crc::crc32c(&bytes) })
    }

    pub(crate) fn verify_file(&self, file: &File, path: &Path) -> Result<(), HistoryError> {
        if FileTail::read_from(file, path, self.at)? == *self {
            return Ok(());
        }
        Err(HistoryError::Foreign { path: path.to_owned(), problem: "its index is damaged".to_owned() })
    }
}
