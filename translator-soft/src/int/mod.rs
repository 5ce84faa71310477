//! From Telemetry Reports of INT to primitives, by rules.
//!
//! [`Int`] is pure: a datagram's bytes and the time go in, primitives come out in a [`Made`]. What was told of
//! which key is remembered in memory that is bounded and taken once ([`seen`], `trails.rs`), so that only what is new,
//! changed, or due for its keep-alive is written and told. `dta_proto::telemetry` has the keys, values and entries.
//!
//! | of a report | primitive |
//! |---|---|
//! | path of a flow through a stack | key-write of the path; an entry of list 0 when it changes, and one when it has a loop |
//! | a switch that reports for itself | postcards of the path heard of so far, when a switch is added, and with the keep-alive |
//! | flow latency, hop latency, queues, links | key-write of the value; an entry of list 0 |
//! | a dropped packet | an entry of list 1; counters of switch and reason, and of flow and reason |
//! | a packet in a congested queue | an entry of list 2 |
//! | a key that is new or due for its keep-alive | an entry of list 3, the key directory |
//! | every report of a flow | a counter of the flow's reports; with `per_packet`, of its packets and bytes |

mod counters;
mod made;
mod rules;
mod seen;
mod sources;
#[cfg(test)]
mod tests;
mod trails;
mod watch;

use std::net::Ipv4Addr;

use dta_proto::counter::translator as names;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Entry, Means, Metric, Path, Place, Value, Why, list};
use dta_proto::wire::int::{self, Metadata, Packet, Report, Settings, Time};

pub use counters::{IntCounters, IntReason};
pub use made::Made;
pub use rules::{MetricRule, Rules, StoreIds, TimeMode};
pub use seen::Detect;
pub use sources::{SourceCounters, SourceName, Sources};
pub use watch::{Watch, WatchError};

use seen::{Seen, Verdict};
use trails::{Heard, Trails};

/// Hops of one report that are looked at: more do not fit into the longest stack with anything beside
/// their numbers.
const MOST_HOPS: usize = 64;
/// Kinds of keys in the table of what was told: metrics have their numbers, these the ones behind.
const DROP_COUNTER: u8 = 16;
const FLOW_DROP_COUNTER: u8 = 17;
const TRAIL: u8 = 18;
/// Added to the kind where the flow is of IPv6, and its bits in the key are CRCs.
const OF_IPV6: u8 = 0x80;

/// Turns reports into primitives.
pub struct Int {
    rules: Rules,
    stores: StoreIds,
    seen: Seen,
    trails: Trails,
    sources: Sources,
    counters: IntCounters,
}

/// Both clocks at the arrival of a datagram, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// From any fixed point; never goes back.
    pub now: u64,
    /// Since 1970.
    pub wall: u64,
}

/// What became of a report that was taken.
enum Outcome {
    NotWatched,
    Unchanged,
    Changed,
}

/// The flow of a report, and its key.
#[derive(Clone, Copy)]
struct Whose {
    flow: Flow,
    key: Key,
}

impl Int {
    /// Takes the memory that the rules ask for.
    pub fn new(rules: Rules) -> Int {
        Int {
            seen: Seen::new(rules.keys),
            trails: Trails::new(rules.trails),
            sources: Sources::new(rules.sources),
            counters: IntCounters::default(),
            stores: StoreIds::default(),
            rules,
        }
    }

    /// Names the stores. What has none is not made.
    pub fn set_stores(&mut self, stores: StoreIds) {
        self.stores = stores;
    }

    /// What is counted.
    pub fn counters(&self) -> &IntCounters {
        &self.counters
    }

