//! What needs root: veth pairs and raw sockets, in a network namespace per test.
//!
//! `cargo test -p dta-link --test namespace -- --ignored`

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use dta_link::fault::FaultInjector;
use dta_link::netstat::{UdpStats, socket_drops};
use dta_link::packet::NetworkInterface;
use dta_link::{EthernetLink, Link, LinkError, PacketConfig, PacketLink, Scope, UdpConfig, UdpLink};
use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::frame::{FrameRoute, WriteTemplate};
use dta_proto::wire::roce::{Psn, Transport};
use dta_proto::wire::{AddressPair, datagram, udp};

mod common;
use common::{SOON, at, frames, in_namespace, ip};

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn roce_frames_really_leave_with_the_header_that_the_icrc_covers() {
    in_namespace(|| {
        let mut tap = PacketLink::open(&PacketConfig::new("far", [4791])).unwrap();
        let own = at([10, 9, 0, 1], 4791).into();
        // Frames to somebody who takes no runs leave alike.
        for config in [UdpConfig::for_roce_frames(own), UdpConfig::roce_in_runs(own)] {
            let mut link = UdpLink::open(&config).unwrap();
            let mut batch = PacketBatch::new(256);
            let ports = [0xc000 | 0x11, 0xc000 | 0x3fff, 4791];
            let payload = [0xa5; 44];
            // Enough of them that a counting id would show.
            while !batch.is_full() {
                let source = at([10, 9, 0, 1], ports[batch.len() % 3]);
                batch.push_datagram(source, at([10, 9, 0, 2], 4791), &payload, 0).unwrap();
            }
            assert_eq!(link.send(&mut batch).unwrap(), 256);
            let mut by_port = [0; 3];
            for frame in frames(&mut tap, 256) {
                let (ethernet, packet) = frame.split_at(14);
                assert_eq!(ethernet, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
                let port = u16::from_be_bytes([packet[20], packet[21]]);
                let which = ports.iter().position(|wanted| *wanted == port).expect("a source port asked for");
                by_port[which] += 1;
                // Exactly what the receiving side of a UDP link reconstructs: id 0, DF, no UDP checksum.
                let to = at([10, 9, 0, 2], 4791);
                let mut expected =
                    datagram::encode_header(at([10, 9, 0, 1], port), to, payload.len()).to_vec();
                expected.extend(payload);
                assert_eq!(packet, expected);
                assert_eq!(packet[4..8], [0, 0, 0x40, 0], "id 0, DF");
            }
            assert_eq!(by_port, [86, 85, 85]);
        }
    });
}

/// CRC-32 from its definition, bit by bit.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |r, _| (r >> 1) ^ if r & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

#[test]
#[ignore = "needs root, ethtool and tshark: makes a network namespace with a veth pair"]
fn frames_that_left_in_runs_have_the_icrc_that_covers_their_ids() {
    const FRAMES: usize = 10_000;
    in_namespace(|| {
        // The kernel cuts runs before the device and fills in the checksums, as before a wire.
        ethtool("-K near tx-udp-segmentation off tx-checksum-ip-generic off");
        let mut tap = PacketLink::open(&PacketConfig::new("far", [4791])).unwrap();
        let mut link = UdpLink::open(&UdpConfig::roce_in_runs(at([10, 9, 0, 1], 4791).into())).unwrap();
        let nic = at([10, 9, 0, 2], 4791);
        let mut batch = PacketBatch::new(250);
        let mut captured = Vec::new();
        let mut psns = [0u32; 2];
        while captured.len() < FRAMES {
            // Of two queue pairs, which have a source port each, in turns; at times of another length.
            while !batch.is_full() {
                let pair = batch.len() % 2;
                let route = FrameRoute::new([10, 9, 0, 1].into(), *nic.ip(), 0x11 + pair as u32);
                let length = if psns[pair] % 100 < 95 { 16 } else { 64 };
                let template = WriteTemplate::new(&route, Transport::Uc, 0x11 + pair as u32, length).unwrap();
                let addresses =
                    Addresses { destination: nic, ..Addresses::from_route(&route, true).unwrap() };
                let slot = batch.add_datagram(template.frame_len(), addresses, 0);
                let value = vec![psns[pair] as u8; length];
                template
                    .write_frame(Psn::new(psns[pair]), false, psns[pair].into(), 7, &value, slot)
                    .unwrap();
                psns[pair] += 1;
            }
            assert_eq!(link.send(&mut batch).unwrap(), 250);
            captured.extend(frames(&mut tap, 250));
        }
        assert_eq!(link.link_counters().sent, FRAMES as u64);

        // Ids and iCRC as tshark reads them. It does not check the iCRC: that is done here, from its definition.
        let mut pcap = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].map(u32::to_le_bytes).concat();
        for frame in &captured {
            pcap.extend([0, 0, frame.len() as u32, frame.len() as u32].map(u32::to_le_bytes).concat());
            pcap.extend(frame);
        }
        let file = std::env::temp_dir().join(format!("dta-link-runs-{}.pcap", std::process::id()));
        std::fs::write(&file, pcap).unwrap();
        let fields = ["ip.id", "ip.flags.df", "ip.checksum.status", "udp.checksum.status", "udp.srcport"];
        let fields = fields.into_iter().chain(["infiniband.bth.psn", "infiniband.invariant.crc"]);
        let output = Command::new("tshark")
            .args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields", "-r"])
            .arg(&file)
            .args(fields.flat_map(|field| ["-e", field]))
            .output()
            .expect("tshark is installed");
        std::fs::remove_file(&file).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.lines().count(), FRAMES);
        let (mut numbered, mut expected) = (0, [0u64; 2]);
        for (line, frame) in printed.lines().zip(&captured) {
            let number = |text: &str| match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                None => text.parse().unwrap(),
            };
            let values: Vec<u64> = line.split('\t').map(number).collect();
            let [id, df, ip, udp, port, psn, icrc] = values[..] else { panic!("{line}") };
            assert_eq!((df, ip, udp), (1, 1, 1), "DF, good checksums: {line}");
            let (covered, last) = frame[14..].split_last_chunk::<4>().unwrap();
            assert_eq!(icrc, u64::from(u32::from_be_bytes(*last)), "{line}");
            let masked = |at| [1, 8, 10, 11, 26, 27, 32].contains(&at);
            let ones = covered.iter().enumerate().map(|(at, byte)| if masked(at) { 0xff } else { *byte });
            assert_eq!(crc32([0xff; 8].into_iter().chain(ones)), u32::from_le_bytes(*last), "{line}");
            let pair = (port - 0xc011) as usize;
            assert_eq!(psn, expected[pair], "in order on each queue pair: {line}");
            expected[pair] += 1;
            assert!(id < 64);
            numbered += usize::from(id > 0);
        }
        assert!(numbered > FRAMES * 9 / 10, "only {numbered} frames left behind others of their run");
    });
}

