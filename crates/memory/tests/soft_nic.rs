//! The software NIC on real links and one within the process, restarts included.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use dta_link::{EthernetLink, Link, LinkCounters, PacketConfig, Scope, UdpConfig, UdpLink};
use dta_memory::nic::soft::{CounterFile, SoftNic, SoftNicConfig};
use dta_memory::nic::{
    Access, Endpoint, Nic, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState, Registration, Transport,
};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::batch::{Addresses, ETHERNET_LEN, PacketBatch};
use dta_proto::wire::frame::{FrameRoute, Received};
use dta_proto::wire::roce::{
    AtomicEth, Bth, ImmDt, Opcode, Psn, Reth, RocePacket, RoceRepr, Syndrome, has_valid_icrc, settle_icrc,
};

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const IOVA: u64 = 1 << 40;

/// One end of a link within the process, which counts nothing.
struct InProcess {
    out: Sender<PacketBatch>,
    inward: Receiver<PacketBatch>,
}

fn in_process() -> (InProcess, InProcess) {
    let ((to_there, from_here), (to_here, from_there)) = (channel(), channel());
    (InProcess { out: to_there, inward: from_there }, InProcess { out: to_here, inward: from_here })
}

impl Link for InProcess {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> dta_link::Result<usize> {
        match self.inward.recv_timeout(timeout.unwrap_or(Duration::MAX)) {
            Ok(came) => *batch = came,
            Err(_) => batch.clear(),
        }
        Ok(batch.len())
    }

    fn send(&mut self, batch: &mut PacketBatch) -> dta_link::Result<usize> {
        let count = batch.len();
        // The other end may be gone.
        let _ = self.out.send(std::mem::take(batch));
        Ok(count)
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    fn corruption_scope(&self) -> Scope {
        Scope::Packet
    }
}

/// A requester with one queue pair.
struct Requester {
    route: FrameRoute,
    qp: QueuePairInfo,
    region: Registration,
}

impl Requester {
    fn open(
        nic: &SoftNic,
        region: &Arc<Region>,
        access: Access,
        transport: Transport,
        from: impl Into<SocketAddr>,
    ) -> Self {
        let from = from.into();
        let registration = nic.register_region(Arc::clone(region), access).unwrap();
        let mut peer = Endpoint::new(from.ip());
        (peer.port, peer.runs) = (from.port(), true);
        let request = QueuePairRequest {
            purpose: Purpose::Write,
            transport,
            peer,
            peer_qpn: 0x777,
            start_psn: 0xff_fffe,
            access: Access { remote_write: true, remote_read: true, remote_atomic: true },
            receives: 2,
        };
        let qp = nic.create_queue_pair(&request).unwrap();
        let to = nic.describe_device().endpoint;
        let route = FrameRoute {
            src_port: from.port(),
            dst_port: to.port,
            ..FrameRoute::from_addresses(from.ip(), to.ip, qp.qpn).unwrap()
        };
        Requester { route, qp, region: registration }
    }

    fn packet(&self, opcode: Opcode, psn: u32, ack: bool, offset: u64, payload: &[u8]) -> Vec<u8> {
        let shape = opcode.header_layout();
        let va = self.region.iova + offset;
        let repr = RoceRepr {
            bth: Bth::new(opcode, self.qp.qpn, Psn::new(psn), ack),
            reth: shape.reth.then_some(Reth { va, rkey: self.region.rkey, length: payload.len() as u32 }),
            atomic: shape.atomic.then_some(AtomicEth { va, rkey: self.region.rkey, swap_add: 5, compare: 0 }),
            aeth: None,
            atomic_ack: None,
            imm: shape.imm.then_some(ImmDt(0xabcd)),
            payload: if shape.payload { payload } else { &[] },
        };
        let mut packet = vec![0; 2048];
        let len = self.route.write_frame(&repr, &mut packet).unwrap();
        packet.truncate(len);
        packet
    }

