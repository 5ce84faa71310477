//! Datagrams of every format, whole, damaged, lying and too many.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use dta_proto::counter::FlowReason;
use dta_proto::drop_reason::DropReason;
use dta_proto::flow_record::{DIRECTION_EGRESS, FlowRecord};
use dta_proto::key::Flow;
use dta_proto::telemetry::InterfaceCounter;
use dta_proto::trace::TraceName;
use dta_telemetry::exported::{Exported, InterfaceName, InterfaceReading, PacketDrop, TransitReading};
use dta_telemetry::flows::emit::{
    self, FIELDS, FIELDS_V6, encode_record, encode_template, encode_u16_words, set, unsampled_record,
};
use dta_telemetry::flows::{Decoder, DecoderOptions, FlowExportFormat, FlowExportSource, SourceRegistry};
use dta_telemetry::reports::ArrivalTime;
use proptest::prelude::*;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

type Decoded = Vec<Result<FlowRecord, FlowReason>>;

fn decode(decoder: &mut Decoder, now: u64, from: Ipv4Addr, datagram: &[u8]) -> Decoded {
    let record = |exported| match exported {
        Exported::Flow(record) => record,
        other => panic!("{other:?}"),
    };
    exported(decoder, now, from, datagram).into_iter().map(|one| one.map(record)).collect()
}

fn exported(
    decoder: &mut Decoder,
    now: u64,
    from: Ipv4Addr,
    datagram: &[u8],
) -> Vec<Result<Exported, FlowReason>> {
    let mut all = Vec::new();
    decoder.decode_datagram(ArrivalTime { now, wall: 0 }, (from, 2055).into(), datagram, |one| all.push(one));
    all
}

/// Decodes datagrams of one exporter.
fn all(datagrams: &[Vec<u8>]) -> (Decoder, Decoded) {
    let mut decoder = Decoder::new(DecoderOptions::default());
    let decoded = datagrams.iter().flat_map(|datagram| decode(&mut decoder, 0, HERE, datagram)).collect();
    (decoder, decoded)
}

fn flow(text: &str) -> Flow {
    text.parse().unwrap()
}

fn tcp() -> FlowRecord {
    FlowRecord { out_if: 3, ..unsampled_record(flow("10.0.0.1:5000->10.0.0.2:80/tcp"), 7, 4200) }
}

fn udp6() -> FlowRecord {
    FlowRecord {
        direction: DIRECTION_EGRESS,
        ..unsampled_record(flow("[2001:db8::1]:5000->[2001:db8::2]:443/udp"), 1, 1280)
    }
}

fn named(decoder: &Decoder, name: &str) -> u64 {
    decoder.named_counters().into_iter().find(|(known, _)| known == name).map_or(0, |(_, count)| count)
}

#[test]
fn records_of_every_format_are_the_same() {
    let templates = [encode_template(256, &FIELDS), encode_template(257, &FIELDS_V6)].concat();
    let data = [set(256, &encode_record(&tcp())), set(257, &encode_record(&udp6()))];
    let (_, v9) =
        all(&[emit::netflow_v9_datagram(1, 0, &[vec![set(0, &templates)], data.to_vec()].concat())]);
    assert_eq!(v9, [Ok(tcp()), Ok(udp6())]);
    let (_, ipfix) = all(&[emit::ipfix_message(1, 0, &[vec![set(2, &templates)], data.to_vec()].concat())]);
    assert_eq!(ipfix, v9);
    let (_, v5) = all(&[emit::netflow_v5_datagram(1, 0, 0, &[tcp()])]);
    // It does not say where it counted.
    assert_eq!(v5, [Ok(FlowRecord { direction: 0, ..tcp() })]);
}

#[test]
fn a_record_says_when_its_flow_began_and_ended() {
    let times = |decoded: &Decoded| (decoded[0].unwrap().start, decoded[0].unwrap().end);
    let (seconds, second) = (1_700_000_000u64, 1_000_000_000u64);
    // 2 s after its uptime has wrapped around, the exporter sends a flow that began 7 s before.
    let (uptime, began, ended) = (2_000u32, 2_000u32.wrapping_sub(7_000), 1_999u32);
    let span = ((seconds - 7) * second, seconds * second - 1_000_000);
    let mut v5 = emit::netflow_v5_datagram(1, 0, 0, &[tcp()]);
    v5[4..8].copy_from_slice(&uptime.to_be_bytes());
    v5[8..12].copy_from_slice(&(seconds as u32).to_be_bytes());
    v5[12..16].copy_from_slice(&5u32.to_be_bytes());
    v5[48..52].copy_from_slice(&began.to_be_bytes());
    v5[52..56].copy_from_slice(&ended.to_be_bytes());
    assert_eq!(times(&all(&[v5]).1), (span.0 + 5, span.1 + 5));
    let with = |fields: &[(u16, u16)]| [&FIELDS[..], fields].concat();
    let body = |time: &[u8]| [encode_record(&tcp()), time.to_vec()].concat();
    let v9 = |began: u32| {
        let times = [began.to_be_bytes(), ended.to_be_bytes()].concat();
        let sets = [set(0, &encode_template(256, &with(&[(22, 4), (21, 4)]))), set(256, &body(&times))];
        let mut v9 = emit::netflow_v9_datagram(1, 0, &sets);
        v9[4..8].copy_from_slice(&uptime.to_be_bytes());
        v9[8..12].copy_from_slice(&(seconds as u32).to_be_bytes());
        v9
    };
    assert_eq!(times(&all(&[v9(began)]).1), span);
    assert_eq!(times(&all(&[v9(uptime + 1)]).1).0, seconds * second + 1_000_000, "counted while it was sent");
    // Of an exporter without a clock, the arrival stands for the time of sending.
    let mut without_clock = v9(began);
    without_clock[8..12].copy_from_slice(&60u32.to_be_bytes());
    let at = ArrivalTime { now: 0, wall: 100 * second };
    let mut decoded = Vec::new();
    Decoder::new(DecoderOptions::default())
        .decode_datagram(at, (HERE, 2055).into(), &without_clock, |one| decoded.push(one));
    let [Ok(Exported::Flow(record))] = decoded[..] else { panic!("{decoded:?}") };
    assert_eq!((record.received, record.start), (100 * second, 93 * second));
    let ntp = 2_208_988_800u64;
    for (number, time, nanoseconds) in [
        (150, (seconds as u32).to_be_bytes().to_vec(), 0),
        (152, (seconds * 1000 + 5).to_be_bytes().to_vec(), 5_000_000),
        (156, ((seconds + ntp) << 32 | 1 << 31).to_be_bytes().to_vec(), 500_000_000),
    ] {
        let expected = seconds * second + nanoseconds;
        for (number, expected) in [(number, (expected, 0)), (number + 1, (0, expected))] {
            let fields = with(&[(number, time.len() as u16)]);
            let sets = [set(2, &encode_template(256, &fields)), set(256, &body(&time))];
            assert_eq!(times(&all(&[emit::ipfix_message(1, 0, &sets)]).1), expected, "{number}");
        }
    }
}

