//! What a fault injector does to a frame is written to the ledger for the reports of that frame and
//! of no other, also where many batches of frames leave at once. And reports that a full receive queue
//! drops, whole runs at a time, are missing by their sequences, each of them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dta_dataplane::{Engine, EngineLimits};
use dta_link::fault::{FaultInjector, Faults};
use dta_link::udp::RUN_MAX;
use dta_link::{Link, RunUse, UdpConfig, UdpLink, netstat};
use dta_proto::batch::PacketBatch;
use dta_proto::key::Key;
use dta_proto::layout::{hash, postcarding};
use dta_proto::program::{
    DataPlaneEntry, Endpoint, FlushDelay, Mode, Primitive, Program, ProgramQueuePair, Purpose, Transport,
    diff_programs,
};
use dta_proto::wire::dta::{DtaBody, DtaReport};
use dta_proto::wire::frame::Received;
use dta_translator::packets::faults::{FaultyPath, Ledger, LedgerFate, RECORD};
use dta_translator::packets::{Command, DirectPath, PacketThread, RoceLink};
use tokio::sync::oneshot;

const STORE: u16 = 4;
const REPORTER: u16 = 9;
/// Paths of which one postcard comes: all wait for the others, and leave at the stop in one go,
/// over several batches.
const PATHS: u32 = 1500;
const SLOTS: u64 = 1 << 20;
const COPIES: u8 = 2;

fn address(last: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 83, 1, last), port)
}

fn key(n: u32) -> Key {
    let mut key = Key([7; 16]);
    key.0[..4].copy_from_slice(&n.to_be_bytes());
    key
}

/// Paths alone, with few enough of them in one slot.
fn program(nic: SocketAddrV4) -> Program {
    let all: Program = serde_json::from_str(include_str!("../../dta-proto/vectors/program.json")).unwrap();
    let endpoint = |at: SocketAddrV4| Endpoint { port: at.port(), ..Endpoint::new((*at.ip()).into()) };
    let mut program = Program::default();
    for entry in all.entries() {
        match entry {
            DataPlaneEntry::QueuePair(pair) if pair.purpose == Purpose::Write => {
                program.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
                    transport: Transport::Uc,
                    source: endpoint(address(2, 0)),
                    destination: endpoint(nic),
                    ..pair.clone()
                }));
            }
            DataPlaneEntry::Store(store) if store.spec.id == STORE => {
                let mut store = store.clone();
                store.spec.kind =
                    dta_proto::store::StoreKind::Postcarding { slots: SLOTS, hops: 6, redundancy: COPIES };
                store.length = store.spec.region_len();
                program.set(DataPlaneEntry::Store(store));
            }
            _ => {}
        }
    }
    program.set(DataPlaneEntry::Mode(Mode { reference: false }));
    program.set(DataPlaneEntry::Flush(FlushDelay { primitive: Primitive::Postcarding, after_ms: 600_000 }));
    program
}