    /// Who sent, and what of it is missing.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Every counter under its dotted name.
    pub fn named(&self) -> Vec<(String, u64)> {
        let mut list = self.counters.named();
        let sources = self.sources.sum();
        let more = [
            (&names::INT_GAPS, sources.gaps),
            (&names::INT_GAPS_FILLED, sources.gaps_filled),
            (&names::INT_REPEATS, sources.repeats),
            (&names::INT_RESTARTS, sources.restarts),
            (&names::INT_SOURCES, self.sources.iter().count() as u64),
            (&names::INT_SOURCES_BEYOND, self.sources.beyond()),
            (&names::INT_KEYS, self.seen.held()),
            (&names::INT_EVICTED, self.seen.evicted() + self.trails.evicted()),
        ];
        list.extend(more.map(|(name, count)| (name.of(&[]), count)));
        list
    }

    /// Takes the payload of a datagram that came from an address. What is made of it is added to `made`.
    pub fn ingest(
        &mut self,
        at: Arrival,
        from: Ipv4Addr,
        payload: &[u8],
        settings: &Settings,
        made: &mut Made,
    ) {
        self.counters.datagrams += 1;
        let reports = match int::reports(payload, settings) {
            Ok(reports) => reports,
            Err(error) => {
                self.counters.reports += 1;
                self.counters.drop_one(IntReason::of(&error));
                return;
            }
        };
        self.sources.note(from, &reports.source());
        for report in reports {
            self.counters.reports += 1;
            let before = made.len();
            let outcome = report.map_err(|error| IntReason::of(&error));
            match outcome.and_then(|report| self.report(at, &report, made)) {
                Err(reason) => self.counters.drop_one(reason),
                Ok(Outcome::NotWatched) => self.counters.not_watched += 1,
                Ok(Outcome::Unchanged) => self.counters.unchanged += 1,
                Ok(Outcome::Changed) => self.counters.changed += 1,
            }
            self.counters.primitives += (made.len() - before) as u64;
        }
    }

    /// Takes one report.
    fn report(&mut self, at: Arrival, report: &Report<'_>, made: &mut Made) -> Result<Outcome, IntReason> {
        let before = made.len();
        let dropped = report.flags.dropped || report.local.drop_reason().is_some();
        let whose = match &report.packet {
            Ok(packet) => {
                let flow = packet.inner_flow();
                if !self.rules.watch.is_empty() && !self.rules.watch.iter().any(|watch| watch.admits(&flow)) {
                    return Ok(Outcome::NotWatched);
                }
                Some(Whose { flow, key: flow.key() })
            }
            // What is said of a drop or queue is good without the packet.
            Err(_) if dropped || report.local.is_hop() => None,
            Err(error) => return Err(IntReason::of(error)),
        };
        if dropped {
            self.drop_report(at, report, whose, made);
        } else if report.flags.congested {
            self.congestion(at, report, whose, made);
        }
        self.hops(at, report, whose, made);
        let outcome = if made.len() == before { Outcome::Unchanged } else { Outcome::Changed };
        if let (Some(whose), Ok(packet)) = (whose, &report.packet) {
            self.count_flow(whose, packet, made);
        }
        Ok(outcome)
    }

    fn drop_report(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose>, made: &mut Made) {
        let local = &report.local;
        let reason = local.drop_reason().unwrap_or(0);
        let time = self.moment(at, local.ingress_time());
        let queue = local.drop_queue().map(u32::from);
        let place = Place { switch: report.switch, port: local.egress_port(), queue };
        let key = whose.map_or(Key::default(), |whose| whose.key);
        let entry = Entry::Drop { time, key, place, ingress_port: local.ingress_port(), reason };
        self.event(list::DROPS, &entry, made);
        if let Some(switch) = report.switch {
            let key = telemetry::drops_key(switch, reason);
            made.increment(self.stores.counters, key, 1);
            self.tell_key(at, DROP_COUNTER, key, Means::Itself, made);
        }
        if let Some(whose) = whose {
            let key = telemetry::flow_drops_key(&whose.flow, reason);
            made.increment(self.stores.counters, key, 1);
            // The reason is told where a switch's number would be.
            self.tell_key(at, FLOW_DROP_COUNTER, key, Means::Hop(whose.key, reason.into()), made);
        }
    }

