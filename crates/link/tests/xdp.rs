//! AF_XDP on veth pairs, in a network namespace per test.
//!
//! `cargo test -p dta-link --features xdp --test xdp -- --ignored`

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dta_link::fault::FaultInjector;
use dta_link::udp::Instruction;
use dta_link::xdp::Mode;
use dta_link::{
    EthernetLink, IntakeLink, IntakeOpener, Link, LinkError, PacketConfig, PacketLink, SocketKind, UdpConfig,
    UdpLink, WireLink, XdpConfig, XdpLink,
};
use dta_proto::batch::PacketBatch;
use dta_proto::wire::{checksum, datagram};

mod common;
use common::{SOON, at, frames, in_namespace, ip};

const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
/// In the network of `far`, and nobody's.
const PEER: [u8; 4] = [10, 9, 1, 9];
const FAR: [u8; 4] = [10, 9, 1, 2];
const PEER_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
const FAR_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn xdp(interface: &str, ports: &[u16], mode: Option<Mode>) -> XdpConfig {
    XdpConfig { mode, ..XdpConfig::new(interface, ports) }
}

/// Adds a frame from the peer to `far`.
fn add(batch: &mut PacketBatch, port: u16, payload: &[u8]) {
    batch.push_datagram(at(PEER, 9), at(FAR, port), payload, 0).unwrap();
    batch.set_ethernet(batch.len() - 1, &HEADER);
}

fn frame_of(port: u16, payload: &[u8]) -> Vec<u8> {
    [&HEADER[..], &datagram::encode_header(at(PEER, 9), at(FAR, port), payload.len()), payload].concat()
}

fn both_modes(test: fn(Mode)) {
    for mode in [Mode::Native, Mode::Generic] {
        in_namespace(move || {
            ip("address add 10.9.1.2/24 dev far");
            // The kernel would ask for it before it answers.
            ip("neighbour add 10.9.1.9 lladdr 02:00:00:00:00:01 dev far");
            test(mode);
        });
    }
}

/// What an interface reports about itself.
fn link_details(interface: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", interface]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until the interface has no XDP program. A process that another test is just starting may still hold what
/// keeps one there.
fn wait_without_program(interface: &str, mode: Mode) {
    let until = Instant::now() + Duration::from_secs(60);
    while link_details(interface).contains("xdp") {
        assert!(Instant::now() < until, "{mode}: {}", link_details(interface));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn our_ports_come_here_and_the_rest_reaches_the_kernel() {
    both_modes(|mode| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [4791])).unwrap();
        let config = XdpConfig { address: Some(FAR.into()), ..xdp("far", &[4791, 40040], Some(mode)) };
        let mut far = XdpLink::open(&config).unwrap();
        assert_eq!((far.program_mode(), far.queue_count(), far.zero_copy()), (Some(mode), 1, false));
        let kernel = |port| {
            let socket = UdpSocket::bind((Ipv4Addr::from(FAR), port)).unwrap();
            socket.set_read_timeout(SOON).unwrap();
            socket
        };
        let (ours, other) = (kernel(4791), kernel(80));

        let mut batch = PacketBatch::new(16);
        let mut wanted = Vec::new();
        for (port, payload) in [(4791, 100), (80, 5), (40040, 3), (4790, 7), (4791, 1), (4791, 1472)] {
            add(&mut batch, port, &vec![7; payload]);
            if [4791, 40040].contains(&port) {
                wanted.push(batch.ethernet_frame(batch.len() - 1).unwrap().to_vec());
            }
        }
        // First fragments to a right and a wrong port, later ones to us and to somebody else, and TCP.
        for (port, byte, value, to, received) in [
            (4791, 6, 0x20, FAR, true),
            (80, 6, 0x20, FAR, false),
            (80, 7, 3, FAR, true),
            (4791, 7, 3, [10, 9, 1, 3], false),
            (4791, 9, 6, FAR, false),
        ] {
            batch.push_datagram(at(PEER, 9), at(to, port), &[7; 5], 0).unwrap();
            let index = batch.len() - 1;
            batch.packet_mut(index)[byte] = value;
            batch.set_ethernet(index, &HEADER);
            if received {
                wanted.push(batch.ethernet_frame(index).unwrap().to_vec());
            }
        }
        let count = batch.len();
        assert_eq!(near.send(&mut batch).unwrap(), count);
        assert_eq!(frames(&mut far, wanted.len()), wanted, "{mode}");
        assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
        let counters = far.link_counters();
        assert_eq!((counters.received, counters.dropped_by_kernel), (wanted.len() as u64, 0));
        let mut buffer = [0; 100];
        assert_eq!(other.recv(&mut buffer).unwrap(), 5, "the kernel has the other port");
        ours.set_nonblocking(true).unwrap();
        assert!(ours.recv(&mut buffer).is_err(), "and not ours");

        // ARP goes to both: the kernel answers it, and the link sees it.
        let mut arp =
            [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]].concat();
        arp.extend(PEER);
        arp.extend([0; 6]);
        arp.extend(FAR);
        batch.clear();
        batch.push_frame(&arp, 0).unwrap();
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        assert_eq!(frames(&mut far, 1), [arp]);
        let answer = frames(&mut near, 1);
        assert_eq!(answer[0][..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6]);

        // Without the link, the kernel gets everything again.
        drop(far);
        wait_without_program("far", mode);
        add(&mut batch, 4791, &[1; 9]);
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        ours.set_nonblocking(false).unwrap();
        assert_eq!(ours.recv(&mut buffer).unwrap(), 9);
    });
}

