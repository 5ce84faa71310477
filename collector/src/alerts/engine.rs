//! Evaluates rules on entries as they come: each entry updates the tallies whose condition it fulfils, and a window is
//! compared with limits when one of its buckets is over. Rules with the same condition, group and window share a tally.
//!
//! Time is a parameter everywhere, in nanoseconds since 1970: nothing here reads a clock.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dta_export::fields::EventFields;
use dta_export::kind::EventKind;
use dta_export::names::Names;
use dta_memory::reader::append::ReadProgress;
use dta_proto::flow_query::FlowFilter;
use dta_proto::flow_record::{Column, ENTRY_LEN};
use foldhash::fast::RandomState;

use super::alert::Finding;
use super::board::AlertCounters;
use super::history::GroupPast;
use super::reading::{Reading, ReadingKind};
use super::rule::{Condition, Quantity, Rule, label_name};
use super::sketch::STANDARD_ERROR;
use super::source::{Entry, Source, describe_value, event_to_entry};
use super::tally::{GroupValues, Tallied, WindowTally, WindowValue};

/// Most findings of an evaluation; those with the greatest values are kept.
pub(super) const MAX_FINDINGS: usize = 1000;
/// Windows in which a group must have been seen before its silence counts.
const LEAST_WINDOWS: u32 = 3;

/// Columns whose value leads to the tallies of an entry, the most selective first.
const INDEXED_COLUMNS: [&str; 6] = ["dst", "src", "dst-port", "src-port", "switch", "exporter"];
/// Most one-byte columns that make up a class of entries: there are no more.
const MAX_CLASS_COLUMNS: usize = 8;
/// Once this many comparisons are kept for classes of entries, no new class begins.
const MAX_CLASS_CONDITIONS: usize = 1 << 16;

/// A clock set back by at most this many nanoseconds is waited for rather than treated as a jump.
const MAX_WAIT_FOR_CLOCK: u64 = 60_000_000_000;

#[derive(Debug)]
pub struct AlertEngine {
    rules: Vec<RuleState>,
    tallies: Vec<SharedTally>,
    flow_records: TallyIndex,
    /// By kind of event, in the order of [`EventKind::ALL`].
    events: Vec<TallyIndex>,
    /// The numbers of the tallies that a reading concerns.
    readings: HashMap<ReadingKind, Vec<usize>, RandomState>,
    names: Arc<Names>,
    counters: CounterSums,
    /// The latest moment of an evaluation.
    newest: u64,
    /// When batches were last lost, and when entries were last left out because evaluation was behind.
    lost: Option<u64>,
    sampled: Option<u64>,
    /// When readings were last left out because there were too many.
    unread: Option<u64>,
}

/// What rules must have in common to share a tally.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TallyKey {
    source: Source,
    /// Kinds of events and readings.
    kinds: Vec<&'static str>,
    filter: String,
    group: Vec<&'static str>,
    window: u64,
    quantity: Quantity,
    /// Whether the previous window is kept, too.
    is_new_heavy: bool,
}

#[derive(Debug)]
struct SharedTally {
    key: TallyKey,
    tally: WindowTally,
    rules: Vec<usize>,
    /// The moment from which it has all entries.
    started: u64,
    /// Whether the last change of rules added it.
    is_new: bool,
}

#[derive(Debug)]
struct RuleState {
    rule: Rule,
    /// The past of a new group; `None` if the rule does not depend on it.
    empty_past: Option<GroupPast>,
    /// What the rule has learned of each group, by the group's key.
    past: HashMap<Box<[u8]>, GroupPast, RandomState>,
    /// The window whose values were last added to the past.
    learned: u64,
    /// The keys of the heaviest groups at each comparison, by the end of its window: back to the previous window.
    heaviest: VecDeque<(u64, Vec<Box<[u8]>>)>,
}

/// Counts of entries, published now and then.
#[derive(Debug, Default)]
struct CounterSums {
    entries: u64,
    skipped: u64,
    late: u64,
    no_room: u64,
}

/// Numbers of tallies, with the conditions that entries must fulfil.
type FilteredTallies = Vec<(usize, FlowFilter)>;

/// Finds the tallies whose conditions an entry fulfils. Entries fall into few classes by their one-byte columns, such
/// as protocol and TCP flags; what remains of the conditions in a class is worked out when its first entry comes.
#[derive(Debug, Default)]
struct TallyIndex {
    by_value: Vec<(&'static Column, HashMap<u128, FilteredTallies, RandomState>)>,
    others: FilteredTallies,
    /// The one-byte columns in the conditions of `others`.
    class_columns: Vec<&'static Column>,
    /// Those of `others` that may concern an entry, by the values of these columns.
    classes: HashMap<u64, FilteredTallies, RandomState>,
    /// How many comparisons `classes` holds.
    class_conditions: usize,
}

impl TallyIndex {
    fn add_tally(&mut self, number: usize, source: Source, filter: &FlowFilter) {
        let filtered = (number, filter.clone());
        let indexed = INDEXED_COLUMNS.iter().filter_map(|name| source.column(name));
        let Some((column, value)) =
            indexed.filter_map(|column| Some((column, filter.required_value(column)?))).next()
        else {
            for column in filter.columns() {
                let is_new = column.kind.width() == 1 && !self.class_columns.contains(&column);
                if is_new && self.class_columns.len() < MAX_CLASS_COLUMNS {
                    self.class_columns.push(column);
                }
            }
            return self.others.push(filtered);
        };
        let place = self.by_value.iter().position(|(of, _)| *of == column).unwrap_or_else(|| {
            self.by_value.push((column, HashMap::default()));
            self.by_value.len() - 1
        });
        self.by_value[place].1.entry(value).or_default().push(filtered);
    }

    #[inline]
    fn for_each(&mut self, entry: &Entry, mut with: impl FnMut(usize)) {
        let mut with_included = |tallies: &FilteredTallies| {
            let included = tallies.iter().filter(|(_, filter)| filter.includes(entry));
            included.for_each(|(number, _)| with(*number));
        };
        for (column, tallies) in &self.by_value {
            tallies.get(&column.read_value(entry)).into_iter().for_each(&mut with_included);
        }
        let class =
            self.class_columns.iter().fold(0, |class, column| class << 8 | u64::from(entry[column.offset]));
        match self.classes.get(&class) {
            Some(tallies) => with_included(tallies),
            None if self.class_conditions >= MAX_CLASS_CONDITIONS => with_included(&self.others),
            None => with_included(self.begin_class(class, entry)),
        }
    }