/// Report `n` as a datagram's payload: one postcard of a path of 3 hops.
fn report(n: u32) -> Vec<u8> {
    let report = DtaReport {
        sequence: n,
        reporter: REPORTER,
        ..DtaReport::new(STORE, DtaBody::Postcard { key: key(n), hop: 0, path_length: 3, value: n })
    };
    let mut bytes = [0; 200];
    let len = report.encode_into(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// How often each copy of each path came to the NIC, by its number and copy.
fn listen(mut nic: UdpLink, stop: &AtomicBool) -> HashMap<(u32, u8), u32> {
    let mut came = HashMap::new();
    let mut batch = PacketBatch::new(256);
    let base = u64::from(STORE) << 32;
    loop {
        // After the stop nothing more is sent: the socket is read until it is empty.
        let stopped = stop.load(Ordering::Acquire);
        let count = nic.recv(&mut batch, Some(Duration::from_millis(300))).unwrap();
        if count == 0 {
            if stopped {
                break;
            }
            continue;
        }
        for packet in batch.iter() {
            // A damaged one is known by its iCRC.
            let Ok(frame) = Received::parse_packet(packet) else { continue };
            let path = postcarding::unverified_path(frame.roce.payload()).unwrap();
            let number = path.hop_value(0).unwrap();
            let va = frame.roce.rdma_header().unwrap().va;
            let slots = hash::key_slots(&key(number), COPIES, SLOTS);
            let copy = slots.iter().position(|slot| postcarding::row_offset(*slot, 6) == va - base).unwrap();
            *came.entry((number, copy as u8)).or_default() += 1;
        }
    }
    assert_eq!(nic.link_counters().dropped_by_kernel, 0);
    came
}

#[test]
fn each_fate_is_that_of_the_frames_own_reports() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ledger");
    let nic = UdpLink::open(&UdpConfig::for_roce_frames(address(1, 0).into())).unwrap();
    let program = program(nic.local_addr());
    let reports = UdpLink::open(&UdpConfig::for_reports(address(3, 0).into(), false)).unwrap();
    let to = reports.local_addr();
    let roce =
        RoceLink::from_udp_link(UdpLink::open(&UdpConfig::for_roce_frames(address(2, 0).into())).unwrap());
    let faults: Faults = "drop=0.2,dup=0.2,reorder=0.2,corrupt=0.2".parse().unwrap();
    let (commands, inbox) = mpsc::channel();
    let none = || FaultInjector::new(Faults::NONE, 0, dta_link::Scope::Payload);
    let thread = PacketThread {
        engine: Engine::new(EngineLimits {
            name_reports: true,
            postcard_rows: 1 << 16,
            ..EngineLimits::default()
        }),
        member: None,
        path: Box::new(FaultyPath::new(
            FaultInjector::new(faults, 5, roce.corruption_scope()),
            none(),
            none(),
            Some(Ledger::create(&file).unwrap()),
        )),
        turns: Default::default(),
        commands: inbox,
        reports: reports.into(),
        int: None,
        roce,
    };
    let stop = AtomicBool::new(false);
    let came = std::thread::scope(|scope| {
        let listener = scope.spawn(|| listen(nic, &stop));
        let runner = scope.spawn(|| thread.run());
        let (reply, applied) = oneshot::channel();
        commands.send(Command::Apply(diff_programs(&Program::default(), &program), reply)).unwrap();
        applied.blocking_recv().unwrap().unwrap();
        let mut reporter = UdpLink::open(&UdpConfig::for_reports(address(4, 0).into(), false)).unwrap();
        let mut batch = PacketBatch::default();
        for n in 0..PATHS {
            batch.push_datagram(reporter.local_addr(), to, &report(n), 0).unwrap();
            if batch.is_full() || n + 1 == PATHS {
                reporter.send(&mut batch).unwrap();
                // Not faster than a small queue of the socket is drained.
                while netstat::socket_backlog(to).unwrap().expect("it is open") > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        let (reply, stopped) = oneshot::channel();
        commands.send(Command::Stop(reply)).unwrap();
        let snapshot = stopped.blocking_recv().unwrap();
        runner.join().unwrap().unwrap();
        assert_eq!(snapshot.counters.primitives[Primitive::Postcarding.index()].accepted, u64::from(PATHS));
        assert_eq!(snapshot.counters.frames, u64::from(PATHS) * u64::from(COPIES));
        assert_eq!(
            snapshot.roce_link.unsent_no_source, 0,
            "another program has the port that frames leave from"
        );
        stop.store(true, Ordering::Release);
        listener.join().unwrap()
    });

    let mut fates = HashMap::new();
    let bytes = std::fs::read(&file).unwrap();
    for record in bytes.chunks_exact(RECORD) {
        assert_eq!(record[..2], REPORTER.to_be_bytes());
        let sequence = u32::from_be_bytes(record[2..6].try_into().unwrap());
        assert_eq!(fates.insert((sequence, record[6]), record[7]), None, "a frame has one fate");
    }
    let count = |fate: LedgerFate| fates.values().filter(|it| **it == fate as u8).count();
    for fate in [LedgerFate::Dropped, LedgerFate::Duplicated, LedgerFate::Reordered, LedgerFate::Corrupted] {
        assert!(count(fate) > 400, "{fate:?}: {}", count(fate));
    }
    for number in 0..PATHS {
        for copy in 0..COPIES {
            let fate = fates.get(&(number, copy));
            let lost = [LedgerFate::Dropped as u8, LedgerFate::Corrupted as u8];
            let expected = match fate {
                Some(fate) if lost.contains(fate) => 0,
                Some(fate) if *fate == LedgerFate::Duplicated as u8 => 2,
                _ => 1,
            };
            let came = came.get(&(number, copy)).copied().unwrap_or(0);
            assert_eq!(came, expected, "path {number}, copy {copy}, fate {fate:?}");
        }
    }
}

#[test]
fn the_books_close_when_a_full_queue_drops_whole_runs() {
    let nic = UdpLink::open(&UdpConfig::for_roce_frames(address(5, 0).into())).unwrap();
    let program = program(nic.local_addr());
    // So small that most of what is sent does not fit.
    let config = UdpConfig { receive_buffer: 10_000, ..UdpConfig::for_reports(address(7, 0).into(), false) };
    let reports = UdpLink::open(&config).unwrap();
    assert_eq!(reports.run_use(), RunUse::BOTH);
    let to = reports.local_addr();
    let roce =
        RoceLink::from_udp_link(UdpLink::open(&UdpConfig::for_roce_frames(address(6, 0).into())).unwrap());
    let (commands, inbox) = mpsc::channel();
    let thread = PacketThread {
        engine: Engine::new(EngineLimits::default()),
        member: None,
        path: Box::new(DirectPath),
        turns: Default::default(),
        commands: inbox,
        reports: reports.into(),
        int: None,
        roce,
    };
    let mut reporter = UdpLink::open(&UdpConfig::for_reports(address(8, 0).into(), false)).unwrap();
    let from = reporter.local_addr();
    let mut batch = PacketBatch::new(RUN_MAX);
    let mut send = |numbers: std::ops::Range<u32>| {
        for n in numbers {
            batch.push_datagram(from, to, &report(n), 0).unwrap();
            if batch.is_full() {
                assert_eq!(reporter.send(&mut batch).unwrap(), RUN_MAX);
            }
        }
        reporter.send(&mut batch).unwrap();
    };
    let ask = || {
        let (reply, answer) = oneshot::channel();
        commands.send(Command::Snapshot(reply)).unwrap();
        answer.blocking_recv().unwrap()
    };
    let snapshot = std::thread::scope(|scope| {
        // Nobody takes reports before there is a program: the first runs fit, and the others do not.
        send(0..100 * RUN_MAX as u32);
        let runner = scope.spawn(|| thread.run());
        let (reply, applied) = oneshot::channel();
        commands.send(Command::Apply(diff_programs(&Program::default(), &program), reply)).unwrap();
        applied.blocking_recv().unwrap().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while ask().counters.received == 0 {
            assert!(Instant::now() < until, "no report is taken");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Two more reports show what is missing.
        let sent = 100 * RUN_MAX as u32 + 2;
        send(sent - 2..sent);
        while ask().reporters.first().is_none_or(|reporter| reporter.newest != sent - 1) {
            assert!(Instant::now() < until, "the last report does not come");
            std::thread::sleep(Duration::from_millis(10));
        }
        let (reply, stopped) = oneshot::channel();
        commands.send(Command::Stop(reply)).unwrap();
        let snapshot = stopped.blocking_recv().unwrap();
        runner.join().unwrap().unwrap();
        snapshot
    });
    let sent = 100 * RUN_MAX as u64 + 2;
    let dropped = snapshot.reports_link.dropped_by_kernel;
    assert_eq!(snapshot.reports_link.received, snapshot.counters.received);
    let counters = snapshot.reporters[0].counters;
    let missing = counters.gaps - counters.gaps_filled;
    // The first report behind so long a gap is not believed alone: it came, and is missing, too.
    let disbelieved = counters.out_of_window;
    assert_eq!(disbelieved, 1);
    assert_eq!(
        counters.received + missing,
        sent + disbelieved,
        "each report came, or is missing by its sequence"
    );
    // The kernel counted runs.
    assert!(dropped > 20, "{dropped} runs dropped");
    assert_eq!(missing, dropped * RUN_MAX as u64 + disbelieved);
}