fn ethtool(arguments: &str) {
    let status = Command::new("ethtool").args(arguments.split(' ')).status().expect("ethtool is installed");
    assert!(status.success(), "ethtool {arguments}");
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn raw_frames_come_through_a_veth_pair_filtered_by_port() {
    in_namespace(|| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [4791])).unwrap();
        let mut far = PacketLink::open(&PacketConfig::new("far", [4791, 40040])).unwrap();
        assert_eq!(near.interface().mac, [2, 0, 0, 0, 0, 1]);
        assert_eq!(near.interface().mtu, 1500);
        assert_eq!(near.interface().ipv4, Some(Ipv4Addr::new(10, 9, 0, 1)));
        assert_eq!(NetworkInterface::lookup_by_name("far").unwrap().ipv4, None);

        let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let mut batch = PacketBatch::new(16);
        let mut wanted = Vec::new();
        for (port, payload) in [(4791, 100), (80, 5), (40040, 3), (4790, 7), (4791, 1)] {
            batch.push_datagram(at([10, 9, 0, 1], 9), at([10, 9, 0, 2], port), &vec![7; payload], 0).unwrap();
            let index = batch.len() - 1;
            batch.set_ethernet(index, &ethernet);
            if [4791, 40040].contains(&port) {
                wanted.push(batch.ethernet_frame(index).unwrap().to_vec());
            }
        }
        // First fragments to a right and a wrong port, later ones, which have no ports, a TCP
        // segment, an ARP request, and a packet without Ethernet header.
        for (port, byte, value, received) in
            [(4791, 6, 0x20, true), (80, 6, 0x20, false), (80, 7, 3, true), (4791, 9, 6, false)]
        {
            batch.push_datagram(at([10, 9, 0, 1], 9), at([10, 9, 0, 2], port), &[7; 5], 0).unwrap();
            let index = batch.len() - 1;
            batch.packet_mut(index)[byte] = value;
            batch.set_ethernet(index, &ethernet);
            if received {
                wanted.push(batch.ethernet_frame(index).unwrap().to_vec());
            }
        }
        let mut arp = vec![0xff; 12];
        arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        arp.resize(60, 0);
        batch.push_frame(&arp, 0).unwrap();
        wanted.push(arp);
        batch.push(&[0x45; 40], 0).unwrap();

        assert_eq!(near.send(&mut batch).unwrap(), 10);
        assert_eq!(near.link_counters().unsent_malformed, 1);
        assert_eq!(frames(&mut far, 6), wanted);
        assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
        // What this host sends itself is not received.
        assert_eq!(near.recv(&mut batch, Some(Duration::ZERO)).unwrap(), 0);
        // Without ports, nothing is received.
        let mut deaf = PacketLink::open(&PacketConfig::new("far", [])).unwrap();
        batch.clear();
        batch.push_frame(&wanted[0], 0).unwrap();
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        assert_eq!(frames(&mut far, 1), wanted[..1]);
        assert_eq!(deaf.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn an_interface_may_go_down_and_come_up_but_not_away() {
    in_namespace(|| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [4791])).unwrap();
        let mut far = PacketLink::open(&PacketConfig::new("far", [4791])).unwrap();
        let mut batch = PacketBatch::default();
        let mut send = |batch: &mut PacketBatch| {
            batch.push_datagram(at([10, 9, 0, 1], 9), at([10, 9, 0, 2], 4791), &[7; 20], 0).unwrap();
            batch.set_ethernet(0, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
            near.send(batch).unwrap()
        };
        ip("link set far down");
        assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
        ip("link set far up");
        // The kernel may take a while to see that the other end has a carrier again.
        let until = Instant::now() + Duration::from_secs(60);
        while {
            send(&mut batch);
            far.recv(&mut batch, Some(Duration::from_millis(50))).unwrap() == 0
        } {
            assert!(Instant::now() < until, "no frame comes after the interface is up again");
        }
        ip("link delete far");
        let until = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match far.recv(&mut batch, Some(Duration::from_millis(50))) {
                Ok(received) => assert_eq!(received, 0),
                Err(error) => break error,
            }
            assert!(Instant::now() < until, "the link does not notice that its interface is gone");
        };
        assert!(matches!(&error, LinkError::NoInterface(name) if name == "far"), "{error}");
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn padding_after_a_short_packet_is_cut_off() {
    in_namespace(|| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
        let mut far = PacketLink::open(&PacketConfig::new("far", [4791])).unwrap();
        let mut batch = PacketBatch::new(1);
        batch.push_datagram(at([10, 9, 0, 1], 9), at([10, 9, 0, 2], 4791), &[7; 4], 0).unwrap();
        let packet = batch.packet(0).to_vec();
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend(&packet);
        frame.resize(60, 0xee);
        batch.clear();
        batch.push_frame(&frame, 0).unwrap();
        near.send(&mut batch).unwrap();
        assert_eq!(far.recv(&mut batch, SOON).unwrap(), 1);
        assert_eq!(batch.packet(0), packet);
        assert!(!batch.checksum_pending(0));
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_checksum_left_to_the_device_is_marked_as_pending() {
    in_namespace(|| {
        let mut far = PacketLink::open(&PacketConfig::new("far", [40040])).unwrap();
        let mut reports = UdpLink::open(&UdpConfig::for_reports(at([10, 9, 0, 1], 0).into(), false)).unwrap();
        let mut batch = PacketBatch::new(1);
        batch.push_datagram(reports.local_addr(), at([10, 9, 0, 2], 40040), &[7; 20], 0).unwrap();
        assert_eq!(reports.send(&mut batch).unwrap(), 1);
        assert_eq!(far.recv(&mut batch, SOON).unwrap(), 1);
        assert!(batch.checksum_pending(0));
        assert!(!datagram::udp_checksum_ok(batch.packet(0)), "a veth pair leaves the checksum to a device");

        // The same frame with its checksum filled in is not marked.
        let mut near = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
        datagram::fill_udp_checksum(batch.packet_mut(0));
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        assert_eq!(far.recv(&mut batch, SOON).unwrap(), 1);
        assert!(!batch.checksum_pending(0));
        assert!(datagram::udp_checksum_ok(batch.packet(0)));
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn what_the_kernel_drops_before_a_raw_link_is_counted_exactly() {
    in_namespace(|| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
        let config = PacketConfig { receive_buffer: 8192, ..PacketConfig::new("far", [4791]) };
        let mut far = PacketLink::open(&config).unwrap();
        let mut batch = PacketBatch::new(64);
        for _ in 0..16 {
            while !batch.is_full() {
                batch.push_datagram(at([10, 9, 0, 1], 9), at([10, 9, 0, 2], 4791), &[7; 500], 0).unwrap();
                batch.set_ethernet(batch.len() - 1, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
            }
            assert_eq!(near.send(&mut batch).unwrap(), 64);
        }
        let (start, mut counters) = (Instant::now(), far.link_counters());
        while far.recv(&mut batch, Some(Duration::from_millis(500))).unwrap() > 0
            || counters.received + counters.dropped_by_kernel < 1024
        {
            assert!(start.elapsed() < Duration::from_secs(60), "{counters:?}");
            counters = far.link_counters();
        }
        assert!(counters.dropped_by_kernel > 0, "{counters:?}");
        assert_eq!(counters.received + counters.dropped_by_kernel, 1024);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_raw_link_goes_round_its_ring_in_order() {
    in_namespace(|| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
        // 32 slots of 2,048 bytes: the minimum.
        let config = PacketConfig { receive_buffer: 1, ..PacketConfig::new("far", [4791]) };
        let mut far = PacketLink::open(&config).unwrap();
        assert_eq!(far.receive_buffer(), 65_536);
        let (mut sent, mut batch) = (0u32, PacketBatch::new(64));
        // Bursts of all sizes that the ring holds, each longer than the batches that they are taken by.
        for burst in (1..=32).chain([32, 1, 31]) {
            let mut wanted = Vec::new();
            for _ in 0..burst {
                let payload = sent.to_be_bytes().repeat(1 + sent as usize % 367);
                batch.push_datagram(at([10, 9, 0, 1], 9), at([10, 9, 0, 2], 4791), &payload, 0).unwrap();
                let index = batch.len() - 1;
                batch.set_ethernet(index, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
                wanted.push(batch.ethernet_frame(index).unwrap().to_vec());
                sent += 1;
            }
            assert_eq!(near.send(&mut batch).unwrap(), burst);
            // The kernel may hand frames over later than they are sent.
            let (mut got, mut few) = (Vec::new(), PacketBatch::new(5));
            while got.len() < wanted.len() {
                assert_ne!(far.recv(&mut few, SOON).unwrap(), 0, "{} of {burst} frames came", got.len());
                got.extend((0..few.len()).map(|index| few.ethernet_frame(index).unwrap().to_vec()));
            }
            assert_eq!(got, wanted);
            assert_eq!(far.recv(&mut few, Some(Duration::ZERO)).unwrap(), 0);
        }
        let counters = far.link_counters();
        assert_eq!((counters.received, counters.dropped_by_kernel), (u64::from(sent), 0));

        // One longer than a slot of the batch is counted, and the next one arrives.
        for payload in [1400, 8] {
            batch.push_datagram(at([10, 9, 0, 1], 9), at([10, 9, 0, 2], 4791), &vec![7; payload], 0).unwrap();
            batch.set_ethernet(batch.len() - 1, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        }
        assert_eq!(near.send(&mut batch).unwrap(), 2);
        let mut short = PacketBatch::with_packet_capacity(4, 100);
        // Without a frame if the long one has come alone.
        let came = (0..2).any(|_| far.recv(&mut short, SOON).unwrap() == 1);
        assert!(came);
        assert_eq!((short.packet(0).len(), far.link_counters().dropped_too_long), (36, 1));
    });
}

#[test]
#[ignore = "needs root: sends through a raw socket in a network namespace of its own"]
fn a_corrupted_report_is_dropped_and_counted_by_the_receiving_kernel() {
    in_namespace(|| {
        const FRAMES: u64 = 20_000;
        let mut reports = UdpLink::open(&UdpConfig::for_reports(at([127, 0, 0, 2], 0).into(), true)).unwrap();
        let mut translator =
            UdpLink::open(&UdpConfig::for_reports(at([127, 0, 0, 1], 40040).into(), false)).unwrap();
        assert_eq!(reports.corruption_scope(), Scope::Datagram);
        let mut injector = FaultInjector::new("corrupt=0.5".parse().unwrap(), 11, reports.corruption_scope());
        let before = UdpStats::read().unwrap();
        let mut batch = PacketBatch::new(64);
        let mut received = 0;
        let to = translator.local_addr();
        let mut receive = |batch: &mut PacketBatch, last: u64| {
            let mut count = 0;
            while translator.recv(batch, Some(Duration::ZERO)).unwrap() > 0 {
                count += batch.len() as u64;
                for packet in batch.iter() {
                    assert!(u64::from_be_bytes(packet[datagram::HEADER_LEN..].try_into().unwrap()) <= last);
                }
            }
            count
        };
        for number in 0..FRAMES {
            batch.push_datagram(reports.local_addr(), to, &number.to_be_bytes(), number).unwrap();
            if batch.is_full() || number + 1 == FRAMES {
                let leaving = injector.apply_to_batch(&mut batch, Instant::now(), |_, _, _| ());
                let count = leaving.len();
                assert_eq!(reports.send(leaving).unwrap(), count);
                received += receive(&mut batch, number);
                batch.clear();
            }
        }
        let counts = injector.fault_counts();
        assert!(counts.corrupted > FRAMES / 3);
        // The kernel may hand over the last ones later than they were sent.
        let end = Instant::now() + Duration::from_secs(60);
        let moved = loop {
            received += receive(&mut batch, FRAMES);
            let moved = UdpStats::read().unwrap().increase_since(&before);
            if received + moved.in_errors >= FRAMES || Instant::now() >= end {
                break moved;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(received, counts.passed, "what was not corrupted arrives");
        assert_eq!(moved.in_errors, counts.corrupted, "the kernel saw each corruption: {moved:?}");
        // Nearly all as checksum errors; a longer UDP length than the packet's is another kind of error.
        assert!(moved.in_csum_errors > counts.corrupted * 8 / 10, "{moved:?}");
        assert_eq!((moved.no_ports, moved.rcvbuf_errors), (0, 0), "{moved:?}");
        assert_eq!(
            Some(translator.link_counters().dropped_by_kernel),
            socket_drops(translator.local_addr()).unwrap(),
            "the socket's own count agrees with /proc/net/udp"
        );
    });
}

#[test]
#[ignore = "needs root: makes a network namespace, and gives its privileges up in one thread"]
fn without_net_raw_the_error_says_what_to_do() {
    in_namespace(|| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_RAW);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let text = |error: LinkError| error.to_string();
        let error = UdpLink::open(&UdpConfig::for_reports(at([127, 0, 0, 1], 0).into(), true))
            .err()
            .map(text)
            .unwrap();
        assert!(
            error.contains("corrupt faults on a UDP link with checksum") && error.contains("CAP_NET_RAW")
        );
        let error = PacketLink::open(&PacketConfig::new("near", [4791])).err().map(text).unwrap();
        assert!(error.contains("raw frames") && error.contains("CAP_NET_RAW"), "{error}");
        // RoCEv2 has no UDP checksum, so its corruption needs no privilege.
        let config = UdpConfig { corrupt: true, ..UdpConfig::for_roce_frames(at([127, 0, 0, 1], 0).into()) };
        assert!(UdpLink::open(&config).is_ok());
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn an_interface_that_is_not_there_is_named() {
    in_namespace(|| {
        let error = PacketLink::open(&PacketConfig::new("elsewhere", [4791])).err().unwrap();
        assert_eq!(error.to_string(), "there is no interface elsewhere; `ip link` lists the existing ones");
        let error = PacketLink::open(&PacketConfig::new("near", (0..65).collect::<Vec<_>>())).err().unwrap();
        assert_eq!(
            error.to_string(),
            "65 UDP ports are more than the 64 that a raw-frame link can listen to"
        );
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn an_address_of_ones_own_speaks_arp_with_the_kernel() {
    in_namespace(|| {
        // The kernel must ask for it, not know it.
        let status =
            Command::new("ip").args(["neighbour", "delete", "10.9.0.2", "dev", "near"]).status().unwrap();
        assert!(status.success());
        let mut far =
            EthernetLink::open(&PacketConfig::new("far", [4791]), Ipv4Addr::new(10, 9, 0, 2)).unwrap();
        let mut near = UdpLink::open(&UdpConfig::for_roce_frames(at([10, 9, 0, 1], 4791).into())).unwrap();
        let (us, kernel) = (at([10, 9, 0, 2], 4791), at([10, 9, 0, 1], 4791));
        let mut batch = PacketBatch::new(16);

        // To an unknown address, then to a silent one: counted, not sent.
        batch.push_datagram(us, kernel, &[1; 8], 0).unwrap();
        assert_eq!(far.send(&mut batch).unwrap(), 0);
        assert_eq!((far.link_counters().unsent_unreachable, far.link_counters().unsent_packets()), (1, 1));
        far.add_neighbour(Ipv4Addr::new(10, 9, 0, 99), None);
        assert!(!far.resolve_neighbours().unwrap());
        assert_eq!(far.silent_neighbours().collect::<Vec<_>>(), [Ipv4Addr::new(10, 9, 0, 99)]);

        // Under an Ethernet address of its own, too.
        let own = [2, 0, 0, 0, 0, 0x42];
        let config = PacketConfig { mac: Some(own), ..PacketConfig::new("far", [4791]) };
        let mut far = EthernetLink::open(&config, Ipv4Addr::new(10, 9, 0, 2)).unwrap();
        assert_eq!((far.mac_address(), far.interface().mac), (own, [2, 0, 0, 0, 0, 2]));
        far.add_neighbour(*kernel.ip(), None);
        let end = Instant::now() + Duration::from_secs(60);
        while !far.resolve_neighbours().unwrap() || far.silent_neighbours().count() > 0 {
            assert!(Instant::now() < end, "the kernel answers ARP");
            assert_eq!(far.recv(&mut batch, Some(Duration::from_millis(20))).unwrap(), 0);
        }
        batch.clear();
        batch.push_datagram(us, kernel, &[2; 8], 0).unwrap();
        assert_eq!(far.send(&mut batch).unwrap(), 1);
        assert_eq!(near.recv(&mut batch, SOON).unwrap(), 1);
        assert_eq!(batch.udp_datagram(0).unwrap().payload(), [2; 8]);

        // And back: the kernel asks first, and sends once it was answered.
        batch.clear();
        batch.push_datagram(kernel, us, &[3; 8], 0).unwrap();
        assert_eq!(near.send(&mut batch).unwrap(), 1);
        let end = Instant::now() + Duration::from_secs(60);
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

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn an_ipv6_address_of_ones_own_speaks_neighbour_discovery_with_the_kernel() {
    in_namespace(|| {
        ip("address add fd00::1/64 dev near nodad");
        let [us, kernel] = ["fd00::2", "fd00::1"].map(|ip| ip.parse::<Ipv6Addr>().unwrap());
        let near = UdpSocket::bind((kernel, 4791)).unwrap();
        near.set_read_timeout(SOON).unwrap();
        // Under an Ethernet address of its own: the interface takes neither that nor the group unless asked to.
        let config = PacketConfig { mac: Some([2, 0, 0, 0, 0, 0x42]), ..PacketConfig::new("far", [4791]) };
        let mut far = EthernetLink::open(&config, us).unwrap();
        let mut batch = PacketBatch::new(16);

        // The kernel asks first, and sends once it was answered; what waits for that it may drop.
        let end = Instant::now() + Duration::from_secs(60);
        let mut received = 0;
        while received == 0 {
            assert!(Instant::now() < end, "the kernel's question is answered");
            near.send_to(&[3; 8], (us, 4791)).unwrap();
            received = far.recv(&mut batch, Some(Duration::from_millis(20))).unwrap() as u64;
        }
        let packet = batch.packet(0);
        assert_eq!((packet[0] >> 4, &packet[48..]), (6, &[3; 8][..]));
        assert_eq!(batch.ethernet_frame(0).unwrap()[..6], [2, 0, 0, 0, 0, 0x42]);

        // And back: we ask, and the kernel answers.
        far.add_neighbour(kernel, None);
        let end = Instant::now() + Duration::from_secs(60);
        while !far.resolve_neighbours().unwrap() || far.silent_neighbours().count() > 0 {
            assert!(Instant::now() < end, "the kernel answers");
            // More of those that waited may come.
            received += far.recv(&mut batch, Some(Duration::from_millis(20))).unwrap() as u64;
        }
        let addresses = AddressPair::V6 { source: us, destination: kernel };
        let mut packet = [7; 48 + 8];
        datagram::write_header(&addresses, (9, 4791), 8, 0, 64, &mut packet[..48]);
        // Without a checksum the kernel takes no datagram over IPv6.
        let checksum = udp::compute_checksum(&addresses, 9, 4791, &[7; 8]);
        packet[46..48].copy_from_slice(&checksum.to_be_bytes());
        batch.clear();
        batch.push(&packet, 0).unwrap();
        assert_eq!(far.send(&mut batch).unwrap(), 1);
        let mut buffer = [0; 64];
        let (len, from) = near.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from.ip(), from.port()), (&[7; 8][..], us.into(), 9));
        let counters = far.link_counters();
        assert_eq!((counters.received, counters.sent, counters.ignored_ipv6), (received, 1, 0));
        let bytes = (counters.received_bytes, counters.sent_bytes);
        assert_eq!(bytes, (56 * received, 56), "discovery is not counted");
    });
}

fn tc(arguments: &str) {
    let ran = Command::new("tc").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(ran.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_priority_tag_is_removed_and_what_is_not_taken_is_counted() {
    in_namespace(|| {
        let mut near = PacketLink::open(&PacketConfig::new("near", [4791])).unwrap();
        let mut far = PacketLink::open(&PacketConfig::new("far", [])).unwrap();
        let packet = |mark: u8| {
            let (from, to) = (at([10, 9, 0, 2], 9), at([10, 9, 0, 1], 4791));
            [&datagram::encode_header(from, to, 32)[..], &[mark; 32]].concat()
        };
        let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        let untagged = |mark| [&macs[..], &[8, 0], &packet(mark)].concat();
        let tagged =
            |id: u16, mark| [&macs[..], &[0x81, 0], &id.to_be_bytes(), &[8, 0], &packet(mark)].concat();
        // A VLAN, one with a priority, a priority alone, and two tags; RoCEv1 and IPv6, and IPv6 to another port.
        let twice = [&tagged(5, 4)[..16], &tagged(6, 4)[12..]].concat();
        let roce_v1 = [&macs[..], &[0x89, 0x15], &[0; 60]].concat();
        let ipv6 = |port: u16| {
            let header = [&[0x60, 0, 0, 0, 0, 16, 17, 64][..], &[1; 32]].concat();
            [&macs[..], &[0x86, 0xdd], &header, &[0, 9], &port.to_be_bytes(), &[0, 16, 0, 0], &[7; 8]]
                .concat()
        };
        let frames_out = [
            untagged(0),
            tagged(5, 1),
            tagged(0xe005, 2),
            tagged(0xe000, 3),
            twice,
            roce_v1,
            ipv6(4791),
            ipv6(80),
            untagged(5),
        ];
        let mut batch = PacketBatch::new(frames_out.len());
        frames_out.iter().for_each(|frame| batch.push_frame(frame, 0).unwrap());
        assert_eq!(far.send(&mut batch).unwrap(), frames_out.len());
        assert_eq!(frames(&mut near, 3), [untagged(0), untagged(3), untagged(5)]);
        assert_eq!(near.recv(&mut batch, Some(Duration::from_millis(100))).unwrap(), 0);
        let counters = near.link_counters();
        assert_eq!((counters.received, counters.dropped_too_long), (3, 0));
        assert_eq!(counters.ignored_by_reason().map(|(_, count)| count), [3, 1, 1]);
    });
}

/// 200 datagrams of 1,000 bytes to the other end of the wire.
fn many(batch: &mut PacketBatch) {
    batch.clear();
    for _ in 0..200 {
        batch.push_datagram(at([10, 9, 0, 1], 4791), at([10, 9, 0, 2], 4791), &[7; 972], 0).unwrap();
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_socket_whose_queue_is_full_is_waited_for_and_then_counted() {
    in_namespace(|| {
        let config = UdpConfig::for_roce_frames(at([10, 9, 0, 1], 4791).into());
        let mut batch = PacketBatch::new(256);
        // One kilobyte a second: what is sent fills the socket's queue (EAGAIN).
        tc("qdisc add dev near root tbf rate 8kbit burst 1540 limit 10000000");
        let mut link = UdpLink::open(&config).unwrap().without_waiting();
        many(&mut batch);
        let sent = link.send(&mut batch).unwrap() as u64;
        let counters = link.link_counters();
        assert!((1..200).contains(&sent), "{sent}");
        assert_eq!(
            (counters.sent, counters.unsent_queue_full, counters.unsent_packets()),
            (sent, 200 - sent, 200 - sent)
        );
        drop(link);
        // A megabyte a second: with patience everything leaves.
        tc("qdisc replace dev near root tbf rate 8mbit burst 1540 limit 10000000");
        let mut link = UdpLink::open(&config).unwrap();
        many(&mut batch);
        assert_eq!(link.send(&mut batch).unwrap(), 200);
        assert_eq!(link.link_counters().unsent_packets(), 0);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_device_whose_queue_is_full_is_waited_for_and_then_counted() {
    in_namespace(|| {
        let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let mut batch = PacketBatch::new(256);
        let mut fill = |count: usize| {
            many(&mut batch);
            let mut some = PacketBatch::new(count);
            for index in 0..count {
                some.push(batch.packet(index), 0).unwrap();
                some.set_ethernet(index, &ethernet);
            }
            some
        };
        // The device's queue holds three frames and lets one go a second: further ones are refused (ENOBUFS).
        tc("qdisc add dev near root tbf rate 8kbit burst 1540 limit 3200");
        let mut link = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
        let sent = link.send(&mut fill(20)).unwrap() as u64;
        let counters = link.link_counters();
        assert!((1..20).contains(&sent), "{sent}");
        assert_eq!(
            (counters.sent, counters.unsent_no_buffers, counters.unsent_packets()),
            (sent, 20 - sent, 20 - sent)
        );
        // A thousand a second: with patience everything leaves.
        tc("qdisc replace dev near root tbf rate 8mbit burst 1540 limit 3200");
        let mut link = PacketLink::open(&PacketConfig::new("near", [])).unwrap();
        assert_eq!(link.send(&mut fill(100)).unwrap(), 100);
        assert_eq!(link.link_counters().unsent_packets(), 0);
    });
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn datagrams_of_a_run_that_are_longer_than_the_path_are_counted_and_runs_go_on() {
    in_namespace(|| {
        let near = at([10, 9, 0, 1], 0).into();
        let mut link = UdpLink::open(&UdpConfig::for_reports(near, false)).unwrap();
        let (from, to) = (link.local_addr(), at([10, 9, 0, 2], 40040));
        let mut batch = PacketBatch::with_packet_capacity(64, 3000);
        for _ in 0..20 {
            for length in [40, 40, 40, 1473, 1473, 1472, 1472, 50] {
                batch.push_datagram(from, to, &vec![1; length], 0).unwrap();
            }
            assert_eq!(link.send(&mut batch).unwrap(), 6);
        }
        let counters = link.link_counters();
        assert_eq!((counters.sent, counters.unsent_too_long, counters.unsent_packets()), (120, 40, 40));
        assert!(link.run_use().send, "it is not the kernel that refuses runs");
    });
}
