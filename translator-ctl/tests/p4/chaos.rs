//! A switch in memory that fails at random, as a switch may: it refuses a request, does it in part, does it and loses the
//! answer, or restarts without its program. What programs switches has to bring it to the whole state all the same.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use dta_proto::program::{Entry, Program, Purpose};
use dta_translator::config::{Config, Platform};
use dta_translator::switches::p4::P4Switch;
use dta_translator::switches::p4::counters::Counts;
use dta_translator::switches::p4::pipeline::{Pipeline, REPORTER, TRANSLATOR};
use dta_translator::switches::p4::reporter::ReporterSwitch;
use dta_translator::switches::p4::runtime::{Runtime, WriteError};
use dta_translator::switches::p4::schema::Used;
use dta_translator::switches::p4::tables::{Item, Tables, Update};
use dta_translator::switches::p4::translator::{Command, SET_LIST, SET_PSN};
use dta_translator::switches::{After, Target as _, TargetError};

use crate::block_on;
use crate::profiles::{BATCHES_OF_16, BATCHES_OF_32, POSTCARDS, SKETCH, program};

/// Clones are the same switch.
#[derive(Clone)]
struct Chaos {
    pipeline: &'static Pipeline,
    state: Arc<Mutex<State>>,
}

struct State {
    seed: u64,
    /// One request in so many fails; 0 = none.
    one_in: u64,
    /// Whether it runs its program.
    runs: bool,
    tables: Tables,
    /// What commands have set: by command, queue pair, store and list.
    registers: BTreeMap<(u8, u8, u16, u32), u32>,
    updates: usize,
}

/// What becomes of a request.
#[derive(PartialEq)]
enum Fate {
    Done,
    Refused,
    /// As far as the first ones of 256 parts.
    Part(usize),
    AnswerLost,
    Restart,
}

impl State {
    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ self.seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn fate(&mut self) -> Fate {
        if self.one_in == 0 || self.random() % self.one_in != 0 {
            return Fate::Done;
        }
        let fate = match self.random() % 4 {
            0 => Fate::Refused,
            1 => Fate::Part((self.random() % 256) as usize),
            2 => Fate::AnswerLost,
            _ => Fate::Restart,
        };
        if fate == Fate::Restart {
            (self.runs, self.tables, self.registers) = (false, Tables::default(), BTreeMap::new());
        }
        fate
    }

    /// How many of `of` parts of a request are done, and whether the switch says so.
    fn parts(&mut self, of: usize) -> (usize, bool) {
        match self.fate() {
            _ if !self.runs => (0, false),
            Fate::Done => (of, true),
            Fate::Part(parts) => (of * parts / 256, false),
            Fate::AnswerLost => (of, false),
            Fate::Refused | Fate::Restart => (0, false),
        }
    }

    /// Makes an update, as a switch does that refuses what cannot be.
    fn make(&mut self, update: &Update) {
        let is_there = self.tables.get(update.item()).is_some();
        let may_be = match update {
            Update::Insert(..) => !is_there,
            Update::Modify(item, _) => is_there || matches!(item, Item::Default { .. }),
            Update::Delete(_) => is_there,
        };
        assert!(may_be, "{update:?}");
        self.tables.apply(update);
        self.updates += 1;
    }
}

fn failed() -> TargetError {
    TargetError::Failed("chaos".into())
}

impl Chaos {
    fn new(pipeline: &'static Pipeline, seed: u64) -> Chaos {
        let (tables, registers) = (Tables::default(), BTreeMap::new());
        let state = State { seed, one_in: 4, runs: false, tables, registers, updates: 0 };
        Chaos { pipeline, state: Arc::new(Mutex::new(state)) }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }
}

#[tonic::async_trait]
impl Runtime for Chaos {
    fn platform(&self) -> Platform {
        Platform::Bmv2
    }

