//! One engine, two collectors: each has its own queue pairs, and nothing at one affects the other.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use dta_proto::buckets::{self, Buckets};
use dta_proto::key::Key;
use dta_proto::program::*;
use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::DtaBody;
use dta_proto::wire::frame::{FrameRoute, Received};
use dta_proto::wire::roce::{Aeth, Bth, Opcode, Psn, RoceRepr, Syndrome};

use super::counters::{Discard, LossCause, Reason};
use super::tests::{AP, Bench, KI, KW, PC, SM, key, program};
use super::{EngineLimits, EngineOutput};

const TRANSLATOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 3);

/// Offset of the second collector's store ids from the first's.
const BEYOND: u16 = 20;

/// The sample's entries as those of a collector. The second one's are at another address, with other
/// numbers, keys, PSNs and store ids.
fn entries_of(collector: u8, writes: Transport) -> Vec<DataPlaneEntry> {
    let second = u32::from(collector);
    let id = |id: u16| id + u16::from(collector) * BEYOND;
    let entry = |entry: &DataPlaneEntry| match entry {
        DataPlaneEntry::QueuePair(pair) => {
            let mut pair = ProgramQueuePair { collector, ..pair.clone() };
            pair.remote_qpn += second * 0x40;
            pair.local_qpn += second * 2;
            if collector == 1 {
                pair.destination.ip = SECOND.into();
                pair.start_psn = 500;
            }
            Some(DataPlaneEntry::QueuePair(pair))
        }
        DataPlaneEntry::Store(store) => {
            let id = id(store.spec.id);
            let spec =
                StoreSpec { id, name: format!("{}{collector}", store.spec.name), ..store.spec.clone() };
            let rkey = Rkey(0x1000 + u32::from(id));
            Some(DataPlaneEntry::Store(Store {
                collector,
                spec,
                address: u64::from(id) << 32,
                rkey,
                ..store.clone()
            }))
        }
        DataPlaneEntry::Lists(lists) => {
            Some(DataPlaneEntry::Lists(Lists { store: id(lists.store), collector, ..lists.clone() }))
        }
        // The others concern the translator as a whole.
        _ => None,
    };
    program(writes, false).entries().filter_map(entry).collect()
}

fn with(mut program: Program, entries: impl IntoIterator<Item = DataPlaneEntry>) -> Program {
    entries.into_iter().for_each(|entry| program.set(entry));
    program
}

/// The entries that belong to no collector.
fn common() -> Program {
    let is_common = |entry: &&DataPlaneEntry| {
        matches!(entry, DataPlaneEntry::Service(_) | DataPlaneEntry::Mode(_) | DataPlaneEntry::Flush(_))
    };
    program(Transport::Uc, false).entries().filter(is_common).cloned().collect::<Vec<_>>().into()
}

/// Both collectors, with their transports for writes.
fn both(writes: [Transport; 2]) -> Program {
    with(with(common(), entries_of(0, writes[0])), entries_of(1, writes[1]))
}

fn bench(program: &Program) -> Bench {
    Bench::new(program, EngineLimits { name_reports: true, ..EngineLimits::default() })
}

/// The engine of a translator that has only this collector: its entries, as if it were the first one.
fn alone(collector: u8) -> Bench {
    let first = |entry: DataPlaneEntry| match entry {
        DataPlaneEntry::QueuePair(pair) => {
            DataPlaneEntry::QueuePair(ProgramQueuePair { collector: 0, ..pair })
        }
        DataPlaneEntry::Store(store) => DataPlaneEntry::Store(Store { collector: 0, ..store }),
        DataPlaneEntry::Lists(lists) => DataPlaneEntry::Lists(Lists { collector: 0, ..lists }),
        other => other,
    };
    bench(&with(common(), entries_of(collector, Transport::Uc).into_iter().map(first)))
}

