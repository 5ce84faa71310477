//! A path with faults, for testbeds, and their ledger: which report copies did not arrive as sent.
//!
//! The ledger is a file of 8-byte records, all big-endian: `reporter u16, sequence u32, copy u8, fate u8`. A
//! version-0 report has reporter 0 and the low 8 bits of its sequence. Reports of one frame (a
//! batch, a row, a column, a coalesced increment) have one record each.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use dta_dataplane::losses::{FrameMeta, Origin};
use dta_dataplane::{Engine, EngineOutput};
use dta_link::fault::{self, FaultCounts, FaultInjector, FaultOutcome};
use dta_link::{Link, UdpLink};
use dta_proto::batch::PacketBatch;

use super::packet_thread::{PacketPath, PacketThreadError};
use super::roce_link::RoceLink;

pub const RECORD: usize = 8;

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

/// Frames whose contents are remembered until the injector reports their fate: it holds one for 20 ms at
/// most.
const REMEMBERED: usize = 1 << 17;

/// Drops, repeats, reorders and corrupts packets, and records what that did to reports.
pub struct FaultyPath {
    roce_faults: FaultInjector,
    nack_faults: FaultInjector,
    answer_faults: FaultInjector,
    records: FaultRecords,
}

/// What became of reports.
struct FaultRecords {
    /// The contents of recent frames, by number, until their fate is known.
    carried: Vec<FrameMeta>,
    ledger: Option<Ledger>,
}

impl FaultyPath {
    pub fn new(
        roce_faults: FaultInjector,
        nack_faults: FaultInjector,
        answer_faults: FaultInjector,
        ledger: Option<Ledger>,
    ) -> FaultyPath {
        let carried = vec![FrameMeta::IDLE; REMEMBERED];
        FaultyPath { roce_faults, nack_faults, answer_faults, records: FaultRecords { carried, ledger } }
    }
}

impl PacketPath for FaultyPath {
    fn send_output(
        &mut self,
        out: &mut EngineOutput,
        engine: &mut Engine,
        roce: &mut RoceLink,
        reports: &mut UdpLink,
    ) -> Result<(), PacketThreadError> {
        // An RDMA device makes the frames: no fault acts on them here.
        roce.post_requests(out, engine);
        let FaultyPath { roce_faults, nack_faults, records, .. } = self;
        if let Some(ledger) = &mut records.ledger {
            for (origin, copy) in &out.lost {
                ledger.write_record(origin, *copy, LedgerFate::LostByQueuePair)?;
            }
        }
        let mut metas = out.meta.iter();
        for batch in out.frames.batches_mut() {
            for (index, meta) in (0..batch.len()).zip(&mut metas) {
                records.carried[remembered_place(batch.packet_cookie(index))] = *meta;
            }
            let mut recorded = Ok(());
            // With an empty batch too: held frames may be due.
            let leaving = roce_faults.apply_to_batch(batch, Instant::now(), |fate, number, packet| {
                records.record_fate(engine, fate, (number, packet), &mut recorded);
            });
            if !leaving.is_empty() {
                roce.send(leaving)?;
            }
            recorded?;
        }
        for batch in out.nacks.batches_mut() {
            let leaving = nack_faults.apply_to_batch(batch, Instant::now(), |_, _, _| {});
            if !leaving.is_empty() {
                reports.send(leaving)?;
            }
        }
        Ok(())
    }

    fn arriving_answers<'a>(&'a mut self, received: &'a mut PacketBatch) -> &'a mut PacketBatch {
        self.answer_faults.apply_to_batch(received, Instant::now(), |_, _, _| {})
    }

    fn settle(&mut self) -> Result<(), PacketThreadError> {
        Ok(self.records.ledger.as_mut().map_or(Ok(()), Ledger::flush)?)
    }

    fn close(
        &mut self,
        engine: &mut Engine,
        roce: &mut RoceLink,
        reports: &mut UdpLink,
    ) -> Result<(), PacketThreadError> {
        let FaultyPath { roce_faults, nack_faults, records, .. } = self;
        let mut recorded = Ok(());
        roce.send(roce_faults.flush_held_frames(|fate, number, packet| {
            records.record_fate(engine, fate, (number, packet), &mut recorded);
        }))?;
        recorded?;
        reports.send(nack_faults.flush_held_frames(|_, _, _| {}))?;
        self.settle()
    }

    fn fault_counts(&self) -> [FaultCounts; 3] {
        [&self.roce_faults, &self.nack_faults, &self.answer_faults].map(FaultInjector::fault_counts)
    }
}

impl FaultRecords {
    /// Counts a fault on a frame's reports and records it in the ledger. The first error is stored in `result`.
    fn record_fate(
        &mut self,
        engine: &mut Engine,
        fate: FaultOutcome,
        (number, packet): (u64, &[u8]),
        result: &mut io::Result<()>,
    ) {
        let fate = match fate {
            FaultOutcome::Passed => return,
            FaultOutcome::Dropped => LedgerFate::Dropped,
            FaultOutcome::Duplicated => LedgerFate::Duplicated,
            FaultOutcome::Reordered { .. } => LedgerFate::Reordered,
            // A flipped bit that no checksum covers does no harm.
            FaultOutcome::Corrupted { bit } if fault::is_uncovered_bit(packet, bit) => return,
            FaultOutcome::Corrupted { .. } => LedgerFate::Corrupted,
        };
        let meta = self.carried[remembered_place(number)];
        if !engine.leaves_once(&meta) {
            return;
        }
        if matches!(fate, LedgerFate::Dropped | LedgerFate::Corrupted) {
            engine.injected_loss(&meta);
        }
        if let Some(ledger) = &mut self.ledger {
            for origin in engine.report_origins().frame_origins(&meta) {
                let recorded = ledger.write_record(&origin, meta.copy, fate);
                if result.is_ok() {
                    *result = recorded;
                }
            }
        }
    }
}

fn remembered_place(number: u64) -> usize {
    number as usize & (REMEMBERED - 1)
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
