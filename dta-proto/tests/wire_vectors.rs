//! Checks the wire formats against `vectors/wire.json`, which `vectors/wire.py` wrote without this
//! crate's code.

use dta_proto::key::Key;
use dta_proto::wire::dta::{DtaBody, DtaReport, Nack, Primitive, Version};
use dta_proto::wire::ethernet;
use dta_proto::wire::frame::{FetchAddTemplate, FrameRoute, Received, WriteImmTemplate, WriteTemplate};
use dta_proto::wire::roce::{Aeth, AtomicEth, Bth, ImmDt, Opcode, Psn, Reth, RoceRepr, Syndrome};
use dta_proto::wire::{Error, WireErrorKind};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../vectors/wire.json")).unwrap()
}

/// A list of vectors; an empty one is a mistake in the file.
fn cases<'a>(all: &'a Value, list: &str) -> &'a [Value] {
    let cases = all[list].as_array().unwrap_or_else(|| panic!("no list {list}"));
    assert!(!cases.is_empty(), "{list} is empty");
    cases
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap_or_else(|| panic!("no {field} in {case}"))
}

fn hex(case: &Value, field: &str) -> Vec<u8> {
    let text = text(case, field);
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(case: &Value, field: &str) -> T {
    case[field].as_u64().unwrap_or_else(|| panic!("no {field} in {case}")).try_into().unwrap()
}

fn yes(case: &Value, field: &str) -> bool {
    case[field].as_bool().unwrap_or_else(|| panic!("no {field} in {case}"))
}

fn wide(case: &Value, field: &str) -> u64 {
    let text = text(case, field);
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .unwrap()
}

fn key(case: &Value) -> Key {
    Key(hex(case, "key").try_into().unwrap())
}

/// Hands the report that a vector describes to `check`.
fn with_report(r: &Value, check: impl FnOnce(DtaReport<'_>)) {
    let b = &r["body"];
    let bytes = |field: &str| if b[field].is_null() { Vec::new() } else { hex(b, field) };
    let (value, cells) = (bytes("value"), bytes("cells"));
    let body = match text(b, "primitive") {
        "key-write" => DtaBody::KeyWrite { redundancy: number(b, "redundancy"), key: key(b), value: &value },
        "append" => DtaBody::Append { list: number(b, "list"), value: &value },
        "key-increment" => DtaBody::KeyIncrement {
            redundancy: number(b, "redundancy"),
            key: key(b),
            delta: wide(b, "delta"),
        },
        "postcarding" => DtaBody::Postcard {
            key: key(b),
            hop: number(b, "hop"),
            path_length: number(b, "path_length"),
            value: u32::from_be_bytes(value.as_slice().try_into().unwrap()),
        },
        "sketch-merge" => {
            DtaBody::SketchMerge { epoch: number(b, "epoch"), column: number(b, "column"), cells: &cells }
        }
        other => panic!("no primitive {other}"),
    };
    assert_eq!(body.primitive().canonical_name(), text(b, "primitive"));
    check(DtaReport {
        version: if number::<u8>(r, "version") == 0 { Version::V0 } else { Version::V1 },
        immediate: yes(r, "immediate"),
        retransmittable: yes(r, "retransmittable"),
        restarted: yes(r, "restarted"),
        sequence: number(r, "sequence"),
        reporter: number(r, "reporter"),
        store: number(r, "store"),
        body,
    });
}

#[test]
fn reports() {
    let all = vectors();
    let mut seen = Vec::new();
    for case in cases(&all, "reports") {
        let bytes = hex(case, "hex");
        with_report(&case["report"], |report| {
            assert_eq!(DtaReport::parse_payload(&bytes), Ok(report), "{case}");
            let mut buffer = [0xa5; 128];
            assert_eq!(report.encode_into(&mut buffer), Ok(bytes.len()), "{case}");
            assert_eq!(report.buffer_len(), bytes.len(), "{case}");
            assert_eq!(buffer[..bytes.len()], bytes, "{case}");
            seen.push((report.version, report.body.primitive()));
        });
    }
    for primitive in Primitive::ALL {
        assert!(seen.contains(&(Version::V1, primitive)), "{primitive:?}");
        assert_eq!(
            seen.contains(&(Version::V0, primitive)),
            primitive != Primitive::SketchMerge,
            "{primitive:?}"
        );
    }
}

#[test]
fn reserved_bits_of_reports() {
    let all = vectors();
    for case in cases(&all, "reports_reserved") {
        let same = cases(&all, "reports").iter().find(|r| r["name"] == case["same_as"]).unwrap();
        let (odd, plain) = (hex(case, "hex"), hex(same, "hex"));
        assert_ne!(odd, plain, "{case}");
        assert!(DtaReport::parse_payload(&odd).is_ok(), "{case}");
        assert_eq!(DtaReport::parse_payload(&odd), DtaReport::parse_payload(&plain), "{case}");
    }
}

/// Compares an error with the one that a vector names.
fn check_error(case: &Value, error: Error) {
    let kind = format!("{:?}", error.kind);
    let kind = kind.split(['(', ' ']).next().unwrap();
    assert_eq!(format!("{:?}", error.layer), text(case, "layer"), "{case}: {error}");
    assert_eq!(error.field, text(case, "field"), "{case}: {error}");
    assert_eq!(error.offset, number::<u16>(case, "offset"), "{case}: {error}");
    assert_eq!(kind, text(case, "kind"), "{case}: {error}");
}

#[test]
fn report_errors() {
    for case in cases(&vectors(), "report_errors") {
        let bytes = hex(case, "hex");
        check_error(case, DtaReport::parse_payload(&bytes).expect_err(text(case, "name")));
    }
}

#[test]
fn nacks() {
    for case in cases(&vectors(), "nacks") {
        let bytes = hex(case, "hex");
        let nack = match number::<u8>(case, "version") {
            0 => Nack::V0 { sequence: number(case, "sequence") },
            _ => Nack::V1 {
                reporter: number(case, "reporter"),
                first: number(case, "first"),
                count: number(case, "count"),
            },
        };
        assert_eq!(Nack::parse_payload(&bytes), Ok(nack), "{case}");
        let mut buffer = [0xa5; 16];
        assert_eq!(nack.encode_into(&mut buffer), Ok(bytes.len()), "{case}");
        assert_eq!(buffer[..bytes.len()], bytes, "{case}");
    }
}

#[test]
fn nack_errors() {
    for case in cases(&vectors(), "nack_errors") {
        let bytes = hex(case, "hex");
        check_error(case, Nack::parse_payload(&bytes).expect_err(text(case, "name")));
    }
}

/// Hands the transport packet that a vector describes to `check`.
fn with_packet(case: &Value, check: impl FnOnce(RoceRepr<'_>)) {
    let payload = hex(case, "payload");
    let some = |field: &str| Some(&case[field]).filter(|v| !v.is_null());
    let opcode = Opcode::from_byte(number(case, "opcode")).unwrap();
    let mut bth = Bth::new(
        opcode,
        number(case, "dest_qp"),
        Psn::new(number(case, "psn")),
        case["ack_req"].as_bool().unwrap(),
    );
    bth.pad = number(case, "pad");
    check(RoceRepr {
        bth,
        reth: some("reth").map(|r| Reth {
            va: wide(r, "va"),
            rkey: number(r, "rkey"),
            length: number(r, "length"),
        }),
        atomic: some("atomic").map(|a| AtomicEth {
            va: wide(a, "va"),
            rkey: number(a, "rkey"),
            swap_add: wide(a, "swap_add"),
            compare: wide(a, "compare"),
        }),
        aeth: some("aeth").map(|a| Aeth {
            syndrome: Syndrome::from_byte(number(a, "syndrome")).unwrap(),
            msn: number(a, "msn"),
        }),
        atomic_ack: some("atomic_ack").map(|_| wide(case, "atomic_ack")),
        imm: some("imm").map(|_| ImmDt(number(case, "imm"))),
        payload: &payload,
    });
}

fn route(case: &Value) -> FrameRoute {
    let (source, destination) = (text(case, "src").parse().unwrap(), text(case, "dst").parse().unwrap());
    let mut route = FrameRoute::from_addresses(source, destination, number(case, "dest_qp")).unwrap();
    assert_eq!(route.src_port, number::<u16>(case, "src_port"), "{case}");
    route.dst_port = number(case, "dst_port");
    (route.tos, route.ttl) = (number(case, "tos"), number(case, "ttl"));
    route.ethernet = case["ethernet"].as_array().map(|macs| {
        let mac = |i: usize| macs[i].as_str().unwrap().parse().unwrap();
        (mac(0), mac(1))
    });
    route
}

#[test]
fn frames() {
    let all = vectors();
    let mut seen = Vec::new();
    for case in cases(&all, "frames") {
        let bytes = hex(case, "hex");
        let route = route(case);
        with_packet(case, |repr| {
            seen.push(repr.bth.opcode);
            let mut buffer = [0xa5; 1200];
            assert_eq!(route.write_frame(&repr, &mut buffer), Ok(bytes.len()), "{case}");
            assert_eq!(route.buffer_len(&repr), bytes.len(), "{case}");
            assert_eq!(buffer[..bytes.len()], bytes, "{case}");
            assert!(buffer[bytes.len()..].iter().all(|b| *b == 0xa5), "{case}");
            let ip = match route.ethernet {
                None => &bytes[..],
                Some(macs) => {
                    let packet = ethernet::EthernetFrame::new_checked(&bytes).unwrap();
                    assert_eq!((packet.destination_mac(), packet.source_mac()), macs, "{case}");
                    let is_ipv6 = packet.ethertype() == ethernet::TYPE_IPV6;
                    assert_eq!(is_ipv6, text(case, "src").contains(':'), "{case}");
                    packet.payload()
                }
            };
            check_received(case, ip, repr);
            check_template(case, &route, &repr, &bytes);
        });
    }
    for opcode in Opcode::all_opcodes() {
        assert!(seen.contains(&opcode), "{opcode:?} has no vector");
    }
}

fn check_received(case: &Value, ip: &[u8], repr: RoceRepr<'_>) {
    let received = Received::parse_packet(ip).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(RoceRepr::parse_packet(&received.roce), Ok(repr), "{case}");
    assert_eq!(received.addresses.source().to_string(), text(case, "src"), "{case}");
    assert_eq!(received.addresses.destination().to_string(), text(case, "dst"), "{case}");
    assert_eq!(received.udp.source_port(), number::<u16>(case, "src_port"), "{case}");
    assert_eq!(received.udp.destination_port(), number::<u16>(case, "dst_port"), "{case}");
}

/// Where there is a template for this kind of frame, it makes the same bytes.
fn check_template(case: &Value, route: &FrameRoute, repr: &RoceRepr<'_>, bytes: &[u8]) {
    let (qp, psn, ack_req, payload) = (repr.bth.dest_qp, repr.bth.psn, repr.bth.ack_req, repr.payload);
    let transport = repr.bth.opcode.transport();
    let mut buffer = [0xa5; 1200];
    let len = match (repr.bth.opcode, repr.reth, repr.atomic, repr.imm) {
        (Opcode::RcWriteOnly | Opcode::UcWriteOnly, Some(reth), None, None) => {
            let template = WriteTemplate::new(route, transport, qp, payload.len()).unwrap();
            template.write_frame(psn, ack_req, reth.va, reth.rkey, payload, &mut buffer)
        }
        (Opcode::RcWriteOnlyImm | Opcode::UcWriteOnlyImm, Some(reth), None, Some(imm)) => {
            let template = WriteImmTemplate::new(route, transport, qp, payload.len()).unwrap();
            template.write_frame(psn, ack_req, reth.va, reth.rkey, imm.0, payload, &mut buffer)
        }
        (Opcode::RcFetchAdd, None, Some(atomic), None) => {
            let template = FetchAddTemplate::new(route, qp).unwrap();
            template.write_frame(psn, ack_req, atomic.va, atomic.rkey, atomic.swap_add, &mut buffer)
        }
        _ => return,
    };
    assert_eq!(len, Ok(bytes.len()), "{case}");
    assert_eq!(buffer[..bytes.len()], *bytes, "{case}");
}

#[test]
fn frames_of_others() {
    for case in cases(&vectors(), "received") {
        with_packet(case, |mut repr| {
            // This one leaves MigReq clear.
            repr.bth.migreq = false;
            check_received(case, &hex(case, "hex"), repr);
        });
    }
}

#[test]
fn frame_errors() {
    for case in cases(&vectors(), "frame_errors") {
        let bytes = hex(case, "hex");
        // A reserved syndrome comes to light when the AETH is read.
        let error = match Received::parse_packet(&bytes) {
            Ok(received) => received.roce.ack_header().expect_err(text(case, "name")),
            Err(error) => error,
        };
        check_error(case, error);
    }
}

#[test]
fn every_kind_of_decoding_error_has_a_vector() {
    let all = vectors();
    let errors = ["report_errors", "nack_errors", "frame_errors"].map(|list| cases(&all, list)).concat();
    // Ethernet has one error alone, a short header.
    for kind in [
        WireErrorKind::Truncated { need: 0, have: 0 },
        WireErrorKind::TooLong { most: 0, have: 0 },
        WireErrorKind::UnknownVersion(0),
        WireErrorKind::UnknownOpcode(0),
        WireErrorKind::UnsupportedOpcode(0),
        WireErrorKind::ValueLength(0),
        WireErrorKind::Hop(0),
        WireErrorKind::PathLength(0),
        WireErrorKind::Rows(0),
        WireErrorKind::NotANack,
        WireErrorKind::Contradiction,
        WireErrorKind::Checksum,
        WireErrorKind::Length(0),
        WireErrorKind::Fragment,
        WireErrorKind::Options,
        WireErrorKind::Protocol(0),
        WireErrorKind::Reserved(0),
    ] {
        let name = format!("{kind:?}");
        let name = name.split(['(', ' ']).next().unwrap();
        assert!(errors.iter().any(|case| case["kind"] == name), "{name}");
    }
}

#[test]
fn keys() {
    for case in cases(&vectors(), "keys") {
        let parsed: Key = text(case, "text").parse().unwrap();
        assert_eq!(parsed, key(case), "{case}");
        assert_eq!(parsed.to_string(), text(case, "shown"), "{case}");
    }
}

#[test]
fn the_book_names_every_vector() {
    let book = include_str!("../../docs/wire-format.md");
    let all = vectors();
    for list in [
        "reports",
        "reports_reserved",
        "report_errors",
        "nacks",
        "nack_errors",
        "frames",
        "received",
        "frame_errors",
    ] {
        for case in cases(&all, list) {
            assert!(book.contains(text(case, "name")), "docs/wire-format.md does not name {}", case["name"]);
        }
    }
}