#[test]
fn interfaces_are_named_by_options() {
    let named = |name: &str| {
        Ok(Exported::Name(InterfaceName { exporter: HERE.into(), interface: 3, name: TraceName::new(name) }))
    };
    let number = 3u32.to_be_bytes();
    // v9: scope interface (2), or scope system (1) with the interface among the options; the name before the description.
    let of_scope = [
        set(1, &encode_u16_words(&[300, 4, 8, 2, 4, 83, 6, 82, 6])),
        set(300, &[&number[..], b"uplinkGi0/3\0"].concat()),
    ];
    let of_system = [
        set(1, &encode_u16_words(&[300, 4, 8, 1, 4, 10, 4, 82, 4])),
        set(300, &[&[0; 4][..], &number, b"eth3"].concat()),
    ];
    // IPFIX: a name of any length, without a description, and a description alone.
    let ipfix = [
        set(3, &encode_u16_words(&[300, 2, 1, 10, 4, 82, 65535])),
        set(300, &[&number[..], b"\x04eth3"].concat()),
    ];
    let described =
        [set(3, &encode_u16_words(&[300, 2, 1, 14, 4, 83, 6])), set(300, &[&number[..], b"uplink"].concat())];
    let before_its_template = [ipfix[1].clone(), ipfix[0].clone()];
    for (datagram, name) in [
        (emit::netflow_v9_datagram(1, 0, &of_scope), "Gi0/3"),
        (emit::netflow_v9_datagram(1, 0, &of_system), "eth3"),
        (emit::ipfix_message(1, 0, &ipfix), "eth3"),
        (emit::ipfix_message(1, 0, &described), "uplink"),
        (emit::ipfix_message(1, 0, &before_its_template), "eth3"),
    ] {
        let mut decoder = Decoder::new(DecoderOptions::default());
        assert_eq!(exported(&mut decoder, 0, HERE, &datagram), [named(name)], "{name}");
        assert_eq!(self::named(&decoder, "flows.names"), 1);
    }
}

#[test]
fn protocols_without_ports_have_none() {
    let icmp = unsampled_record(Flow { dport: 0x0800, ..flow("10.0.0.1->10.0.0.2/icmp") }, 1, 84);
    let plain = FlowRecord { dst_port: 0, icmp: 0x0800, ..icmp };
    let template = set(0, &encode_template(256, &FIELDS));
    let (_, v9) = all(&[emit::netflow_v9_datagram(1, 0, &[template, set(256, &encode_record(&icmp))])]);
    let (_, v5) = all(&[emit::netflow_v5_datagram(1, 0, 0, &[icmp])]);
    assert_eq!((v9, v5), (vec![Ok(plain)], vec![Ok(FlowRecord { direction: 0, ..plain })]));
}

#[test]
fn numbers_have_any_length_and_fields_may_be_unknown_or_of_an_enterprise() {
    // A field of 3 bytes and one of 5, one of variable length, and one of an enterprise that nobody knows.
    let body = [
        encode_u16_words(&[256, 8, 8, 4, 12, 4, 4, 1, 2, 3, 1, 5, 82, 65535, 0x8001, 2, 0, 4711, 9999, 4]),
        vec![],
    ]
    .concat();
    let mut data = vec![10, 0, 0, 1, 10, 0, 0, 2, 1, 0, 1, 0, 1, 0, 0, 0, 0];
    data.extend([4, b'e', b't', b'h', b'0', 1, 2, 9, 9, 9, 9]);
    let (_, decoded) = all(&[emit::ipfix_message(1, 0, &[set(2, &body), set(256, &data)])]);
    let icmp = unsampled_record(flow("10.0.0.1->10.0.0.2/icmp"), 256, 1 << 32);
    assert_eq!(decoded, [Ok(FlowRecord { direction: 0, ..icmp })]);
}

#[test]
fn both_directions_of_a_flow_are_two_records() {
    let body = encode_u16_words(&[
        256, 9, 8, 4, 12, 4, 7, 2, 11, 2, 4, 1, 2, 4, 1, 4, 0x8002, 4, 0, 29305, 0x8001, 4, 0, 29305,
    ]);
    let mut data = encode_record(&tcp());
    data.drain(13..18);
    data.extend([0, 0, 0, 5, 0, 0, 1, 0]);
    let (_, decoded) = all(&[emit::ipfix_message(1, 0, &[set(2, &body), set(256, &data)])]);
    let there = FlowRecord { out_if: 0, direction: 0, ..tcp() };
    let back = unsampled_record(flow("10.0.0.2:80->10.0.0.1:5000/tcp"), 5, 256);
    assert_eq!(decoded, [Ok(there), Ok(FlowRecord { direction: 0, ..back })]);
}

#[test]
fn what_is_sampled_has_its_rate() {
    let rate = |decoded: &Decoded| decoded.iter().map(|one| one.unwrap().sampling_rate).collect::<Vec<_>>();
    let (_, v5) = all(&[emit::netflow_v5_datagram(1, 0, 0x4000 | 100, &[tcp()])]);
    assert_eq!(rate(&v5), [100]);
    assert_eq!((v5[0].unwrap().total_packets(), v5[0].unwrap().total_bytes()), (700, 420_000));
    // v9: two samplers in options; records name one of them, or none.
    let options = encode_u16_words(&[300, 4, 8, 1, 4, 48, 1, 50, 4]);
    let sampler = |id: u8, rate: u32| [vec![0, 0, 0, 0, id], rate.to_be_bytes().to_vec()].concat();
    let with_sampler: Vec<_> = FIELDS.iter().copied().chain([(48, 1)]).collect();
    let sets = [
        set(0, &[encode_template(256, &FIELDS), encode_template(257, &with_sampler)].concat()),
        set(1, &options),
        set(300, &sampler(1, 10)),
        set(256, &encode_record(&tcp())),
    ];
    // The second one is behind the data.
    let more = [
        set(257, &[encode_record(&tcp()), vec![2]].concat()),
        set(257, &[encode_record(&tcp()), vec![7]].concat()),
        set(256, &encode_record(&tcp())),
        set(300, &sampler(2, 1000)),
    ];
    let (decoder, v9) =
        all(&[emit::netflow_v9_datagram(1, 0, &sets), emit::netflow_v9_datagram(2, 0, &more)]);
    assert_eq!(rate(&v9), [10, 1000, 1, 1], "the only one, the named one, an unknown one, none of several");
    assert_eq!((named(&decoder, "flows.options"), named(&decoder, "flows.templates")), (2, 3));
    // IPFIX: so many in a row, and so many not.
    let options = encode_u16_words(&[300, 3, 1, 302, 8, 305, 4, 306, 4]);
    let sampler = [vec![0; 8], 1u32.to_be_bytes().to_vec(), 99u32.to_be_bytes().to_vec()].concat();
    let sets = [
        set(2, &encode_template(256, &FIELDS)),
        set(3, &options),
        set(300, &sampler),
        set(256, &encode_record(&tcp())),
    ];
    assert_eq!(rate(&all(&[emit::ipfix_message(1, 0, &sets)]).1), [100]);
}

