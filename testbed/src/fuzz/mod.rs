//! Properties of the decoders on any bytes.
//!
//! Each property is one function from bytes, a [`Target`]. Two drive it: `tests/seeded/`, a loop
//! over seeds and their mutations for a few seconds, in every test run; and libFuzzer
//! (`testbed/fuzz/`), for as long as anybody likes.

#![forbid(unsafe_code)]

mod seeds;

use std::net::Ipv4Addr;

use dta_proto::key::{Flow, Key};
use dta_proto::wire::dta::{DtaReport, Nack};
use dta_proto::wire::frame::Received;
use dta_proto::wire::roce::{ICRC_LEN, RocePacket, RoceRepr};
use dta_proto::wire::{checksum, ethernet, ipv4, roce, udp};
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::emit::{
    self, FIELDS, FIELDS_V6, encode_record, encode_template, encode_u16_words, set, unsampled_record,
};
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::int::{Dialect, IntSettings, Mark, parse_reports};
use dta_telemetry::reports::ArrivalTime;

#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name here and as a program of libFuzzer.
    pub name: &'static str,
    /// Panics if the property does not hold; returns whether the decoder took the bytes.
    pub check: fn(&[u8]) -> bool,
    /// Bytes to begin with, made from the project's vectors: many of them are taken.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Reports and NACKs: any bytes are a value or an error, and a value's bytes are that value again.
pub const DTA: Target = Target { name: "dta", check: check_dta, seeds: seeds::reports };

/// Transport packets of RoCEv2, without the checksums that would keep a fuzzer out: what parses is
/// emitted as it was.
pub const ROCE: Target = Target { name: "roce", check: check_roce, seeds: seeds::transport };

/// Ethernet, IPv4, UDP and the whole way to a checked RoCEv2 packet.
pub const PACKET: Target = Target { name: "packet", check: check_packet, seeds: seeds::frames };

/// Keys and flows as people write them: any text is a key or an error, and what is shown reads the
/// same again.
pub const KEY: Target = Target { name: "key", check: check_key, seeds: seeds::keys };

/// Telemetry Reports of INT, of every dialect: any bytes are reports or errors, and no accessor panics.
pub const INT: Target = Target { name: "int", check: check_int, seeds: seeds::int_reports };

/// Flow exports of one exporter, one datagram after another: any bytes are records or reasons, and memory is bounded.
pub const FLOWS: Target = Target { name: "flows", check: check_flows, seeds: flow_seeds };

pub const TARGETS: [Target; 6] = [DTA, ROCE, PACKET, KEY, INT, FLOWS];

fn check_dta(bytes: &[u8]) -> bool {
    let mut again = [0xa5; 128];
    let report = DtaReport::parse_payload(bytes);
    if let Ok(report) = report {
        let len = report.encode_into(&mut again).expect("what parses can be emitted");
        assert_eq!(len, bytes.len());
        assert_eq!(DtaReport::parse_payload(&again[..len]), Ok(report));
    }
    let nack = Nack::parse_payload(bytes);
    if let Ok(nack) = nack {
        let len = nack.encode_into(&mut again).expect("what parses can be emitted");
        assert_eq!(Nack::parse_payload(&again[..len]), Ok(nack));
    }
    report.is_ok() || nack.is_ok()
}

fn check_roce(bytes: &[u8]) -> bool {
    let Ok(packet) = RocePacket::new_checked(bytes) else { return false };
    let Ok(repr) = RoceRepr::parse_packet(&packet) else { return false };
    let mut again = vec![0xa5; bytes.len()];
    let len = repr.encode_into(&mut again).expect("what parses can be emitted");
    assert_eq!(len + ICRC_LEN, bytes.len());
    let packet = RocePacket::new_checked(&again).expect("what was emitted parses");
    assert_eq!(RoceRepr::parse_packet(&packet), Ok(repr));
    true
}

