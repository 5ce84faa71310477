//! UDP links over loopback, without privileges.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use dta_link::udp::RUN_MAX;
use dta_link::{Link, LinkError, RunUse, UdpConfig, UdpLink};
use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::datagram::{self, UdpDatagram};
use dta_proto::wire::frame::{FrameRoute, WriteTemplate};
use dta_proto::wire::roce::{Psn, Transport, has_valid_icrc, icrc_ok_for_any_id, settle_icrc};

const SOON: Option<Duration> = Some(Duration::from_secs(60));

fn loopback(last: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), port)
}

fn roce(address: SocketAddrV4) -> UdpLink {
    UdpLink::open(&UdpConfig::for_roce_frames(address.into())).unwrap()
}

/// Receives until `count` packets have come.
fn collect(link: &mut UdpLink, count: usize) -> Vec<Vec<u8>> {
    let mut batch = PacketBatch::default();
    let mut all = Vec::new();
    while all.len() < count {
        assert_ne!(link.recv(&mut batch, SOON).unwrap(), 0, "only {} of {count} packets came", all.len());
        all.extend(batch.iter().map(<[u8]>::to_vec));
    }
    all
}

#[test]
fn packets_arrive_as_they_were_sent() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    let mut batch = PacketBatch::new(100);
    let mut sent = Vec::new();
    for length in 0..100 {
        let payload = vec![length as u8; length * 14];
        batch.push_datagram(a.local_addr(), b.local_addr(), &payload, 0).unwrap();
        sent.push(batch.packet(length).to_vec());
    }
    assert_eq!(a.send(&mut batch).unwrap(), 100);
    assert!(batch.is_empty());
    assert_eq!(collect(&mut b, 100), sent);

    let bytes: usize = sent.iter().map(Vec::len).sum();
    assert_eq!((a.link_counters().sent, a.link_counters().sent_bytes), (100, bytes as u64));
    assert_eq!((b.link_counters().received, b.link_counters().received_bytes), (100, bytes as u64));
    assert_eq!(b.link_counters().dropped_by_kernel, 0);
}

#[test]
fn each_source_port_has_its_socket_and_keeps_its_order() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    // Below those that the kernel assigns.
    let ports: [u16; 3] = [20_121, 20_122, 20_123];
    let mut batch = PacketBatch::new(64);
    for number in 0..60u8 {
        let source = loopback(3, ports[usize::from(number) % 3]);
        batch.push_datagram(source, b.local_addr(), &[number], 0).unwrap();
    }
    assert_eq!(a.send(&mut batch).unwrap(), 60);
    let packets = collect(&mut b, 60);
    for (which, port) in ports.iter().enumerate() {
        let got: Vec<u8> = packets
            .iter()
            .map(|packet| UdpDatagram::parse_exact(packet).unwrap())
            .filter(|datagram| datagram.source() == loopback(3, *port))
            .map(|datagram| datagram.payload()[0])
            .collect();
        assert_eq!(got, (0..20).map(|step| step * 3 + which as u8).collect::<Vec<_>>());
    }
}