/// Reports of every primitive for the stores of a collector.
fn reports(bench: &mut Bench, collector: u8) -> Vec<Vec<u8>> {
    let id = |id: u16| id + u16::from(collector) * BEYOND;
    let postcard = |hop| DtaBody::Postcard { key: key(3), hop, path_length: 2, value: 7 + u32::from(hop) };
    let mut bodies = vec![
        (KW, DtaBody::KeyWrite { redundancy: 0, key: key(1), value: &[1; 12] }),
        (KI, DtaBody::KeyIncrement { redundancy: 0, key: key(1), delta: 5 }),
        (PC, postcard(0)),
        (KW, DtaBody::KeyWrite { redundancy: 1, key: key(2), value: &[2; 4] }),
        (PC, postcard(1)),
        (SM, DtaBody::SketchMerge { epoch: 1, column: 2, cells: &[1; 8] }),
    ];
    // The first two leave by time or by a flush, the others as a full batch.
    bodies.extend(
        (0..5).map(|n| (AP, DtaBody::Append { list: 1, value: if n < 3 { &[9; 8] } else { &[8; 8] } })),
    );
    bodies.into_iter().map(|(store, body)| bench.v1(7, id(store), body)).collect()
}

/// Reports for both collectors, alternating.
fn mixed(bench: &mut Bench) -> Vec<Vec<u8>> {
    let (first, second) = (reports(bench, 0), reports(bench, 1));
    first.into_iter().zip(second).flat_map(|(a, b)| [a, b]).collect()
}

/// Everything that leaves for these reports, with what was held.
fn frames(bench: &mut Bench, reports: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut frames = bench.ingest(0, reports);
    bench.engine.flush_held_reports(1, &mut bench.out);
    frames.extend(bench.out.frames.iter().map(<[u8]>::to_vec));
    bench.out.clear();
    frames
}

fn accepted(bench: &Bench) -> u64 {
    bench.engine.engine_counters().primitives.iter().map(|p| p.accepted).sum()
}

fn to(frames: &[Vec<u8>], destination: Ipv4Addr) -> Vec<Vec<u8>> {
    let goes =
        |frame: &&Vec<u8>| Received::parse_packet(frame).unwrap().addresses.destination() == destination;
    frames.iter().filter(goes).cloned().collect()
}

/// The frames of a collector on its own.
fn expected(collector: u8) -> Vec<Vec<u8>> {
    let mut bench = alone(collector);
    let reports = reports(&mut bench, collector);
    frames(&mut bench, &reports)
}

#[test]
fn each_store_is_written_by_the_queue_pairs_of_its_collector() {
    let mut bench = bench(&both([Transport::Uc; 2]));
    let reports = mixed(&mut bench);
    let frames = frames(&mut bench, &reports);
    assert_eq!(accepted(&bench), reports.len() as u64);
    // Each collector gets the bytes it would get if it were the only one.
    assert_eq!(to(&frames, FIRST), expected(0));
    assert_eq!(to(&frames, SECOND), expected(1));
    assert_eq!(frames.len(), expected(0).len() + expected(1).len());

    // This means queue pairs, keys and sequences of PSNs of its own.
    let mut psns: BTreeMap<(IpAddr, u32), Vec<u32>> = BTreeMap::new();
    for frame in &frames {
        let received = Received::parse_packet(frame).unwrap();
        let (bth, to) = (received.roce.base_header(), received.addresses.destination());
        psns.entry((to, bth.dest_qp)).or_default().push(bth.psn.get());
        let (va, rkey) = match received.roce.atomic_header() {
            Some(atomic) => (atomic.va, atomic.rkey),
            None => received.roce.rdma_header().map(|reth| (reth.va, reth.rkey)).unwrap(),
        };
        let store = (va >> 32) as u16;
        assert_eq!(store > BEYOND, to == SECOND, "store {store} at {to}");
        assert_eq!(rkey, 0x1000 + u32::from(store));
    }
    let pairs: Vec<_> = psns.keys().copied().collect();
    let expected = [(FIRST, 0x11), (FIRST, 0x12), (SECOND, 0x51), (SECOND, 0x52)];
    assert_eq!(pairs, expected.map(|(to, qpn)| (IpAddr::V4(to), qpn)));
    for ((to, _), psns) in psns {
        let start = if to == SECOND { 500 } else { 0xff_fffe };
        let next = |n| Psn::new(start).wrapping_add(n as u32).get();
        assert_eq!(psns, (0..psns.len()).map(next).collect::<Vec<_>>(), "{to}");
    }
}