    /// Works out what remains of the conditions of `others` for entries of a class.
    #[cold]
    fn begin_class(&mut self, class: u64, entry: &Entry) -> &FilteredTallies {
        let is_known = |column: &Column| self.class_columns.contains(&column);
        let left = self
            .others
            .iter()
            .filter_map(|(number, filter)| Some((*number, filter.with_known_columns(entry, &is_known)?)));
        let left: FilteredTallies = left.collect();
        self.class_conditions += left.iter().map(|(_, filter)| 1 + filter.columns().len()).sum::<usize>() + 1;
        self.classes.entry(class).or_insert(left)
    }
}

/// What an evaluation of a rule found.
#[derive(Debug)]
pub struct Evaluation<'a> {
    pub rule: &'a Rule,
    pub findings: Vec<Finding>,
    /// The moment from which the rule's windows have all entries.
    pub started: u64,
}

impl TallyKey {
    fn from_rule(rule: &Rule) -> TallyKey {
        TallyKey {
            source: rule.source,
            kinds: rule
                .event
                .map(EventKind::name)
                .into_iter()
                .chain(rule.readings.iter().map(|kind| kind.name()))
                .collect(),
            filter: rule.filter.to_string(),
            group: rule.group.iter().map(|column| column.name).collect(),
            window: rule.window,
            quantity: rule.measure.quantity.clone(),
            is_new_heavy: matches!(rule.condition, Condition::NewHeavy { .. }),
        }
    }
}

impl AlertEngine {
    pub fn new(rules: Vec<Rule>, names: Arc<Names>, now: u64) -> AlertEngine {
        let mut engine = AlertEngine {
            rules: Vec::new(),
            tallies: Vec::new(),
            flow_records: TallyIndex::default(),
            events: EventKind::ALL.iter().map(|_| TallyIndex::default()).collect(),
            readings: HashMap::default(),
            names,
            counters: CounterSums::default(),
            newest: now,
            lost: None,
            sampled: None,
            unread: None,
        };
        let mut shared: HashMap<TallyKey, usize> = HashMap::new();
        for (index, rule) in rules.into_iter().enumerate() {
            let key = TallyKey::from_rule(&rule);
            let number = *shared.entry(key.clone()).or_insert_with(|| engine.add_tally(key, &rule, now));
            engine.tallies[number].tally.make_room_for(&rule);
            engine.tallies[number].rules.push(index);
            let empty_past = GroupPast::for_condition(rule.condition);
            engine.rules.push(RuleState {
                rule,
                empty_past,
                past: HashMap::default(),
                learned: 0,
                heaviest: VecDeque::new(),
            });
        }
        engine
    }

    fn add_tally(&mut self, key: TallyKey, rule: &Rule, started: u64) -> usize {
        let number = self.tallies.len();
        let tally = WindowTally::new(rule);
        self.tallies.push(SharedTally { key, tally, rules: Vec::new(), started, is_new: true });
        match rule.source {
            Source::FlowRecords => self.flow_records.add_tally(number, rule.source, &rule.filter),
            Source::IntEvents => {
                let wanted = EventKind::ALL.iter().zip(&mut self.events);
                wanted
                    .filter(|(kind, _)| rule.event.is_none_or(|event| event == **kind))
                    .for_each(|(_, index)| index.add_tally(number, rule.source, &rule.filter));
            }
            Source::Counters | Source::Values => {
                rule.readings.iter().for_each(|kind| self.readings.entry(*kind).or_default().push(number));
            }
        }
        number
    }

    /// An engine with other rules that carries on from this one: it keeps the windows of tallies that are
    /// still needed, and the past of each rule whose name and measurement are unchanged. New ones begin now.
    #[must_use]
    pub fn with_rules(self, rules: Vec<Rule>, now: u64) -> AlertEngine {
        let AlertEngine {
            rules: former_rules, tallies, names, counters, newest, lost, sampled, unread, ..
        } = self;
        let mut engine =
            AlertEngine { counters, newest, lost, sampled, unread, ..AlertEngine::new(rules, names, now) };
        let mut former_rules: HashMap<String, RuleState> =
            former_rules.into_iter().map(|state| (state.rule.name.clone(), state)).collect();
        for state in &mut engine.rules {
            if let Some(former) =
                former_rules.remove(&state.rule.name).filter(|former| state.has_same_past(former))
            {
                (state.past, state.learned, state.heaviest) = (former.past, former.learned, former.heaviest);
            }
        }
        engine.take_windows(tallies);
        engine
    }

    fn take_windows(&mut self, tallies: Vec<SharedTally>) {
        let mut taken: HashMap<TallyKey, SharedTally> =
            tallies.into_iter().map(|shared| (shared.key.clone(), shared)).collect();
        for shared in &mut self.tallies {
            if let Some(SharedTally { tally, started, is_new, .. }) = taken.remove(&shared.key) {
                shared.tally.take_groups(tally);
                (shared.started, shared.is_new) = (started, is_new);
            }
        }
    }

