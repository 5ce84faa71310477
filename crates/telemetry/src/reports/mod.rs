//! Turns what switches and routers report of their traffic into primitives, by rules: INT Telemetry Reports (`int.rs`) and
//! flow records of other exporters (`records.rs`). Rules, keys, change detection and counts are the same for both.
//!
//! [`Telemetry`] is pure: a datagram's bytes and the time go in, primitives come out in a [`PrimitiveBatch`]. What was last
//! reported for each key is remembered in bounded, preallocated memory (`seen`, `trails.rs`), so that only
//! what is new, changed or due for its keep-alive is written. `dta_proto::telemetry` defines the keys, values
//! and entries.
//!
//! | report | primitive |
//! |---|---|
//! | path of a flow through a stack | key-write of the path; an entry of list 0 when it changes, and another
//! if it has a loop |
//! | a switch that reports for itself (INT-XD, INT-MX) | postcards of the path known so far, when a switch is added and at each keep-alive |
//! | flow latency, hop latency, queues, links | key-write of the value; an entry of list 0 |
//! | a dropped packet | an entry of list 1; counters of switch and reason, and of flow and reason |
//! | a packet in a congested queue | an entry of list 2 |
//! | a key that is new or due for its keep-alive | an entry of list 3, the key directory |
//! | every report of a flow | a counter of the flow's reports; with `per_packet`, of its packets and bytes |
//!
//! Counts are summed before they are written (`tallies.rs`).

mod counters;
mod int;
mod made;
mod prefetch;
mod records;
mod rules;
mod seen;
mod sources;
mod tallies;
#[cfg(test)]
mod tests;
mod trails;
mod transit;
mod unchanged;
mod watch;

use dta_proto::counter::translator as names;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::store::MAX_REDUNDANCY;
use dta_proto::telemetry::{
    self, Location, Means, Metric, SwitchPath, TelemetryEntry, TimedValue, Via, Why, list,
};

use crate::int::Time;

pub use counters::{IntCounters, IntReason};
pub use made::PrimitiveBatch;
pub use records::{RecordCounters, RecordRoom, RecordStore};
pub use rules::{MetricRule, Rules, StoreIds, TimeMode};
pub use seen::Detect;
pub use sources::{SourceName, Sources};
pub use unchanged::{SharedTables, SharedWords};
pub use watch::{WatchError, WatchRule};

use seen::{Home, ReportedValues, ValueName, Verdict};
use tallies::{FlowTallies, PendingTally};
use trails::{Heard, Trails};
use unchanged::Templates;

/// Maximum number of operations that a sum becomes on one queue pair: three counters, each in all its copies.
const OPERATIONS: usize = 3 * MAX_REDUNDANCY as usize;
/// Kinds of keys in the table: metrics use their own numbers, these the ones after.
const DROP_COUNTER: u8 = 16;
const FLOW_DROP_COUNTER: u8 = 17;
const TRAIL: u8 = 18;
/// The port by which a flow leaves a switch, if no latency entry can hold it.
const HOP_PORT: u8 = 19;
/// What an interface has counted, and its name.
const INTERFACE_COUNTER: u8 = 20;
const INTERFACE_NAME: u8 = 21;
/// Queues of a port that are stored beside its link.
const BESIDE: u32 = 16;
/// Added to the kind if the flow is IPv6 and its bits in the key are CRCs.
const OF_IPV6: u8 = 0x80;
/// Added to the kind if the switch has more than 24 bits.
const OF_LONG_SWITCH: u8 = 0x40;

pub struct Telemetry {
    rules: Rules,
    stores: StoreIds,
    seen: ReportedValues,
    trails: Trails,
    tallies: FlowTallies<FlowSum>,
    sources: Sources,
    /// Present if an XDP program drops unchanged reports.
    templates: Option<Templates>,
    counters: IntCounters,
    records: RecordCounters,
    record_store: RecordStore,
    room: RecordRoom,
}

/// The reports of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct FlowSum {
    key: Key,
    bytes: u64,
}

/// Both clocks at a datagram's arrival, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivalTime {
    /// Monotonic, from any fixed point.
    pub now: u64,
    /// Since 1970.
    pub wall: u64,
}

/// An egress port of a switch, which names its queues and its link.
#[derive(Clone, Copy)]
struct EgressPortNames {
    number: u128,
    home: Home,
}

