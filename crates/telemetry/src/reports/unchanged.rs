//! Reports that an XDP program drops because they say nothing new (`crates/link/ebpf/events.bpf.c`): what it may drop is
//! written here, and what it dropped is counted.
//!
//! The program decides nothing. A report that was found unchanged gets a template, and each last reported
//! value gets the interval that it may stay in. Both are written by the thread that reports, which is their
//! only writer. So the program knows what was reported, never what will be.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use dta_proto::counter::gaps::GapCounters;
use dta_proto::key::Key;
use dta_proto::telemetry::Metric;

use super::seen::SlotPlace;
use super::sources::SourceName;
use super::{ArrivalTime, EgressPortNames, FlowSum, HOP_PORT, PrimitiveBatch, Telemetry, Whose};
use crate::int::{IntReport, IntSettings, SlotName, TEMPLATE_WORDS, Template};

/// As in `events.bpf.c`: words of a slot, and places of a bucket.
const SLOT_WORDS: usize = 3;
const WAYS: usize = 4;
/// The count in a place of a bucket, and its other parts.
const COUNT: u64 = u32::MAX as u64;
const HASH_SHIFT: u32 = 40;
const VERSION_SHIFT: u32 = 32;
/// How often the dropped reports are collected, in nanoseconds.
const COLLECT_EVERY: u64 = 20_000_000;
/// A template gives its place to another if none of its reports was dropped for this long (nanoseconds).
const IDLE: u64 = 1_000_000_000;

/// Memory shared with the program.
pub type SharedWords = Box<dyn Deref<Target = [AtomicU64]> + Send + Sync>;

/// The program's tables, as `events.bpf.c` has them.
pub struct SharedTables {
    pub generation: SharedWords,
    pub buckets: SharedWords,
    pub templates: SharedWords,
    pub slots: SharedWords,
}

/// A sequence lock that the program reads.
struct Generation(SharedWords);

impl Generation {
    fn write(&self, change: impl FnOnce()) {
        if self.is_closed() {
            return change();
        }
        let word = &self.0[0];
        let even = word.load(Ordering::Relaxed);
        word.store(even.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        word.store(even.wrapping_add(2), Ordering::Release);
    }

    /// Leaves it odd, as if a write went on for ever.
    fn close(&self) {
        self.0[0].fetch_or(1, Ordering::AcqRel);
    }

    /// Between the writes of its only writer, it is even until it is closed.
    fn is_closed(&self) -> bool {
        self.0[0].load(Ordering::Relaxed) & 1 == 1
    }
}

/// The last reported values, for the program.
pub(super) struct SharedSlots {
    words: SharedWords,
    generation: Arc<Generation>,
    /// Nanoseconds from the rules' clock to the program's.
    clock: u64,
}

impl SharedSlots {
    pub(super) fn slot_at(&self, at: SlotPlace) -> Option<SlotName> {
        let word = self.words.get(at.index() * SLOT_WORDS + 2)?;
        Some(SlotName { index: at.index() as u32, tag: word.load(Ordering::Relaxed) as u32 })
    }

