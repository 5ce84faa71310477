//! The software data plane in memory and its floor, for the benchmarks `translator` and `chain`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use dta_dataplane::workers::Crew;
use dta_dataplane::{Engine, EngineLimits, EngineOutput, PacketBatches};
use dta_proto::buckets::Copies;
use dta_proto::crc::crc32_update;
use dta_proto::key::{KEY_LEN, Key};
use dta_proto::layout::hash;
use dta_proto::program::{
    DataPlaneEntry, Endpoint, Program, ProgramQueuePair, Purpose, Rkey, Store, Transport, diff_programs,
};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::dta::{DtaBody, DtaReport};

use super::harness::{Rates, Scale, Share, measure_shares, pin_to_current_cpu, thread_cpu_time};

/// Bytes of value per report.
const VALUE: usize = 12;
/// Bytes of the IPv4 and UDP headers and the version-1 header before the key.
const BEFORE_KEY: usize = 28 + 12;
/// Batches prepared before the clock starts: few enough to stay in the cache, as packets from a link do.
const READY: usize = 32;

/// Version-1 key-write datagrams with random keys, N = 1, to finished UC frames.
pub(super) struct KeyWriteBench {
    engine: Engine,
    out: EngineOutput,
    datagrams: Vec<Vec<u8>>,
    sequence: u32,
    batch: usize,
    frame: Vec<u8>,
}

impl KeyWriteBench {
    /// `batch` reports at a time of one of several reporters, each with keys of its own, go to a store with `slots`
    /// slots (a power of two) at an address aligned to its length.
    pub(super) fn new(
        reporter: u16,
        batch: usize,
        slots: u64,
        (address, rkey): (u64, u32),
        remote_qpn: u32,
    ) -> KeyWriteBench {
        let spec = StoreSpec {
            id: 1,
            name: "bench".into(),
            kind: StoreKind::KeyWrite {
                slots,
                value_len: VALUE as u8,
                redundancy: 1,
                keys: Default::default(),
            },
        };
        let endpoint = |last| Endpoint::new(Ipv4Addr::new(127, 0, 0, last).into());
        let mut program = Program::default();
        program.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
            collector: 0,
            purpose: Purpose::Write,
            transport: Transport::Uc,
            remote_qpn,
            local_qpn: 0x11,
            source: endpoint(2),
            destination: endpoint(1),
            tos: 0,
            max_dest_rd_atomic: 0,
            generation: 1,
            start_psn: 0,
            replaced: None,
        }));
        program.set(DataPlaneEntry::Store(Store {
            collector: 0,
            buckets: Copies::default(),
            address,
            length: spec.region_len(),
            rkey: Rkey(rkey),
            generation: 1,
            queue_pair: Purpose::Write,
            spec,
        }));
        let mut engine = Engine::new(EngineLimits::default());
        let mut out = EngineOutput::default();
        let applied = engine.apply_changes(0, &diff_programs(&Program::default(), &program), &mut out);
        assert!(applied.is_ok(), "a program of this module's own");

        let all = 0..65_536u64.div_ceil(batch as u64) * batch as u64;
        let datagrams = all.map(|n| report_datagram(reporter, n)).collect();
        KeyWriteBench { engine, out, datagrams, sequence: 0, batch, frame: Vec::new() }
    }

    /// Translates `batches` batches and passes each batch's frames to `sink`. Returns the number of frames, and the
    /// CPU time including the sink, but without making the datagrams.
    pub(super) fn run(&mut self, batches: usize, mut sink: impl FnMut(&PacketBatches)) -> Share {
        let (mut frames, mut took) = (0, Duration::ZERO);
        for first in (0..batches).step_by(READY) {
            let turns = first..batches.min(first + READY);
            turns.clone().for_each(|turn| _ = self.make_ready(turn));
            let start = thread_cpu_time();
            for turn in turns {
                let at = self.turn_offset(turn);
                let batch = &self.datagrams[at..at + self.batch];
                self.engine.ingest_packets(0, batch.iter().map(Vec::as_slice), &mut self.out);
                frames += self.out.frames.len() as u64;
                sink(&self.out.frames);
                self.out.clear();
            }
            took += thread_cpu_time().saturating_sub(start);
        }
        (frames, took)
    }

    /// Like [`KeyWriteBench::run`], for one of several workers, which call [`KeyWriteBench::translate_handovers`] when they
    /// have no more batches. The frames are those of all workers' reports.
    pub(super) fn run_among(
        &mut self,
        batches: usize,
        crew: &mut Crew,
        mut sink: impl FnMut(&PacketBatches),
    ) -> u64 {
        let (mut frames, mut turn) = (0, 0);
        while turn < batches {
            if crew.has_room_for(self.batch) {
                let at = self.make_ready(turn);
                let batch = &self.datagrams[at..at + self.batch];
                self.engine.ingest_among(0, batch.iter().map(Vec::as_slice), crew, &mut self.out);
                turn += 1;
            } else if crew.waiting_reports() == 0 {
                std::thread::yield_now();
            }
            frames += self.translate_handovers(crew, &mut sink);
        }
        frames
    }

    /// Translates what the other workers have handed over. Returns the number of frames, including those made before.
    pub(super) fn translate_handovers(
        &mut self,
        crew: &mut Crew,
        mut sink: impl FnMut(&PacketBatches),
    ) -> u64 {
        self.engine.take_handovers(0, crew, &mut self.out);
        let frames = self.out.frames.len() as u64;
        sink(&self.out.frames);
        self.out.clear();
        frames
    }

    /// Numbers the datagrams of a turn. Returns where the first one is.
    fn make_ready(&mut self, turn: usize) -> usize {
        let at = self.turn_offset(turn);
        // A reporter never sends a sequence twice; and with a key of its own, each report goes to its own slot.
        for datagram in &mut self.datagrams[at..at + self.batch] {
            datagram[28 + 1] = self.sequence as u8;
            datagram[28 + 8..28 + 12].copy_from_slice(&self.sequence.to_be_bytes());
            datagram[BEFORE_KEY..BEFORE_KEY + 4].copy_from_slice(&self.sequence.to_be_bytes());
            self.sequence = self.sequence.wrapping_add(1);
        }
        at
    }

    /// Where the datagrams of a turn begin.
    fn turn_offset(&self, turn: usize) -> usize {
        turn % (self.datagrams.len() / self.batch) * self.batch
    }

    /// What the last [`KeyWriteBench::run`] of this many batches reported, in order; at most one turn through the
    /// datagrams.
    pub(super) fn reported_values(&self, batches: usize) -> impl Iterator<Item = (Key, &[u8])> {
        self.datagrams[..batches * self.batch].iter().map(|datagram| {
            let (key, value) = datagram[BEFORE_KEY..].split_at(KEY_LEN);
            let mut whole = Key([0; KEY_LEN]);
            whole.0.copy_from_slice(key);
            (whole, value)
        })
    }

    /// The floor of [`KeyWriteBench::run`]: for each report the CRCs (key, slot, checksum, and the part of the iCRC
    /// that differs between frames) and the copy of a finished frame. Returns the number of frames, and the CPU time.
    pub(super) fn run_floor(&mut self, batches: usize) -> Share {
        if self.frame.is_empty() {
            let mut frame = Vec::new();
            self.run(1, |frames| frame = frames.iter().next().unwrap_or_default().to_vec());
            self.frame = frame;
        }
        let len = self.frame.len();
        let mut copies = vec![0u8; self.batch * len];
        let mut sum = 0u64;
        let start = thread_cpu_time();
        for turn in 0..batches {
            let at = self.turn_offset(turn);
            for (datagram, copy) in
                self.datagrams[at..at + self.batch].iter().zip(copies.chunks_exact_mut(len))
            {
                let mut key = Key([0; 16]);
                key.0.copy_from_slice(&datagram[BEFORE_KEY..BEFORE_KEY + 16]);
                let value = &datagram[BEFORE_KEY + 16..];
                let slot = hash::slot_index(hash::key_hash(&key), 0, 1 << 20);
                let checksum = hash::value_checksum(&key, value);
                copy.copy_from_slice(&self.frame);
                let icrc = crc32_update(checksum, &copy[36..len - 4]);
                sum = sum.wrapping_add(slot ^ u64::from(icrc));
            }
            std::hint::black_box(&mut copies);
        }
        // A number that depends on everything.
        std::hint::black_box(sum);
        ((batches * self.batch) as u64, thread_cpu_time().saturating_sub(start))
    }
}

