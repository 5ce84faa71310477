//! Reports that reach the engine other than from the network.

use dta_proto::program::{DataPlaneEntry, Primitive, Transport};
use dta_proto::wire::dta::DtaBody;

use super::EngineLimits;
use super::counters::Reason;
use super::engine::Admitted;
use super::losses::{FrameMeta, Origin};
use super::tests::{AP, Bench, KI, KW, PC, SM, key, program};

/// Two reports of each primitive: the first is held where the primitive holds reports, the second
/// makes it leave.
fn reports() -> Vec<(u16, DtaBody<'static>)> {
    let postcard = |hop| DtaBody::Postcard { key: key(3), hop, path_length: 2, value: 7 + u32::from(hop) };
    let mut reports = vec![
        (KW, DtaBody::KeyWrite { redundancy: 0, key: key(1), value: &[1; 12] }),
        (KW, DtaBody::KeyWrite { redundancy: 1, key: key(2), value: &[2; 4] }),
        (KI, DtaBody::KeyIncrement { redundancy: 0, key: key(1), delta: 5 }),
        (KI, DtaBody::KeyIncrement { redundancy: 0, key: key(1), delta: 6 }),
        (PC, postcard(0)),
        (PC, postcard(1)),
        (SM, DtaBody::SketchMerge { epoch: 1, column: 2, cells: &[1; 8] }),
        (SM, DtaBody::SketchMerge { epoch: 1, column: 3, cells: &[2; 8] }),
    ];
    reports.extend((0..3).map(|_| (AP, DtaBody::Append { list: 1, value: &[9; 8] })));
    reports
}

