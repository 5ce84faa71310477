//! P4 switches as targets.
//!
//! A program is lowered to rows of the switch's tables, multicast groups and clone sessions
//! ([`Lowering::lower_program`]), under the P4 program's names ([`crate::translator`]). What the switch holds is read
//! from the switch itself; what its tables do not show is kept beside it ([`crate::state`]): names of stores, places
//! of state ([`crate::places`]), and entries without a row. An entry counts as held if it was applied completely and
//! all its rows are there. So the next attempt finds and writes what the last one left undone.
//!
//! The API of a switch is behind [`Runtime`]: [`p4runtime`](crate::p4runtime) for bmv2,
//! [`bfruntime`](crate::bfruntime) for Tofino. Only [`runtime::open`](crate::runtime::open) distinguishes these.
//! Where rows differ between the two, lowering asks `platform.rs`; it matches on the platform itself only where an
//! action has other parameters, or a reporter's program other rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use dta_proto::control::NodeStatistics;
use dta_proto::counter::translator as names;
use dta_proto::program::{
    DataPlaneChange, DataPlaneEntry, EntryKey, FlushDelay, Lists, Primitive, Program, RowFields, Store,
    Transport,
};
use dta_proto::store::StoreKind;
use tracing::{info, warn};

use crate::counters::{self, SwitchCounts};
use crate::lower::{Lowering, cannot_write, pair_number, split_pair_number};
use crate::options::TranslatorOptions;
use crate::places::StatePlaces;
use crate::runtime::{BATCH, Runtime, WriteError};
use crate::state::{StateFile, SwitchState};
use crate::tables::{SwitchUpdate, Tables};
use crate::translator::{self, Command};
use crate::{After, ApplyError, ApplyProgress, Target, TargetError, TargetStatus};

const FIELDS: RowFields = RowFields { expected: true, notify: true, ..RowFields::NONE };

/// Places flushed at a time when all are flushed: a sketch may have many.
const FLUSHED_AT_ONCE: usize = 8192;

/// A switch that runs `translator-p4`.
pub struct P4Switch {
    runtime: Box<dyn Runtime>,
    options: TranslatorOptions,
    file: StateFile,
    /// By RC queue pair, frames sent at the last check, and checks since then without an answer.
    quiet: BTreeMap<u32, (u64, u32)>,
    /// Answers on all RC queue pairs at the last check.
    answers: u64,
    /// Frames of all queue pairs at the last check, and whether it has counted fewer since.
    frames: (u64, bool),
}

/// What a switch holds, and what is kept beside it.
struct P4HeldState {
    tables: Tables,
    kept: Arc<SwitchState>,
    held: Program,
}

impl P4HeldState {
    /// Whether it restarted: it has none of the queue pairs that it was given.
    fn has_restarted(&self) -> bool {
        has_pairs(&self.kept.applied) && !has_pairs(&self.held)
    }
}

fn has_pairs(program: &Program) -> bool {
    program.entries().any(|entry| matches!(entry, DataPlaneEntry::QueuePair(_)))
}

impl P4Switch {
    /// The switch behind a runtime.
    pub fn new(runtime: Box<dyn Runtime>, options: TranslatorOptions) -> P4Switch {
        let file = StateFile::new(options.state.as_deref(), &options.name, &options.session);
        P4Switch { runtime, options, file, quiet: BTreeMap::new(), answers: 0, frames: (0, false) }
    }

    /// The API that programs it.
    pub fn runtime_mut(&mut self) -> &mut dyn Runtime {
        &mut *self.runtime
    }

    fn read_state(&mut self) -> Result<Arc<SwitchState>, TargetError> {
        self.file.read().map_err(|error| TargetError::Refused(error.to_string()))
    }

    fn write_state(&self, kept: &SwitchState) -> Result<(), TargetError> {
        self.file.write(kept).map_err(|error| TargetError::Failed(error.to_string()))
    }

