//! What shares containers in the programs compiled for Tofino.
//!
//! p4c lets headers share where no packet is parsed into both, and takes no account of headers that tables make valid. So
//! a frame's IPv4 header, which is made of a report, may lie where the report's store is still to be read. Annotations in
//! `tna/types.p4` forbid it; this looks whether they are enough.
//!
//! It also puts metadata that begins as 0 into bits of a container that the parser fills with other bits of the packet, of
//! which the program has no use.

use std::collections::BTreeSet;

use crate::assembly::extraction;
use crate::assembly::profiles::{self, LONG_BATCHES, POSTCARDS, REPORTER, SKETCHES};

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
/// Packets of the reporter in ingress: its flow is in VXLAN or in GTP-U.
const ARRIVALS: [&[&str]; 2] =
    [&["ARRIVAL", "vxlan", "inner_ethernet"], &["ARRIVAL", "gtpu", "gtpu_more", "gtpu_extension"]];
/// What all of them have.
const ARRIVAL: [&str; 9] =
    ["bridge", "ethernet", "vlan$0", "vlan$1", "ipv4", "ports", "udp_rest", "inner_ipv4", "inner_ports"];
/// In egress: a packet on its way has one header, and `REPORT` stands for those of all reports.
const DEPARTURES: [&[&str]; 2] = [&["bridge", "padding"], &["REPORT"]];

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
        None => {
            kind.contains(&header)
                || kind.contains(&"FRAME") && FRAME.contains(&header)
                || kind.contains(&"ARRIVAL") && ARRIVAL.contains(&header)
                || kind.contains(&"REPORT") && !["bridge", "padding"].contains(&header)
        }
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

fn wrong(text: &str, ingress: &[&[&str]], egress: &[&[&str]]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (direction, kinds) in [("ingress", ingress), ("egress", egress)] {
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
        let text = profiles::read_profile_assembly(profile);
        assert!(!sharing(&text, "ingress").is_empty(), "{profile}: nothing shares a container");
        assert_eq!(wrong(&text, &INGRESS, egress), Vec::<String>::new(), "{profile}");
    }
    let text = profiles::read_profile_assembly(REPORTER);
    assert!(!sharing(&text, "egress").is_empty());
    assert_eq!(wrong(&text, &ARRIVALS, &DEPARTURES), Vec::<String>::new());
}

#[test]
fn a_frame_that_lies_where_its_report_is_would_be_seen() {
    let text = "phv egress:\n  context_json:\n    H19:\n    - { name : hdr.ipv4.source, live_start : parser, live_end : \
                deparser, mutually_exclusive_with: [ hdr.bridge.flush, hdr.v1.sequence ] }\nparser egress:\n";
    assert_eq!(wrong(text, &INGRESS, &EGRESS), ["egress: bridge and ipv4", "egress: ipv4 and v1"]);
}

/// Metadata that is read before any table writes it, in containers that the parser fills with something else: container
/// and field.
fn overwritten(text: &str, direction: &str) -> Vec<String> {
    let block = |begin: String| {
        let lines = text.lines().skip_while(move |line| *line != begin).skip(1);
        lines.take_while(|line| line.is_empty() || line.starts_with(' ')).map(str::trim)
    };
    // What the parser puts into each container: the words behind it, and the comments that follow.
    let mut filled: Vec<(&str, String)> = Vec::new();
    for line in block(format!("parser {direction}:")) {
        match (extraction(line), filled.last_mut()) {
            (Some((container, what)), _) => filled.push((container, what.to_owned())),
            (None, Some((_, what))) if line.starts_with('#') => what.push_str(line),
            _ => {}
        }
    }
    let (mut container, mut wrong, mut fields) = ("", Vec::new(), 0);
    for line in block(format!("phv {direction}:")) {
        if let Some((field, live)) = line.strip_prefix("- { name : ").and_then(|line| line.split_once(',')) {
            fields += 1;
            let begins = live.trim_start().starts_with("live_start : parser");
            let name = format!("{direction}::{field}");
            let here: Vec<_> = filled.iter().filter(|(of, _)| *of == container).collect();
            let is_known = here.is_empty() || here.iter().any(|(_, what)| what.contains(&name));
            if begins && field.starts_with("meta.") && !is_known {
                wrong.push(format!("{container}: {field}"));
            }
        } else if let Some(name) = line.strip_suffix(':') {
            container = name;
        }
    }
    assert!(!filled.is_empty() && fields > 0, "{direction}: nothing was looked at");
    wrong
}

#[test]
fn metadata_does_not_lie_where_the_parser_puts_something_else() {
    for profile in [POSTCARDS, SKETCHES, LONG_BATCHES, REPORTER] {
        let text = profiles::read_profile_assembly(profile);
        for direction in ["ingress", "egress"] {
            assert_eq!(overwritten(&text, direction), Vec::<String>::new(), "{profile}: {direction}");
        }
    }
}

#[test]
fn a_flag_beside_what_the_parser_reads_would_be_seen() {
    let text = "phv egress:\n  meta.dropped: {  stage 0..1: W61(16) }\n  context_json:\n    W61:\n    \
                - { name : eg_intr_md.egress_rid, live_start : parser, live_end : 3, mutually_exclusive_with: [  ] }\n    \
                - { name : meta.dropped, live_start : parser, live_end : 1, mutually_exclusive_with: [  ] }\n    \
                - { name : meta.later, live_start : 2, live_end : 3, mutually_exclusive_with: [  ] }\n\
                parser egress:\n  states:\n    $init_match:\n      *:\n        \
                17..20: W61  # bit[152..167] -> W61 bit[15..0]: egress::eg_intr_md.egress_rid\n        shift: 27\n";
    assert_eq!(overwritten(text, "egress"), ["W61: meta.dropped"]);
}