    /// Fills the windows that a change of rules added, using flow records received earlier, which `read` passes on
    /// back to back. `None` from `read` means it was stopped: the windows stay as they are and are filled next time.
    pub fn look_back<E>(
        &mut self,
        now: u64,
        read: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<Option<ReadProgress>, E>,
    ) -> Result<(), E> {
        let is_new = |shared: &&SharedTally| shared.is_new && shared.key.source == Source::FlowRecords;
        let new = self.tallies.iter().filter(is_new).flat_map(|shared| &shared.rules);
        let rules: Vec<Rule> = new.map(|index| self.rules[*index].rule.clone()).collect();
        if rules.is_empty() {
            return Ok(());
        }
        let mut engine = AlertEngine::new(rules, self.names.clone(), now);
        let outcome = read(&mut |entries| engine.add_flow_records(entries, 1, now));
        if let Ok(progress) = &outcome {
            let Some(progress) = progress else { return Ok(()) };
            self.note_losses(progress, now);
        }
        self.counters.no_room += engine.counters.no_room;
        engine.tallies.iter_mut().for_each(|shared| shared.is_new = false);
        self.take_windows(engine.tallies);
        outcome.map(|_| ())
    }

    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|state| &state.rule)
    }

    /// Adds flow records that lie back to back. Each stands for `weight` records.
    pub fn add_flow_records(&mut self, entries: &[u8], weight: u64, now: u64) {
        let (entries, _) = entries.as_chunks::<ENTRY_LEN>();
        for entry in entries {
            let mut received = [0; 8];
            received.copy_from_slice(&entry[..8]);
            // If the clock that stamped it is ahead, do not wait for ours to catch up.
            let time = u64::from_be_bytes(received).min(now);
            let Self { tallies, flow_records, counters, .. } = self;
            counters.entries += 1;
            flow_records.for_each(entry, |number| {
                let SharedTally { tally, started, .. } = &mut tallies[number];
                counters.count(tally.add_included(entry, time, now, weight), time >= *started)
            });
        }
    }

    /// Adds an event as of now, since clocks of switches may be wrong. It stands for `weight` events.
    pub fn add_event(&mut self, fields: &EventFields, weight: u64, now: u64) {
        let Some(entry) = event_to_entry(fields) else { return };
        let Some(kind) = EventKind::ALL.iter().position(|kind| *kind == fields.kind) else { return };
        let Self { tallies, events, counters, .. } = self;
        counters.entries += 1;
        events[kind].for_each(&entry, |number| {
            counters.count(tallies[number].tally.add_included(&entry, now, now, weight), true)
        });
    }

    pub fn wanted_readings(&self) -> Vec<ReadingKind> {
        self.readings.keys().copied().collect()
    }

    /// Nanoseconds between readings: the shortest bucket, if anything must be read.
    pub fn reading_interval(&self) -> Option<u64> {
        let is_read = |shared: &&SharedTally| shared.key.source.is_read();
        self.tallies.iter().filter(is_read).map(|shared| shared.tally.bucket()).min()
    }

    /// Adds what was read of a counter or value at the end of a bucket, whose last moment is `at`.
    pub fn add_reading(&mut self, reading: &Reading, at: u64, now: u64) {
        let entry = reading.to_entry();
        let Self { tallies, readings, counters, .. } = self;
        for number in readings.get(&reading.kind).into_iter().flatten() {
            let tally = &mut tallies[*number].tally;
            if reading.is_news || tally.takes_repeated_readings() {
                counters.count(tally.add_entry(&entry, at, now, 1), true);
            }
        }
    }

    /// Notes that some counters and values were not read because there are too many.
    pub fn note_unread(&mut self, now: u64) {
        self.unread = Some(now);
    }

    /// Notes entries that were left out because evaluation was behind.
    pub fn note_skipped(&mut self, entries: u64, now: u64) {
        self.counters.skipped += entries;
        self.sampled = Some(now);
    }

    /// Notes batches that were lost before they could be read.
    pub fn note_losses(&mut self, progress: &ReadProgress, now: u64) {
        if progress.overwritten + progress.missing + progress.damaged > 0 {
            self.lost = Some(now);
        }
    }

    /// Adds the counts since the last call to the counters that others read.
    pub fn publish_counters(&mut self, to: &AlertCounters) {
        let CounterSums { entries, skipped, late, no_room } = std::mem::take(&mut self.counters);
        for (counter, count) in
            [(&to.entries, entries), (&to.skipped, skipped), (&to.late, late), (&to.no_room, no_room)]
        {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Begins windows again if the clock was set back by more than is waited for.
    fn follow_clock(&mut self, now: u64) {
        let back = self.newest.saturating_sub(now);
        if back <= MAX_WAIT_FOR_CLOCK {
            self.newest = self.newest.max(now);
            return;
        }
        let seconds = back / 1_000_000_000;
        tracing::warn!(seconds, "the clock was set back: alert rules start new windows");
        self.newest = now;
        for SharedTally { tally, started, .. } in &mut self.tallies {
            tally.set_back(back, now);
            *started = if tally.is_lasting() { started.saturating_sub(back) } else { now };
        }
        let pasts = self.rules.iter_mut().flat_map(|state| state.past.values_mut());
        pasts.for_each(|past| past.set_back(back));
        self.rules.iter_mut().for_each(|state| state.heaviest.clear());
        for moment in [&mut self.lost, &mut self.sampled, &mut self.unread] {
            *moment = moment.map(|moment| moment.min(now));
        }
    }

    /// The rules with a window that is over since the last evaluation, and what they find.
    pub fn evaluate(&mut self, now: u64) -> Vec<Evaluation<'_>> {
        self.follow_clock(now);
        let mut found: Vec<(usize, Vec<Finding>, u64)> = Vec::new();
        for SharedTally { key, tally, rules, started, .. } in &mut self.tallies {
            let Some(window) = tally.next_window(now) else { continue };
            let started = *started;
            let may_hold = |value: &WindowValue| {
                rules.iter().any(|index| self.rules[*index].rule.may_hold(value, now, started))
            };
            let mut values = tally.read_window(&window, may_hold);
            let span = tally.window_span(&window);
            let gaps = match key.source.is_read() {
                true => [None, None, self.unread],
                false => [self.lost, self.sampled, None],
            };
            let notes = describe_gaps(gaps, tally.count_without_room(&window), &span);
            for index in rules.iter() {
                let state = &mut self.rules[*index];
                if state.rule.group.is_empty()
                    && values.is_empty()
                    && state.rule.measure.quantity == Quantity::Sums
                {
                    values.insert(&[], WindowValue::Sums(Default::default()));
                }
                let measured = measure_groups(&state.rule, &values, now, started);
                // What came before `started` is unknown, and less than a whole window always has too little.
                if matches!(state.rule.condition, Condition::Below(_)) && span.start < started {
                    continue;
                }
                let mut exceeding = match state.rule.condition {
                    Condition::NewHeavy { top, floor } => {
                        let before = tally.window_before(&window);
                        let read_before = |rule: &Rule| {
                            measure_groups(rule, &tally.read_window(&before, |_| true), now, started)
                        };
                        let new = state.newly_heavy(measured, [&before, &window], read_before, top, floor);
                        // It is not yet known whether a flow was there before.
                        if tally.window_span(&before).start < started { Vec::new() } else { new }
                    }
                    condition => state.find_exceeding(condition, measured, &span),
                };
                exceeding.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
                if matches!(state.rule.condition, Condition::Below(_)) {
                    exceeding.reverse();
                }
                exceeding.truncate(MAX_FINDINGS);
                let finding = |exceeding| state.to_finding(exceeding, &values, &span, &notes, &self.names);
                let findings = exceeding.into_iter().map(finding).collect();
                found.push((*index, findings, started));
            }
        }
        let rules = &self.rules;
        let evaluation = |(index, findings, started): (usize, _, _)| Evaluation {
            rule: &rules[index].rule,
            findings,
            started,
        };
        found.into_iter().map(evaluation).collect()
    }
}

/// Why values of a window may be wrong: batches were lost, entries or readings were left out, or entries have
/// no group.
fn describe_gaps(
    [lost, sampled, unread]: [Option<u64>; 3],
    without_room: u64,
    span: &Range<u64>,
) -> Vec<String> {
    let is_within = |moment: Option<u64>| moment.is_some_and(|moment| moment >= span.start);
    let mut notes = Vec::new();
    if is_within(lost) {
        notes.push("batches were lost in this window: the value is too low".to_owned());
    }
    if is_within(sampled) {
        notes.push("evaluation fell behind in this window: the value is estimated from a sample".to_owned());
    }
    if is_within(unread) {
        notes.push("there are more counters and values than are read".to_owned());
    }
    if without_room > 0 {
        notes.push(format!("{without_room} entries of this window are in no group: the rule has reached its limit of groups (max_groups)"));
    }
    notes
}

