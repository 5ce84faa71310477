//! Where the loop begins: the vectors on which every implementation is tested.

use dta_proto::key::Flow;
use dta_telemetry::int::emit::{Carrier, EmittedDatagram, EmittedPacket, EmittedReport, Hop, Local, Stack};
use dta_telemetry::int::{Flags, IntVersion, ReportVersion, TunnelKind};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../dta-proto/vectors/wire.json")).expect("the vectors are JSON")
}

fn cases<'a>(vectors: &'a Value, lists: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    lists.iter().flat_map(|list| vectors[list].as_array().expect("a list of vectors"))
}

fn bytes(case: &Value) -> Vec<u8> {
    let hex = case["hex"].as_str().expect("a vector with bytes");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(byte).collect()
}

pub(crate) fn reports() -> Vec<Vec<u8>> {
    let lists = ["reports", "reports_reserved", "report_errors", "nacks", "nack_errors"];
    cases(&vectors(), &lists).map(bytes).collect()
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    cases(&vectors(), &["frames", "received", "frame_errors"]).map(bytes).collect()
}

pub(crate) fn transport() -> Vec<Vec<u8>> {
    let vectors = vectors();
    let packets = cases(&vectors, &["frames", "received", "frame_errors"])
        .filter(|case| case.get("ethernet").is_none());
    // After 20 bytes of IPv4 header and 8 of UDP.
    packets.filter_map(|case| bytes(case).get(28..).map(<[u8]>::to_vec)).collect()
}

pub(crate) fn keys() -> Vec<Vec<u8>> {
    cases(&vectors(), &["keys"]).map(|case| case["text"].as_str().expect("a key as text").into()).collect()
}

/// Reports of each version with INT of each version, over TCP and UDP, and tunnels. Byte 0 leaves
/// everything to be guessed.
pub(crate) fn int_reports() -> Vec<Vec<u8>> {
    let flows: [Flow; 2] = ["10.0.0.1:5000->10.0.0.2:80/tcp", "[2001:db8::1]:5000->[2001:db8::2]:2152/udp"]
        .map(|text| text.parse().expect("a flow"));
    let hop =
        |n| Hop { switch: Some(n), latency: Some(400 + n), ports: [Some(1), Some(2)], ..Hop::default() };
    let mut seeds = Vec::new();
    for (report_version, local) in [
        (ReportVersion::V05, Local::SwitchLocal),
        (ReportVersion::V05, Local::Drop),
        (ReportVersion::V10, Local::Bits(0x3f)),
        (ReportVersion::V20, Local::Bits(0x7f81)),
    ] {
        for (version, instructions) in
            [(IntVersion::V05, 0xff00), (IntVersion::V10, 0xfd01), (IntVersion::V21, 0xff81)]
        {
            for flow in flows {
                let mut stack = Stack::new(version, instructions, (0..3).map(hop).collect());
                if version == IntVersion::V21 {
                    stack.carrier = Carrier::NewUdp(0x7ffe);
                }
                let mut packet = EmittedPacket::new(flow).with_stack(stack);
                packet.tcp_options = vec![1; 4];
                if flow.proto == 17 {
                    packet.tunnel = Some((TunnelKind::GtpU(7), Box::new(EmittedPacket::new(flows[0]))));
                }
                let flags = Flags { tracked: true, ..Flags::default() };
                let report =
                    EmittedReport { flags, local, hop: hop(9), halved_queue: false, packet, ethernet: true };
                let datagram = EmittedDatagram {
                    version: report_version,
                    version_nibble: 0,
                    switch: 9,
                    hardware: 1,
                    sequence: 1,
                    reports: vec![report],
                };
                seeds.push([vec![0], datagram.to_bytes()].concat());
            }
        }
    }
    seeds
}
