//! For every reason to drop a report, a report that is dropped for it, among good ones that all get through.

use dta_proto::wire::dta::DtaBody;

use super::EngineLimits;
use super::counters::Reason;
use super::tests::{AP, Bench, KI, KW, PC, SM, datagram, key, program};
use dta_proto::program::Transport;

/// What is wrong, the datagram, and what it counts as.
type Case = (&'static str, Vec<u8>, Reason);

const REPORTER: u16 = 1;

/// The payload of a datagram.
fn payload(packet: &[u8]) -> Vec<u8> {
    packet[28..].to_vec()
}

fn cases(bench: &mut Bench) -> Vec<Case> {
    let value = [1; 12];
    let good = |bench: &mut Bench| {
        payload(&bench.v1(REPORTER, KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &value }))
    };
    let mut cases: Vec<Case> = Vec::new();
    let whole = good(bench);
    for len in [0, 1, 2, 3, 11, 27] {
        cases.push(("truncated", datagram(&whole[..len]), Reason::Length));
    }
    cases.push(("value cut off", datagram(&whole[..28]), Reason::ValueLength));
    cases.push(("value cut in the middle", datagram(&whole[..30]), Reason::ValueLength));
    let mut long = good(bench);
    long.resize(28 + 64, 0);
    cases.push(("value longer than the format's", datagram(&long), Reason::ValueLength));
    long.resize(1400, 0);
    cases.push(("oversized", datagram(&long), Reason::ValueLength));
    let mut increment =
        payload(&bench.v1(REPORTER, KI, DtaBody::KeyIncrement { redundancy: 0, key: key(1), delta: 1 }));
    increment.push(0);
    cases.push(("a byte too many", datagram(&increment), Reason::Length));
    for version in [2, 3] {
        let mut other = good(bench);
        other[2] = other[2] & !3 | version;
        cases.push(("another version", datagram(&other), Reason::Version));
    }
    for opcode in [0, 6, 255] {
        let mut other = good(bench);
        other[0] = opcode;
        cases.push(("no primitive", datagram(&other), Reason::Opcode));
    }
    let mut contradiction = good(bench);
    contradiction[1] ^= 1;
    cases.push(("two sequences that differ", datagram(&contradiction), Reason::Field));
    let keys = DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &value };
    cases.push(("no such store", bench.v1(REPORTER, 999, keys), Reason::UnknownStore));
    cases.push(("a store of another kind", bench.v1(REPORTER, SM, keys), Reason::WrongPrimitive));
    let more = DtaBody::KeyWrite { redundancy: 3, key: key(1), value: &value };
    cases.push(("more copies than the store has", bench.v1(REPORTER, KW, more), Reason::Redundancy));
    let fewer = DtaBody::KeyIncrement { redundancy: 1, key: key(1), delta: 1 };
    cases.push(("a counter with other copies", bench.v1(REPORTER, KI, fewer), Reason::Redundancy));
    let list = |list| DtaBody::Append { list, value: &[1; 8] };
    cases.push(("no such list", bench.v1(REPORTER, AP, list(8)), Reason::ListRange));
    cases.push(("the last number that is none", bench.v1(REPORTER, AP, list(u32::MAX)), Reason::ListRange));
    cases.push(("another translator's list", bench.v1(REPORTER, AP, list(2)), Reason::ListNotOwned));
    let hop = |hop, path_length| DtaBody::Postcard { key: key(1), hop, path_length, value: 1 };
    cases.push(("a hop beyond the rows", bench.v1(REPORTER, PC, hop(6, 0)), Reason::Hop));
    cases.push(("a path longer than the rows", bench.v1(REPORTER, PC, hop(0, 7)), Reason::PathLength));
    let cells = [0; 8];
    let column = |epoch, column, cells| DtaBody::SketchMerge { epoch, column, cells };
    cases.push(("no such column", bench.v1(REPORTER, SM, column(5, 16, &cells[..])), Reason::Column));
    cases.push(("rows missing", bench.v1(REPORTER, SM, column(5, 0, &cells[..4])), Reason::ValueLength));
    cases.push(("an epoch gone by", bench.v1(REPORTER, SM, column(1, 0, &cells[..])), Reason::EpochOld));
    cases.push((
        "an epoch far off",
        bench.v1(REPORTER, SM, column(1 << 31, 0, &cells[..])),
        Reason::EpochAhead,
    ));
    cases
}

#[test]
fn each_bad_report_is_counted_by_name_and_no_good_one_is_lost() {
    let mut bench = Bench::new(&program(Transport::Uc, false), EngineLimits::default());
    // Two reporters begin the sketch, so that its epochs mean something.
    let cells = [0; 8];
    for reporter in [8, 9] {
        let report = bench.v1(reporter, SM, DtaBody::SketchMerge { epoch: 5, column: 15, cells: &cells });
        bench.ingest(0, &[report]);
    }
    for (n, (what, packet, reason)) in cases(&mut bench).into_iter().enumerate() {
        let before = bench.drops(reason);
        let value = [n as u8; 12];
        let good = DtaBody::KeyWrite { redundancy: 1, key: key(n as u8), value: &value };
        let (first, last) = (bench.v1(2, KW, good), bench.v1(2, KW, good));
        let frames = bench.ingest(0, &[first, packet, last]);
        assert_eq!(frames.len(), 2, "{what}: the good ones before and after it");
        assert_eq!(bench.drops(reason), before + 1, "{what} is counted as {reason:?}");
    }
    let dropped: u64 = Reason::ALL.iter().map(|reason| bench.drops(*reason)).sum();
    let counters = bench.engine.engine_counters();
    assert_eq!(counters.received, counters.primitives.iter().map(|p| p.accepted).sum::<u64>() + dropped);
}

#[test]
fn sequences_out_of_the_window_and_too_many_reporters_are_counted() {
    let limits = EngineLimits { reporters: 2, ..EngineLimits::default() };
    let mut bench = Bench::new(&program(Transport::Uc, false), limits);
    let body = DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] };
    let mut send = |reporter, sequence| {
        bench.sequence = sequence;
        let report = bench.v1(reporter, KW, body);
        let taken = bench.ingest(0, &[report]).len();
        (
            taken,
            bench.drops(Reason::OutOfWindow),
            bench.drops(Reason::Reporters),
            bench.drops(Reason::Duplicate),
        )
    };
    assert_eq!(send(1, 5000), (1, 0, 0, 0));
    assert_eq!(send(1, 5000), (0, 0, 0, 1));
    assert_eq!(send(1, 5001), (1, 0, 0, 1));
    assert_eq!(send(1, 5001 - 1024), (0, 1, 0, 1));
    assert_eq!(send(2, 1), (1, 1, 0, 1));
    assert_eq!(send(2, 2), (1, 1, 0, 1));
    assert_eq!(send(3, 1), (0, 1, 1, 1));
    assert_eq!(send(1, 5002), (1, 1, 1, 1));
}

#[test]
fn a_sketch_takes_32_reporters_and_counts_the_others() {
    let mut bench = Bench::new(&program(Transport::Uc, false), EngineLimits::default());
    let cells = [0; 8];
    for reporter in 0..40 {
        for column in [0, 1] {
            let report = bench.v1(reporter, SM, DtaBody::SketchMerge { epoch: 5, column, cells: &cells });
            bench.ingest(0, &[report]);
        }
        assert_eq!(bench.drops(Reason::SketchReporters), 2 * u64::from(reporter.saturating_sub(31)));
    }
}
