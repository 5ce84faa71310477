//! Memory stays bounded, whatever is sent. Alone in its process, as it measures that.

use std::net::Ipv4Addr;

use dta_proto::counter::FlowReason;
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::emit::{self, FIELDS, encode_record, encode_template, set, unsampled_record};
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::ArrivalTime;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SECOND: u64 = 1_000_000_000;

fn decode(
    decoder: &mut Decoder,
    now: u64,
    from: Ipv4Addr,
    datagram: &[u8],
) -> Vec<Result<Exported, FlowReason>> {
    let mut all = Vec::new();
    decoder.decode_datagram(ArrivalTime { now, wall: 0 }, (from, 2055).into(), datagram, |one| all.push(one));
    all
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Templates as long as they may be, of five domains and both formats, with ever new ids.
fn a_million_templates() {
    let before = resident();
    let mut decoder = Decoder::new(DecoderOptions { sources: 16, ..DecoderOptions::default() });
    let body = encode_template(256, &[(8, 4); 128]);
    let mut datagrams =
        [emit::netflow_v9_datagram(0, 0, &[set(0, &body)]), emit::ipfix_message(0, 0, &[set(2, &body)])];
    for n in 0..1_000_000u32 {
        let datagram = &mut datagrams[n as usize & 1];
        // Of the header, then of the template behind it and its set.
        let (domain, id) = if n & 1 == 0 { (19, 24) } else { (15, 20) };
        datagram[domain] = (n % 5) as u8;
        datagram[id..id + 2].copy_from_slice(&(256 + (n % 60_000) as u16).to_be_bytes());
        assert_eq!(decode(&mut decoder, 0, HERE, datagram), []);
    }
    assert_eq!(decoder.templates(), 10 * 64);
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
}

fn a_hundred_thousand_exporters() {
    let before = resident();
    let mut decoder = Decoder::new(DecoderOptions { sources_per_address: 1024, ..DecoderOptions::default() });
    let tcp = unsampled_record("10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap(), 7, 4200);
    let data = [set(256, &encode_record(&tcp))];
    let sets = [&[set(0, &encode_template(256, &FIELDS))][..], &data].concat();
    let mut refused = 0;
    for n in 0..100_000u32 {
        let from = Ipv4Addr::from_bits(0x0a00_0000 + n);
        let decoded =
            decode(&mut decoder, u64::from(n) * 1000, from, &emit::netflow_v9_datagram(1, 0, &sets));
        refused += usize::from(decoded == [Err(FlowReason::NoRoom)]);
    }
    assert_eq!((refused, decoder.source_gaps().count()), (100_000 - 1024, 1024));
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
    // The first keep their templates; one that is silent for long gives its place.
    let first = Ipv4Addr::from_bits(0x0a00_0000);
    assert!(decode(&mut decoder, SECOND, first, &emit::netflow_v9_datagram(2, 0, &data))[0].is_ok());
    let late = Ipv4Addr::new(192, 0, 2, 1);
    assert_eq!(
        decode(&mut decoder, 2 * SECOND, late, &emit::netflow_v9_datagram(1, 0, &sets)),
        [Err(FlowReason::NoRoom)]
    );
    assert!(decode(&mut decoder, 1801 * SECOND, late, &emit::netflow_v9_datagram(1, 0, &sets))[0].is_ok());
    assert_eq!(decoder.source_gaps().count(), 1, "those silent for half an hour are gone");
}

fn a_hundred_thousand_agents() {
    let before = resident();
    let mut decoder = Decoder::new(DecoderOptions { sources_per_address: 1024, ..DecoderOptions::default() });
    let sample = emit::sflow_sample(5, &[1, 0, 3, 0, 3, 4, 258], &[]);
    let mut refused = 0;
    for n in 0..100_000u32 {
        let agent = Ipv4Addr::from_bits(0x0a00_0000 + n);
        let datagram = emit::sflow_datagram(agent, 0, 1, std::slice::from_ref(&sample));
        let decoded = decode(&mut decoder, u64::from(n) * 1000, HERE, &datagram);
        refused += usize::from(decoded == [Err(FlowReason::NoRoom)]);
    }
    assert_eq!((refused, decoder.source_gaps().count()), (100_000 - 1024, 1024));
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
}

#[test]
fn templates_and_exporters_take_bounded_memory() {
    a_million_templates();
    a_hundred_thousand_exporters();
    a_hundred_thousand_agents();
}
