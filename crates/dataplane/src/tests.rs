//! The engine from datagram to frame.

use std::net::{Ipv4Addr, SocketAddrV4};

use dta_proto::batch::Addresses;
use dta_proto::key::Key;
use dta_proto::layout::{append, hash, key_increment, key_write, postcarding, sketch_merge};
use dta_proto::store::{SlotKeys, StoreKind};
use dta_proto::wire::datagram::{self, UdpDatagram};
use dta_proto::wire::dta::{DtaBody, DtaReport, Nack, Version};
use dta_proto::wire::frame::{FrameRoute, Received};
use dta_proto::wire::ipv6;
use dta_proto::wire::roce::{self, Aeth, Bth, BthFields, NakCode, Opcode, Psn, RoceRepr, Syndrome};
use proptest::prelude::*;

use super::counters::{LossCause, Reason};
use super::*;
use dta_proto::program::*;

pub(super) const KW: u16 = 1;
pub(super) const AP: u16 = 2;
pub(super) const KI: u16 = 3;
pub(super) const PC: u16 = 4;
pub(super) const SM: u16 = 5;
const NOTIFY: u16 = 6;
const SRC: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 5555);
const DST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40040);
const MS: u64 = 1_000_000;

/// The program that the frame vectors are made with.
fn sample() -> Program {
    serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap()
}

fn base(id: u16) -> u64 {
    u64::from(id) << 32
}

fn rkey(id: u16) -> u32 {
    0x1000 + u32::from(id)
}

/// The sample with writes on this transport. In reference mode nothing leaves by time.
pub(crate) fn program(writes: Transport, reference: bool) -> Program {
    let mut program = sample();
    if let Some(DataPlaneEntry::QueuePair(pair)) = program.remove(&EntryKey::QueuePair(0, Purpose::Write)) {
        program.set(DataPlaneEntry::QueuePair(ProgramQueuePair { transport: writes, ..pair }));
    }
    program.set(DataPlaneEntry::Mode(Mode { reference }));
    if reference {
        for primitive in Primitive::ALL {
            program.remove(&EntryKey::Flush(primitive));
        }
    }
    program
}

pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) out: EngineOutput,
    pub(super) sequence: u32,
}

impl Bench {
    pub(super) fn new(program: &Program, limits: EngineLimits) -> Bench {
        let mut engine = Engine::new(limits);
        let mut out = EngineOutput::default();
        engine.apply_changes(0, &diff_programs(&Program::default(), program), &mut out).unwrap();
        assert_eq!(diff_programs(engine.installed_program(), program), vec![]);
        Bench { engine, out, sequence: 0 }
    }

    fn plain() -> Bench {
        Bench::new(&program(Transport::Uc, false), EngineLimits::default())
    }

    pub(super) fn v1(&mut self, reporter: u16, store: u16, body: DtaBody<'_>) -> Vec<u8> {
        let report = DtaReport { sequence: self.sequence, reporter, ..DtaReport::new(store, body) };
        self.sequence += 1;
        packet(&report)
    }

    pub(super) fn ingest(&mut self, now: u64, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.out.clear();
        self.engine.ingest_packets(now, packets.iter().map(Vec::as_slice), &mut self.out);
        self.frames()
    }

    pub(super) fn frames(&mut self) -> Vec<Vec<u8>> {
        assert_eq!(self.engine.engine_counters().find_imbalance(), None);
        assert_eq!(self.out.frames.len(), self.out.meta.len());
        assert_recorded_as_written(&self.out.frames);
        assert_recorded_as_written(&self.out.nacks);
        let frames = self.out.frames.iter().map(<[u8]>::to_vec).collect();
        self.out.clear();
        frames
    }

    pub(super) fn tick(&mut self, now: u64) -> Vec<Vec<u8>> {
        self.engine.run_timers(now, &mut self.out);
        self.frames()
    }

    fn flush(&mut self, now: u64) -> (u64, Vec<Vec<u8>>) {
        let flushed = self.engine.flush_held_reports(now, &mut self.out);
        (flushed, self.frames())
    }

    pub(super) fn drops(&self, reason: Reason) -> u64 {
        self.engine.engine_counters().dropped_reports(reason)
    }

    /// Sends one report that must be dropped for a reason.
    fn refuse(&mut self, store: u16, body: DtaBody<'_>, reason: Reason) {
        let before = self.drops(reason);
        let packet = self.v1(1, store, body);
        assert_eq!(self.ingest(0, &[packet]), Vec::<Vec<u8>>::new());
        assert_eq!(self.drops(reason), before + 1, "{reason:?}");
    }
}

/// The batches record for each packet what its headers say.
fn assert_recorded_as_written(frames: &PacketBatches) {
    for batch in frames.batches() {
        for index in 0..batch.len() {
            if ipv6::is_ipv6(batch.packet(index)) {
                assert_eq!(batch.addresses(index), None);
                continue;
            }
            let datagram = UdpDatagram::parse_exact(batch.packet(index)).unwrap();
            let written = Addresses::new(datagram.source(), datagram.destination());
            assert_eq!(batch.addresses(index), Some(written));
        }
    }
}

fn packet(report: &DtaReport<'_>) -> Vec<u8> {
    let mut payload = [0; 200];
    let len = report.encode_into(&mut payload).unwrap();
    datagram(&payload[..len])
}

pub(super) fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut packet = datagram::encode_header(SRC, DST, payload.len()).to_vec();
    packet.extend_from_slice(payload);
    packet
}

pub(super) fn key(n: u8) -> Key {
    Key([n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 0, 0, 0])
}

/// The frame that carries `repr` by the profile, built without templates.
fn frame(repr: &RoceRepr<'_>) -> Vec<u8> {
    let qpn = repr.bth.dest_qp;
    let route = FrameRoute::new(Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 1), qpn);
    let mut bytes = [0; 300];
    let len = route.write_frame(repr, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

fn write(psn: u32, store: u16, offset: u64, payload: &[u8], imm: Option<u32>) -> Vec<u8> {
    let place = BthFields { dest_qp: 0x11, psn: Psn::new(psn), ack_req: false };
    frame(&RoceRepr::write(roce::Transport::Uc, place, base(store) + offset, rkey(store), payload, imm))
}

#[test]
fn a_key_write_becomes_these_bytes() {
    let mut bench = Bench::plain();
    let report = bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[0xaa; 12] });
    let frames = bench.ingest(0, &[report]);
    let hex = dta_proto::to_hex_digits(&frames[0]);
    // IPv4, UDP, BTH, RETH, checksum and value, iCRC.
    assert_eq!(
        hex,
        "4500004c000040004011268d0a0900020a090001\
         c01112b700380000\
         2a40ffff0000001100fffffe\
         0000000100032b700000100100000010\
         0a7e81faaaaaaaaaaaaaaaaaaaaaaaaa\
         f2b8b0e6"
    );
    let slot = hash::key_slots(&key(1), 1, 1 << 16)[0];
    let mut element = [0; 16];
    key_write::encode_slot(&mut element, &key(1), &[0xaa; 12]);
    assert_eq!(frames, [write(0xff_fffe, KW, key_write::slot_offset(slot, 12), &element, None)]);
}

