//! Reports from the network: datagrams parsed, judged and executed.

use dta_proto::wire::datagram::Datagram;
use dta_proto::wire::dta::{Primitive, Report, Version};
use dta_proto::wire::{self, Kind};

use super::Engine;
use super::execute::Admitted;
use crate::counters::Reason;
use crate::frame::Output;
use crate::reporters::Source;
use crate::run::{Run, Shown};
use crate::sequences::Arrival;

impl Engine {
    /// Processes a batch of reports, each an IPv4 packet. Frames and NACKs are added to `out`.
    pub fn ingest<'a>(&mut self, now: u64, packets: impl IntoIterator<Item = &'a [u8]>, out: &mut Output) {
        self.clock = self.clock.max(now);
        let (mut run, mut received) = (Run::new(), 0);
        for packet in packets {
            received += 1;
            if let Err(reason) = self.ingest_one(packet, &mut run, out) {
                self.egress.counters.drop_one(reason);
                self.offenders.note(reason, packet);
            }
        }
        self.egress.counters.received += received;
        self.send_run(&mut run, out);
        self.end_batch(out);
    }

    #[inline(always)] // on the path of every report: no call, and no copy of the report
    fn ingest_one<'a>(
        &mut self,
        packet: &'a [u8],
        run: &mut Run<'a>,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let (payload, source, destination) = payload_of(packet)?;
        if !Report::is_v1_of(Primitive::KeyWrite, payload) {
            self.send_run(run, out);
            return self.ingest_other(payload, source, destination, out);
        }
        // Where the compiler knows the primitive, the report is never materialised.
        let report = Report::parse(payload).map_err(reason_of)?;
        self.egress.counters.of(Primitive::KeyWrite).received += 1;
        self.judge(&report, source, destination, out)?;
        if self.gather(&report, Shown::Packet(packet), run, out) {
            return Ok(());
        }
        self.send_run(run, out);
        self.execute_alone(payload, self.reporters.restarts(), out)
    }

    /// Executes a judged version-1 report. It is parsed again, so that reports in runs stay in registers.
    #[inline(never)]
    pub(super) fn execute_alone(
        &mut self,
        payload: &[u8],
        restarts: u32,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let report = Report::parse(payload).map_err(reason_of)?;
        self.execute_one(admitted(&report, report.store), restarts, out)
    }

    #[inline(never)]
    fn ingest_other(
        &mut self,
        payload: &[u8],
        source: Source,
        destination: Source,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let report = Report::parse(payload).map_err(reason_of)?;
        self.egress.counters.of(report.body.primitive()).received += 1;
        let store = self.judge(&report, source, destination, out)?;
        let restarts = self.reporters.restarts();
        self.execute_one(admitted(&report, store), restarts, out)
    }

    /// Judges a report. Returns its store.
    #[inline(always)] // on the path of every report
    pub(super) fn judge(
        &mut self,
        report: &Report<'_>,
        source: Source,
        destination: Source,
        out: &mut Output,
    ) -> Result<u16, Reason> {
        match report.version {
            Version::V1 => {
                let Report { sequence, restarted, retransmittable, .. } = *report;
                let arrival = Arrival { sequence, restarted, retransmittable, source };
                self.admit(report.reporter, arrival, destination, out)?;
                Ok(report.store)
            }
            // A copy, to keep the report itself in registers.
            Version::V0 => self.admit_any_version0(&report.clone(), source, destination, out),
        }
    }

    /// The store of a version-0 report.
    pub(super) fn store_of_version0(&self, report: &Report<'_>) -> Result<u16, Reason> {
        self.version0[report.body.primitive().index()].ok_or(Reason::Version0Store)
    }
}

/// A datagram's payload, source and destination.
#[inline(always)] // on the path of every report
pub(super) fn payload_of(packet: &[u8]) -> Result<(&[u8], Source, Source), Reason> {
    let datagram = Datagram::parse(packet).map_err(|_| Reason::Header)?;
    datagram.check().map_err(|_| Reason::Checksum)?;
    Ok((datagram.payload(), Source::of(datagram.source()), Source::of(datagram.destination())))
}

/// A judged report from the network, for this store.
#[inline]
pub(super) fn admitted<'a>(report: &'a Report<'_>, store: u16) -> Admitted<'a> {
    Admitted {
        body: &report.body,
        store,
        reporter: report.reporter,
        sequence: report.sequence,
        numbered: report.version == Version::V1,
        immediate: report.immediate,
    }
}

pub(super) fn reason_of(error: wire::Error) -> Reason {
    match error.kind {
        Kind::UnknownVersion(_) => Reason::Version,
        Kind::UnknownOpcode(_) => Reason::Opcode,
        Kind::Truncated { .. } | Kind::TooLong { .. } | Kind::Length(_) => Reason::Length,
        Kind::ValueLength(_) | Kind::Rows(_) => Reason::ValueLength,
        Kind::Hop(_) => Reason::Hop,
        Kind::PathLength(_) => Reason::PathLength,
        _ => Reason::Field,
    }
}