#[test]
fn bound_to_all_addresses_it_knows_the_one_that_was_meant_and_answers_from_it() {
    let mut server = roce(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
    let port = server.local_addr().port();
    let mut client = roce(loopback(1, 0));
    let mut batch = PacketBatch::default();
    for last in 1..=5 {
        batch.push_datagram(client.local_addr(), loopback(last, port), &[last], 0).unwrap();
    }
    client.send(&mut batch).unwrap();
    let mut answers = PacketBatch::default();
    for packet in collect(&mut server, 5) {
        let question = UdpDatagram::parse_exact(&packet).unwrap();
        assert_eq!(question.destination(), loopback(question.payload()[0], port));
        answers.push_datagram(question.destination(), question.source(), question.payload(), 0).unwrap();
    }
    assert_eq!(server.send(&mut answers).unwrap(), 5);
    for packet in collect(&mut client, 5) {
        let answer = UdpDatagram::parse_exact(&packet).unwrap();
        assert_eq!(answer.source(), loopback(answer.payload()[0], port));
    }
}

#[test]
fn a_datagram_longer_than_a_slot_is_counted_and_the_others_are_kept() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    let mut long = PacketBatch::with_packet_capacity(8, 9000);
    for length in [4, 5000, 8, 5001, 12] {
        long.push_datagram(a.local_addr(), b.local_addr(), &vec![7; length], 0).unwrap();
    }
    assert_eq!(a.send(&mut long).unwrap(), 5);
    let lengths: Vec<usize> =
        collect(&mut b, 3).iter().map(|packet| packet.len() - datagram::HEADER_LEN).collect();
    assert_eq!(lengths, [4, 8, 12]);
    assert_eq!(b.link_counters().dropped_too_long, 2);
    assert_eq!(b.link_counters().received, 3);
}

#[test]
fn what_the_kernel_drops_at_a_full_queue_is_counted_exactly() {
    let config = UdpConfig { receive_buffer: 4096, ..UdpConfig::for_roce_frames(loopback(1, 0).into()) };
    let mut b = UdpLink::open(&config).unwrap();
    assert!(b.receive_buffer() < 64 << 10);
    let mut a = roce(loopback(2, 0));
    let mut batch = PacketBatch::new(64);
    for _ in 0..16 {
        while !batch.is_full() {
            batch.push_datagram(a.local_addr(), b.local_addr(), &[1; 500], 0).unwrap();
        }
        assert_eq!(a.send(&mut batch).unwrap(), 64);
    }
    while b.recv(&mut batch, Some(Duration::from_millis(500))).unwrap() > 0 {}
    let counters = b.link_counters();
    assert!(counters.dropped_by_kernel > 900, "{counters:?}");
    assert_eq!(counters.received + counters.dropped_by_kernel, 1024);
}

#[test]
fn what_is_not_a_udp_packet_is_counted_and_the_others_leave() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    let mut batch = PacketBatch::default();
    batch.push(&[0; 10], 0).unwrap();
    batch.push_datagram(a.local_addr(), b.local_addr(), &[1], 0).unwrap();
    batch.push(&[0x60; 100], 0).unwrap();
    assert_eq!(a.send(&mut batch).unwrap(), 1);
    assert_eq!(a.link_counters().unsent_malformed, 2);
    assert_eq!(collect(&mut b, 1).len(), 1);
}

#[test]
fn a_wait_ends_after_its_time() {
    let mut link = roce(loopback(1, 0));
    let mut batch = PacketBatch::default();
    assert_eq!(link.recv(&mut batch, Some(Duration::ZERO)).unwrap(), 0);
    let start = std::time::Instant::now();
    assert_eq!(link.recv(&mut batch, Some(Duration::from_millis(30))).unwrap(), 0);
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn errors_say_what_to_do() {
    let message = |config: UdpConfig| UdpLink::open(&config).err().unwrap().to_string();
    let held = UdpSocket::bind(loopback(1, 0)).unwrap();
    let address = held.local_addr().unwrap();
    let text = message(UdpConfig::for_roce_frames(address));
    assert!(text.contains(&format!("UDP port {} of 127.0.0.1 is in use", address.port())), "{text}");
    assert!(text.contains("choose another port"), "{text}");

    let text = message(UdpConfig::for_roce_frames("192.0.2.1:4791".parse().unwrap()));
    assert!(text.contains("192.0.2.1 is not an address of this host"), "{text}");
    let text = message(UdpConfig::for_reports("[::1]:40040".parse().unwrap(), false));
    assert!(text.contains("over IPv4 only"), "{text}");
}

#[test]
fn a_source_that_cannot_be_bound_is_counted_and_tried_again_and_the_others_leave() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    // Below those that the kernel assigns, so that it is free again afterwards.
    let taken = loopback(2, 20_125);
    let held = UdpSocket::bind(taken).unwrap();
    assert!(matches!(a.open_source(taken), Err(LinkError::PortInUse(address)) if address == taken.into()));
    let mut batch = PacketBatch::default();
    batch.push_datagram(taken, b.local_addr(), &[1], 0).unwrap();
    batch.push_datagram(a.local_addr(), b.local_addr(), &[2], 0).unwrap();
    assert_eq!(a.send(&mut batch).unwrap(), 1);
    assert_eq!((a.link_counters().sent, a.link_counters().unsent_no_source), (1, 1));
    assert_eq!(collect(&mut b, 1)[0][datagram::HEADER_LEN..], [2]);
    drop(held);
    // Not at once: a bind per datagram would be expensive.
    std::thread::sleep(Duration::from_millis(1100));
    batch.push_datagram(taken, b.local_addr(), &[3], 0).unwrap();
    assert_eq!(a.send(&mut batch).unwrap(), 1);
    assert_eq!(collect(&mut b, 1)[0][datagram::HEADER_LEN..], [3]);
}

