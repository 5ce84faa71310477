//! Key-writes of a batch become the same operations together as each does on its own.

use dta_proto::program::{DataPlaneEntry, EntryKey, Program, Purpose, Store, Transport};
use dta_proto::wire::dta::DtaBody;
use proptest::prelude::*;

use super::EngineLimits;
use super::collectors_tests::{numbered, shared};
use super::counters::Reason;
use super::engine::Admitted;
use super::tests::{AP, Bench, KI, KW, program};
use super::workers::build_crew;
use dta_proto::buckets::Buckets;

/// A report: its store, what it says, and whether it asks to wake a reader.
type TestReport = (u16, DtaBody<'static>, bool);

/// A report of one of many kinds, more than half of which can join a run.
fn report((kind, key, redundancy): (u8, u32, u8)) -> TestReport {
    let key = numbered(key);
    let write = |value: &'static [u8]| DtaBody::KeyWrite { redundancy, key, value };
    match kind {
        0 => (AP, DtaBody::Append { list: u32::from(key.0[3] & 7), value: &[5; 8] }, false),
        1 => (KI, DtaBody::KeyIncrement { redundancy: 1, key, delta: 3 }, false),
        2 => (KW, write(&[7; 4]), false),
        3 => (KW, write(&[7; 16]), false),
        4 => (99, write(&[7; 12]), false),
        5 => (AP, write(&[7; 12]), false),
        6 => (KW, write(&[7; 12]), true),
        other => (KW, write(if other % 2 == 0 { &[7; 12] } else { &[8; 12] }), false),
    }
}

/// Programs with one queue pair for writes on each transport and with none, and with two collectors that share
/// keys, but for those of one bucket.
fn programs() -> Vec<Program> {
    let mut without = program(Transport::Uc, false);
    without.remove(&EntryKey::QueuePair(0, Purpose::Write));
    let mut several = shared(128);
    let part = several.store_part(KW, 1).unwrap().clone();
    several.set(DataPlaneEntry::Store(Store { buckets: Buckets::from_range(128, 200).into(), ..part }));
    vec![
        program(Transport::Uc, false),
        program(Transport::Rc, false),
        program(Transport::Rc, true),
        without,
        several,
    ]
}

proptest! {
    #[test]
    fn a_batch_becomes_what_its_reports_become_one_by_one(
        reports in prop::collection::vec((0u8..40, 0u32..400, prop_oneof![8 => Just(0u8), 1 => 1u8..4]).prop_map(report), 1..200),
        name_reports: bool,
    ) {
        for program in programs() {
            let limits = EngineLimits { name_reports, ..EngineLimits::default() };
            let (mut together, mut alone) = (Bench::new(&program, limits), Bench::new(&program, limits));
            let packets: Vec<Vec<u8>> = reports
                .iter()
                .map(|(store, body, immediate)| {
                    let mut packet = together.v1(7, *store, *body);
                    packet[28 + 2] |= u8::from(*immediate) << 7;
                    packet
                })
                .collect();
            together.engine.ingest_packets(0, packets.iter().map(Vec::as_slice), &mut together.out);
            // Reports that come parsed go one by one.
            let parsed = reports.iter().zip(0..).map(|((store, body, immediate), sequence)| Admitted {
                body, store: *store, reporter: 7, sequence, numbered: true, immediate: *immediate,
            });
            alone.engine.execute_reports(0, parsed, &mut alone.out);
            prop_assert_eq!(&together.out.meta, &alone.out.meta);
            prop_assert_eq!(&together.out.lost, &alone.out.lost);
            prop_assert_eq!(together.engine.engine_counters().named_counters(), alone.engine.engine_counters().named_counters());
            prop_assert_eq!(together.frames(), alone.frames());
        }
    }
}

proptest! {
    #[test]
    fn what_nobody_numbered_becomes_together_what_it_becomes_one_by_one(
        reports in prop::collection::vec((0u8..40, 0u32..400, prop_oneof![8 => Just(0u8), 1 => 1u8..4]).prop_map(report), 1..200),
    ) {
        for program in programs() {
            let [mut together, mut alone] = [(); 2].map(|()| Bench::new(&program, EngineLimits::default()));
            let unnumbered = reports.iter().map(|(store, body, _)| (*store, *body));
            together.engine.execute_unnumbered(0, unnumbered, &mut together.out);
            let admitted = reports.iter().map(|(store, body, _)| Admitted {
                body, store: *store, reporter: 0, sequence: 0, numbered: false, immediate: false,
            });
            alone.engine.execute_reports(0, admitted, &mut alone.out);
            prop_assert_eq!(&together.out.meta, &alone.out.meta);
            prop_assert_eq!(&together.out.lost, &alone.out.lost);
            prop_assert_eq!(together.engine.engine_counters().named_counters(), alone.engine.engine_counters().named_counters());
            prop_assert_eq!(together.frames(), alone.frames());
        }
    }
}

#[test]
fn what_a_run_has_no_place_for_is_shown_by_its_packet() {
    let mut program = program(Transport::Uc, false);
    program.remove(&EntryKey::QueuePair(0, Purpose::Write));
    let mut bench = Bench::new(&program, EngineLimits::default());
    let packets: Vec<_> = (0..40)
        .map(|n| bench.v1(7, KW, DtaBody::KeyWrite { redundancy: 0, key: numbered(n), value: &[1; 12] }))
        .collect();
    assert!(bench.ingest(0, &packets).is_empty());
    let offenders: Vec<_> = bench.engine.take_offenders().collect();
    assert_eq!(offenders.len(), 1);
    assert_eq!(offenders[0].1.offending_packet(), packets[0]);
}

#[test]
fn what_another_worker_read_is_shown_by_its_reporter() {
    let mut program = program(Transport::Uc, false);
    program.remove(&EntryKey::QueuePair(0, Purpose::Write));
    let (mut crews, _) = build_crew(2);
    let mut benches =
        [Bench::new(&program, EngineLimits::default()), Bench::new(&program, EngineLimits::default())];
    // Reporter 6 is judged by the first worker, which executes about half of its key-writes.
    let packets: Vec<_> = (0..40)
        .map(|n| benches[0].v1(6, KW, DtaBody::KeyWrite { redundancy: 0, key: numbered(n), value: &[1; 12] }))
        .collect();
    let [first, second] = &mut benches;
    first.engine.ingest_among(0, packets.iter().map(Vec::as_slice), &mut crews[0], &mut first.out);
    assert!((5..36).contains(&second.engine.take_handovers(0, &mut crews[1], &mut second.out)));
    assert!(first.out.frames.is_empty() && second.out.frames.is_empty());
    let shown = |bench: &mut Bench| bench.engine.take_offenders().next().unwrap();
    let ((reason, packet), (same, reporter)) = (shown(first), shown(second));
    assert_eq!((reason, same), (Reason::NoQueuePair, Reason::NoQueuePair));
    assert!(
        packets.iter().any(|sent| sent == packet.offending_packet()) && packet.reporter_and_store().is_none()
    );
    assert_eq!((reporter.offending_packet(), reporter.reporter_and_store()), (&[][..], Some((6, KW))));
}
