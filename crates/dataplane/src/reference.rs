//! What a switch must do with reports: the engine in reference mode, one report at a time.
//!
//! For tests of other data planes: a report's bytes go in, the bytes of its frames come out, by the rules of
//! `docs/reference-mode.md`. RC queue pairs are acknowledged at once, so nothing waits.

use std::net::SocketAddrV4;

use dta_proto::program::{DataPlaneEntry, Mode, Program, ProgramQueuePair, Transport, diff_programs};
use dta_proto::wire::datagram::{self, UdpDatagram};
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{Aeth, BthFields, Psn, RoceRepr, Syndrome};

use crate::counters::{EngineCounters, Reason};
use crate::{Engine, EngineLimits, EngineOutput, SetupError};

pub struct Reference {
    engine: Engine,
    out: EngineOutput,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceOutput {
    /// RoCEv2 frames in sending order, each from its IPv4 header.
    pub frames: Vec<Vec<u8>>,
    /// NACKs for the reporter: payloads of UDP datagrams.
    pub nacks: Vec<Vec<u8>>,
    /// Why the report was dropped; `None` if it was not.
    pub dropped: Option<Reason>,
}

impl Reference {
    /// Applies a program in reference mode, ignoring its flush times. `postcard_rows` is the number of rows
    /// of each postcard cache, a power of two.
    ///
    /// # Errors
    /// A [`SetupError`] that names the offending entry.
    pub fn new(program: &Program, postcard_rows: usize) -> Result<Reference, SetupError> {
        let mut wanted = Program::default();
        for entry in program.entries().filter(|entry| !matches!(entry, DataPlaneEntry::Flush(_))) {
            wanted.set(entry.clone());
        }
        wanted.set(DataPlaneEntry::Mode(Mode { reference: true }));
        let limits =
            EngineLimits { postcard_rows, reporters: usize::from(u16::MAX), ..EngineLimits::default() };
        let (mut engine, mut out) = (Engine::new(limits), EngineOutput::default());
        engine.apply_changes(0, &diff_programs(&Program::default(), &wanted), &mut out)?;
        Ok(Reference { engine, out })
    }

    /// Processes a report: the payload of a datagram from `reporter` to `service`.
    pub fn process_report(
        &mut self,
        reporter: SocketAddrV4,
        service: SocketAddrV4,
        payload: &[u8],
    ) -> ReferenceOutput {
        let header = datagram::encode_header(reporter, service, payload.len());
        self.process_packet(&[&header, payload].concat())
    }

    /// Processes a report as a packet, from its IPv4 header.
    pub fn process_packet(&mut self, packet: &[u8]) -> ReferenceOutput {
        let before = drops_by_reason(self.engine.engine_counters());
        self.engine.ingest_packets(0, [packet], &mut self.out);
        let after = drops_by_reason(self.engine.engine_counters());
        let dropped = Reason::ALL.iter().copied().find(|r| before[*r as usize] != after[*r as usize]);
        ReferenceOutput { dropped, ..self.take_output() }
    }

    /// Sends everything held; returns the frames.
    pub fn flush_held_reports(&mut self) -> Vec<Vec<u8>> {
        self.engine.flush_held_reports(0, &mut self.out);
        self.take_output().frames
    }

    pub fn engine_counters(&self) -> &EngineCounters {
        self.engine.engine_counters()
    }

    /// What was sent, after acknowledging all of it.
    fn take_output(&mut self) -> ReferenceOutput {
        loop {
            let acks = self.outstanding_acks();
            if acks.is_empty() {
                break;
            }
            self.engine.handle_answers(0, acks.iter().map(Vec::as_slice), &mut self.out);
        }
        let frames = self.out.frames.iter().map(<[u8]>::to_vec).collect();
        let payload =
            |packet| UdpDatagram::parse_packet(packet).ok().map(|datagram| datagram.payload().to_vec());
        let nacks = self.out.nacks.iter().filter_map(payload).collect();
        self.out.clear();
        ReferenceOutput { frames, nacks, dropped: None }
    }

    /// An acknowledgement of everything outstanding, per queue pair.
    fn outstanding_acks(&self) -> Vec<Vec<u8>> {
        let out = self.engine.queue_pairs().into_iter().filter(|pair| pair.outstanding != 0);
        let ack = |pair: crate::QueuePairStatus| {
            let entry = self.engine.installed_program().entries().find_map(|entry| match entry {
                DataPlaneEntry::QueuePair(e)
                    if (e.collector, e.purpose) == (pair.collector, pair.purpose) =>
                {
                    Some(e)
                }
                _ => None,
            })?;
            debug_assert_eq!(entry.transport, Transport::Rc);
            encode_ack(entry, Psn::new(pair.next_psn).wrapping_add(Psn::MASK))
        };
        out.filter_map(ack).collect()
    }
}

/// The ACK of a queue pair's responder for everything up to a PSN.
fn encode_ack(pair: &ProgramQueuePair, psn: Psn) -> Option<Vec<u8>> {
    let route = FrameRoute::from_addresses(pair.destination.ip, pair.source.ip, pair.local_qpn)?;
    let place = BthFields { dest_qp: pair.local_qpn, psn, ack_req: false };
    let repr = RoceRepr::acknowledge(place, Aeth { syndrome: Syndrome::ACK, msn: 0 });
    let mut bytes = [0; 128];
    let len = route.write_frame(&repr, &mut bytes).ok()?;
    Some(bytes[..len].to_vec())
}

fn drops_by_reason(counters: &EngineCounters) -> Vec<u64> {
    Reason::ALL.iter().map(|reason| counters.dropped_reports(*reason)).collect()
}