#[test]
fn an_inline_key_stands_before_the_value() {
    let mut changed = program(Transport::Uc, false);
    let entries: Vec<DataPlaneEntry> = changed.entries().cloned().collect();
    for entry in entries {
        if let DataPlaneEntry::Store(mut store) = entry
            && let StoreKind::KeyWrite { keys, .. } = &mut store.spec.kind
        {
            *keys = SlotKeys::Inline;
            store.length = store.spec.region_len();
            changed.set(DataPlaneEntry::Store(store));
        }
    }
    let mut bench = Bench::new(&changed, EngineLimits::default());
    let values = [&[1; 12][..], &[2; 4], &[3; 12]];
    let reports: Vec<Vec<u8>> = (1u8..)
        .zip(values)
        .map(|(k, value)| bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key: key(k), value }))
        .collect();
    let frames = bench.ingest(0, &reports);
    let expected = (0u8..).zip(values).map(|(n, value)| {
        let key = key(n + 1);
        let mut element = [0; 32];
        element[4..20].copy_from_slice(&key.0);
        element[20..20 + value.len()].copy_from_slice(value);
        let sum = hash::value_checksum(&key, &element[4..]);
        element[..4].copy_from_slice(&sum.to_be_bytes());
        let offset = 32 * hash::key_slots(&key, 1, 1 << 16)[0];
        write((0xff_fffe + u32::from(n)) & 0xff_ffff, KW, offset, &element, None)
    });
    assert_eq!(frames, expected.collect::<Vec<_>>());
    bench.refuse(KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 28] }, Reason::ValueLength);
    bench.refuse(KW, DtaBody::KeyWrite { redundancy: 3, key: key(1), value: &[1; 12] }, Reason::Redundancy);
}

#[test]
fn copies_leave_in_order_and_a_report_may_ask_for_fewer() {
    let mut bench = Bench::plain();
    let reports = [
        bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 0, key: key(1), value: &[1; 12] }),
        bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key: key(2), value: &[2; 4] }),
    ];
    let frames = bench.ingest(0, &reports);
    let element = |k: u8, value: &[u8]| {
        let mut element = [0; 16];
        key_write::encode_slot(&mut element, &key(k), value);
        element
    };
    let offset = |k: u8, n: usize| key_write::slot_offset(hash::key_slots(&key(k), 2, 1 << 16)[n], 12);
    assert_eq!(
        frames,
        [
            write(0xff_fffe, KW, offset(1, 0), &element(1, &[1; 12]), None),
            write(0xff_ffff, KW, offset(1, 1), &element(1, &[1; 12]), None),
            // A shorter value is filled up with zeros.
            write(0, KW, offset(2, 0), &element(2, &[2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0]), None),
        ]
    );
    bench.refuse(KW, DtaBody::KeyWrite { redundancy: 3, key: key(1), value: &[1; 12] }, Reason::Redundancy);
    bench.refuse(KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 16] }, Reason::ValueLength);
    bench.refuse(99, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] }, Reason::UnknownStore);
    bench.refuse(
        AP,
        DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] },
        Reason::WrongPrimitive,
    );
}

#[test]
fn appended_entries_leave_in_batches_that_go_on_where_the_ring_stands() {
    let mut bench = Bench::plain();
    let batch = |list, sequence, count, entries: &[u8]| {
        let mut bytes = [0; 32];
        append::encode_batch(&mut bytes, list, sequence, count, entries);
        bytes
    };
    // List 1 stands at 5, so the next batch is 6; 3 entries of 8 bytes fill a batch.
    let reports: Vec<_> =
        (1..=4).map(|n: u8| bench.v1(7, AP, DtaBody::Append { list: 1, value: &[n; 8] })).collect();
    let entries: Vec<u8> = (1..=3).flat_map(|n: u8| [n; 8]).collect();
    let expected = write(0xff_fffe, AP, append::batch_offset(1, 6, 4, 32), &batch(1, 6, 3, &entries), None);
    assert_eq!(bench.ingest(5 * MS, &reports), [expected]);
    // The fourth waits until it is old enough.
    assert_eq!(bench.tick(14 * MS), Vec::<Vec<u8>>::new());
    assert_eq!(bench.engine.next_deadline(), Some(15 * MS));
    let expected = write(0xff_ffff, AP, append::batch_offset(1, 7, 4, 32), &batch(1, 7, 1, &[4; 8]), None);
    assert_eq!(bench.tick(15 * MS), [expected]);
    assert_eq!(bench.engine.next_deadline(), None);
    let c = bench.engine.engine_counters().primitives[Primitive::Append.index()];
    assert_eq!((c.received, c.accepted, c.emitted, c.held, c.operations), (4, 4, 4, 0, 2));

    bench.refuse(AP, DtaBody::Append { list: 8, value: &[0; 8] }, Reason::ListRange);
    bench.refuse(AP, DtaBody::Append { list: 2, value: &[0; 8] }, Reason::ListNotOwned);
    bench.refuse(AP, DtaBody::Append { list: 6, value: &[0; 8] }, Reason::ListNotOwned);
    bench.refuse(AP, DtaBody::Append { list: 4, value: &[0; 4] }, Reason::ValueLength);
}

#[test]
fn a_list_that_another_has_written_goes_on_after_it_and_keeps_what_it_holds() {
    let mut bench = Bench::plain();
    let lists = |positions: Vec<(u32, u32)>| {
        DataPlaneEntry::Lists(Lists { store: AP, collector: 0, first: 0, count: 2, positions })
    };
    let take = |bench: &mut Bench, positions| {
        let key = EntryKey::Lists(AP, 0);
        let from = bench.engine.installed_program().get(&key).unwrap().clone();
        let change = DataPlaneChange::Modify { from, to: lists(positions) };
        bench.engine.apply_changes(0, &[change], &mut bench.out).unwrap();
        assert!(bench.frames().is_empty());
    };
    let batch = |list, sequence, count, byte: u8| {
        let mut batch = [0; 32];
        append::encode_batch(&mut batch, list, sequence, count, &vec![byte; 8 * usize::from(count)]);
        (append::batch_offset(list, sequence, 4, 32), batch)
    };
    // List 0 has written batch 1 and holds an entry; list 1 stood at 5 and holds none.
    for byte in [1, 1, 1, 2] {
        let report = bench.v1(1, AP, DtaBody::Append { list: 0, value: &[byte; 8] });
        bench.ingest(0, &[report]);
    }
    // Another writer got as far as batch 30 of list 0. What memory says of list 1 is older than
    // what is on its way from here.
    take(&mut bench, vec![(0, 30), (1, 3)]);
    let report = bench.v1(1, AP, DtaBody::Append { list: 1, value: &[3; 8] });
    bench.ingest(0, &[report]);
    let (flushed, frames) = bench.flush(1);
    assert_eq!(flushed, 2);
    let expect = |psn, (offset, batch): (u64, [u8; 32])| write(psn, AP, offset, &batch, None);
    assert_eq!(frames, [expect(0xff_ffff, batch(0, 31, 1, 2)), expect(0, batch(1, 6, 1, 3))]);
    // Sequences are serial numbers: 2 comes after 2^32 - 2, and nothing goes back.
    take(&mut bench, vec![(0, u32::MAX / 3), (1, 100)]);
    take(&mut bench, vec![(0, u32::MAX / 3 * 2)]);
    take(&mut bench, vec![(0, u32::MAX - 1), (1, 50)]);
    take(&mut bench, vec![(0, 2)]);
    take(&mut bench, vec![(0, u32::MAX - 1)]);
    for list in [0, 1] {
        let report = bench.v1(1, AP, DtaBody::Append { list, value: &[4; 8] });
        bench.ingest(1, &[report]);
    }
    let frames = bench.flush(2).1;
    assert_eq!(frames, [expect(1, batch(0, 3, 1, 4)), expect(2, batch(1, 101, 1, 4))]);
    assert_eq!(bench.engine.engine_counters().discarded(super::counters::Discard::StoreRemoved), 0);
}