    fn lowering<'a>(&'a self, program: &'a Program, places: &'a StatePlaces) -> Lowering<'a> {
        Lowering { program, places, options: &self.options.switch, platform: self.runtime.platform() }
    }

    fn lower_program(&self, program: &Program, places: &StatePlaces) -> Result<Tables, TargetError> {
        self.lowering(program, places).lower_program(&self.options.reporters)
    }

    /// The rows of the applied program, without forwarding.
    fn applied_rows(&self, kept: &SwitchState) -> Result<Tables, TargetError> {
        let (mut rows, lowering) = (Tables::default(), self.lowering(&kept.applied, &kept.places));
        for entry in kept.applied.entries() {
            lowering.lower_entry(&mut rows, entry)?;
        }
        Ok(rows)
    }

    /// What it holds. `tables` is `None` if it runs another program, in which case nothing is kept.
    fn held_state(&mut self, tables: Option<Tables>) -> Result<P4HeldState, TargetError> {
        let kept = match tables {
            Some(_) => self.read_state()?,
            None => Arc::default(),
        };
        let tables = tables.unwrap_or_default();
        let (mut held, lowering) = (Program::default(), self.lowering(&kept.applied, &kept.places));
        for entry in kept.applied.entries() {
            let mut own = Tables::default();
            // What the current configuration cannot lower is written again.
            if lowering.lower_entry(&mut own, entry).is_ok() && tables.contains(&own) {
                held.set(entry.clone());
            }
        }
        Ok(P4HeldState { tables, kept, held })
    }

    /// The data plane commands for these changes to a switch whose state was `kept`. `is_same` says whether
    /// nobody else can have written to a store at a collector meanwhile.
    fn commands_for_changes(
        &self,
        changes: &[DataPlaneChange],
        want: &Program,
        places: &StatePlaces,
        kept: &SwitchState,
        is_same: impl Fn(u16, u8) -> bool,
        fresh: bool,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        // Without a state, nothing is known about a program that runs.
        let was_used = |place| kept.life == 0 || kept.places.has_been_used(place);
        let is_new = |key: EntryKey| {
            changes
                .iter()
                .any(|change| matches!(change, DataPlaneChange::Insert { entry } if entry.entry_key() == key))
        };
        let had_another_part = |store: &Store| {
            want.store_parts(store.spec.id)
                .any(|part| !is_new(DataPlaneEntry::Store(part.clone()).entry_key()))
        };
        let mut forget = |store: u16, kind: &StoreKind| match *kind {
            StoreKind::Postcarding { .. } => {
                let (first, rows) =
                    places.row_range(store).map_or((0, 0), |place| (place.first, place.count));
                commands.extend((0..rows).map(|index| Command {
                    state: first + index,
                    ..store_command(translator::FORGET_ROW, store, index, 0)
                }));
            }
            StoreKind::SketchMerge { columns, epochs, .. } => {
                let first = places.column_range(store).map_or(0, |place| place.first);
                commands.extend(of_columns(translator::FORGET_COLUMN, store, columns, epochs, first));
            }
            _ => {}
        };
        for change in changes {
            match change {
                // The place may have been another store's. What is held for another collector's part stays.
                DataPlaneChange::Forget { entry: DataPlaneEntry::Store(store) } => {
                    forget(store.spec.id, &store.spec.kind)
                }
                DataPlaneChange::Insert { entry: DataPlaneEntry::Store(store) }
                    if !fresh && !had_another_part(store) =>
                {
                    forget(store.spec.id, &store.spec.kind)
                }
                _ => {}
            }
        }
        for change in changes {
            let (before, to) = match change {
                DataPlaneChange::Insert { entry } => (None, entry),
                DataPlaneChange::Modify { from, to } => (Some(from), to),
                DataPlaneChange::Delete { .. } | DataPlaneChange::Forget { .. } => continue,
            };
            match (before, to) {
                (Some(DataPlaneEntry::QueuePair(before)), DataPlaneEntry::QueuePair(pair))
                    if before.generation == pair.generation && before.remote_qpn == pair.remote_qpn => {}
                (_, DataPlaneEntry::QueuePair(pair)) => {
                    let number = pair_number(pair.collector, pair.purpose);
                    commands.push(pair_command(translator::SET_PSN, number, pair.start_psn));
                }
                (_, DataPlaneEntry::Lists(lists)) if want.first_store_part(lists.store).is_some() => {
                    let positions: BTreeMap<u32, u32> = lists.positions.iter().copied().collect();
                    let is_same = is_same(lists.store, lists.collector);
                    let each = |of: &StatePlaces| {
                        of.list_places(lists).into_iter().flat_map(|(part, at)| part.zip(at..))
                    };
                    let had: BTreeSet<(u32, u32)> = each(&kept.places).collect();
                    for (list, state) in each(places) {
                        let sequence = positions.get(&list).copied().unwrap_or(0);
                        let of = |command, value| Command {
                            state,
                            ..store_command(command, lists.store, list, value)
                        };
                        let is_new = !had.contains(&(list, state));
                        // Another list may have left entries there. The registers of a newly loaded program are 0.
                        if is_new && was_used(state) && !fresh {
                            commands.push(of(translator::FORGET_LIST, 0));
                        }
                        if (is_new || !is_same) && !(fresh && sequence == 0) {
                            commands.push(of(translator::SET_LIST, sequence));
                        }
                    }
                }
                _ => {}
            }
        }
        commands
    }

    /// Flushes lists that are leaving their collector, if nobody else can have written to them. If that
    /// fails, what they hold is sent when they come back.
    async fn flush_leaving(
        &mut self,
        held: &Program,
        want: &Program,
        rows: &Tables,
        is_same: impl Fn(u16, u8) -> bool,
    ) {
        let stays = |lists: &Lists, list: u32| {
            want.entries().any(|entry| match entry {
                DataPlaneEntry::Lists(of) => {
                    (of.store, of.collector) == (lists.store, lists.collector)
                        && of.list_numbers().contains(&list)
                }
                _ => false,
            })
        };
        let flushes = held.entries().filter_map(|entry| match entry {
            DataPlaneEntry::Lists(lists) if is_same(lists.store, lists.collector) => Some(lists),
            _ => None,
        });
        let leaving: Vec<Command> = flushes
            .flat_map(|lists| {
                let leaving = lists.list_numbers().filter(move |list| !stays(lists, *list));
                leaving.map(|list| store_command(translator::FLUSH_LIST, lists.store, list, 0))
            })
            .collect();
        if leaving.is_empty() || self.runtime.cannot_command().is_some() {
            return;
        }
        if let Err(error) = self.runtime.run_commands(&leaving, rows).await {
            warn!(%error, "cannot flush lists that leave a collector: what they hold stays in the switch");
        }
    }

    async fn held_reports(&mut self) -> Result<u64, TargetError> {
        let (nodes, held) = (self.statistics().await?, names::HELD.format_name(&[]));
        let mut counters = nodes.iter().flat_map(|node| &node.counters);
        Ok(counters.find(|counter| counter.name == held).map_or(0, |counter| counter.value))
    }
}

