//! Flow exports that are easily misread: `$DTA_CAPTURES/cases/flows` (default `../shared/data`). Its `EXPECTED.md` says where each
//! comes from, and `expected.json` what is right; without them the tests say so and pass, except in CI.

#[path = "../../../testbed/tests/shared/captures.rs"]
mod beside;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use dta_proto::counter::FlowReason;
use dta_proto::flow_record::FlowRecord;
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::ArrivalTime;
use serde_json::Value;

use beside::captures;

/// Sender and payload of each datagram of a capture: Ethernet, IPv4, UDP.
fn datagrams(file: &Path) -> Vec<(SocketAddr, Vec<u8>)> {
    let bytes = std::fs::read(file).unwrap();
    let (mut rest, mut all) = (&bytes[24..], Vec::new());
    assert_eq!(bytes[..2], [0xd4, 0xc3], "{} is a capture, little-endian", file.display());
    while let Some(head) = rest.first_chunk::<16>() {
        let len = u32::from_le_bytes(*head[8..].first_chunk().unwrap()) as usize;
        let ip = &rest[16 + 14..16 + len];
        let udp = &ip[usize::from(ip[0] & 15) * 4..];
        let address = Ipv4Addr::from(*ip[12..].first_chunk::<4>().unwrap());
        let [port, udp_len] = [0, 4].map(|at| u16::from_be_bytes([udp[at], udp[at + 1]]));
        all.push(((address, port).into(), udp[8..usize::from(udp_len)].to_vec()));
        rest = &rest[16 + len..];
    }
    assert!(!all.is_empty(), "{}", file.display());
    all
}

/// What captures say, one after another.
struct Decoded {
    decoder: Decoder,
    rows: Vec<FlowRecord>,
    refused: Vec<FlowReason>,
}

fn decode(files: &[&Path]) -> Decoded {
    let mut decoder = Decoder::new(DecoderOptions::default());
    let (mut rows, mut refused) = (Vec::new(), Vec::new());
    for (from, payload) in files.iter().flat_map(|file| datagrams(file)) {
        decoder.decode_datagram(ArrivalTime { now: 1, wall: 1 }, from, &payload, |one| match one {
            Ok(Exported::Flow(record)) => rows.push(record),
            Ok(_) => {}
            Err(reason) => refused.push(reason),
        });
        assert_eq!(decoder.decoder_counters().find_imbalance(), None);
    }
    Decoded { decoder, rows, refused }
}

impl Decoded {
    /// Packets and bytes of each flow, scaled: where it enters or where it leaves, as exporters may report both.
    fn flows(&self) -> BTreeMap<String, (u64, u64)> {
        let mut flows = BTreeMap::<_, BTreeMap<_, (u64, u64)>>::new();
        for record in &self.rows {
            let sum = flows.entry(show_flow(record)).or_default().entry(record.direction).or_default();
            *sum = (sum.0 + record.total_packets(), sum.1 + record.total_bytes());
        }
        flows.into_iter().map(|(flow, sums)| (flow, sums.into_values().max().unwrap())).collect()
    }

    /// A term of a condition: a number, `dropped`, or a counter as `f('gaps')`.
    fn read_term(&self, term: &str) -> i64 {
        let count = match term {
            "dropped" => self.refused.len() as u64,
            "f('records')" => (self.rows.len() + self.refused.len()) as u64,
            "f('counted')" => self.rows.len() as u64,
            _ => match term.strip_prefix("f('").and_then(|rest| rest.strip_suffix("')")) {
                Some(name) => {
                    let name = format!("flows.{name}");
                    let named = self.decoder.named_counters();
                    named.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
                }
                None => term.parse().unwrap(),
            },
        };
        count as i64
    }

    /// A condition: terms, added or subtracted, and a number to compare with.
    fn holds(&self, condition: &str) -> bool {
        let words: Vec<_> = condition.split(' ').collect();
        let [terms @ .., comparison, limit] = &words[..] else { panic!("{condition}") };
        let mut sum = self.read_term(terms[0]);
        for pair in terms[1..].chunks(2) {
            let term = self.read_term(pair[1]);
            sum += if pair[0] == "-" { -term } else { term };
        }
        let limit: i64 = limit.parse().unwrap();
        match *comparison {
            "==" => sum == limit,
            ">=" => sum >= limit,
            other => panic!("{other}"),
        }
    }
}

/// A flow as the cases have it, without ports for protocols that have none.
fn show_flow(record: &FlowRecord) -> String {
    record.flow_key().to_string().replace(":0->", "->").replace(":0/", "/")
}