    /// Adds a packet that may leave in a run.
    fn add(&self, packet: &[u8], batch: &mut PacketBatch) {
        let addresses = Addresses::from_route(&self.route, true);
        batch.add_datagram(packet.len(), addresses, 0).copy_from_slice(packet);
    }
}

fn region() -> Arc<Region> {
    Arc::new(Region::anonymous(1 << 16, IOVA, RegionOptions { huge_pages: false }).unwrap())
}

fn config(port: u16) -> SoftNicConfig {
    SoftNicConfig::new(SocketAddrV4::new(LOCAL, port))
}

fn counter(nic: &SoftNic, name: &str) -> u64 {
    nic.named_counters().into_iter().find(|(n, _)| n == name).map_or(0, |(_, v)| v)
}

#[track_caller]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn udp_sockets_carry_writes_atomics_and_their_answers() {
    let nic = SoftNic::with_udp(config(0)).unwrap();
    let region = region();
    let mut link = UdpLink::open(&UdpConfig::roce_in_runs((LOCAL, 0).into())).unwrap();
    let access = Access { remote_write: true, remote_read: false, remote_atomic: true };
    let requester = Requester::open(&nic, &region, access, Transport::Rc, link.local_addr());
    let mut batch = PacketBatch::default();
    let psn = requester.qp.expected_psn;
    batch.push(&requester.packet(Opcode::RcWriteOnly, psn, true, 16, b"twelve bytes"), 0).unwrap();
    batch.push(&requester.packet(Opcode::RcFetchAdd, psn + 1, false, 64, &[]), 0).unwrap();
    batch.push(&requester.packet(Opcode::RcFetchAdd, psn + 2, false, 64, &[]), 0).unwrap();
    link.send(&mut batch).unwrap();

    let mut answers = Vec::new();
    let start = Instant::now();
    while answers.len() < 3 && start.elapsed() < Duration::from_secs(60) {
        link.recv(&mut batch, Some(Duration::from_secs(1))).unwrap();
        for index in 0..batch.len() {
            // The answers to atomics make a run.
            assert!(batch.id_unknown(index));
            settle_icrc(batch.packet_mut(index));
            answers.push(batch.packet(index).to_vec());
        }
    }
    let read: Vec<_> = answers
        .iter()
        .map(|answer| {
            assert!(has_valid_icrc(answer), "the kernel sent another IPv4 header than the iCRC was made for");
            let answer = RocePacket::new_checked(&answer[28..]).unwrap();
            let aeth = answer.ack_header().unwrap().unwrap();
            assert_eq!((answer.base_header().dest_qp, aeth.syndrome), (0x777, Syndrome::ACK));
            (answer.base_header().opcode, answer.base_header().psn.get(), aeth.msn, answer.atomic_ack())
        })
        .collect();
    let (psn1, psn2) = (0xff_ffff, 0);
    assert_eq!(
        read,
        [
            (Opcode::RcAck, psn, 1, None),
            (Opcode::RcAtomicAck, psn1, 2, Some(0)),
            (Opcode::RcAtomicAck, psn2, 3, Some(5))
        ]
    );
    assert_eq!(region.load_u64(64).unwrap(), 10);
    let mut bytes = [0; 12];
    region.read(16, &mut bytes).unwrap();
    assert_eq!(&bytes, b"twelve bytes");
    let status = &nic.queue_pairs().unwrap()[0];
    assert_eq!((status.state, status.expected_psn), (QueuePairState::ReadyToReceive, 1));
    // Counters are published after the batch's answers left.
    eventually("the counts", || counter(&nic, "executed.fetch_add") == 2);
    assert_eq!(counter(&nic, "executed.write"), 1);
    eventually("the link's counts", || counter(&nic, "link.sent") == 3);
}