#[test]
fn the_last_of_as_many_collectors_as_possible_gets_its_own() {
    let add = |program, collector| with(program, entries_of(collector, Transport::Uc));
    let mut bench = bench(&(0..MAX_COLLECTORS).fold(common(), add));
    let last = MAX_COLLECTORS - 1;
    let reports = reports(&mut bench, last);
    assert_eq!(frames(&mut bench, &reports), expected(last));
    assert_eq!(accepted(&bench), reports.len() as u64);
}

#[test]
fn a_collector_that_is_taken_away_is_missed_by_its_own_stores_alone() {
    let mut bench = bench(&both([Transport::Uc; 2]));
    let mut want = bench.engine.installed_program().clone();
    for purpose in Purpose::ALL {
        assert!(want.remove(&EntryKey::QueuePair(1, purpose)).is_some());
    }
    let changes = diff_programs(bench.engine.installed_program(), &want);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    let reports = mixed(&mut bench);
    let first = frames(&mut bench, &reports);
    assert_eq!(first, expected(0));
    assert_eq!(bench.drops(Reason::NoQueuePair), reports.len() as u64 / 2);
    assert_eq!(accepted(&bench), reports.len() as u64 / 2);

    // It returns, and the other one's PSNs continue.
    let back = diff_programs(bench.engine.installed_program(), &both([Transport::Uc; 2]));
    assert_eq!(back.len(), 2);
    bench.engine.apply_changes(0, &back, &mut bench.out).unwrap();
    let again = [bench.v1(7, KW, kw()), bench.v1(7, KW + BEYOND, kw())];
    let frames = frames(&mut bench, &again);
    let place = |frame: &Vec<u8>| {
        let received = Received::parse_packet(frame).unwrap();
        (received.roce.base_header().dest_qp, received.roce.base_header().psn)
    };
    let writes = first.iter().filter(|frame| place(frame).0 == 0x11).count();
    let psns: Vec<_> = frames.iter().map(place).collect();
    let next = Psn::new(0xff_fffe).wrapping_add(writes as u32);
    assert_eq!(psns, [(0x11, next), (0x51, Psn::new(500))]);
}

#[test]
fn what_a_queue_pair_counted_goes_on_when_it_is_back() {
    let mut bench = bench(&both([Transport::Uc; 2]));
    let one = bench.v1(7, KW + BEYOND, kw());
    assert_eq!(frames(&mut bench, &[one]).len(), 1);
    let mut without = bench.engine.installed_program().clone();
    without.remove(&EntryKey::QueuePair(1, Purpose::Write)).unwrap();
    for want in [without, both([Transport::Uc; 2])] {
        let changes = diff_programs(bench.engine.installed_program(), &want);
        bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    }
    let one = bench.v1(7, KW + BEYOND, kw());
    assert_eq!(frames(&mut bench, &[one]).len(), 1);
    let status = bench.engine.queue_pairs();
    let writes = status.iter().find(|q| (q.collector, q.purpose) == (1, Purpose::Write)).unwrap();
    assert_eq!(writes.counters.sent, 2);
}

fn kw() -> DtaBody<'static> {
    DtaBody::KeyWrite { redundancy: 1, key: key(5), value: &[3; 12] }
}

#[test]
fn what_was_held_for_a_collector_that_is_taken_away_is_lost_and_goes_to_no_other() {
    let mut bench = bench(&both([Transport::Uc; 2]));
    let entry = || DtaBody::Append { list: 1, value: &[9; 8] };
    let held = [bench.v1(7, AP, entry()), bench.v1(7, AP + BEYOND, entry())];
    assert_eq!(bench.ingest(0, &held), Vec::<Vec<u8>>::new());
    let mut want = bench.engine.installed_program().clone();
    want.remove(&EntryKey::QueuePair(1, Purpose::Write)).unwrap();
    let changes = diff_programs(bench.engine.installed_program(), &want);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    let frames = frames(&mut bench, &[]);
    assert_eq!(frames.len(), 1);
    assert_eq!(to(&frames, FIRST), frames);
    let counters = bench.engine.engine_counters();
    assert_eq!(counters.lost_by_cause(LossCause::QueuePairDown), (1, 1));
    assert_eq!(counters.find_imbalance(), None);
}

