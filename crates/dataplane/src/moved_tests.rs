//! A store's region is replaced while operations are in flight to it.

use dta_proto::buckets::Copies;
use dta_proto::program::*;
use dta_proto::wire::dta::DtaBody;
use dta_proto::wire::frame::Received;
use dta_proto::wire::roce::{Psn, Syndrome};

use super::EngineLimits;
use super::counters::{LossCause, Reason};
use super::tests::{AP, ATOMIC_QPN, Bench, KI, KW, WRITE_QPN, answer, key, program};

const MS: u64 = 1_000_000;
/// Later than any answer is waited for.
const LATE: u64 = 100 * MS;

/// The parts of a frame that these tests compare: queue pair, PSN, address, key.
type Frame = (u32, Psn, u64, u32);

fn frame(bytes: &[u8]) -> Frame {
    let roce = Received::parse_packet(bytes).unwrap().roce;
    let place =
        roce.rdma_header().map(|r| (r.va, r.rkey)).or_else(|| roce.atomic_header().map(|a| (a.va, a.rkey)));
    let (va, rkey) = place.unwrap();
    (roce.base_header().dest_qp, roce.base_header().psn, va, rkey)
}

fn frames(bytes: Vec<Vec<u8>>) -> Vec<Frame> {
    bytes.iter().map(|bytes| frame(bytes)).collect()
}

/// The program with a store in another region.
fn moved(have: &Program, id: u16, generation: u64) -> Program {
    let mut want = have.clone();
    let Some(DataPlaneEntry::Store(store)) = want.remove(&EntryKey::Store(id, 0)) else { panic!() };
    let (address, rkey) = (address(id, generation), rkey(id, generation));
    want.set(DataPlaneEntry::Store(Store { address, rkey: Rkey(rkey), generation, ..store }));
    want.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation }));
    want
}

fn address(id: u16, generation: u64) -> u64 {
    (u64::from(id) << 32) + ((generation - 1) << 57)
}

fn rkey(id: u16, generation: u64) -> u32 {
    0x1000 + u32::from(id) + ((generation as u32 - 1) << 24)
}

struct World {
    bench: Bench,
    /// Where the next report is written: each has a key of its own.
    next: u8,
}

impl World {
    fn new() -> World {
        let mut program = program(Transport::Rc, false);
        program.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 1 }));
        World { bench: Bench::new(&program, EngineLimits::default()), next: 0 }
    }

    /// A value and an addend, one operation each.
    fn report(&mut self, now: u64) -> Vec<Frame> {
        self.next += 1;
        let key = key(self.next);
        let write = self.bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 1, key, value: &[1; 12] });
        frames(self.bench.ingest(now, &[write]))
    }

    /// To both of its places.
    fn add(&mut self, now: u64) -> Vec<Frame> {
        self.next += 1;
        let key = key(self.next);
        let add = self.bench.v1(7, KI, DtaBody::KeyIncrement { redundancy: 0, key, delta: 5 });
        frames(self.bench.ingest(now, &[add]))
    }

    /// Applies a program. Returns what is sent at once.
    fn apply(&mut self, now: u64, want: &Program) -> Vec<Frame> {
        let changes = diff_programs(self.bench.engine.installed_program(), want);
        self.bench.engine.apply_changes(now, &changes, &mut self.bench.out).unwrap();
        frames(self.bench.frames())
    }

    fn moves(&mut self, now: u64, id: u16, generation: u64) -> Vec<Frame> {
        let want = moved(self.bench.engine.installed_program(), id, generation);
        self.apply(now, &want)
    }

    /// Everything up to this frame was executed. Returns what is sent then.
    fn acknowledge(&mut self, now: u64, (qpn, psn, ..): Frame) -> Vec<Frame> {
        let ack = answer(qpn, psn, Syndrome::ACK);
        self.bench.engine.handle_answers(now, [ack.as_slice()], &mut self.bench.out);
        frames(self.bench.frames())
    }

    /// What is sent when nobody has answered, each operation once.
    fn again(&mut self, now: u64) -> Vec<Frame> {
        let mut again = frames(self.bench.tick(now));
        again.dedup();
        again
    }
}

