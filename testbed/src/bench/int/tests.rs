//! More becomes due at once than queue pairs can hold, and none of it is lost.

use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::Rules;

use super::flows;
use super::traffic::IntTraffic;
use super::world::World;

const SECOND: u64 = 1_000_000_000;

/// Lets waiting counts become due, in many turns at one moment.
fn let_wait(world: &mut World) {
    world.clock = Some(10 * SECOND);
    (0..1000).for_each(|_| world.advance_idle());
}

#[test]
fn no_count_of_reports_is_lost_when_many_are_due() {
    // No divisor in common with the step of the traffic.
    const FLOWS: usize = 20_480;
    for waits in [false, true] {
        let rules = Rules { keys: 1 << 18, ..Rules::default() };
        let mut world = World::new(rules, FLOWS, FLOWS).unwrap();
        world.clock = Some(SECOND);
        let mut traffic = IntTraffic::new(FLOWS, 1, false);
        for _ in 0..2 * FLOWS as u64 / IntTraffic::READY {
            traffic.make_ready().iter().for_each(|batch| world.take(batch, &IntSettings::default()));
        }
        let early = world.telemetry.int_counters().counts_early;
        assert!(early < 100, "{early} were written while they came");
        if waits {
            let_wait(&mut world);
            let held = world
                .telemetry
                .named_counters()
                .iter()
                .find(|(name, _)| name == "int.counts_held")
                .unwrap()
                .1;
            assert_eq!(held, 0);
        }
        world.flush_to_memory().unwrap();
        assert_eq!(world.incremented().unwrap(), 2 * FLOWS as u64);
    }
}

#[test]
fn every_flow_record_is_in_memory() {
    let mut world = World::new(Rules::default(), 1 << 10, 1 << 10).unwrap();
    world.clock = Some(SECOND);
    let (mut traffic, mut decoder) =
        (flows::FlowExportTraffic::with_netflow(), Decoder::new(DecoderOptions::default()));
    // Less than a ring, then more.
    for _ in 0..3 {
        traffic.make_ready().chunks(16).for_each(|batch| world.take_exports(&mut decoder, batch));
        flows::check_records_in_memory(&mut world, &traffic, &decoder).unwrap();
    }
}
