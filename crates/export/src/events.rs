//! Completes events: what their keys stand for, and their paths.
//!
//! A key and the first event about it are in different lists, and either may come first. So an event with an unknown
//! key waits briefly for it (`WAIT`), and later events wait with it to keep the order.
//!
//! An event about a path carries the path if it has at most 7 hops. Longer paths, and those of flow latencies, are
//! only digests: the previous path in the same list, or the one in the path store, is used if it has this digest, and
//! left out otherwise.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dta_proto::control::MAX_KEYS;
use dta_proto::counter::collector as names;
use dta_proto::key::Key;
use dta_proto::telemetry::{
    Metric, SwitchPath, TelemetryEntry, TimedValue, Via, Why, hop_latency_key, list, store,
};
use dta_rpc::{Ask, AskKeys, ClientError, Policy};
use lru::LruCache;
use tokio::time::{Interval, MissedTickBehavior};

use crate::config::TraceSelection;
use crate::directory::{Directory, Meaning};
use crate::source::{EntryBatch, EventSource, LISTS};

/// Ticks that an event waits for its key. The translator holds an entry for at most `append_ms`, 100 ms by default;
/// the rest is margin for a busy host.
const WAIT: u64 = 20;
/// Time between ticks. While this host stands still, at most one tick is counted.
const TICK: Duration = Duration::from_millis(100);
/// Most events that may wait; beyond this, the first batch is passed on without its meanings.
const WAITING: usize = 32_768;
/// Flows whose paths are remembered for later latencies: some 8 megabytes if full.
const PATHS: usize = 65_536;

#[derive(Clone, Debug, PartialEq)]
pub struct TelemetryEvent {
    /// The translator's entry; never one of the key directory.
    pub entry: TelemetryEntry,
    /// What its key stands for; `None` if unknown, or if the packet could not be read.
    pub meaning: Option<Meaning>,
    /// The path of the flow, for a [`Metric::FlowPath`] or [`Metric::FlowLatency`].
    pub path: Option<SwitchPath>,
    /// Latency of the flow at that time, for a [`Metric::FlowPath`].
    pub latency: Option<u32>,
    /// Nanoseconds in each switch on the path at that time, where known; `None` if the event is not selected for a trace.
    pub hops: Option<Vec<Option<u32>>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Events<E = TelemetryEvent> {
    /// In list order.
    pub events: Vec<E>,
    /// Events that a rule excludes.
    pub left_out: u64,
    /// How far each list has been read once all these, and everything before them, are processed; 0 = not at all.
    pub read: Positions,
}

/// Sequences of the last processed batches, by list; 0 = none.
pub type Positions = [u32; LISTS];

/// The names of the stores other than the one with the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupStores {
    /// Paths of flows (key-write).
    pub paths: String,
    pub values: String,
}

impl Default for LookupStores {
    fn default() -> Self {
        Self { paths: store::PATHS.into(), values: store::VALUES.into() }
    }
}

dta_proto::shared_counters! {
    /// What could not be looked up.
    pub struct LookupCounters(sink) {
        pub unnamed = names::EXPORT_UNNAMED,
        pub without_path = names::EXPORT_WITHOUT_PATH,
        pub forgotten = names::EXPORT_FORGOTTEN,
    }
}

/// Reads events from a source and completes them.
#[derive(Debug)]
pub struct EventReader {
    source: EventSource,
    directory: Directory,
    lookup: Lookup,
    counters: Arc<LookupCounters>,
    waiting: VecDeque<PendingBatch>,
    tick: Interval,
    ticks: u64,
    completing: Option<Vec<TelemetryEvent>>,
    /// Events in `waiting`.
    held: usize,
    ended: bool,
    read: Positions,
}

#[derive(Debug)]
struct PendingBatch {
    batch: EntryBatch,
    until: u64,
}