#[test]
fn sources_come_and_go_and_sockets_with_them() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let mut batch = PacketBatch::default();
    let mut sent = 0;
    // Addresses of 127/8, and a port below those that the kernel assigns, so that no other program has it.
    for n in 0..300u32 {
        let source = SocketAddrV4::new(Ipv4Addr::from(0x7f01_0000 + n), 20_124);
        batch.push_datagram(source, b.local_addr(), &[n as u8], 0).unwrap();
        sent += a.send(&mut batch).unwrap();
        assert_eq!(collect(&mut b, 1)[0][datagram::HEADER_LEN..], [n as u8]);
    }
    assert_eq!(sent, 300);
    // Other tests of this program open sockets too.
    assert!(open() < before + 150, "{before} descriptors became {}", open());
}

#[test]
fn a_datagram_goes_where_its_writer_said_and_a_changed_one_where_its_headers_say() {
    let mut a = roce(loopback(2, 0));
    let (mut b, mut c) = (roce(loopback(1, 0)), roce(loopback(1, 0)));
    let given = Addresses::new(a.local_addr(), b.local_addr());
    let header = datagram::encode_header(given.source, given.destination, 4);
    let mut batch = PacketBatch::default();
    batch.add_datagram(32, given, 7).copy_from_slice(&[&header[..], &[1; 4]].concat());
    let slot = batch.next_slot().unwrap();
    slot[..32].copy_from_slice(&[&header[..], &[2; 4]].concat());
    batch.commit_datagram(32, given, 8);
    batch.push_datagram(given.source, given.destination, &[3; 4], 9).unwrap();
    let copy = batch.packet(0).to_vec();
    batch.push(&copy, 10).unwrap();
    let addresses =
        |batch: &PacketBatch| (0..batch.len()).map(|index| batch.addresses(index)).collect::<Vec<_>>();
    assert_eq!(addresses(&batch), [Some(given), Some(given), Some(given), None]);
    assert_eq!((0..4).map(|index| batch.packet_cookie(index)).collect::<Vec<_>>(), [7, 8, 9, 10]);
    assert_eq!(a.send(&mut batch).unwrap(), 4);
    let payloads: Vec<_> = collect(&mut b, 4).iter().map(|packet| packet[datagram::HEADER_LEN]).collect();
    assert_eq!(payloads, [1, 2, 3, 1]);

    // Who changes a packet may change where it goes.
    batch.push_datagram(given.source, given.destination, &[4; 4], 0).unwrap();
    let elsewhere = datagram::encode_header(given.source, c.local_addr(), 4);
    batch.packet_mut(0)[..datagram::HEADER_LEN].copy_from_slice(&elsewhere);
    assert_eq!(batch.addresses(0), None);
    assert_eq!(a.send(&mut batch).unwrap(), 1);
    assert_eq!(collect(&mut c, 1)[0][datagram::HEADER_LEN..], [4; 4]);
}