#[test]
fn what_has_left_goes_where_it_left_for_and_what_comes_goes_to_the_new_region() {
    let mut w = World::new();
    let before = [w.report(0), w.report(0)].concat();
    assert!(before.iter().all(|f| f.3 == rkey(KW, 1)));
    let pairs = w.bench.engine.queue_pairs();
    assert_eq!(w.moves(1, KW, 2), []);
    // Queue pairs, their PSNs and what is out are as they were.
    assert_eq!(w.bench.engine.queue_pairs(), pairs);
    assert_eq!(w.bench.engine.former_regions(), 1);
    let after = [w.report(2), w.report(2)].concat();
    for (n, f) in after.iter().enumerate() {
        assert_eq!((f.0, f.1, f.3), (WRITE_QPN, before[1].1.wrapping_add(1 + n as u32), rkey(KW, 2)));
        assert!(f.2 >= address(KW, 2));
    }
    // Nobody has answered: each is sent again as it was.
    assert_eq!(w.again(LATE), [&before[..], &after].concat());
    assert_eq!(w.bench.engine.former_regions(), 1);
    w.acknowledge(LATE + 1, before[0]);
    assert_eq!(w.bench.engine.former_regions(), 1);
    w.acknowledge(LATE + 1, before[1]);
    assert_eq!(w.bench.engine.former_regions(), 0);
    assert_eq!(w.again(3 * LATE), after);
    w.acknowledge(3 * LATE + 1, after[1]);
    let counters = w.bench.engine.queue_pairs()[0].counters;
    assert_eq!((counters.sent, counters.acknowledged, counters.replaced), (4, 4, 0));
}

#[test]
fn adds_go_where_they_left_for_because_a_repeat_is_answered_and_not_executed() {
    let mut w = World::new();
    let before = w.add(0);
    assert_eq!(w.moves(1, KI, 2), []);
    let after = w.add(2);
    assert!(before.iter().all(|f| (f.0, f.3) == (ATOMIC_QPN, rkey(KI, 1))));
    assert!(after.iter().all(|f| (f.0, f.3) == (ATOMIC_QPN, rkey(KI, 2))));
    assert_eq!(w.again(LATE), [&before[..], &after].concat());
}

#[test]
fn what_waits_for_room_goes_to_the_new_region() {
    let mut w = World::new();
    // Sixteen may be out.
    let left: Vec<Frame> = (0..12).flat_map(|_| w.add(0)).collect();
    assert_eq!(left.len(), 16);
    assert_eq!(w.moves(1, KI, 2), []);
    let rest = w.acknowledge(2, left[15]);
    assert_eq!(rest.len(), 8);
    assert!(rest.iter().all(|f| f.3 == rkey(KI, 2)), "{rest:x?}");
    assert_eq!(w.bench.engine.former_regions(), 0);
}

#[test]
fn the_copies_of_a_report_go_to_one_region_even_if_some_wait_for_room() {
    // Of the ninth report one copy has left, and one waits for room.
    let split = |w: &mut World| {
        let mut left: Vec<Frame> = (0..10).flat_map(|_| w.add(0)).collect();
        assert_eq!(left.len(), 16);
        left.extend(w.acknowledge(1, left[0]));
        assert_eq!(left.len(), 17);
        assert_eq!(w.moves(2, KI, 2), []);
        left
    };
    let mut w = World::new();
    let left = split(&mut w);
    let rest = w.acknowledge(3, left[16]);
    let keys: Vec<u32> = rest.iter().map(|f| f.3).collect();
    assert_eq!(keys, [rkey(KI, 1), rkey(KI, 2), rkey(KI, 2)]);
    assert_eq!(w.bench.engine.former_regions(), 1);
    w.acknowledge(4, rest[0]);
    assert_eq!(w.bench.engine.former_regions(), 0);
    // On another queue pair it goes to the current region with the others, as do operations that have left.
    let mut w = World::new();
    split(&mut w);
    let mut want = w.bench.engine.installed_program().clone();
    let atomic = EntryKey::QueuePair(0, Purpose::Atomic);
    let Some(DataPlaneEntry::QueuePair(pair)) = want.remove(&atomic) else { panic!() };
    want.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
        remote_qpn: 0x99,
        generation: 3,
        start_psn: 500,
        ..pair
    }));
    let again = w.apply(3, &want);
    assert!(!again.is_empty() && again.iter().all(|f| f.3 == rkey(KI, 2)), "{again:x?}");
    assert_eq!(w.bench.engine.former_regions(), 0);
}

