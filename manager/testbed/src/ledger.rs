//! Reads the translator's ledger into the journal.

use std::path::Path;

use dta_translator::packets::ledger::{Fate, RECORD};

use super::journal::Journal;

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// It cannot be read.
    #[error("cannot read the translator's ledger {path}: {source}")]
    Read {
        /// Which file.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It names what nobody sent.
    #[error(
        "the translator's ledger {path} names report {number} of reporter {reporter}, which was never made"
    )]
    Unknown {
        /// Which file.
        path: String,
        /// Reporter.
        reporter: u16,
        /// Sequence.
        number: u32,
    },
}

/// Notes the fate of every report copy in the ledger.
pub fn read(path: &Path, journal: &mut Journal) -> Result<(), LedgerError> {
    let name = || path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| LedgerError::Read { path: name(), source })?;
    for record in bytes.chunks_exact(RECORD) {
        let reporter = u16::from_be_bytes([record[0], record[1]]);
        let number = u32::from_be_bytes([record[2], record[3], record[4], record[5]]);
        let bit = 1u8.checked_shl(record[6].into()).unwrap_or(0);
        let Some(fate) = journal.fate_mut(reporter.wrapping_sub(1), number) else {
            return Err(LedgerError::Unknown { path: name(), reporter, number });
        };
        match record[7] {
            r if r == Fate::Dropped as u8 => fate.copies_lost |= bit,
            r if r == Fate::LostByQueuePair as u8 => fate.copies_given_up |= bit,
            r if r == Fate::Corrupted as u8 => {
                fate.copies_lost |= bit;
                fate.copies_damaged |= bit;
            }
            r if r == Fate::Reordered as u8 => fate.copies_moved |= bit,
            // A duplicate changes nothing: a WRITE writes the same again, an atomic is executed once.
            _ => {}
        }
    }
    Ok(())
}