/// Whether a collector's part of a store is what it was, and nobody else may have written to it since.
fn is_same_part(held: &Program, want: &Program, after: After, store: u16, collector: u8) -> bool {
    let parts = held.store_part(store, collector).zip(want.store_part(store, collector));
    let generations = (held.generation(collector), want.generation(collector));
    let is_same_session =
        after == After::Renewal || generations.1.is_none() || generations.0 == generations.1;
    is_same_session && parts.is_some_and(|(held, want)| held.spec.kind == want.spec.kind)
}

/// Writes updates in batches. On an error, it says how many were applied.
pub(crate) async fn write_all(runtime: &mut dyn Runtime, updates: &[SwitchUpdate]) -> Result<(), ApplyError> {
    let mut applied = 0;
    for batch in updates.chunks(BATCH) {
        if let Err(WriteError { made, error }) = runtime.write_updates(batch).await {
            let progress = match made {
                None => ApplyProgress::Unknown,
                Some(made) if applied + made == 0 => ApplyProgress::Nothing,
                Some(made) => ApplyProgress::Part { applied: applied + made, of: updates.len() },
            };
            return Err(ApplyError { progress, error });
        }
        applied += batch.len();
    }
    Ok(())
}

fn store_command(command: u8, store: u16, index: u32, value: u32) -> Command {
    Command { command, pair: 0, store, index, value, state: 0 }
}

