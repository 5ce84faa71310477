//! What needs root: the packet thread on a veth pair, in a network namespace per test.
//!
//! `cargo test -p dta-translator --test namespace -- --ignored`

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::num::NonZeroU32;
use std::process::Command as Process;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dta_dataplane::{Engine, EngineLimits};
use dta_link::{Link, PacketConfig, PacketLink, UdpConfig, UdpLink};
use dta_proto::batch::PacketBatch;
use dta_proto::key::Key;
use dta_proto::program::{
    DataPlaneChange, DataPlaneEntry, EntryKey, Program, ProgramQueuePair, Purpose, diff_programs,
};
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::{DtaBody, DtaReport};
use dta_switch::cpu_port::by_interface;
use dta_translator::config::Config;
use dta_translator::packets::{Command, DirectPath, PacketThread, PacketThreadError, RoceLink, Snapshot};
use rustix::thread::UnshareFlags;
use tokio::sync::oneshot;

/// The translator's address on the wire, not one of the kernel's.
const TRANSLATOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// The collector's address, which nobody has at first.
const COLLECTOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 99);

/// Runs `test` in a thread with a network namespace of its own. There `lo` is up, and so are the ends
/// `near` (10.9.0.1/24) and `far` (no address) of a veth pair.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let result = std::thread::spawn(|| {
        enter_namespace();
        for step in [
            "link set lo up",
            "link add near type veth peer name far",
            "link set near up",
            "link set far up",
            "address add 10.9.0.1/24 dev near",
        ] {
            ip(step);
        }
        test();
    })
    .join();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[allow(unsafe_code)]
fn enter_namespace() {
    // SAFETY: a new network namespace does not touch file descriptors or memory that others rely on.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("root may make namespaces");
}

fn ip(arguments: &str) {
    let status = Process::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}

/// The thread that carries packets, with frames leaving through `far`.
struct Running {
    commands: Sender<Command>,
    thread: JoinHandle<Result<(), PacketThreadError>>,
    reporter: UdpSocket,
    listen: SocketAddrV4,
    sent: u32,
}

impl Running {
    fn start() -> Running {
        let config: Config = toml::from_str(&format!(
            "[translator]\nsource = '{TRANSLATOR}'\nsource_port = 4791\nlink = 'far'\n"
        ))
        .unwrap();
        let (roce, _) = RoceLink::open(&config.translator).unwrap();
        let reports = UdpLink::open(&UdpConfig::for_reports("127.0.0.1:0".parse().unwrap(), false)).unwrap();
        let listen = reports.local_addr();
        let (commands, inbox) = channel();
        let packets = PacketThread {
            engine: Engine::new(EngineLimits::default()),
            member: None,
            path: Box::new(DirectPath),
            turns: Default::default(),
            commands: inbox,
            reports: reports.into(),
            int: None,
            roce,
        };
        let thread = std::thread::spawn(|| packets.run());
        let reporter = UdpSocket::bind("127.0.0.1:0").unwrap();
        Running { commands, thread, reporter, listen, sent: 0 }
    }

