//! A file for the Parquet reader, read at offsets so that several threads can use it at once. The library's own
//! implementation for files shares the position between threads.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// A file whose length does not change.
pub(crate) struct Pread {
    file: Arc<File>,
    len: u64,
}

impl Pread {
    pub(crate) fn new(file: File) -> io::Result<Pread> {
        Ok(Pread { len: file.metadata()?.len(), file: Arc::new(file) })
    }
}

impl Length for Pread {
    fn len(&self) -> u64 {
        self.len
    }
}

/// The bytes of a file from an offset on.
pub(crate) struct From {
    file: Arc<File>,
    at: u64,
}

impl Read for From {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl ChunkReader for Pread {
    type T = io::BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(io::BufReader::new(From { file: self.file.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // A damaged index may claim any length: nothing is reserved beyond the end of the file.
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} of a file of {}", self.len)));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}