#[test]
fn without_its_queue_pairs_it_drops_by_name_until_they_are_back() {
    for transport in [Transport::Uc, Transport::Rc] {
        let mut bench = Bench::new(&program(transport, false), EngineLimits::default());
        let write = DtaBody::KeyWrite { redundancy: 2, key: key(1), value: &[1; 12] };
        let reports = [bench.v1(1, KW, write), bench.v1(1, AP, DtaBody::Append { list: 0, value: &[1; 8] })];
        assert_eq!(bench.ingest(0, &reports).len(), 2);
        let mut without = bench.engine.installed_program().clone();
        for purpose in Purpose::ALL {
            without.remove(&EntryKey::QueuePair(0, purpose));
        }
        bench
            .engine
            .apply_changes(1, &diff_programs(&program(transport, false), &without), &mut bench.out)
            .unwrap();
        assert!(bench.frames().is_empty());
        bench.refuse(KW, write, Reason::NoQueuePair);
        assert!(bench.tick(60 * MS).is_empty());
        let lost = bench.engine.engine_counters().lost_by_cause(LossCause::QueuePairDown).0;
        // The entry that was held; and on RC what was not acknowledged.
        assert_eq!(lost, if transport == Transport::Uc { 1 } else { 2 });
        let back = diff_programs(&without, &program(transport, false));
        bench.engine.apply_changes(61 * MS, &back, &mut bench.out).unwrap();
        let report = bench.v1(1, KW, write);
        assert_eq!(bench.ingest(62 * MS, &[report]).len(), 2);
    }
}

#[test]
fn paths_and_columns_in_hand_are_discarded_when_another_may_have_written() {
    let mut bench = Bench::plain();
    let reports = [
        bench.v1(1, PC, DtaBody::Postcard { key: key(1), hop: 0, path_length: 3, value: 7 }),
        bench.v1(1, SM, DtaBody::SketchMerge { epoch: 1, column: 2, cells: &[1; 8] }),
        bench.v1(1, AP, DtaBody::Append { list: 0, value: &[1; 8] }),
    ];
    assert!(bench.ingest(0, &reports).is_empty());
    let mut want = program(Transport::Uc, false);
    for purpose in Purpose::ALL {
        let Some(DataPlaneEntry::QueuePair(pair)) = want.remove(&EntryKey::QueuePair(0, purpose)) else {
            panic!()
        };
        want.set(DataPlaneEntry::QueuePair(ProgramQueuePair { generation: 3, start_psn: 0, ..pair }));
    }
    want.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 3 }));
    let changes = changes_for_session(bench.engine.installed_program(), &want);
    bench.engine.apply_changes(1, &changes, &mut bench.out).unwrap();
    assert!(bench.frames().is_empty());
    assert_eq!(diff_programs(bench.engine.installed_program(), &want), vec![]);
    assert_eq!(bench.engine.engine_counters().discarded(super::counters::Discard::StoreRemoved), 2);
    // The entry is nobody else's, and leaves.
    assert_eq!(bench.flush(2).0, 1);
    // New reports are accepted as ever, and the reporter's column is not a repeat.
    let report = bench.v1(1, SM, DtaBody::SketchMerge { epoch: 1, column: 2, cells: &[1; 8] });
    bench.ingest(3, &[report]);
    assert_eq!(bench.flush(4).0, 1);
    assert_eq!(bench.drops(Reason::DuplicateColumn), 0);
}

#[test]
fn to_forget_a_store_leaves_the_operations_that_are_on_their_way() {
    let mut bench = Bench::new(&program(Transport::Rc, false), EngineLimits::default());
    let mut postcard =
        |k, hop| bench.v1(1, PC, DtaBody::Postcard { key: key(k), hop, path_length: 2, value: 7 });
    // One path is complete and leaves, in two copies; one lacks a hop.
    let reports = [postcard(1, 0), postcard(1, 1), postcard(2, 0)];
    let sent = bench.ingest(0, &reports);
    assert_eq!(sent.len(), 2);
    let store = bench.engine.installed_program().get(&EntryKey::Store(PC, 0)).unwrap().clone();
    bench
        .engine
        .apply_changes(1, &[DataPlaneChange::Forget { entry: store.clone() }], &mut bench.out)
        .unwrap();
    assert!(bench.frames().is_empty());
    assert_eq!(bench.engine.installed_program().get(&EntryKey::Store(PC, 0)), Some(&store));
    assert_eq!(bench.engine.engine_counters().discarded(super::counters::Discard::StoreRemoved), 1);
    assert_eq!(bench.engine.engine_counters().lost_by_cause(LossCause::StoreRemoved), (0, 0));
    let write = |bench: &Bench| {
        bench.engine.queue_pairs().into_iter().find(|q| q.purpose == Purpose::Write).expect("it is there")
    };
    assert_eq!(write(&bench).outstanding, 2);
    // Nobody answers, so they are sent again, the oldest twice.
    let places = |frames: &[Vec<u8>]| {
        let place = |frame: &Vec<u8>| Received::parse_packet(frame).unwrap().roce.rdma_header().unwrap().va;
        frames.iter().map(place).collect::<std::collections::BTreeSet<_>>()
    };
    let again = bench.tick(1000 * MS);
    assert_eq!(places(&again), places(&sent));
    assert_eq!(again.len(), 3);
    // Nothing is left of the path that lacked a hop: this hop starts a new one.
    let report = bench.v1(1, PC, DtaBody::Postcard { key: key(2), hop: 1, path_length: 2, value: 7 });
    assert!(bench.ingest(1001 * MS, &[report]).is_empty());
}