    /// Writes what was reported at this time, and the values that do not count as a change. `is_other` says
    /// whether templates that name the slot are wrong now.
    pub(super) fn write_slot(
        &mut self,
        at: SlotPlace,
        (first, last): (u64, u64),
        reported: u64,
        keep_alive: u64,
        is_other: bool,
    ) {
        let Some(words) =
            self.words.get(at.index() * SLOT_WORDS..).and_then(|words| words.first_chunk::<SLOT_WORDS>())
        else {
            return;
        };
        // Values of reports have 32 bits: a larger one is never unchanged.
        let most = u64::from(u32::MAX);
        let until = match keep_alive {
            _ if first > most => 0,
            0 => u64::MAX,
            _ => reported.saturating_add(keep_alive).saturating_add(self.clock),
        };
        let interval = first & most | (last.min(most) - first.min(most)) << 32;
        let tag = words[2].load(Ordering::Relaxed) as u32;
        self.generation.write(|| {
            words[0].store(interval, Ordering::Relaxed);
            words[1].store(until, Ordering::Relaxed);
            words[2].store(tag.wrapping_add(is_other.into()).into(), Ordering::Relaxed);
        });
    }
}

/// What a dropped report counts for.
#[derive(Clone, Copy, Default)]
pub(super) struct UnchangedKind {
    key: Key,
    /// Of the flow's sum.
    place: usize,
    suppressed: [u8; Metric::ALL.len()],
    /// When the last one was dropped.
    dropped: u64,
}

/// The templates of reports that the program may drop.
pub(super) struct Templates {
    buckets: SharedWords,
    templates: SharedWords,
    generation: Arc<Generation>,
    kinds: Box<[UnchangedKind]>,
    /// When to collect what was dropped.
    collect_at: u64,
}

impl Templates {
    /// Writes a template, unless it is there or other reports need all its places. Returns what was dropped
    /// under the template that it replaces.
    fn install(
        &mut self,
        template: &Template<'_>,
        listener: u32,
        kind: UnchangedKind,
    ) -> Option<(UnchangedKind, u32)> {
        let (hash, words) = (template.hash_for(listener)?, template.to_words(listener));
        let bucket = hash as u32 as usize & (self.buckets.len() / WAYS - 1);
        let places = bucket * WAYS..(bucket + 1) * WAYS;
        let part = |place: &usize| self.buckets[*place].load(Ordering::Relaxed);
        let own =
            places.clone().find(|place| part(place) != 0 && part(place) >> HASH_SHIFT == hash >> HASH_SHIFT);
        let is_idle = |place: &usize| self.kinds[*place].dropped.saturating_add(IDLE) <= kind.dropped;
        let place = own
            .or_else(|| places.clone().find(|place| part(place) == 0))
            .or_else(|| places.filter(is_idle).min_by_key(|place| self.kinds[*place].dropped))?;
        let target = self.templates.get(place * TEMPLATE_WORDS..(place + 1) * TEMPLATE_WORDS)?;
        // Words beyond the last operation are not read.
        let used = template.used_words();
        let is_there =
            || words.iter().zip(target).take(used).all(|(new, old)| *new == old.load(Ordering::Relaxed));
        if own.is_some() && self.kinds[place].key == kind.key && is_there() {
            return None;
        }
        let mut before = 0;
        self.generation.write(|| {
            before = self.buckets[place].swap(0, Ordering::AcqRel);
            for (new, old) in words.iter().zip(target).take(used) {
                old.store(*new, Ordering::Relaxed);
            }
            // Never 0, so that the place is never free again.
            let version = (before >> VERSION_SHIFT) as u8 % u8::MAX + 1;
            let part = hash >> HASH_SHIFT << HASH_SHIFT | u64::from(version) << VERSION_SHIFT;
            self.buckets[place].store(part, Ordering::Release);
        });
        Some((std::mem::replace(&mut self.kinds[place], kind), before as u32))
    }

    /// Hands out what was dropped since the last call.
    fn collect(&mut self, now: u64, mut count: impl FnMut(UnchangedKind, u32)) {
        self.collect_at = now.saturating_add(COLLECT_EVERY);
        for (place, kind) in self.buckets.iter().zip(&mut self.kinds) {
            if place.load(Ordering::Relaxed) & COUNT != 0 {
                kind.dropped = now;
                count(*kind, place.fetch_and(!COUNT, Ordering::AcqRel) as u32);
            }
        }
    }
}

impl Telemetry {
    /// Shares what is known with an XDP program, so that it may drop reports that say nothing new. `clock` is
    /// the number of nanoseconds from the clock of [`ArrivalTime::now`] to the kernel's monotonic one.
    pub fn share_with_program(&mut self, tables: SharedTables, clock: u64) {
        let SharedTables { generation, buckets, templates, slots } = tables;
        let generation = Arc::new(Generation(generation));
        self.seen.share_values(SharedSlots { words: slots, generation: Arc::clone(&generation), clock });
        let kinds = vec![UnchangedKind::default(); buckets.len()].into();
        self.templates = Some(Templates { buckets, templates, generation, kinds, collect_at: 0 });
    }

    /// Replaces the sequence number counts of an XDP program, and its count of datagrams of sources beyond its limit.
    pub fn set_program_sources(&mut self, sources: Vec<(SourceName, GapCounters)>, beyond: u64) {
        self.sources.set_program_sources(sources, beyond);
    }

    /// From now on the program passes all reports on, and still follows their numbers. So everything that it
    /// has dropped can be counted.
    pub fn stop_dropping(&mut self) {
        if let Some(templates) = &self.templates {
            templates.generation.close();
        }
    }

    /// Counts what the program dropped: at intervals, or at once if asked to or if it has stopped dropping.
    pub fn count_dropped_reports(&mut self, now: u64, at_once: bool, made: &mut PrimitiveBatch) {
        let Some(mut templates) = self.templates.take() else { return };
        if at_once || now >= templates.collect_at || templates.generation.is_closed() {
            templates.collect(now, |kind, dropped| self.count_unchanged(now, kind, dropped, made));
        }
        self.templates = Some(templates);
    }