    fn used(&self) -> &'static Used {
        self.pipeline.used
    }

    fn room(&self, _: &str) -> Option<u64> {
        None
    }

    async fn read(&mut self) -> Result<Option<Tables>, TargetError> {
        self.with(|state| match state.fate() {
            Fate::Done => Ok(state.runs.then(|| state.tables.clone())),
            _ => Err(failed()),
        })
    }

    async fn load(&mut self) -> Result<bool, TargetError> {
        self.with(|state| {
            let fate = state.fate();
            if matches!(fate, Fate::Refused | Fate::Restart) {
                return Err(failed());
            }
            let fresh = !std::mem::replace(&mut state.runs, true);
            if fate == Fate::Done { Ok(fresh) } else { Err(failed()) }
        })
    }

    async fn write(&mut self, updates: &[Update]) -> Result<(), WriteError> {
        self.with(|state| {
            let (made, says_so) = state.parts(updates.len());
            updates[..made].iter().for_each(|update| state.make(update));
            match says_so {
                true => Ok(()),
                // Each other time it says how far it got.
                false => Err(WriteError { made: (state.random() % 2 == 0).then_some(made), error: failed() }),
            }
        })
    }

    async fn command(&mut self, commands: &[Command], _: &Tables) -> Result<(), TargetError> {
        self.with(|state| {
            let (done, says_so) = state.parts(commands.len());
            for command in &commands[..done] {
                let of = (command.command, command.pair, command.store, command.index);
                state.registers.insert(of, command.value);
            }
            if says_so { Ok(()) } else { Err(failed()) }
        })
    }

    async fn counters(&mut self) -> Result<Counts, TargetError> {
        self.with(|state| if state.fate() == Fate::Done { Ok(Counts::default()) } else { Err(failed()) })
    }
}

const SEEDS: u64 = 300;
/// Attempts after which even one request in four that fails is no excuse.
const ATTEMPTS: usize = 10_000;

/// A program whose queue pairs are of this generation, and begin at PSNs of their own.
fn of_generation(stores: &[u16], generation: u64) -> Program {
    let entries = Vec::<Entry>::from(program(stores)).into_iter().map(|entry| match entry {
        Entry::QueuePair(mut pair) => {
            pair.generation = generation;
            pair.start_psn = generation as u32 * 1000 + pair.local_qpn;
            Entry::QueuePair(pair)
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
        let (_, p4) = config.switch("b1").unwrap().p4().unwrap();
        let translator = config.translator_of("b1").unwrap();
        let chaos = Chaos::new(&TRANSLATOR, seed);
        // Its control plane is another process each time.
        let target = || P4Switch::new(Box::new(chaos.clone()), "b1", p4, &translator);
        for (want, after) in [(&first, After::Open), (&second, After::Renewal), (&third, After::Open)] {
            chaos.with(|state| state.one_in = 4);
            let attempts = (0..ATTEMPTS).find(|_| match block_on(target().apply(want, after)) {
                Ok(_) => true,
                Err(error) => {
                    assert!(error.error.may_pass(), "{error}");
                    false
                }
            });
            failures += attempts.expect("it holds it in the end");
            chaos.with(|state| state.one_in = 0);
            let updates = chaos.with(|state| state.updates);
            assert_eq!(
                block_on(target().held()).unwrap().entries().count(),
                want.entries().count(),
                "{seed}"
            );
            assert_eq!(block_on(target().apply(want, After::Renewal)).unwrap(), [], "{seed}");
            assert_eq!(chaos.with(|state| state.updates), updates, "{seed}: rows were missing");
            for entry in want.entries() {
                let set = |of| chaos.with(|state| state.registers.get(&of).copied());
                match entry {
                    Entry::QueuePair(pair) => {
                        let number = 2 * pair.collector + u8::from(pair.purpose == Purpose::Atomic);
                        assert_eq!(set((SET_PSN, number, 0, 0)), Some(pair.start_psn), "{seed}");
                    }
                    Entry::Lists(lists) => {
                        for (list, sequence) in &lists.positions {
                            let told = set((SET_LIST, 0, lists.store, *list)).unwrap_or(0);
                            assert_eq!(told, *sequence, "{seed}");
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
        let mut reporter = ReporterSwitch::new(Box::new(chaos.clone()), "edge1", p4, &settings);
        for empties in [false, true, false] {
            let attempts = (0..ATTEMPTS).find(|_| {
                let done = match empties {
                    true => block_on(reporter.empty()),
                    false => block_on(reporter.apply()),
                };
                done.inspect_err(|error| assert!(error.error.may_pass(), "{error}")).is_ok()
            });
            assert!(attempts.is_some(), "{seed}");
            let whole = chaos.with(|state| state.tables == reporter.wanted());
            assert_eq!(whole, !empties, "{seed}");
        }
    }
}