#[test]
fn frames_in_runs_are_executed_and_one_with_another_id_only_where_runs_are_taken() {
    for threads in [1, 3] {
        let mut config = config(0);
        config.threads = threads;
        let nic = SoftNic::with_udp(config).unwrap();
        assert!(nic.describe_device().endpoint.runs);
        let region = region();
        let mut link = UdpLink::open(&UdpConfig::roce_in_runs((LOCAL, 0).into())).unwrap();
        let requester = Requester::open(&nic, &region, Access::WRITE, Transport::Uc, link.local_addr());
        let mut batch = PacketBatch::new(100);
        for n in 0..100u32 {
            let value = [n as u8; 16];
            let packet = requester.packet(Opcode::UcWriteOnly, n, false, 16 * u64::from(n), &value);
            requester.add(&packet, &mut batch);
        }
        assert_eq!(link.send(&mut batch).unwrap(), 100);
        eventually("the writes", || counter(&nic, "executed.write") == 100);
        for n in 0..100 {
            let mut value = [0; 16];
            region.read(16 * n, &mut value).unwrap();
            assert_eq!(value, [n as u8; 16]);
        }
        assert_eq!(counter(&nic, "received"), 100);
    }

    // Of three frames in a message, only the first has id 0.
    let mut config = config(0);
    config.runs = false;
    let nic = SoftNic::with_udp(config).unwrap();
    assert!(!nic.describe_device().endpoint.runs);
    let mut link = UdpLink::open(&UdpConfig::roce_in_runs((LOCAL, 0).into())).unwrap();
    let requester = Requester::open(&nic, &region(), Access::WRITE, Transport::Uc, link.local_addr());
    let mut batch = PacketBatch::default();
    for psn in 0..3 {
        requester.add(&requester.packet(Opcode::UcWriteOnly, psn, false, 0, b"data"), &mut batch);
    }
    link.send(&mut batch).unwrap();
    eventually("the frames", || counter(&nic, "received") == 3);
    eventually("their fates", || (counter(&nic, "executed.write"), counter(&nic, "dropped.icrc")) == (1, 2));
}

#[test]
fn each_of_two_threads_has_its_queue_pairs_and_every_key() {
    let mut config = config(0);
    config.threads = 2;
    let nic = SoftNic::with_udp(config).unwrap();
    let region = region();
    let access = Access { remote_write: true, remote_read: false, remote_atomic: true };
    let mut batch = PacketBatch::default();
    let mut all: Vec<_> = (0..4)
        .map(|_| {
            let link = UdpLink::open(&UdpConfig::for_roce_frames((LOCAL, 0).into())).unwrap();
            let requester = Requester::open(&nic, &region, access, Transport::Rc, link.local_addr());
            (link, requester)
        })
        .collect();
    // The number of a queue pair says which thread has it: two requesters are at each.
    let at_first = all.iter().filter(|(_, requester)| requester.qp.qpn % 2 == 0).count();
    assert_eq!(at_first, 2);
    // More of one requester stay together, as a ring of its would lead to one thread.
    let again = Requester::open(&nic, &region, access, Transport::Rc, all[0].0.local_addr());
    assert_eq!(again.qp.qpn % 2, all[0].1.qp.qpn % 2);
    // All count at one place, so an addition that is not atomic would show.
    const ADDS: u32 = 200;
    std::thread::scope(|scope| {
        for (link, requester) in &mut all {
            scope.spawn(|| {
                let mut batch = PacketBatch::default();
                for n in 0..ADDS {
                    let psn = Psn::new(requester.qp.expected_psn).wrapping_add(n).get();
                    batch.push(&requester.packet(Opcode::RcFetchAdd, psn, false, 64, &[]), 0).unwrap();
                    link.send(&mut batch).unwrap();
                    let came = link.recv(&mut batch, Some(Duration::from_secs(60))).unwrap();
                    assert_eq!(came, 1, "no answer to addition {n}");
                    batch.clear();
                }
            });
        }
    });
    assert_eq!(region.load_u64(64).unwrap(), 5 * u64::from(4 * ADDS));
    eventually("the counts of both", || counter(&nic, "executed.fetch_add") == u64::from(4 * ADDS));
    eventually("the links' counts", || counter(&nic, "link.received") == u64::from(4 * ADDS));
    assert_eq!(nic.queue_pairs().unwrap().len(), 5);
    let turns = nic.poll_count().unwrap();
    eventually("both to go on", || nic.poll_count().unwrap() > turns + 1);

    // A key that has ended is worth nothing to either; a queue pair ends where it is.
    for (_, requester) in &all {
        nic.deregister(requester.region.rkey).unwrap();
        assert!(nic.deregister(requester.region.rkey).is_err());
    }
    for (link, requester) in &mut all {
        let psn = Psn::new(requester.qp.expected_psn).wrapping_add(ADDS).get();
        batch.push(&requester.packet(Opcode::RcFetchAdd, psn, false, 64, &[]), 0).unwrap();
        link.send(&mut batch).unwrap();
    }
    eventually("the refusals", || counter(&nic, "dropped.rkey") == 4);
    for (_, requester) in &all {
        let next = Psn::new(requester.qp.expected_psn).wrapping_add(ADDS).get();
        assert_eq!(nic.destroy_queue_pair(requester.qp.qpn).unwrap(), Some(next));
    }
    assert_eq!(nic.queue_pairs().unwrap().len(), 1);
    assert_eq!(region.load_u64(64).unwrap(), 5 * u64::from(4 * ADDS));
}