fn check_key(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let key = text.parse::<Key>();
    if let Ok(key) = key {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
    let flow = text.parse::<Flow>();
    if let Ok(flow) = flow {
        assert_eq!(flow.to_string().parse(), Ok(flow));
    }
    key.is_ok() || flow.is_ok()
}

/// Byte 0 says how the rest is read.
fn check_int(bytes: &[u8]) -> bool {
    let Some((how, payload)) = bytes.split_first() else { return false };
    let dialect = Dialect::ALL[usize::from(how & 7)];
    let mark = [Mark::ByDialect, Mark::Guess, Mark::Always, Mark::Never][usize::from(how >> 3 & 3)];
    let settings = IntSettings { dialect, mark, source_only_words: how >> 5 };
    let Ok(reports) = parse_reports(payload, &settings) else { return false };
    let mut taken = false;
    for report in reports.flatten() {
        taken |= report.packet.is_ok();
        for (switch, hop) in report.hops_with_switches() {
            // Every hop lies in the packet, so there cannot be more than it has words.
            assert!(switch != Some(u32::MAX) || report.switch == switch);
            let fills = [hop.queue_fill(), hop.congestion(), hop.buffer_fill()];
            assert!(fills.iter().all(|fill| fill.id.is_none_or(|id| id < 0xffff)));
            assert_ne!(hop.ingress_port(), Some(u32::MAX));
            assert_ne!(hop.egress_port(), Some(u32::MAX));
            let _ = (hop.node_latency(), hop.utilization(), hop.drop_reason(), hop.drop_queue());
        }
        if let Some(stack) = report.packet_stack() {
            assert!(stack.len() * 4 <= payload.len());
        }
    }
    taken
}

/// Parses the bytes as they are, as an Ethernet frame, and once more with correct checksums, to get past these.
fn check_packet(bytes: &[u8]) -> bool {
    let framed = ethernet::EthernetFrame::new_checked(bytes).is_ok_and(|frame| parse_frame(frame.payload()));
    let plain = parse_frame(bytes);
    let mut bytes = bytes.to_vec();
    repair_checksums(&mut bytes);
    parse_frame(&bytes) || plain || framed
}

/// Whether it is a RoCEv2 packet whose checksum is right.
fn parse_frame(bytes: &[u8]) -> bool {
    if let Ok(packet) = ipv4::Ipv4Packet::new_checked(bytes) {
        let _ = packet.check_plain();
        if let Ok(datagram) = udp::UdpPacket::new_checked(packet.payload()) {
            let _ = datagram.verify_checksum(&packet.addresses());
        }
    }
    let received = Received::parse_packet(bytes);
    if let Ok(received) = &received {
        let len = received.addresses.datagram_header_len() + received.udp.payload().len();
        assert!(roce::has_valid_icrc(&bytes[..len]), "taken with a wrong checksum");
        let _ = roce::RoceRepr::parse_packet(&received.roce);
    }
    let _ = roce::has_valid_icrc(bytes);
    received.is_ok()
}

/// Lengths, IPv4 checksum, no UDP checksum, iCRC: as a sender would have them.
fn repair_checksums(bytes: &mut [u8]) {
    let len = bytes.len();
    let Ok(total) = u16::try_from(len) else { return };
    if len < 44 {
        return;
    }
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[6..8].fill(0);
    bytes[9] = ipv4::PROTOCOL_UDP;
    bytes[10..12].fill(0);
    let sum = checksum::fold_checksum(checksum::add(0, &bytes[..20]));
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes[24..26].copy_from_slice(&(total - 20).to_be_bytes());
    bytes[26..28].fill(0);
    let icrc = roce::compute_icrc(&bytes[..len - 4]);
    bytes[len - 4..].copy_from_slice(&icrc.to_le_bytes());
}

/// Datagrams of one exporter, each with two bytes of its length before it: the first ones may have the templates of the
/// next.
fn check_flows(mut bytes: &[u8]) -> bool {
    let mut decoder = Decoder::new(DecoderOptions { sources: 4, ..DecoderOptions::default() });
    let (mut taken, mut now) = (false, 0);
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (datagram, rest) = rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()));
        let mut count = 0;
        let at = ArrivalTime { now, wall: now };
        decoder.decode_datagram(at, (Ipv4Addr::LOCALHOST, 2055).into(), datagram, |one| {
            count += 1;
            if let Ok(Exported::Flow(record)) = one {
                assert!(record.sampling_rate != 0 && record.total_packets() >= record.packets);
            }
            taken |= one.is_ok();
        });
        // A record has a byte at least, and two directions at most.
        assert!(count <= 2 * datagram.len() + 1, "{count} of {} bytes", datagram.len());
        (bytes, now) = (rest, now + 1_000_000_000);
    }
    assert!(decoder.source_gaps().count() <= 4 && decoder.templates() <= 4 * 64);
    assert_eq!(decoder.decoder_counters().find_imbalance(), None);
    decoder.named_counters();
    taken
}