impl CounterSums {
    /// What was received before evaluation began does not count as late.
    #[inline]
    fn count(&mut self, outcome: Tallied, is_new: bool) {
        match outcome {
            Tallied::Added | Tallied::NotIncluded => {}
            Tallied::TooLate => self.late += u64::from(is_new),
            Tallied::NoRoom => self.no_room += 1,
        }
    }
}

/// Key, value and limit.
type Exceeding<'a> = (&'a [u8], f64, f64);

impl Rule {
    /// The value the rule measures for a group; for a silent group, the seconds since it was last seen.
    fn measure_group(&self, value: &WindowValue, now: u64, started: u64) -> Option<f64> {
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        match value {
            WindowValue::Sums(sums) => {
                let value = sums.value_of(self.measure.sum) as f64 * self.measure.factor;
                Some(if self.measure.is_rate { value / seconds(self.window) } else { value })
            }
            WindowValue::Distinct(count, _) => Some(*count),
            WindowValue::Number(number) => Some(*number as f64),
            WindowValue::Seen { windows, .. } if *windows < LEAST_WINDOWS => None,
            WindowValue::Seen { last, .. } => Some(seconds(now.saturating_sub(*last.max(&started)))),
        }
    }

    /// Whether the condition may hold for a group, or its value is needed to learn from.
    fn may_hold(&self, value: &WindowValue, now: u64, started: u64) -> bool {
        match self.condition {
            Condition::Above(limit) => {
                self.measure_group(value, now, started).is_some_and(|value| value > limit)
            }
            // Groups below the floor matter, too: what is heavy now is not new in the next window.
            Condition::NewHeavy { .. }
            | Condition::Below(_)
            | Condition::Baseline { .. }
            | Condition::Percentile { .. }
            | Condition::Silent => true,
        }
    }
}

