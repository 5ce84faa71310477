//! The engine in reference mode makes the frames of `dta-proto/vectors/frames.json`, byte for byte.
//! They were made by another implementation (`frames.py` beside it), and every data plane is held
//! to them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use dta_dataplane::reference::Reference;
use dta_proto::program::{DataPlaneEntry, Program, ProgramQueuePair, Purpose, Transport};
use dta_proto::to_hex_digits;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    transport: Transport,
    start_psn: u32,
    entries: Vec<DataPlaneEntry>,
    reports: Vec<String>,
    frames: Vec<String>,
    flushed: usize,
    nacks: Vec<Nack>,
    dropped: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Nack {
    report: usize,
    payload: String,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../../../dta-proto/vectors/frames.json")).unwrap()
}

/// The program of the vectors, as a case wants it.
fn program(case: &Case) -> Program {
    let mut program: Program =
        serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
    for entry in program.clone().entries() {
        if let DataPlaneEntry::QueuePair(pair) = entry {
            let transport = if pair.purpose == Purpose::Write { case.transport } else { pair.transport };
            let start_psn = case.start_psn;
            program.set(DataPlaneEntry::QueuePair(ProgramQueuePair { transport, start_psn, ..pair.clone() }));
        }
    }
    case.entries.iter().for_each(|entry| program.set(entry.clone()));
    program
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn frames_are_as_the_other_implementation_makes_them() {
    let reporter = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 5555);
    let service = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40040);
    let cases = cases();
    assert!(cases.len() >= 40, "only {} cases", cases.len());
    for case in &cases {
        let mut switch = Reference::new(&program(case), 1 << 16).unwrap();
        let (mut frames, mut nacks, mut dropped) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (report, payload) in case.reports.iter().enumerate() {
            let made = switch.process_report(reporter, service, &bytes(payload));
            frames.extend(made.frames.iter().map(|frame| to_hex_digits(frame)));
            nacks.extend(made.nacks.iter().map(|payload| Nack { report, payload: to_hex_digits(payload) }));
            if let Some(reason) = made.dropped {
                *dropped.entry(reason.name().to_string()).or_insert(0) += 1;
            }
        }
        let counters = switch.engine_counters();
        assert_eq!(counters.received, case.reports.len() as u64, "{}", case.name);
        assert_eq!(counters.find_imbalance(), None, "{}", case.name);
        let flushed = switch.flush_held_reports();
        frames.extend(flushed.iter().map(|frame| to_hex_digits(frame)));
        assert_eq!(frames, case.frames, "{}", case.name);
        assert_eq!(flushed.len(), case.flushed, "{}", case.name);
        assert_eq!(nacks, case.nacks, "{}", case.name);
        assert_eq!(dropped, case.dropped, "{}", case.name);
    }
}

/// What is out on RC is acknowledged at once: no report waits for room in a window or queue.
#[test]
fn nothing_waits_for_a_responder_that_is_not_there() {
    let case = cases().into_iter().find(|case| case.name == "key-increment").unwrap();
    let mut switch = Reference::new(&program(&case), 1 << 10).unwrap();
    let reporter = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 5555);
    for _ in 0..20_000 {
        let made = switch.process_report(
            reporter,
            SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40040),
            &bytes(&case.reports[0]),
        );
        assert_eq!((made.frames.len(), made.dropped), (2, None));
    }
}

/// Each rule of the page has cases, and the page names each case about a rule.
#[test]
fn the_page_names_cases_that_there_are() {
    let page = include_str!("../../../docs/reference-mode.md");
    let names: Vec<String> = cases().into_iter().map(|case| case.name).collect();
    let rules = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| rule"));
    let mut named = 0;
    for rule in rules {
        let cell = rule.split('|').nth(2).unwrap();
        if cell.trim().is_empty() || cell.trim().starts_with("all") {
            continue;
        }
        for case in cell.split(',').map(|case| case.trim().trim_matches('`')) {
            assert!(names.iter().any(|name| name == case), "no case `{case}`: {rule}");
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}
