//! Reads the translator's ledger into the journal.

use std::path::Path;

use anyhow::{Context, bail};
use dta_translator::packets::ledger::{LedgerFate, RECORD};

use super::journal::Journal;

/// Notes the fate of every report copy in the ledger.
pub fn read(path: &Path, journal: &mut Journal) -> anyhow::Result<()> {
    let bytes = std::fs::read(path)
        .with_context(|| format!("cannot read the translator's ledger {}", path.display()))?;
    for record in bytes.chunks_exact(RECORD) {
        let reporter = u16::from_be_bytes([record[0], record[1]]);
        let number = u32::from_be_bytes([record[2], record[3], record[4], record[5]]);
        let bit = 1u8.checked_shl(record[6].into()).unwrap_or(0);
        let Some(fate) = journal.fate_mut(reporter.wrapping_sub(1), number) else {
            bail!(
                "the translator's ledger {} names report {number} of reporter {reporter}, which was never made",
                path.display()
            );
        };
        match record[7] {
            r if r == LedgerFate::Dropped as u8 => fate.copies_lost |= bit,
            r if r == LedgerFate::LostByQueuePair as u8 => fate.copies_given_up |= bit,
            r if r == LedgerFate::Corrupted as u8 => {
                fate.copies_lost |= bit;
                fate.copies_damaged |= bit;
            }
            r if r == LedgerFate::Reordered as u8 => fate.copies_moved |= bit,
            // A duplicate changes nothing: a WRITE writes the same again, an atomic is executed once.
            _ => {}
        }
    }
    Ok(())
}