#[test]
fn templates_are_each_exporters_own_and_gaps_too() {
    let mut decoder = Decoder::new(DecoderOptions::default());
    let there = Ipv4Addr::new(10, 0, 0, 2);
    let known = emit::netflow_v9_datagram(
        1,
        0,
        &[set(0, &encode_template(256, &FIELDS)), set(256, &encode_record(&tcp()))],
    );
    assert_eq!(decode(&mut decoder, 0, HERE, &known), [Ok(tcp())]);
    let data = [set(256, &encode_record(&tcp()))];
    for (from, datagram) in [
        (there, emit::netflow_v9_datagram(1, 0, &data)),
        (HERE, emit::netflow_v9_datagram(1, 1, &data)),
        (HERE, emit::ipfix_message(1, 0, &data)),
    ] {
        assert_eq!(decode(&mut decoder, 0, from, &datagram), [Err(FlowReason::NoTemplate)]);
    }
    for (from, sequence) in [(HERE, 5), (there, 2), (HERE, 4)] {
        decode(&mut decoder, 0, from, &emit::netflow_v9_datagram(sequence, 0, &data));
    }
    let counted: Vec<_> = decoder.source_gaps().filter(|(_, counters)| counters.gaps != 0).collect();
    let source = FlowExportSource { exporter: HERE.into(), format: FlowExportFormat::V9, domain: 0 };
    assert_eq!(counted.len(), 1);
    assert_eq!((counted[0].0, counted[0].1.gaps, counted[0].1.gaps_filled), (source, 3, 1));
}

#[test]
fn records_are_numbered_in_v5_and_ipfix() {
    let records = vec![tcp(); 7];
    let (decoder, _) = all(&[
        emit::netflow_v5_datagram(0, 0, 0, &records),
        emit::netflow_v5_datagram(7, 0, 0, &records),
        emit::netflow_v5_datagram(21, 0, 0, &records),
    ]);
    assert_eq!(named(&decoder, "flows.gaps"), 7);
    let template = set(2, &encode_template(256, &FIELDS));
    let data = set(256, &records.iter().flat_map(encode_record).collect::<Vec<_>>());
    let message = |sequence| emit::ipfix_message(sequence, 0, std::slice::from_ref(&data));
    let (decoder, _) = all(&[emit::ipfix_message(0, 0, &[template]), message(0), message(10), message(17)]);
    assert_eq!(named(&decoder, "flows.gaps"), 3);
}

#[test]
fn damage_is_reported_and_what_comes_after_is_read() {
    for (bytes, reason) in [
        (&[][..], FlowReason::Version),
        (&[0, 7, 0, 0], FlowReason::Version),
        (&[0, 9, 0, 1, 0, 0], FlowReason::Malformed),
        (&[0, 5, 0, 1, 0, 0], FlowReason::Malformed),
    ] {
        assert_eq!(all(&[bytes.to_vec()]).1, [Err(reason)], "{bytes:?}");
    }
    // Cut short anywhere: nothing is taken that is not whole, and something is always reported.
    let sets = [set(2, &encode_template(256, &FIELDS)), set(256, &encode_record(&tcp()))];
    for whole in [
        emit::netflow_v5_datagram(1, 0, 0, &[tcp()]),
        emit::netflow_v9_datagram(1, 0, &sets),
        emit::ipfix_message(1, 0, &sets),
    ] {
        for len in 2..whole.len() {
            let decoded = all(&[whole[..len].to_vec()]).1;
            assert!(decoded.iter().all(|one| one.is_err()), "{len} of {} bytes: {decoded:?}", whole.len());
        }
    }
    // A set that is longer than its message: the records in it are whole.
    let mut lying =
        emit::ipfix_message(1, 0, &[sets[0].clone(), sets[1].clone(), set(256, &encode_record(&tcp()))]);
    let at = lying.len() - encode_record(&tcp()).len() - 2;
    lying[at..at + 2].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(all(&[lying]).1, [Err(FlowReason::Malformed), Ok(tcp()), Ok(tcp())]);
    // Too many flows for a datagram of v5.
    let mut many = emit::netflow_v5_datagram(1, 0, 0, &[tcp()]);
    many[2..4].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(all(&[many]).1, [Ok(FlowRecord { direction: 0, ..tcp() }), Err(FlowReason::Malformed)]);
    // A record without counts, and one without addresses.
    for fields in [&FIELDS[..7], &FIELDS[2..]] {
        let len: u16 = fields.iter().map(|(_, len)| len).sum();
        let sets = [set(0, &encode_template(256, fields)), set(256, &vec![1; usize::from(len)])];
        assert_eq!(all(&[emit::netflow_v9_datagram(1, 0, &sets)]).1, [Err(FlowReason::NoFlow)]);
    }
}

#[test]
fn templates_that_lie_leave_a_good_one_as_it_is() {
    let mut decoder = Decoder::new(DecoderOptions::default());
    decode(
        &mut decoder,
        0,
        HERE,
        &emit::netflow_v9_datagram(1, 0, &[set(0, &encode_template(256, &FIELDS))]),
    );
    for bad in [
        // No fields, no bytes, more fields than are there, more than are allowed, longer than any datagram.
        encode_template(256, &[]),
        encode_template(256, &[(8, 0)]),
        encode_u16_words(&[256, 100, 8, 4]),
        encode_template(256, &[(8, 4); 300]),
        encode_template(256, &[(8, 65535), (12, 65535)]),
        encode_u16_words(&[256]),
    ] {
        decode(&mut decoder, 0, HERE, &emit::netflow_v9_datagram(2, 0, &[set(0, &bad)]));
        let data = emit::netflow_v9_datagram(3, 0, &[set(256, &encode_record(&tcp()))]);
        assert_eq!(decode(&mut decoder, 0, HERE, &data), [Ok(tcp())], "{bad:?}");
    }
}

/// A packet of UDP from its Ethernet header on.
fn packet() -> Vec<u8> {
    let mut bytes = [vec![0; 12], encode_u16_words(&[0x0800, 0x4500, 500, 0, 0x4000, 0x4011, 0])].concat();
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(encode_u16_words(&[5000, 443, 480, 0]));
    bytes
}

fn sampled() -> FlowRecord {
    let flow = flow("10.0.0.1:5000->10.0.0.2:443/udp");
    FlowRecord { out_if: 4, in_if: 3, domain: 2, sampling_rate: 100, ..unsampled_record(flow, 1, 500) }
}

/// A sample by the interface 3, by which the packet came.
fn sample(records: &[Vec<u8>]) -> Vec<u8> {
    emit::sflow_sample(1, &[7, 3, 100, 0, 0, 3, 4], records)
}

