//! Answers of RC queue pairs.

use std::net::IpAddr;

use dta_proto::program::Transport;
use dta_proto::wire::frame::Received;
use dta_proto::wire::roce::{NakCode, Opcode, Psn, Syndrome};

use super::Engine;
use crate::frame::Output;
use crate::requester::Answer;

impl Engine {
    /// Handles a batch of IPv4 packets: RoCEv2 answers to RC queue pairs. Others are counted and ignored.
    pub fn answers<'a>(&mut self, now: u64, packets: impl IntoIterator<Item = &'a [u8]>, out: &mut Output) {
        self.clock = self.clock.max(now);
        for packet in packets {
            match self.answer_of(packet) {
                Some((pair, psn, answer)) => {
                    self.egress.answer(self.clock, pair, psn, answer, out);
                }
                None => self.answers_ignored += 1,
            }
        }
        self.egress.transmit(self.clock, out);
    }

    /// The place of the queue pair that a packet answers. QPNs of this side are unique across all collectors.
    fn answer_of(&self, packet: &[u8]) -> Option<(u8, Psn, Answer)> {
        let Received { ipv4, roce: transport, .. } = Received::parse(packet).ok()?;
        let bth = transport.bth();
        let (place, pair) = self.egress.pairs().find(|(_, p)| p.entry.local_qpn == bth.dest_qp)?;
        if pair.entry.transport != Transport::Rc || pair.entry.destination.ip != IpAddr::V4(ipv4.src()) {
            return None;
        }
        if !matches!(bth.opcode, Opcode::RcAck | Opcode::RcAtomicAck) {
            return None;
        }
        let answer = match transport.aeth().ok()??.syndrome {
            Syndrome::Ack { .. } => Answer::Ack,
            Syndrome::RnrNak { timer } => Answer::ReceiverNotReady(rnr_wait(timer)),
            Syndrome::Nak(NakCode::PsnSequenceError) => Answer::NakSequence,
            Syndrome::Nak(_) => Answer::NakError,
        };
        Some((place, bth.psn, answer))
    }
}

/// RNR NAK timer codes in nanoseconds: InfiniBand specification, table 45. Code 0 is the longest.
fn rnr_wait(code: u8) -> u64 {
    const MICROSECONDS: [u64; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
        5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760,
        327_680, 491_520,
    ];
    MICROSECONDS[usize::from(code & 31)] * 1_000
}
