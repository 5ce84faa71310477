//! Hostile exports, random and damaged: every byte is in the accounting, and memory stays flat.
//! `DTA_FLOW_DATAGRAMS` sets how many; a million by default.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use dta_proto::key::Flow;
use dta_proto::random::SplitMix64;
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::emit::{
    self, FIELDS, FIELDS_V6, encode_record, encode_template, encode_u16_words, set, unsampled_record,
};
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::ArrivalTime;

const SECOND: u64 = 1_000_000_000;
/// Small tables, which fill soon.
const SOURCES: usize = 64;
const SOURCES_PER_ADDRESS: usize = 16;
/// Most templates of a source.
const TEMPLATES: u64 = 64;
/// Senders that come again and again. With their shares full, they fill all places.
const ADDRESSES: usize = 4;

fn below(random: &mut SplitMix64, limit: usize) -> usize {
    (random.next_u64() % limit as u64) as usize
}

/// Valid datagrams of every format, with templates, options, fields of unknown length, samples and counters.
fn valid_datagrams() -> Vec<Vec<u8>> {
    let flow = |text: &str| text.parse::<Flow>().unwrap();
    let v4 = unsampled_record(flow("10.0.0.1:5000->10.0.0.2:80/tcp"), 7, 4200);
    let v6 = unsampled_record(flow("[2001:db8::1]:5000->[2001:db8::2]:443/udp"), 1, 1280);
    let templates = [encode_template(256, &FIELDS), encode_template(257, &FIELDS_V6)].concat();
    let data = [set(256, &encode_record(&v4).repeat(5)), set(257, &encode_record(&v6).repeat(3))];
    let rate = 10u32.to_be_bytes();
    // Scope, then fields: of NetFlow v9 in bytes, of IPFIX in fields.
    let v9_options =
        [set(1, &encode_u16_words(&[300, 4, 4, 1, 4, 34, 4, 0])), set(300, &[[0; 4], rate].concat())];
    let ipfix_options =
        [set(3, &encode_u16_words(&[300, 2, 1, 10, 4, 34, 4])), set(300, &[[0, 0, 0, 3], rate].concat())];
    let names = [
        set(3, &encode_u16_words(&[301, 2, 1, 10, 4, 82, 65535])),
        set(301, &[&[0, 0, 0, 3, 5][..], b"swp01"].concat()),
    ];
    let variable = [
        set(2, &encode_template(258, &[(8, 4), (12, 4), (96, 65535), (4, 1), (1, 8), (2, 8)])),
        set(
            258,
            &[
                &[10, 0, 0, 1, 10, 0, 0, 2, 3, 1, 2, 3, 6][..],
                &[0, 0, 0, 0, 0, 0, 16, 104],
                &[0, 0, 0, 0, 0, 0, 0, 7],
            ]
            .concat(),
        ),
    ];
    let mut packet = vec![2; 12];
    packet.extend([8, 0, 0x45, 0, 0, 100, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0x13, 0x88, 0, 53, 0, 80, 0, 0]);
    let header = emit::sflow_header_record(1, &packet);
    let samples = [
        emit::sflow_sample(1, &[1, 3, 10, 10, 0, 3, 4], std::slice::from_ref(&header)),
        emit::sflow_sample(3, &[1, 0, 3, 10, 10, 0, 0, 3, 0, 4], std::slice::from_ref(&header)),
        emit::sflow_sample(2, &[1, 3], &[emit::if_counters(3, 1_000_000_000, 77)]),
        emit::sflow_sample(5, &[1, 0, 3, 0, 3, 4, 258], std::slice::from_ref(&header)),
    ];
    vec![
        emit::netflow_v5_datagram(1, 0, 0, &[v4; 30]),
        emit::netflow_v9_datagram(1, 0, &[&[set(0, &templates)], &data[..]].concat()),
        emit::netflow_v9_datagram(2, 0, &[&v9_options[..], &data].concat()),
        emit::ipfix_message(1, 0, &[&[set(2, &templates)], &data[..]].concat()),
        emit::ipfix_message(9, 0, &[&ipfix_options[..], &names, &data].concat()),
        emit::ipfix_message(20, 0, &variable),
        // An agent without an address, which is then its sender's, and one that all senders claim to be.
        emit::sflow_datagram(Ipv4Addr::UNSPECIFIED, 0, 1, &samples),
        emit::sflow_datagram(Ipv4Addr::new(10, 0, 0, 1), 0, 1, &samples),
    ]
}

