//! A testbed's ledger: which report copies did not arrive as sent.
//!
//! A file of 8-byte records, all big-endian: `reporter u16, sequence u32, copy u8, fate u8`. A
//! version-0 report has reporter 0 and the low 8 bits of its sequence. Reports of one frame (a
//! batch, a row, a column, a coalesced increment) have one record each.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use dta_dataplane::losses::Origin;

pub const RECORD: usize = 8;

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LedgerFate {
    /// Dropped by the fault injector.
    Dropped = 1,
    /// Sent twice by the fault injector.
    Duplicated = 2,
    /// Sent after later ones by the fault injector.
    Reordered = 3,
    /// Corrupted by the fault injector in a bit that the iCRC covers.
    Corrupted = 4,
    /// Lost by its queue pair: the responder skipped it, or it was never sent.
    LostByQueuePair = 5,
}

pub struct Ledger {
    file: BufWriter<File>,
}

impl Ledger {
    /// Creates or truncates the file.
    pub fn create(path: &Path) -> io::Result<Ledger> {
        Ok(Ledger { file: BufWriter::new(File::create(path)?) })
    }

    pub fn write_record(&mut self, origin: &Origin, copy: u8, fate: LedgerFate) -> io::Result<()> {
        let mut record = [0; RECORD];
        record[..2].copy_from_slice(&origin.reporter.to_be_bytes());
        record[2..6].copy_from_slice(&origin.sequence.to_be_bytes());
        record[6] = copy;
        record[7] = fate as u8;
        self.file.write_all(&record)
    }

    /// Flushes everything to the operating system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_eight_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let mut ledger = Ledger::create(&path).unwrap();
        let origin = Origin { serial: 9, sequence: 0x0102_0304, reporter: 0x0506 };
        ledger.write_record(&origin, 3, LedgerFate::Corrupted).unwrap();
        ledger.write_record(&Origin::default(), 0, LedgerFate::Dropped).unwrap();
        ledger.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [5, 6, 1, 2, 3, 4, 3, 4, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