#[test]
#[should_panic(expected = "shorter than its headers")]
fn a_datagram_has_its_headers() {
    let given = Addresses::new(loopback(2, 1), loopback(1, 1));
    PacketBatch::default().commit_datagram(27, given, 0);
}

#[test]
fn bytes_after_the_total_length_are_not_sent() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    let mut batch = PacketBatch::default();
    batch.push_datagram(a.local_addr(), b.local_addr(), &[1; 4], 0).unwrap();
    let mut padded = batch.packet(0).to_vec();
    padded.extend([0xee; 14]);
    batch.clear();
    batch.push(&padded, 0).unwrap();
    assert_eq!(a.send(&mut batch).unwrap(), 1);
    assert_eq!(collect(&mut b, 1), [&padded[..32]]);
}

#[test]
fn the_largest_datagram_fits_a_batch_made_for_it() {
    let mut a = roce(loopback(2, 0));
    let mut b = roce(loopback(1, 0));
    let mut batch = PacketBatch::with_packet_capacity(1, 65_535);
    assert!(batch.push_datagram(a.local_addr(), b.local_addr(), &[1; 65_508], 0).is_err());
    batch.push_datagram(a.local_addr(), b.local_addr(), &[1; 65_507], 0).unwrap();
    assert_eq!(a.send(&mut batch).unwrap(), 1);
    assert_eq!(b.recv(&mut batch, SOON).unwrap(), 1);
    assert_eq!(batch.udp_datagram(0).unwrap().payload(), [1; 65_507]);
}

fn reports(address: SocketAddrV4, runs: RunUse) -> UdpLink {
    UdpLink::open(&UdpConfig { runs, ..UdpConfig::for_reports(address.into(), false) }).unwrap()
}

const SEND: RunUse = RunUse { send: true, receive: false };
const RECEIVE: RunUse = RunUse { send: false, receive: true };

#[test]
fn links_use_the_runs_that_they_are_asked_to() {
    let link = reports(loopback(1, 0), RunUse::BOTH);
    // Every kernel since 5.0 can.
    assert_eq!(link.run_use(), RunUse::BOTH);
    assert_eq!(reports(loopback(1, 0), SEND).run_use(), SEND);
    assert_eq!(roce(loopback(1, 0)).run_use(), RunUse::NONE);
    for runs in [RunUse::BOTH, SEND, RECEIVE] {
        assert_eq!(frames(loopback(1, 0), runs).run_use(), runs);
    }
}

fn frames(address: SocketAddrV4, runs: RunUse) -> UdpLink {
    UdpLink::open(&UdpConfig { runs, ..UdpConfig::for_roce_frames(address.into()) }).unwrap()
}

/// Appends WRITEs of these lengths from one queue pair; `runs`: whether they may leave in runs.
fn writes(batch: &mut PacketBatch, from: SocketAddrV4, to: SocketAddrV4, runs: bool, lengths: &[usize]) {
    let route = FrameRoute {
        src_port: from.port(),
        dst_port: to.port(),
        ..FrameRoute::new(*from.ip(), *to.ip(), 0x11)
    };
    let addresses = Addresses { source: from, destination: to, runs };
    for (n, &length) in lengths.iter().enumerate() {
        let template = WriteTemplate::new(&route, Transport::Uc, 0x11, length).unwrap();
        let slot = batch.add_datagram(template.frame_len(), addresses, 0);
        template
            .write_frame(Psn::new(n as u32), false, 64 * n as u64, 7, &vec![n as u8; length], slot)
            .unwrap();
    }
}