impl EgressPortNames {
    /// An unavailable port or queue is all ones.
    #[inline]
    fn new(switch: u32, port: Option<u32>) -> EgressPortNames {
        let number = u128::from(switch) << 64 | u128::from(port.unwrap_or(u32::MAX)) << 32;
        EgressPortNames { number, home: Home::from_key(number) }
    }

    /// The name of its link's utilisation.
    #[inline]
    fn utilization_name(&self) -> ValueName {
        self.home.flow_value_name(Metric::LinkUtilization as u8, self.number)
    }

    /// The name of a value of one of its queues. The first few are stored beside the link, where more would
    /// not fit.
    #[inline]
    fn queue_value_name(&self, metric: Metric, queue: Option<u32>) -> ValueName {
        let queue = queue.unwrap_or(u32::MAX);
        let number = self.number | u128::from(queue);
        match queue {
            0..BESIDE => self.home.hop_value_name(metric as u8, number, queue),
            _ => ValueName::without_flow(metric as u8, number),
        }
    }
}

/// A value to write or report, with everything known about it.
struct ValueReport {
    metric: Metric,
    verdict: Verdict,
    value: u64,
    time: Option<Time>,
    key: Key,
    place: Location,
    means: Means,
    path: Option<Via>,
}

/// A flow's key, and where its values are in the table.
#[derive(Clone, Copy)]
struct Named {
    key: Key,
    /// The key as a number.
    number: u128,
    home: Home,
}

impl Named {
    #[inline]
    fn from_flow(flow: &Flow) -> Named {
        let key = flow.to_key();
        let number = u128::from_be_bytes(key.0);
        Named { key, number, home: Home::from_key(number) }
    }
}

/// The flow of a report, by its names. It is not copied from the report, which would cost more than reading
/// it in place.
#[derive(Clone, Copy)]
struct Whose<'a> {
    flow: &'a Flow,
    key: Key,
    number: u128,
    home: Home,
}

impl<'a> Whose<'a> {
    #[inline]
    fn new(flow: &'a Flow, named: Named) -> Whose<'a> {
        let Named { key, number, home } = named;
        Whose { flow, key, number, home }
    }

    /// The name of a value of the flow itself.
    #[inline]
    fn flow_value_name(&self, kind: u8) -> ValueName {
        self.home.flow_value_name(kind, self.number)
    }

    /// The name of a hop's latency.
    #[inline]
    fn hop_latency_name(&self, switch: u32) -> ValueName {
        self.hop_value_name(Metric::HopLatency as u8, switch)
    }

    /// The name of a hop's value: the flow's key with the switch in place of its last three bytes, which only
    /// distinguish IPv4 from IPv6; here the kind does that. A switch of more than 24 bits does not fit, so
    /// its hop is named by its own key.
    #[inline]
    fn hop_value_name(&self, kind: u8, switch: u32) -> ValueName {
        if switch >= 1 << 24 {
            let key = telemetry::hop_latency_key(self.flow, switch);
            return self.home.hop_value_name(kind | OF_LONG_SWITCH, u128::from_be_bytes(key.0), switch);
        }
        let family = if self.number as u8 == 0 { 0 } else { OF_IPV6 };
        let ident = self.number & !0x00ff_ffff | u128::from(switch);
        self.home.hop_value_name(kind | family, ident, switch)
    }
}

impl Telemetry {
    /// Allocates the memory that the rules ask for.
    pub fn new(rules: Rules) -> Telemetry {
        Telemetry {
            seen: ReportedValues::new(rules.keys),
            trails: Trails::new(rules.trails),
            tallies: FlowTallies::new(
                if rules.gathers_counts() { rules.keys / 2 } else { 0 },
                rules.count_wait,
            ),
            sources: Sources::new(rules.sources),
            templates: None,
            counters: IntCounters::default(),
            records: RecordCounters::default(),
            record_store: RecordStore::default(),
            room: RecordRoom::default(),
            stores: StoreIds::default(),
            rules,
        }
    }

    /// Sets the stores. Nothing is made for a missing one.
    pub fn set_stores(&mut self, stores: StoreIds) {
        self.stores = stores;
    }

    pub fn int_counters(&self) -> &IntCounters {
        &self.counters
    }

    /// The senders, and how many of their datagrams are missing.
    pub fn int_sources(&self) -> &Sources {
        &self.sources
    }