/// The next datagram: valid, damaged in any of several ways, or random.
fn fill_hostile(random: &mut SplitMix64, valid: &[Vec<u8>], datagram: &mut Vec<u8>) {
    datagram.clear();
    let kind = below(random, 8);
    if kind == 0 {
        // Every other with the version of a format.
        let version: &[u8] = [&[0, 5][..], &[0, 9], &[0, 10], &[0, 0, 0, 5], &[]][below(random, 5)];
        datagram.extend(version);
        let len = below(random, 1500);
        datagram.extend((0..len).map(|_| random.next_u64() as u8));
        return;
    }
    datagram.extend(&valid[below(random, valid.len())]);
    // A sequence number or domain, or any other place in the header.
    if kind == 1 {
        let at = 4 + below(random, 20);
        datagram[at] = random.next_u64() as u8;
    }
    match kind {
        // A template and data of other numbers: many at once are more than there are places.
        2 => {
            let id = 256 + below(random, 200) as u16;
            let fields: Vec<_> = (0..below(random, 60))
                .map(|_| (below(random, 400) as u16, [1, 2, 4, 8, 16, 65535][below(random, 6)]))
                .collect();
            let is_ipfix = random.next_u64() & 1 == 0;
            let body: Vec<u8> = (0..below(random, 400)).map(|_| random.next_u64() as u8).collect();
            let sets = [set(if is_ipfix { 2 } else { 0 }, &encode_template(id, &fields)), set(id, &body)];
            *datagram = if is_ipfix {
                emit::ipfix_message(0, 0, &sets)
            } else {
                emit::netflow_v9_datagram(0, 0, &sets)
            };
        }
        3 => datagram.truncate(below(random, datagram.len())),
        // Single bytes.
        4 | 5 => {
            for _ in 0..=below(random, 8) {
                let at = below(random, datagram.len());
                datagram[at] = random.next_u64() as u8;
            }
        }
        // The end of another datagram, so that lengths are wrong by much.
        6 => {
            let other = &valid[below(random, valid.len())];
            datagram.truncate(below(random, datagram.len()));
            datagram.extend(&other[below(random, other.len())..]);
        }
        // Lengths and counts at their ends.
        7 => {
            let at = below(random, datagram.len() - 1);
            let word: [u8; 2] =
                [[0, 0], [0, 1], [0, 3], [0xff, 0xff], [0x7f, 0xff], [0x80, 0]][below(random, 6)];
            datagram[at..at + 2].copy_from_slice(&word);
        }
        _ => {}
    }
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_flood_of_hostile_exports_is_in_the_accounting_and_takes_no_more_memory() {
    let datagrams: u64 =
        std::env::var("DTA_FLOW_DATAGRAMS").map_or(1_000_000, |text| text.parse().expect("a number"));
    let valid = valid_datagrams();
    let options = DecoderOptions {
        sources: SOURCES,
        sources_per_address: SOURCES_PER_ADDRESS,
        ..DecoderOptions::default()
    };
    let mut decoder = Decoder::new(options);
    let mut random = SplitMix64(0x1234_5678_9abc_def1);
    let (mut datagram, mut bytes, mut flows, mut others, mut refused) = (Vec::new(), 0, 0u64, 0u64, 0u64);
    let mut memory = None;
    for n in 0..datagrams {
        fill_hostile(&mut random, &valid, &mut datagram);
        // An hour and more pass, so that places change hands.
        let at = ArrivalTime { now: n * 5_000_000, wall: 1_700_000_000 * SECOND + n };
        let from = if random.next_u64() & 7 == 0 {
            IpAddr::from(random.next_u64().to_be_bytes().map(u16::from))
        } else {
            IpAddr::from([10, 0, 0, below(&mut random, ADDRESSES) as u8])
        };
        let from = SocketAddr::new(from, 2055 + below(&mut random, 4) as u16);
        decoder.decode_datagram(at, from, &datagram, |one| match one {
            Ok(Exported::Flow(_)) => flows += 1,
            Ok(_) => others += 1,
            Err(_) => refused += 1,
        });
        bytes += datagram.len() as u64;
        let counters = decoder.decoder_counters();
        assert_eq!((counters.find_imbalance(), counters.bytes), (None, bytes), "{datagram:?}");
        if n % 1000 == 0 {
            let named = decoder.named_counters();
            let count = |name: &str| named.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count);
            assert!(count("flows.sources") <= SOURCES as u64, "{named:?}");
            assert!(count("flows.templates") <= SOURCES as u64 * TEMPLATES, "{named:?}");
            decoder.take_new_senders();
        }
        if memory.is_none() && n >= datagrams / 5 {
            memory = Some(resident());
        }
    }
    let after = resident();
    let counters = decoder.decoder_counters();
    assert_eq!(counters.datagrams, datagrams);
    // All that is meant to be tried was.
    for (what, count) in [
        ("records", flows),
        ("others", others),
        ("refused", refused),
        ("options", counters.options),
        ("names", counters.names),
        ("interfaces", counters.interfaces),
    ] {
        assert!(count > datagrams / 100, "{count} {what}");
    }
    let before = memory.expect("a fifth was passed");
    assert!(after < before + (2 << 20), "{before} bytes after a fifth of the datagrams, {after} after all");
    println!(
        "{datagrams} datagrams: {flows} records, {others} others, {refused} refused; {before} and {after} bytes"
    );
}