/// An ACK to a queue pair of the translator, from an address.
fn ack(from: Ipv4Addr, qpn: u32, psn: u32) -> Vec<u8> {
    ack_by_route(&FrameRoute::new(from, TRANSLATOR, qpn), qpn, psn)
}

fn ack_by_route(route: &FrameRoute, qpn: u32, psn: u32) -> Vec<u8> {
    let repr = RoceRepr {
        bth: Bth::new(Opcode::RcAtomicAck, qpn, Psn::new(psn), false),
        reth: None,
        atomic: None,
        aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 0 }),
        atomic_ack: Some(7),
        imm: None,
        payload: &[],
    };
    let mut bytes = [0; 100];
    let len = route.write_frame(&repr, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

#[test]
fn over_ipv6_frames_differ_in_their_headers_alone_and_answers_count() {
    let [ours, theirs] = ["fd00::2", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let ipv4 = with(common(), entries_of(0, Transport::Rc));
    let ipv6: Vec<DataPlaneEntry> = ipv4
        .entries()
        .cloned()
        .map(|entry| match entry {
            DataPlaneEntry::QueuePair(mut pair) => {
                (pair.source.ip, pair.destination.ip) = (ours, theirs);
                DataPlaneEntry::QueuePair(pair)
            }
            other => other,
        })
        .collect();
    let (mut over_ipv4, mut bench) = (bench(&ipv4), bench(&ipv6.into()));
    let transports = |frames: &[Vec<u8>], header: usize| {
        frames.iter().map(|frame| frame[header..frame.len() - 4].to_vec()).collect::<Vec<_>>()
    };
    let reports = reports(&mut over_ipv4, 0);
    let expected = transports(&frames(&mut over_ipv4, &reports), 28);
    let sent = frames(&mut bench, &reports);
    assert_eq!(transports(&sent, 48), expected);
    for frame in &sent {
        let addresses = Received::parse_packet(frame).unwrap().addresses;
        assert_eq!((addresses.source(), addresses.destination()), (ours, theirs));
    }
    let outstanding = |bench: &Bench| {
        let pairs = bench.engine.queue_pairs();
        pairs.iter().find(|pair| pair.purpose == Purpose::Atomic).map(|pair| pair.outstanding)
    };
    let before = outstanding(&bench).unwrap();
    assert!(before > 0);
    let mut answer = |from: IpAddr| {
        let route = FrameRoute::from_addresses(from, ours, 0x112).unwrap();
        let packet = ack_by_route(&route, 0x112, 0xff_fffe);
        bench.engine.handle_answers(0, [&*packet], &mut EngineOutput::default());
        outstanding(&bench).unwrap()
    };
    assert_eq!(answer("fd00::9".parse().unwrap()), before, "of a stranger");
    assert!(answer(theirs) < before);
}

#[test]
fn an_answer_finds_the_queue_pair_of_its_number_if_its_collector_sent_it() {
    let mut bench = bench(&both([Transport::Uc; 2]));
    let increment = || DtaBody::KeyIncrement { redundancy: 0, key: key(1), delta: 1 };
    let reports = [bench.v1(7, KI, increment()), bench.v1(7, KI + BEYOND, increment())];
    assert_eq!(bench.ingest(0, &reports).len(), 4);
    let out = |bench: &Bench| -> Vec<(u8, u32)> {
        let pairs = bench.engine.queue_pairs();
        pairs.iter().filter(|q| q.purpose == Purpose::Atomic).map(|q| (q.collector, q.outstanding)).collect()
    };
    assert_eq!(out(&bench), [(0, 2), (1, 2)]);
    let answer = |bench: &mut Bench, packet: Vec<u8>| {
        bench.engine.handle_answers(0, [&*packet], &mut EngineOutput::default());
        bench.engine.answers_ignored()
    };
    // The second one's number, but from the first one.
    assert_eq!(answer(&mut bench, ack(FIRST, 0x114, 501)), 1);
    assert_eq!(out(&bench), [(0, 2), (1, 2)]);
    assert_eq!(answer(&mut bench, ack(SECOND, 0x114, 501)), 1);
    assert_eq!(out(&bench), [(0, 2), (1, 0)]);
    assert_eq!(answer(&mut bench, ack(FIRST, 0x112, 0xff_ffff)), 1);
    assert_eq!(out(&bench), [(0, 0), (1, 0)]);
}

#[test]
fn whether_a_frame_leaves_once_depends_on_the_transport_of_its_collector() {
    let mut bench = bench(&both([Transport::Uc, Transport::Rc]));
    let reports = [bench.v1(7, KW, kw()), bench.v1(7, KW + BEYOND, kw())];
    bench.engine.ingest_packets(0, reports.iter().map(Vec::as_slice), &mut bench.out);
    let once: Vec<_> = bench.out.meta.iter().map(|meta| bench.engine.leaves_once(meta)).collect();
    assert_eq!(once, [true, false]);
}

#[test]
fn the_session_of_one_collector_lets_nothing_go_that_is_of_another() {
    let have = both([Transport::Uc; 2]);
    let mut want = have.clone();
    for purpose in Purpose::ALL {
        let Some(DataPlaneEntry::QueuePair(pair)) = want.remove(&EntryKey::QueuePair(1, purpose)) else {
            panic!()
        };
        want.set(DataPlaneEntry::QueuePair(ProgramQueuePair { generation: 9, ..pair }));
    }
    want.set(DataPlaneEntry::Session(ProgramSession { collector: 1, generation: 9 }));
    let changes = changes_for_session(&have, &want);
    let of_first = |change: &&DataPlaneChange| match change.entry_key() {
        EntryKey::QueuePair(collector, _) | EntryKey::Store(_, collector) | EntryKey::Session(collector) => {
            collector == 0
        }
        EntryKey::Lists(store, _) | EntryKey::SketchReporter(store, _) => store < BEYOND,
        _ => true,
    };
    assert_eq!(changes.iter().filter(of_first).collect::<Vec<_>>(), Vec::<&DataPlaneChange>::new());
    // Everything is done for the second one that a session needs after another one's: see `diff.rs`.
    let tables: Vec<_> = changes.iter().map(DataPlaneChange::entry_key).collect();
    assert!(
        tables.contains(&EntryKey::Store(PC + BEYOND, 1))
            && tables.contains(&EntryKey::Store(SM + BEYOND, 1))
    );
    assert!(tables.contains(&EntryKey::Lists(AP + BEYOND, 0)));
}

// --- Several collectors that share the keys of each store.

/// The sample with every keyed store, and the sketch, shared by both collectors at this bucket: lower buckets
/// are at the first. Lists 4 and 5 are at the second.
pub(super) fn shared(at: u8) -> Program {
    let mut program = with(common(), entries_of(0, Transport::Uc));
    for entry in entries_of(1, Transport::Uc) {
        if let DataPlaneEntry::QueuePair(_) = entry {
            program.set(entry);
        }
    }
    for entry in entries_of(0, Transport::Uc) {
        match entry {
            DataPlaneEntry::Store(store) => {
                let buckets = Buckets::from_range(0, at - 1);
                let second = Store {
                    collector: 1,
                    address: store.address << 8,
                    rkey: Rkey(store.rkey.0 + 0x1000),
                    buckets: buckets.complement().into(),
                    ..store.clone()
                };
                program.set(DataPlaneEntry::Store(Store { buckets: buckets.into(), ..store }));
                program.set(DataPlaneEntry::Store(second));
            }
            DataPlaneEntry::Lists(lists) if lists.first == 4 => {
                program.set(DataPlaneEntry::Lists(Lists { collector: 1, ..lists }));
            }
            _ => {}
        }
    }
    program
}

pub(super) fn numbered(n: u32) -> Key {
    let mut key = Key::default();
    key.0[..4].copy_from_slice(&n.to_be_bytes());
    key
}

/// Keys of the first collector and of the second, where they share at this bucket.
fn keys(at: u8) -> [Vec<Key>; 2] {
    let (first, second) = (0..200).map(numbered).partition(|key| buckets::bucket_of_key(key) < at);
    [first, second]
}

/// Collector, address and remote key of each frame.
pub(super) fn places(frames: &[Vec<u8>]) -> Vec<(u8, u64, u32)> {
    let place = |frame: &Vec<u8>| {
        let received = Received::parse_packet(frame).unwrap();
        let collector = u8::from(received.addresses.destination() == SECOND);
        match received.roce.atomic_header() {
            Some(atomic) => (collector, atomic.va, atomic.rkey),
            None => received.roce.rdma_header().map(|reth| (collector, reth.va, reth.rkey)).unwrap(),
        }
    };
    frames.iter().map(place).collect()
}

#[test]
fn each_key_is_written_at_the_collector_of_its_bucket() {
    for at in [1, 128, 255] {
        let mut bench = bench(&shared(at));
        let keys = keys(at);
        for (collector, keys) in keys.iter().enumerate() {
            // At most the limit of outstanding atomics.
            for key in keys.iter().take(8) {
                let bodies = [
                    (KW, DtaBody::KeyWrite { redundancy: 0, key: *key, value: &[1; 12] }),
                    (KI, DtaBody::KeyIncrement { redundancy: 0, key: *key, delta: 5 }),
                    (PC, DtaBody::Postcard { key: *key, hop: 0, path_length: 1, value: 7 }),
                ];
                for (store, body) in bodies {
                    let report = bench.v1(7, store, body);
                    let frames = bench.ingest(0, &[report]);
                    let entry =
                        bench.engine.installed_program().store_part(store, collector as u8).unwrap().clone();
                    assert_eq!(frames.len(), 2);
                    for (of, va, rkey) in places(&frames) {
                        assert_eq!((usize::from(of), rkey), (collector, entry.rkey.0));
                        assert_eq!(va & !(entry.length - 1), entry.address);
                    }
                }
            }
        }
        assert!(at != 128 || keys.iter().all(|keys| keys.len() > 50));
    }
}

#[test]
fn lists_and_columns_are_at_the_collector_that_has_them() {
    let mut bench = bench(&shared(128));
    let entry = |list| DtaBody::Append { list, value: &[9; 8] };
    for (list, collector) in [(0, 0), (1, 0), (4, 1), (5, 1)] {
        let reports: Vec<_> = (0..3).map(|_| bench.v1(7, AP, entry(list))).collect();
        let frames = bench.ingest(0, &reports);
        assert_eq!(places(&frames).iter().map(|place| place.0).collect::<Vec<_>>(), [collector], "{list}");
    }
    let column = |column| DtaBody::SketchMerge { epoch: 1, column, cells: &[1; 8] };
    let mut of_each = [0; 2];
    for n in 0..16 {
        let reports = [bench.v1(1, SM, column(n)), bench.v1(2, SM, column(n))];
        let at = places(&bench.ingest(0, &reports))[0].0;
        assert_eq!(at, u8::from(buckets::column_hash(n) >> 31 == 1), "column {n}");
        of_each[usize::from(at)] += 1;
    }
    assert!(of_each.iter().all(|n| *n > 3), "{of_each:?}");
}

/// Where a batch of a list goes.
fn batch(bench: &mut Bench, list: u32) -> (u8, u64) {
    let reports: Vec<_> = (0..3).map(|_| bench.v1(7, AP, DtaBody::Append { list, value: &[9; 8] })).collect();
    let [(collector, va, _)] = places(&bench.ingest(0, &reports))[..] else { panic!("not one batch") };
    (collector, va)
}

#[test]
fn a_list_goes_on_at_each_collector_where_it_was_there() {
    let mut bench = bench(&shared(128));
    let base = [0, 1].map(|of| bench.engine.installed_program().store_part(AP, of).unwrap().address);
    let (first, second) = (batch(&mut bench, 0).1, batch(&mut bench, 0).1);
    let next = second - first;
    let of_list_1 = batch(&mut bench, 1).1;
    // What collectors said of their rings before all that is what the program has.
    let ranges = |bench: &mut Bench, ranges: &[(u8, u32, u32)]| {
        let mut want = bench.engine.installed_program().clone();
        want.remove(&EntryKey::Lists(AP, 0));
        want.remove(&EntryKey::Lists(AP, 1));
        for &(collector, first, count) in ranges {
            want.set(DataPlaneEntry::Lists(Lists {
                store: AP,
                collector,
                first,
                count,
                positions: Vec::new(),
            }));
        }
        let changes = diff_programs(bench.engine.installed_program(), &want);
        bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    };
    ranges(&mut bench, &[(1, 0, 2)]);
    assert_eq!(batch(&mut bench, 0), (1, base[1] + (first - base[0])), "the second one's ring is empty");
    ranges(&mut bench, &[(0, 0, 2)]);
    assert_eq!(batch(&mut bench, 0), (0, second + next));
    ranges(&mut bench, &[(1, 0, 1), (0, 1, 1)]);
    assert_eq!(batch(&mut bench, 0), (1, base[1] + (first - base[0]) + next));
    assert_eq!(batch(&mut bench, 1), (0, of_list_1 + next));
    ranges(&mut bench, &[(1, 0, 2)]);
    ranges(&mut bench, &[(0, 1, 1)]);
    assert_eq!(batch(&mut bench, 1), (0, of_list_1 + 2 * next));
    // What the list holds is sent before it moves. The ring has four batches, and the first one was the second of them.
    let report = bench.v1(7, AP, DtaBody::Append { list: 1, value: &[9; 8] });
    assert!(bench.ingest(0, &[report]).is_empty());
    ranges(&mut bench, &[(1, 0, 2)]);
    let [(collector, va, _)] = places(&bench.frames())[..] else { panic!("not one batch") };
    assert_eq!((collector, va), (0, of_list_1 - next));
    assert_eq!(bench.engine.engine_counters().discarded(Discard::StoreRemoved), 0);
    ranges(&mut bench, &[(0, 0, 2)]);
    assert_eq!(batch(&mut bench, 1), (0, of_list_1));
}

/// Reports of each primitive for a key; the postcard is held.
fn of_key(bench: &mut Bench, key: Key) -> Vec<Vec<u8>> {
    vec![
        bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 0, key, value: &[1; 12] }),
        bench.v1(7, KI, DtaBody::KeyIncrement { redundancy: 0, key, delta: 5 }),
        bench.v1(7, PC, DtaBody::Postcard { key, hop: 0, path_length: 2, value: 7 }),
    ]
}

