//! Whether to accept a report: sequence windows, and NACKs for what is missing.

use std::net::SocketAddrV4;

use dta_proto::batch::Addresses;
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{self, DtaReport, NACK_PORT_V0, Nack};

use super::Engine;
use super::ingest::store_of_version0;
use crate::counters::Reason;
use crate::frame::{EngineOutput, PacketBatches};
use crate::reporters::{Admission, PackedSocketAddr};
use crate::sequences::SequenceArrival;
use crate::version0::{Admission0, MOST_NACKS};

/// Judges a version-1 report by its reporter's window.
#[inline(always)] // on the path of every report
pub(super) fn admit_version1(
    engine: &mut Engine,
    reporter: u16,
    arrival: SequenceArrival,
    destination: PackedSocketAddr,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    if engine.reporters.take_expected(engine.clock, reporter, &arrival) {
        return Ok(());
    }
    admit_unexpected(engine, reporter, arrival, destination, out)
}

#[inline(never)]
fn admit_unexpected(
    engine: &mut Engine,
    reporter: u16,
    arrival: SequenceArrival,
    destination: PackedSocketAddr,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    match engine.reporters.admit_unexpected(engine.clock, reporter, &arrival) {
        Admission::Apply(None) => Ok(()),
        Admission::Apply(Some(missing)) => {
            let nack = Nack::V1 { reporter, first: missing.first, count: missing.count };
            write_nack(engine, destination.to_socket_addr(), arrival.source.to_socket_addr(), &nack, out);
            engine.egress.counters.nacked_sequences += u64::from(missing.count);
            Ok(())
        }
        Admission::Unasked => {
            engine.egress.counters.nacks_withheld += 1;
            Ok(())
        }
        Admission::Duplicate => Err(Reason::Duplicate),
        Admission::OutOfWindow => Err(Reason::OutOfWindow),
        Admission::TooMany => Err(Reason::Reporters),
        Admission::NotListed => Err(Reason::NotListed),
    }
}

/// Judges a version-0 report. Returns its store.
#[cold]
pub(super) fn admit_any_version0(
    engine: &mut Engine,
    report: &DtaReport<'_>,
    source: PackedSocketAddr,
    destination: PackedSocketAddr,
    out: &mut EngineOutput,
) -> Result<u16, Reason> {
    if !engine.reporters0.may_report(source.ip_address()) {
        return Err(Reason::NotListed);
    }
    if report.retransmittable && !engine.reference {
        admit_version0(engine, report, source, destination, out)?;
    }
    store_of_version0(engine, report)
}

/// Judges a retransmittable version-0 report by its sender's window.
fn admit_version0(
    engine: &mut Engine,
    report: &DtaReport<'_>,
    source: PackedSocketAddr,
    destination: PackedSocketAddr,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    let sequence = report.sequence as u8;
    match engine.reporters0.admit_sequence(source.ip_address(), sequence, report.restarted) {
        Admission0::Duplicate => Err(Reason::Duplicate),
        Admission0::Apply { gap } => {
            engine.egress.counters.version0_gaps += u64::from(gap);
            let asked = engine.reporters0.requestable_sequences(engine.clock, source.ip_address(), gap);
            engine.egress.counters.nacks_withheld += u64::from(gap.min(MOST_NACKS) - asked);
            let to = SocketAddrV4::new(source.ip_address(), NACK_PORT_V0);
            for behind in (1..=asked).rev() {
                let nack = Nack::V0 { sequence: sequence.wrapping_sub(behind) };
                write_nack(engine, destination.to_socket_addr(), to, &nack, out);
            }
            engine.egress.counters.nacked_sequences += u64::from(asked);
            Ok(())
        }
    }
}

/// Writes a NACK datagram from the address that the report was sent to.
fn write_nack(
    engine: &mut Engine,
    from: SocketAddrV4,
    to: SocketAddrV4,
    nack: &Nack,
    out: &mut EngineOutput,
) {
    let mut payload = [0; dta::NACK_V1_LEN];
    let Ok(len) = nack.encode_into(&mut payload) else { return };
    let from_ip = if from.ip().is_unspecified() { engine.service.0 } else { *from.ip() };
    let addresses = Addresses::new(SocketAddrV4::new(from_ip, from.port()), to);
    push_datagram(&mut out.nacks, addresses, &payload[..len]);
    engine.egress.counters.nacks += 1;
}

fn push_datagram(frames: &mut PacketBatches, addresses: Addresses, payload: &[u8]) {
    let Addresses { source, destination, .. } = addresses;
    let packet = frames.push(datagram::HEADER_LEN + payload.len(), addresses);
    packet[..datagram::HEADER_LEN].copy_from_slice(&datagram::encode_header(
        source,
        destination,
        payload.len(),
    ));
    packet[datagram::HEADER_LEN..].copy_from_slice(payload);
}