#[test]
fn a_sketch_that_was_forgotten_takes_epochs_and_reporters_as_a_new_one() {
    let mut bench = Bench::plain();
    let reserved = DataPlaneEntry::SketchReporter(SketchReporter { store: SM, reporter: 40, bit: 31 });
    bench.engine.apply_changes(0, &[DataPlaneChange::Insert { entry: reserved }], &mut bench.out).unwrap();
    // All other bits are assigned, each with several columns.
    for reporter in 0..31 {
        for column in 0..2 {
            let report = bench.v1(reporter, SM, DtaBody::SketchMerge { epoch: 1, column, cells: &[1; 8] });
            bench.ingest(0, &[report]);
        }
    }
    let body = |epoch| DtaBody::SketchMerge { epoch, column: 3, cells: &[1; 8] };
    bench.refuse(SM, body(1000), Reason::EpochAhead);
    let store = bench.engine.installed_program().get(&EntryKey::Store(SM, 0)).unwrap().clone();
    bench.engine.apply_changes(1, &[DataPlaneChange::Forget { entry: store }], &mut bench.out).unwrap();
    assert!(bench.frames().is_empty());
    // Another reporter than any before, in an epoch that was too far ahead.
    let reports = [bench.v1(77, SM, body(1000)), bench.v1(40, SM, body(1000))];
    assert_eq!(bench.ingest(2, &reports).len(), 1);
}

#[test]
fn lists_marked_notify_come_with_immediate_and_wake_at_once_when_asked() {
    let mut bench = Bench::plain();
    let report = DtaReport {
        immediate: true,
        restarted: true,
        reporter: 7,
        ..DtaReport::new(NOTIFY, DtaBody::Append { list: 1, value: &[9; 4] })
    };
    let mut bytes = [0; 16];
    append::encode_batch(&mut bytes, 1, 1, 1, &[9; 4]);
    let expected = write(0xff_fffe, NOTIFY, append::batch_offset(1, 1, 4, 16), &bytes, Some(1));
    assert_eq!(bench.ingest(0, &[packet(&report)]), [expected]);
    assert_eq!(bench.engine.engine_counters().immediate_ignored, 0);
}

/// A report with the immediate flag for a store that wakes no reader: it lands, and the request is counted.
#[test]
fn a_wish_to_wake_a_reader_that_nobody_can_fulfil_is_counted_and_the_report_lands() {
    let bodies = [
        (KW, DtaBody::KeyWrite { redundancy: 0, key: key(1), value: &[1; 12] }),
        (AP, DtaBody::Append { list: 0, value: &[2; 8] }),
        (KI, DtaBody::KeyIncrement { redundancy: 0, key: key(2), delta: 3 }),
        (PC, DtaBody::Postcard { key: key(3), hop: 0, path_length: 1, value: 4 }),
        (SM, DtaBody::SketchMerge { epoch: 1, column: 2, cells: &[5; 8] }),
    ];
    let frames_of = |immediate: bool| {
        let mut bench = Bench::plain();
        let mut frames = Vec::new();
        for (sequence, (store, body)) in (0..).zip(bodies) {
            let report = DtaReport { immediate, sequence, reporter: 7, ..DtaReport::new(store, body) };
            frames.extend(bench.ingest(0, &[packet(&report)]));
            let wishes = if immediate { u64::from(sequence) + 1 } else { 0 };
            assert_eq!(bench.engine.engine_counters().immediate_ignored, wishes, "{body:?}");
        }
        // A dropped report with the flag is not counted.
        let (store, body) = bodies[0];
        let report = DtaReport { immediate: true, reporter: 7, ..DtaReport::new(store, body) };
        bench.ingest(0, &[packet(&report)]);
        assert_eq!(bench.drops(Reason::Duplicate), 1);
        assert_eq!(bench.engine.engine_counters().immediate_ignored, if immediate { 5 } else { 0 });
        // What is held stays held: nobody waits for it.
        let (flushed, rest) = bench.flush(1);
        assert_eq!(flushed, 2);
        frames.extend(rest);
        frames
    };
    let (with, without) = (frames_of(true), frames_of(false));
    // A key-write and a counter twice, a path twice, a batch and a column.
    assert_eq!(with.len(), 8);
    assert_eq!(with, without);
    for frame in &with {
        assert_eq!(Received::parse_packet(frame).unwrap().roce.immediate_data(), None);
    }
}

#[test]
fn increments_of_one_counter_in_one_batch_are_one_operation() {
    let add = |psn, k: u8, n: usize, delta| {
        let va = base(KI) + key_increment::counter_offset(hash::key_slots(&key(k), 2, 1 << 12)[n]);
        let place = BthFields { dest_qp: 0x12, psn: Psn::new(psn), ack_req: psn & 63 == 63 };
        frame(&RoceRepr::fetch_add(place, va, rkey(KI), delta))
    };
    let body = |k, delta| DtaBody::KeyIncrement { redundancy: 0, key: key(k), delta };
    let mut bench = Bench::plain();
    let reports =
        [bench.v1(7, KI, body(1, 5)), bench.v1(7, KI, body(2, 1)), bench.v1(7, KI, body(1, u64::MAX))];
    // 5 + (2^64 - 1) is 4, as two FETCH_ADDs would make it.
    let expected = [add(0xff_fffe, 1, 0, 4), add(0xff_ffff, 1, 1, 4), add(0, 2, 0, 1), add(1, 2, 1, 1)];
    assert_eq!(bench.ingest(0, &reports), expected);
    let c = bench.engine.engine_counters().primitives[Primitive::KeyIncrement.index()];
    assert_eq!((c.accepted, c.emitted, c.operations, c.coalesced), (3, 3, 4, 2));
    bench.refuse(KI, DtaBody::KeyIncrement { redundancy: 1, key: key(1), delta: 1 }, Reason::Redundancy);

    // In reference mode each report has operations of its own.
    let mut bench = Bench::new(&program(Transport::Uc, true), EngineLimits::default());
    let reports = [bench.v1(7, KI, body(1, 5)), bench.v1(7, KI, body(1, 6))];
    let expected = [add(0xff_fffe, 1, 0, 5), add(0xff_ffff, 1, 1, 5), add(0, 1, 0, 6), add(1, 1, 1, 6)];
    assert_eq!(bench.ingest(0, &reports), expected);
}

