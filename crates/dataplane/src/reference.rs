//! What a switch must do with reports: the engine in reference mode, one report at a time.
//!
//! For tests of other data planes: a report's bytes go in, the bytes of its frames come out, by the rules of
//! `docs/reference-mode.md`. RC queue pairs are acknowledged at once, so nothing waits.

use std::net::{IpAddr, SocketAddrV4};

use dta_proto::program::{Entry, Mode, Program, QueuePair, Transport, diff};
use dta_proto::wire::datagram::{self, Datagram};
use dta_proto::wire::frame::Route;
use dta_proto::wire::roce::{Aeth, BthFields, Psn, Repr, Syndrome};

use crate::counters::{EngineCounters, Reason};
use crate::{Engine, Limits, Output, SetupError};

/// The engine in reference mode.
pub struct Reference {
    engine: Engine,
    out: Output,
}

/// The result of one report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
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
        for entry in program.entries().filter(|entry| !matches!(entry, Entry::Flush(_))) {
            wanted.set(entry.clone());
        }
        wanted.set(Entry::Mode(Mode { reference: true }));
        let limits = Limits { postcard_rows, reporters: usize::from(u16::MAX), ..Limits::default() };
        let (mut engine, mut out) = (Engine::new(limits), Output::default());
        engine.apply(0, &diff(&Program::default(), &wanted), &mut out)?;
        Ok(Reference { engine, out })
    }

    /// Processes a report: the payload of a datagram from `reporter` to `service`.
    pub fn report(&mut self, reporter: SocketAddrV4, service: SocketAddrV4, payload: &[u8]) -> Made {
        let header = datagram::header(reporter, service, payload.len());
        self.packet(&[&header, payload].concat())
    }

    /// Processes a report as a packet, from its IPv4 header.
    pub fn packet(&mut self, packet: &[u8]) -> Made {
        let before = drops(self.engine.counters());
        self.engine.ingest(0, [packet], &mut self.out);
        let after = drops(self.engine.counters());
        let dropped = Reason::ALL.iter().copied().find(|r| before[*r as usize] != after[*r as usize]);
        Made { dropped, ..self.made() }
    }

    /// Sends everything held; returns the frames.
    pub fn flush(&mut self) -> Vec<Vec<u8>> {
        self.engine.flush(0, &mut self.out);
        self.made().frames
    }

    /// The counters.
    pub fn counters(&self) -> &EngineCounters {
        self.engine.counters()
    }

    /// What was sent, after acknowledging all of it.
    fn made(&mut self) -> Made {
        loop {
            let acks = self.acks();
            if acks.is_empty() {
                break;
            }
            self.engine.answers(0, acks.iter().map(Vec::as_slice), &mut self.out);
        }
        let frames = self.out.frames.iter().map(<[u8]>::to_vec).collect();
        let payload = |packet| Datagram::parse(packet).ok().map(|datagram| datagram.payload().to_vec());
        let nacks = self.out.nacks.iter().filter_map(payload).collect();
        self.out.clear();
        Made { frames, nacks, dropped: None }
    }

    /// An acknowledgement of everything outstanding, per queue pair.
    fn acks(&self) -> Vec<Vec<u8>> {
        let out = self.engine.queue_pairs().into_iter().filter(|pair| pair.outstanding != 0);
        let ack = |pair: crate::QueuePairStatus| {
            let entry = self.engine.program().entries().find_map(|entry| match entry {
                Entry::QueuePair(e) if (e.collector, e.purpose) == (pair.collector, pair.purpose) => Some(e),
                _ => None,
            })?;
            debug_assert_eq!(entry.transport, Transport::Rc);
            ack(entry, Psn::new(pair.next_psn).plus(Psn::MASK))
        };
        out.filter_map(ack).collect()
    }
}

/// The ACK of a queue pair's responder for everything up to a PSN.
fn ack(pair: &QueuePair, psn: Psn) -> Option<Vec<u8>> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (pair.destination.ip, pair.source.ip) else {
        return None;
    };
    let place = BthFields { dest_qp: pair.local_qpn, psn, ack_req: false };
    let repr = Repr::ack(place, Aeth { syndrome: Syndrome::ACK, msn: 0 });
    let mut bytes = [0; 128];
    let len = Route::new(source, destination, pair.local_qpn).emit(&repr, &mut bytes).ok()?;
    Some(bytes[..len].to_vec())
}

fn drops(counters: &EngineCounters) -> Vec<u64> {
    Reason::ALL.iter().map(|reason| counters.dropped(*reason)).collect()
}