#[test]
fn a_collector_whose_session_has_ended_is_missed_by_its_own_keys_and_lists_alone() {
    let mut bench = bench(&shared(128));
    let [first, second] = keys(128).map(|keys| keys[0]);
    let held: Vec<_> = [first, second].into_iter().flat_map(|key| of_key(&mut bench, key)).collect();
    assert_eq!(bench.ingest(0, &held).len(), 8);

    let mut ended = bench.engine.installed_program().clone();
    for purpose in Purpose::ALL {
        ended.remove(&EntryKey::QueuePair(1, purpose)).unwrap();
    }
    let changes = diff_programs(bench.engine.installed_program(), &ended);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    let entry = |list| DtaBody::Append { list, value: &[9; 8] };
    let column = |column| DtaBody::SketchMerge { epoch: 1, column, cells: &[1; 8] };
    // Columns 0 and 4 have the buckets 66 and 129.
    let others = [(AP, entry(0)), (AP, entry(4)), (SM, column(0)), (SM, column(4))];
    let mut reports: Vec<_> = [first, second].into_iter().flat_map(|key| of_key(&mut bench, key)).collect();
    reports.extend(others.into_iter().map(|(store, body)| bench.v1(7, store, body)));
    let frames = frames(&mut bench, &reports);
    assert_eq!(bench.drops(Reason::NoQueuePair), 5);
    // Key-write and counter, and the flushed row twice, batch and column.
    assert_eq!(places(&frames).iter().map(|place| place.0).collect::<Vec<_>>(), [0; 8]);
    // The row that was held for the other is lost with its queue pair.
    let counters = bench.engine.engine_counters();
    assert_eq!((counters.lost_by_cause(LossCause::QueuePairDown), counters.find_imbalance()), ((1, 2), None));

    let changes = diff_programs(bench.engine.installed_program(), &shared(128));
    assert_eq!(changes.len(), 2);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    let again = of_key(&mut bench, second);
    assert_eq!(places(&bench.ingest(0, &again)).iter().map(|place| place.0).collect::<Vec<_>>(), [1; 4]);
}