#[test]
fn a_path_leaves_when_its_hops_are_there_or_when_it_is_flushed() {
    let row = |hops: &[(u8, u32)], length| {
        let mut path = postcarding::PostcardPath { length, ..Default::default() };
        hops.iter().for_each(|(h, v)| assert!(path.set(*h, *v)));
        let mut bytes = [0; 32];
        postcarding::encode_row(&mut bytes, &key(1), &path);
        bytes
    };
    let offset = |n: usize| postcarding::row_offset(hash::key_slots(&key(1), 2, 1 << 10)[n], 6);
    let card = |hop, value| DtaBody::Postcard { key: key(1), hop, path_length: 3, value };
    let mut bench = Bench::plain();
    let reports = [
        bench.v1(7, PC, card(2, 32)),
        bench.v1(8, PC, card(0, 30)),
        bench.v1(8, PC, card(0, 29)),
        bench.v1(9, PC, card(1, 31)),
        bench.v1(9, PC, card(1, 41)),
    ];
    let whole = row(&[(0, 29), (1, 31), (2, 32)], 3);
    assert_eq!(
        bench.ingest(0, &reports),
        [write(0xff_fffe, PC, offset(0), &whole, None), write(0xff_ffff, PC, offset(1), &whole, None)]
    );
    let c = bench.engine.engine_counters().primitives[Primitive::Postcarding.index()];
    assert_eq!((c.accepted, c.emitted, c.superseded, c.held, c.operations), (5, 3, 1, 1, 2));
    let partial = row(&[(1, 41)], 3);
    assert_eq!(
        bench.flush(1),
        (1, vec![write(0, PC, offset(0), &partial, None), write(1, PC, offset(1), &partial, None)])
    );
    bench.refuse(PC, DtaBody::Postcard { key: key(1), hop: 6, path_length: 0, value: 0 }, Reason::Hop);
    bench.refuse(PC, DtaBody::Postcard { key: key(1), hop: 2, path_length: 7, value: 0 }, Reason::PathLength);
}

#[test]
fn a_full_cache_evicts_the_oldest_of_its_place_and_never_mixes_keys() {
    let limits = EngineLimits { postcard_rows: 4, ..EngineLimits::default() };
    let mut bench = Bench::new(&program(Transport::Uc, false), limits);
    for k in 0..5 {
        let report = bench.v1(
            7,
            PC,
            DtaBody::Postcard { key: key(k), hop: 0, path_length: 2, value: 100 + u32::from(k) },
        );
        let frames = bench.ingest(u64::from(k), &[report]);
        // The fifth key evicts the first.
        assert_eq!(frames.len(), if k == 4 { 2 } else { 0 });
        for frame in frames {
            let received = Received::parse_packet(&frame).unwrap();
            let path = postcarding::verified_path(received.roce.payload(), &key(0)).unwrap();
            assert_eq!((path.bitmap, path.hops[0]), (1, 100));
        }
    }
}

#[test]
fn columns_of_all_reporters_become_one() {
    let column = |epoch, merged, cells: [u32; 2]| {
        let mut bytes = [0; 16];
        let cells = [cells[0], cells[1], 0, 0];
        sketch_merge::encode_column(
            &mut bytes,
            2,
            &sketch_merge::SketchColumn { epoch, merged, expected: 2, cells },
        );
        bytes
    };
    let cells = |a: u32, b: u32| [a.to_be_bytes(), b.to_be_bytes()].concat();
    let offset = |epoch| sketch_merge::column_offset(epoch, 3, 2, 16, 2);
    let mut bench = Bench::plain();
    let (a, b, c) = (cells(1, 2), cells(10, u32::MAX), cells(100, 100));
    let body = |epoch, cells| DtaBody::SketchMerge { epoch, column: 3, cells };
    let reports = [bench.v1(7, SM, body(5, &a)), bench.v1(8, SM, body(5, &b))];
    assert_eq!(
        bench.ingest(0, &reports),
        [write(0xff_fffe, SM, offset(5), &column(5, 2, [11, u32::MAX]), None)]
    );
    // The same reporter again does not count as a third.
    bench.sequence += 10;
    let again = bench.v1(8, SM, body(5, &b));
    assert_eq!(bench.ingest(0, &[again]), Vec::<Vec<u8>>::new());
    assert_eq!(bench.drops(Reason::DuplicateColumn), 1);
    // A third one, late, is merged on and the column leaves again.
    let late = bench.v1(9, SM, body(5, &c));
    assert_eq!(
        bench.ingest(0, &[late]),
        [write(0xff_ffff, SM, offset(5), &column(5, 3, [111, u32::MAX]), None)]
    );
    // Epoch 6 has one reporter, and is flushed with it; then the other comes.
    let one = bench.v1(7, SM, body(6, &a));
    assert_eq!(bench.ingest(MS, &[one]), Vec::<Vec<u8>>::new());
    assert_eq!(bench.tick(11 * MS), [write(0, SM, offset(6), &column(6, 1, [1, 2]), None)]);
    let other = bench.v1(8, SM, body(6, &c));
    assert_eq!(bench.ingest(12 * MS, &[other]), [write(1, SM, offset(6), &column(6, 2, [101, 102]), None)]);
    // Epoch 7 takes the place of 5, which is then too old.
    let newer = bench.v1(7, SM, body(7, &a));
    assert_eq!(bench.ingest(13 * MS, &[newer]), Vec::<Vec<u8>>::new());
    bench.refuse(SM, body(5, &a), Reason::EpochOld);
    let more = bench.v1(7, SM, DtaBody::SketchMerge { epoch: 7, column: 4, cells: &a });
    assert_eq!(bench.ingest(13 * MS, &[more]), Vec::<Vec<u8>>::new());
    // Epoch 9 takes the place of 7 before that was sent.
    let newest = bench.v1(7, SM, body(9, &a));
    assert_eq!(bench.ingest(14 * MS, &[newest]), Vec::<Vec<u8>>::new());
    let c = bench.engine.engine_counters().primitives[Primitive::SketchMerge.index()];
    assert_eq!((c.emitted, c.superseded, c.held), (5, 1, 2));
    bench.refuse(SM, DtaBody::SketchMerge { epoch: 9, column: 16, cells: &a }, Reason::Column);
    bench.refuse(SM, DtaBody::SketchMerge { epoch: 9, column: 1, cells: &a[..4] }, Reason::ValueLength);
}

#[test]
fn one_absurd_epoch_makes_no_real_one_old() {
    let cells = [1u32.to_be_bytes(), 2u32.to_be_bytes()].concat();
    let body = |epoch, column| DtaBody::SketchMerge { epoch, column, cells: &cells };
    let mut bench = Bench::plain();
    // Both reporters of the store: the column is complete and leaves.
    let real = [bench.v1(7, SM, body(5, 3)), bench.v1(8, SM, body(5, 3))];
    assert_eq!(bench.ingest(0, &real).len(), 1);
    bench.refuse(SM, body(u32::MAX, 3), Reason::EpochAhead);
    let real = [bench.v1(7, SM, body(6, 3)), bench.v1(8, SM, body(6, 3))];
    assert_eq!(bench.ingest(0, &real).len(), 1);
    // Reporters that were away for long lose one report.
    bench.refuse(SM, body(1000, 3), Reason::EpochAhead);
    let real = [bench.v1(8, SM, body(1000, 3)), bench.v1(7, SM, body(1000, 3))];
    assert_eq!(bench.ingest(0, &real).len(), 1);
}