impl EventReader {
    /// Completes the events of `source`, querying `ask`; needs a tokio runtime. Those selected by `traces` get the
    /// latency of each switch on their path.
    pub fn new(
        source: EventSource,
        ask: Arc<dyn Ask>,
        stores: LookupStores,
        traces: Option<TraceSelection>,
        counters: Arc<LookupCounters>,
    ) -> Self {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            source,
            tick,
            ticks: 0,
            directory: Directory::default(),
            lookup: Lookup { ask, stores, traces, paths: LruCache::unbounded() },
            counters,
            waiting: VecDeque::new(),
            completing: None,
            held: 0,
            ended: false,
            read: [0; LISTS],
        }
    }

    /// Waits for the next events. `None` at the end, which comes only if the source has one.
    ///
    /// Cancel-safe: no event is lost if this is dropped and called again.
    pub async fn next(&mut self) -> Option<Result<Events, ClientError>> {
        loop {
            if self.completing.is_none() {
                self.completing = self.take();
            }
            if let Some(events) = self.completing.as_mut() {
                let mut missing = 0;
                for events in events.chunks_mut(MAX_KEYS) {
                    missing += self.lookup.complete_events(events).await;
                    self.lookup.complete_hops(events).await;
                }
                self.counters.without_path.fetch_add(missing, Ordering::Relaxed);
                let events = self.completing.take().unwrap_or_default();
                return Some(Ok(Events { events, left_out: 0, read: self.read }));
            }
            if self.ended {
                return None;
            }
            tokio::select! {
                // Read all that is there before passing on an event without its meaning.
                biased;
                batch = self.source.next() => match batch {
                    Some(Ok(batch)) => self.queue_batch(batch),
                    Some(Err(error)) => return Some(Err(error)),
                    None => self.ended = true,
                },
                _ = self.tick.tick(), if !self.waiting.is_empty() => self.ticks += 1,
            }
        }
    }

    fn queue_batch(&mut self, batch: EntryBatch) {
        if batch.list == list::KEYS {
            batch.entries.iter().for_each(|entry| self.directory.take(entry));
            self.counters.forgotten.store(self.directory.forgotten(), Ordering::Relaxed);
            return;
        }
        self.held += batch.entries.len();
        self.waiting.push_back(PendingBatch { batch, until: self.ticks + WAIT });
    }

    /// The first batch, unless it must still wait.
    fn take(&mut self) -> Option<Vec<TelemetryEvent>> {
        let first = self.waiting.front()?;
        let must_go = self.ended || self.held > WAITING || self.ticks >= first.until;
        let directory = &mut self.directory;
        let mut named = |entry: &TelemetryEntry| match subject_key(entry) {
            Some(key) => directory.resolve_key(&key).filter(is_complete),
            None => None,
        };
        let is_known = |entry: &TelemetryEntry| subject_key(entry).is_none_or(|key| key == Key::default());
        if !must_go && !first.batch.entries.iter().all(|entry| is_known(entry) || named(entry).is_some()) {
            return None;
        }
        let PendingBatch { batch, .. } = self.waiting.pop_front()?;
        self.held -= batch.entries.len();
        if batch.sequence != 0 {
            self.read[batch.list as usize] = batch.sequence;
        }
        let event = |entry: TelemetryEntry| {
            let meaning = subject_key(&entry).and_then(|key| self.directory.resolve_key(&key));
            if !is_known(&entry) && !meaning.is_some_and(|meaning| is_complete(&meaning)) {
                self.counters.unnamed.fetch_add(1, Ordering::Relaxed);
            }
            TelemetryEvent { entry, meaning, path: None, latency: None, hops: None }
        };
        Some(batch.entries.into_iter().map(event).collect())
    }

    /// Replaces earlier changes by the current values of their keys, at `time`. They stay unchanged if their store
    /// does not answer.
    pub async fn refresh_values(&self, events: &mut [TelemetryEvent], time: u64) {
        for events in events.chunks_mut(MAX_KEYS) {
            self.lookup.refresh_values(events, time).await;
        }
    }
}

/// The key that an entry is about, if any.
fn subject_key(entry: &TelemetryEntry) -> Option<Key> {
    match entry {
        TelemetryEntry::Change { key, .. }
        | TelemetryEntry::Drop { key, .. }
        | TelemetryEntry::Congestion { key, .. } => Some(*key),
        TelemetryEntry::Key { .. } => None,
    }
}

/// Whether the flow in a key's meaning is known, if it has one.
fn is_complete(meaning: &Meaning) -> bool {
    match meaning {
        Meaning::Hop { flow, .. } | Meaning::FlowDrops { flow, .. } => flow.is_some(),
        _ => true,
    }
}

struct Lookup {
    ask: Arc<dyn Ask>,
    stores: LookupStores,
    traces: Option<TraceSelection>,
    /// The last path of each flow, from its events; at most [`PATHS`].
    paths: LruCache<Key, SwitchPath>,
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("stores", &self.stores).finish_non_exhaustive()
    }
}