fn sflow(sequence: u32, samples: &[Vec<u8>]) -> Vec<u8> {
    emit::sflow_datagram(HERE, 2, sequence, samples)
}

#[test]
fn samples_of_packets_are_records_in_each_form() {
    // One of a switch's own data is before the headers.
    let more = emit::if_counters(1, 2, 3);
    let more = [&2001u32.to_be_bytes()[..], &more[4..]].concat();
    let records = [more, emit::sflow_header_record(1, &packet())];
    for (sample, expected) in [
        (sample(&records), sampled()),
        (emit::sflow_sample(3, &[7, 0, 3, 100, 0, 0, 0, 3, 0, 4], &records), sampled()),
        // Sampled where it leaves.
        (
            emit::sflow_sample(1, &[7, 4, 100, 0, 0, 3, 4], &records),
            FlowRecord { direction: DIRECTION_EGRESS, ..sampled() },
        ),
        (
            emit::sflow_sample(3, &[7, 0, 4, 100, 0, 0, 0, 3, 0, 4], &records),
            FlowRecord { direction: DIRECTION_EGRESS, ..sampled() },
        ),
        // To several interfaces, to none (it was discarded), to the agent itself; and not of an interface, and without a rate.
        (
            emit::sflow_sample(1, &[7, 3, 100, 0, 0, 3, 0x8000_0002], &records),
            FlowRecord { out_if: 0, ..sampled() },
        ),
        (
            emit::sflow_sample(3, &[7, 0, 3, 100, 0, 0, 0, 3, 1, 258], &records),
            FlowRecord { out_if: 0, forwarding: 128, ..sampled() },
        ),
        (
            emit::sflow_sample(1, &[7, 3, 100, 0, 0, 3, 0x3fff_ffff], &records),
            FlowRecord { out_if: 0, ..sampled() },
        ),
        (
            emit::sflow_sample(1, &[7, 0x0200_0004, 0, 0, 0, 3, 4], &records),
            FlowRecord { sampling_rate: 1, ..sampled() },
        ),
        (sample(&[emit::sflow_header_record(11, &packet()[14..])]), sampled()),
    ] {
        let (decoder, decoded) = all(&[sflow(1, &[sample])]);
        assert_eq!(decoded, [Ok(expected)]);
        let source = FlowExportSource { exporter: HERE.into(), format: FlowExportFormat::Sflow, domain: 2 };
        assert_eq!(decoder.source_gaps().map(|(source, _)| source).collect::<Vec<_>>(), [source]);
    }
}

#[test]
fn notices_of_drops_and_counters_of_interfaces() {
    let drop = |records| emit::sflow_sample(5, &[7, 0, 3, 0, 3, 4, 258], records);
    let counters = |speed| emit::if_counters(4, speed, 1 << 40);
    let mut without = counters(1_000_000_000);
    // Behind the format, the length, number, kind, speed, direction and status.
    without[8 + 24..].fill(0xff);
    let samples = [
        drop(&[emit::sflow_header_record(1, &packet())]),
        drop(&[]),
        emit::sflow_sample(2, &[7, 4], &[counters(1_000_000_000)]),
        emit::sflow_sample(4, &[7, 0, 4], &[counters(10_000_000_000)]),
        // An interface whose speed is not known, one without counters, a host, and a vendor's.
        emit::sflow_sample(2, &[7, 4], &[counters(0)]),
        emit::sflow_sample(2, &[7, 4], &[without]),
        emit::sflow_sample(2, &[7, 0x0200_0001], &[]),
        emit::sflow_sample(4413 << 12 | 1, &[1, 2, 3], &[]),
    ];
    let mut decoder = Decoder::new(DecoderOptions::default());
    let decoded = exported(&mut decoder, 0, HERE, &sflow(1, &samples));
    let dropped = PacketDrop {
        flow: Some(sampled().flow_key()),
        exporter: HERE.into(),
        ingress: Some(3),
        egress: Some(4),
        reason: DropReason::from_sflow(258),
    };
    let mut counts = [Some(9); InterfaceCounter::ALL.len()];
    counts[InterfaceCounter::OutOctets as usize] = Some(1 << 40);
    let reading =
        InterfaceReading { exporter: HERE.into(), interface: 4, speed: Some(1_000_000_000), counts };
    let expected = [
        Exported::Drop(dropped),
        Exported::Drop(PacketDrop { flow: None, ..dropped }),
        Exported::Interface(reading),
        Exported::Interface(InterfaceReading { speed: Some(10_000_000_000), ..reading }),
        Exported::Interface(InterfaceReading { speed: None, ..reading }),
    ];
    assert_eq!(decoded, expected.map(Ok));
    assert_eq!((named(&decoder, "flows.interfaces"), named(&decoder, "flows.unused")), (3, 3));
}

#[test]
fn agents_and_their_parts_number_datagrams_for_themselves() {
    let mut decoder = Decoder::new(DecoderOptions::default());
    let datagram = |sub_agent, sequence| emit::sflow_datagram(HERE, sub_agent, sequence, &[]);
    // A datagram may come by any address; an agent that does not know its own is known by that.
    let there = Ipv4Addr::new(192, 0, 2, 1);
    let (mut unknown, mut v6) = (datagram(1, 1), datagram(1, 1));
    unknown[8..12].fill(0);
    v6[7] = 2;
    v6.splice(8..12, [0x20; 16]);
    for datagram in [datagram(1, 1), datagram(2, 50), datagram(1, 4), datagram(2, 51), unknown, v6] {
        assert_eq!(decode(&mut decoder, 0, there, &datagram), []);
    }
    let mut gaps: Vec<_> =
        decoder.source_gaps().map(|(source, counters)| (source.to_string(), counters.gaps)).collect();
    gaps.sort();
    let expected = [
        ("10.0.0.1/sflow/1", 2),
        ("10.0.0.1/sflow/2", 0),
        ("192.0.2.1/sflow/1", 0),
        ("2020:2020:2020:2020:2020:2020:2020:2020/sflow/1", 0),
    ];
    assert_eq!(gaps, expected.map(|(source, gaps)| (source.to_owned(), gaps)));
}

