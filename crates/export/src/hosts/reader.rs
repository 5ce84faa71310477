//! Follows what hosts report, and puts packets together.
//!
//! Each host reports separately what it saw of a packet, and reports drops separately, in no particular order. So the
//! records of a packet wait for more (`WAIT`); then its points are queried. A record that comes later counts as a packet
//! of its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dta_proto::trace::{PacketSighting, TraceEntry, list};
use dta_rpc::{Ask, ClientError};
use tokio::time::{Interval, MissedTickBehavior};

use super::clocks::Clocks;
use super::journey::{HostTrace, Passed, journey_points};
use super::packets::{DropRecord, HostNames, PacketRecord, TracedPacket, Translations, with_points};
use crate::config::TraceSelection;
use crate::events::{Events, LookupCounters, Positions};
use crate::source::{EntryBatch, EventSource, LISTS};

/// Ticks that a packet waits, from its first record on. A host reports a packet after seeing nothing of it for a fifth of
/// a second (two seconds at most: `--settle`), and a translator holds an entry for another tenth.
const WAIT: u64 = 12;
/// Time between ticks. While this host stands still, at most one tick is counted.
const TICK: Duration = Duration::from_millis(250);
/// Records after which a tick ends early, so that about 65,000 wait at most.
const RECORDS: usize = 65_536 / WAIT as usize;
/// The last packets that passed several hosts, used to compare clocks.
const CROSSINGS: usize = 4096;
/// Delay before a failed query is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// Reads packets of hosts from a source.
pub struct HostReader {
    source: EventSource<TraceEntry>,
    ask: Arc<dyn Ask>,
    rule: TraceSelection,
    counters: Arc<LookupCounters>,
    names: Arc<HostNames>,
    waiting: PendingRecords,
    tick: Interval,
    ticks: u64,
    /// Records since the last tick.
    of_tick: usize,
    closing: Option<ClosingRecords>,
    is_failed: bool,
    crossings: VecDeque<TracedPacket>,
    ended: bool,
    /// Positions up to which lists were received, and up to which nothing waits.
    come: Positions,
    read: Positions,
}

/// Waiting records, in order of arrival.
#[derive(Debug, Default)]
struct PendingRecords {
    packets: Vec<PendingRecord<PacketRecord>>,
    drops: Vec<PendingRecord<DropRecord>>,
}

#[derive(Debug)]
struct PendingRecord<R> {
    record: R,
    tick: u64,
    /// The position in its list before it.
    before: u32,
}

/// All records of some packets.
#[derive(Debug, Default)]
struct ClosingRecords {
    packets: Vec<PacketRecord>,
    drops: Vec<DropRecord>,
}