    fn congestion(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose>, made: &mut Made) {
        let local = &report.local;
        let time = self.moment(at, local.egress_time().or(local.ingress_time()));
        let queue = local.queue();
        let place = Place { switch: report.switch, port: local.egress_port(), queue: queue.id };
        let latency = local.latency().map(|latency| latency.min(u64::from(u32::MAX) - 1) as u32);
        let key = whose.map_or(Key::default(), |whose| whose.key);
        let entry = Entry::Congestion { time, key, place, occupancy: queue.value, latency };
        self.event(list::CONGESTION, &entry, made);
    }

    /// What each hop says, and the path and latency of the flow through them.
    fn hops(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose>, made: &mut Made) {
        let mut path = [0; MOST_HOPS];
        // Newest first: the path is filled from its end.
        let mut first = MOST_HOPS;
        let mut latency = Some(0u64);
        for (switch, hop) in report.hops().take(MOST_HOPS) {
            first -= 1;
            path[first] = switch.unwrap_or(u32::MAX);
            let of_hop = hop.latency();
            latency = latency.zip(of_hop).map(|(sum, latency)| sum.saturating_add(latency));
            if let Some(switch) = switch {
                self.hop(at, report, whose, switch, &hop, of_hop, made);
            }
        }
        let (Some(whose), path) = (whose, &path[first..]) else { return };
        let time = report.local.ingress_time();
        if report.stack().is_some() && !path.is_empty() {
            self.path(at, time, whose, path, made);
            if let Some(latency) = latency {
                let place = Place::default();
                self.value(
                    at,
                    time,
                    Metric::FlowLatency,
                    ident(whose.key),
                    || whose.key,
                    latency,
                    place,
                    made,
                    || means_flow(&whose.flow),
                );
            }
        } else if let ([switch], true) = (path, report.flags.tracked) {
            self.trail(at, whose, *switch, made);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of one hop, and no struct would be used twice")]
    #[inline]
    fn hop(
        &mut self,
        at: Arrival,
        report: &Report<'_>,
        whose: Option<Whose>,
        switch: u32,
        hop: &Metadata<'_>,
        latency: Option<u64>,
        made: &mut Made,
    ) {
        let time = hop.egress_time().or(report.local.ingress_time());
        let port = hop.egress_port();
        let place = Place { switch: Some(switch), port, queue: None };
        if let (Some(whose), Some(latency)) = (whose, latency) {
            let (kind, ident) = hop_ident(&whose, switch);
            let key = || telemetry::hop_latency_key(&whose.flow, switch);
            let means = || Means::Hop(whose.key, switch);
            self.value(at, time, Metric::HopLatency, (kind, ident), key, latency, place, made, means);
        }
        let number = |number: Option<u32>| u128::from(number.unwrap_or(u32::MAX));
        let of_port = u128::from(switch) << 64 | number(port) << 32;
        let queue = hop.queue();
        if let Some(occupancy) = queue.value {
            let key = || telemetry::queue_occupancy_key(switch, port, queue.id);
            let ident = (0, of_port | number(queue.id));
            let place = Place { queue: queue.id, ..place };
            let means = || Means::Itself;
            self.value(at, time, Metric::QueueOccupancy, ident, key, occupancy.into(), place, made, means);
        }
        let congestion = hop.congestion();
        if let Some(status) = congestion.value {
            let key = || telemetry::queue_congestion_key(switch, port, congestion.id);
            let ident = (0, of_port | number(congestion.id));
            let place = Place { queue: congestion.id, ..place };
            let means = || Means::Itself;
            self.value(at, time, Metric::QueueCongestion, ident, key, status.into(), place, made, means);
        }
        if let Some(utilization) = hop.utilization() {
            let key = || telemetry::link_utilization_key(switch, port);
            let ident = (0, of_port);
            self.value(
                at,
                time,
                Metric::LinkUtilization,
                ident,
                key,
                utilization.into(),
                place,
                made,
                || Means::Itself,
            );
        }
    }

    /// Judges a value, and writes and tells what it is to become. `ident` names the key to the table of what was told;
    /// the key itself is made only when it is needed.
    #[expect(clippy::too_many_arguments, reason = "one value with all that is known of it")]
    #[inline]
    fn value(
        &mut self,
        at: Arrival,
        time: Option<Time>,
        metric: Metric,
        (kind, ident): (u8, u128),
        key: impl Fn() -> Key,
        value: u64,
        place: Place,
        made: &mut Made,
        means: impl Fn() -> Means,
    ) {
        let rule = self.rules.metrics[metric.index()];
        if !rule.on {
            return;
        }
        let kind = kind | metric as u8;
        let verdict = self.seen.judge(kind, ident, value, at.now, rule.detect, rule.keep_alive);
        if verdict == Verdict::Same {
            self.counters.suppressed[metric.index()] += 1;
            if !rule.always {
                return;
            }
        }
        let (key, time) = (key(), self.moment(at, time));
        let written = Value { value: value.min(u32::MAX.into()) as u32, time };
        made.key_write(self.stores.values, key, &written.bytes());
        let (why, old) = match verdict {
            Verdict::Same => return,
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old),
        };
        self.event(list::CHANGES, &Entry::Change { time, key, metric, why, old, new: value, place }, made);
        if why != Why::Moved {
            self.event(list::KEYS, &Entry::Key { key, means: means() }, made);
        }
    }

    /// The path of a flow through a stack.
    fn path(&mut self, at: Arrival, time: Option<Time>, whose: Whose, switches: &[u32], made: &mut Made) {
        let rule = self.rules.metrics[Metric::FlowPath.index()];
        if !rule.on {
            return;
        }
        let (kind, ident) = ident(whose.key);
        let kind = kind | Metric::FlowPath as u8;
        let verdict = self.seen.judge(kind, ident, summary(switches), at.now, Detect::Any, rule.keep_alive);
        if verdict == Verdict::Same {
            self.counters.suppressed[Metric::FlowPath.index()] += 1;
            if !rule.always {
                return;
            }
        }
        let path = Path::of(switches);
        made.key_write(self.stores.paths, whose.key, &path.bytes());
        let (why, old) = match verdict {
            Verdict::Same => return,
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old & 0xff),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old & 0xff),
        };
        let time = self.moment(at, time);
        let new = u64::from(path.looped) << 8 | u64::from(path.hops);
        let change = |why| Entry::Change {
            time,
            key: whose.key,
            metric: Metric::FlowPath,
            why,
            old,
            new,
            place: Place::default(),
        };
        self.event(list::CHANGES, &change(why), made);
        if path.looped && why != Why::KeepAlive {
            self.event(list::CHANGES, &change(Why::Loop), made);
        }
        if why != Why::Moved {
            self.event(list::KEYS, &Entry::Key { key: whose.key, means: means_flow(&whose.flow) }, made);
        }
    }

    /// A switch that reports a flow for itself: where it stands on the path is known by when it was first heard.
    fn trail(&mut self, at: Arrival, whose: Whose, switch: u32, made: &mut Made) {
        let rule = self.rules.metrics[Metric::FlowPath.index()];
        if !rule.on || self.stores.postcards.is_none() {
            return;
        }
        let switches = match self.trails.hear(whose.key, switch, at.now) {
            Heard::Full => {
                self.counters.long_trails += 1;
                return;
            }
            Heard::Known(switches) | Heard::Added(switches) => switches,
        };
        let (kind, ident) = ident(whose.key);
        let (summary, hops) = (summary(switches), switches.len() as u64);
        let verdict = self.seen.judge(kind | TRAIL, ident, summary, at.now, Detect::Any, rule.keep_alive);
        let (why, old) = match verdict {
            Verdict::Same => {
                self.counters.suppressed[Metric::FlowPath.index()] += 1;
                return;
            }
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old & 0xff),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old & 0xff),
        };
        made.postcards(self.stores.postcards, whose.key, switches);
        let time = self.moment(at, None);
        let place = Place { switch: Some(switch), ..Place::default() };
        let metric = Metric::FlowPath;
        let entry = Entry::Change { time, key: whose.key, metric, why, old, new: hops, place };
        self.event(list::CHANGES, &entry, made);
        if why != Why::Moved {
            self.event(list::KEYS, &Entry::Key { key: whose.key, means: means_flow(&whose.flow) }, made);
        }
    }

    /// The counters that every report of a flow adds to.
    fn count_flow(&mut self, whose: Whose, packet: &Packet<'_>, made: &mut Made) {
        let store = self.stores.counters;
        if self.rules.count_reports {
            made.increment(store, whose.key, 1);
        }
        if !self.rules.per_packet {
            return;
        }
        made.increment(store, telemetry::packets_key(&whose.flow), 1);
        made.increment(store, telemetry::bytes_key(&whose.flow), packet.length.into());
    }

    /// Tells a key in the directory, where it is new or due for its keep-alive.
    fn tell_key(&mut self, at: Arrival, kind: u8, key: Key, means: Means, made: &mut Made) {
        let keep_alive = self.rules.metrics[Metric::FlowPath.index()].keep_alive;
        let ident = u128::from_be_bytes(key.0);
        if self.seen.judge(kind, ident, 0, at.now, Detect::Any, keep_alive) != Verdict::Same {
            self.event(list::KEYS, &Entry::Key { key, means }, made);
        }
    }

    fn event(&mut self, list: u32, entry: &Entry, made: &mut Made) {
        if self.stores.events.is_some() {
            self.counters.events += 1;
            made.append(self.stores.events, list, &entry.bytes());
        }
    }

    /// The moment that is written beside a value.
    fn moment(&self, at: Arrival, time: Option<Time>) -> u64 {
        match (self.rules.time, time) {
            (TimeMode::Arrival, _) | (_, None) => at.wall,
            (TimeMode::Raw, Some(time)) => time.raw(),
            (TimeMode::Switch, Some(Time::Long(time))) => time,
            (TimeMode::Switch, Some(Time::Short(time))) => {
                let behind = (at.wall as u32).wrapping_sub(time) as i32;
                at.wall.saturating_add_signed(-i64::from(behind))
            }
        }
    }
}

