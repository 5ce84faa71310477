//! Whether to accept a report: sequence windows, and NACKs for what is missing.

use std::net::SocketAddrV4;

use dta_proto::batch::Addresses;
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{self, NACK_PORT_V0, Nack, Report};

use super::Engine;
use crate::counters::Reason;
use crate::frame::{Frames, Output};
use crate::reporters::{Admission, Source};
use crate::sequences::Arrival;
use crate::version0::{Admission0, MOST_NACKS};

impl Engine {
    /// Judges a version-1 report by its reporter's window.
    #[inline(always)] // on the path of every report
    pub(super) fn admit(
        &mut self,
        reporter: u16,
        arrival: Arrival,
        destination: Source,
        out: &mut Output,
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
        arrival: Arrival,
        destination: Source,
        out: &mut Output,
    ) -> Result<(), Reason> {
        match self.reporters.admit(self.clock, reporter, &arrival) {
            Admission::Apply(None) => Ok(()),
            Admission::Apply(Some(missing)) => {
                let nack = Nack::V1 { reporter, first: missing.first, count: missing.count };
                self.nack(destination.socket(), arrival.source.socket(), &nack, out);
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
        report: &Report<'_>,
        source: Source,
        destination: Source,
        out: &mut Output,
    ) -> Result<u16, Reason> {
        if !self.reporters0.may_report(source.ip()) {
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
        report: &Report<'_>,
        source: Source,
        destination: Source,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let sequence = report.sequence as u8;
        match self.reporters0.admit(source.ip(), sequence, report.restarted) {
            Admission0::Duplicate => Err(Reason::Duplicate),
            Admission0::Apply { gap } => {
                self.egress.counters.version0_gaps += u64::from(gap);
                let asked = self.reporters0.may_ask(self.clock, source.ip(), gap);
                self.egress.counters.nacks_withheld += u64::from(gap.min(MOST_NACKS) - asked);
                let to = SocketAddrV4::new(source.ip(), NACK_PORT_V0);
                for behind in (1..=asked).rev() {
                    let nack = Nack::V0 { sequence: sequence.wrapping_sub(behind) };
                    self.nack(destination.socket(), to, &nack, out);
                }
                self.egress.counters.nacked_sequences += u64::from(asked);
                Ok(())
            }
        }
    }

    /// Writes a NACK datagram from the address that the report was sent to.
    fn nack(&mut self, from: SocketAddrV4, to: SocketAddrV4, nack: &Nack, out: &mut Output) {
        let mut payload = [0; dta::NACK_V1_LEN];
        let Ok(len) = nack.emit(&mut payload) else { return };
        let from_ip = if from.ip().is_unspecified() { self.service.0 } else { *from.ip() };
        let addresses = Addresses::new(SocketAddrV4::new(from_ip, from.port()), to);
        push_datagram(&mut out.nacks, addresses, &payload[..len]);
        self.egress.counters.nacks += 1;
    }
}

fn push_datagram(frames: &mut Frames, addresses: Addresses, payload: &[u8]) {
    let Addresses { source, destination, .. } = addresses;
    let packet = frames.push(datagram::HEADER_LEN + payload.len(), addresses);
    packet[..datagram::HEADER_LEN].copy_from_slice(&datagram::header(source, destination, payload.len()));
    packet[datagram::HEADER_LEN..].copy_from_slice(payload);
}