/// The commands that flush what an entry gathers of a primitive.
fn flush_commands<'a>(
    entry: &'a DataPlaneEntry,
    primitive: Primitive,
    older_us: u32,
    places: &StatePlaces,
) -> Box<dyn Iterator<Item = Command> + Send + 'a> {
    match entry {
        DataPlaneEntry::Lists(lists) if primitive == Primitive::Append => {
            let of = move |list| store_command(translator::FLUSH_LIST, lists.store, list, older_us);
            Box::new(lists.list_numbers().map(of))
        }
        DataPlaneEntry::Store(store) if store.spec.kind.primitive() == primitive => {
            let id = store.spec.id;
            match store.spec.kind {
                StoreKind::Postcarding { .. } => {
                    let rows = places.row_range(id).map_or(0, |place| place.count);
                    Box::new(
                        (0..rows).map(move |row| store_command(translator::FLUSH_ROW, id, row, older_us)),
                    )
                }
                StoreKind::SketchMerge { columns, epochs, .. } => {
                    let first = places.column_range(id).map_or(0, |place| place.first);
                    Box::new(of_columns(translator::FLUSH_COLUMN, id, columns, epochs, first))
                }
                _ => Box::new(std::iter::empty()),
            }
        }
        _ => Box::new(std::iter::empty()),
    }
}

fn pair_command(command: u8, pair: u32, value: u32) -> Command {
    Command { pair: u8::try_from(pair).unwrap_or(u8::MAX), ..store_command(command, 0, 0, value) }
}

/// A command for each column of each place of an epoch; their states start at `first`.
fn of_columns(
    command: u8,
    store: u16,
    columns: u32,
    epochs: u32,
    first: u32,
) -> impl Iterator<Item = Command> {
    let places = (0..epochs).flat_map(move |epoch| (0..columns).map(move |column| (epoch, column)));
    places.map(move |(epoch, column)| Command {
        state: first + epoch * columns + column,
        ..store_command(command, store, column, epoch)
    })
}

#[tonic::async_trait]
impl Target for P4Switch {
    async fn held_program(&mut self) -> Result<Program, TargetError> {
        let tables = self.runtime.read().await?;
        Ok(self.held_state(tables)?.held)
    }

