//! Reports from the network: datagrams parsed, judged and executed.

use dta_proto::wire::datagram::UdpDatagram;
use dta_proto::wire::dta::{DtaReport, Primitive, Version};
use dta_proto::wire::{self, WireErrorKind};

use super::Engine;
use super::execute::Admitted;
use crate::counters::Reason;
use crate::frame::EngineOutput;
use crate::reporters::PackedSocketAddr;
use crate::run::{DropEvidence, KeyWriteRun};
use crate::sequences::SequenceArrival;

impl Engine {
    /// Processes a batch of reports, each an IPv4 packet. Frames and NACKs are added to `out`.
    pub fn ingest_packets<'a>(
        &mut self,
        now: u64,
        packets: impl IntoIterator<Item = &'a [u8]>,
        out: &mut EngineOutput,
    ) {
        self.clock = self.clock.max(now);
        let (mut run, mut received) = (KeyWriteRun::new(), 0);
        for packet in packets {
            received += 1;
            if let Err(reason) = self.ingest_one(packet, &mut run, out) {
                self.egress.counters.count_dropped(reason);
                self.offenders.note_packet(reason, packet);
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
        run: &mut KeyWriteRun<'a>,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        let (payload, source, destination) = payload_of(packet)?;
        if !DtaReport::has_v1_prefix(Primitive::KeyWrite, payload) {
            self.send_run(run, out);
            return self.ingest_other(payload, source, destination, out);
        }
        // Where the compiler knows the primitive, the report is never materialised.
        let report = DtaReport::parse_payload(payload).map_err(reason_of)?;
        self.egress.counters.primitive_counters_mut(Primitive::KeyWrite).received += 1;
        self.admit_report(&report, source, destination, out)?;
        if self.gather_key_write(&report, DropEvidence::Packet(packet), run, out) {
            return Ok(());
        }
        self.send_run(run, out);
        self.execute_alone(payload, self.reporters.restart_count(), out)
    }

    /// Executes a judged version-1 report. It is parsed again, so that reports in runs stay in registers.
    #[inline(never)]
    pub(super) fn execute_alone(
        &mut self,
        payload: &[u8],
        restarts: u32,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        let report = DtaReport::parse_payload(payload).map_err(reason_of)?;
        self.execute_one(admitted_report(&report, report.store), restarts, out)
    }

    #[inline(never)]
    fn ingest_other(
        &mut self,
        payload: &[u8],
        source: PackedSocketAddr,
        destination: PackedSocketAddr,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        let report = DtaReport::parse_payload(payload).map_err(reason_of)?;
        self.egress.counters.primitive_counters_mut(report.body.primitive()).received += 1;
        let store = self.admit_report(&report, source, destination, out)?;
        let restarts = self.reporters.restart_count();
        self.execute_one(admitted_report(&report, store), restarts, out)
    }

    /// Judges a report. Returns its store.
    #[inline(always)] // on the path of every report
    pub(super) fn admit_report(
        &mut self,
        report: &DtaReport<'_>,
        source: PackedSocketAddr,
        destination: PackedSocketAddr,
        out: &mut EngineOutput,
    ) -> Result<u16, Reason> {
        match report.version {
            Version::V1 => {
                let DtaReport { sequence, restarted, retransmittable, .. } = *report;
                let arrival = SequenceArrival { sequence, restarted, retransmittable, source };
                self.admit_version1(report.reporter, arrival, destination, out)?;
                Ok(report.store)
            }
            // A copy, to keep the report itself in registers.
            Version::V0 => self.admit_any_version0(&report.clone(), source, destination, out),
        }
    }

    /// The store of a version-0 report.
    pub(super) fn store_of_version0(&self, report: &DtaReport<'_>) -> Result<u16, Reason> {
        self.version0[report.body.primitive().index()].ok_or(Reason::Version0Store)
    }
}

/// A datagram's payload, source and destination.
#[inline(always)] // on the path of every report
pub(super) fn payload_of(packet: &[u8]) -> Result<(&[u8], PackedSocketAddr, PackedSocketAddr), Reason> {
    let datagram = UdpDatagram::parse_packet(packet).map_err(|_| Reason::Header)?;
    datagram.verify_checksum().map_err(|_| Reason::Checksum)?;
    Ok((
        datagram.payload(),
        PackedSocketAddr::from_socket_addr(datagram.source()),
        PackedSocketAddr::from_socket_addr(datagram.destination()),
    ))
}

/// A judged report from the network, for this store.
#[inline]
pub(super) fn admitted_report<'a>(report: &'a DtaReport<'_>, store: u16) -> Admitted<'a> {
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
        WireErrorKind::UnknownVersion(_) => Reason::Version,
        WireErrorKind::UnknownOpcode(_) => Reason::Opcode,
        WireErrorKind::Truncated { .. } | WireErrorKind::TooLong { .. } | WireErrorKind::Length(_) => {
            Reason::Length
        }
        WireErrorKind::ValueLength(_) | WireErrorKind::Rows(_) => Reason::ValueLength,
        WireErrorKind::Hop(_) => Reason::Hop,
        WireErrorKind::PathLength(_) => Reason::PathLength,
        _ => Reason::Field,
    }
}