#[test]
fn damaged_samples_are_reported_and_those_behind_them_are_read() {
    let whole = sample(&[emit::sflow_header_record(1, &packet())]);
    // Cut short anywhere: nothing is taken that is not whole, and something is always reported.
    let datagram = sflow(1, std::slice::from_ref(&whole));
    for len in 4..datagram.len() {
        assert_eq!(all(&[datagram[..len].to_vec()]).1, [Err(FlowReason::Malformed)], "{len} bytes");
    }
    // A record, a packet and a number of records that are longer than their sample, and a sample of another protocol.
    let mut long = whole.clone();
    long[47] = 0xff;
    let mut header = whole.clone();
    header[63] = 0xff;
    let mut many = whole.clone();
    many[36..40].copy_from_slice(&[0xff; 4]);
    let arp = [&packet()[..12], &[8, 6, 0, 1]].concat();
    for (bad, reason) in [
        (long, FlowReason::Malformed),
        (header, FlowReason::Malformed),
        (many, FlowReason::Malformed),
        (emit::sflow_sample(1, &[7, 3], &[]), FlowReason::Malformed),
        (emit::sflow_sample(2, &[7, 3], &[emit::if_counters(1, 2, 3)[..40].to_vec()]), FlowReason::Malformed),
        (emit::sflow_sample(5, &[7, 0, 3], &[]), FlowReason::Malformed),
        (sample(&[]), FlowReason::NoFlow),
        (sample(&[emit::sflow_header_record(1, &arp)]), FlowReason::NoFlow),
        (sample(&[emit::sflow_header_record(7, &packet())]), FlowReason::NoFlow),
    ] {
        assert_eq!(all(&[sflow(1, &[bad, whole.clone()])]).1, [Err(reason), Ok(sampled())]);
    }
    // A sample longer than its datagram, and more samples than there are: nothing behind it can be found.
    let mut lying = sflow(1, &[whole.clone(), whole.clone()]);
    let at = 28 + whole.len() + 4;
    lying[at..at + 4].copy_from_slice(&[0xff; 4]);
    assert_eq!(all(&[lying]).1, [Ok(sampled()), Err(FlowReason::Malformed)]);
    let mut missing = sflow(1, &[whole]);
    missing[24..28].copy_from_slice(&[0xff; 4]);
    assert_eq!(all(&[missing]).1, [Ok(sampled()), Err(FlowReason::Malformed)]);
    // sFlow v4, and an address of no kind.
    for (at, byte, reason) in [(3, 4, FlowReason::Version), (7, 9, FlowReason::Malformed)] {
        let mut other = sflow(1, &[]);
        other[at] = byte;
        assert_eq!(all(&[other]).1, [Err(reason)]);
    }
}

#[test]
fn what_an_agent_knows_of_a_packet_fills_columns() {
    let item = |format: u32, words: &[u32]| {
        let mut item = vec![format, 4 * words.len() as u32];
        item.extend(words);
        item.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>()
    };
    let records = [
        item(1001, &[7, 0, 8, 0]),
        item(1002, &[1, 0xc000_0209, 24, 24]),
        // From the agent's own network, by AS 64500 to 64501.
        item(1003, &[1, 0xc000_0209, 64499, 0, 0, 1, 2, 2, 64500, 64501, 0, 0]),
        item(1007, &[1, 0xc633_6401, 1, 0]),
        item(1020, &[40000, 0]),
        item(1036, &[5]),
        item(1039, &[700]),
        item(1040, &[9000]),
        emit::sflow_header_record(1, &packet()),
        // One that is damaged says nothing.
        item(1003, &[1]),
    ];
    let mut decoder = Decoder::new(DecoderOptions::default());
    let decoded = exported(&mut decoder, 0, HERE, &sflow(1, &[sample(&records)]));
    let mapped = |text: &str| text.parse::<Ipv4Addr>().unwrap().to_ipv6_mapped();
    let record = FlowRecord {
        in_vlan: 7,
        out_vlan: 8,
        next_hop: mapped("192.0.2.9"),
        src_as: 64499,
        dst_as: 64501,
        nat_src: mapped("198.51.100.1"),
        nat_src_port: 40000,
        ..sampled()
    };
    let transit = TransitReading {
        flow: sampled().flow_key(),
        exporter: HERE.into(),
        egress: Some(4),
        queue: Some(5),
        latency: Some(700),
        depth: Some(9000),
    };
    assert_eq!(decoded, [Ok(Exported::Flow(record)), Ok(Exported::Transit(transit))]);
    assert_eq!(named(&decoder, "flows.hops"), 1);
}

#[test]
fn tags_and_flags_of_a_sampled_packet_fill_columns() {
    // QinQ, a label with a pseudowire and its control word in it, PPPoE; flags and service of the TCP packet.
    let ip =
        [&encode_u16_words(&[0x45b8, 60, 0, 0x4000, 0x4006, 0])[..], &[10, 0, 0, 1, 10, 0, 0, 2]].concat();
    let tcp = [&encode_u16_words(&[5000, 80])[..], &[0; 8], &[0x50, 0x12]].concat();
    let ip = [ip, tcp].concat();
    let ethernet = |tags: &[u16]| [vec![0x02; 12], encode_u16_words(tags)].concat();
    let plain = [ethernet(&[0x88a8, 7, 0x8100, 9, 0x0800]), ip.clone()].concat();
    let wire = [ethernet(&[0x8847, 0, 0x6140, 0, 0]), ethernet(&[0x8100, 9, 0x0800]), ip.clone()].concat();
    let without_word =
        [ethernet(&[0x8847, 0, 0x6140]), vec![0x12], ethernet(&[0x0800])[1..].to_vec(), ip.clone()];
    let pppoe = [ethernet(&[0x8864, 0x1100, 1, 62, 0x21]), ip].concat();
    for (frame, vlan, label) in [(plain, 7, 0), (wire, 9, 6), (without_word.concat(), 0, 6), (pppoe, 0, 0)] {
        let (_, decoded) = all(&[sflow(1, &[sample(&[emit::sflow_header_record(1, &frame)])])]);
        let record = decoded[0].unwrap_or_else(|reason| panic!("{reason:?}: {frame:x?}"));
        assert_eq!(record.flow_key(), flow("10.0.0.1:5000->10.0.0.2:80/tcp"), "{frame:x?}");
        assert_eq!((record.in_vlan, record.mpls_label), (vlan, label), "{frame:x?}");
        assert_eq!((record.tcp_flags, record.dscp, record.bytes), (0x12, 46, 60), "{frame:x?}");
    }
}