#[test]
fn version_0_reports_go_to_the_stores_that_configuration_names() {
    let limits = EngineLimits { version0_nacks: 100, ..EngineLimits::default() };
    let mut bench = Bench::new(&program(Transport::Uc, false), limits);
    let report = |sequence, retransmittable, body| {
        packet(&DtaReport {
            version: Version::V0,
            immediate: false,
            retransmittable,
            restarted: false,
            sequence,
            reporter: 0,
            store: 0,
            body,
        })
    };
    let k = Key::from_version_0([1, 2, 3, 4]);
    let body = DtaBody::KeyWrite { redundancy: 2, key: k, value: &[7; 4] };
    // Generators send zeros: not duplicates, as they cannot be sent again.
    let frames = bench.ingest(0, &[report(0, false, body), report(0, false, body)]);
    assert_eq!(frames.len(), 4);
    let mut element = [0; 16];
    key_write::encode_slot(&mut element, &k, &[7; 4]);
    let slot = hash::key_slots(&k, 2, 1 << 16)[0];
    assert_eq!(frames[0], write(0xff_fffe, KW, key_write::slot_offset(slot, 12), &element, None));
    // Retransmittable ones are tracked: 1 and 2 are requested one by one.
    let reports = [report(0, true, body), report(3, true, body), report(3, true, body)];
    bench.out.clear();
    bench.engine.ingest_packets(0, reports.iter().map(Vec::as_slice), &mut bench.out);
    let nacks: Vec<_> =
        bench.out.nacks.iter().map(|p| (p[12..24].to_vec(), Nack::parse_payload(&p[28..]))).collect();
    let addresses = [127, 0, 0, 1, 127, 0, 0, 9, 0x9c, 0x68, 0x9c, 0x6c].to_vec();
    assert_eq!(nacks, [1, 2].map(|sequence| (addresses.clone(), Ok(Nack::V0 { sequence }))));
    assert_eq!(bench.drops(Reason::Duplicate), 1);
    // Not from another's budget, and not without limit: 32 a report would be 320.
    bench.out.clear();
    let reports: Vec<_> = (1..=10).map(|n| report((3 + 40 * n) & 0xff, true, body)).collect();
    bench.engine.ingest_packets(0, reports.iter().map(Vec::as_slice), &mut bench.out);
    assert_eq!((bench.out.nacks.len(), bench.engine.engine_counters().nacks_withheld), (98, 222));
    // Without a configured rate, none at all.
    let mut silent = Bench::plain();
    silent.engine.ingest_packets(0, reports.iter().map(Vec::as_slice), &mut silent.out);
    assert_eq!((silent.out.nacks.len(), silent.engine.engine_counters().version0_gaps), (0, 9 * 39));
    // Without a store for it, it is dropped under that name.
    bench
        .engine
        .apply_changes(
            0,
            &diff_programs(bench.engine.installed_program(), &Program::default())
                .into_iter()
                .filter(|c| matches!(c.entry_key(), EntryKey::Version0(_)))
                .collect::<Vec<_>>(),
            &mut bench.out,
        )
        .unwrap();
    bench.out.clear();
    bench.ingest(0, &[report(0, false, body)]);
    assert_eq!(bench.drops(Reason::Version0Store), 1);
}

#[test]
fn a_gap_is_answered_with_a_nack_to_where_the_report_came_from() {
    let mut bench = Bench::plain();
    let report = |sequence| {
        packet(&DtaReport {
            retransmittable: true,
            sequence,
            reporter: 7,
            ..DtaReport::new(KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] })
        })
    };
    let reports = [report(10), report(14), report(12), report(12)];
    bench.engine.ingest_packets(0, reports.iter().map(Vec::as_slice), &mut bench.out);
    assert_eq!(bench.out.nacks.len(), 1);
    let nack = UdpDatagram::parse_packet(bench.out.nacks.iter().next().unwrap()).unwrap();
    assert_eq!((nack.source(), nack.destination()), (DST, SRC));
    assert_eq!(Nack::parse_payload(nack.payload()), Ok(Nack::V1 { reporter: 7, first: 11, count: 3 }));
    assert_eq!(bench.drops(Reason::Duplicate), 1);
    assert_eq!(bench.frames().len(), 3);
}

#[test]
fn a_list_of_reporters_keeps_others_out_by_name() {
    let mut bench = Bench::plain();
    let body = DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] };
    bench.engine.list_reporters(&[(7, *SRC.ip()), (8, Ipv4Addr::new(10, 0, 0, 8))]);
    for reporter in [7, 7, 8, 9] {
        let report = bench.v1(reporter, KW, body);
        assert_eq!(bench.ingest(0, &[report]).len(), usize::from(reporter == 7), "{reporter}");
    }
    assert_eq!(bench.drops(Reason::NotListed), 2);
    // Its id from elsewhere.
    let mut elsewhere = bench.v1(7, KW, body);
    elsewhere[15] = 99;
    assert!(bench.ingest(0, &[elsewhere]).is_empty());
    assert_eq!(bench.drops(Reason::NotListed), 3);
}

#[test]
fn damaged_datagrams_are_dropped_by_reason() {
    let mut bench = Bench::plain();
    let good = bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] });
    let mut summed = good.clone();
    datagram::fill_udp_checksum(&mut summed);
    let mut flipped = summed.clone();
    flipped[50] ^= 4;
    let cases: [(Vec<u8>, Reason); 8] = [
        (flipped, Reason::Checksum),
        (good[..10].to_vec(), Reason::Header),
        (vec![], Reason::Header),
        (datagram(&[]), Reason::Length),
        (datagram(&[1, 0, 2, 0]), Reason::Version),
        (datagram(&[9, 0, 0, 0]), Reason::Opcode),
        (datagram(&[1, 0, 0, 1, 2]), Reason::Length),
        (datagram(&[4, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 1]), Reason::Hop),
    ];
    for (packet, reason) in cases {
        let before = bench.drops(reason);
        assert_eq!(bench.ingest(0, &[packet]), Vec::<Vec<u8>>::new());
        assert_eq!(bench.drops(reason), before + 1, "{reason:?}");
    }
    assert_eq!(bench.ingest(0, &[summed]).len(), 1);
}

#[test]
fn without_a_program_nothing_is_taken_and_everything_counted() {
    let mut engine = Engine::new(EngineLimits::default());
    let mut out = EngineOutput::default();
    let mut bench = Bench::plain();
    let report = bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] });
    engine.ingest_packets(0, [report.as_slice()], &mut out);
    assert_eq!(engine.engine_counters().dropped_reports(Reason::UnknownStore), 1);
    let stores: Vec<_> = diff_programs(&Program::default(), &program(Transport::Uc, false))
        .into_iter()
        .filter(|c| matches!(c.entry_key(), EntryKey::Store(..)))
        .collect();
    engine.apply_changes(0, &stores, &mut out).unwrap();
    let report = bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] });
    engine.ingest_packets(0, [report.as_slice()], &mut out);
    assert_eq!(engine.engine_counters().dropped_reports(Reason::NoQueuePair), 1);
    assert!(out.frames.is_empty());
}

