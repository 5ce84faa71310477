//! Answers of RC queue pairs.

use dta_proto::program::Transport;
use dta_proto::wire::frame::Received;
use dta_proto::wire::roce::{NakCode, Opcode, Psn, Syndrome};

use super::Engine;
use crate::frame::EngineOutput;
use crate::requester::ResponderAnswer;

pub(super) fn handle_answers<'a>(
    engine: &mut Engine,
    now: u64,
    packets: impl IntoIterator<Item = &'a [u8]>,
    out: &mut EngineOutput,
) {
    engine.clock = engine.clock.max(now);
    for packet in packets {
        match answer_of(engine, packet) {
            Some((pair, psn, answer)) => {
                engine.egress.handle_answer(engine.clock, pair, psn, answer, out);
            }
            None => engine.answers_ignored += 1,
        }
    }
    engine.egress.transmit_waiting(engine.clock, out);
}

pub(super) fn handle_completions(
    engine: &mut Engine,
    now: u64,
    completions: impl IntoIterator<Item = (u8, Psn, ResponderAnswer)>,
    out: &mut EngineOutput,
) {
    engine.clock = engine.clock.max(now);
    for (pair, psn, answer) in completions {
        engine.egress.handle_answer(engine.clock, pair, psn, answer, out);
    }
    engine.egress.transmit_waiting(engine.clock, out);
}

/// The place of the queue pair that a packet answers. QPNs of this side are unique across all collectors.
fn answer_of(engine: &Engine, packet: &[u8]) -> Option<(u8, Psn, ResponderAnswer)> {
    let Received { addresses, roce: transport, .. } = Received::parse_packet(packet).ok()?;
    let bth = transport.base_header();
    let (place, pair) = engine.egress.queue_pairs().find(|(_, p)| p.entry.local_qpn == bth.dest_qp)?;
    if pair.entry.transport != Transport::Rc || pair.entry.destination.ip != addresses.source() {
        return None;
    }
    if !matches!(bth.opcode, Opcode::RcAck | Opcode::RcAtomicAck) {
        return None;
    }
    let answer = match transport.ack_header().ok()??.syndrome {
        Syndrome::Ack { .. } => ResponderAnswer::Ack,
        Syndrome::RnrNak { timer } => ResponderAnswer::ReceiverNotReady(rnr_timer_nanos(timer)),
        Syndrome::Nak(NakCode::PsnSequenceError) => ResponderAnswer::NakSequence,
        Syndrome::Nak(_) => ResponderAnswer::NakError,
    };
    Some((place, bth.psn, answer))
}

/// RNR NAK timer codes in nanoseconds: InfiniBand specification, table 45. Code 0 is the longest.
fn rnr_timer_nanos(code: u8) -> u64 {
    const MICROSECONDS: [u64; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
        5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760,
        327_680, 491_520,
    ];
    MICROSECONDS[usize::from(code & 31)] * 1_000
}