/// The key directory's words for a flow.
fn means_flow(flow: &Flow) -> Means {
    if flow.src.is_ipv4() && flow.dst.is_ipv4() { Means::Itself } else { Means::Flow(*flow) }
}

/// What names a flow in the table of what was told.
fn ident(key: Key) -> (u8, u128) {
    (0, u128::from_be_bytes(key.0))
}

/// What names a hop of a flow in that table: the flow's key, and the switch in place of its last three bytes, which say
/// IPv4 or IPv6 and nothing else; the kind says that here. A switch of more than 24 bits does not fit, and its hop is
/// named by its own key.
fn hop_ident(whose: &Whose, switch: u32) -> (u8, u128) {
    let family = if whose.key.0[15] == 0 { 0 } else { OF_IPV6 };
    if switch >= 1 << 24 {
        return (0x40, u128::from_be_bytes(telemetry::hop_latency_key(&whose.flow, switch).0));
    }
    (family, u128::from_be_bytes(whose.key.0) & !0x00ff_ffff | u128::from(switch))
}

/// A path in 64 bits: the number of its hops in the lowest 8, and two CRCs of the switches.
fn summary(switches: &[u32]) -> u64 {
    let mut bytes = [0; 4 * MOST_HOPS];
    for (place, switch) in bytes.chunks_exact_mut(4).zip(switches) {
        place.copy_from_slice(&switch.to_be_bytes());
    }
    let bytes = &bytes[..4 * switches.len().min(MOST_HOPS)];
    let (a, b) = (dta_proto::crc::crc32c(bytes), dta_proto::crc::crc32(bytes));
    u64::from(a) << 32 | u64::from(b) & 0xffff_ff00 | switches.len() as u64 & 0xff
}