#[test]
fn every_column_is_read_of_a_template() {
    let fields = [
        (8, 4),
        (12, 4),
        (7, 2),
        (11, 2),
        (4, 1),
        (1, 8),
        (2, 4),
        (10, 4),
        (14, 2),
        (16, 4),
        (17, 2),
        (15, 4),
        (225, 4),
        (226, 4),
        (227, 2),
        (228, 2),
        (58, 2),
        (59, 2),
        (234, 4),
        (351, 8),
        (70, 3),
        (5, 1),
        (6, 2),
        (61, 1),
        (89, 1),
        (150, 4),
        (151, 4),
        (34, 4),
    ];
    let values = [
        0x0a00_0001,
        0x0a00_0002,
        5000,
        80,
        6,
        4200,
        7,
        3,
        4,
        64500,
        64501,
        0xc000_0209,
        0xc633_6401,
        0xc633_6402,
        40000,
        8080,
        0x2007,
        8,
        9,
        0x0100_0000_0000_004d,
        0x00_0651,
        0xb8,
        0x0112,
        1,
        64,
        1_700_000_000,
        1_700_000_060,
        100,
    ];
    let data: Vec<u8> = fields
        .iter()
        .zip(values)
        .flat_map(|((_, len), value): (&(u16, u16), u64)| {
            value.to_be_bytes()[8 - usize::from(*len)..].to_vec()
        })
        .collect();
    let mapped = |text: &str| text.parse::<Ipv4Addr>().unwrap().to_ipv6_mapped();
    let expected = FlowRecord {
        start: 1_700_000_000_000_000_000,
        end: 1_700_000_060_000_000_000,
        next_hop: mapped("192.0.2.9"),
        nat_src: mapped("198.51.100.1"),
        nat_dst: mapped("198.51.100.2"),
        nat_src_port: 40000,
        nat_dst_port: 8080,
        in_if: 3,
        out_if: 4,
        src_as: 64500,
        dst_as: 64501,
        in_vlan: 7,
        out_vlan: 8,
        vrf: 9,
        vni: 77,
        mpls_label: 101,
        dscp: 46,
        tcp_flags: 0x12,
        direction: DIRECTION_EGRESS,
        forwarding: 64,
        sampling_rate: 100,
        domain: 5,
        ..tcp()
    };
    // Behind a field of unknown length, and without one.
    let varying = [&[(82u16, 65535u16)][..], &fields].concat();
    let (plain, long) = (data.clone(), [&[255, 1, 0][..], &[b'x'; 256], &data].concat());
    for (fields, data) in [(&fields[..], plain), (&varying, long)] {
        let sets = [set(2, &encode_template(256, fields)), set(256, &[data.clone(), data].concat())];
        assert_eq!(all(&[emit::ipfix_message(1, 5, &sets)]).1, [Ok(expected), Ok(expected)]);
    }
}

#[test]
fn a_rate_is_of_its_scope_or_the_configurations() {
    let rate = |decoded: &Decoded| decoded.iter().map(|one| one.unwrap().sampling_rate).collect::<Vec<_>>();
    let template = set(2, &encode_template(256, &FIELDS));
    let data = set(256, &encode_record(&tcp()));
    // Options of the domain 0 about the domain 7, with a rate of 0 before them.
    let options = [
        set(3, &encode_u16_words(&[300, 2, 1, 149, 4, 34, 4])),
        set(300, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 50]),
    ];
    let (_, decoded) = all(&[
        emit::ipfix_message(0, 0, &options),
        emit::ipfix_message(0, 7, &[template.clone(), data.clone()]),
        emit::ipfix_message(0, 8, &[template.clone(), data.clone()]),
    ]);
    assert_eq!(rate(&decoded), [50, 1]);
    // The longest prefix; what an exporter announces goes before.
    let sampling =
        [("10.0.0.0/8", 20), ("10.0.0.1", 30)].map(|(prefix, rate)| (prefix.parse().unwrap(), rate));
    let mut decoder =
        Decoder::new(DecoderOptions { sampling: sampling.to_vec(), ..DecoderOptions::default() });
    let both = emit::ipfix_message(0, 0, &[template.clone(), data.clone()]);
    for (from, expected) in [(HERE, 30), (Ipv4Addr::new(10, 0, 0, 2), 20), (Ipv4Addr::new(11, 0, 0, 2), 1)] {
        assert_eq!(rate(&decode(&mut decoder, 0, from, &both)), [expected], "{from}");
    }
    let announced =
        [set(3, &encode_u16_words(&[300, 2, 1, 149, 4, 34, 4])), set(300, &[0, 0, 0, 0, 0, 0, 0, 9])];
    decode(&mut decoder, 0, HERE, &emit::ipfix_message(1, 0, &announced));
    assert_eq!(rate(&decode(&mut decoder, 0, HERE, &both)), [9]);
    let v5 = |word| emit::netflow_v5_datagram(1, 0, word, &[tcp()]);
    assert_eq!(rate(&decode(&mut decoder, 0, HERE, &v5(0))), [30]);
    assert_eq!(rate(&decode(&mut decoder, 0, HERE, &v5(40))), [40]);
}

#[test]
fn counts_that_nobody_can_have_are_left_out() {
    let template = encode_template(256, &[(8, 4), (12, 4), (4, 1), (1, 8), (2, 8)]);
    let body = |bytes: u64, packets: u64| {
        [&[10, 0, 0, 1, 10, 0, 0, 2, 50][..], &bytes.to_be_bytes(), &packets.to_be_bytes()].concat()
    };
    let most = 1 << 48;
    for (bytes, packets, expected) in [
        (most, 1, Ok((most, 1))),
        (most + 1, 1, Err(FlowReason::Implausible)),
        (100, u64::MAX, Err(FlowReason::Implausible)),
        (u64::MAX, u64::MAX, Err(FlowReason::Implausible)),
        (0, 0, Err(FlowReason::NoFlow)),
    ] {
        let sets = [set(2, &template), set(256, &body(bytes, packets))];
        let (_, decoded) = all(&[emit::ipfix_message(1, 0, &sets)]);
        let counts: Vec<_> =
            decoded.iter().map(|one| one.map(|record| (record.bytes, record.packets))).collect();
        assert_eq!(counts, [expected]);
    }
}

#[test]
fn padding_is_read_and_other_rests_are_reported() {
    let sets = |tail: &[u8]| {
        let mut datagram = emit::netflow_v9_datagram(
            1,
            0,
            &[set(0, &encode_template(256, &FIELDS)), set(256, &encode_record(&tcp()))],
        );
        datagram.extend(tail);
        datagram
    };
    assert_eq!(all(&[sets(&[0; 40])]).1, [Ok(tcp())]);
    assert_eq!(all(&[sets(&[0, 0, 0, 0, 1, 0, 0, 0])]).1, [Err(FlowReason::Malformed), Ok(tcp())]);
    // Ids that mean nothing, with what is behind them.
    let mut more = sets(&set(2, &[1; 8]));
    more.extend(set(200, &[1; 8]));
    more.extend(set(256, &[encode_record(&tcp()), vec![0; 3]].concat()));
    more.extend(set(256, &[encode_record(&tcp()), vec![1; 5]].concat()));
    let (decoder, decoded) = all(&[more]);
    let unknown = Err(FlowReason::UnknownSet);
    assert_eq!(decoded, [unknown, unknown, Ok(tcp()), Ok(tcp()), Ok(tcp()), Err(FlowReason::Malformed)]);
    assert_eq!(named(&decoder, "flows.unread_bytes.unknown_set"), 16);
    assert_eq!(named(&decoder, "flows.unread_bytes.malformed"), 5);
}

