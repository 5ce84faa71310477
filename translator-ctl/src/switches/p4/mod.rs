//! P4 switches as targets.
//!
//! A program is lowered to rows of the switch's tables, multicast groups and clone sessions ([`lower`]),
//! under the P4 program's names ([`translator`]). What the switch holds is read from the switch itself; what
//! its tables do not show is kept beside it ([`state`]): names of stores, places of state ([`places`]), and
//! entries without a row. An entry counts as held if it was applied completely and all its rows are there. So
//! the next attempt finds and writes what one left undone.
//!
//! The API of a switch is behind [`Runtime`]: [`p4runtime`] for bmv2, [`bfruntime`] for Tofino. Only
//! [`runtime::open`] distinguishes these. Where rows differ between the two, lowering asks `platform.rs`; it matches on
//! the platform itself only where an action has other parameters, or a reporter's program other rows.

pub mod ages;
pub mod bfrt_json;
pub mod bfruntime;
pub mod counters;
pub mod cpu_port;
pub mod lower;
pub mod p4runtime;
pub mod pipeline;
pub mod places;
mod platform;
pub mod reporter;
mod row;
pub mod runtime;
pub mod schema;
pub mod simple_switch;
pub mod state;
pub mod tables;
pub mod tofino;
pub mod translator;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use dta_proto::control::NodeStatistics;
use dta_proto::counter::translator as names;
use dta_proto::program::{
    Change, Entry, EntryKey, Fields, Flush, Lists, Primitive, Program, Store, Transport,
};
use dta_proto::store::StoreKind;
use tracing::{info, warn};

use self::counters::Counts;
use self::lower::{Lowering, cannot_write, pair_number, pair_of};
use self::pipeline::TRANSLATOR;
use self::places::Places;
use self::runtime::{BATCH, Runtime, WriteError};
use self::state::{StateFile, SwitchState};
use self::tables::{Step, Tables};
use self::translator::Command;
use super::{After, ApplyError, Progress, Status, Target, TargetError};
use crate::config::{Config, ListedReporter, P4, Translator};

/// Rows contain no names.
const FIELDS: Fields = Fields { expected: true, notify: true, ..Fields::NONE };

/// Places flushed at a time when all are: a sketch may have many.
const FLUSHED_AT_ONCE: usize = 8192;

/// A switch that runs `translator-p4`.
pub struct P4Switch {
    runtime: Box<dyn Runtime>,
    config: P4,
    /// Name of its session and its node.
    name: String,
    reporters: Vec<ListedReporter>,
    file: StateFile,
    /// By RC queue pair, frames sent at the last check, and checks since then without an answer.
    quiet: BTreeMap<u32, (u64, u32)>,
    /// Answers on all RC queue pairs at the last check.
    answers: u64,
    /// Frames of all queue pairs at the last check, and whether it has counted fewer since.
    frames: (u64, bool),
}

/// What a switch holds, and what is kept beside it.
struct State {
    tables: Tables,
    kept: Arc<SwitchState>,
    held: Program,
}

impl State {
    /// Whether it restarted: it has none of the queue pairs that it was given.
    fn is_lost(&self) -> bool {
        has_pairs(&self.kept.applied) && !has_pairs(&self.held)
    }
}

fn has_pairs(program: &Program) -> bool {
    program.entries().any(|entry| matches!(entry, Entry::QueuePair(_)))
}

impl P4Switch {
    /// The switch of a name; `None` for a software translator. Nothing is requested yet.
    ///
    /// # Errors
    /// An invalid configuration.
    pub fn of(config: &Config, switch: &str) -> anyhow::Result<Option<P4Switch>> {
        let translator = config.translator_of(switch)?;
        let Some((platform, p4)) = config.switch(switch)?.p4() else { return Ok(None) };
        may_have_keys(p4, &translator)?;
        let runtime = runtime::open(platform, p4, &TRANSLATOR)?;
        Ok(Some(P4Switch::new(runtime, switch, p4, &translator)))
    }

