use std::net::Ipv4Addr;

use dta_proto::key::Flow;
use dta_telemetry::flow_record::Exported;
use dta_telemetry::flows::Decoder;
use dta_telemetry::flows::emit::{
    self, FIELDS, FIELDS_V6, encode_record, encode_template, encode_u16_words, set, unsampled_record,
};

/// Datagrams of one exporter, each with two bytes of its length before it: the first ones may have the templates of the
/// next.
pub(crate) fn check(mut bytes: &[u8]) -> bool {
    let mut decoder = Decoder::new(4);
    let (mut taken, mut now) = (false, 0);
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (datagram, rest) = rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()));
        let mut told = 0;
        decoder.decode_datagram(now, Ipv4Addr::LOCALHOST, datagram, |one| {
            told += 1;
            if let Ok(Exported::Flow(record)) = one {
                assert!(record.sampling != 0 && record.all_packets() >= record.packets);
            }
            taken |= one.is_ok();
        });
        // A record has a byte at least, and two directions at most.
        assert!(told <= 2 * datagram.len() + 1, "{told} of {} bytes", datagram.len());
        (bytes, now) = (rest, now + 1_000_000_000);
    }
    assert!(decoder.source_gaps().count() <= 4 && decoder.templates() <= 4 * 4 * 32);
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
pub(crate) fn seeds() -> Vec<Vec<u8>> {
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