/// A frame over IPv6 to `far`, of a protocol whose message begins with `body`.
fn ipv6_frame(protocol: u8, body: &[u8]) -> Vec<u8> {
    let [from, to] = [PEER_IPV6, FAR_IPV6].map(|ip| ip.octets());
    let fixed = [0x60, 0, 0, 0, 0, body.len() as u8, protocol, 64];
    [&HEADER[..12], &[0x86, 0xdd], &fixed, &from, &to, body].concat()
}

/// As [`frames`], without those of the kernel at the other end, which looks for neighbours over IPv6, too.
fn frames_of_peer(link: &mut XdpLink, count: usize) -> Vec<Vec<u8>> {
    let is_of_peer = |frame: &Vec<u8>| frame[12..14] == [8, 6] || frame[22..38] == PEER_IPV6.octets();
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(frames(link, 1).into_iter().filter(is_of_peer));
    }
    all
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn frames_over_ipv6_come_to_a_link_with_an_address_of_it() {
    both_modes(|mode| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [4791])).unwrap();
        let udp = |port: u16| {
            ipv6_frame(17, &[&[0, 9][..], &port.to_be_bytes(), &[0, 40, 0, 0], &[7; 32]].concat())
        };
        let mut solicitation =
            ipv6_frame(58, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &FAR_IPV6.octets()].concat());
        solicitation[14 + 7] = 255;
        let fragment = ipv6_frame(
            44,
            &[&[17, 0, 0, 1, 0, 0, 0, 7][..], &[0, 9, 0x12, 0xb7, 0, 12, 0, 0], &[7; 4]].concat(),
        );
        let sent = [udp(4791), udp(80), fragment, ipv6_frame(58, &[128; 40]), udp(4791)];
        let mut batch = PacketBatch::new(16);
        for ipv6_address in [Some(FAR_IPV6), None] {
            let mut far =
                XdpLink::open(&XdpConfig { ipv6_address, ..xdp("far", &[4791], Some(mode)) }).unwrap();
            sent.iter().for_each(|frame| batch.push_frame(frame, 0).unwrap());
            assert_eq!(near.send(&mut batch).unwrap(), sent.len());
            let ours = if ipv6_address.is_some() { 2 } else { 0 };
            assert_eq!(frames_of_peer(&mut far, ours), vec![udp(4791); ours], "{mode}");
            // Discovery comes by another socket, as ARP does, which is received in any case.
            batch.push_frame(&solicitation, 0).unwrap();
            let arp = [&HEADER[..12], &[8, 6], &[0, 1, 8, 0, 6, 4, 0, 2], &[0; 20]].concat();
            batch.push_frame(&arp, 0).unwrap();
            assert_eq!(near.send(&mut batch).unwrap(), 2);
            let wanted = if ipv6_address.is_some() { vec![solicitation.clone(), arp] } else { vec![arp] };
            assert_eq!(frames_of_peer(&mut far, wanted.len()), wanted, "{mode}");
            drop(far);
            wait_without_program("far", mode);
        }
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn frames_there_and_back_go_round_the_rings_in_order() {
    both_modes(|mode| {
        // Few chunks, so that each is used many times; sending has 1,024.
        let few = |interface| XdpConfig { receive_buffer: 64 * 2048, ..xdp(interface, &[4791], Some(mode)) };
        let (mut near, mut far) = (XdpLink::open(&few("near")).unwrap(), XdpLink::open(&few("far")).unwrap());
        let (mut batch, mut back) = (PacketBatch::new(64), PacketBatch::new(64));
        let mut sent = 0u32;
        for burst in (1..=64).cycle().take(256) {
            let mut wanted = Vec::new();
            for _ in 0..burst {
                let payload = sent.to_be_bytes().repeat(1 + sent as usize % 367);
                add(&mut batch, 4791, &payload);
                wanted.push(batch.ethernet_frame(batch.len() - 1).unwrap().to_vec());
                sent += 1;
            }
            assert_eq!(near.send(&mut batch).unwrap(), burst);
            let got = frames(&mut far, burst);
            assert_eq!(got, wanted, "{mode}");
            for frame in &got {
                back.push_frame(frame, 0).unwrap();
            }
            assert_eq!(far.send(&mut back).unwrap(), burst);
            assert_eq!(frames(&mut near, burst), wanted);
        }
        for link in [near.link_counters(), far.link_counters()] {
            let total = u64::from(sent);
            assert_eq!(
                (link.sent, link.received, link.unsent_packets(), link.dropped_by_kernel),
                (total, total, 0, 0)
            );
            assert_eq!(link.sent_bytes, link.received_bytes);
        }
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn every_frame_is_received_or_counted_when_nobody_reads() {
    both_modes(|mode| {
        const FRAMES: u64 = 20_000;
        let mut near = XdpLink::open(&xdp("near", &[], None)).unwrap();
        assert_eq!(near.program_mode(), None, "who receives nothing loads no program");
        let config = XdpConfig { receive_buffer: 256 * 2048, ..xdp("far", &[4791], Some(mode)) };
        let mut far = XdpLink::open(&config).unwrap();
        let mut batch = PacketBatch::new(100);
        let mut received = 0;
        let mut book = vec![false; FRAMES as usize];
        let mut take = |far: &mut XdpLink, wait| {
            let mut batch = PacketBatch::default();
            while far.recv(&mut batch, Some(wait)).unwrap() > 0 {
                for index in 0..batch.len() {
                    let number = u64::from_be_bytes(batch.packet(index)[28..36].try_into().unwrap());
                    assert!(!std::mem::replace(&mut book[number as usize], true), "{number} came twice");
                    received += 1;
                }
            }
            received
        };
        for burst in 0..FRAMES / 100 {
            for number in burst * 100..(burst + 1) * 100 {
                add(&mut batch, 4791, &number.to_be_bytes());
            }
            near.send(&mut batch).unwrap();
            // It reads now and then, so that the rings are alternately full and empty.
            if burst % 40 == 39 {
                take(&mut far, Duration::ZERO);
            }
        }
        // What is in flight between the two ends arrives gradually.
        let (mut counters, until) = (far.link_counters(), Instant::now() + Duration::from_secs(60));
        while near.link_counters().sent
            != take(&mut far, Duration::from_millis(20)) + counters.dropped_by_kernel
        {
            counters = far.link_counters();
            assert!(Instant::now() < until, "{mode}: sent {:?}, received {counters:?}", near.link_counters());
        }
        let sent = near.link_counters();
        assert_eq!(sent.sent + sent.unsent_packets(), FRAMES, "{sent:?}");
        assert!(counters.dropped_by_kernel > 0, "{counters:?}");
        assert_eq!(far.link_counters().received + counters.dropped_by_kernel, sent.sent);
        // Nothing is left over: it continues as at first.
        add(&mut batch, 4791, &[5; 50]);
        let wanted = batch.ethernet_frame(0).unwrap().to_vec();
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        assert_eq!(frames(&mut far, 1), [wanted]);
    });
}

/// Whether the program takes a frame with this packet: UDP to the port, its header whole.
fn is_ours(packet: &[u8], port: u16) -> bool {
    let header = usize::from(packet[0] & 15) * 4;
    let later = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff != 0;
    packet[9] == 17
        && !later
        && header >= 20
        && packet.get(header..header + 8).is_some_and(|udp| udp[2..4] == port.to_be_bytes())
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn faults_are_seen_as_they_were_made() {
    both_modes(|mode| {
        let mut near = XdpLink::open(&xdp("near", &[], None)).unwrap();
        let mut far = XdpLink::open(&xdp("far", &[4791], Some(mode))).unwrap();
        let faults = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.3".parse().unwrap();
        let mut injector = FaultInjector::new(faults, 7, near.corruption_scope());
        let mut batch = PacketBatch::new(64);
        let mut wanted = Vec::new();
        let mut got = Vec::new();
        let mut send = |near: &mut XdpLink, far: &mut XdpLink, leaving: &mut PacketBatch| {
            let ours = (0..leaving.len()).filter(|index| is_ours(leaving.packet(*index), 4791));
            let before = wanted.len();
            wanted.extend(ours.map(|index| leaving.ethernet_frame(index).unwrap().to_vec()));
            let count = leaving.len();
            assert_eq!(near.send(leaving).unwrap(), count);
            got.extend(frames(far, wanted.len() - before));
        };
        for number in 0..2000u32 {
            add(&mut batch, 4791, &number.to_be_bytes().repeat(8));
            if batch.is_full() {
                let leaving = injector.apply_to_batch(&mut batch, Instant::now(), |_, _, _| ());
                send(&mut near, &mut far, leaving);
            }
        }
        send(&mut near, &mut far, injector.flush_held_frames(|_, _, _| ()));
        let counts = injector.fault_counts();
        assert!(counts.corrupted > 300 && counts.dropped > 100, "{counts:?}");
        // A corrupted total length cuts the packet off as padding is, or does nothing: compared up to there.
        assert_eq!(got.len(), wanted.len());
        for (got, wanted) in got.iter().zip(&wanted) {
            assert_eq!(got, &wanted[..got.len()], "{mode}");
        }
        let same = got.iter().zip(&wanted).filter(|(got, wanted)| got == wanted).count();
        assert!(same * 10 > wanted.len() * 9, "{same} of {}", wanted.len());
        assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
        assert_eq!(far.link_counters().dropped_by_kernel, 0);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn short_frames_and_frames_with_a_vlan_tag_are_left_to_the_kernel() {
    both_modes(|mode| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
        let mut far = XdpLink::open(&xdp("far", &[4791], Some(mode))).unwrap();
        let whole = frame_of(4791, &[3; 32]);
        let mut batch = PacketBatch::new(128);
        // Cut off at each byte: the UDP header has to be there.
        for len in 15..=whole.len() {
            batch.push_frame(&whole[..len], 0).unwrap();
        }
        let expected: Vec<_> = (42..=whole.len()).map(|len| whole[..len].to_vec()).collect();
        let tagged = |id: u16| [&whole[..12], &[0x81, 0], &id.to_be_bytes(), &whole[12..]].concat();
        let twice = [&tagged(5)[..16], &tagged(6)[12..]].concat();
        for frame in [tagged(5), tagged(0xe005), tagged(0xe000), twice] {
            batch.push_frame(&frame, 0).unwrap();
        }
        let count = batch.len();
        assert_eq!(near.send(&mut batch).unwrap(), count);
        assert_eq!(frames(&mut far, expected.len()), expected, "{mode}");
        assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);

        // Padding is cut off, and a packet that is longer than a slot of the batch is counted.
        batch.clear();
        let mut padded = frame_of(4791, &[4; 4]);
        padded.resize(60, 0xee);
        batch.push_frame(&whole, 0).unwrap();
        batch.push_frame(&padded, 0).unwrap();
        assert_eq!(near.send(&mut batch).unwrap(), 2);
        let mut short = PacketBatch::with_packet_capacity(4, 40);
        while far.recv(&mut short, SOON).unwrap() == 0 {}
        assert_eq!((short.len(), short.ethernet_frame(0).unwrap()), (1, &frame_of(4791, &[4; 4])[..]));
        // As many as fit with headroom in a multiple of 64 bytes: 48.
        assert_eq!((short.packet_capacity(), far.link_counters().dropped_too_long), (48, 1));
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn the_longest_packets_come_and_go_and_longer_ones_are_counted() {
    // The driver of veth pairs runs programs on packets of up to 3,498 bytes or so: the longest of all in
    // generic mode alone.
    for (mtu, mode) in
        [(1500, Mode::Native), (1778, Mode::Generic), (1779, Mode::Generic), (3826, Mode::Generic)]
    {
        in_namespace(move || {
            ip(&format!("link set near mtu {mtu}"));
            ip(&format!("link set far mtu {mtu}"));
            let mut near = XdpLink::open(&xdp("near", &[], None)).unwrap();
            let mut far = XdpLink::open(&xdp("far", &[4791], Some(mode))).unwrap();
            let mut batch = PacketBatch::with_packet_capacity(8, 4096);
            let longest = vec![6; mtu - 28];
            for _ in 0..3 {
                add(&mut batch, 4791, &longest);
                add(&mut batch, 4791, &[&longest[..], &[6]].concat());
            }
            assert_eq!(near.send(&mut batch).unwrap(), 3);
            assert_eq!(near.link_counters().unsent_too_long, 3);
            let mut came = 0;
            while came < 3 {
                assert_ne!(far.recv(&mut batch, SOON).unwrap(), 0, "mtu {mtu}: {came} frames came");
                for index in 0..batch.len() {
                    assert_eq!(batch.ethernet_frame(index).unwrap(), frame_of(4791, &longest));
                }
                came += batch.len();
            }
        });
    }
    in_namespace(|| {
        ip("link set near mtu 9000");
        ip("link set far mtu 9000");
        let error = XdpLink::open(&xdp("far", &[4791], None)).err().unwrap();
        assert!(matches!(error, LinkError::XdpMtu { mtu: 9000, most: 3826, .. }), "{error}");
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair of four queues"]
fn each_queue_has_a_socket() {
    in_namespace(|| {
        ip("link delete near");
        ip("link add near numrxqueues 4 numtxqueues 4 type veth peer name far numrxqueues 4 numtxqueues 4");
        ip("link set near up");
        ip("link set far up");
        for mode in [Mode::Native, Mode::Generic] {
            let mut near = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
            let mut far = XdpLink::open(&xdp("far", &[4791], Some(mode))).unwrap();
            assert_eq!(far.queue_count(), 4);
            // The sending end spreads flows over its queues.
            let mut batch = PacketBatch::new(256);
            let mut wanted = Vec::new();
            for source in 0..256 {
                batch
                    .push_datagram(at(PEER, 1000 + source), at(FAR, 4791), &source.to_be_bytes(), 0)
                    .unwrap();
                batch.set_ethernet(usize::from(source), &HEADER);
                wanted.push(batch.ethernet_frame(usize::from(source)).unwrap().to_vec());
            }
            assert_eq!(near.send(&mut batch).unwrap(), 256);
            let mut got = frames(&mut far, 256);
            got.sort();
            wanted.sort();
            assert_eq!(got, wanted, "{mode}");
            // A full batch does not keep it at one queue: it would give one queue's frames after the other's.
            for source in 0..256u16 {
                batch
                    .push_datagram(at(PEER, 1000 + source), at(FAR, 4791), &source.to_be_bytes(), 0)
                    .unwrap();
                batch.set_ethernet(usize::from(source), &HEADER);
            }
            assert_eq!(near.send(&mut batch).unwrap(), 256);
            let mut one = PacketBatch::new(1);
            let order: Vec<_> = (0..256)
                .map(|_| {
                    assert_eq!(far.recv(&mut one, SOON).unwrap(), 1);
                    one.udp_datagram(0).unwrap().payload().to_vec()
                })
                .collect();
            let turns = order.windows(2).filter(|two| two[0] > two[1]).count();
            assert!(turns > 20, "{mode}: {turns} changes of queue: {order:?}");
            // Nor does a small one.
            for _ in 0..3 {
                add(&mut batch, 4791, &[1; 8]);
            }
            assert_eq!(near.send(&mut batch).unwrap(), 3);
            for _ in 0..3 {
                assert_eq!(far.recv(&mut one, SOON).unwrap(), 1);
            }
        }
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn an_interface_may_go_down_and_come_up_but_not_away() {
    both_modes(|mode| {
        let mut near = XdpLink::open(&xdp("near", &[], None)).unwrap();
        let mut far = XdpLink::open(&xdp("far", &[4791], Some(mode))).unwrap();
        let mut batch = PacketBatch::default();
        ip("link set near down");
        add(&mut batch, 4791, &[7; 20]);
        assert_eq!(near.send(&mut batch).unwrap(), 0);
        assert_eq!(near.link_counters().unsent_packets(), 1, "{:?}", near.link_counters());
        ip("link set near up");
        ip("link set far down");
        assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
        ip("link set far up");
        let until = Instant::now() + Duration::from_secs(60);
        while {
            batch.clear();
            add(&mut batch, 4791, &[7; 20]);
            near.send(&mut batch).unwrap();
            far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap() == 0
        } {
            assert!(Instant::now() < until, "{mode}: no frame comes after the interface is up again");
        }
        ip("link delete far");
        let until = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match far.recv(&mut batch, Some(Duration::from_millis(50))) {
                Ok(_) => {}
                Err(error) => break error,
            }
            assert!(Instant::now() < until, "{mode}: the link does not notice that its interface is gone");
        };
        assert!(matches!(&error, LinkError::NoInterface(name) if name == "far"), "{error}");
        // Sending counts, and does not hang.
        add(&mut batch, 4791, &[7; 20]);
        let before = near.link_counters();
        assert_eq!(near.send(&mut batch).unwrap(), 0);
        assert_eq!(near.link_counters().unsent_packets(), before.unsent_packets() + 1);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace, and gives privileges up in one thread"]
fn what_is_refused_says_what_to_do() {
    in_namespace(|| {
        let refused = |config: &XdpConfig| XdpLink::open(config).err().unwrap().to_string();
        let first = XdpLink::open(&xdp("far", &[4791], None)).unwrap();
        assert_eq!(first.program_mode(), Some(Mode::Native), "in the driver where that can");
        let error = refused(&xdp("far", &[40040], None));
        assert!(error.contains("already has an XDP program") && error.contains("bpftool"), "{error}");
        let error = refused(&xdp("far", &[], None));
        assert!(error.contains("queue 0 of far") && error.contains("ss --xdp"), "{error}");
        // A request for either gets the other, with the reason.
        let auto = WireLink::open(SocketKind::Auto, &PacketConfig::new("far", [4791]), None).unwrap();
        assert!(auto.describe().starts_with("AF_PACKET, because"), "{}", auto.describe());
        assert!(matches!(auto.fallback_reason(), Some(LinkError::XdpInUse(name)) if name == "far"));
        assert!(WireLink::open(SocketKind::Xdp, &PacketConfig::new("far", [4791]), None).is_err());
        drop((first, auto));
        let auto = WireLink::open(SocketKind::Auto, &PacketConfig::new("far", [4791]), None).unwrap();
        assert_eq!(auto.describe(), "AF_XDP, native mode, with a copy in the kernel, queues: 1");
        drop(auto);

        let error = refused(&xdp("elsewhere", &[4791], None));
        assert_eq!(error, "there is no interface elsewhere; `ip link` lists the existing ones");
        let error = refused(&xdp("far", &(0..65).collect::<Vec<_>>(), None));
        assert!(error.starts_with("65 UDP ports"), "{error}");

        use rustix::thread::CapabilitySet;
        let mut sets = rustix::thread::capabilities(None).unwrap();
        let all = sets.effective;
        for (without, named) in [
            // CAP_SYS_ADMIN stands for both.
            (CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN, "CAP_NET_ADMIN"),
            (CapabilitySet::BPF | CapabilitySet::SYS_ADMIN, "CAP_BPF"),
            (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        ] {
            sets.effective = all & !without;
            rustix::thread::set_capabilities(None, sets).unwrap();
            let error = refused(&xdp("far", &[4791], None));
            assert!(error.contains(named) && error.contains("setcap"), "without {named}: {error}");
        }
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn an_address_of_ones_own_speaks_arp_with_the_kernel() {
    in_namespace(|| {
        // The kernel has to ask for it, not know it.
        ip("neighbour delete 10.9.0.2 dev near");
        let own = [2, 0, 0, 0, 0, 0x42];
        let config = PacketConfig { mac: Some(own), ..PacketConfig::new("far", [4791]) };
        let mut far =
            EthernetLink::open_with_kind(SocketKind::Xdp, &config, Ipv4Addr::new(10, 9, 0, 2)).unwrap();
        assert!(far.wire_link().describe().starts_with("AF_XDP"));
        let mut near = UdpLink::open(&UdpConfig::for_roce_frames(at([10, 9, 0, 1], 4791).into())).unwrap();
        let (us, kernel) = (at([10, 9, 0, 2], 4791), at([10, 9, 0, 1], 4791));
        let mut batch = PacketBatch::new(16);
        far.add_neighbour(*kernel.ip(), None);
        let end = Instant::now() + Duration::from_secs(60);
        while !far.resolve_neighbours().unwrap() || far.silent_neighbours().count() > 0 {
            assert!(Instant::now() < end, "the kernel answers ARP");
            assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(20))).unwrap(), 0);
        }
        batch.push_datagram(us, kernel, &[2; 8], 0).unwrap();
        assert_eq!(far.send(&mut batch).unwrap(), 1);
        assert_eq!(near.recv(&mut batch, SOON).unwrap(), 1);
        assert_eq!(batch.udp_datagram(0).unwrap().payload(), [2; 8]);

        // And back: the kernel asks first, and sends once it was answered.
        let end = Instant::now() + Duration::from_secs(60);
        batch.clear();
        batch.push_datagram(kernel, us, &[3; 8], 0).unwrap();
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        while far.recv(&mut batch, Some(Duration::from_millis(20))).unwrap() == 0 {
            assert!(Instant::now() < end, "the kernel's question is answered");
        }
        assert_eq!(batch.udp_datagram(0).unwrap().payload(), [3; 8]);
        assert_eq!(batch.ethernet_frame(0).unwrap()[..12], [2, 0, 0, 0, 0, 0x42, 2, 0, 0, 0, 0, 1]);
        let counters = far.link_counters();
        assert_eq!(
            (counters.received, counters.sent, counters.unsent_packets()),
            (1, 1, 0),
            "ARP is not counted"
        );
        assert_eq!((counters.received_bytes, counters.sent_bytes), (36, 36));
    });
}

/// Run in a separate process by the test below.
#[test]
#[ignore = "needs root: part of another test, and passes at once by itself"]
fn holds_a_link() {
    let Some(mode) = std::env::var_os("DTA_TEST_HOLDS_A_LINK") else { return };
    let mode = if mode == "native" { Mode::Native } else { Mode::Generic };
    let link = XdpLink::open(&xdp("far", &[4791], Some(mode))).unwrap();
    println!("\nopen");
    loop {
        dta_link::wait_readable(&[link.as_fd()], None).unwrap();
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_killed_process_leaves_no_program() {
    both_modes(|mode| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holds_a_link", "--ignored", "--nocapture"])
            .env("DTA_TEST_HOLDS_A_LINK", mode.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = child.stdout.take().unwrap();
        while !said.contains("open") {
            let mut some = [0; 256];
            let count = out.read(&mut some).unwrap();
            assert_ne!(count, 0, "it ended: {said}");
            said.push_str(&String::from_utf8_lossy(&some[..count]));
        }
        assert!(link_details("far").contains("xdp"), "{}", link_details("far"));
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        wait_without_program("far", mode);
        let until = Instant::now() + Duration::from_secs(60);
        // And no socket: the queue can be had at once or a little later.
        let link = loop {
            match XdpLink::open(&xdp("far", &[4791], Some(mode))) {
                Ok(link) => break link,
                Err(error) => assert!(Instant::now() < until, "{mode}: {error}"),
            }
        };
        assert_eq!(link.program_mode(), Some(mode));
    });
}

/// Adds a frame from the peer with a datagram whose UDP checksum is right, after a change of its packet; IPv4's is made
/// right after that.
fn add_checked(batch: &mut PacketBatch, port: u16, payload: &[u8], change: impl FnOnce(&mut [u8])) {
    add(batch, port, payload);
    let packet = batch.packet_mut(batch.len() - 1);
    datagram::fill_udp_checksum(packet);
    change(packet);
    fill_ipv4_checksum(packet);
    batch.set_ethernet(batch.len() - 1, &HEADER);
}

/// Makes the checksum of an IPv4 header right.
fn fill_ipv4_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let header = usize::from(packet[0] & 15) * 4;
    let sum = checksum::fold_checksum(checksum::add(0, &packet[..header]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The same packet with an option that does nothing.
fn with_option(packet: &[u8]) -> Vec<u8> {
    let mut packet = [&packet[..20], &[1, 1, 1, 0], &packet[20..]].concat();
    packet[0] = 0x46;
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    fill_ipv4_checksum(&mut packet);
    packet
}

/// The payloads of so many datagrams, in the order of arrival.
fn payloads(link: &mut IntakeLink, count: usize) -> Vec<Vec<u8>> {
    let mut batch = PacketBatch::default();
    let mut all = Vec::new();
    while all.len() < count {
        assert_ne!(link.recv(&mut batch, SOON).unwrap(), 0, "only {} of {count} datagrams came", all.len());
        all.extend((0..batch.len()).map(|index| {
            let datagram = batch.udp_datagram(index).unwrap();
            assert_eq!(datagram.source().ip(), &Ipv4Addr::from(PEER));
            datagram.payload().to_vec()
        }));
    }
    assert_eq!(link.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
    all
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn datagrams_come_past_the_kernel_or_through_it_and_none_twice() {
    both_modes(|mode| {
        ip("address add 10.9.2.2/24 dev far");
        let mut near = PacketLink::open(&PacketConfig::new("near", [9])).unwrap();
        let mut interfaces = IntakeOpener::with_mode(mode);
        let mut reports = interfaces.open("far", 40040, false).unwrap();
        let mut flows = interfaces.open("far", 2055, false).unwrap();
        assert_eq!(interfaces.descriptions().count(), 1);
        assert_eq!(reports.describe_address(), "xdp:far:40040");
        let other = UdpSocket::bind((Ipv4Addr::from(FAR), 80)).unwrap();
        other.set_read_timeout(SOON).unwrap();

        let mut batch = PacketBatch::new(32);
        // By AF_XDP: plain ones, to either address, and one whose sender left the checksum to its device.
        add_checked(&mut batch, 40040, &[1], |_| ());
        add(&mut batch, 40040, &[2; 900]);
        add_checked(&mut batch, 40040, &[3], |packet| packet[26..28].copy_from_slice(&[0x16, 0x37]));
        add_checked(&mut batch, 2055, &[4], |_| ());
        add_checked(&mut batch, 40040, &[5], |packet| {
            packet[18] = 2;
            // The sum of the addresses is larger by 0x0100.
            let sum = u16::from_be_bytes([packet[26], packet[27]]) - 0x0100;
            packet[26..28].copy_from_slice(&sum.to_be_bytes());
        });
        // To the kernel, which gives them to the socket: with a priority tag, and with an option.
        let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0xe0, 0], &frame[12..]].concat();
        batch.push_frame(&tagged(&frame_of(40040, &[6])), 0).unwrap();
        batch.push_frame(&[&HEADER[..], &with_option(&frame_of(40040, &[7])[14..])].concat(), 0).unwrap();
        // Nobody's: to another port, of which the kernel's socket has one, and from loopback.
        add(&mut batch, 80, &[8; 7]);
        add(&mut batch, 4791, &[9]);
        add_checked(&mut batch, 40040, &[10], |packet| {
            packet[12..16].copy_from_slice(&[127, 0, 0, 1]);
            packet[26..28].fill(0);
        });
        // Damaged: the checksum of UDP, that of IPv4, and a length of UDP beyond the packet.
        add_checked(&mut batch, 40040, &[11; 2], |packet| packet[28] ^= 1);
        add(&mut batch, 40040, &[12]);
        batch.packet_mut(batch.len() - 1)[10] ^= 1;
        add_checked(&mut batch, 40040, &[13], |packet| packet[25] = 200);
        let count = batch.len();
        assert_eq!(near.send(&mut batch).unwrap(), count);

        let mut got = payloads(&mut reports, 6);
        got.sort();
        assert_eq!(got, [vec![1], vec![2; 900], vec![3], vec![5], vec![6], vec![7]], "{mode}");
        assert_eq!(payloads(&mut flows, 1), [[4]]);
        let mut buffer = [0; 100];
        assert_eq!(other.recv(&mut buffer).unwrap(), 7);
        let counters = reports.link_counters();
        assert_eq!((counters.received, counters.xdp_received), (6, 4), "{mode}: {counters:?}");
        assert_eq!((counters.xdp_checksum, counters.xdp_malformed, counters.dropped_by_kernel), (1, 2, 1));
        let counters = flows.link_counters();
        assert_eq!((counters.received, counters.xdp_received, counters.dropped_by_kernel), (1, 1, 0));

        // A fragmented datagram comes whole, by the socket.
        let whole = frame_of(40040, &[14; 24])[14..].to_vec();
        let fragment = |from: usize, to: usize, more: u8| {
            let mut packet = [&whole[..20], &whole[20 + from..20 + to]].concat();
            let len = packet.len() as u16;
            packet[2..4].copy_from_slice(&len.to_be_bytes());
            packet[5] = 9;
            (packet[6], packet[7]) = (more, (from / 8) as u8);
            fill_ipv4_checksum(&mut packet);
            [&HEADER[..], &packet].concat()
        };
        batch.push_frame(&fragment(0, 16, 0x20), 0).unwrap();
        batch.push_frame(&fragment(16, 32, 0), 0).unwrap();
        assert_eq!(near.send(&mut batch).unwrap(), 2);
        assert_eq!(payloads(&mut reports, 1), [[14; 24]]);

        // An answer leaves as from a socket, and the kernel knows the way.
        batch.push_datagram(at(FAR, 40040), at(PEER, 9), &[15], 0).unwrap();
        assert_eq!(reports.send(&mut batch).unwrap(), 1);
        let answer = frames(&mut near, 1);
        assert_eq!(answer[0][..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        assert_eq!((&answer[0][34..38], &answer[0][42..43]), (&[0x9c, 0x68, 0, 9][..], &[15][..]));

        // Without the links, nothing is left at the interface.
        drop((reports, flows, interfaces));
        wait_without_program("far", mode);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair of four queues"]
fn queues_are_dealt_out_to_threads_and_each_flow_stays_in_order() {
    in_namespace(|| {
        ip("link delete near");
        ip("link add near numrxqueues 4 numtxqueues 4 type veth peer name far numrxqueues 4 numtxqueues 4");
        ip("link set near address 02:00:00:00:00:01");
        ip("link set far address 02:00:00:00:00:02");
        ip("link set near up");
        ip("link set far up");
        ip("address add 10.9.1.2/24 dev far");
        for mode in [Mode::Native, Mode::Generic] {
            let mut near = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
            let mut interfaces = IntakeOpener::with_mode(mode);
            let error = interfaces.open_group("far", 40040, false, 5, &ANY_SOCKET).err().unwrap();
            assert!(matches!(error, LinkError::TooFewQueues { queues: 4, threads: 5, .. }), "{error}");
            assert!(error.to_string().contains("ethtool -L far combined 5"), "{error}");
            // A process that another test is starting may still have the sockets of that attempt.
            let until = Instant::now() + Duration::from_secs(60);
            let mut links = loop {
                match interfaces.open_group("far", 40040, false, 2, &ANY_SOCKET) {
                    Err(LinkError::PortInUse(_)) if Instant::now() < until => std::thread::yield_now(),
                    opened => break opened.unwrap(),
                }
            };
            assert_eq!(links[0].describe_address(), links[1].describe_address());
            let (flows, rounds) = (64u16, 20u8);
            let mut batch = PacketBatch::new(usize::from(flows));
            let mut received = PacketBatch::default();
            let mut next = vec![0; usize::from(flows)];
            let mut of_link = [0u64; 2];
            for round in 0..rounds {
                for flow in 0..flows {
                    batch.push_datagram(at(PEER, 1000 + flow), at(FAR, 40040), &[round], 0).unwrap();
                    batch.set_ethernet(usize::from(flow), &HEADER);
                }
                assert_eq!(near.send(&mut batch).unwrap(), usize::from(flows));
                let until = Instant::now() + Duration::from_secs(60);
                while of_link.iter().sum::<u64>() < u64::from(flows) * (u64::from(round) + 1) {
                    assert!(Instant::now() < until, "{mode}: {of_link:?}");
                    for (count, link) in of_link.iter_mut().zip(&mut links) {
                        *count += link.recv(&mut received, Some(Duration::from_millis(1))).unwrap() as u64;
                        for datagram in (0..received.len()).filter_map(|index| received.udp_datagram(index)) {
                            let flow = usize::from(datagram.source().port() - 1000);
                            assert_eq!(datagram.payload(), [next[flow]], "{mode}: flow {flow}");
                            next[flow] += 1;
                        }
                    }
                }
            }
            // The sending end spreads flows over its queues.
            assert!(of_link.iter().all(|count| *count > 0), "{mode}: {of_link:?}");
            for (count, link) in of_link.iter().zip(&links) {
                let counters = link.link_counters();
                assert_eq!((counters.received, counters.xdp_received), (*count, *count), "{mode}");
                assert_eq!(counters.dropped_by_kernel, 0, "{mode}");
            }
            drop((links, interfaces));
            wait_without_program("far", mode);
        }
    });
}

/// The kernel's part of a group: everything to the first socket.
const ANY_SOCKET: [Instruction; 3] =
    [Instruction::load_byte(0), Instruction::modulo(1), Instruction::choose_socket()];

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_listener_that_nobody_reads_counts_what_it_loses_and_then_goes_on() {
    both_modes(|mode| {
        const DATAGRAMS: u64 = 20_000;
        let mut near = XdpLink::open(&xdp("near", &[], None)).unwrap();
        let mut interfaces = IntakeOpener::with_mode(mode);
        let mut reports = interfaces.open("far", 40040, false).unwrap();
        let mut flows = interfaces.open("far", 2055, false).unwrap();
        let mut batch = PacketBatch::new(100);
        for number in 0..DATAGRAMS {
            add(&mut batch, 40040, &number.to_be_bytes());
            if batch.is_full() {
                near.send(&mut batch).unwrap();
            }
        }
        let sent = near.link_counters().sent;
        let (mut received, mut last) = (0, None);
        let until = Instant::now() + Duration::from_secs(60);
        while received + reports.link_counters().dropped_by_kernel < sent {
            assert!(Instant::now() < until, "{mode}: {received} of {sent}, {:?}", reports.link_counters());
            received += reports.recv(&mut batch, Some(Duration::from_millis(20))).unwrap() as u64;
            for datagram in (0..batch.len()).filter_map(|index| batch.udp_datagram(index)) {
                let number = u64::from_be_bytes(datagram.payload().try_into().unwrap());
                assert!(last.is_none_or(|last| last < number), "{mode}: {number} after {last:?}");
                last = Some(number);
            }
        }
        let counters = reports.link_counters();
        assert!(counters.xdp_no_free_frame > 0, "{mode}: {counters:?}");
        assert_eq!(counters.dropped_by_kernel, counters.xdp_no_free_frame + counters.xdp_ring_full);
        // The memory is the other listener's, too.
        add(&mut batch, 2055, &[5; 50]);
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        assert_eq!(payloads(&mut flows, 1), [[5; 50]]);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace, and gives privileges up in one thread"]
fn a_listener_that_is_refused_says_what_to_do() {
    in_namespace(|| {
        let refused = |interface: &str| {
            IntakeOpener::default().open(interface, 40040, false).err().unwrap().to_string()
        };
        let error = refused("elsewhere");
        assert_eq!(error, "there is no interface elsewhere; `ip link` lists the existing ones");
        let error = refused("far");
        assert!(error.contains("far has no IPv4 address") && error.contains("ip address add"), "{error}");
        ip("address add 10.9.1.2/24 dev far");
        let first = IntakeOpener::default().open("far", 40041, false).unwrap();
        let error = refused("far");
        assert!(error.contains("already has an XDP program") && error.contains("UDP address"), "{error}");
        // A port is taken on an interface, and free on another one.
        let mut near = IntakeOpener::default();
        let second = near.open("near", 40041, false).unwrap();
        let error = near.open("near", 40041, false).err().unwrap().to_string();
        assert!(error.contains("port 40041") && error.contains("in use"), "{error}");
        drop((first, second, near));

        use rustix::thread::CapabilitySet;
        let mut sets = rustix::thread::capabilities(None).unwrap();
        let all = sets.effective;
        for (without, named) in [
            (CapabilitySet::BPF | CapabilitySet::SYS_ADMIN, "CAP_BPF"),
            (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        ] {
            sets.effective = all & !without;
            rustix::thread::set_capabilities(None, sets).unwrap();
            let error = refused("far");
            assert!(error.contains(named) && error.contains("setcap"), "without {named}: {error}");
        }
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_listener_notices_that_its_interface_is_gone() {
    both_modes(|mode| {
        let mut interfaces = IntakeOpener::with_mode(mode);
        let mut reports = interfaces.open("far", 40040, false).unwrap();
        let mut batch = PacketBatch::default();
        ip("link set far down");
        assert_eq!(reports.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
        ip("link set far up");
        ip("link delete far");
        let until = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match reports.recv(&mut batch, Some(Duration::from_millis(50))) {
                Ok(_) => assert!(Instant::now() < until, "{mode}: the link does not notice it"),
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, LinkError::NoInterface(name) if name == "far"), "{error}");
    });
}