/// As [`collect`], with the ids settled where they are not known.
fn settled(link: &mut UdpLink, count: usize) -> Vec<Vec<u8>> {
    let (mut batch, mut all) = (PacketBatch::default(), Vec::new());
    while all.len() < count {
        assert_ne!(link.recv(&mut batch, SOON).unwrap(), 0, "only {} of {count} packets came", all.len());
        for index in 0..batch.len() {
            assert!(batch.id_unknown(index) && icrc_ok_for_any_id(batch.packet(index)));
            settle_icrc(batch.packet_mut(index));
            all.push(batch.packet(index).to_vec());
        }
    }
    all
}

#[test]
fn frames_in_runs_have_the_icrc_of_their_number_and_arrive_as_they_were_made() {
    // More than a run can be, a shorter one at an end, lengths that take turns, and frames too long for a run.
    let mut lengths = [vec![16; 150], vec![64, 16, 16, 128, 128, 0, 0, 16], vec![1024; 5]].concat();
    lengths.extend((0..90).map(|n| [16, 20, 64][n / 7 % 3]));
    for receiver in [RunUse::BOTH, RECEIVE] {
        let (mut a, mut b) = (frames(loopback(2, 0), RunUse::BOTH), frames(loopback(1, 0), receiver));
        let (from, to) = (a.local_addr(), b.local_addr());
        let mut batch = PacketBatch::new(lengths.len());
        writes(&mut batch, from, to, true, &lengths);
        let sent: Vec<Vec<u8>> = batch.iter().map(<[u8]>::to_vec).collect();
        assert!(sent.iter().all(|packet| has_valid_icrc(packet)));
        assert_eq!(a.send(&mut batch).unwrap(), lengths.len());
        assert_eq!(settled(&mut b, lengths.len()), sent);
        let bytes = sent.iter().map(Vec::len).sum::<usize>() as u64;
        let (out, back) = (a.link_counters(), b.link_counters());
        assert_eq!((out.sent, out.sent_bytes, out.unsent_packets()), (lengths.len() as u64, bytes, 0));
        assert_eq!((back.received, back.received_bytes, back.dropped_by_kernel), (out.sent, bytes, 0));
        assert_eq!((a.run_use(), b.run_use()), (RunUse::BOTH, receiver), "nothing was refused");
    }
}

#[test]
fn a_frame_that_a_fault_has_changed_keeps_its_place_and_stays_wrong() {
    let (mut a, mut b) = (frames(loopback(2, 0), RunUse::BOTH), frames(loopback(1, 0), RECEIVE));
    let mut batch = PacketBatch::new(64);
    writes(&mut batch, a.local_addr(), b.local_addr(), true, &[16; 64]);
    batch.packet_mut(10)[60] ^= 1;
    assert_eq!(a.send(&mut batch).unwrap(), 64);
    let all = collect(&mut b, 64);
    // The PSNs count.
    assert_eq!(all.iter().map(|packet| packet[39]).collect::<Vec<u8>>(), (0..64).collect::<Vec<u8>>());
    let wrong: Vec<usize> = (0..64).filter(|n| !icrc_ok_for_any_id(&all[*n])).collect();
    assert_eq!(wrong, [10]);
}

#[test]
fn frames_leave_in_runs_only_where_their_writer_allows_it() {
    let (mut a, mut b) = (frames(loopback(2, 0), RunUse::BOTH), roce(loopback(1, 0)));
    let mut batch = PacketBatch::new(64);
    for (runs, other_ids) in [(false, 0), (true, 63)] {
        writes(&mut batch, a.local_addr(), b.local_addr(), runs, &[16; 64]);
        assert_eq!(a.send(&mut batch).unwrap(), 64);
        // The kernel cuts what a link without runs receives, and the link takes each id for 0.
        let all = collect(&mut b, 64);
        assert!(all.iter().all(|packet| icrc_ok_for_any_id(packet)));
        assert_eq!(all.iter().filter(|packet| !has_valid_icrc(packet)).count(), other_ids);
    }
}

