//! Encoders of datagrams: for tests, benchmarks and fuzzing (feature `emit`).

use std::net::{IpAddr, Ipv4Addr};

use dta_proto::flow_record::{DIRECTION_EGRESS, DIRECTION_INGRESS, FlowRecord, to_mapped_address};
use dta_proto::key::Flow;
use dta_proto::telemetry::{InterfaceCounter, InterfaceCounts};

/// Number and length of each field that [`encode_record`] writes for an IPv4 flow.
pub const FIELDS: [(u16, u16); 9] =
    [(8, 4), (12, 4), (7, 2), (11, 2), (4, 1), (61, 1), (14, 4), (2, 4), (1, 4)];
/// The same for an IPv6 flow.
pub const FIELDS_V6: [(u16, u16); 9] =
    [(27, 16), (28, 16), (7, 2), (11, 2), (4, 1), (61, 1), (14, 4), (2, 4), (1, 4)];

/// A record of a flow that enters the exporter 10.0.0.1, not sampled.
pub fn unsampled_record(flow: Flow, packets: u64, bytes: u64) -> FlowRecord {
    FlowRecord {
        bytes,
        packets,
        exporter: Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped(),
        src: to_mapped_address(flow.src),
        dst: to_mapped_address(flow.dst),
        sampling_rate: 1,
        src_port: flow.sport,
        dst_port: flow.dport,
        protocol: flow.proto,
        direction: DIRECTION_INGRESS,
        ..FlowRecord::EMPTY
    }
}

fn address_octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A record as [`FIELDS`] or [`FIELDS_V6`] describe it.
pub fn encode_record(record: &FlowRecord) -> Vec<u8> {
    let flow = record.flow_key();
    let mut bytes = [address_octets(flow.src), address_octets(flow.dst)].concat();
    bytes.extend([flow.sport, flow.dport].map(u16::to_be_bytes).concat());
    bytes.extend([flow.proto, u8::from(record.direction == DIRECTION_EGRESS)]);
    for number in [record.out_if, record.packets as u32, record.bytes as u32] {
        bytes.extend(number.to_be_bytes());
    }
    bytes
}

/// A template: its id, and the fields as [`encode_u16_words`].
pub fn encode_template(id: u16, fields: &[(u16, u16)]) -> Vec<u8> {
    [
        encode_u16_words(&[id, fields.len() as u16]),
        fields.iter().flat_map(|(n, len)| encode_u16_words(&[*n, *len])).collect(),
    ]
    .concat()
}

/// Words of two bytes.
pub fn encode_u16_words(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A set, or flow set.
pub fn set(id: u16, body: &[u8]) -> Vec<u8> {
    [encode_u16_words(&[id, body.len() as u16 + 4]), body.to_vec()].concat()
}

/// A datagram of NetFlow v9.
pub fn netflow_v9_datagram(sequence: u32, source: u32, sets: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = encode_u16_words(&[9, sets.len() as u16]);
    [0, 0, sequence, source].iter().for_each(|word: &u32| bytes.extend(word.to_be_bytes()));
    bytes.extend(sets.concat());
    bytes
}

pub fn ipfix_message(sequence: u32, domain: u32, sets: &[Vec<u8>]) -> Vec<u8> {
    let sets = sets.concat();
    let mut bytes = encode_u16_words(&[10, sets.len() as u16 + 16]);
    [0, sequence, domain].iter().for_each(|word: &u32| bytes.extend(word.to_be_bytes()));
    bytes.extend(sets);
    bytes
}

/// A datagram of NetFlow v5 with IPv4 flows. `sampling` is the sampling word of its header.
pub fn netflow_v5_datagram(sequence: u32, engine: u16, sampling: u16, records: &[FlowRecord]) -> Vec<u8> {
    let mut bytes = encode_u16_words(&[5, records.len() as u16]);
    [0, 0, 0, sequence].iter().for_each(|word: &u32| bytes.extend(word.to_be_bytes()));
    bytes.extend(encode_u16_words(&[engine, sampling]));
    for record in records {
        let flow = record.flow_key();
        bytes.extend([address_octets(flow.src), address_octets(flow.dst), vec![0; 4]].concat());
        bytes.extend(encode_u16_words(&[0, record.out_if as u16]));
        for number in [record.packets as u32, record.bytes as u32, 0, 0] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(encode_u16_words(&[flow.sport, flow.dport]));
        bytes.extend([0, 0, flow.proto, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

fn encode_u32_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// An sFlow item: its format, its length, and its bytes, padded to a whole word.
fn sflow_item(format: u32, mut body: Vec<u8>) -> Vec<u8> {
    let head = encode_u32_words(&[format, body.len() as u32]);
    body.resize(body.len().next_multiple_of(4), 0);
    [head, body].concat()
}

/// An sFlow sample: the words before its records, and the records.
pub fn sflow_sample(format: u32, words: &[u32], records: &[Vec<u8>]) -> Vec<u8> {
    sflow_item(
        format,
        [encode_u32_words(words), encode_u32_words(&[records.len() as u32]), records.concat()].concat(),
    )
}

/// The sFlow record of a packet's first bytes; `protocol` 1 = from its Ethernet header on.
pub fn sflow_header_record(protocol: u32, bytes: &[u8]) -> Vec<u8> {
    let len = bytes.len() as u32;
    sflow_item(1, [encode_u32_words(&[protocol, len + 4, 4, len]), bytes.to_vec()].concat())
}

/// The sFlow record of an interface that sent this many bytes; all other counters are 9.
pub fn if_counters(index: u32, speed: u64, out_octets: u64) -> Vec<u8> {
    let mut counts = InterfaceCounter::ALL.map(|_| Some(9));
    counts[InterfaceCounter::OutOctets as usize] = Some(out_octets);
    interface_counters(index, speed, &counts)
}

/// The sFlow record of an interface's counters.
pub fn interface_counters(index: u32, speed: u64, counts: &InterfaceCounts) -> Vec<u8> {
    let long = |number: u64| [(number >> 32) as u32, number as u32];
    // An Ethernet in both directions, which is up.
    let mut words = [&[index, 6][..], &long(speed), &[1, 3]].concat();
    for (counter, count) in InterfaceCounter::ALL.into_iter().zip(counts) {
        match counter.is_64_bit() {
            true => words.extend(long(count.unwrap_or(u64::MAX))),
            false => words.push(count.map_or(u32::MAX, |count| count as u32)),
        }
    }
    // It is not promiscuous.
    words.push(2);
    sflow_item(1, encode_u32_words(&words))
}

/// A datagram of sFlow.
pub fn sflow_datagram(agent: Ipv4Addr, sub_agent: u32, sequence: u32, samples: &[Vec<u8>]) -> Vec<u8> {
    let head = [5, 1, agent.to_bits(), sub_agent, sequence, 0, samples.len() as u32];
    [encode_u32_words(&head), samples.concat()].concat()
}
