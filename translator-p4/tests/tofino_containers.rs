//! Which headers share containers in the program compiled for Tofino.
//!
//! p4c lets headers share where no packet is parsed into both, and takes no account of headers that tables make valid. So
//! a frame's IPv4 header, which is made of a report, may lie where the report's store is still to be read. Annotations in
//! `tna/types.p4` forbid it; this looks whether they are enough.

use std::collections::BTreeSet;

use dta_p4_suite::assembly::profiles::{self, LONG_BATCHES, POSTCARDS, SKETCHES};

/// Kinds of packets, and the headers that each has at some time: `w` are all words, `w0..w2` the first three.
const INGRESS: [&[&str]; 6] = [
    &["kind", "bridge", "ethernet", "ipv4", "udp", "dta", "v1", "key_first", "key", "w"],
    &["kind", "bridge", "ethernet", "ipv4", "udp", "dta", "v0_redundancy", "v0_hop", "key_first", "key", "w"],
    &["kind", "bridge", "ethernet", "ipv4", "udp", "dta", "v1", "list", "w"],
    &["kind", "bridge", "ethernet", "ipv4", "udp", "dta", "v1", "column", "sketch", "column_head", "w"],
    // Answers of queue pairs, and commands.
    &["kind", "bridge", "ethernet", "ipv4", "udp", "bth", "aeth"],
    &["kind", "bridge", "key_first", "key", "w"],
];
const EGRESS: [&[&str]; 4] = [
    // NACKs; then frames with a key, a list and a column.
    &["mirrored", "ethernet", "ipv4", "udp", "dta", "v1", "nack"],
    &["FRAME", "key_first", "key", "w"],
    &["FRAME", "list", "w0..w2"],
    &["FRAME", "sketch", "w"],
];
/// Lists with long batches.
const LONG: [&[&str]; 2] = [EGRESS[0], &["FRAME", "list", "w"]];
/// What all frames have.
const FRAME: [&str; 13] = [
    "kind",
    "bridge",
    "ethernet",
    "ipv4",
    "udp",
    "bth",
    "target",
    "length",
    "immediate",
    "sum",
    "compare",
    "icrc",
    "padding",
];

/// The number of a word.
fn word(header: &str) -> Option<u8> {
    header.strip_prefix('w')?.parse().ok()
}

fn has(kind: &[&str], header: &str) -> bool {
    match word(header) {
        Some(number) => kind.contains(&"w") || number < 3 && kind.contains(&"w0..w2"),
        None => kind.contains(&header) || kind.contains(&"FRAME") && FRAME.contains(&header),
    }
}

/// A header of a field; `padding` for what p4c reads behind short packets.
fn header_of(field: &str) -> Option<&str> {
    let header = field.strip_prefix("hdr.")?.split('.').next()?;
    Some(if header.starts_with("min_parse_depth_padding") { "padding" } else { header })
}

/// Pairs of headers with fields in one container because p4c says that no packet has both.
fn sharing<'a>(text: &'a str, direction: &str) -> BTreeSet<(&'a str, &'a str)> {
    let begin = format!("phv {direction}:");
    let lines = text.lines().skip_while(|line| *line != begin).skip(1);
    let mut pairs = BTreeSet::new();
    for line in lines.take_while(|line| line.is_empty() || line.starts_with(' ')) {
        let Some((_, about)) = line.split_once("{ name : ") else { continue };
        let field = about.split(',').next().unwrap();
        let others = about.split_once("mutually_exclusive_with: [").unwrap().1;
        for other in others.trim_end_matches([' ', '}', ']']).split(',') {
            if let (Some(one), Some(other)) = (header_of(field), header_of(other.trim())) {
                pairs.insert((one.min(other), one.max(other)));
            }
        }
    }
    pairs
}

fn wrong(text: &str, egress: &[&[&str]]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (direction, kinds) in [("ingress", &INGRESS[..]), ("egress", egress)] {
        for (one, other) in sharing(text, direction) {
            for header in [one, other] {
                assert!(kinds.iter().any(|kind| has(kind, header)), "which packets have {header}?");
            }
            if kinds.iter().any(|kind| has(kind, one) && has(kind, other)) {
                wrong.push(format!("{direction}: {one} and {other}"));
            }
        }
    }
    wrong
}

#[test]
fn headers_of_one_packet_share_no_container() {
    for (profile, egress) in [(POSTCARDS, &EGRESS[..]), (SKETCHES, &EGRESS), (LONG_BATCHES, &LONG)] {
        let text = profiles::assembly(profile);
        assert!(!sharing(&text, "ingress").is_empty(), "{profile}: nothing shares a container");
        assert_eq!(wrong(&text, egress), Vec::<String>::new(), "{profile}");
    }
}

#[test]
fn a_frame_that_lies_where_its_report_is_would_be_seen() {
    let text = "phv egress:\n  context_json:\n    H19:\n    - { name : hdr.ipv4.source, live_start : parser, live_end : \
                deparser, mutually_exclusive_with: [ hdr.bridge.flush, hdr.v1.sequence ] }\nparser egress:\n";
    assert_eq!(wrong(text, &EGRESS), ["egress: bridge and ipv4", "egress: ipv4 and v1"]);
}