fn measure_groups<'a>(rule: &Rule, values: &GroupValues<'a>, now: u64, started: u64) -> Vec<(&'a [u8], f64)> {
    let measure =
        |(key, value): (&&'a [u8], &WindowValue)| Some((*key, rule.measure_group(value, now, started)?));
    values.iter().filter_map(measure).collect()
}

/// Keeps the largest values, in any order.
fn keep_largest(values: &mut Vec<(&[u8], f64)>, count: usize) {
    if values.len() > count {
        values.select_nth_unstable_by(count, |a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        values.truncate(count);
    }
}

impl RuleState {
    /// Whether the former state learned what this one would have learned.
    fn has_same_past(&self, former: &RuleState) -> bool {
        let kind = |state: &RuleState| std::mem::discriminant(&state.rule.condition);
        let top = |state: &RuleState| match state.rule.condition {
            Condition::NewHeavy { top, .. } => Some(top),
            _ => None,
        };
        TallyKey::from_rule(&self.rule) == TallyKey::from_rule(&former.rule)
            && self.rule.measure == former.rule.measure
            && kind(self) == kind(former)
            && top(self) == top(former)
    }

    /// The groups in the `top` of this window that were not in the top of the previous one when that was compared.
    /// Records that came later do not change what was known then. If it was never compared, it is read now.
    fn newly_heavy<'a>(
        &mut self,
        mut measured: Vec<(&'a [u8], f64)>,
        [before, window]: [&Range<u64>; 2],
        read_before: impl FnOnce(&Rule) -> Vec<(&'a [u8], f64)>,
        top: usize,
        floor: f64,
    ) -> Vec<Exceeding<'a>> {
        keep_largest(&mut measured, top);
        self.heaviest.push_back((window.end, measured.iter().map(|(key, _)| (*key).into()).collect()));
        while self.heaviest.get(1).is_some_and(|(end, _)| *end <= before.end) {
            self.heaviest.pop_front();
        }
        measured.retain(|(_, value)| *value > floor);
        if measured.is_empty() {
            return Vec::new();
        }
        let compared = self.heaviest.front().filter(|(end, _)| before.start < *end && *end <= before.end);
        let known: Vec<&[u8]> = match compared {
            Some((_, keys)) => keys.iter().map(|key| &**key).collect(),
            None => {
                let mut read = read_before(&self.rule);
                keep_largest(&mut read, top);
                read.into_iter().map(|(key, _)| key).collect()
            }
        };
        let is_new = |key: &[u8]| known.iter().all(|of| *of != key);
        let new = measured.into_iter().filter(|(key, _)| is_new(key));
        new.map(|(key, value)| (key, value, floor)).collect()
    }

    fn find_exceeding<'a>(
        &mut self,
        condition: Condition,
        measured: Vec<(&'a [u8], f64)>,
        span: &Range<u64>,
    ) -> Vec<Exceeding<'a>> {
        let window = self.rule.window as f64 / 1e9;
        let past = &self.past;
        let limit = |key: &[u8]| match condition {
            Condition::Above(limit) | Condition::Below(limit) => Some(limit),
            Condition::Silent => Some(window),
            _ => past.get(key)?.limit(condition, span.end),
        };
        let holds = |value: f64, limit: f64| match condition {
            Condition::Below(_) => value < limit,
            _ => value > limit,
        };
        // Values below the floor are skipped first: working out what is usual takes long.
        let floor = match condition {
            Condition::Baseline { floor, .. } | Condition::Percentile { floor, .. } => floor,
            _ => f64::NEG_INFINITY,
        };
        let exceeding = measured.iter().filter(|(_, value)| *value > floor).filter_map(|(key, value)| {
            let limit = limit(key)?;
            holds(*value, limit).then_some((*key, *value, limit))
        });
        let exceeding: Vec<_> = exceeding.collect();
        self.add_to_past(&measured, span.end);
        exceeding
    }

    /// Adds values to the past of their groups, once per window.
    fn add_to_past(&mut self, measured: &[(&[u8], f64)], at: u64) {
        let Self { rule, empty_past: Some(empty), past, learned, .. } = self else { return };
        let window = at / rule.window;
        if window == *learned {
            return;
        }
        *learned = window;
        past.retain(|_, of_group| of_group.is_recent(at));
        for (key, value) in measured {
            if past.contains_key(*key) || past.len() < rule.max_groups {
                past.entry((*key).into()).or_insert_with(|| empty.clone()).add_value(*value, at);
            }
        }
    }

    fn to_finding(
        &self,
        (key, value, limit): Exceeding<'_>,
        values: &GroupValues<'_>,
        span: &Range<u64>,
        notes: &[String],
        names: &Names,
    ) -> Finding {
        let (mut notes, mut span) = (notes.to_vec(), span.clone());
        match values.get(key) {
            Some(WindowValue::Distinct(_, false)) => notes.push(format!(
                "the value is an estimate with a standard error of {} %",
                STANDARD_ERROR * 100.0
            )),
            // The evidence is what came last.
            Some(WindowValue::Seen { last, .. }) => {
                span = last.saturating_sub(self.rule.window)..*last + 1_000_000_000;
            }
            _ => {}
        }
        let group = read_key(&self.rule, key);
        let describe = |(column, value): (&&'static Column, &u128)| {
            (label_name(column), describe_value(self.rule.source, column, *value, names))
        };
        let labels = self.rule.group.iter().zip(&group).map(describe).collect();
        Finding { values: group, labels, value, limit, span, notes }
    }
}

/// The values of a group's columns.
fn read_key(rule: &Rule, key: &[u8]) -> Vec<u128> {
    let mut rest = key;
    let read = |column: &&'static Column| {
        let (value, behind) = rest.split_at(column.kind.width());
        rest = behind;
        value.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))
    };
    rule.group.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use dta_proto::control::AlertTransition;
    use dta_proto::drop_reason::DropReason;
    use dta_proto::flow_record::FlowRecord;
    use dta_proto::telemetry::Location;

    use super::super::AlertBoard;
    use super::super::rule::AlertsConfig;
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_795_000_000 * SECOND;

    fn rules(text: &str) -> Vec<Rule> {
        let config: AlertsConfig = toml::from_str(text).unwrap();
        config.to_rules(&Names::empty()).unwrap()
    }

    /// An engine and its board, advanced second by second.
    struct Simulation {
        engine: AlertEngine,
        board: AlertBoard,
        now: u64,
        delivered: u64,
    }

    impl Simulation {
        fn new(rules: Vec<Rule>, board: AlertBoard, now: u64) -> Simulation {
            board.begin_rules(&rules, now);
            let delivered = *board.subscribe().borrow();
            Simulation {
                engine: AlertEngine::new(rules, Arc::new(Names::empty()), now),
                board,
                now,
                delivered,
            }
        }

        /// The transitions within this many seconds, as rule, state and seconds since the start.
        fn run(
            &mut self,
            seconds: u64,
            mut records: impl FnMut(u64) -> Vec<FlowRecord>,
        ) -> Vec<(String, String, u64)> {
            let mut transitions: Vec<AlertTransition> = Vec::new();
            for _ in 0..seconds {
                let second = (self.now - START) / SECOND;
                for record in records(second) {
                    let entry = FlowRecord { received: self.now, ..record }.to_entry();
                    self.engine.add_flow_records(&entry, 1, self.now);
                }
                self.now += SECOND;
                self.evaluate();
                transitions.extend(self.board.transitions_after(self.delivered));
                self.delivered = *self.board.subscribe().borrow();
            }
            let text = |transition: AlertTransition| {
                let alert = transition.alert.unwrap();
                (alert.rule, alert.state, transition.at / 1000 - START / SECOND)
            };
            transitions.into_iter().map(text).collect()
        }

        fn change_rules(&mut self, rules: Vec<Rule>) {
            let former = std::mem::replace(
                &mut self.engine,
                AlertEngine::new(Vec::new(), Arc::new(Names::empty()), self.now),
            );
            self.board.begin_rules(&rules, self.now);
            self.engine = former.with_rules(rules, self.now);
        }

        fn evaluate(&mut self) {
            for Evaluation { rule, findings, started } in self.engine.evaluate(self.now) {
                for (fingerprint, _) in self.board.apply(rule, &findings, self.now, started) {
                    self.board.set_rows(&fingerprint, &["row".to_owned()]);
                }
            }
            self.board.publish(self.now).unwrap();
        }
    }

    fn address(number: u32) -> Ipv6Addr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).to_ipv6_mapped()
    }

    fn record(src: u32, dst: u32) -> FlowRecord {
        FlowRecord {
            src: address(src),
            dst: address(dst),
            exporter: address(9),
            packets: 1,
            bytes: 40,
            protocol: 6,
            ..FlowRecord::EMPTY
        }
    }

    fn short(transitions: &[(String, String, u64)]) -> Vec<(&str, &str)> {
        transitions.iter().map(|(rule, state, _)| (rule.as_str(), state.as_str())).collect()
    }

    #[test]
    fn a_flood_fires_once_and_is_resolved_when_it_is_over() {
        let mut simulation = Simulation::new(rules(""), AlertBoard::default(), START);
        let quiet = |second: u64| {
            (0..5)
                .map(|n| FlowRecord {
                    tcp_flags: 0x1b,
                    dst_port: 443,
                    src_port: (second * 5 + n) as u16,
                    ..record(n as u32, 200)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(short(&simulation.run(120, quiet)), []);
        let flood = |second: u64| {
            let spoofed = |n: u32| FlowRecord {
                tcp_flags: 2,
                dst_port: 80,
                packets: 20,
                ..record(1000 + second as u32 * 100 + n, 7)
            };
            (0..100).map(spoofed).chain(quiet(second)).collect::<Vec<_>>()
        };
        let fired = simulation.run(60, flood);
        assert_eq!(short(&fired), [("syn-flood-sources", "firing"), ("syn-flood", "firing")]);
        assert!(fired.iter().all(|(.., at)| (120..=145).contains(at)), "{fired:?}");
        let alerts = simulation.board.alerts();
        let alert = alerts.iter().find(|alert| alert.rule == "syn-flood").unwrap();
        assert_eq!(alert.labels["dst"], "10.0.0.7");
        assert!(alert.text.starts_with("10.0.0.7 gets 2.0k packets/s"), "{}", alert.text);
        assert!(
            alert.command.contains("--where '(protocol = 6 and tcp-flags = 2) and dst = 10.0.0.7'"),
            "{}",
            alert.command
        );
        assert_eq!(alert.rows, ["row"]);
        let mut resolved = simulation.run(120, quiet);
        resolved.sort();
        assert_eq!(short(&resolved), [("syn-flood", "resolved"), ("syn-flood-sources", "resolved")]);
        assert_eq!(short(&simulation.run(300, quiet)), []);
    }

    #[test]
    fn a_restart_neither_repeats_nor_forgets_an_alert() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts.json");
        let open = || AlertBoard::open(Some(path.clone())).unwrap();
        let text = "defaults = false\n[[rule]]\nname = \"busy\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"12s\"\nabove = 15\nfor = \"6s\"\n";
        let busy = |_| vec![FlowRecord { packets: 10, ..record(1, 2) }];
        let mut simulation = Simulation::new(rules(text), open(), START);
        assert_eq!(short(&simulation.run(30, busy)), [("busy", "firing")]);
        for _ in 0..3 {
            let Simulation { now, delivered, .. } = simulation;
            simulation = Simulation::new(rules(text), open(), now);
            assert_eq!(simulation.delivered, delivered, "numbers go on");
            assert_eq!(short(&simulation.run(10, |_| Vec::new())), [], "windows are not complete yet");
            assert_eq!(short(&simulation.run(20, busy)), []);
            assert_eq!(simulation.board.alerts()[0].state, "firing");
        }
        let now = simulation.now;
        simulation = Simulation::new(rules(text), open(), now);
        assert_eq!(short(&simulation.run(60, |_| Vec::new())), [("busy", "resolved")]);
        // The rule is gone while an alert of it fires.
        assert_eq!(short(&simulation.run(30, busy)), [("busy", "firing")]);
        let last = simulation.delivered;
        let now = simulation.now;
        simulation = Simulation::new(rules("defaults = false"), open(), now);
        simulation.delivered = last;
        assert_eq!(short(&simulation.run(1, busy)), [("busy", "resolved")]);
        // Written by a version whose alerts had fewer fields.
        let older = r#"{"last": 7, "alerts": {"ab": {"rule": "x", "state": "firing", "fingerprint": "ab"}}, "transitions": [{"number": 7, "at": 1}]}"#;
        std::fs::write(&path, older).unwrap();
        assert_eq!(open().alerts()[0].rule, "x");
        std::fs::write(&path, "{").unwrap();
        assert!(AlertBoard::open(Some(path)).is_err());
    }

    #[test]
    fn other_rules_leave_what_was_learned_and_what_is_held() {
        let unusual = |name: &str, rest: &str| {
            format!(
                "[[rule]]\nname = \"{name}\"\nkind = \"baseline\"\ngroup = \"dst\"\nmeasure = \"packets\"\nabove = 50\n{rest}\n"
            )
        };
        let slow = "[[rule]]\nname = \"slow\"\nkind = \"percentile\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"12s\"\nabove = 50\n";
        let quiet = "[[rule]]\nname = \"quiet\"\nkind = \"silent\"\ngroup = \"exporter\"\nwindow = \"1m\"\n";
        let text = |rules: &[&str]| format!("defaults = false\n{}", rules.concat());
        let first = text(&[&unusual("kept", ""), &unusual("changed", ""), slow, quiet]);
        let mut simulation = Simulation::new(rules(&first), AlertBoard::default(), START);
        let usual = |_| vec![FlowRecord { packets: 10, ..record(1, 2) }];
        let with_another = |_| vec![usual(0)[0], FlowRecord { exporter: address(8), ..record(1, 3) }];
        assert_eq!(short(&simulation.run(3600, with_another)), []);
        assert_eq!(short(&simulation.run(3600, usual)), [("quiet", "firing")]);
        // One rule changes its text and limit, another what it measures; one is gone, and one is new.
        let changed = unusual("changed", "where = \"dst-port = 0\"");
        let kept = unusual("kept", "deviations = 5\nfor = \"1s\"\ntext = \"{dst} is unusual\"");
        let second = text(&[quiet, &changed, &unusual("new", ""), &kept]);
        simulation.change_rules(rules(&second));
        let burst = |_| vec![FlowRecord { packets: 100, ..record(1, 2) }];
        assert_eq!(short(&simulation.run(120, burst)), [("kept", "firing")]);
        let alerts = simulation.board.alerts();
        let texts: Vec<_> = alerts.iter().map(|alert| alert.text.as_str()).collect();
        assert_eq!(texts[1..], ["10.0.0.2 is unusual"], "{texts:?}");
        let with_another = |_| vec![burst(0)[0], with_another(0)[1]];
        assert_eq!(short(&simulation.run(20, with_another)), [("quiet", "resolved")]);
    }

    #[test]
    fn windows_begin_again_when_the_clock_is_set_back() {
        let text = "defaults = false
[[rule]]\nname = \"busy\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"12s\"\nabove = 15
[[rule]]\nname = \"held\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"12s\"\nabove = 15\nfor = \"20s\"
[[rule]]\nname = \"few\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"12s\"\nbelow = 5
[[rule]]\nname = \"unusual\"\nkind = \"percentile\"\npercentile = 90\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"12s\"
[[rule]]\nname = \"quiet\"\nkind = \"silent\"\ngroup = \"exporter\"\nwindow = \"1m\"\n";
        let mut simulation = Simulation::new(rules(text), AlertBoard::default(), START + 4 * 3600 * SECOND);
        let usual = |second: u64| {
            let other = (second < 15_000).then_some(FlowRecord { exporter: address(8), ..record(1, 9) });
            [FlowRecord { packets: 1, ..record(1, 2) }].into_iter().chain(other).collect::<Vec<_>>()
        };
        simulation.run(4000, usual);
        let busy = |_| vec![FlowRecord { packets: 10, ..record(1, 2) }];
        let fired = simulation.run(12, busy);
        let mut fired = short(&fired);
        fired.sort_unstable();
        assert_eq!(fired, [("busy", "firing"), ("unusual", "firing")]);
        // Pending: its condition still holds.
        assert_eq!(
            simulation.board.alerts().iter().find(|alert| alert.rule == "held").unwrap().state,
            "pending"
        );
        // Set back by less than is waited for, then by hours.
        simulation.now -= 20 * SECOND;
        assert_eq!(short(&simulation.run(35, busy)), [("held", "firing")]);
        simulation.now -= 3 * 3600 * SECOND;
        assert_eq!(short(&simulation.run(60, busy)), [], "nothing is resolved, and nothing fires again");
        let alerts = simulation.board.alerts();
        assert_eq!(alerts.iter().filter(|alert| alert.state == "firing").count(), 4, "{alerts:?}");
        let ended = simulation.run(30, |_| usual(20_000));
        assert_eq!(ended.len(), 3, "{ended:?}");
        assert!(ended.iter().all(|(_, state, _)| state == "resolved"), "{ended:?}");
    }

    #[test]
    fn a_condition_must_hold_for_its_time() {
        let text = "defaults = false\n[[rule]]\nname = \"busy\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"6s\"\nabove = 20\nfor = \"20s\"\n";
        let mut simulation = Simulation::new(rules(text), AlertBoard::default(), START);
        let busy = |_| vec![FlowRecord { packets: 10, ..record(1, 2) }];
        assert_eq!(short(&simulation.run(15, busy)), []);
        assert_eq!(simulation.board.alerts()[0].state, "pending");
        assert_eq!(short(&simulation.run(20, |_| Vec::new())), []);
        assert!(simulation.board.alerts().is_empty());
        let fired = simulation.run(40, busy);
        assert_eq!(short(&fired), [("busy", "firing")]);
        assert!((35 + 20..35 + 28).contains(&fired[0].2), "{fired:?}");
    }

    #[test]
    fn silent_new_heavy_and_unusual_groups_are_found() {
        let text = "defaults = false
[[rule]]\nname = \"quiet\"\nkind = \"silent\"\ngroup = \"exporter\"\nwindow = \"1m\"
[[rule]]\nname = \"heavy\"\nkind = \"new-heavy\"\ngroup = \"src\"\nmeasure = \"bits-per-second\"\ntop = 2\nabove = 20_000\nwindow = \"12s\"
[[rule]]\nname = \"unusual\"\nkind = \"baseline\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"1m\"\nabove = 50\n";
        let mut simulation = Simulation::new(rules(text), AlertBoard::default(), START);
        let usual = |second: u64| vec![FlowRecord { bytes: 1000, packets: 10 + second % 3, ..record(1, 2) }];
        assert_eq!(short(&simulation.run(2 * 3600, usual)), []);
        let elephant =
            |second: u64| [usual(second), vec![FlowRecord { bytes: 9000, ..record(5, 9) }]].concat();
        let found = simulation.run(60, elephant);
        assert_eq!(short(&found), [("heavy", "firing"), ("heavy", "resolved")], "it is new only once");
        let burst = |second: u64| {
            elephant(second)
                .into_iter()
                .map(|record| FlowRecord { packets: 100, ..record })
                .collect::<Vec<_>>()
        };
        assert_eq!(short(&simulation.run(120, burst)), [("unusual", "firing")]);
        assert_eq!(short(&simulation.run(300, usual)), [("unusual", "resolved")]);
        let silent = simulation.run(120, |_| Vec::new());
        assert_eq!(short(&silent), [("quiet", "firing")]);
        // The evidence is what came last.
        let alerts = simulation.board.alerts();
        let last = dta_files::moment::format_utc(START / 1_000_000 + 7_680_000);
        assert!(alerts[0].command.ends_with(&format!("--until {last}")), "{}", alerts[0].command);
        assert_eq!(short(&simulation.run(30, usual)), [("quiet", "resolved")]);
    }

    /// Ten minutes of a steady flow after five of silence: it begins `phase` seconds after a bucket, and is
    /// exported every `timeout` seconds.
    fn steady_flow(megabits: u64, phase: u64, timeout: u64) -> impl FnMut(u64) -> Vec<FlowRecord> {
        move |second| {
            let began = 300 + phase;
            let is_due = second > began && second <= began + 600 && (second - began).is_multiple_of(timeout);
            let end = START + second * SECOND;
            let bytes = megabits * 1_000_000 / 8 * timeout;
            let record = FlowRecord { start: end - timeout * SECOND, end, bytes, ..record(1, 2) };
            is_due.then_some(record).into_iter().collect()
        }
    }

    const ELEPHANT: &str = "defaults = false\n[[rule]]\nname = \"heavy\"\nkind = \"new-heavy\"\ngroup = \"flow\"\nmeasure = \"bits-per-second\"\nabove = 100_000_000\n";

    #[test]
    fn a_new_heavy_flow_is_found_however_it_is_exported() {
        for (timeout, phase) in
            [5, 30, 60].into_iter().flat_map(|timeout| (1..10).map(move |phase| (timeout, phase)))
        {
            let run = |megabits| {
                let mut simulation = Simulation::new(rules(ELEPHANT), AlertBoard::default(), START);
                simulation.run(1000, steady_flow(megabits, phase, timeout))
            };
            let found = run(120);
            let expected = [("heavy", "firing"), ("heavy", "resolved")];
            assert_eq!(short(&found), expected, "from {phase} s on, every {timeout} s: {found:?}");
            assert_eq!(short(&run(80)), [], "from {phase} s on, every {timeout} s");
        }
    }

    #[test]
    fn other_rules_leave_what_was_heavy_before() {
        for reload in [320, 340, 375, 400] {
            let mut simulation = Simulation::new(rules(ELEPHANT), AlertBoard::default(), START);
            let mut found = simulation.run(reload, steady_flow(120, 5, 30));
            simulation.change_rules(rules(&format!("{ELEPHANT}text = \"{{src}} is heavy\"")));
            found.extend(simulation.run(1000 - reload, steady_flow(120, 5, 30)));
            assert_eq!(
                short(&found),
                [("heavy", "firing"), ("heavy", "resolved")],
                "at {reload} s: {found:?}"
            );
        }
    }

    #[test]
    fn a_flow_that_was_heavy_is_not_new_after_a_clock_set_back_or_a_pause() {
        let mut simulation =
            Simulation::new(rules(ELEPHANT), AlertBoard::default(), START + 4 * 3600 * SECOND);
        let steady = |second: u64| {
            let end = START + second * SECOND;
            vec![FlowRecord { start: end - SECOND, end, bytes: 15_000_000, ..record(1, 2) }]
        };
        assert_eq!(short(&simulation.run(400, steady)), [], "it was there when evaluation began");
        simulation.now -= 3 * 3600 * SECOND;
        assert_eq!(short(&simulation.run(400, steady)), []);
        // Nothing is evaluated for two windows; then all records come at once.
        for _ in 0..120 {
            let entry =
                FlowRecord { received: simulation.now, ..steady((simulation.now - START) / SECOND)[0] };
            simulation.engine.add_flow_records(&entry.to_entry(), 1, simulation.now);
            simulation.now += SECOND;
        }
        assert_eq!(short(&simulation.run(400, steady)), []);
        let AlertEngine { rules, .. } = &simulation.engine;
        assert!((1..=7).contains(&rules[0].heaviest.len()), "{:?}", rules[0].heaviest);
    }

    #[test]
    fn a_steady_flow_neither_falls_below_a_limit_nor_stays_above_for_less() {
        let text = "defaults = false
[[rule]]\nname = \"slow\"\ngroup = \"flow\"\nmeasure = \"bits-per-second\"\nbelow = 100_000_000
[[rule]]\nname = \"fast\"\ngroup = \"flow\"\nmeasure = \"bits-per-second\"\nabove = 100_000_000\nfor = \"3m\"\n";
        for phase in 1..10 {
            let mut simulation = Simulation::new(rules(text), AlertBoard::default(), START);
            let found = simulation.run(880, steady_flow(120, phase, 60));
            assert_eq!(short(&found), [("fast", "firing")], "from {phase} s on: {found:?}");
        }
    }

    #[test]
    fn events_are_grouped_by_place_and_a_loop_fires_at_once() {
        let mut simulation = Simulation::new(rules(""), AlertBoard::default(), START);
        let event = |kind, switch, reason| EventFields {
            kind,
            time: None,
            key: None,
            flow: "10.0.0.1:5000->10.0.0.2:443/tcp".parse().ok(),
            place: Location { switch: Some(switch), port: Some(3), queue: None },
            ingress_port: None,
            why: None,
            old: None,
            new: Some(4),
            path: None,
            looped: None,
            reason,
            occupancy: None,
            latency: None,
        };
        for _ in 0..60 {
            for _ in 0..5 {
                let reason = Some(DropReason::from_int(71));
                simulation.engine.add_event(&event(EventKind::Drop, 6, reason), 1, simulation.now);
            }
            simulation.run(1, |_| Vec::new());
        }
        simulation.engine.add_event(&event(EventKind::Loop, 6, None), 1, simulation.now);
        simulation.run(12, |_| Vec::new());
        let alerts = simulation.board.alerts();
        let firing: Vec<_> =
            alerts.iter().filter(|alert| alert.state == "firing").map(|alert| alert.rule.as_str()).collect();
        assert_eq!(firing, ["path-loop", "flow-drops", "drops"]);
        let drops = &alerts[2];
        assert_eq!((drops.labels["switch"].as_str(), drops.labels["reason"].as_str()), ("6", "71"));
        assert!(
            drops.command.starts_with("dta-collector tail events --kind drop --switch 6 --since "),
            "{}",
            drops.command
        );
    }

    #[test]
    fn an_index_changes_nothing_but_the_time_it_takes() {
        let many: String = (0..200)
            .map(|port| format!("[[rule]]\nname = \"port{port}\"\nwhere = \"dst-port = {port} and protocol = tcp\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"6s\"\nabove = {port}\n"))
            .collect();
        let engine =
            AlertEngine::new(rules(&format!("defaults = false\n{many}")), Arc::new(Names::empty()), START);
        assert_eq!((engine.tallies.len(), engine.flow_records.others.len()), (200, 0));
        let mut simulation = Simulation { engine, board: AlertBoard::default(), now: START, delivered: 0 };
        let fired = simulation.run(9, |_| {
            (0..300).map(|port| FlowRecord { dst_port: port, packets: 20, ..record(1, 2) }).collect()
        });
        // Six packets times 20 per window.
        let mut ports: Vec<u16> = fired.iter().map(|(rule, ..)| rule[4..].parse().unwrap()).collect();
        ports.sort_unstable();
        assert_eq!(ports, (0..120).collect::<Vec<_>>());
    }

    #[test]
    fn an_index_finds_what_conditions_include() {
        let conditions = [
            "",
            "protocol = tcp",
            "tcp-flags = syn and protocol = tcp",
            "not protocol = tcp",
            "protocol > 100 or tcp-flags < 5 and dst-port = 7",
            "dst-port = 7 and tcp-flags = ack",
            "dst-port > 6 and not (tcp-flags = ack and direction = egress)",
        ];
        let rule = |(number, condition): (usize, &&str)| {
            format!(
                "[[rule]]\nname = \"rule{number}\"\nwhere = \"{condition}\"\nmeasure = \"packets\"\nabove = 1\n"
            )
        };
        let text: String = conditions.iter().enumerate().map(rule).collect();
        // Includes the rules of the default set.
        let mut engine = AlertEngine::new(rules(&text), Arc::new(Names::empty()), START);
        let AlertEngine { rules, tallies, flow_records, .. } = &mut engine;
        let mut most_classes = 0;
        // A class begins with the first of the ports, and must be right for the others.
        let ports = [6, 7, 8];
        for (class, dst_port) in (0..1u32 << 17).flat_map(|class| ports.map(|port| (class, port))) {
            let record = FlowRecord {
                protocol: class as u8,
                tcp_flags: (class >> 8) as u8,
                dst_port,
                direction: (class >> 16) as u8,
                ..FlowRecord::EMPTY
            };
            let entry = record.to_entry();
            let mut found = Vec::new();
            flow_records.for_each(&entry, |tally| found.push(tally));
            found.sort_unstable();
            let is_included = |shared: &SharedTally| {
                let Rule { source, filter, .. } = &rules[shared.rules[0]].rule;
                *source == Source::FlowRecords && filter.includes(&entry)
            };
            let included = tallies.iter().enumerate().filter(|(_, shared)| is_included(shared));
            assert!(included.map(|(tally, _)| tally).eq(found), "{record:?}");
            most_classes = most_classes.max(flow_records.classes.len());
        }
        let most = MAX_CLASS_CONDITIONS / 2;
        assert!((1000..=most).contains(&most_classes), "{most_classes} of {most}");
    }

    #[test]
    fn long_conditions_leave_room_for_few_classes() {
        let condition = (0..1000).map(|bytes| format!("bytes = {bytes}")).collect::<Vec<_>>().join(" or ");
        let text = format!(
            "defaults = false\n[[rule]]\nname = \"long\"\nwhere = \"tcp-flags > 0 and protocol > 0 or {condition}\"\nmeasure = \"packets\"\nabove = 1\n"
        );
        let mut engine = AlertEngine::new(rules(&text), Arc::new(Names::empty()), START);
        for number in 0..1u32 << 16 {
            let (protocol, tcp_flags) = (number as u8, (number >> 8) as u8);
            let entry = FlowRecord { protocol, tcp_flags, bytes: 999, ..FlowRecord::EMPTY }.to_entry();
            let mut found = 0;
            engine.flow_records.for_each(&entry, |_| found += 1);
            assert_eq!(found, 1);
        }
        // The classes without flags: much of the conditions remains.
        let is_long =
            |tallies: &&FilteredTallies| tallies.iter().any(|(_, filter)| filter.columns().len() > 900);
        let long = engine.flow_records.classes.values().filter(is_long).count();
        assert!((60..=66).contains(&long), "{long}");
    }

    #[test]
    fn samples_stand_for_what_was_left_out_and_say_so() {
        let text = "defaults = false\n[[rule]]\nname = \"busy\"\nmeasure = \"packets\"\nwindow = \"6s\"\nabove = 20\n";
        let mut simulation = Simulation::new(rules(text), AlertBoard::default(), START);
        for second in 0..9 {
            let entry = FlowRecord { received: simulation.now, ..record(1, 2) }.to_entry();
            simulation.engine.add_flow_records(&entry, 8, simulation.now);
            simulation.engine.note_skipped(7, simulation.now);
            if second == 1 {
                simulation
                    .engine
                    .note_losses(&ReadProgress { overwritten: 1, ..ReadProgress::default() }, simulation.now);
            }
            simulation.run(1, |_| Vec::new());
        }
        let alert = &simulation.board.alerts()[0];
        assert_eq!((alert.value, alert.notes.len()), (48.0, 1), "{alert:?}");
        assert!(alert.notes[0].contains("from a sample"));
        simulation.engine.publish_counters(simulation.board.counters());
        assert_eq!(simulation.board.counters().skipped.load(Ordering::Relaxed), 63);
    }
}
