//! Reads the version-0 captures that another project's traffic generator made. They lie outside the
//! repository, in `$DTA_CAPTURES/dta` (default `../shared/data`); without them the test says so and
//! passes, except in CI.

#[path = "../../testbed/tests/shared/captures.rs"]
mod beside;

use std::collections::BTreeMap;
use std::path::Path;

use dta_proto::wire::dta::{self, DtaBody, DtaReport, Primitive, Version};
use dta_proto::wire::{ethernet, ipv4, udp};

use beside::captures;

/// The frames of a little-endian classic pcap with microseconds.
fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4);
    assert_eq!(word(20), 1, "Ethernet");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        frames.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

/// Parses every report of a capture, checks everything around it, and passes it on.
fn each(file: &str, mut check: impl FnMut(DtaReport<'_>)) -> usize {
    let Some(folder) = captures(file, "dta") else { return 0 };
    let frames = frames(&folder.join(file));
    assert!(!frames.is_empty());
    for frame in &frames {
        let frame = ethernet::EthernetFrame::new_checked(frame).unwrap();
        assert_eq!(frame.ethertype(), ethernet::TYPE_IPV4);
        let packet = ipv4::Ipv4Packet::new_checked(frame.payload()).unwrap();
        packet.check_plain().unwrap();
        let datagram = udp::UdpPacket::new_checked(packet.payload()).unwrap();
        datagram.verify_checksum(&packet.addresses()).unwrap();
        assert_eq!(datagram.destination_port(), dta::PORT);
        let report = DtaReport::parse_payload(datagram.payload()).unwrap();
        assert_eq!(report.version, Version::V0);
        let mut again = [0xa5; 64];
        let len = report.encode_into(&mut again).unwrap();
        assert_eq!(again[..len], *datagram.payload());
        check(report);
    }
    frames.len()
}

#[test]
fn key_write() {
    let mut copies = BTreeMap::new();
    let n = each("dta-upstream-keywrite.pcap", |report| match report.body {
        DtaBody::KeyWrite { redundancy, value, .. } => {
            assert_eq!(value.len(), 4);
            *copies.entry(redundancy).or_insert(0) += 1;
        }
        other => panic!("{other:?}"),
    });
    if n > 0 {
        println!("{n} key-write reports, by redundancy {copies:?}");
        assert_eq!(copies.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}

#[test]
fn append() {
    let n = each("dta-upstream-append.pcap", |report| assert_eq!(report.body.primitive(), Primitive::Append));
    println!("{n} append reports");
}

#[test]
fn key_increment() {
    let n = each("dta-upstream-keyincrement.pcap", |report| {
        assert_eq!(report.body.primitive(), Primitive::KeyIncrement);
    });
    println!("{n} key-increment reports");
}