    /// Sends a command and waits for its answer.
    fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> T {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).expect("the thread runs");
        answer.blocking_recv().expect("the thread answers")
    }

    fn apply(&self, changes: Vec<DataPlaneChange>) {
        self.ask(|reply| Command::Apply(changes, reply)).unwrap();
    }

    fn snapshot(&self) -> Box<Snapshot> {
        self.ask(Command::Snapshot)
    }

    /// Sends `count` key-writes of one copy each.
    fn report(&mut self, count: u32) {
        for _ in 0..count {
            let report = DtaReport {
                sequence: self.sent,
                reporter: 7,
                ..DtaReport::new(
                    1,
                    DtaBody::KeyWrite { redundancy: 1, key: Key([self.sent as u8; 16]), value: &[1; 12] },
                )
            };
            let mut bytes = [0; 200];
            let len = report.encode_into(&mut bytes).unwrap();
            self.reporter.send_to(&bytes[..len], self.listen).unwrap();
            self.sent += 1;
        }
    }

    /// Polls the counters until `done` accepts them.
    fn wait(&self, most: Duration, done: impl Fn(&Snapshot) -> bool) -> Box<Snapshot> {
        let end = Instant::now() + most;
        loop {
            let snapshot = self.snapshot();
            if done(&snapshot) {
                return snapshot;
            }
            assert!(
                Instant::now() < end,
                "in {most:?}: {} reports received, {:?}",
                snapshot.counters.received,
                snapshot.roce_link
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(self) -> Box<Snapshot> {
        let last = self.ask(Command::Stop);
        self.thread.join().unwrap().unwrap();
        last
    }
}

/// The program of the frame vectors, with queue pairs that go to the collector's address. Its Ethernet
/// address is not known.
fn program(generation: u64) -> Program {
    let mut program: Program =
        serde_json::from_str(include_str!("../../dta-proto/vectors/program.json")).unwrap();
    for purpose in [Purpose::Write, Purpose::Atomic] {
        let Some(DataPlaneEntry::QueuePair(mut pair)) = program.remove(&EntryKey::QueuePair(0, purpose))
        else {
            panic!()
        };
        pair.destination.ip = COLLECTOR.into();
        program.set(DataPlaneEntry::QueuePair(ProgramQueuePair { generation, ..pair }));
    }
    program
}

/// Frames that have come to `near`: ARP questions for the collector, and RoCEv2 frames.
fn arrived(tap: &mut PacketLink) -> (usize, usize) {
    let (mut questions, mut frames) = (0, 0);
    let mut batch = PacketBatch::default();
    while tap.recv(&mut batch, Some(Duration::ZERO)).unwrap() > 0 {
        for index in 0..batch.len() {
            let frame = batch.ethernet_frame(index).unwrap();
            match frame[12..14] {
                // Operation 1 from the translator's address for the collector's.
                [8, 6] if frame[21] == 1 && frame[28..32] == TRANSLATOR.octets() => {
                    assert_eq!((&frame[..6], &frame[38..42]), (&[0xff; 6][..], &COLLECTOR.octets()[..]));
                    questions += 1;
                }
                [8, 0] => frames += 1,
                _ => {}
            }
        }
    }
    (questions, frames)
}

/// How many RoCEv2 frames come to `near`; waits for this many.
fn frames_arriving(tap: &mut PacketLink, expected: usize) -> usize {
    let end = Instant::now() + Duration::from_secs(60);
    let mut frames = arrived(tap).1;
    while frames < expected && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
        frames += arrived(tap).1;
    }
    frames
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn reports_wait_while_the_collector_is_silent_and_none_is_lost_when_it_answers() {
    // On a busy machine, the answer may come too late.
    let answered_in_time = (0..5).any(|_| {
        let (sender, answer) = channel();
        in_namespace(move || sender.send(reports_wait_for_an_answer()).unwrap());
        answer.recv().unwrap()
    });
    assert!(answered_in_time, "the collector was given up each time");
}

/// Whether the collector answered before it was given up; if not, reports are rightly lost.
fn reports_wait_for_an_answer() -> bool {
    let mut tap = PacketLink::open(&PacketConfig::new("near", [4791])).unwrap();
    let mut running = Running::start();
    let begun = Instant::now();
    let is_given_up = |snapshot: &Snapshot| {
        let is_given_up = snapshot.roce_link.unsent_unreachable > 0;
        assert!(!is_given_up || begun.elapsed() >= Duration::from_secs(3), "given up too early");
        is_given_up
    };
    running.apply(diff_programs(&Program::default(), &program(1)));
    running.report(10);
    let (mut questions, mut frames) = (0, 0);
    while questions < 5 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{questions} questions");
        if is_given_up(&running.snapshot()) {
            running.stop();
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
        let more = arrived(&mut tap);
        (questions, frames) = (questions + more.0, frames + more.1);
    }
    let most = begun.elapsed().as_millis() / 100 + 1;
    assert!(questions as u128 <= most, "{questions} questions, and {most} if one comes each 100 ms");
    let waiting = running.snapshot();
    if is_given_up(&waiting) {
        running.stop();
        return false;
    }
    assert_eq!((waiting.counters.received, waiting.counters.frames), (0, 0), "they wait in the socket");
    assert_eq!(frames, 0);

    ip("address add 10.9.0.99/24 dev near");
    running.wait(Duration::from_secs(60), |s| s.counters.received == 10);
    let last = running.stop();
    if is_given_up(&last) {
        return false;
    }
    assert_eq!((last.counters.received, last.counters.frames), (10, 10));
    assert_eq!((last.roce_link.sent, last.roce_link.unsent_packets()), (10, 0));
    assert_eq!(last.reports_link.dropped_by_kernel, 0);
    assert_eq!(frames_arriving(&mut tap, 10), 10);
    true
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_collector_that_stays_silent_is_given_up_and_frames_to_it_are_counted() {
    in_namespace(|| {
        let mut tap = PacketLink::open(&PacketConfig::new("near", [4791])).unwrap();
        let mut running = Running::start();
        let start = Instant::now();
        running.apply(diff_programs(&Program::default(), &program(1)));
        running.report(10);
        let given_up = running.wait(Duration::from_secs(60), |s| s.counters.received == 10);
        assert!(start.elapsed() >= Duration::from_secs(3), "given up after {:?}", start.elapsed());
        assert_eq!((given_up.counters.frames, given_up.roce_link.sent), (10, 0));
        assert_eq!((given_up.roce_link.unsent_unreachable, given_up.roce_link.unsent_packets()), (10, 10));
        assert_eq!(arrived(&mut tap).1, 0);

        // It appears later. The next program triggers a new request, and frames leave.
        ip("address add 10.9.0.99/24 dev near");
        running.apply(diff_programs(&program(1), &program(2)));
        running.report(5);
        let found = running.wait(Duration::from_secs(60), |s| s.roce_link.sent == 5);
        assert_eq!((found.counters.received, found.roce_link.unsent_unreachable), (15, 10));
        running.stop();
        assert_eq!(frames_arriving(&mut tap, 5), 5);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_store_whose_packets_do_not_fit_the_link_is_refused() {
    in_namespace(|| {
        let mut long = program(1);
        let Some(DataPlaneEntry::Store(mut store)) = long.remove(&EntryKey::Store(2, 0)) else { panic!() };
        let StoreKind::Append { batch_len, .. } = &mut store.spec.kind else { panic!() };
        *batch_len = 2048;
        store.length = store.spec.region_len();
        long.set(DataPlaneEntry::Store(store));
        let changes = diff_programs(&Program::default(), &long);
        let udp = UdpLink::open(&UdpConfig::for_roce_frames("10.9.0.1:0".parse().unwrap())).unwrap();
        let udp = RoceLink::from_udp_link(udp);

        let running = Running::start();
        let words = "writes to store `ap` are packets of 2112 bytes, but";
        for refused in [
            running.ask(|reply| Command::Check(changes.clone(), reply)),
            running.ask(|reply| Command::Apply(changes.clone(), reply)),
        ] {
            let why = refused.unwrap_err().to_string();
            assert!(why.starts_with(&format!("{words} the interface far carries 1500 (its MTU)")), "{why}");
        }
        assert_eq!(running.ask(Command::Program), Program::default(), "nothing was applied");
        running.stop();
        let why = udp.check_packet_lengths(&long).unwrap_err().to_string();
        assert!(why.starts_with(&format!("{words} the path to 10.9.0.99 carries 1500")), "{why}");

        ip("link set near mtu 9000");
        ip("link set far mtu 9000");
        let running = Running::start();
        running.apply(changes);
        running.stop();
        udp.check_packet_lengths(&long).unwrap();
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn commands_leave_by_the_interface_of_a_cpu_port() {
    in_namespace(|| {
        // ETH_P_ALL, in network order: this socket hears all that comes in by any interface.
        let all = rustix::net::Protocol::from_raw(NonZeroU32::new(3_u16.to_be().into()).unwrap());
        let (family, kind) = (rustix::net::AddressFamily::PACKET, rustix::net::SocketType::RAW);
        let near = rustix::net::socket(family, kind, Some(all)).unwrap();
        let mut send = by_interface("far");
        let patience = Some(Duration::from_secs(60));
        rustix::net::sockopt::set_socket_timeout(&near, rustix::net::sockopt::Timeout::Recv, patience)
            .unwrap();
        // More than go in one call; the socket holds few.
        let frames: Vec<Vec<u8>> =
            (0..70_u8).map(|n| [&[2; 12][..], &[0x88, 0xb5, n], &[0; 110]].concat()).collect();
        assert_eq!(send(&frames).unwrap(), 70);
        let mut seen = Vec::new();
        while seen.len() < frames.len() {
            let mut buffer = vec![0; 2048];
            let (len, _) =
                rustix::net::recv(&near, &mut buffer[..], rustix::net::RecvFlags::empty()).unwrap();
            // The other end of the pair hears each one later, too.
            let frame = buffer[..len].to_vec();
            if buffer[12..14] == [0x88, 0xb5] && !seen.contains(&frame) {
                seen.push(frame);
            }
        }
        assert_eq!(seen, frames);
        // An interface that is down says so, and one that was made again is found.
        ip("link set far down");
        assert!(send(&frames).map_or(true, |sent| sent < 70));
        ip("link delete far");
        assert!(send(&frames).is_err());
        ip("link add near type veth peer name far");
        ip("link set near up");
        ip("link set far up");
        assert_eq!(send(&frames[..3]).unwrap(), 3);
    });
}
