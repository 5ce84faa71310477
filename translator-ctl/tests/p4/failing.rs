//! Switches that fail at random are programmed: in the end each program is completely there.

use std::path::Path;

use dta_proto::program::{DataPlaneEntry, Program, Purpose};
use dta_switch::P4Switch;
use dta_switch::pipeline::{REPORTER, TRANSLATOR};
use dta_switch::reporter::ReporterSwitch;
use dta_switch::translator::{SET_LIST, SET_PSN};
use dta_switch::{After, Target as _};
use dta_translator::config::Config;

use crate::chaos::Chaos;
use crate::profiles::{BATCHES_OF_16, BATCHES_OF_32, POSTCARDS, SKETCH, program};
use crate::{attempt, block_on};

const SEEDS: u64 = 300;
/// Attempts after which even a failure rate of one in four is no excuse.
const ATTEMPTS: usize = 10_000;

/// A program whose queue pairs are of this generation, and begin at PSNs of their own.
fn of_generation(stores: &[u16], generation: u64) -> Program {
    let entries = Vec::<DataPlaneEntry>::from(program(stores)).into_iter().map(|entry| match entry {
        DataPlaneEntry::QueuePair(mut pair) => {
            pair.generation = generation;
            pair.start_psn = generation as u32 * 1000 + pair.local_qpn;
            DataPlaneEntry::QueuePair(pair)
        }
        other => other,
    });
    Program::from(entries.collect::<Vec<_>>())
}

#[test]
fn a_translator_that_fails_at_random_comes_to_hold_each_program_whole() {
    let first = of_generation(&[1, 3, POSTCARDS, BATCHES_OF_16], 1);
    let second = of_generation(&[1, SKETCH, BATCHES_OF_32], 2);
    let third = of_generation(&[1, 3, POSTCARDS, BATCHES_OF_32], 2);
    let mut failures = 0;
    for seed in 0..SEEDS {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[translator]\ncollector = '127.0.0.1:1'\n[switch.b1]\ntype = 'bmv2'\ncontrol = '127.0.0.1:2'\nstate = '{}'\n\
             postcard_rows = 64\ncollector_ports = [1]\nstations = [{{ mac = '02:00:00:00:00:09', port = 3 }}]\n",
            dir.path().join("kept.json").display()
        );
        let (config, _) = Config::parse(&text, Path::new("t.toml")).unwrap();
        let (_, p4) = config.find_switch("b1").unwrap().p4_config().unwrap();
        let translator = config.translator_of("b1").unwrap();
        let chaos = Chaos::new(&TRANSLATOR, seed);
        // Its control plane is another process each time.
        let target = || P4Switch::new(Box::new(chaos.clone()), p4.translator_options("b1", &translator));
        for (want, mut after) in [(&first, After::Open), (&second, After::Renewal), (&third, After::Open)] {
            chaos.with(|state| state.one_in = 4);
            let attempts = (0..ATTEMPTS).find(|_| match attempt(&mut target(), want, &mut after) {
                Ok(_) => true,
                Err(error) => {
                    assert!(error.error.is_retryable(), "{error}");
                    false
                }
            });
            failures += attempts.expect("it holds it in the end");
            chaos.with(|state| state.one_in = 0);
            let updates = chaos.with(|state| state.updates);
            assert_eq!(
                block_on(target().held_program()).unwrap().entries().count(),
                want.entries().count(),
                "{seed}"
            );
            assert_eq!(block_on(target().apply_program(want, After::Renewal)).unwrap(), [], "{seed}");
            assert_eq!(chaos.with(|state| state.updates), updates, "{seed}: rows were missing");
            for entry in want.entries() {
                let set = |of| chaos.with(|state| state.registers.get(&of).copied());
                match entry {
                    DataPlaneEntry::QueuePair(pair) => {
                        let number = 2 * pair.collector + u8::from(pair.purpose == Purpose::Atomic);
                        assert_eq!(set((SET_PSN, number, 0, 0)), Some(pair.start_psn), "{seed}");
                    }
                    DataPlaneEntry::Lists(lists) => {
                        for (list, sequence) in &lists.positions {
                            let position = set((SET_LIST, 0, lists.store, *list)).unwrap_or(0);
                            assert_eq!(position, *sequence, "{seed}");
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    assert!(failures > 1000, "{failures} attempts failed");
}

#[test]
fn a_reporter_that_fails_at_random_comes_to_hold_what_it_should() {
    let text = include_str!("reporter.toml").replace("CONTROL", "127.0.0.1:1");
    let (config, _) = Config::parse(&text, Path::new("t.toml")).unwrap();
    let (p4, settings) = config.reporter_of("edge1").unwrap().unwrap();
    for seed in 0..SEEDS {
        let chaos = Chaos::new(&REPORTER, seed);
        chaos.with(|state| state.one_in = 4);
        let mut reporter =
            ReporterSwitch::new(Box::new(chaos.clone()), "edge1", &p4.switch_options(), &settings);
        for empties in [false, true, false] {
            let attempts = (0..ATTEMPTS).find(|_| {
                let done = match empties {
                    true => block_on(reporter.stop_reporting()),
                    false => block_on(reporter.apply_settings()),
                };
                done.inspect_err(|error| assert!(error.error.is_retryable(), "{error}")).is_ok()
            });
            assert!(attempts.is_some(), "{seed}");
            let whole = chaos.with(|state| state.tables == reporter.wanted_tables());
            assert_eq!(whole, !empties, "{seed}");
        }
    }
}