#[test]
fn every_case_is_as_expected() {
    let Some(folder) = captures("every_case_is_as_expected", "cases/flows") else { return };
    let expected = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_str(&expected).unwrap();
    assert!(expected.len() >= 20, "{} cases", expected.len());
    let mut wrong = Vec::new();
    for (name, case) in &expected {
        let decoded = decode(&[&folder.join(format!("{name}.pcap"))]);
        let flows = decoded.flows();
        let wanted = case["flows"].as_object().cloned().unwrap_or_default();
        for (flow, counts) in &wanted {
            let found = flows.get(flow).copied();
            let is_right = |wanted: &Value, found: u64| wanted.as_u64().is_none_or(|wanted| wanted == found);
            if !found.is_some_and(|found| is_right(&counts[0], found.0) && is_right(&counts[1], found.1)) {
                wrong.push(format!("{name}: {flow} has {found:?}, not {counts}"));
            }
        }
        if case["only"] == Value::Bool(true) && flows.len() != wanted.len() {
            wrong.push(format!("{name}: {flows:?}"));
        }
        for (flow, port) in case["egress"].as_object().into_iter().flatten() {
            let found = decoded.rows.iter().find(|record| show_flow(record) == *flow);
            if found.map(|record| u64::from(record.out_if)) != port.as_u64() {
                wrong.push(format!("{name}: {flow} leaves by {found:?}, not {port}"));
            }
        }
        for condition in case["counters"].as_array().into_iter().flatten() {
            if !decoded.holds(condition.as_str().unwrap()) {
                wrong.push(format!(
                    "{name}: {condition} does not hold: {:?}",
                    decoded.decoder.named_counters()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What `EXPECTED.md` says beyond `expected.json`.
#[test]
fn a_tunnel_adds_nothing_and_an_end_that_repeats_an_update_is_refused() {
    let name = "a_tunnel_adds_nothing";
    let Some(folder) = captures(name, "cases/flows/wish-dev") else { return };
    let sampled = decode(&[&folder.join("11-sflow-vxlan-length.pcap")]);
    let [record] = sampled.rows[..] else { panic!("{:?}", sampled.rows) };
    assert_eq!((record.total_packets(), record.total_bytes(), record.vni), (10, 10_000, 100));
    let firewall = decode(&[&folder.join("09-nsel-octets-asa.pcap")]);
    let repeated = firewall.refused.iter().filter(|reason| **reason == FlowReason::Repeated).count();
    assert_eq!(repeated, 7, "{:?}", firewall.refused);
}

/// Captures of Akvorado's tests; the values are those of tshark.
#[test]
fn captures_of_peers_are_as_tshark_reads_them() {
    let Some(folder) = captures("captures_of_peers", "cases/flows/peers") else { return };
    let one = |name: &str| {
        let [template, data] = ["template", "data"].map(|part| folder.join(format!("{name}-{part}.pcap")));
        let decoded = decode(&[&template, &data]);
        let [record] = decoded.rows[..] else { panic!("{name}: {:?}, {:?}", decoded.rows, decoded.refused) };
        (show_flow(&record), record)
    };
    // A frame with a VLAN.
    let (flow, record) = one("netflow-datalink");
    assert_eq!(flow, "51.51.51.51:55501->52.52.52.52:11777/udp");
    assert_eq!((record.packets, record.bytes, record.in_vlan, record.in_if), (1, 96, 231, 582));
    // Frames with IPv4 in IPv6, one of them behind fields of Juniper's own.
    for (name, flow, icmp) in [
        ("netflow-ipfix-srv6", "8.8.8.8->213.36.140.100/icmp", 0),
        ("netflow-juniper-cpid", "8.8.8.8->213.36.140.101/icmp", 0x0800),
    ] {
        let (found, record) = one(name);
        assert_eq!(
            (found.as_str(), record.packets, record.bytes, record.icmp),
            (flow, 1, 64, icmp),
            "{name}"
        );
    }
    // Events of a carrier's NAT.
    let events = decode(&[&folder.join("netflow-nat.pcap")]);
    let first = &events.rows[0];
    assert_eq!(show_flow(first), "172.16.100.198:35303->10.89.87.1:53/udp");
    assert_eq!((first.packets, first.bytes, first.nat_event, first.nat_src_port), (0, 0, 1, 35303));
    assert_eq!(IpAddr::V6(first.nat_src).to_canonical().to_string(), "10.143.52.29");
    assert_eq!((first.start, first.end), (1_749_049_740_450_000_000, 1_749_049_740_450_000_000));
    let kinds: Vec<_> = events.rows.iter().map(|record| record.nat_event).collect();
    assert_eq!(kinds, [1, 1, 1, 2, 1, 1, 1, 1, 1]);
    assert!(events.refused.is_empty());
}
