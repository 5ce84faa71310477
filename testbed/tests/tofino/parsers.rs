//! The parsers of the compiled programs, read from their assembly and run on packets: each header of a report is found, and
//! nothing but what comes in by the ports of commands is one.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::assembly::parser::{Parser, ingress_packet, undecided};
use crate::assembly::pipeline::AssemblyPipeline;
use crate::assembly::profiles::{self, LONG_BATCHES, POSTCARDS, REPORTER, SKETCHES, WORDS};
use crate::flush_command::{TYPE_AT, flush_row};
use dta_proto::key::Key;
use dta_proto::program::Mac;
use dta_proto::wire::datagram;
use dta_proto::wire::dta::{self, DtaBody, DtaReport, Version};
use dta_proto::wire::ethernet;

const KEY: Key = Key([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
const VALUE: [u8; 28] = [0xa5; 28];

/// A frame with a datagram in it.
fn frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; ethernet::HEADER_LEN];
    let (dst, src) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    ethernet::EthernetRepr { dst, src, ethertype: 0x0800 }.encode_into(&mut header);
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 9, 2, 1), 5000);
    let to = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 2), port);
    [&header[..], &datagram::encode_header(from, to, payload.len()), payload].concat()
}

fn report(version: Version, body: DtaBody<'_>) -> Vec<u8> {
    let report = DtaReport {
        version,
        immediate: false,
        retransmittable: true,
        restarted: false,
        sequence: if version == Version::V0 { 9 } else { 0x0102_0309 },
        reporter: if version == Version::V0 { 0 } else { 0x0304 },
        store: if version == Version::V0 { 0 } else { 0x0506 },
        body,
    };
    let mut bytes = [0; 128];
    let len = report.encode_into(&mut bytes).unwrap();
    frame(dta::PORT, &bytes[..len])
}

/// A profile's ingress behind its parser, and where the payload begins in the frame.
fn parsed(profile: &str, port: u16, frame: &[u8]) -> (AssemblyPipeline, usize) {
    let text = profiles::read_profile_assembly(profile);
    let mut ingress = AssemblyPipeline::from_assembly(&text, "ingress");
    let parsed = Parser::from_assembly(&text, "ingress")
        .parse_packet(&ingress_packet(port, frame))
        .expect("a whole packet");
    ingress.load_parsed(&parsed);
    (ingress, parsed.payload - 16)
}

fn valid(ingress: &AssemblyPipeline, header: &str) -> bool {
    let field = format!("hdr.{header}.$valid");
    ingress.has_field(&field, 0) && ingress.get(&field, 0) == 1
}

#[test]
fn each_state_compares_what_it_chooses_by() {
    for profile in [POSTCARDS, SKETCHES, LONG_BATCHES, REPORTER] {
        let text = profiles::read_profile_assembly(profile);
        for direction in ["ingress", "egress"] {
            assert_eq!(undecided(&text, direction), Vec::<String>::new(), "{profile}: {direction}");
        }
    }
}

#[test]
fn a_parser_that_takes_each_packet_the_first_way_would_be_seen() {
    let state = |compared: &str, first: &str| {
        format!(
            "parser ingress:\n  start: a\n  states:\n    a:\n{compared}      {first}:\n        next: b\n      *:\n        next: end\n    b:\n      *:\n        next: end\n"
        )
    };
    assert_eq!(undecided(&state("", "*"), "ingress"), ["a"]);
    assert_eq!(undecided(&state("      match: [ half ]\n", "0x0800"), "ingress"), Vec::<String>::new());
}