impl HostReader {
    /// Reads packets from `source`, querying `ask`; `rule` says which are wanted. Needs a tokio runtime.
    pub fn new(
        source: EventSource<TraceEntry>,
        ask: Arc<dyn Ask>,
        rule: TraceSelection,
        counters: Arc<LookupCounters>,
    ) -> Self {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            source,
            ask,
            rule,
            counters,
            names: Arc::default(),
            waiting: PendingRecords::default(),
            tick,
            ticks: 0,
            of_tick: 0,
            closing: None,
            is_failed: false,
            crossings: VecDeque::new(),
            ended: false,
            come: [0; LISTS],
            read: [0; LISTS],
        }
    }

    /// Waits for the next packets. `None` at the end, which comes only if the source has one.
    ///
    /// Cancel-safe: no packet is lost if this is dropped and called again.
    pub async fn next(&mut self) -> Option<Result<Events<HostTrace>, ClientError>> {
        loop {
            if self.closing.is_none() {
                self.closing = self.take_due_packets();
            }
            if self.closing.is_some() {
                match self.complete_packets().await {
                    Ok(events) => {
                        (self.closing, self.is_failed) = (None, false);
                        return Some(Ok(events));
                    }
                    Err(error) if !self.is_failed => {
                        self.is_failed = true;
                        return Some(Err(error));
                    }
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
                continue;
            }
            if self.ended {
                return None;
            }
            tokio::select! {
                // Read all that is there before completing a packet without it.
                biased;
                batch = self.source.next() => match batch {
                    Some(Ok(batch)) => self.queue_batch(batch),
                    Some(Err(error)) => return Some(Err(error)),
                    None => self.ended = true,
                },
                _ = self.tick.tick(), if !self.waiting.is_empty() => self.advance_tick(),
            }
        }
    }

    fn advance_tick(&mut self) {
        self.ticks += 1;
        self.of_tick = 0;
    }

    fn queue_batch(&mut self, batch: EntryBatch<TraceEntry>) {
        self.of_tick += batch.entries.len();
        if self.of_tick > RECORDS {
            self.advance_tick();
        }
        let (tick, before) = (self.ticks, self.come[batch.list as usize]);
        for entry in batch.entries {
            match entry {
                TraceEntry::Packet { seen, points, left } => {
                    let record = PacketRecord { seen, points, left };
                    self.waiting.packets.push(PendingRecord { record, tick, before });
                }
                TraceEntry::Drop { seen, reason, .. } => {
                    self.waiting.drops.push(PendingRecord {
                        record: DropRecord { seen, reason },
                        tick,
                        before,
                    });
                }
                TraceEntry::Name { host, of, number, name, .. } => {
                    let (at, name) = ((host, of, number), name.to_lossy_string());
                    if self.names.get(&at) != Some(&name) {
                        Arc::make_mut(&mut self.names).insert(at, name);
                    }
                }
                TraceEntry::Slow { .. } | TraceEntry::Books { .. } => {}
            }
        }
        if batch.sequence != 0 {
            self.come[batch.list as usize] = batch.sequence;
        }
    }

    /// Takes the packets that waited long enough, with all of their records.
    fn take_due_packets(&mut self) -> Option<ClosingRecords> {
        let PendingRecords { packets, drops } = &self.waiting;
        let (ended, ticks) = (self.ended, self.ticks);
        let is_due = |tick: u64| ended || tick + WAIT <= ticks;
        // Waiting records are in order of arrival.
        let oldest = [packets.first().map(|first| first.tick), drops.first().map(|first| first.tick)];
        if !oldest.into_iter().flatten().any(is_due) {
            return None;
        }
        let translations = Translations::from_records(packets.iter().map(|one| &one.record));
        let mut first: HashMap<u64, u64> = HashMap::new();
        let came = packets.iter().map(|one| (one.record.seen.digest, one.tick));
        for (digest, tick) in came.chain(drops.iter().map(|one| (one.record.seen.digest, one.tick))) {
            let first = first.entry(translations.first_digest(digest)).or_insert(tick);
            *first = tick.min(*first);
        }
        let is_due = |seen: &PacketSighting| is_due(first[&translations.first_digest(seen.digest)]);
        let due = ClosingRecords {
            packets: take(&mut self.waiting.packets, |one| is_due(&one.seen)),
            drops: take(&mut self.waiting.drops, |one| is_due(&one.seen)),
        };
        self.read = self.come;
        if let Some(first) = self.waiting.packets.first() {
            self.read[list::PACKETS as usize] = first.before;
        }
        if let Some(first) = self.waiting.drops.first() {
            self.read[list::DROPS as usize] = first.before;
        }
        Some(due)
    }

    /// Queries the points of the packets in `closing`.
    async fn complete_packets(&mut self) -> Result<Events<HostTrace>, ClientError> {
        let mut events = Events { events: Vec::new(), left_out: 0, read: self.read };
        let Some(ClosingRecords { packets, drops }) = &self.closing else { return Ok(events) };
        let translations = Translations::from_records(packets);
        let first = |seen: &PacketSighting| translations.first_digest(seen.digest);
        let mut dropped: HashMap<u64, Vec<DropRecord>> = HashMap::new();
        for drop in drops {
            dropped.entry(first(&drop.seen)).or_default().push(*drop);
        }
        let rule = &self.rule;
        let admits = |digest: u64, seen: &mut dyn Iterator<Item = PacketSighting>| {
            rule.selects_flows(&digest.to_be_bytes(), seen.filter_map(|seen| seen.flow.to_ipv4_flow()))
        };
        let is_wanted = |records: &[PacketRecord]| {
            admits(first(&records[0].seen), &mut records.iter().map(|record| record.seen))
        };
        // Clocks are compared by packets of all flows.
        let crosses =
            |records: &[PacketRecord]| records.iter().any(|one| one.seen.host != records[0].seen.host);
        let known =
            with_points(&*self.ask, &self.names, packets, |records| is_wanted(records) || crosses(records))
                .await?;
        self.crossings.extend(known.iter().filter(|packet| packet.visits.len() > 1).cloned());
        self.crossings.drain(..self.crossings.len().saturating_sub(CROSSINGS));
        let recorded: HashSet<u64> = packets.iter().map(|record| first(&record.seen)).collect();
        let all = recorded.len() + dropped.keys().filter(|digest| !recorded.contains(digest)).count();
        let trace = |digest, packet, drops| {
            let (names, clocks) = (self.names.clone(), Arc::default());
            HostTrace { digest, packet, drops, names, clocks }
        };
        let mut traces = Vec::new();
        for packet in known.into_iter().filter(|packet| is_wanted(&packet.records)) {
            let digest = first(&packet.records[0].seen);
            traces.push(trace(digest, packet, dropped.remove(&digest).unwrap_or_default()));
        }
        // The rest was dropped before any point saw it, or is not wanted.
        for (digest, drops) in dropped.into_iter().filter(|(digest, _)| !recorded.contains(digest)) {
            if admits(digest, &mut drops.iter().map(|drop| drop.seen)) {
                traces.push(trace(digest, TracedPacket::default(), drops));
            }
        }
        // A packet seen by only one host has that host's times.
        let mut of_several: Vec<_> = traces.iter_mut().filter(|trace| trace.host_ids().len() > 1).collect();
        if !of_several.is_empty() {
            let clocks = Arc::new(Clocks::from_packets(self.crossings.make_contiguous()));
            of_several.iter_mut().for_each(|trace| trace.clocks = clocks.clone());
        }
        let is_long = |trace: &HostTrace| {
            let latency =
                Passed::total_latency(&journey_points(&trace.packet, &trace.clocks)).unwrap_or_default();
            // A dropped packet went no further.
            !trace.drops.is_empty() || latency.max(0) as u64 >= rule.least_latency_ns
        };
        traces.retain(is_long);
        traces.sort_by_key(|trace| (trace.first_sighting().time, trace.digest));
        let partial = traces.iter().filter(|trace| !trace.describe_missing().is_empty()).count();
        self.counters.without_path.fetch_add(partial as u64, Ordering::Relaxed);
        events.left_out = (all - traces.len()) as u64;
        events.events = traces;
        Ok(events)
    }
}

/// Takes the records that satisfy `is_due`.
fn take<R>(from: &mut Vec<PendingRecord<R>>, is_due: impl Fn(&R) -> bool) -> Vec<R> {
    let (due, waiting): (Vec<_>, Vec<_>) =
        std::mem::take(from).into_iter().partition(|one| is_due(&one.record));
    *from = waiting;
    due.into_iter().map(|one| one.record).collect()
}

impl PendingRecords {
    fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.drops.is_empty()
    }
}
