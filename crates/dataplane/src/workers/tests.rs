//! Several workers do with the same reports what one engine does.

use std::collections::BTreeMap;

use dta_proto::program::{DataPlaneEntry, EntryKey, ProgramQueuePair, Purpose, Transport};
use dta_proto::wire::datagram::UdpDatagram;
use dta_proto::wire::dta::{DtaBody, DtaReport, Version};
use dta_proto::wire::frame::Received;

use super::{CAPACITY, build_crew};
use crate::counters::Reason;
use crate::requester::Timing;
use crate::tests::{AP, Bench, KI, KW, PC, SM, datagram, key, program};
use crate::{EngineLimits, ReporterCounters};

/// A xorshift generator (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % bound
    }
}

const REPORTERS: usize = 6;

/// What each reporter sends: all primitives, in order, with losses, repeats and swapped neighbours. Keys and
/// lists are one reporter's each; counters, paths and columns are everybody's. Of ten reports, `writes` more
/// are key-writes, some of which cannot be gathered into runs.
fn traffic(random: &mut Random, writes: usize) -> Vec<Vec<Vec<u8>>> {
    (0..REPORTERS)
        .map(|reporter| {
            let mut packets = Vec::new();
            for sequence in 0..400u32 {
                let n = sequence as usize;
                let own = key((reporter * 20 + n % 20) as u8);
                let (value, cells) = ([n as u8; 12], [1, 2, 3, 4, 5, 6, 7, reporter as u8]);
                let write = |value| DtaBody::KeyWrite { redundancy: 0, key: own, value };
                let (store, body) = match n % 5 {
                    _ if random.below(10) < writes => match random.below(24) {
                        0 => (KW, write(&value[..4])),
                        1 => (KW, write(&[7; 16])),
                        2 => (99, write(&value)),
                        3 => (KW, DtaBody::KeyWrite { redundancy: 1, key: own, value: &value }),
                        4 => (KW, DtaBody::KeyWrite { redundancy: 4, key: own, value: &value }),
                        _ => (KW, write(&value)),
                    },
                    0 => (KW, write(&value)),
                    1 => {
                        // Two of the lists are nobody's here: those reports are dropped.
                        (AP, DtaBody::Append { list: reporter as u32, value: &value[..8] })
                    }
                    2 => {
                        let key = key(200 + (n % 7) as u8);
                        (KI, DtaBody::KeyIncrement { redundancy: 0, key, delta: n as u64 })
                    }
                    3 => {
                        let key = key((n / 5) as u8);
                        let hop = reporter as u8;
                        let path_length = REPORTERS as u8;
                        (PC, DtaBody::Postcard { key, hop, path_length, value: 100 + u32::from(hop) })
                    }
                    _ => (SM, DtaBody::SketchMerge { epoch: 1, column: (n / 5 % 16) as u32, cells: &cells }),
                };
                let report = DtaReport {
                    version: Version::V1,
                    immediate: writes != 0 && random.below(30) == 0,
                    retransmittable: true,
                    restarted: false,
                    sequence,
                    reporter: 11 + reporter as u16,
                    store,
                    body,
                };
                let mut bytes = [0; 100];
                let len = report.encode_into(&mut bytes).unwrap();
                let packet = datagram(&bytes[..len]);
                // The first ones arrive, so that all know the reporter's position.
                match random.below(20) {
                    0 | 1 if n > 2 => continue,
                    2 => packets.push(packet.clone()),
                    _ => {}
                }
                packets.push(packet);
                let last = packets.len() - 1;
                if n > 5 && random.below(10) == 0 {
                    packets.swap(last, last - 1);
                }
            }
            packets
        })
        .collect()
}

/// All output, in an order independent of who made it: by place in memory, what was written there and what
/// was added; NACKs by reporter; counters by name; and reporters.
#[derive(Debug, PartialEq)]
struct Made {
    written: BTreeMap<u64, Vec<Vec<u8>>>,
    added: BTreeMap<u64, u64>,
    nacks: Vec<Vec<u8>>,
    counters: Vec<(String, u64)>,
    reporters: BTreeMap<u16, (ReporterCounters, u32)>,
}