#[test]
fn datagrams_stay_datagrams_in_their_order_whatever_runs_they_make() {
    // Runs of all lengths, a shorter one at an end, empty ones, and more than a run can be.
    let mut lengths = [vec![40; 150], vec![40, 32, 40, 40, 0, 0, 8, 4, 4, 60], vec![1400; 60]].concat();
    lengths.extend((0..90).map(|n| [36, 40, 52][n / 7 % 3]));
    for (sender, receiver) in
        [(RunUse::BOTH, RunUse::BOTH), (SEND, RunUse::NONE), (RunUse::NONE, RECEIVE), (SEND, RECEIVE)]
    {
        let (mut a, mut b) = (reports(loopback(2, 0), sender), reports(loopback(1, 0), receiver));
        let mut batch = PacketBatch::new(lengths.len());
        for (n, length) in lengths.iter().enumerate() {
            batch.push_datagram(a.local_addr(), b.local_addr(), &vec![n as u8; *length], 0).unwrap();
        }
        let sent: Vec<Vec<u8>> = batch.iter().map(<[u8]>::to_vec).collect();
        assert_eq!(a.send(&mut batch).unwrap(), lengths.len());
        assert_eq!(collect(&mut b, lengths.len()), sent, "{sender} to {receiver}");
        let bytes = sent.iter().map(Vec::len).sum::<usize>() as u64;
        let (from, to) = (a.link_counters(), b.link_counters());
        assert_eq!((from.sent, from.sent_bytes, from.unsent_packets()), (lengths.len() as u64, bytes, 0));
        assert_eq!((to.received, to.received_bytes, to.dropped_by_kernel), (from.sent, bytes, 0));
        assert_eq!((a.run_use(), b.run_use()), (sender, receiver), "nothing was refused");
    }
}

#[test]
fn a_run_that_is_longer_than_a_batch_is_handed_out_in_parts_without_waiting() {
    let (mut a, mut b) = (reports(loopback(2, 0), SEND), reports(loopback(1, 0), RECEIVE));
    let mut all = PacketBatch::new(200);
    for n in 0..200u8 {
        all.push_datagram(a.local_addr(), b.local_addr(), &[n; 12], 0).unwrap();
    }
    assert_eq!(a.send(&mut all).unwrap(), 200);
    let (mut small, mut got) = (PacketBatch::new(7), Vec::new());
    // The kernel may hand over each run later than it was sent.
    let mut waits = 0;
    while got.len() < 200 {
        if b.recv(&mut small, Some(Duration::ZERO)).unwrap() == 0 {
            waits += 1;
            assert_ne!(b.recv(&mut small, SOON).unwrap(), 0, "only {} of 200 came", got.len());
        }
        got.extend(small.iter().map(|packet| packet[datagram::HEADER_LEN]));
    }
    assert_eq!(got, (0..200).collect::<Vec<u8>>());
    assert!(waits <= 200_usize.div_ceil(RUN_MAX), "parts of a run were waited for: {waits} waits");
}

#[test]
fn each_datagram_of_a_run_that_is_too_long_is_counted() {
    let (mut a, mut b) = (reports(loopback(2, 0), SEND), reports(loopback(1, 0), RECEIVE));
    let mut long = PacketBatch::with_packet_capacity(16, 9000);
    for length in [8, 8, 5000, 5000, 5000, 4999, 12] {
        long.push_datagram(a.local_addr(), b.local_addr(), &vec![7; length], 0).unwrap();
    }
    assert_eq!(a.send(&mut long).unwrap(), 7);
    let lengths: Vec<_> =
        collect(&mut b, 3).iter().map(|packet| packet.len() - datagram::HEADER_LEN).collect();
    assert_eq!(lengths, [8, 8, 12]);
    assert_eq!((b.link_counters().dropped_too_long, b.link_counters().received), (4, 3));
}