#[test]
fn a_moved_region_takes_what_is_held_and_a_removed_one_discards_it() {
    let mut bench = Bench::plain();
    let report = bench.v1(7, AP, DtaBody::Append { list: 0, value: &[1; 8] });
    assert_eq!(bench.ingest(0, &[report]).len(), 0);
    let mut moved = program(Transport::Uc, false);
    let Some(DataPlaneEntry::Store(store)) = moved.get(&EntryKey::Store(AP, 0)).cloned() else { panic!() };
    moved.set(DataPlaneEntry::Store(Store {
        address: 0x7700_0000_0000,
        rkey: Rkey(77),
        generation: 2,
        ..store
    }));
    let changes = diff_programs(bench.engine.installed_program(), &moved);
    assert_eq!(changes.len(), 1);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    let (flushed, frames) = bench.flush(1);
    let reth = Received::parse_packet(&frames[0]).unwrap().roce.rdma_header().unwrap();
    assert_eq!((flushed, reth.va, reth.rkey), (1, 0x7700_0000_0000, 77));

    let report = bench.v1(7, AP, DtaBody::Append { list: 0, value: &[1; 8] });
    bench.ingest(0, &[report]);
    let mut without = moved.clone();
    without.remove(&EntryKey::Store(AP, 0));
    without.remove(&EntryKey::Lists(AP, 0));
    without.remove(&EntryKey::Lists(AP, 4));
    bench.engine.apply_changes(0, &diff_programs(&moved, &without), &mut bench.out).unwrap();
    assert_eq!(bench.flush(2), (0, vec![]));
    assert_eq!(bench.engine.engine_counters().discarded(super::counters::Discard::StoreRemoved), 1);
    bench.refuse(AP, DtaBody::Append { list: 0, value: &[1; 8] }, Reason::UnknownStore);
}

#[test]
fn injected_losses_are_counted_in_reports_on_uc_alone() {
    let mut bench = Bench::plain();
    let reports = [
        bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 2, key: key(1), value: &[1; 12] }),
        bench.v1(7, KI, DtaBody::KeyIncrement { redundancy: 0, key: key(1), delta: 1 }),
    ];
    bench.engine.ingest_packets(0, reports.iter().map(Vec::as_slice), &mut bench.out);
    let meta = bench.out.meta.clone();
    assert_eq!(meta.len(), 4);
    let lost = |b: &Bench| b.engine.engine_counters().lost_by_cause(LossCause::Injected);
    bench.engine.injected_loss(&meta[0]);
    assert_eq!(lost(&bench), (0, 1));
    bench.engine.injected_loss(&meta[1]);
    assert_eq!(lost(&bench), (1, 2));
    bench.engine.injected_loss(&meta[2]);
    assert_eq!(lost(&bench), (1, 2));
}

pub(super) fn any_body() -> impl Strategy<Value = (u16, Vec<u8>)> {
    // Opcode and what follows the header, mostly well formed.
    let value = prop::collection::vec(any::<u8>(), 0..64);
    (0u16..8, 0u8..4, prop::collection::vec(any::<u8>(), 0..3), value).prop_map(|(store, k, extra, value)| {
        let mut bytes = match store {
            2 | 6 => vec![0, 0, 0, k],
            5 => vec![0, 0, 0, k, 0, 0, 0, extra.len() as u8],
            _ => key(k).0.to_vec(),
        };
        bytes.extend_from_slice(&extra);
        bytes.extend_from_slice(&value);
        (store, bytes)
    })
}

/// Numbers of the collector's queue pairs in the sample program.
pub(super) const WRITE_QPN: u32 = 0x11;
pub(super) const ATOMIC_QPN: u32 = 0x12;

/// One thing that happens to an engine.
#[derive(Clone, Debug)]
enum Step {
    /// A datagram arrives, both as a report and as an answer of the NIC.
    Packet(Vec<u8>),
    /// The NIC answers one of the frames that it was sent.
    Answer(prop::sample::Index, Syndrome),
    /// Reference mode is switched on or off.
    Mode(bool),
    /// Only time passes.
    Time,
}

fn any_reply() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        12 => Just(Syndrome::ACK),
        2 => Just(Syndrome::Nak(NakCode::PsnSequenceError)),
        2 => (0u8..32).prop_map(|timer| Syndrome::RnrNak { timer }),
        1 => Just(Syndrome::Nak(NakCode::RemoteAccessError)),
    ]
}