    fn count_unchanged(&mut self, now: u64, kind: UnchangedKind, dropped: u32, made: &mut PrimitiveBatch) {
        let reports = u64::from(dropped);
        if reports == 0 {
            return;
        }
        let before = made.len();
        self.counters.datagrams += reports;
        self.counters.reports += reports;
        self.counters.unchanged += reports;
        for (all, own) in self.counters.suppressed.iter_mut().zip(kind.suppressed) {
            *all += reports * u64::from(own);
        }
        self.count_reports(now, FlowSum { key: kind.key, bytes: 0 }, kind.place, dropped, None, made);
        self.counters.primitives += (made.len() - before) as u64;
    }

    /// Lets the program drop reports like this one, which was unchanged.
    #[expect(clippy::too_many_arguments, reason = "all of one report, and no struct would be used twice")]
    pub(super) fn share_template(
        &mut self,
        at: ArrivalTime,
        listener: u32,
        payload: &[u8],
        report: &IntReport<'_>,
        whose: Whose<'_>,
        settings: &IntSettings,
        made: &mut PrimitiveBatch,
    ) {
        let stores = [self.stores.paths, self.stores.values, self.stores.events];
        let is_always_written = self.rules.metrics.iter().any(|rule| rule.on && rule.always);
        // Without a store, changes make nothing either; and with `per_packet`, the lengths of packets count.
        if self.templates.is_none() || stores.contains(&None) || is_always_written || self.rules.per_packet {
            return;
        }
        let mut kind = UnchangedKind {
            key: whose.key,
            place: whose.home.mixed_hash(),
            suppressed: [0; Metric::ALL.len()],
            dropped: at.now,
        };
        let Some(template) = self.build_template(payload, report, whose, settings, &mut kind.suppressed)
        else {
            return;
        };
        let replaced =
            self.templates.as_mut().and_then(|templates| templates.install(&template, listener, kind));
        if let Some((before, dropped)) = replaced {
            self.count_unchanged(at.now, before, dropped, made);
        }
    }

    /// The template of a report that was unchanged, as [`Telemetry::process_report`] judged it.
    fn build_template<'a>(
        &self,
        payload: &'a [u8],
        report: &IntReport<'_>,
        whose: Whose<'_>,
        settings: &IntSettings,
        suppressed: &mut [u8; Metric::ALL.len()],
    ) -> Option<Template<'a>> {
        let mut template = Template::from_report(payload, report, settings)?;
        let mut follow = |metric: Metric, name: &_| {
            suppressed[metric.index()] += 1;
            self.seen.shared_slot(name)
        };
        let rule = |metric: Metric| self.rules.metrics[metric.index()];
        let mut has_latency = true;
        for (switch, hop) in report.hops_with_switches() {
            template.add_hop_names(&hop)?;
            let latency = hop.node_latency();
            has_latency &= latency.is_some();
            let Some(switch) = switch else {
                template.add_latency(&hop, None)?;
                continue;
            };
            let port = hop.egress_port();
            let slot = match latency.filter(|_| rule(Metric::HopLatency).on) {
                Some(_) => Some(follow(Metric::HopLatency, &whose.hop_latency_name(switch))?),
                None => None,
            };
            template.add_latency(&hop, slot)?;
            if slot.is_none() && port.is_some() {
                template.add_state(self.seen.shared_slot(&whose.hop_value_name(HOP_PORT, switch))?)?;
            }
            let of_port = EgressPortNames::new(switch, port);
            let (queue, congestion) = (hop.queue_fill(), hop.congestion());
            if rule(Metric::QueueOccupancy).on {
                let name = of_port.queue_value_name(Metric::QueueOccupancy, queue.id);
                let slot = match queue.value {
                    Some(_) => Some(follow(Metric::QueueOccupancy, &name)?),
                    None => None,
                };
                template.add_queue(&hop, slot)?;
            }
            if rule(Metric::QueueCongestion).on {
                let name = of_port.queue_value_name(Metric::QueueCongestion, congestion.id);
                let slot = match congestion.value {
                    Some(_) => Some(follow(Metric::QueueCongestion, &name)?),
                    None => None,
                };
                template.add_congestion(&hop, slot)?;
            }
            if rule(Metric::LinkUtilization).on {
                let slot = match hop.utilization() {
                    Some(_) => Some(follow(Metric::LinkUtilization, &of_port.utilization_name())?),
                    None => None,
                };
                template.add_utilization(&hop, slot)?;
            }
        }
        if rule(Metric::FlowPath).on {
            template.add_state(follow(Metric::FlowPath, &whose.flow_value_name(Metric::FlowPath as u8))?)?;
        }
        if has_latency && rule(Metric::FlowLatency).on {
            let name = whose.flow_value_name(Metric::FlowLatency as u8);
            template.add_flow_latency(follow(Metric::FlowLatency, &name)?)?;
        }
        Some(template)
    }
}