#[test]
fn keys_of_nobody_are_dropped_by_name() {
    let mut program = shared(128);
    for id in [KW, KI, PC, SM] {
        let part = program.store_part(id, 1).unwrap().clone();
        program.set(DataPlaneEntry::Store(Store { buckets: Buckets::from_range(128, 254).into(), ..part }));
    }
    let mut bench = bench(&program);
    let last = (0..100_000).map(numbered).find(|key| buckets::bucket_of_key(key) == 255).unwrap();
    let before = (0..100_000).map(numbered).find(|key| buckets::bucket_of_key(key) == 254).unwrap();
    let reports: Vec<_> = [last, before].into_iter().flat_map(|key| of_key(&mut bench, key)).collect();
    assert_eq!(frames(&mut bench, &reports).len(), 6);
    assert_eq!((bench.drops(Reason::NoBucket), bench.drops(Reason::NoQueuePair)), (3, 0));
}

#[test]
fn buckets_that_change_hands_take_what_is_held_along() {
    let mut bench = bench(&shared(128));
    let all: Vec<Key> = (0..40).map(numbered).collect();
    let card = |bench: &mut Bench, key, hop| {
        bench.v1(7, PC, DtaBody::Postcard { key, hop, path_length: 2, value: u32::from(hop) })
    };
    for key in &all {
        let report = card(&mut bench, *key, 0);
        assert!(bench.ingest(0, &[report]).is_empty());
    }
    let want = shared(30);
    let changes = diff_programs(bench.engine.installed_program(), &want);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    for key in &all {
        let report = card(&mut bench, *key, 1);
        let at = u8::from(buckets::bucket_of_key(key) >= 30);
        assert_eq!(places(&bench.ingest(0, &[report])).iter().map(|p| p.0).collect::<Vec<_>>(), [at; 2]);
    }
    assert_eq!(bench.engine.engine_counters().find_imbalance(), None);
}