fn admitted<'a>((store, body): &'a (u16, DtaBody<'a>), sequence: u32) -> Admitted<'a> {
    Admitted { body, store: *store, reporter: 7, sequence, numbered: true, immediate: false }
}

fn bench() -> Bench {
    Bench::new(&program(Transport::Uc, false), EngineLimits { name_reports: true, ..EngineLimits::default() })
}

/// What was sent, what each frame carries with the names of its reports, and the counters.
#[derive(Debug, PartialEq)]
struct Outcome {
    frames: Vec<Vec<u8>>,
    carried: Vec<(FrameMeta, Vec<Origin>)>,
    counters: Vec<(String, u64)>,
}

/// The outcome after all that was held has left too.
fn outcome(bench: &mut Bench) -> Outcome {
    bench.engine.flush_held_reports(1, &mut bench.out);
    assert_eq!(bench.engine.engine_counters().find_imbalance(), None);
    let names = |meta| bench.engine.report_origins().frame_origins(meta).collect();
    Outcome {
        frames: bench.out.frames.iter().map(<[u8]>::to_vec).collect(),
        carried: bench.out.meta.iter().map(|meta| (*meta, names(meta))).collect(),
        counters: bench.engine.engine_counters().named_counters(),
    }
}

#[test]
fn a_report_becomes_the_same_operations_by_either_way() {
    let reports = reports();
    let (mut network, mut other) = (bench(), bench());
    network.sequence = 40;
    let packets: Vec<_> = reports.iter().map(|(store, body)| network.v1(7, *store, *body)).collect();
    network.engine.ingest_packets(0, packets.iter().map(Vec::as_slice), &mut network.out);
    let admitted = reports.iter().zip(40..).map(|(report, sequence)| admitted(report, sequence));
    other.engine.execute_reports(0, admitted, &mut other.out);
    // What is not held has left when the batch ends.
    assert_eq!(network.out.frames.len(), other.out.frames.len());
    let (by_network, by_other) = (outcome(&mut network), outcome(&mut other));
    assert_eq!(by_network, by_other);
    assert_eq!(by_other.frames.len(), by_other.carried.len());
    assert_eq!(by_other.carried[0].1, [Origin { serial: 0, sequence: 40, reporter: 7 }]);
    for primitive in Primitive::ALL {
        let counters = other.engine.engine_counters().primitives[primitive.index()];
        let sent = if primitive == Primitive::Append { 3 } else { 2 };
        assert_eq!(
            (counters.received, counters.accepted, counters.emitted),
            (sent, sent, sent),
            "{primitive}"
        );
    }
}

#[test]
fn what_cannot_be_executed_is_counted_by_its_reason() {
    let mut bench = bench();
    let write = DtaBody::KeyWrite { redundancy: 0, key: key(1), value: &[1; 12] };
    let refused = [
        (99, write, Reason::UnknownStore),
        (AP, write, Reason::WrongPrimitive),
        (KW, DtaBody::KeyWrite { redundancy: 3, key: key(1), value: &[1; 12] }, Reason::Redundancy),
        (AP, DtaBody::Append { list: 8, value: &[0; 8] }, Reason::ListRange),
    ];
    for (store, body, reason) in refused {
        let report = (store, body);
        bench.engine.execute_reports(0, [admitted(&report, 1)], &mut bench.out);
        assert_eq!(bench.drops(reason), 1, "{reason:?}");
    }
    assert!(bench.out.frames.is_empty());
    assert_eq!(
        (bench.engine.engine_counters().received, bench.engine.engine_counters().find_imbalance()),
        (4, None)
    );
}

#[test]
fn no_window_is_asked_and_nobody_is_asked_to_send_again() {
    let mut bench = bench();
    let report = (KW, DtaBody::KeyWrite { redundancy: 1, key: key(1), value: &[1; 12] });
    for sequence in [5, 5, 900, 2] {
        bench.engine.execute_reports(0, [admitted(&report, sequence)], &mut bench.out);
    }
    assert_eq!((bench.out.frames.len(), bench.out.nacks.len()), (4, 0));
    assert_eq!(bench.engine.reporters().iter().count(), 0);
}

/// `fit::fits` says to senders what cannot land: it must agree with the engine.
#[test]
fn what_fits_a_store_is_what_the_engine_takes() {
    let misfits = [
        Reason::WrongPrimitive,
        Reason::Redundancy,
        Reason::ValueLength,
        Reason::ListRange,
        Reason::PathLength,
        Reason::Hop,
        Reason::Column,
    ];
    let (key, bytes) = (key(1), [1; 64]);
    let mut bodies = Vec::new();
    for redundancy in 0..=5 {
        bodies.push(DtaBody::KeyIncrement { redundancy, key, delta: 1 });
        bodies.extend((1..=16).map(|n| DtaBody::KeyWrite { redundancy, key, value: &bytes[..4 * n] }));
    }
    for list in [0, 1, 7, 8, u32::MAX] {
        bodies.extend((1..=15).map(|n| DtaBody::Append { list, value: &bytes[..4 * n] }));
    }
    for hop in 0..=14 {
        bodies.extend((0..=15).map(|path_length| DtaBody::Postcard { key, hop, path_length, value: 1 }));
    }
    for column in [0, 1, 1 << 10, 1 << 20, u32::MAX] {
        bodies.extend((1..=4).map(|n| DtaBody::SketchMerge { epoch: 1, column, cells: &bytes[..4 * n] }));
    }
    let program = program(Transport::Uc, false);
    let (mut fit, mut unfit) = (0, 0);
    for store in program.entries() {
        let DataPlaneEntry::Store(store) = store else { continue };
        for body in &bodies {
            let mut bench = bench();
            let report = (store.spec.id, *body);
            bench.engine.execute_reports(0, [admitted(&report, 1)], &mut bench.out);
            let refused: u64 = misfits.iter().map(|reason| bench.drops(*reason)).sum();
            let fits = dta_proto::fit::check_report_fit(&store.spec, body);
            assert_eq!(fits.is_ok(), refused == 0, "{body:?} in {:?}: {fits:?}", store.spec);
            if fits.is_ok() { fit += 1 } else { unfit += 1 }
        }
    }
    assert!(fit > 40 && unfit > 500, "{fit} fit, {unfit} do not");
}

/// A late postcard is recognised by its sequence, and only if that is meaningful.
#[test]
fn a_postcard_without_a_number_of_its_own_is_never_late() {
    for (numbered, late) in [(true, 1), (false, 0)] {
        let mut bench = bench();
        let postcards: Vec<_> = [0, 1, 0]
            .map(|hop| (PC, DtaBody::Postcard { key: key(3), hop, path_length: 2, value: 7 }))
            .to_vec();
        let reports = postcards.iter().zip([10, 11, 9]);
        let reports = reports.map(|(report, sequence)| Admitted { numbered, ..admitted(report, sequence) });
        bench.engine.execute_reports(0, reports, &mut bench.out);
        assert_eq!(bench.drops(Reason::LatePostcard), late, "numbered: {numbered}");
    }
}