#[test]
fn immediates_wake_a_reader_and_receives_come_back_when_taken() {
    let (mut here, there) = in_process();
    let nic = SoftNic::with_link(config(4791), there).unwrap();
    let region = region();
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 4791);
    let requester = Requester::open(&nic, &region, Access::WRITE, Transport::Uc, from);
    let mut batch = PacketBatch::default();
    let mut send = |count: u32| {
        for psn in 0..count {
            batch.push(&requester.packet(Opcode::UcWriteOnlyImm, psn, false, 0, b"data"), 0).unwrap();
        }
        here.send(&mut batch).unwrap();
    };
    // Two receives are posted.
    send(3);
    let mut came = Vec::new();
    nic.take_immediates(&mut came, Duration::from_secs(60)).unwrap();
    assert_eq!(came.len(), 2);
    assert_eq!((came[0].qpn, came[0].value, came[0].len), (requester.qp.qpn, 0xabcd, 4));
    eventually("the one too many", || counter(&nic, "dropped.no_receive") == 1);
    send(2);
    came.clear();
    nic.take_immediates(&mut came, Duration::from_secs(60)).unwrap();
    assert_eq!(came.len(), 2);
    came.clear();
    nic.take_immediates(&mut came, Duration::from_millis(1)).unwrap();
    assert!(came.is_empty());
}

#[test]
fn counters_go_on_after_a_restart_and_show_what_a_kill_cost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("soft.counters");
    let mut config = config(4791);
    config.counter_file = Some(path.clone());
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 4791);
    for run in 1..=2 {
        let (mut here, there) = in_process();
        let nic = SoftNic::with_link(config.clone(), there).unwrap();
        let requester = Requester::open(&nic, &region(), Access::WRITE, Transport::Uc, from);
        let mut batch = PacketBatch::default();
        batch.push(&requester.packet(Opcode::UcWriteOnly, 0, false, 0, b"data"), 0).unwrap();
        batch.push(b"not a packet", 0).unwrap();
        here.send(&mut batch).unwrap();
        eventually("the write", || counter(&nic, "executed.write") == run);
        assert_eq!(counter(&nic, "received"), 2 * run);
        assert_eq!(counter(&nic, "dropped.not_roce"), run);
        // A second NIC cannot count in the same file.
        let (_, other) = in_process();
        assert!(SoftNic::with_link(config.clone(), other).is_err());
    }
    // As a process leaves it that is killed with 7 packets in hand.
    let names: Vec<String> = CounterFile::read(&path).unwrap().1.into_iter().map(|(n, _)| n).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let file = CounterFile::open(Some(&path), "soft", &names).unwrap();
    file.store_value(0, 4 + 7);
    drop(file);
    let (_here, there) = in_process();
    let nic = SoftNic::with_link(config, there).unwrap();
    eventually("the loss", || counter(&nic, "dropped.killed") == 7);
}

#[test]
fn faults_take_answers_away() {
    let (mut here, there) = in_process();
    let mut config = config(4791);
    config.faults = "drop=1".parse().unwrap();
    let nic = SoftNic::with_link(config, there).unwrap();
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 4791);
    let region = region();
    let requester = Requester::open(&nic, &region, Access::ATOMIC, Transport::Rc, from);
    let mut batch = PacketBatch::default();
    batch.push(&requester.packet(Opcode::RcFetchAdd, requester.qp.expected_psn, false, 0, &[]), 0).unwrap();
    here.send(&mut batch).unwrap();
    eventually("the lost answer", || counter(&nic, "faults.dropped") == 1);
    assert_eq!(region.load_u64(0).unwrap(), 5);
    assert_eq!(here.recv(&mut batch, Some(Duration::ZERO)).unwrap(), 0);
}