    /// The switch behind a runtime. `switch` is its name in the configuration, `translator` its side of the session.
    pub fn new(runtime: Box<dyn Runtime>, switch: &str, config: &P4, translator: &Translator) -> P4Switch {
        P4Switch {
            runtime,
            config: config.clone(),
            name: translator.name.clone(),
            reporters: translator.reporters.clone(),
            file: StateFile::new(config.state.as_deref(), switch),
            quiet: BTreeMap::new(),
            answers: 0,
            frames: (0, false),
        }
    }

    /// The API that programs it.
    pub fn runtime(&mut self) -> &mut dyn Runtime {
        &mut *self.runtime
    }

    fn kept(&mut self) -> Result<Arc<SwitchState>, TargetError> {
        self.file.read().map_err(|error| TargetError::Refused(error.to_string()))
    }

    fn keep(&self, kept: &SwitchState) -> Result<(), TargetError> {
        self.file.write(kept).map_err(|error| TargetError::Failed(error.to_string()))
    }

    /// The lowering of a program at its places.
    fn lowering<'a>(&'a self, program: &'a Program, places: &'a Places) -> Lowering<'a> {
        Lowering { program, places, config: &self.config, platform: self.runtime.platform() }
    }

    /// The tables of a program at its places.
    fn lower(&self, program: &Program, places: &Places) -> Result<Tables, TargetError> {
        self.lowering(program, places).tables(&self.reporters)
    }

    /// The rows of the applied program, without forwarding.
    fn rows_of(&self, kept: &SwitchState) -> Result<Tables, TargetError> {
        let (mut rows, lowering) = (Tables::default(), self.lowering(&kept.applied, &kept.places));
        for entry in kept.applied.entries() {
            lowering.entry(&mut rows, entry)?;
        }
        Ok(rows)
    }

    /// What it holds. `tables` is `None` if it runs another program, of which nothing is kept.
    fn state(&mut self, tables: Option<Tables>) -> Result<State, TargetError> {
        let kept = match tables {
            Some(_) => self.kept()?,
            None => Arc::default(),
        };
        let tables = tables.unwrap_or_default();
        let (mut held, lowering) = (Program::default(), self.lowering(&kept.applied, &kept.places));
        for entry in kept.applied.entries() {
            let mut own = Tables::default();
            // What the current configuration cannot lower is written again.
            if lowering.entry(&mut own, entry).is_ok() && tables.contains(&own) {
                held.set(entry.clone());
            }
        }
        Ok(State { tables, kept, held })
    }

    /// The commands for the data plane after these changes to a switch of which this was `kept`. `is_same` says of a
    /// store and a collector whether nobody else can have written there meanwhile.
    fn commands(
        &self,
        changes: &[Change],
        want: &Program,
        places: &Places,
        kept: &SwitchState,
        is_same: impl Fn(u16, u8) -> bool,
        fresh: bool,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        // Without a state, nothing is known of a program that runs.
        let was_used = |place| kept.life == 0 || kept.places.was_used(place);
        let is_new = |key: EntryKey| {
            changes.iter().any(|change| matches!(change, Change::Insert { entry } if entry.key() == key))
        };
        let had_another_part = |store: &Store| {
            want.parts_of(store.spec.id).any(|part| !is_new(Entry::Store(part.clone()).key()))
        };
        let mut forget = |store: u16, kind: &StoreKind| match *kind {
            StoreKind::Postcarding { .. } => {
                let (first, rows) = places.rows(store).map_or((0, 0), |place| (place.first, place.count));
                commands.extend((0..rows).map(|index| Command {
                    state: first + index,
                    ..of_store(translator::FORGET_ROW, store, index, 0)
                }));
            }
            StoreKind::SketchMerge { columns, epochs, .. } => {
                let first = places.columns(store).map_or(0, |place| place.first);
                commands.extend(of_columns(translator::FORGET_COLUMN, store, columns, epochs, first));
            }
            _ => {}
        };
        for change in changes {
            match change {
                // The place may have been another store's. What is held for another collector's part stays.
                Change::Forget { entry: Entry::Store(store) } => forget(store.spec.id, &store.spec.kind),
                Change::Insert { entry: Entry::Store(store) } if !fresh && !had_another_part(store) => {
                    forget(store.spec.id, &store.spec.kind)
                }
                _ => {}
            }
        }
        for change in changes {
            let (before, to) = match change {
                Change::Insert { entry } => (None, entry),
                Change::Modify { from, to } => (Some(from), to),
                Change::Delete { .. } | Change::Forget { .. } => continue,
            };
            match (before, to) {
                (Some(Entry::QueuePair(before)), Entry::QueuePair(pair))
                    if before.generation == pair.generation && before.remote_qpn == pair.remote_qpn => {}
                (_, Entry::QueuePair(pair)) => {
                    let number = pair_number(pair.collector, pair.purpose);
                    commands.push(of_pair(translator::SET_PSN, number, pair.start_psn));
                }
                (_, Entry::Lists(lists)) if want.store(lists.store).is_some() => {
                    let positions: BTreeMap<u32, u32> = lists.positions.iter().copied().collect();
                    let is_same = is_same(lists.store, lists.collector);
                    let each =
                        |of: &Places| of.lists(lists).into_iter().flat_map(|(part, at)| part.zip(at..));
                    let had: BTreeSet<(u32, u32)> = each(&kept.places).collect();
                    for (list, state) in each(places) {
                        let sequence = positions.get(&list).copied().unwrap_or(0);
                        let of =
                            |command, value| Command { state, ..of_store(command, lists.store, list, value) };
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

    /// Flushes the lists that are to leave their collector, where nobody else can have written to them. If that fails,
    /// what they hold is sent when they come back.
    async fn flush_leaving(
        &mut self,
        held: &Program,
        want: &Program,
        rows: &Tables,
        is_same: impl Fn(u16, u8) -> bool,
    ) {
        let stays = |lists: &Lists, list: u32| {
            want.entries().any(|entry| match entry {
                Entry::Lists(of) => {
                    (of.store, of.collector) == (lists.store, lists.collector) && of.range().contains(&list)
                }
                _ => false,
            })
        };
        let flushes = held.entries().filter_map(|entry| match entry {
            Entry::Lists(lists) if is_same(lists.store, lists.collector) => Some(lists),
            _ => None,
        });
        let leaving: Vec<Command> = flushes
            .flat_map(|lists| {
                let leaving = lists.range().filter(move |list| !stays(lists, *list));
                leaving.map(|list| of_store(translator::FLUSH_LIST, lists.store, list, 0))
            })
            .collect();
        if leaving.is_empty() || self.runtime.cannot_command().is_some() {
            return;
        }
        if let Err(error) = self.runtime.command(&leaving, rows).await {
            warn!(%error, "what lists hold for the collector that they leave stays in the switch");
        }
    }

    async fn held_reports(&mut self) -> Result<u64, TargetError> {
        let (nodes, held) = (self.statistics().await?, names::HELD.of(&[]));
        let mut counters = nodes.iter().flat_map(|node| &node.counters);
        Ok(counters.find(|counter| counter.name == held).map_or(0, |counter| counter.value))
    }
}

/// Whether a collector's part of a store is what it was, and nobody else may have written to it since.
fn is_same_part(held: &Program, want: &Program, after: After, store: u16, collector: u8) -> bool {
    let parts = held.part(store, collector).zip(want.part(store, collector));
    let generations = (held.generation(collector), want.generation(collector));
    let is_same_session =
        after == After::Renewal || generations.1.is_none() || generations.0 == generations.1;
    is_same_session && parts.is_some_and(|(held, want)| held.spec.kind == want.spec.kind)
}

/// Whether rkeys may be sent to the switch, which has no TLS.
fn may_have_keys(p4: &P4, translator: &Translator) -> Result<(), TargetError> {
    if translator.tls.is_some() && !p4.insecure && !is_local(&p4.control) {
        return Err(TargetError::Refused(format!(
            "the rkeys for the collector's memory came over TLS and would go to {} without it: set \
            `insecure = true` if nobody else is on that network",
            p4.control
        )));
    }
    Ok(())
}

/// Whether an address is on this host.
fn is_local(control: &str) -> bool {
    let host = control.trim_start_matches("http://").rsplit_once(':').map_or(control, |(host, _)| host);
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Writes updates in batches. Returns how many were applied before an error.
async fn write_all(runtime: &mut dyn Runtime, updates: &[Step]) -> Result<(), ApplyError> {
    let mut applied = 0;
    for batch in updates.chunks(BATCH) {
        if let Err(WriteError { made, error }) = runtime.write(batch).await {
            let progress = match made {
                None => Progress::Unknown,
                Some(made) if applied + made == 0 => Progress::Nothing,
                Some(made) => Progress::Part { applied: applied + made, of: updates.len() },
            };
            return Err(ApplyError { progress, error });
        }
        applied += batch.len();
    }
    Ok(())
}

fn of_store(command: u8, store: u16, index: u32, value: u32) -> Command {
    Command { command, pair: 0, store, index, value, state: 0 }
}

/// The commands that flush what an entry gathers of a primitive.
fn flushes<'a>(
    entry: &'a Entry,
    primitive: Primitive,
    older_us: u32,
    places: &Places,
) -> Box<dyn Iterator<Item = Command> + Send + 'a> {
    match entry {
        Entry::Lists(lists) if primitive == Primitive::Append => {
            let of = move |list| of_store(translator::FLUSH_LIST, lists.store, list, older_us);
            Box::new(lists.range().map(of))
        }
        Entry::Store(store) if store.spec.kind.primitive() == primitive => {
            let id = store.spec.id;
            match store.spec.kind {
                StoreKind::Postcarding { .. } => {
                    let rows = places.rows(id).map_or(0, |place| place.count);
                    Box::new((0..rows).map(move |row| of_store(translator::FLUSH_ROW, id, row, older_us)))
                }
                StoreKind::SketchMerge { columns, epochs, .. } => {
                    let first = places.columns(id).map_or(0, |place| place.first);
                    Box::new(of_columns(translator::FLUSH_COLUMN, id, columns, epochs, first))
                }
                _ => Box::new(std::iter::empty()),
            }
        }
        _ => Box::new(std::iter::empty()),
    }
}

fn of_pair(command: u8, pair: u32, value: u32) -> Command {
    Command { pair: u8::try_from(pair).unwrap_or(u8::MAX), ..of_store(command, 0, 0, value) }
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
        ..of_store(command, store, column, epoch)
    })
}

#[tonic::async_trait]
impl Target for P4Switch {
    async fn held(&mut self) -> Result<Program, TargetError> {
        let tables = self.runtime.read().await?;
        Ok(self.state(tables)?.held)
    }

    async fn lacks(&mut self, want: &Program, after: After) -> Result<Vec<Change>, TargetError> {
        self.could_hold(want).await?;
        Ok(after.changes(FIELDS, &self.held().await?, want))
    }

    async fn apply(&mut self, want: &Program, after: After) -> Result<Vec<Change>, ApplyError> {
        // Rejected before the first change.
        self.could_hold(want).await.map_err(ApplyError::nothing)?;
        let fresh = self.runtime.load().await.map_err(ApplyError::nothing)?;
        let tables = self.runtime.read().await.map_err(ApplyError::nothing)?;
        let mut state = self.state(tables).map_err(ApplyError::nothing)?;
        // The kept state is of a program that is gone.
        let restarted = fresh || state.is_lost();
        if restarted {
            self.keep(&SwitchState::default()).map_err(ApplyError::nothing)?;
            (state.kept, state.held) = (Arc::default(), Program::default());
        }
        // If it has not restarted, somebody has cleared its counters.
        if restarted || self.frames.1 {
            self.frames = (0, false);
        }
        let State { tables, kept, held } = state;
        // Nothing was applied since: the sessions of this program were opened before.
        if after == After::Renewal && kept.life == 0 && has_pairs(want) {
            return Err(ApplyError::nothing(TargetError::Restarted));
        }
        let changes = after.changes(FIELDS, &held, want);
        let is_same = |store, collector| is_same_part(&held, want, after, store, collector);
        let mut before = kept.places.clone();
        before.forget_lists_elsewhere(want, |store, collector| !is_same(store, collector));
        let places = before.of(want, self.config.postcard_rows, self.runtime.places());
        let places = places.map_err(ApplyError::nothing)?;
        let wanted = self.lower(want, &places).map_err(ApplyError::nothing)?;
        let updates = tables.updates_to(&wanted);
        if changes.is_empty() && updates.is_empty() && kept.applied == *want {
            return Ok(changes);
        }
        let life = if kept.life == 0 || fresh { now_us() } else { kept.life };
        // Until everything is done, what changes does not count as held, except for the session, whose
        // generation shows what must be done.
        let mut certain = held.clone();
        for change in &changes {
            if !matches!(change.key(), EntryKey::Session(_)) {
                certain.remove(&change.key());
            }
        }
        if !(changes.is_empty() && updates.is_empty()) {
            let mut half = SwitchState { applied: certain, places: places.clone(), life };
            half.places.keep_lists_of(&kept.places);
            let commands = self.commands(&changes, want, &places, &kept, is_same, fresh);
            self.flush_leaving(&held, want, &tables, is_same).await;
            info!(
                changes = changes.len(),
                updates = updates.len(),
                commands = commands.len(),
                "programming the switch"
            );
            self.keep(&half).map_err(ApplyError::nothing)?;
            write_all(&mut *self.runtime, &updates).await?;
            if let Err(error) = self.runtime.command(&commands, &wanted).await {
                let of = updates.len() + commands.len();
                return Err(ApplyError { progress: Progress::Part { applied: updates.len(), of }, error });
            }
        }
        let whole = SwitchState { applied: want.clone(), places, life };
        self.keep(&whole).map_err(|error| ApplyError { progress: Progress::Unknown, error })?;
        Ok(changes)
    }

    async fn could_hold(&mut self, want: &Program) -> Result<(), TargetError> {
        for entry in want.entries() {
            if let Entry::Store(Store { spec, .. }) = entry
                && let Some(why) = self.runtime.cannot_write(&spec.kind)
            {
                return Err(cannot_write(&spec.name, &why));
            }
        }
        let places = self.kept()?.places.of(want, self.config.postcard_rows, self.runtime.places());
        let places = places?;
        self.lower(want, &places).map(drop)
    }

    async fn has_restarted(&mut self) -> Result<bool, TargetError> {
        let fresh = self.runtime.load().await?;
        let tables = self.runtime.read().await?;
        Ok(fresh || self.state(tables)?.is_lost())
    }

    async fn statistics(&mut self) -> Result<Vec<NodeStatistics>, TargetError> {
        let (counts, kept) = (self.runtime.counters().await?, self.kept()?);
        Ok(vec![counters::node(&self.name, &kept, &counts)])
    }

    async fn flush_all(&mut self) -> Result<u64, TargetError> {
        let before = self.held_reports().await?;
        for primitive in [Primitive::Append, Primitive::Postcarding, Primitive::SketchMerge] {
            let mut first = 0;
            while self.flush(primitive, 0, first, FLUSHED_AT_ONCE).await? {
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
        let kept = self.kept()?;
        let time = |entry: &Entry| match entry {
            Entry::Flush(Flush { primitive, after_ms }) => Some((*primitive, *after_ms)),
            _ => None,
        };
        Ok(kept.applied.entries().filter_map(time).collect())
    }

    async fn flush(
        &mut self,
        primitive: Primitive,
        older_us: u32,
        first: usize,
        count: usize,
    ) -> Result<bool, TargetError> {
        let kept = self.kept()?;
        // A store with parts at several collectors has its places once.
        let mut seen = BTreeSet::new();
        let once = |entry: &&Entry| !matches!(entry, Entry::Store(store) if !seen.insert(store.spec.id));
        let all = kept.applied.entries().filter(once);
        let all = all.flat_map(|entry| flushes(entry, primitive, older_us, &kept.places));
        let mut part: Vec<Command> = all.skip(first).take(count.saturating_add(1)).collect();
        let is_more = part.len() > count;
        part.truncate(count);
        if !part.is_empty() {
            if let Some(why) = self.runtime.cannot_command() {
                return Err(TargetError::Refused(why));
            }
            self.runtime.load().await?;
            let rows = self.rows_of(&kept)?;
            self.runtime.command(&part, &rows).await?;
        }
        Ok(is_more)
    }

    /// A switch tracks its reporters itself.
    async fn heard_earlier(&mut self, _: &[(u16, u32)]) -> Result<(), TargetError> {
        Ok(())
    }

    async fn status(&mut self) -> Result<Status, TargetError> {
        let counts = self.runtime.counters().await?;
        let frames = counts.of("pair_frames").iter().sum();
        // What an earlier life counted stays as it was handed in, until the next one has a state of its own.
        if frames < self.frames.0 {
            self.frames.1 = true;
            return Err(TargetError::Restarted);
        }
        self.frames.0 = frames;
        let kept = self.kept()?;
        let silent = self.silent(&counts, &kept).await?;
        let nodes = vec![counters::node(&self.name, &kept, &counts)];
        // It keeps no frame to send it again: what left before its rows changed has arrived, or is lost.
        Ok(Status { nodes, silent, former_regions: Some(0), ..Status::default() })
    }
}

impl P4Switch {
    /// Collectors whose RC queue pair does not answer: at two checks in a row it has sent frames and received
    /// nothing, although it was probed. The switch counts answers on all queue pairs together. A switch that
    /// cannot probe requests too few answers to tell.
    async fn silent(&mut self, counts: &Counts, kept: &SwitchState) -> Result<BTreeSet<u8>, TargetError> {
        if self.runtime.cannot_command().is_some() {
            return Ok(BTreeSet::new());
        }
        let answers: u64 = counts.of("answers").iter().sum();
        let heard = std::mem::replace(&mut self.answers, answers) != answers;
        let mut silent = BTreeSet::new();
        let mut probes = Vec::new();
        for entry in kept.applied.entries() {
            let Entry::QueuePair(pair) = entry else { continue };
            if pair.transport != Transport::Rc {
                continue;
            }
            let number = pair_number(pair.collector, pair.purpose);
            let frames = counts.at("pair_frames", number as usize);
            let (sent, misses) = self.quiet.entry(number).or_insert((frames, 0));
            match (heard, frames != *sent) {
                (true, _) => *misses = 0,
                (false, true) => *misses += 1,
                (false, false) => {}
            }
            *sent = frames;
            if *misses > 0 {
                probes.push(of_pair(translator::PROBE, number, 0));
            }
            if *misses > 2 {
                silent.insert(pair_of(number).0);
            }
        }
        if !probes.is_empty()
            && let Err(error) = self.runtime.command(&probes, &self.rows_of(kept)?).await
        {
            warn!(%error, "cannot probe a silent queue pair");
        }
        Ok(silent)
    }
}

/// Microseconds since 1970.
fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