#[test]
fn runs_to_many_places_come_to_each_and_say_where_they_were_meant_to() {
    let mut server = reports(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), RunUse::BOTH);
    let port = server.local_addr().port();
    let mut client = reports(loopback(9, 0), RunUse::BOTH);
    let mut batch = PacketBatch::new(90);
    for n in 0..90u8 {
        // Runs of ten, and one by one.
        let last = 1 + if n < 60 { n / 10 } else { n % 3 };
        batch.push_datagram(client.local_addr(), loopback(last, port), &[last, n], 0).unwrap();
    }
    assert_eq!(client.send(&mut batch).unwrap(), 90);
    let mut answers = PacketBatch::new(90);
    for packet in collect(&mut server, 90) {
        let question = UdpDatagram::parse_exact(&packet).unwrap();
        assert_eq!(question.destination(), loopback(question.payload()[0], port));
        assert_eq!(question.source(), client.local_addr());
        answers.push_datagram(question.destination(), question.source(), question.payload(), 0).unwrap();
    }
    // From the intended address, in runs.
    assert_eq!(server.send(&mut answers).unwrap(), 90);
    for (n, packet) in collect(&mut client, 90).iter().enumerate() {
        let answer = UdpDatagram::parse_exact(packet).unwrap();
        assert_eq!(answer.source(), loopback(answer.payload()[0], port));
        assert_eq!(usize::from(answer.payload()[1]), n);
    }
    assert_eq!(server.run_use(), RunUse::BOTH);
}

/// What the kernel counts when it drops runs, on which the accounting relies: a run is lost whole, and counts
/// as one.
#[test]
fn a_full_queue_drops_whole_runs_and_counts_each_as_one() {
    for (receiver, counts_datagrams) in [(RECEIVE, false), (RunUse::NONE, true)] {
        let config = UdpConfig {
            receive_buffer: 10_000,
            runs: receiver,
            ..UdpConfig::for_reports(loopback(1, 0).into(), false)
        };
        let (mut a, mut b) = (reports(loopback(2, 0), SEND), UdpLink::open(&config).unwrap());
        let (mut batch, mut number) = (PacketBatch::new(256), 0u32);
        let mut runs = Vec::new();
        // Each batch is one run.
        for n in 0..40 {
            let run = [RUN_MAX as u32, 30][n % 2];
            for _ in 0..run {
                let payload = [&number.to_be_bytes()[..], &[0; 96]].concat();
                batch.push_datagram(a.local_addr(), b.local_addr(), &payload, 0).unwrap();
                number += 1;
            }
            runs.push(number - run..number);
            assert_eq!(a.send(&mut batch).unwrap(), run as usize);
        }
        let mut got = Vec::new();
        let (mut missing, mut counted, mut lost) = (0, 0, Vec::new());
        let end = Instant::now() + Duration::from_secs(60);
        // The kernel may drop or hand over the last ones later than they were sent.
        while Instant::now() < end {
            while b.recv(&mut batch, Some(Duration::ZERO)).unwrap() > 0 {
                got.extend((0..batch.len()).map(|n| {
                    u32::from_be_bytes(batch.udp_datagram(n).unwrap().payload()[..4].try_into().unwrap())
                }));
            }
            missing = u64::from(number) - got.len() as u64;
            counted = b.link_counters().dropped_by_kernel;
            lost = runs.iter().filter(|run| got.binary_search(&run.start).is_err()).collect();
            let expected = if counts_datagrams { missing } else { lost.len() as u64 };
            if counted >= expected {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(got.is_sorted(), "in their order");
        if counts_datagrams {
            assert!(counted > 1000);
            assert_eq!(counted, missing);
            continue;
        }
        assert!(lost.len() > 10, "{} runs lost", lost.len());
        assert_eq!(lost.iter().map(|run| u64::from(run.end - run.start)).sum::<u64>(), missing, "lost whole");
        assert_eq!(counted, lost.len() as u64, "a run counts as one");
        assert!(counted <= missing && missing <= counted * RUN_MAX as u64);
    }
}