#[test]
fn what_cannot_be_had_is_said() {
    let first = SoftNic::with_udp(config(0)).unwrap();
    let error = SoftNic::with_udp(config(first.describe_device().endpoint.port)).err().unwrap();
    assert!(error.to_string().contains("in use"), "{error}");
    let region = region();
    assert!(first.deregister(1).is_err());
    assert!(first.destroy_queue_pair(1).is_err());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let spec = dta_proto::store::StoreSpec {
        id: 1,
        name: "s".into(),
        kind: dta_proto::store::StoreKind::KeyIncrement { slots: 512, redundancy: 1, replicas: 1 },
    };
    let header = dta_memory::region::RegionHeader::new(spec);
    drop(Region::open_or_create(&path, &header, RegionOptions::default()).unwrap());
    let read_only = Arc::new(Region::open_read_only(&path).unwrap());
    assert!(first.register_region(read_only, Access::WRITE).unwrap_err().to_string().contains("reading"));
    drop(region);
}

/// Runs `test` in a thread and a network namespace of its own, with the two ends of a veth pair,
/// `near` and `far`.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let result = std::thread::spawn(|| {
        enter_namespace();
        for step in ["link add near type veth peer name far", "link set near up", "link set far up"] {
            let status = std::process::Command::new("ip").args(step.split(' ')).status();
            assert!(status.expect("iproute2 is installed").success(), "ip {step}");
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
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        .expect("root may make namespaces");
}

/// Waits until the Ethernet address of a NIC is known. The kernel does not have the NIC's address, so the NIC has answered.
fn resolve_nic(link: &mut EthernetLink, nic: IpAddr) {
    let mut batch = PacketBatch::default();
    link.add_neighbour(nic, None);
    let end = Instant::now() + Duration::from_secs(60);
    while !link.resolve_neighbours().unwrap() || link.silent_neighbours().count() > 0 {
        assert!(Instant::now() < end, "the NIC answers");
        link.recv(&mut batch, Some(Duration::from_millis(10))).unwrap();
    }
}

