//! The engine in reference mode makes the frames of `dta-proto/vectors/frames.json`, byte for byte.
//! They were made by another implementation (`frames.py` beside it), and every data plane is held
//! to them.

use std::net::{Ipv4Addr, SocketAddrV4};

use dta_dataplane::{Engine, Limits, Output};
use dta_proto::program::{Entry, Mode, Program, Purpose, QueuePair, Transport, diff};
use dta_proto::wire::datagram;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    transport: Transport,
    start_psn: u32,
    reports: Vec<String>,
    frames: Vec<String>,
}

/// The program of the vectors, in reference mode, as a case wants it.
fn program(case: &Case) -> Program {
    let all: Program = serde_json::from_str(include_str!("../../dta-proto/vectors/program.json")).unwrap();
    let mut program = Program::default();
    for entry in all.entries() {
        match entry {
            Entry::Flush(_) => {}
            Entry::Mode(_) => program.set(Entry::Mode(Mode { reference: true })),
            Entry::QueuePair(pair) => {
                let transport = if pair.purpose == Purpose::Write { case.transport } else { pair.transport };
                let start_psn = case.start_psn;
                program.set(Entry::QueuePair(QueuePair { transport, start_psn, ..pair.clone() }));
            }
            other => program.set(other.clone()),
        }
    }
    program
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Each report as a packet that a link hands over.
fn packet(report: &str) -> Vec<u8> {
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 5555);
    let payload = bytes(report);
    [&datagram::header(from, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40040), payload.len())[..], &payload]
        .concat()
}

#[test]
fn frames_are_as_the_other_implementation_makes_them() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../dta-proto/vectors/frames.json")).unwrap();
    assert!(cases.len() >= 20, "only {} cases", cases.len());
    for case in &cases {
        let (mut engine, mut out) = (Engine::new(Limits::default()), Output::default());
        engine.apply(0, &diff(&Program::default(), &program(case)), &mut out).unwrap();
        for report in &case.reports {
            engine.ingest(0, [&*packet(report)], &mut out);
        }
        let counters = engine.counters();
        assert_eq!(counters.received, case.reports.len() as u64, "{}", case.name);
        assert_eq!(counters.check(), None, "{}", case.name);
        engine.flush(0, &mut out);
        let frames: Vec<String> = out.frames.iter().map(hex).collect();
        assert_eq!(frames, case.frames, "{}", case.name);
    }
}