fn make(workers: usize, traffic: &[Vec<Vec<u8>>], random: &mut Random) -> Made {
    let mut program = program(Transport::Uc, false);
    if let Some(DataPlaneEntry::QueuePair(pair)) = program.remove(&EntryKey::QueuePair(0, Purpose::Atomic)) {
        // Nobody answers here, so everything must fit.
        program.set(DataPlaneEntry::QueuePair(ProgramQueuePair { max_dest_rd_atomic: 4096, ..pair }));
    }
    let limits = EngineLimits { rc: Timing { window: 4096, ..Timing::default() }, ..EngineLimits::default() };
    let (mut crews, view) = build_crew(workers);
    let mut benches: Vec<Bench> = crews.iter().map(|_| Bench::new(&program, limits)).collect();
    // Each reporter's datagrams come to one socket, which need not be that of its worker.
    let sockets: Vec<usize> = traffic.iter().map(|_| random.below(workers)).collect();
    let mut sent = vec![0; traffic.len()];
    let mut idle = 0;
    while idle < 3 * workers + 1 {
        idle += 1;
        let worker = random.below(workers);
        let (bench, crew) = (&mut benches[worker], &mut crews[worker]);
        if bench.engine.take_handovers(0, crew, &mut bench.out) != 0 {
            idle = 0;
        }
        let reporter = random.below(traffic.len());
        let some = random.below(60).min(traffic[reporter].len() - sent[reporter]);
        if sockets[reporter] == worker && crew.has_room_for(some) && some != 0 {
            let batch = &traffic[reporter][sent[reporter]..][..some];
            let packets = batch.iter().map(Vec::as_slice);
            match workers {
                1 => bench.engine.ingest_packets(0, packets, &mut bench.out),
                _ => bench.engine.ingest_among(0, packets, crew, &mut bench.out),
            }
            sent[reporter] += some;
            idle = 0;
        }
        assert_eq!(
            bench.engine.engine_counters().find_imbalance(),
            None,
            "the books of each worker close at any time"
        );
        if sent.iter().zip(traffic).any(|(sent, all)| *sent < all.len()) || !view.is_empty() {
            idle = 0;
        }
    }
    let mut made = Made {
        written: BTreeMap::new(),
        added: BTreeMap::new(),
        nacks: Vec::new(),
        counters: Vec::new(),
        reporters: BTreeMap::new(),
    };
    let mut counters = crate::counters::EngineCounters::default();
    for bench in &mut benches {
        bench.engine.flush_held_reports(0, &mut bench.out);
        for frame in bench.out.frames.iter() {
            let received = Received::parse_packet(frame).unwrap();
            match received.roce.atomic_header() {
                Some(atomic) => *made.added.entry(atomic.va).or_default() += atomic.swap_add,
                None => {
                    let va = received.roce.rdma_header().unwrap().va;
                    let there = made.written.entry(va).or_default();
                    // A column is sent again when a reporter is late: the last time all are in it.
                    if va >> 32 == u64::from(SM) {
                        there.clear();
                    }
                    there.push(received.roce.payload().to_vec());
                }
            }
        }
        let nacks = bench.out.nacks.iter();
        made.nacks.extend(nacks.map(|nack| UdpDatagram::parse_packet(nack).unwrap().payload().to_vec()));
        counters.add(bench.engine.engine_counters());
        for reporter in bench.engine.reporters().iter() {
            let heard = (reporter.counters, reporter.newest);
            assert_eq!(made.reporters.insert(reporter.id, heard), None, "one worker hears a reporter");
        }
    }
    assert_eq!(counters.find_imbalance(), None);
    made.nacks.sort();
    // Paths of two keys may have one place: which comes last depends on who hears which postcard when.
    for (_, there) in made.written.iter_mut().filter(|(va, _)| *va >> 32 == u64::from(PC)) {
        there.sort();
    }
    // How many of the increments came together depends on batches.
    let same = |name: &String| !["operations", "frames", "coalesced"].iter().any(|end| name.ends_with(end));
    made.counters = counters.named_counters().into_iter().filter(|(name, _)| same(name)).collect();
    made
}