#[test]
fn reports_are_parsed_to_their_last_word() {
    let key = KEY;
    let value = |words: usize| &VALUE[..4 * words];
    let mut v1: Vec<(DtaBody<'_>, &[&str], usize)> = Vec::new();
    for words in 1..=7 {
        v1.push((
            DtaBody::KeyWrite { redundancy: 2, key, value: value(words) },
            &["key_first", "key"],
            words,
        ));
    }
    v1.push((DtaBody::KeyIncrement { redundancy: 2, key, delta: 5 }, &["key_first", "key"], 2));
    v1.push((DtaBody::Postcard { key, hop: 1, path_length: 3, value: 7 }, &["key_first", "key"], 1));
    for words in 1..=2 {
        v1.push((DtaBody::Append { list: 3, value: value(words) }, &["list"], words));
    }
    for words in 1..=4 {
        v1.push((DtaBody::SketchMerge { epoch: 1, column: 2, cells: value(words) }, &["column"], words));
    }
    for profile in profiles::ALL {
        for (body, headers, words) in &v1 {
            let is_sketch = matches!(body, DtaBody::SketchMerge { .. });
            let is_list = matches!(body, DtaBody::Append { .. });
            let frame = report(Version::V1, *body);
            let (ingress, payload) = parsed(profile, 9, &frame);
            let what = format!("{profile}: {body:?}");
            assert!(valid(&ingress, "dta") && valid(&ingress, "v1"), "{what}");
            assert_eq!(ingress.get("meta.is_command", 0), 0, "{what}");
            assert_eq!(ingress.get("meta.store", 1), 0x0506, "{what}");
            // Entries of long batches stay in the payload, and a profile without columns leaves them there.
            let (headers, words) = match (is_list, is_sketch) {
                (true, _) if profile == LONG_BATCHES => (*headers, 0),
                (_, true) if profile != SKETCHES => (&[][..], 0),
                _ => (*headers, *words),
            };
            for header in headers {
                assert!(valid(&ingress, header), "{what}: {header}");
            }
            for (at, word) in WORDS[1..8].iter().enumerate() {
                let header = word.trim_start_matches("hdr.").trim_end_matches(".word");
                assert_eq!(valid(&ingress, header), at < words, "{what}: {header}");
            }
            let taken = 4 * words
                + headers
                    .iter()
                    .map(|header| match *header {
                        "key_first" | "list" => 4,
                        "key" => 12,
                        _ => 8,
                    })
                    .sum::<usize>();
            assert_eq!(payload, 14 + 28 + dta::V1_HEADER_LEN + taken, "{what}");
        }
    }
}

#[test]
fn what_is_no_report_is_forwarded_as_it_came() {
    for profile in profiles::ALL {
        let mut other = report(Version::V1, DtaBody::Append { list: 3, value: &VALUE[..4] });
        for (port, ethertype) in [(9, 0x0806_u16), (69, 0x86dd), (68, 0x0806), (452, 0)] {
            other[TYPE_AT..TYPE_AT + 2].copy_from_slice(&ethertype.to_be_bytes());
            let (ingress, payload) = parsed(profile, port, &other);
            assert_eq!((payload, valid(&ingress, "ethernet"), valid(&ingress, "ipv4")), (14, true, false));
        }
        let (ingress, payload) = parsed(profile, 9, &frame(53, &[0; 40]));
        assert_eq!((payload, valid(&ingress, "udp"), valid(&ingress, "dta")), (42, true, false), "{profile}");
    }
}

#[test]
fn commands_come_by_the_cpu_port_and_to_rows_by_recirculation_ports() {
    for profile in profiles::ALL {
        let text = profiles::read_profile_assembly(profile);
        let (parser, mut ingress) =
            (Parser::from_assembly(&text, "ingress"), AssemblyPipeline::from_assembly(&text, "ingress"));
        for port in 0..512 {
            let parsed = parser.parse_packet(&ingress_packet(port, &flush_row())).expect("a whole packet");
            ingress.load_parsed(&parsed);
            let may = [192, 320].contains(&port) || profile == POSTCARDS && port % 128 == 68;
            assert_eq!(ingress.get("meta.is_command", 0), u64::from(may), "{profile}: port {port}");
            assert_eq!(valid(&ingress, "bridge"), may, "{profile}: port {port}");
        }
    }
}
