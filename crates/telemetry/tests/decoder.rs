//! Datagrams of every format, whole, damaged, lying and too many.

use std::net::Ipv4Addr;

use dta_proto::counter::FlowReason;
use dta_proto::drop_reason::DropReason;
use dta_proto::flow_record::{DIRECTION_EGRESS, FlowRecord};
use dta_proto::key::Flow;
use dta_proto::telemetry::InterfaceCounter;
use dta_proto::trace::TraceName;
use dta_telemetry::exported::{Exported, InterfaceName, InterfaceReading, PacketDrop};
use dta_telemetry::flows::emit::{
    self, FIELDS, FIELDS_V6, encode_record, encode_template, encode_u16_words, set, unsampled_record,
};
use dta_telemetry::flows::{Decoder, FlowExportFormat, FlowExportSource};
use dta_telemetry::reports::ArrivalTime;

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
    let mut decoder = Decoder::new(16);
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
    let told = ((seconds - 7) * second, seconds * second - 1_000_000);
    let mut v5 = emit::netflow_v5_datagram(1, 0, 0, &[tcp()]);
    v5[4..8].copy_from_slice(&uptime.to_be_bytes());
    v5[8..12].copy_from_slice(&(seconds as u32).to_be_bytes());
    v5[12..16].copy_from_slice(&5u32.to_be_bytes());
    v5[48..52].copy_from_slice(&began.to_be_bytes());
    v5[52..56].copy_from_slice(&ended.to_be_bytes());
    assert_eq!(times(&all(&[v5]).1), (told.0 + 5, told.1 + 5));
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
    assert_eq!(times(&all(&[v9(began)]).1), told);
    assert_eq!(times(&all(&[v9(uptime + 1)]).1).0, seconds * second + 1_000_000, "counted while it was sent");
    // Of an exporter without a clock, the arrival stands for the time of sending.
    let mut without_clock = v9(began);
    without_clock[8..12].copy_from_slice(&60u32.to_be_bytes());
    let at = ArrivalTime { now: 0, wall: 100 * second };
    let mut decoded = Vec::new();
    Decoder::new(1).decode_datagram(at, (HERE, 2055).into(), &without_clock, |one| decoded.push(one));
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
    for (datagram, name) in [
        (emit::netflow_v9_datagram(1, 0, &of_scope), "Gi0/3"),
        (emit::netflow_v9_datagram(1, 0, &of_system), "eth3"),
        (emit::ipfix_message(1, 0, &ipfix), "eth3"),
        (emit::ipfix_message(1, 0, &described), "uplink"),
    ] {
        let mut decoder = Decoder::new(16);
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
        set(300, &sampler(2, 1000)),
        set(257, &[encode_record(&tcp()), vec![2]].concat()),
        set(257, &[encode_record(&tcp()), vec![7]].concat()),
        set(256, &encode_record(&tcp())),
    ];
    let (decoder, v9) = all(&[emit::netflow_v9_datagram(1, 0, &sets)]);
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
    let mut decoder = Decoder::new(16);
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
fn damage_is_told_and_what_comes_after_is_read() {
    let malformed: Decoded = vec![Err(FlowReason::Malformed)];
    for (bytes, reason) in [
        (&[][..], FlowReason::Version),
        (&[0, 7, 0, 0], FlowReason::Version),
        (&[0, 9, 0, 1, 0, 0], FlowReason::Malformed),
        (&[0, 5, 0, 1, 0, 0], FlowReason::Malformed),
    ] {
        assert_eq!(all(&[bytes.to_vec()]).1, [Err(reason)], "{bytes:?}");
    }
    // Cut short anywhere: nothing is taken that is not whole, and something is always told.
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
    // A set that is longer than its message, with one before it that is whole.
    let mut lying =
        emit::ipfix_message(1, 0, &[sets[0].clone(), sets[1].clone(), set(256, &encode_record(&tcp()))]);
    let at = lying.len() - encode_record(&tcp()).len() - 2;
    lying[at..at + 2].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(all(&[lying]).1, [Ok(tcp()), Err(FlowReason::Malformed)]);
    // Too many flows for a datagram of v5.
    let mut many = emit::netflow_v5_datagram(1, 0, 0, &[tcp()]);
    many[2..4].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(all(&[many]).1, malformed);
    // A record without counts, and one without addresses.
    for fields in [&FIELDS[..7], &FIELDS[2..]] {
        let len: u16 = fields.iter().map(|(_, len)| len).sum();
        let sets = [set(0, &encode_template(256, fields)), set(256, &vec![1; usize::from(len)])];
        assert_eq!(all(&[emit::netflow_v9_datagram(1, 0, &sets)]).1, [Err(FlowReason::NoFlow)]);
    }
}

#[test]
fn templates_that_lie_leave_a_good_one_as_it_is() {
    let mut decoder = Decoder::new(16);
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
        encode_template(256, &[(8, 4); 200]),
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
    let more = [&1001u32.to_be_bytes()[..], &more[4..]].concat();
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
        // To several interfaces, to none, to the agent itself; and not of an interface, and without a rate.
        (
            emit::sflow_sample(1, &[7, 3, 100, 0, 0, 3, 0x8000_0002], &records),
            FlowRecord { out_if: 0, ..sampled() },
        ),
        (
            emit::sflow_sample(3, &[7, 0, 3, 100, 0, 0, 0, 3, 1, 258], &records),
            FlowRecord { out_if: 0, ..sampled() },
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
    let mut decoder = Decoder::new(16);
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
    let mut decoder = Decoder::new(16);
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
fn damaged_samples_are_told_and_those_behind_them_are_read() {
    let whole = sample(&[emit::sflow_header_record(1, &packet())]);
    // Cut short anywhere: nothing is taken that is not whole, and something is always told.
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
