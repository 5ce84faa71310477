//! Reports from the network: datagrams parsed, judged and executed.

use dta_proto::wire::datagram::UdpDatagram;
use dta_proto::wire::dta::{DtaReport, Primitive, Version};
use dta_proto::wire::{self, WireErrorKind};

use super::Engine;
use super::admission::{admit_any_version0, admit_version1};
use super::execute::Admitted;
use super::execute::{end_batch, execute_one};
use super::runs::{gather_key_write, send_run};
use crate::counters::Reason;
use crate::frame::EngineOutput;
use crate::reporters::PackedSocketAddr;
use crate::run::{DropEvidence, KeyWriteRun};
use crate::sequences::SequenceArrival;

pub(super) fn ingest_packets<'a>(
    engine: &mut Engine,
    now: u64,
    packets: impl IntoIterator<Item = &'a [u8]>,
    out: &mut EngineOutput,
) {
    engine.clock = engine.clock.max(now);
    let (mut run, mut received) = (KeyWriteRun::new(), 0);
    for packet in packets {
        received += 1;
        if let Err(reason) = ingest_one(engine, packet, &mut run, out) {
            engine.egress.counters.count_dropped(reason);
            engine.offenders.note_packet(reason, packet);
        }
    }
    engine.egress.counters.received += received;
    send_run(engine, &mut run, out);
    end_batch(engine, out);
}

#[inline(always)] // on the path of every report: no call, and no copy of the report
fn ingest_one<'a>(
    engine: &mut Engine,
    packet: &'a [u8],
    run: &mut KeyWriteRun<'a>,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    let (payload, source, destination) = payload_of(packet)?;
    if !DtaReport::has_v1_prefix(Primitive::KeyWrite, payload) {
        send_run(engine, run, out);
        return ingest_other(engine, payload, source, destination, out);
    }
    // Where the compiler knows the primitive, the report is never materialised.
    let report = DtaReport::parse_payload(payload).map_err(reason_of)?;
    engine.egress.counters.primitive_counters_mut(Primitive::KeyWrite).received += 1;
    admit_report(engine, &report, source, destination, out)?;
    if gather_key_write(engine, &report, DropEvidence::Packet(packet), run, out) {
        return Ok(());
    }
    send_run(engine, run, out);
    let restarts = engine.reporters.restart_count();
    execute_alone(engine, payload, restarts, out)
}

/// Executes a judged version-1 report. It is parsed again, so that reports in runs stay in registers.
#[inline(never)]
pub(super) fn execute_alone(
    engine: &mut Engine,
    payload: &[u8],
    restarts: u32,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    let report = DtaReport::parse_payload(payload).map_err(reason_of)?;
    execute_one(engine, admitted_report(&report, report.store), restarts, out)
}

#[inline(never)]
fn ingest_other(
    engine: &mut Engine,
    payload: &[u8],
    source: PackedSocketAddr,
    destination: PackedSocketAddr,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    let report = DtaReport::parse_payload(payload).map_err(reason_of)?;
    engine.egress.counters.primitive_counters_mut(report.body.primitive()).received += 1;
    let store = admit_report(engine, &report, source, destination, out)?;
    let restarts = engine.reporters.restart_count();
    execute_one(engine, admitted_report(&report, store), restarts, out)
}

/// Judges a report. Returns its store.
#[inline(always)] // on the path of every report
pub(super) fn admit_report(
    engine: &mut Engine,
    report: &DtaReport<'_>,
    source: PackedSocketAddr,
    destination: PackedSocketAddr,
    out: &mut EngineOutput,
) -> Result<u16, Reason> {
    match report.version {
        Version::V1 => {
            let DtaReport { sequence, restarted, retransmittable, .. } = *report;
            let arrival = SequenceArrival { sequence, restarted, retransmittable, source };
            admit_version1(engine, report.reporter, arrival, destination, out)?;
            Ok(report.store)
        }
        // A copy, to keep the report itself in registers.
        Version::V0 => admit_any_version0(engine, &report.clone(), source, destination, out),
    }
}

/// The store of a version-0 report.
pub(super) fn store_of_version0(engine: &Engine, report: &DtaReport<'_>) -> Result<u16, Reason> {
    engine.version0[report.body.primitive().index()].ok_or(Reason::Version0Store)
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
