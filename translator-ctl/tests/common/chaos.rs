//! A switch in memory that fails, at random or where a test says, as a switch may: it refuses a request, does
//! it in part, does it and loses the answer, or restarts without its program. The control plane must still
//! reach the complete state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dta_proto::random::SplitMix64;
use dta_switch::TargetError;
use dta_switch::counters::SwitchCounts;
use dta_switch::pipeline::P4Pipeline;
use dta_switch::platform::Platform;
use dta_switch::runtime::{Runtime, WriteError};
use dta_switch::schema::Used;
use dta_switch::tables::{Item, SwitchUpdate, Tables};
use dta_switch::translator::{Command, SET_LIST};

/// Clones are the same switch.
#[derive(Clone)]
pub(crate) struct Chaos {
    pipeline: &'static P4Pipeline,
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Default)]
pub(crate) struct State {
    random: SplitMix64,
    /// One request in this many fails; 0 = none.
    pub(crate) one_in: u64,
    /// Updates to apply before the next one fails; without it, none fails for that reason.
    pub(crate) fails_after: Option<usize>,
    /// Whether that is permanent.
    pub(crate) refuses: bool,
    /// Whether its counters cannot be read.
    pub(crate) mute: bool,
    /// Whether it runs its program.
    runs: bool,
    pub(crate) tables: Tables,
    /// What commands have set: by command, queue pair, store and list.
    pub(crate) registers: BTreeMap<(u8, u8, u16, u32), u32>,
    /// Sequences of lists that commands have set, by place.
    pub(crate) sequences: BTreeMap<u32, u32>,
    /// Total updates applied.
    pub(crate) updates: usize,
}

/// The fate of a request.
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
    fn fate(&mut self) -> Fate {
        if self.one_in == 0 || !self.random.next_u64().is_multiple_of(self.one_in) {
            return Fate::Done;
        }
        let fate = match self.random.next_u64() % 4 {
            0 => Fate::Refused,
            1 => Fate::Part((self.random.next_u64() % 256) as usize),
            2 => Fate::AnswerLost,
            _ => Fate::Restart,
        };
        if fate == Fate::Restart {
            self.restart(false);
        }
        fate
    }

    /// It holds nothing, and runs no program unless somebody has loaded it.
    pub(crate) fn restart(&mut self, is_loaded: bool) {
        (self.runs, self.tables) = (is_loaded, Tables::default());
        (self.registers, self.sequences) = (BTreeMap::new(), BTreeMap::new());
    }

    /// How many of `of` parts of a request are done, and whether that is all.
    fn parts(&mut self, of: usize) -> (usize, bool) {
        match self.fate() {
            _ if !self.runs => (0, false),
            Fate::Done => (of, true),
            Fate::Part(parts) => (of * parts / 256, false),
            Fate::AnswerLost => (of, false),
            Fate::Refused | Fate::Restart => (0, false),
        }
    }

    /// Applies an update, rejecting invalid ones like a switch.
    fn make(&mut self, update: &SwitchUpdate) {
        let is_there = self.tables.get(update.updated_item()).is_some();
        let may_be = match update {
            SwitchUpdate::Insert(..) => !is_there,
            SwitchUpdate::Modify(item, _) => is_there || matches!(item, Item::Default { .. }),
            SwitchUpdate::Delete(_) => is_there,
        };
        assert!(may_be, "{update:?}");
        self.tables.apply_update(update);
        self.updates += 1;
    }
}

fn failed() -> TargetError {
    TargetError::Failed("chaos".into())
}

impl Chaos {
    /// One that does everything it is asked, until configured otherwise.
    pub(crate) fn new(pipeline: &'static P4Pipeline, seed: u64) -> Chaos {
        let state = State { random: SplitMix64(seed), ..State::default() };
        Chaos { pipeline, state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap())
    }
}

#[tonic::async_trait]
impl Runtime for Chaos {
    fn platform(&self) -> Platform {
        Platform::Bmv2
    }

    fn required_schema(&self) -> &'static Used {
        self.pipeline.used
    }

    fn table_capacity(&self, _: &str) -> Option<u64> {
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

    async fn write_updates(&mut self, updates: &[SwitchUpdate]) -> Result<(), WriteError> {
        self.with(|state| {
            let (mut made, mut is_all) = state.parts(updates.len());
            let left = state.fails_after.map(|left| left.min(made));
            if let Some(left) = left.filter(|left| *left < updates.len()) {
                (made, is_all) = (left, false);
            }
            state.fails_after = state.fails_after.map(|left| left - made);
            updates[..made].iter().for_each(|update| state.make(update));
            if is_all {
                return Ok(());
            }
            let error =
                if state.refuses { TargetError::Refused("the table is full".into()) } else { failed() };
            // At random it does not report how far it got.
            let is_silent = state.one_in != 0 && state.random.next_u64().is_multiple_of(2);
            Err(WriteError { made: (!is_silent).then_some(made), error })
        })
    }

    async fn run_commands(&mut self, commands: &[Command], _: &Tables) -> Result<(), TargetError> {
        self.with(|state| {
            let (done, is_all) = state.parts(commands.len());
            for command in &commands[..done] {
                let of = (command.command, command.pair, command.store, command.index);
                state.registers.insert(of, command.value);
                if command.command == SET_LIST {
                    state.sequences.insert(command.state, command.value);
                }
            }
            if is_all { Ok(()) } else { Err(failed()) }
        })
    }

    async fn read_counters(&mut self) -> Result<SwitchCounts, TargetError> {
        self.with(|state| match state.fate() {
            Fate::Done if !state.mute => Ok(SwitchCounts::default()),
            _ => Err(failed()),
        })
    }
}