impl Lookup {
    /// Completes at most [`MAX_KEYS`] events; returns how many paths are unknown.
    async fn complete_events(&mut self, events: &mut [TelemetryEvent]) -> u64 {
        let (mut of_paths, mut of_latencies) = (Vec::new(), Vec::new());
        for event in &mut *events {
            let TelemetryEntry::Change { key, metric, place, path: Some(via), .. } = event.entry else {
                continue;
            };
            if metric == Metric::FlowPath && place.switch.is_none() {
                of_latencies.push(key);
            }
            event.path = match via {
                Via::Path(path) => Some(path),
                Via::Digest(_) => self.paths.get(&key).filter(|path| via.matches_path(path)).copied(),
            };
            match event.path {
                Some(path) if metric == Metric::FlowPath => {
                    self.paths.put(key, path);
                    if self.paths.len() > PATHS {
                        self.paths.pop_lru();
                    }
                }
                Some(_) => {}
                None => of_paths.push(key),
            }
        }
        let paths = self.fetch_values(&self.stores.paths, of_paths, SwitchPath::parse_bytes).await;
        let latencies = self.fetch_values(&self.stores.values, of_latencies, TimedValue::parse_bytes).await;
        let mut missing = 0;
        for event in events {
            let TelemetryEntry::Change { key, metric, time, path, .. } = event.entry else { continue };
            if let (None, Some(via)) = (event.path, path) {
                event.path = paths.get(&key).filter(|path| via.matches_path(path)).copied();
                missing += u64::from(event.path.is_none());
            }
            if metric == Metric::FlowPath {
                // A later value belongs to a later event.
                event.latency =
                    latencies.get(&key).filter(|value| value.time <= time).map(|value| value.value);
            }
        }
        missing
    }

    /// Adds the latencies of all switches on the paths of events that are to be traces.
    async fn complete_hops(&self, events: &mut [TelemetryEvent]) {
        let Some(traces) = &self.traces else { return };
        let keys = |event: &TelemetryEvent| -> Option<Vec<Option<Key>>> {
            let (flow, path) =
                (event.meaning?.known_flow()?, event.path.filter(|_| traces.selects_event(event))?);
            let key = |switch: &u32| (*switch != u32::MAX).then(|| hop_latency_key(&flow, *switch));
            Some(path.stored_switches().iter().map(key).collect())
        };
        for event in events {
            let (Some(keys), Some(time)) = (keys(event), event.entry.event_time()) else { continue };
            let values = self
                .fetch_values(
                    &self.stores.values,
                    keys.iter().flatten().copied().collect(),
                    TimedValue::parse_bytes,
                )
                .await;
            let latency = |key: &Option<Key>| {
                // A later value belongs to a later event.
                let value = values.get(&(*key)?).filter(|value| value.time <= time)?;
                Some(value.value)
            };
            event.hops = Some(keys.iter().map(latency).collect());
        }
    }

    async fn refresh_values(&self, events: &mut [TelemetryEvent], now: u64) {
        let (mut of_values, mut of_paths) = (Vec::new(), Vec::new());
        for event in &*events {
            match event.entry {
                TelemetryEntry::Change { metric: Metric::FlowPath, key, place, .. }
                    if place.switch.is_none() =>
                {
                    of_paths.push(key);
                }
                TelemetryEntry::Change { metric: Metric::FlowPath, .. } => {}
                TelemetryEntry::Change { metric, key, .. } => {
                    of_values.push(key);
                    of_paths.extend((metric == Metric::FlowLatency).then_some(key));
                }
                _ => {}
            }
        }
        let values = self.fetch_values(&self.stores.values, of_values, TimedValue::parse_bytes).await;
        let paths = self.fetch_values(&self.stores.paths, of_paths, SwitchPath::parse_bytes).await;
        for event in events {
            let TelemetryEntry::Change { metric, key, why, old, new, time, .. } = &mut event.entry else {
                continue;
            };
            (*why, *old, *time) = (Why::KeepAlive, *new, now);
            event.latency = None;
            if let Some(path) = paths.get(key) {
                event.path = Some(*path);
            }
            match (*metric, event.path, values.get(key)) {
                (Metric::FlowPath, Some(path), _) => {
                    *new = u64::from(path.looped) << 8 | u64::from(path.hops);
                }
                (Metric::FlowPath, None, _) | (_, _, None) => {}
                (_, _, Some(value)) => *new = value.value.into(),
            }
        }
    }

    /// The values of these keys in a key-write store; none if it does not answer.
    async fn fetch_values<T>(
        &self,
        store: &str,
        mut keys: Vec<Key>,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> HashMap<Key, T> {
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return HashMap::new();
        }
        match self.ask.key_write(store, &keys, Policy::First, 0).await {
            Ok(answers) => {
                let found = keys.iter().zip(answers);
                found.filter_map(|(key, answer)| Some((*key, parse(&answer.value?)?))).collect()
            }
            Err(error) => {
                tracing::debug!(store, %error, "a store does not answer: events are exported without its values");
                HashMap::new()
            }
        }
    }
}