fn report_datagram(reporter: u16, n: u64) -> Vec<u8> {
    let mut key = Key([0; 16]);
    let random =
        |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n << 17).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = n | u64::from(reporter) << 32;
    key.0[..8].copy_from_slice(&random(n).to_be_bytes());
    key.0[8..].copy_from_slice(&random(!n).to_be_bytes());
    let value = [n as u8; VALUE];
    let body = DtaBody::KeyWrite { redundancy: 0, key, value: &value };
    let report = DtaReport { reporter, ..DtaReport::new(1, body) };
    let source = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 50_000);
    let destination = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40_040);
    let mut packet = vec![0; 28 + report.buffer_len()];
    packet[..28].copy_from_slice(&dta_proto::wire::datagram::encode_header(
        source,
        destination,
        report.buffer_len(),
    ));
    let emitted = report.encode_into(&mut packet[28..]);
    assert!(emitted.is_ok(), "a report of this module's own");
    packet
}

pub(super) const BATCH: usize = 64;
/// Batches per call: about a millisecond.
const BATCHES: usize = 64;

/// A key-write datagram to a finished RoCEv2 frame; the floor is the CRCs and the copy of the frame.
pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let bench = std::cell::RefCell::new(KeyWriteBench::new(1, BATCH, 1 << 20, (1 << 40, 7), 5));
    Ok(measure_shares(
        scale,
        || {
            bench.borrow_mut().run(BATCHES, |frames| {
                std::hint::black_box(frames);
            })
        },
        |_| bench.borrow_mut().run_floor(BATCHES),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_becomes_a_frame() {
        let mut bench = KeyWriteBench::new(1, 64, 1 << 10, (0x1_0000_0000, 7), 5);
        let mut seen = 0;
        // More than one turn through the datagrams.
        assert_eq!(bench.run_floor(10).0, 640);
        let (frames, _) = bench.run(1100, |frames| seen += frames.len() as u64);
        let accepted = bench.engine.engine_counters().primitives[0].accepted;
        assert_eq!((frames, seen, accepted), (70_400, 70_400, 70_464));
    }
}