#[test]
fn a_templates_options_may_have_any_length_and_be_withdrawn() {
    // v9 gives lengths in bytes: 9 bytes are two fields.
    let mut options = encode_u16_words(&[300, 4, 9, 1, 4, 34, 4, 35, 1]);
    options.push(0);
    let sets = [set(1, &options), set(300, &[0, 0, 0, 0, 0, 0, 0, 9, 2])];
    let data = [set(0, &encode_template(256, &FIELDS)), set(256, &encode_record(&tcp()))];
    let (_, decoded) = all(&[emit::netflow_v9_datagram(1, 0, &[&sets[..], &data].concat())]);
    assert_eq!(decoded, [Ok(FlowRecord { sampling_rate: 9, ..tcp() })]);
    // Withdrawals, which UDP does not have, and a set of templates without any.
    let data = [set(2, &encode_template(256, &FIELDS)), set(256, &encode_record(&tcp()))];
    let withdrawals =
        [set(2, &encode_u16_words(&[256, 0])), set(3, &encode_u16_words(&[300, 0])), set(2, &[])];
    let (decoder, decoded) =
        all(&[emit::ipfix_message(1, 0, &[&data[..], &withdrawals, &data[1..]].concat())]);
    assert_eq!(decoded, [Ok(tcp()), Ok(tcp())]);
    assert_eq!(named(&decoder, "flows.templates"), 1);
}

#[test]
fn processes_behind_one_address_have_templates_and_numbers_of_their_own() {
    let mut decoder = Decoder::new(DecoderOptions::default());
    let mut decode_from = |from: SocketAddr, datagram: &[u8]| {
        let mut all = Vec::new();
        decoder.decode_datagram(ArrivalTime::default(), from, datagram, |one| all.push(one));
        all
    };
    let here: IpAddr = "2001:db8::9".parse().unwrap();
    let record = Exported::Flow(FlowRecord { exporter: "2001:db8::9".parse().unwrap(), ..tcp() });
    let template = set(0, &encode_template(256, &FIELDS));
    let data = set(256, &encode_record(&tcp()));
    let datagram = |sequence, sets: &[Vec<u8>]| emit::netflow_v9_datagram(sequence, 0, sets);
    assert_eq!(decode_from((here, 1).into(), &datagram(1, &[template.clone(), data.clone()])), [Ok(record)]);
    assert_eq!(
        decode_from((here, 2).into(), &datagram(700, std::slice::from_ref(&data))),
        [Err(FlowReason::NoTemplate)]
    );
    assert_eq!(decode_from((here, 1).into(), &datagram(2, std::slice::from_ref(&data))), [Ok(record)]);
    decode_from((here, 2).into(), &datagram(703, &[data]));
    // To people they are one source.
    let gaps: Vec<_> = decoder.source_gaps().map(|(source, gaps)| (source.to_string(), gaps.gaps)).collect();
    assert_eq!(gaps, [("2001:db8::9/v9/0".to_owned(), 2)]);
    assert_eq!(named(&decoder, "flows.sources"), 2);
}

#[test]
fn an_exporter_has_its_share_of_places_and_others_keep_theirs() {
    let options = DecoderOptions { sources: 8, sources_per_address: 3, ..DecoderOptions::default() };
    let mut decoder = Decoder::new(options);
    let there = Ipv4Addr::new(10, 0, 0, 2);
    let sets = [set(0, &encode_template(256, &FIELDS)), set(256, &encode_record(&tcp()))];
    let second = 1_000_000_000;
    for domain in 0..10_000 {
        let decoded = decode(&mut decoder, 0, HERE, &emit::netflow_v9_datagram(1, domain, &sets));
        let expected = if domain < 3 {
            Ok(tcp()).map(|tcp| FlowRecord { domain, ..tcp })
        } else {
            Err(FlowReason::NoRoom)
        };
        assert_eq!(decoded, [expected]);
    }
    assert!(decode(&mut decoder, 0, there, &emit::netflow_v9_datagram(1, 0, &sets))[0].is_ok());
    // Of its own places, those that have been silent for a minute are taken.
    for domain in [0, 1] {
        decode(&mut decoder, 60 * second, HERE, &emit::netflow_v9_datagram(2, domain, &sets));
    }
    for (domain, is_taken) in [(77, true), (78, false)] {
        let decoded = decode(&mut decoder, 61 * second, HERE, &emit::netflow_v9_datagram(1, domain, &sets));
        assert_eq!(decoded[0].is_ok(), is_taken, "{domain}");
    }
    assert_eq!(named(&decoder, "flows.sources"), 4);
}

#[test]
fn senders_and_agents_may_be_listed() {
    let allowed = vec!["10.0.0.0/30".parse().unwrap()];
    let mut decoder = Decoder::new(DecoderOptions { allowed, ..DecoderOptions::default() });
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    let agent = Ipv4Addr::new(10, 0, 0, 2);
    let datagram =
        |agent| emit::sflow_datagram(agent, 2, 1, &[sample(&[emit::sflow_header_record(1, &packet())])]);
    let v5 = emit::netflow_v5_datagram(1, 0, 0, &[tcp()]);
    for (from, datagram, refused) in [
        (stranger, &v5, Some(FlowReason::NotListed)),
        (stranger, &datagram(agent), Some(FlowReason::NotListed)),
        (HERE, &datagram(stranger), Some(FlowReason::ForeignAgent)),
        (HERE, &datagram(agent), None),
        (HERE, &v5, None),
    ] {
        let decoded = decode(&mut decoder, 0, from, datagram);
        assert_eq!(decoded[0].err(), refused, "{from}");
    }
    assert_eq!(decoder.take_new_senders(), [IpAddr::from(HERE)]);
}

#[test]
fn an_agent_belongs_to_its_sender() {
    let mut decoder = Decoder::new(DecoderOptions::default());
    let (agent, relay, stranger) = (HERE, Ipv4Addr::new(10, 0, 0, 8), Ipv4Addr::new(192, 0, 2, 1));
    let datagram = emit::sflow_datagram(agent, 2, 1, &[sample(&[emit::sflow_header_record(1, &packet())])]);
    let second = 1_000_000_000;
    // A relay speaks for it, until it speaks itself; nobody else does, unless it is silent.
    for (now, from, is_taken) in [
        (0, relay, true),
        (1, stranger, false),
        (2, agent, true),
        (3, relay, false),
        (61, stranger, false),
        (63, relay, true),
        (64, stranger, false),
    ] {
        let decoded = decode(&mut decoder, now * second, from, &datagram);
        assert_eq!(decoded[0], if is_taken { Ok(sampled()) } else { Err(FlowReason::ForeignAgent) }, "{now}");
    }
}