    async fn required_changes(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, TargetError> {
        self.could_hold(want).await?;
        Ok(after.changes_between(FIELDS, &self.held_program().await?, want))
    }

    async fn apply_program(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, ApplyError> {
        // Rejected before the first change.
        self.could_hold(want).await.map_err(ApplyError::before_first_change)?;
        let fresh = self.runtime.load().await.map_err(ApplyError::before_first_change)?;
        let tables = self.runtime.read().await.map_err(ApplyError::before_first_change)?;
        let mut state = self.held_state(tables).map_err(ApplyError::before_first_change)?;
        // The kept state belongs to a program that is gone.
        let restarted = fresh || state.has_restarted();
        if restarted {
            self.write_state(&SwitchState::default()).map_err(ApplyError::before_first_change)?;
            (state.kept, state.held) = (Arc::default(), Program::default());
        }
        // If it has not restarted, somebody has cleared its counters.
        if restarted || self.frames.1 {
            self.frames = (0, false);
        }
        let P4HeldState { tables, kept, held } = state;
        // Nothing was applied since: the sessions of this program were opened before.
        if after == After::Renewal && kept.life == 0 && has_pairs(want) {
            return Err(ApplyError::before_first_change(TargetError::Restarted));
        }
        let changes = after.changes_between(FIELDS, &held, want);
        let is_same = |store, collector| is_same_part(&held, want, after, store, collector);
        let mut before = kept.places.clone();
        before.forget_lists_elsewhere(want, |store, collector| !is_same(store, collector));
        let places =
            before.assign_places(want, self.options.switch.postcard_rows, self.runtime.place_capacity());
        let places = places.map_err(ApplyError::before_first_change)?;
        let wanted = self.lower_program(want, &places).map_err(ApplyError::before_first_change)?;
        let updates = tables.updates_to(&wanted);
        if changes.is_empty() && updates.is_empty() && kept.applied == *want {
            return Ok(changes);
        }
        let life = if kept.life == 0 || fresh { unix_time_us() } else { kept.life };
        // Until everything is done, what changes does not count as held. The session is the exception: its
        // generation shows what must be done.
        let mut certain = held.clone();
        for change in &changes {
            if !matches!(change.entry_key(), EntryKey::Session(_)) {
                certain.remove(&change.entry_key());
            }
        }
        if !(changes.is_empty() && updates.is_empty()) {
            let mut half = SwitchState { applied: certain, places: places.clone(), life };
            half.places.keep_lists_of(&kept.places);
            let commands = self.commands_for_changes(&changes, want, &places, &kept, is_same, fresh);
            self.flush_leaving(&held, want, &tables, is_same).await;
            info!(
                changes = changes.len(),
                updates = updates.len(),
                commands = commands.len(),
                "programming the switch"
            );
            self.write_state(&half).map_err(ApplyError::before_first_change)?;
            write_all(&mut *self.runtime, &updates).await?;
            if let Err(error) = self.runtime.run_commands(&commands, &wanted).await {
                let of = updates.len() + commands.len();
                return Err(ApplyError {
                    progress: ApplyProgress::Part { applied: updates.len(), of },
                    error,
                });
            }
        }
        let whole = SwitchState { applied: want.clone(), places, life };
        self.write_state(&whole).map_err(|error| ApplyError { progress: ApplyProgress::Unknown, error })?;
        Ok(changes)
    }

    async fn could_hold(&mut self, want: &Program) -> Result<(), TargetError> {
        for entry in want.entries() {
            if let DataPlaneEntry::Store(Store { spec, .. }) = entry
                && let Some(why) = self.runtime.cannot_write(&spec.kind)
            {
                return Err(cannot_write(&spec.name, &why));
            }
        }
        let places = self.read_state()?.places.assign_places(
            want,
            self.options.switch.postcard_rows,
            self.runtime.place_capacity(),
        );
        let places = places?;
        self.lower_program(want, &places).map(drop)
    }

    async fn has_restarted(&mut self) -> Result<bool, TargetError> {
        let fresh = self.runtime.load().await?;
        let tables = self.runtime.read().await?;
        Ok(fresh || self.held_state(tables)?.has_restarted())
    }

    async fn statistics(&mut self) -> Result<Vec<NodeStatistics>, TargetError> {
        let (counts, kept) = (self.runtime.read_counters().await?, self.read_state()?);
        Ok(vec![counters::switch_statistics(&self.options.session, &kept, &counts)])
    }

    async fn flush_all(&mut self) -> Result<u64, TargetError> {
        let before = self.held_reports().await?;
        for primitive in [Primitive::Append, Primitive::Postcarding, Primitive::SketchMerge] {
            let mut first = 0;
            while self.flush_places(primitive, 0, first, FLUSHED_AT_ONCE).await? {
                first += FLUSHED_AT_ONCE;
            }
        }
        Ok(before.saturating_sub(self.held_reports().await?))
    }

    fn looks_after_itself(&self) -> bool {
        false
    }

    fn cannot_command(&self) -> Option<String> {
        self.runtime.cannot_command()
    }

    fn flush_times(&mut self) -> Result<BTreeMap<Primitive, u32>, TargetError> {
        let kept = self.read_state()?;
        let time = |entry: &DataPlaneEntry| match entry {
            DataPlaneEntry::Flush(FlushDelay { primitive, after_ms }) => Some((*primitive, *after_ms)),
            _ => None,
        };
        Ok(kept.applied.entries().filter_map(time).collect())
    }

    async fn flush_places(
        &mut self,
        primitive: Primitive,
        older_us: u32,
        first: usize,
        count: usize,
    ) -> Result<bool, TargetError> {
        let kept = self.read_state()?;
        // A store with parts at several collectors has its places once.
        let mut seen = BTreeSet::new();
        let once = |entry: &&DataPlaneEntry| !matches!(entry, DataPlaneEntry::Store(store) if !seen.insert(store.spec.id));
        let all = kept.applied.entries().filter(once);
        let all = all.flat_map(|entry| flush_commands(entry, primitive, older_us, &kept.places));
        let mut part: Vec<Command> = all.skip(first).take(count.saturating_add(1)).collect();
        let is_more = part.len() > count;
        part.truncate(count);
        if !part.is_empty() {
            if let Some(why) = self.runtime.cannot_command() {
                return Err(TargetError::Refused(why));
            }
            self.runtime.load().await?;
            let rows = self.applied_rows(&kept)?;
            self.runtime.run_commands(&part, &rows).await?;
        }
        Ok(is_more)
    }

    /// A switch tracks its reporters itself.
    async fn heard_earlier(&mut self, _: &[(u16, u32)]) -> Result<(), TargetError> {
        Ok(())
    }

    async fn read_status(&mut self) -> Result<TargetStatus, TargetError> {
        let counts = self.runtime.read_counters().await?;
        let frames = counts.counts_named("pair_frames").iter().sum();
        // What an earlier life counted stays as it was reported until the next one has a state of its own.
        if frames < self.frames.0 {
            self.frames.1 = true;
            return Err(TargetError::Restarted);
        }
        self.frames.0 = frames;
        let kept = self.read_state()?;
        let silent = self.silent_collectors(&counts, &kept).await?;
        let nodes = vec![counters::switch_statistics(&self.options.session, &kept, &counts)];
        // It keeps no frames to resend: what left before its rows changed has arrived or is lost.
        Ok(TargetStatus { nodes, silent, former_regions: Some(0), ..TargetStatus::default() })
    }
}

impl P4Switch {
    /// Collectors whose RC queue pair does not answer: at two checks in a row it has sent frames and received
    /// nothing, although it was probed. The switch counts answers on all queue pairs together. A switch that
    /// cannot probe requests too few answers to judge.
    async fn silent_collectors(
        &mut self,
        counts: &SwitchCounts,
        kept: &SwitchState,
    ) -> Result<BTreeSet<u8>, TargetError> {
        if self.runtime.cannot_command().is_some() {
            return Ok(BTreeSet::new());
        }
        let answers: u64 = counts.counts_named("answers").iter().sum();
        let has_new_answers = std::mem::replace(&mut self.answers, answers) != answers;
        let mut silent = BTreeSet::new();
        let mut probes = Vec::new();
        for entry in kept.applied.entries() {
            let DataPlaneEntry::QueuePair(pair) = entry else { continue };
            if pair.transport != Transport::Rc {
                continue;
            }
            let number = pair_number(pair.collector, pair.purpose);
            let frames = counts.count_at("pair_frames", number as usize);
            let (sent, misses) = self.quiet.entry(number).or_insert((frames, 0));
            match (has_new_answers, frames != *sent) {
                (true, _) => *misses = 0,
                (false, true) => *misses += 1,
                (false, false) => {}
            }
            *sent = frames;
            if *misses > 0 {
                probes.push(pair_command(translator::PROBE, number, 0));
            }
            if *misses > 2 {
                silent.insert(split_pair_number(number).0);
            }
        }
        if !probes.is_empty()
            && let Err(error) = self.runtime.run_commands(&probes, &self.applied_rows(kept)?).await
        {
            warn!(%error, "cannot probe a silent queue pair");
        }
        Ok(silent)
    }
}

/// Microseconds since 1970.
pub(crate) fn unix_time_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