/// Samples of sFlow in each form, of a packet, a drop and an interface.
fn sflow() -> Vec<u8> {
    // 10.0.0.1:5000->10.0.0.2:443/tcp
    let mut bytes = [vec![0; 12], encode_u16_words(&[0x0800, 0x4500, 500, 0, 0x4000, 0x4006, 0])].concat();
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([encode_u16_words(&[5000, 443]), vec![0; 16]].concat());
    let packet = [emit::sflow_header_record(1, &bytes)];
    let samples = [
        emit::sflow_sample(1, &[7, 3, 100, 0, 0, 3, 4], &packet),
        emit::sflow_sample(3, &[7, 0, 4, 100, 0, 0, 0, 3, 0, 4], &packet),
        emit::sflow_sample(5, &[7, 0, 3, 0, 3, 4, 258], &packet),
        emit::sflow_sample(2, &[7, 4], &[emit::if_counters(4, 1_000_000_000, 1 << 40)]),
        emit::sflow_sample(4, &[7, 0, 4], &[emit::if_counters(4, 1_000_000_000, 1 << 40)]),
    ];
    emit::sflow_datagram(Ipv4Addr::new(10, 0, 0, 1), 1, 1, &samples)
}

/// Each format with templates, options and data, whole.
fn flow_seeds() -> Vec<Vec<u8>> {
    let flows: [Flow; 2] = ["10.0.0.1:5000->10.0.0.2:80/tcp", "[2001:db8::1]:5000->[2001:db8::2]:443/udp"]
        .map(|text| text.parse().expect("a flow"));
    let [v4, v6] = flows.map(|flow| unsampled_record(flow, 7, 4200));
    let templates = [encode_template(256, &FIELDS), encode_template(257, &FIELDS_V6)].concat();
    let data = [set(256, &[encode_record(&v4), encode_record(&v4)].concat()), set(257, &encode_record(&v6))];
    let of_v9 = [
        set(0, &templates),
        set(1, &encode_u16_words(&[300, 4, 8, 1, 4, 48, 1, 50, 4])),
        set(300, &[0, 0, 0, 0, 1, 0, 0, 0, 9]),
    ];
    let of_ipfix = [
        set(2, &templates),
        set(3, &encode_u16_words(&[300, 3, 1, 302, 1, 305, 4, 82, 65535])),
        set(300, &[1, 0, 0, 0, 1, 2, b'a', b'b']),
    ];
    let seeds = [
        vec![emit::netflow_v5_datagram(1, 0, 100, &[v4, v4])],
        vec![emit::netflow_v9_datagram(1, 0, &[&of_v9[..], &data].concat())],
        vec![emit::netflow_v9_datagram(1, 0, &of_v9), emit::netflow_v9_datagram(2, 0, &data)],
        vec![emit::ipfix_message(0, 0, &[&of_ipfix[..], &data].concat())],
        vec![emit::ipfix_message(0, 0, &of_ipfix), emit::ipfix_message(1, 0, &data)],
        vec![sflow(), sflow()],
    ];
    let framed = |datagram: &Vec<u8>| [encode_u16_words(&[datagram.len() as u16]), datagram.clone()].concat();
    seeds.iter().map(|datagrams| datagrams.iter().flat_map(framed).collect()).collect()
}
