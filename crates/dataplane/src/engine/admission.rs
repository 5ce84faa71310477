//! Whether to accept a report: sequence windows, and NACKs for what is missing.

use std::net::SocketAddrV4;

use dta_proto::batch::Addresses;
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{self, DtaReport, NACK_PORT_V0, Nack};

use super::Engine;
use crate::counters::Reason;
use crate::frame::{EngineOutput, PacketBatches};
use crate::reporters::{Admission, PackedSocketAddr};
use crate::sequences::SequenceArrival;
use crate::version0::{Admission0, MOST_NACKS};

impl Engine {
    /// Judges a version-1 report by its reporter's window.
    #[inline(always)] // on the path of every report
    pub(super) fn admit_version1(
        &mut self,
        reporter: u16,
        arrival: SequenceArrival,
        destination: PackedSocketAddr,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        if self.reporters.take_expected(self.clock, reporter, &arrival) {
            return Ok(());
        }
        self.admit_unexpected(reporter, arrival, destination, out)
    }

    #[inline(never)]
    fn admit_unexpected(
        &mut self,
        reporter: u16,
        arrival: SequenceArrival,
        destination: PackedSocketAddr,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        match self.reporters.admit_unexpected(self.clock, reporter, &arrival) {
            Admission::Apply(None) => Ok(()),
            Admission::Apply(Some(missing)) => {
                let nack = Nack::V1 { reporter, first: missing.first, count: missing.count };
                self.write_nack(destination.to_socket_addr(), arrival.source.to_socket_addr(), &nack, out);
                self.egress.counters.nacked_sequences += u64::from(missing.count);
                Ok(())
            }
            Admission::Unasked => {
                self.egress.counters.nacks_withheld += 1;
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
        &mut self,
        report: &DtaReport<'_>,
        source: PackedSocketAddr,
        destination: PackedSocketAddr,
        out: &mut EngineOutput,
    ) -> Result<u16, Reason> {
        if !self.reporters0.may_report(source.ip_address()) {
            return Err(Reason::NotListed);
        }
        if report.retransmittable && !self.reference {
            self.admit_version0(report, source, destination, out)?;
        }
        self.store_of_version0(report)
    }

    /// Judges a retransmittable version-0 report by its sender's window.
    fn admit_version0(
        &mut self,
        report: &DtaReport<'_>,
        source: PackedSocketAddr,
        destination: PackedSocketAddr,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        let sequence = report.sequence as u8;
        match self.reporters0.admit_sequence(source.ip_address(), sequence, report.restarted) {
            Admission0::Duplicate => Err(Reason::Duplicate),
            Admission0::Apply { gap } => {
                self.egress.counters.version0_gaps += u64::from(gap);
                let asked = self.reporters0.requestable_sequences(self.clock, source.ip_address(), gap);
                self.egress.counters.nacks_withheld += u64::from(gap.min(MOST_NACKS) - asked);
                let to = SocketAddrV4::new(source.ip_address(), NACK_PORT_V0);
                for behind in (1..=asked).rev() {
                    let nack = Nack::V0 { sequence: sequence.wrapping_sub(behind) };
                    self.write_nack(destination.to_socket_addr(), to, &nack, out);
                }
                self.egress.counters.nacked_sequences += u64::from(asked);
                Ok(())
            }
        }
    }

    /// Writes a NACK datagram from the address that the report was sent to.
    fn write_nack(&mut self, from: SocketAddrV4, to: SocketAddrV4, nack: &Nack, out: &mut EngineOutput) {
        let mut payload = [0; dta::NACK_V1_LEN];
        let Ok(len) = nack.encode_into(&mut payload) else { return };
        let from_ip = if from.ip().is_unspecified() { self.service.0 } else { *from.ip() };
        let addresses = Addresses::new(SocketAddrV4::new(from_ip, from.port()), to);
        push_datagram(&mut out.nacks, addresses, &payload[..len]);
        self.egress.counters.nacks += 1;
    }
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