    /// Every counter by its dotted name.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let mut list = self.counters.named_counters();
        let sources = self.sources.sum();
        let more = [
            (&names::INT_GAPS, sources.gaps),
            (&names::INT_GAPS_FILLED, sources.gaps_filled),
            (&names::INT_REPEATS, sources.repeats),
            (&names::INT_RESTARTS, sources.restarts),
            (&names::INT_SOURCES, self.sources.iter().count() as u64),
            (&names::INT_SOURCES_BEYOND, self.sources.datagrams_beyond_limit()),
            (&names::INT_KEYS, self.seen.held_keys()),
            (&names::INT_COUNTS_HELD, self.tallies.held_reports()),
            (&names::INT_EVICTED, self.seen.evicted_keys() + self.trails.evicted_flows()),
        ];
        list.extend(more.map(|(name, count)| (name.format_name(&[]), count)));
        list
    }

    #[inline]
    fn is_watched(&self, flow: &Flow) -> bool {
        self.rules.watch.is_empty() || self.rules.watch.iter().any(|watch| watch.includes_flow(flow))
    }

    /// Reports a dropped packet, and counts it by switch and by flow.
    #[expect(clippy::too_many_arguments, reason = "all of one drop, and no struct would be used twice")]
    fn report_packet_drop(
        &mut self,
        at: ArrivalTime,
        time: u64,
        whose: Option<Whose<'_>>,
        place: Location,
        ingress_port: Option<u32>,
        reason: DropReason,
        made: &mut PrimitiveBatch,
    ) {
        let key = whose.map_or(Key::default(), |whose| whose.key);
        self.append_event(
            list::DROPS,
            &TelemetryEntry::Drop { time, key, place, ingress_port, reason },
            made,
        );
        if let Some(switch) = place.switch {
            let key = telemetry::drops_key(switch, reason);
            made.increment(self.stores.counters, key, 1);
            self.add_directory_key(at, DROP_COUNTER, key, Means::Itself, made);
        }
        if let Some(whose) = whose {
            let key = telemetry::flow_drops_key(whose.flow, reason);
            made.increment(self.stores.counters, key, 1);
            // The reason is stored in place of the switch's number.
            self.add_directory_key(at, FLOW_DROP_COUNTER, key, Means::Hop(whose.key, reason.to_bits()), made);
        }
    }

    /// Judges a value by its rule; `None` if there is nothing to do.
    #[inline(always)] // on the path of every value: most end here
    fn apply_metric_rule(
        &mut self,
        metric: Metric,
        name: &ValueName,
        value: u64,
        now: u64,
    ) -> Option<Verdict> {
        let rule = &self.rules.metrics[metric.index()];
        if !rule.on {
            return None;
        }
        let verdict = self.seen.detect_change(name, value, now, rule.detect, rule.keep_alive);
        if verdict == Verdict::Same {
            self.counters.suppressed[metric.index()] += 1;
            if !rule.always {
                return None;
            }
        }
        Some(verdict)
    }

    /// Writes and reports a hop's latency, if it has one. Adds the flow's egress port at the switch to the
    /// key directory if the hop is new or the port changed.
    #[expect(clippy::too_many_arguments, reason = "all of one hop, and no struct would be used twice")]
    #[inline(never)]
    fn report_hop_latency(
        &mut self,
        at: ArrivalTime,
        whose: Whose<'_>,
        latency: Option<(u64, Verdict)>,
        place: Location,
        time: Option<Time>,
        moved: bool,
        made: &mut PrimitiveBatch,
    ) {
        let switch = place.switch.unwrap_or(u32::MAX);
        let key = telemetry::hop_latency_key(whose.flow, switch);
        let means =
            Means::Leaves { flow: whose.key, switch, port: place.port, time: self.value_timestamp(at, time) };
        let verdict = latency.map(|(_, verdict)| verdict);
        if let Some((value, verdict)) = latency
            && (verdict != Verdict::Same || self.rules.metrics[Metric::HopLatency.index()].always)
        {
            let metric = Metric::HopLatency;
            self.report_value(
                at,
                &ValueReport { metric, verdict, value, time, key, place, means, path: None },
                made,
            );
        }
        // A new or kept-alive value gets its key into the directory.
        if moved && !matches!(verdict, Some(Verdict::New | Verdict::KeepAlive(_))) {
            self.append_event(list::KEYS, &TelemetryEntry::Key { key, means }, made);
        }
    }