#[test]
fn regions_that_follow_each_other_are_each_gone_back_to() {
    let mut w = World::new();
    let mut all = w.report(0);
    for generation in 2..6 {
        w.moves(generation, KW, generation);
        assert_eq!(w.bench.engine.former_regions() as u64, generation - 1);
        all.extend(w.report(generation));
    }
    let keys: Vec<u32> = all.iter().map(|f| f.3).collect();
    assert_eq!(keys, (1..6).map(|g| rkey(KW, g)).collect::<Vec<_>>());
    assert_eq!(w.again(LATE), all);
    w.acknowledge(LATE + 1, all[2]);
    assert_eq!(w.bench.engine.former_regions(), 1);
    // Places that nobody needs any longer are reused.
    w.moves(LATE + 2, KW, 6);
    all.extend(w.report(LATE + 2));
    assert_eq!(w.bench.engine.former_regions(), 2);
    assert_eq!(w.again(3 * LATE), all[3..]);
}

#[test]
fn on_another_queue_pair_all_leaves_for_the_region_of_now() {
    let mut w = World::new();
    let before = w.report(0);
    w.moves(1, KW, 2);
    let after = w.report(2);
    let mut want = w.bench.engine.installed_program().clone();
    let Some(DataPlaneEntry::QueuePair(pair)) = want.remove(&EntryKey::QueuePair(0, Purpose::Write)) else {
        panic!()
    };
    want.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
        remote_qpn: 0x99,
        generation: 3,
        start_psn: 500,
        ..pair
    }));
    // Its keys may have ended with the collector that gave them.
    let again = w.apply(3, &want);
    let base = |f: &Frame, generation| f.2 - address(KW, generation);
    assert_eq!(
        again,
        [
            (0x99, Psn::new(500), address(KW, 2) + base(&before[0], 1), rkey(KW, 2)),
            (0x99, Psn::new(501), after[0].2, rkey(KW, 2)),
        ]
    );
    assert_eq!(w.bench.engine.former_regions(), 0);
    assert_eq!(w.again(3 * LATE), again);
}

#[test]
fn an_address_that_changes_is_in_frames_for_former_regions_too() {
    let mut w = World::new();
    let before = w.report(0);
    w.moves(1, KW, 2);
    let mut want = w.bench.engine.installed_program().clone();
    let Some(DataPlaneEntry::QueuePair(pair)) = want.remove(&EntryKey::QueuePair(0, Purpose::Write)) else {
        panic!()
    };
    want.set(DataPlaneEntry::QueuePair(ProgramQueuePair { tos: 0x20, ..pair }));
    w.apply(2, &want);
    let again = w.bench.tick(LATE);
    assert_eq!((frame(&again[0]), again[0][1]), (before[0], 0x20));
}

#[test]
fn a_store_that_goes_takes_what_left_for_its_former_regions_along() {
    let mut w = World::new();
    w.report(0);
    w.moves(1, KW, 2);
    w.report(2);
    let mut want = w.bench.engine.installed_program().clone();
    want.remove(&EntryKey::Store(KW, 0));
    want.remove(&EntryKey::Version0(Primitive::KeyWrite));
    w.apply(3, &want);
    assert_eq!(w.bench.engine.engine_counters().lost_by_cause(LossCause::StoreRemoved), (2, 2));
    assert_eq!(w.bench.engine.former_regions(), 0);
    assert!(w.again(LATE).iter().all(|f| (f.2, f.3) == (0, 0)), "zero-length writes use their PSNs up");
}

#[test]
fn a_region_that_loses_all_its_buckets_is_still_gone_back_to() {
    let mut w = World::new();
    let before = w.add(0);
    let mut want = w.bench.engine.installed_program().clone();
    let Some(DataPlaneEntry::Store(store)) = want.remove(&EntryKey::Store(KI, 0)) else { panic!() };
    want.set(DataPlaneEntry::Store(Store { buckets: Copies::NONE, ..store }));
    assert_eq!(w.apply(1, &want), []);
    assert_eq!(w.add(2), []);
    assert_eq!(w.bench.engine.engine_counters().dropped_reports(Reason::NoBucket), 1);
    assert_eq!(w.again(LATE), before);
    w.acknowledge(LATE + 1, before[1]);
    assert_eq!(w.again(3 * LATE), []);
    assert_eq!(w.bench.engine.engine_counters().lost_by_cause(LossCause::StoreRemoved), (0, 0));
}