/// Receives this many frames.
fn receive_frames(link: &mut EthernetLink, count: usize) -> Vec<Vec<u8>> {
    let (mut batch, mut frames) = (PacketBatch::default(), Vec::new());
    let end = Instant::now() + Duration::from_secs(60);
    while frames.len() < count {
        assert!(Instant::now() < end, "{} of {count} frames came", frames.len());
        link.recv(&mut batch, Some(Duration::from_millis(100))).unwrap();
        frames.extend((0..batch.len()).map(|index| batch.ethernet_frame(index).unwrap().to_vec()));
    }
    frames
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn raw_frames_carry_ipv6_neighbour_discovery_and_answers() {
    in_namespace(|| {
        let [here, there] = ["fd00::1", "fd00::2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let nic = SoftNic::with_wire(
            SoftNicConfig::new(SocketAddr::new(there, 4791)),
            &"packet:far".parse().unwrap(),
        )
        .unwrap();
        let mut link = EthernetLink::open(&PacketConfig::new("near", [4791]), here).unwrap();
        let mut batch = PacketBatch::default();
        resolve_nic(&mut link, there);
        let region = region();
        let access = Access { remote_write: true, remote_read: true, remote_atomic: true };
        let requester = Requester::open(&nic, &region, access, Transport::Rc, SocketAddr::new(here, 4791));
        let psn = requester.qp.expected_psn;
        region.store_u64(64, 7).unwrap();
        batch.clear();
        batch.push(&requester.packet(Opcode::RcWriteOnly, psn, true, 0, b"12345678"), 0).unwrap();
        batch.push(&requester.packet(Opcode::RcFetchAdd, psn + 1, false, 64, &[]), 0).unwrap();
        link.send(&mut batch).unwrap();
        let answers = receive_frames(&mut link, 2);
        let answers: Vec<_> =
            answers.iter().map(|answer| Received::parse_packet(&answer[ETHERNET_LEN..]).unwrap()).collect();
        assert_eq!(answers.iter().map(|a| a.addresses.source()).collect::<Vec<_>>(), [there, there]);
        assert_eq!(answers[1].roce.atomic_ack(), Some(7));
        assert_eq!(region.load_u64(64).unwrap(), 12);
        // Questions and answers for addresses are not counted; frames of the kernel's own IPv6 do not come.
        eventually("the counts", || {
            counter(&nic, "received") == 2
                && counter(&nic, "link.received") == 2
                && counter(&nic, "link.sent") == 2
        });
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn raw_frames_carry_requests_arp_and_answers() {
    in_namespace(|| {
        let (here, there) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2));
        let config = SoftNicConfig::new(SocketAddrV4::new(there, 4791));
        let nic = SoftNic::with_wire(config, &"packet:far".parse().unwrap()).unwrap();
        let mut link = EthernetLink::open(&PacketConfig::new("near", [4791]), here).unwrap();
        let mut batch = PacketBatch::default();
        resolve_nic(&mut link, there.into());
        let region = region();
        let access = Access { remote_write: true, remote_read: true, remote_atomic: true };
        let requester = Requester::open(&nic, &region, access, Transport::Rc, SocketAddrV4::new(here, 4791));
        let psn = requester.qp.expected_psn;
        region.store_u64(64, 7).unwrap();
        batch.clear();
        let mut damaged = requester.packet(Opcode::RcWriteOnly, psn, true, 0, b"damaged!");
        let at = damaged.len() - 8;
        damaged[at] ^= 1;
        batch.push(&damaged, 0).unwrap();
        batch.push(&requester.packet(Opcode::RcWriteOnly, psn, true, 0, b"12345678"), 0).unwrap();
        batch.push(&requester.packet(Opcode::RcFetchAdd, psn + 1, false, 64, &[]), 0).unwrap();
        link.send(&mut batch).unwrap();
        let answers = receive_frames(&mut link, 2);
        for (answer, opcode) in answers.iter().zip([Opcode::RcAck, Opcode::RcAtomicAck]) {
            let (ethernet, packet) = answer.split_at(ETHERNET_LEN);
            assert_eq!(ethernet[..6], link.interface().mac);
            assert_eq!(ethernet[6..12], nic.describe_device().endpoint.mac.0);
            assert!(has_valid_icrc(packet));
            assert_eq!(RocePacket::new_checked(&packet[28..]).unwrap().base_header().opcode, opcode);
        }
        assert_eq!(region.load_u64(64).unwrap(), 12);
        eventually("the counts", || counter(&nic, "dropped.icrc") == 1 && counter(&nic, "received") == 3);

        // The IPv4 header's checksum is wrong, in a field that the iCRC leaves out.
        batch.clear();
        let request = requester.packet(Opcode::RcWriteOnly, psn + 2, true, 0, b"12345678");
        let mut frame = nic.describe_device().endpoint.mac.0.to_vec();
        frame.extend_from_slice(&link.interface().mac);
        frame.extend_from_slice(&[8, 0]);
        frame.extend_from_slice(&request);
        frame[14 + 11] ^= 1;
        batch.push_frame(&frame, 0).unwrap();
        link.send(&mut batch).unwrap();
        eventually("the checksum", || counter(&nic, "dropped.ip_checksum") == 1);

        // A datagram in two fragments, of which only the first says where to; and a fragment of
        // somebody else's.
        batch.clear();
        let request = requester.packet(Opcode::RcWriteOnly, psn + 2, true, 0, b"12345678");
        for (byte, value, to) in [(6, 0x20, there), (7, 3, there), (7, 3, here)] {
            let mut fragment = request.clone();
            fragment[byte] = value;
            fragment[16..20].copy_from_slice(&to.octets());
            fragment[10..12].fill(0);
            let sum: u32 =
                fragment[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            fragment[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
            let mut frame = nic.describe_device().endpoint.mac.0.to_vec();
            frame.extend_from_slice(&link.interface().mac);
            frame.extend_from_slice(&[8, 0]);
            frame.extend_from_slice(&fragment);
            batch.push_frame(&frame, 0).unwrap();
        }
        link.send(&mut batch).unwrap();
        eventually("the fragments", || counter(&nic, "dropped.malformed.fragment") == 2);
        assert_eq!(counter(&nic, "received"), 6);
    });
}