/// Makes several workers process the traffic that one engine processed, and returns the latter's output.
fn several_make_what_one_makes(writes: usize) -> Vec<Made> {
    let each = |seed: u64| {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let traffic = traffic(&mut random, writes);
        let one = make(1, &traffic, &mut random);
        for workers in [2, 3, 5] {
            let several = make(workers, &traffic, &mut random);
            assert_eq!(several, one, "{workers} workers, seed {seed}");
        }
        one
    };
    (1..=6).map(each).collect()
}

#[test]
fn several_workers_make_what_one_engine_makes() {
    for one in several_make_what_one_makes(0) {
        let duplicates: u64 = one.reporters.values().map(|(counters, _)| counters.duplicates).sum();
        assert!(duplicates > 20 && one.nacks.len() > 20 && one.added.len() > 5 && one.written.len() > 200);
    }
}

#[test]
fn several_workers_make_of_many_key_writes_what_one_engine_makes() {
    for one in several_make_what_one_makes(8) {
        let written: usize = one.written.values().map(Vec::len).sum();
        assert!(written > 1000, "{written}");
    }
}

/// Entries and postcards without reporters, as INT and flows make them, come to the worker that may write them, in their order;
/// what does not fit is counted.
#[test]
fn unnumbered_reports_are_executed_by_the_worker_with_their_list_or_path() {
    let program = program(Transport::Uc, false);
    let (mut crews, view) = build_crew(3);
    let mut benches: Vec<Bench> =
        crews.iter().map(|_| Bench::new(&program, EngineLimits::default())).collect();
    let values: Vec<[u8; 8]> = (0..60u64).map(u64::to_be_bytes).collect();
    let reports = values.iter().enumerate().map(|(n, value)| match n % 3 {
        0 => (AP, DtaBody::Append { list: n as u32 % 4, value }),
        1 => (
            PC,
            DtaBody::Postcard { key: key(n as u8 / 15), hop: (n / 3 % 5) as u8, path_length: 5, value: 9 },
        ),
        _ => (KI, DtaBody::KeyIncrement { redundancy: 0, key: key(9), delta: 1 }),
    });
    let (first, crew) = (&mut benches[0], &mut crews[0]);
    first.engine.execute_unnumbered_among(0, reports.clone(), crew, &mut first.out);
    assert_eq!(crew.take_news(), 0b110);
    for worker in [1, 2] {
        let bench = &mut benches[worker];
        assert_ne!(bench.engine.take_handovers(0, &mut crews[worker], &mut bench.out), 0);
    }
    assert!(view.is_empty());
    let mut alone = Bench::new(&program, EngineLimits::default());
    alone.engine.execute_unnumbered(0, reports, &mut alone.out);
    let mut sum = crate::counters::EngineCounters::default();
    for bench in &mut benches {
        assert_eq!(bench.engine.engine_counters().find_imbalance(), None);
        sum.add(bench.engine.engine_counters());
    }
    let totals =
        |of: &crate::counters::EngineCounters| (of.received, of.primitives.map(|p| (p.received, p.accepted)));
    assert_eq!(totals(&sum), totals(alone.engine.engine_counters()));
    assert_eq!(sum.received, 60);
    let payloads = |bench: &mut Bench| -> Vec<Vec<u8>> {
        bench.engine.flush_held_reports(0, &mut bench.out);
        let frames = bench.out.frames.iter();
        frames.map(|frame| Received::parse_packet(frame).unwrap().roce.payload().to_vec()).collect()
    };
    let (mut several, mut one): (Vec<_>, _) =
        (benches.iter_mut().flat_map(payloads).collect(), payloads(&mut alone));
    several.sort();
    one.sort();
    assert_eq!(several, one, "lists in order, paths whole");

    // Nobody takes them: as many wait as there is room for.
    let (first, crew) = (&mut benches[0], &mut crews[0]);
    let many = (0..CAPACITY + 5).map(|_| (AP, DtaBody::Append { list: 1, value: &[1; 8] }));
    first.engine.execute_unnumbered_among(0, many, crew, &mut first.out);
    assert_eq!(first.engine.engine_counters().dropped_reports(Reason::Handover), 5);
    assert_eq!(first.engine.engine_counters().find_imbalance(), None);
}