#[test]
fn on_uc_nothing_is_gone_back_to() {
    let mut program = program(Transport::Uc, false);
    program.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 1 }));
    let mut w = World { bench: Bench::new(&program, EngineLimits::default()), next: 0 };
    w.report(0);
    assert_eq!(w.moves(1, KW, 2), []);
    assert_eq!(w.bench.engine.former_regions(), 0);
    assert_eq!(w.report(2)[0].3, rkey(KW, 2));
}

/// A collector that is killed takes frames with it, and its next run knows none of the former queue pairs.
#[test]
fn batches_that_a_killed_collector_may_not_have_had_leave_again() {
    let mut have = program(Transport::Uc, false);
    have.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 1 }));
    let mut bench = Bench::new(&have, EngineLimits::default());
    let append = |bench: &mut Bench, entries: u8| -> Vec<Vec<u8>> {
        let entry = |bench: &mut Bench, n: u8| {
            bench.v1(7, AP, DtaBody::Append { list: u32::from(n % 2), value: &[n; 8] })
        };
        let packets: Vec<_> = (0..entries).map(|n| entry(bench, n)).collect();
        bench.ingest(0, &packets)
    };
    // What a batch contains besides the queue pair and its PSN.
    let said = |frame: &Vec<u8>| {
        let roce = Received::parse_packet(frame).unwrap().roce;
        (roce.base_header().dest_qp, roce.rdma_header().map(|r| (r.va, r.rkey)), roce.payload().to_vec())
    };
    let lost: Vec<_> = append(&mut bench, 24).iter().map(said).collect();
    assert!(lost.len() == 8 && lost.iter().all(|(qpn, ..)| *qpn == WRITE_QPN), "{}", lost.len());

    let mut want = have.clone();
    let Some(DataPlaneEntry::QueuePair(pair)) = want.remove(&EntryKey::QueuePair(0, Purpose::Write)) else {
        panic!()
    };
    let remote_qpn = pair.remote_qpn + 0x100;
    want.set(DataPlaneEntry::QueuePair(ProgramQueuePair { remote_qpn, start_psn: 9, generation: 2, ..pair }));
    want.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 2 }));
    let apply = |bench: &mut Bench, changes: &[DataPlaneChange]| {
        bench.engine.apply_changes(0, changes, &mut bench.out).unwrap();
        bench.frames()
    };
    let changes = diff_programs(bench.engine.installed_program(), &want);
    let again: Vec<_> = apply(&mut bench, &changes).iter().map(said).collect();
    let expected: Vec<_> = lost.iter().map(|(_, at, bytes)| (remote_qpn, *at, bytes.clone())).collect();
    assert_eq!(again, expected, "each once, in order, before anything new");
    assert_eq!(bench.engine.engine_counters().repeated_frames, again.len() as u64);
    // The same program again changes nothing; and what a session reports to be there is not resent.
    assert_eq!(apply(&mut bench, &[]), Vec::<Vec<u8>>::new());
    let mut last = want.clone();
    let lists: Vec<_> = want
        .entries()
        .filter_map(|entry| match entry {
            DataPlaneEntry::Lists(lists) if lists.store == AP => Some(lists.clone()),
            _ => None,
        })
        .collect();
    for lists in lists {
        last.set(DataPlaneEntry::Lists(Lists { positions: vec![(0, 1), (1, 1000)], ..lists }));
    }
    last.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
        remote_qpn: remote_qpn + 1,
        generation: 3,
        ..pair_of(&want)
    }));
    last.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 3 }));
    let changes = changes_for_session(bench.engine.installed_program(), &last);
    let left = apply(&mut bench, &changes);
    assert_eq!(left.len(), lost.len() / 2 - 1, "of list 0 the first is there, of list 1 all");
}

fn pair_of(program: &Program) -> ProgramQueuePair {
    match program.get(&EntryKey::QueuePair(0, Purpose::Write)) {
        Some(DataPlaneEntry::QueuePair(pair)) => pair.clone(),
        _ => panic!("no queue pair for writes"),
    }
}