    /// Writes a value, and makes its event if one is due.
    #[inline(never)]
    fn report_value(&mut self, at: ArrivalTime, report: &ValueReport, made: &mut PrimitiveBatch) {
        let ValueReport { metric, verdict, value, time, key, place, means, path } = *report;
        let time = self.value_timestamp(at, time);
        let written = TimedValue { value: value.min(u32::MAX.into()) as u32, time };
        made.key_write(self.stores.values, key, &written.to_bytes());
        let (why, old) = match verdict {
            Verdict::Same => return,
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old),
        };
        let new = value;
        self.append_event(
            list::CHANGES,
            &TelemetryEntry::Change { time, key, metric, why, old, new, place, path },
            made,
        );
        if why != Why::Moved {
            self.append_event(list::KEYS, &TelemetryEntry::Key { key, means }, made);
        }
    }

    /// The path of a flow through a stack.
    fn process_path(
        &mut self,
        at: ArrivalTime,
        time: Option<Time>,
        whose: Whose<'_>,
        switches: &[u32],
        made: &mut PrimitiveBatch,
    ) {
        let name = whose.flow_value_name(Metric::FlowPath as u8);
        let Some(verdict) = self.apply_metric_rule(Metric::FlowPath, &name, path_digest(switches), at.now)
        else {
            return;
        };
        self.report_path(at, time, whose, switches, verdict, made);
    }

    /// Writes a path, and makes its event if one is due.
    #[inline(never)]
    fn report_path(
        &mut self,
        at: ArrivalTime,
        time: Option<Time>,
        whose: Whose<'_>,
        switches: &[u32],
        verdict: Verdict,
        made: &mut PrimitiveBatch,
    ) {
        let path = SwitchPath::from_switches(switches);
        made.key_write_of(self.stores.paths, whose.key, &path.to_bytes());
        let (why, old) = match verdict {
            Verdict::Same => return,
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old & 0xff),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old & 0xff),
        };
        let time = self.value_timestamp(at, time);
        let new = u64::from(path.looped) << 8 | u64::from(path.hops);
        let change = |why| TelemetryEntry::Change {
            time,
            key: whose.key,
            metric: Metric::FlowPath,
            why,
            old,
            new,
            place: Location::default(),
            path: Some(Via::from_path(&path)),
        };
        self.append_event(list::CHANGES, &change(why), made);
        if path.looped && why != Why::KeepAlive {
            self.append_event(list::CHANGES, &change(Why::Loop), made);
        }
        if why != Why::Moved {
            self.append_event(
                list::KEYS,
                &TelemetryEntry::Key { key: whose.key, means: means_flow(whose.flow) },
                made,
            );
        }
    }

    /// Processes a flow's report by a switch that reports for itself: on the path, it comes after those that
    /// reported before. A path that grows while it is being learned has not changed.
    fn process_trail(&mut self, at: ArrivalTime, whose: Whose<'_>, switch: u32, made: &mut PrimitiveBatch) {
        let rule = self.rules.metrics[Metric::FlowPath.index()];
        if !rule.on || self.stores.postcards.is_none() {
            return;
        }
        let (switches, settled) = match self.trails.record_switch_report(whose.key, switch, at.now) {
            Heard::Full => {
                self.counters.long_trails += 1;
                return;
            }
            Heard::Known(switches) => (switches, true),
            Heard::Added(switches, since) => (switches, since >= self.rules.learning),
        };
        let (summary, hops) = (path_digest(switches), switches.len() as u64);
        let verdict = self.seen.detect_change(
            &whose.flow_value_name(TRAIL),
            summary,
            at.now,
            Detect::Any,
            rule.keep_alive,
        );
        let (why, old) = match verdict {
            Verdict::Same => {
                self.counters.suppressed[Metric::FlowPath.index()] += 1;
                return;
            }
            Verdict::New => (Why::New, 0),
            // A trail that was evicted and starts over is learned again, too.
            Verdict::Changed(old) if !settled => (Why::Learning, old & 0xff),
            Verdict::Changed(old) => (Why::Moved, old & 0xff),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old & 0xff),
        };
        let path = Some(Via::from_path(&SwitchPath::from_switches(switches)));
        made.postcards(self.stores.postcards, whose.key, switches);
        let time = self.value_timestamp(at, None);
        let place = Location { switch: Some(switch), ..Location::default() };
        let metric = Metric::FlowPath;
        let entry = TelemetryEntry::Change { time, key: whose.key, metric, why, old, new: hops, place, path };
        self.append_event(list::CHANGES, &entry, made);
        if !matches!(why, Why::Moved | Why::Learning) {
            self.append_event(
                list::KEYS,
                &TelemetryEntry::Key { key: whose.key, means: means_flow(whose.flow) },
                made,
            );
        }
    }

    /// Writes the counters of a flow.
    fn increment_counters(&self, sum: FlowSum, reports: u32, flow: Option<&Flow>, made: &mut PrimitiveBatch) {
        let store = self.stores.counters;
        if self.rules.count_reports {
            made.increment(store, sum.key, reports.into());
        }
        if let (true, Some(flow)) = (self.rules.per_packet, flow.copied().or_else(|| sum.key.to_ipv4_flow()))
        {
            made.increment(store, telemetry::packets_key(&flow), reports.into());
            made.increment(store, telemetry::bytes_key(&flow), sum.bytes);
        }
    }

    /// Writes the flow counts that have waited long enough or that a [`request_flush`](Telemetry::request_flush) asked for, as far as there is
    /// `room` for operations on each queue pair. Call it in each turn, even without input.
    pub fn write_due_counts(&mut self, now: u64, room: usize, made: &mut PrimitiveBatch) {
        if self.stores.counters.is_none() {
            return;
        }
        let most = room / OPERATIONS;
        let before = made.len();
        let mut tallies = std::mem::take(&mut self.tallies);
        tallies.take_due_sums(now, most, |PendingTally { sum, reports, .. }| {
            self.increment_counters(sum, reports, None, made)
        });
        self.tallies = tallies;
        self.counters.primitives += (made.len() - before) as u64;
    }

    /// Makes all waiting counts due: the next calls of [`Telemetry::write_due_counts`] write them.
    pub fn request_flush(&mut self) {
        self.tallies.request_flush();
    }

    /// Whether counts of that flush still wait. Without a store for them, nobody has to wait for them.
    pub fn is_flushing(&self) -> bool {
        self.stores.counters.is_some() && self.tallies.is_flushing()
    }

    /// Adds a key to the directory if it is new or due for its keep-alive.
    fn add_directory_key(
        &mut self,
        at: ArrivalTime,
        kind: u8,
        key: Key,
        means: Means,
        made: &mut PrimitiveBatch,
    ) {
        let keep_alive = self.rules.metrics[Metric::FlowPath.index()].keep_alive;
        let name = ValueName::without_flow(kind, u128::from_be_bytes(key.0));
        if self.seen.detect_change(&name, 0, at.now, Detect::Any, keep_alive) != Verdict::Same {
            self.append_event(list::KEYS, &TelemetryEntry::Key { key, means }, made);
        }
    }

    fn append_event(&mut self, list: u32, entry: &TelemetryEntry, made: &mut PrimitiveBatch) {
        if self.stores.events.is_some() {
            self.counters.events += 1;
            made.append_entry(self.stores.events, list, &entry.to_bytes());
        }
    }

    /// The time to write beside a value.
    fn value_timestamp(&self, at: ArrivalTime, time: Option<Time>) -> u64 {
        match (self.rules.time, time) {
            (TimeMode::Arrival, _) | (_, None) => at.wall,
            (TimeMode::Raw, Some(time)) => time.raw_number(),
            (TimeMode::Switch, Some(Time::Long(time))) => time,
            (TimeMode::Switch, Some(Time::Short(time))) => {
                let behind = (at.wall as u32).wrapping_sub(time) as i32;
                at.wall.saturating_add_signed(-i64::from(behind))
            }
        }
    }
}

/// The key directory's description of a flow.
fn means_flow(flow: &Flow) -> Means {
    if flow.src.is_ipv4() && flow.dst.is_ipv4() { Means::Itself } else { Means::Flow(*flow) }
}

/// A path in 64 bits: its hop count in the low 8, and 56 hashed bits of the switches.
#[inline]
fn path_digest(switches: &[u32]) -> u64 {
    let mixed = switches.iter().fold(0, |mixed: u64, switch| seen::mix_to_u64(mixed, u64::from(*switch) + 1));
    mixed & !0xff | switches.len() as u64 & 0xff
}