/// Two decoders, as two threads have them, follow no more sources than one, and know each other's agents.
#[test]
fn decoders_share_places_and_agents() {
    let options = DecoderOptions { sources: 3, ..DecoderOptions::default() };
    let registry = Arc::new(SourceRegistry::default());
    let mut decoders = [(); 2].map(|()| Decoder::with_registry(options.clone(), Arc::clone(&registry)));
    let sets = [set(0, &encode_template(256, &FIELDS)), set(256, &encode_record(&tcp()))];
    let exporter = |last| Ipv4Addr::new(10, 0, 1, last);
    let second = 1_000_000_000;
    for (worker, last, is_taken) in [(0, 1, true), (1, 2, true), (0, 3, true), (1, 4, false), (0, 5, false)] {
        let v9 = emit::netflow_v9_datagram(1, 0, &sets);
        let decoded = decode(&mut decoders[worker], 0, exporter(last), &v9);
        assert_eq!(decoded[0].as_ref().err(), (!is_taken).then_some(&FlowReason::NoRoom), "{last}");
    }
    // After half an hour the first one's silent sources make room for the second's, once it looks, too.
    let later = 1801 * second;
    let v9 = emit::netflow_v9_datagram(2, 0, &sets);
    assert!(decode(&mut decoders[1], later, exporter(4), &v9)[0].is_ok(), "its own source was silent");
    for (last, is_taken) in [(5, false), (6, true)] {
        let decoded = decode(&mut decoders[1], later, exporter(last), &v9);
        assert_eq!(decoded[0].is_ok(), is_taken, "{last}");
        decoders[0].take_part_in_search(later);
    }
    assert_eq!(decoders.each_ref().map(|decoder| named(decoder, "flows.sources")), [0, 2]);
    // The places of senders that come to another decoder are free.
    decoders[1].keep_senders(|sender| sender == IpAddr::from(exporter(4)));
    for last in [6, 7] {
        assert!(decode(&mut decoders[0], later, exporter(last), &v9)[0].is_ok(), "{last}");
    }
    assert_eq!(decoders.each_ref().map(|decoder| named(decoder, "flows.sources")), [2, 1]);

    let registry = Arc::new(SourceRegistry::default());
    let shared = |()| Decoder::with_registry(DecoderOptions::default(), Arc::clone(&registry));
    let mut decoders = [(); 2].map(shared);
    let datagram = emit::sflow_datagram(HERE, 2, 1, &[sample(&[emit::sflow_header_record(1, &packet())])]);
    for (worker, from, is_taken) in
        [(0, exporter(1), true), (1, exporter(2), false), (1, HERE, true), (0, exporter(1), false)]
    {
        let decoded = decode(&mut decoders[worker], later, from, &datagram);
        assert_eq!(
            decoded[0],
            if is_taken { Ok(sampled()) } else { Err(FlowReason::ForeignAgent) },
            "{from}"
        );
    }
}

#[test]
fn structures_of_vendors_are_counted_by_vendor() {
    // Addresses and a vendor's element 1; counts and another's; a vendor's own elements only.
    let vendors = |enterprise: u32, id, fields: &[(u16, u16)]| {
        let mut template = encode_template(id, fields);
        let count = template[3] + 1;
        template[3] = count;
        template.extend([&[0x80, 1, 0, 4][..], &enterprise.to_be_bytes()].concat());
        set(2, &template)
    };
    let data = |id, len: u16| set(id, &vec![1; usize::from(len) + 4]);
    let all_fields: u16 = FIELDS.iter().map(|(_, len)| len).sum();
    let sets = [
        vendors(4413, 256, &FIELDS[..2]),
        vendors(4413, 257, &FIELDS),
        vendors(1, 258, &[]),
        data(256, 8),
        data(256, 8),
        data(257, all_fields),
        data(258, 0),
    ];
    let (decoder, decoded) = all(&[emit::ipfix_message(0, 0, &sets)]);
    assert_eq!(decoded.iter().filter(|one| **one == Err(FlowReason::Enterprise)).count(), 3, "{decoded:?}");
    assert_eq!(decoded.iter().filter(|one| one.is_ok()).count(), 1, "{decoded:?}");
    let sets = ["broadcom", "other"].map(|of| named(&decoder, &format!("flows.enterprise_sets.{of}")));
    assert_eq!(sets, [2, 1]);
    assert_eq!(decoder.decoder_counters().find_imbalance(), None);
}

/// A set of any kind, whose id and length may lie.
fn any_set() -> impl Strategy<Value = Vec<u8>> {
    let id = prop_oneof![0u16..4, 256u16..259, any::<u16>()];
    let field = (
        prop_oneof![0u16..90, 150u16..160, 225u16..320, any::<u16>()],
        prop_oneof![0u16..17, Just(65535u16)],
    );
    let template = (256u16..259, prop::collection::vec(field, 0..12))
        .prop_map(|(id, fields)| encode_template(id, &fields));
    let body = prop_oneof![prop::collection::vec(any::<u8>(), 0..80), template, Just(vec![0; 24])];
    (id, body, prop_oneof![9 => Just(0u16), 1 => any::<u16>()]).prop_map(|(id, body, lie)| {
        let mut bytes = set(id, &body);
        let len = u16::from_be_bytes([bytes[2], bytes[3]]) ^ lie;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes
    })
}

fn any_datagram() -> impl Strategy<Value = Vec<u8>> {
    let sets = || prop::collection::vec(any_set(), 0..6);
    let samples =
        prop::collection::vec((0u32..6, prop::collection::vec(0u32..4, 0..60)), 0..4).prop_map(|samples| {
            let samples: Vec<_> =
                samples.iter().map(|(format, words)| emit::sflow_sample(*format, words, &[])).collect();
            emit::sflow_datagram(HERE, 1, 1, &samples)
        });
    let whole = prop_oneof![
        sets().prop_map(|sets| emit::netflow_v9_datagram(1, 0, &sets)),
        sets().prop_map(|sets| emit::ipfix_message(1, 0, &sets)),
        (0u16..4, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(count, rest)| {
            [emit::netflow_v5_datagram(count.into(), 0, count, &[]), rest].concat()
        }),
        samples,
        prop::collection::vec(any::<u8>(), 0..100),
    ];
    (whole, prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()))).prop_map(
        |(mut bytes, damage)| {
            if let Some((at, byte)) = damage.filter(|_| !bytes.is_empty()) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        },
    )
}

proptest! {
    /// Every byte is read, or counted under a reason that is handed on.
    #[test]
    fn every_byte_has_a_fate(datagrams in prop::collection::vec(any_datagram(), 1..8)) {
        let mut decoder = Decoder::new(DecoderOptions { sources: 2, ..DecoderOptions::default() });
        let mut reasons = Vec::new();
        for datagram in &datagrams {
            reasons.extend(exported(&mut decoder, 0, HERE, datagram).into_iter().filter_map(Result::err));
            prop_assert_eq!(decoder.decoder_counters().find_imbalance(), None);
        }
        let counters = decoder.decoder_counters();
        prop_assert_eq!(counters.bytes, datagrams.iter().map(Vec::len).sum::<usize>() as u64);
        for (reason, bytes) in FlowReason::ALL.iter().zip(counters.unread_bytes) {
            prop_assert!(bytes == 0 || reasons.contains(reason), "{:?} of {} bytes was not reported", reason, bytes);
        }
    }
}
