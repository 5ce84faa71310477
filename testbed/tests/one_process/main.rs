//! Engine, software NIC and readers in one process, without sockets and without clocks: reports of
//! all five primitives go in, and every answer of every reader is held against what the reports
//! say.
//!
//! Without faults, and on RC with them, the truth is made of the reports alone. On UC, what the
//! wire dropped is left out of it, report by report and copy by copy; everything else has to be
//! there.

mod answers;
mod reports;
mod truth;
mod world;

use dta_dataplane::counters::LossCause;
use dta_link::fault::Faults;
use dta_proto::program::Transport;

use reports::Reports;
use truth::Truth;
use world::World;

/// What becomes of frames and answers between engine and NIC.
struct Wire {
    transport: Transport,
    frames: &'static str,
    answers: &'static str,
}

fn faults(text: &str) -> Faults {
    text.parse().expect("faults of this test's own")
}

/// Sends everything, queries everything. Returns the world for more queries.
fn holds(wire: &Wire, seed: u64) -> World {
    println!("seed {seed}");
    let reports = Reports::generate(seed);
    let mut world = World::new(wire.transport, faults(wire.frames), faults(wire.answers), seed);
    for batch in reports.batches() {
        world.report(&batch);
    }
    world.finish();

    let counters = world.engine.engine_counters();
    assert_eq!(counters.find_imbalance(), None);
    let accepted: u64 = counters.primitives.iter().map(|p| p.accepted).sum();
    assert_eq!((counters.received, accepted), (reports.len() as u64, reports.len() as u64));
    let truth = match wire.transport {
        Transport::Uc if wire.frames != "none" => Truth::of_what_came(&reports, &world.arrivals),
        _ => Truth::of_all(&reports),
    };
    answers::compare(&world, &reports, &truth);
    assert_eq!(counters.lost_by_cause(LossCause::Injected).0, truth.lost_reports());
    assert_eq!(counters.primitives.iter().map(|p| p.lost_reports).sum::<u64>(), truth.lost_reports());
    world
}

#[test]
fn every_answer_is_what_was_reported() {
    for transport in [Transport::Uc, Transport::Rc] {
        for seed in 1..=3 {
            let world = holds(&Wire { transport, frames: "none", answers: "none" }, seed);
            assert!(world.engine.queue_pairs().iter().all(|pair| pair.counters.retransmitted == 0));
        }
    }
}

#[test]
fn on_uc_every_answer_is_what_was_reported_but_for_what_was_dropped() {
    for seed in 11..=14 {
        let wire =
            Wire { transport: Transport::Uc, frames: "drop=0.1,dup=0.1,reorder=0.1", answers: "drop=0.1" };
        let world = holds(&wire, seed);
        let counts = world.frame_faults.fault_counts();
        assert!(counts.dropped > 50 && counts.duplicated > 50 && counts.reordered > 50, "{counts:?}");
    }
}

#[test]
fn on_rc_every_answer_is_what_was_reported_whatever_happens_on_the_way() {
    for seed in 21..=24 {
        let bad = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1";
        let world = holds(&Wire { transport: Transport::Rc, frames: bad, answers: bad }, seed);
        let counts = world.frame_faults.fault_counts();
        assert!(counts.dropped > 50 && counts.duplicated > 50 && counts.reordered > 50, "{counts:?}");
        assert!(world.engine.queue_pairs().iter().all(|pair| pair.counters.retransmitted > 50));
    }
}