/// Another translator may have written to the second collector: what is held for it is discarded, and nothing
/// that is held for the first.
#[test]
fn what_is_forgotten_is_what_is_held_for_that_collector() {
    let mut bench = bench(&shared(128));
    let keys = keys(128);
    let column = |column| DtaBody::SketchMerge { epoch: 1, column, cells: &[1; 8] };
    let mut reports = vec![bench.v1(7, SM, column(0)), bench.v1(7, SM, column(4))];
    for key in keys.iter().flat_map(|keys| &keys[..10]) {
        reports.push(bench.v1(7, PC, DtaBody::Postcard { key: *key, hop: 0, path_length: 2, value: 1 }));
    }
    assert!(bench.ingest(0, &reports).is_empty());
    for id in [PC, SM] {
        let entry =
            DataPlaneEntry::Store(bench.engine.installed_program().store_part(id, 1).unwrap().clone());
        bench.engine.apply_changes(0, &[DataPlaneChange::Forget { entry }], &mut bench.out).unwrap();
    }
    assert_eq!(bench.engine.engine_counters().discarded(Discard::StoreRemoved), 11);
    let left = frames(&mut bench, &[]);
    assert_eq!(places(&left).iter().map(|place| place.0).collect::<Vec<_>>(), [0; 21]);
    // Removing a part discards what is held for it, and the other stays.
    let reports: Vec<_> = keys
        .iter()
        .map(|keys| bench.v1(7, PC, DtaBody::Postcard { key: keys[0], hop: 0, path_length: 2, value: 1 }))
        .collect();
    assert!(bench.ingest(0, &reports).is_empty());
    let mut want = bench.engine.installed_program().clone();
    want.remove(&EntryKey::Store(PC, 1)).unwrap();
    let changes = diff_programs(bench.engine.installed_program(), &want);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    assert_eq!(bench.engine.engine_counters().discarded(Discard::StoreRemoved), 12);
    assert_eq!(places(&frames(&mut bench, &[])).len(), 2);
}