/// What the collector's NIC answers to the frame with this PSN on its queue pair.
pub(super) fn answer(qpn: u32, psn: Psn, syndrome: Syndrome) -> Vec<u8> {
    let atomic = qpn == ATOMIC_QPN && matches!(syndrome, Syndrome::Ack { .. });
    let ours = qpn + 0x100;
    let repr = RoceRepr {
        bth: Bth::new(if atomic { Opcode::RcAtomicAck } else { Opcode::RcAck }, ours, psn, false),
        reth: None,
        atomic: None,
        aeth: Some(Aeth { syndrome, msn: 0 }),
        atomic_ack: atomic.then_some(7),
        imm: None,
        payload: &[],
    };
    let route = FrameRoute::new(Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2), ours);
    let mut bytes = [0; 100];
    let len = route.write_frame(&repr, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

proptest! {
    /// Any datagrams, any answers of the NIC, and time passing: nothing panics, every report is
    /// accounted for once, every frame is one and is counted, and every operation is acknowledged or
    /// counted lost.
    #[test]
    fn anything_is_accounted_for(
        steps in prop::collection::vec(
            prop_oneof![
                6 => (any::<u8>(), 0u8..16, any_body(), any::<bool>()).prop_map(|(reporter, arg, (store, bytes), v1)| {
                    let opcode = match store { 6 => 2, s => s as u8 };
                    let mut payload = vec![opcode, 0, if v1 { 0x41 } else { 0x40 }];
                    if v1 {
                        payload.push(arg);
                        payload.extend_from_slice(&store.to_be_bytes());
                        payload.extend_from_slice(&[0, reporter & 3]);
                        payload.extend_from_slice(&[0, 0, 0, reporter]);
                    }
                    payload.extend_from_slice(&bytes);
                    Step::Packet(datagram(&payload))
                }),
                1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Step::Packet),
                1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(|p| Step::Packet(datagram(&p))),
                3 => (any::<prop::sample::Index>(), any_reply()).prop_map(|(of, reply)| Step::Answer(of, reply)),
                1 => Just(Step::Time),
                1 => any::<bool>().prop_map(Step::Mode),
            ],
            0..80),
        writes_on_rc: bool,
        name_reports: bool,
        reference: bool,
    ) {
        let transport = if writes_on_rc { Transport::Rc } else { Transport::Uc };
        let limits = EngineLimits { postcard_rows: 4, reporters: 3, name_reports, ..EngineLimits::default() };
        let mut bench = Bench::new(&program(transport, reference), limits);
        let bit = DataPlaneEntry::SketchReporter(SketchReporter { store: SM, reporter: 1, bit: 5 });
        bench.engine.apply_changes(0, &[DataPlaneChange::Insert { entry: bit }], &mut bench.out).unwrap();
        // All frames so far, with their queue pair and PSN.
        let mut sent: Vec<(u32, Psn)> = Vec::new();
        let (mut reports, mut no_answers, mut refused) = (0, 0, false);
        let note = |sent: &mut Vec<(u32, Psn)>, frames: Vec<Vec<u8>>| {
            for frame in frames {
                let received = Received::parse_packet(&frame).expect("a RoCEv2 frame");
                sent.push((received.roce.base_header().dest_qp, received.roce.base_header().psn));
            }
        };
        let mut now = 0;
        for step in &steps {
            match step {
                Step::Packet(packet) => {
                    bench.engine.ingest_packets(now, [packet.as_slice()], &mut bench.out);
                    bench.engine.handle_answers(now, [packet.as_slice()], &mut bench.out);
                    reports += 1;
                    no_answers += 1;
                }
                Step::Answer(of, reply) if !sent.is_empty() => {
                    let (qpn, psn) = *of.get(&sent);
                    let answer = answer(qpn, psn, *reply);
                    bench.engine.handle_answers(now, [answer.as_slice()], &mut bench.out);
                    if qpn == WRITE_QPN && !writes_on_rc {
                        no_answers += 1;
                    }
                    refused |= matches!(reply, Syndrome::Nak(code) if *code != NakCode::PsnSequenceError);
                }
                Step::Answer(..) => {}
                Step::Mode(reference) => {
                    let mut want = bench.engine.installed_program().clone();
                    want.set(DataPlaneEntry::Mode(Mode { reference: *reference }));
                    let changes = diff_programs(bench.engine.installed_program(), &want);
                    bench.engine.apply_changes(now, &changes, &mut bench.out).unwrap();
                }
                Step::Time => bench.engine.run_timers(now, &mut bench.out),
            }
            note(&mut sent, bench.frames());
            now += 3 * MS;
        }
        let (flushed, frames) = bench.flush(now);
        note(&mut sent, frames);
        // The NIC now acknowledges all it gets, for as long as anything is on its way.
        for _ in 0..200 {
            let newest = |qpn| sent.iter().rev().find(|(to, _)| *to == qpn).copied();
            for (qpn, psn) in [WRITE_QPN, ATOMIC_QPN].into_iter().filter_map(newest) {
                if qpn == ATOMIC_QPN || writes_on_rc {
                    let answer = answer(qpn, psn, Syndrome::ACK);
                    bench.engine.handle_answers(now, [answer.as_slice()], &mut bench.out);
                }
            }
            now += 20 * MS;
            bench.engine.run_timers(now, &mut bench.out);
            note(&mut sent, bench.frames());
            if bench.engine.queue_pairs().iter().all(|q| q.outstanding == 0 && q.waiting == 0) {
                break;
            }
        }
        bench.engine.end_queue_pairs(&mut bench.out);
        note(&mut sent, bench.frames());
        let c = bench.engine.engine_counters();
        prop_assert_eq!(c.received, reports);
        prop_assert_eq!(c.frames, sent.len() as u64);
        prop_assert!(flushed <= c.received);
        prop_assert_eq!(bench.engine.answers_ignored(), no_answers);
        prop_assert_eq!(c.primitives.iter().map(|p| p.held).sum::<u64>(), 0);
        // On UC nobody acknowledges, and a frame is all that an operation leaves.
        let left_on_uc = match transport {
            Transport::Uc => sent.iter().filter(|(qpn, _)| *qpn == WRITE_QPN).count() as u64,
            Transport::Rc => 0,
        };
        let acknowledged: u64 = bench.engine.queue_pairs().iter().map(|q| q.counters.acknowledged).sum();
        let lost: u64 = c.primitives.iter().map(|p| p.lost_operations).sum();
        let operations: u64 = c.primitives.iter().map(|p| p.operations).sum();
        prop_assert_eq!(operations, left_on_uc + acknowledged + lost);
        if !refused {
            prop_assert_eq!(lost, 0);
        }
    }

    /// Well-formed key-writes and increments on UC: operations are the copies, frame by frame, and
    /// coalescing keeps every sum.
    #[test]
    fn coalescing_keeps_sums(deltas in prop::collection::vec((0u8..4, any::<u64>()), 1..200), split in 1usize..200) {
        let total = |coalesce: bool| {
            let limits = EngineLimits { rc: requester::Timing { window: 4096, ..Default::default() }, ..EngineLimits::default() };
            let mut p = program(Transport::Uc, !coalesce);
            if let Some(DataPlaneEntry::QueuePair(pair)) = p.get(&EntryKey::QueuePair(0, Purpose::Atomic)).cloned() {
                p.set(DataPlaneEntry::QueuePair(ProgramQueuePair { max_dest_rd_atomic: 4096, ..pair }));
            }
            let mut bench = Bench::new(&p, limits);
            let mut sums = std::collections::BTreeMap::<u64, u64>::new();
            for batch in deltas.chunks(split) {
                let reports: Vec<_> = batch
                    .iter()
                    .map(|(k, delta)| bench.v1(7, KI, DtaBody::KeyIncrement { redundancy: 2, key: key(*k), delta: *delta }))
                    .collect();
                for frame in bench.ingest(0, &reports) {
                    let received = Received::parse_packet(&frame).unwrap();
                    assert_eq!(received.roce.base_header().opcode, Opcode::RcFetchAdd);
                    let atomic = received.roce.atomic_header().unwrap();
                    let sum = sums.entry(atomic.va).or_default();
                    *sum = sum.wrapping_add(atomic.swap_add);
                }
            }
            sums
        };
        prop_assert_eq!(total(true), total(false));
    }
}

#[test]
fn what_leaves_again_on_another_queue_pair_has_the_keys_of_now() {
    for next in [Transport::Rc, Transport::Uc] {
        let mut bench = Bench::new(&program(Transport::Rc, false), EngineLimits::default());
        let report = bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] });
        assert_eq!(bench.ingest(0, &[report]).len(), 1);
        // A restarted collector: another queue pair, and another rkey for the same store.
        let mut want = program(next, false);
        let Some(DataPlaneEntry::QueuePair(pair)) = want.remove(&EntryKey::QueuePair(0, Purpose::Write))
        else {
            panic!()
        };
        want.set(DataPlaneEntry::QueuePair(ProgramQueuePair { remote_qpn: 0x99, generation: 2, ..pair }));
        let Some(DataPlaneEntry::Store(store)) = want.remove(&EntryKey::Store(KW, 0)) else { panic!() };
        want.set(DataPlaneEntry::Store(Store { rkey: Rkey(0x7777), generation: 2, ..store }));
        let changes = diff_programs(bench.engine.installed_program(), &want);
        bench.engine.apply_changes(1, &changes, &mut bench.out).unwrap();
        let frames = bench.frames();
        assert_eq!(frames.len(), 1, "{next}");
        let received = Received::parse_packet(&frames[0]).unwrap();
        assert_eq!(received.roce.base_header().dest_qp, 0x99);
        assert_eq!(received.roce.rdma_header().unwrap().rkey, 0x7777, "{next}");
    }
}
